"""What algorithms share: axes cut into phases and runs, the cost of tiles, tables of taps and of outputs."""

import heapq
import itertools

import numpy as np

from .. import _core, _phases

MAX_SUMS = 1 << 20  # bytes of sums a task may keep between depth chunks

EVEN = 64  # so many tasks of a thread even out anyhow

# Above this many classes the tables outweigh what choosing well could save.
MANY_CLASSES = 4096


def axes(problem, merge, split):
    """The phase groups and the runs of the first axes, as many as ``merge`` speaks of."""
    groups, classes = [], []
    for ax, (m, cut) in enumerate(zip(merge, split, strict=True)):
        s, begin, out = problem.strides[ax], problem.begin[ax], problem.out_sizes[ax]
        groups.append(_phases.phase_groups(problem.kernel[ax], s, problem.dilations[ax], m))
        classes.append(_phases.axis_classes(groups[ax], problem.in_sizes[ax], s, begin, out, cut))
    return groups, classes


def tile_cost(rows, columns, depth, info):
    """Cycles to multiply ``rows`` x ``depth`` by ``depth`` x ``columns``: two multiply-adds, two loads a cycle, and no
    tile faster than the latency of its sums. (The unit of all costs; in use such a cycle takes about 1.4 real ones.)"""
    nr, vl = info["nr"], info["vl"]
    full, rest = divmod(columns, nr)
    cost = 0.0
    for count, vectors in ((full, nr // vl), (1 if rest else 0, -(-rest // vl))):
        tiles = max(1, -(-rows // info["mr"][vectors])) if vectors else 0
        height = rows / max(tiles, 1)
        cost += count * tiles * max(height * vectors / 2, (height + vectors) / 2, 4.0)
    return depth / info["kstep"] * cost


def gather_cost(rows, taps, channels, info):
    """Cycles to pack rows: a load and a store per vector, and some work per tap of a row."""
    return rows * taps * (2.8 * -(-channels // info["vl"]) + 2.5)


def groups_cost(problem, pixels, info):
    """Cycles that groups take beyond their own work as each comes back to the same lines of the output."""
    return pixels * 18.0 * -(-problem.co * info["t_size"] // 64) if problem.groups > 1 else 0.0


def makespan(tasks, threads):
    """When the last thread is done with tasks, (cycles, how many) each, taken in turn by the first that is free."""
    busy = [0.0] * threads
    for work, count in tasks:
        for _ in range(count):
            heapq.heapreplace(busy, busy[0] + work)
    return max(busy)


def weights_cost(count, times, info):
    """Cycles that the multiply-adds wait for weights which come from beyond L2, so many times."""
    return count * info["e_size"] * times / 10


def pack_classes(attributes, merge):
    """For each choice of one phase group per axis that ``merge`` speaks of: its taps, [phase][tap] flat kernel indices."""
    groups = [
        _phases.phase_groups(k, s, d, m)
        for k, s, d, m in zip(attributes.kernel, attributes.strides, attributes.dilations, merge, strict=False)
    ]
    return [taps_table(combo, attributes.kernel) for combo in itertools.product(*groups)]


def pack_index(groups):
    """The place in `pack_classes` of each choice of groups, as a tuple of their numbers."""
    return {combo: n for n, combo in enumerate(itertools.product(*(range(len(g)) for g in groups)))}


def taps_table(combo, kernel):
    """[phase][tap] flat kernel indices of a choice of phase groups."""
    table = np.zeros((1, 1), np.int64)
    for group, k in zip(combo, kernel, strict=False):
        taps = np.asarray(group.taps, np.int64)  # [phase][tap] of this axis
        table = table[:, None, :, None] * k + taps[None, :, None, :]  # the last axis fastest
        table = table.reshape(table.shape[0] * table.shape[1], -1)
    return table


def depth_chunks(combo, chosen, ci_p, kstep, slab=0):
    """Depth in pieces of at most KC: (first depth of the class, depth, first depth of the panel).

    A class uses a box of the panel's taps; taps that are adjacent in the panel make one stretch, within a ``slab``.
    """
    stretches, at = [], 0
    if ci_p:
        for tap in itertools.product(*(range(*c.tap_range) for c in combo)):
            flat = 0
            for n, group in zip(tap, chosen, strict=True):
                flat = flat * len(group.offsets) + n
            if stretches and stretches[-1][1] + stretches[-1][2] == flat * ci_p and (not slab or flat * ci_p % slab):
                stretches[-1][2] += ci_p
            else:
                stretches.append([at, flat * ci_p, ci_p])
            at += ci_p
    chunks = []
    for first, panel_first, depth in stretches:
        count = -(-depth // _core.KC)
        step = -(-depth // count // kstep) * kstep
        for k in range(0, depth, step):
            chunks.append((first + k, min(step, depth - k), panel_first + k))
    return chunks or [(0, 0, 0)]


def phase_table(combo, strides):
    """(output offset at the first pixel, [low, high of valid, per axis]) of every phase of a class."""
    table = []
    for phase in itertools.product(*(range(len(c.first_out)) for c in combo)):
        offset = sum(c.first_out[p] * step for c, p, step in zip(combo, phase, strides, strict=False))
        table.append((offset, [bound for c, p in zip(combo, phase, strict=True) for bound in c.valid[p]]))
    return table
