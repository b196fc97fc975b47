"""What winograd's loops do, as counts: see convt.algorithms.costs."""

import math

from ... import _core
from .. import common, execution, machine
from .loops import BRIDGE, CHAIN
from .transforms import PLAIN, filter_windows, panel_vectors

ONE_AXIS = 6  # points: more are of two axes, and summed in shorter chains


def l2_share():
    """Bytes of L2 that a task may count on."""
    return machine.current().l2 // 8 * 7


def placed(c, transform, stride, info):
    """A run of an axis, begun an output earlier where that leaves out more points: then tiles are cut short at both ends."""
    ways = [c, c.earlier(stride)] if transform.outputs > 2 else [c]
    return min(ways, key=lambda c: multiplied_points(c, transform, info))


def all_placed(problem, combo, scheme, info):
    """The runs of a class, `placed`."""
    return [placed(c, t, stride, info) for c, t, stride in zip(combo, scheme, problem.strides, strict=True)]


def multiplied_points(c, transform, info):
    """Points of all tiles of a run that are multiplied, in the mean of its phases: the first output of a tile alone needs the
    first point, the last alone the last, and those are left out where such an output is outside."""
    n, tiles = transform.outputs, -(-c.count // transform.outputs)
    if transform is PLAIN or info["parts"]:
        return tiles * transform.points
    points = 0
    for low, high in c.shown:
        for j in {0, (tiles - 1) * n}:
            shown = low < j + n and j < high
            points += (transform.points - (j < low) - (j + n > high)) * shown
        points += max(0, tiles - 2) * transform.points
    return points / len(c.valid)


def class_shape(problem, combo, chosen, scheme, info):
    """What a class costs depends on: (tiles, points and outputs of a tile, windows that are summed, columns, pieces of an
    output of all columns, those at the window's edge, the share of points times columns that is multiplied, and for each axis
    that has ends where points are left out: the share that is kept, tiles)."""
    rows = problem.batch * math.prod(-(-c.count // t.outputs) for c, t in zip(combo, scheme, strict=True))
    points, outputs = math.prod(t.points for t in scheme), math.prod(t.outputs for t in scheme)
    splits = math.prod(-(-len(g.offsets) // t.taps) for g, t in zip(chosen, scheme, strict=True))
    columns = problem.co * math.prod(len(c.first_out) for c in combo)
    pieces = common.pieces(combo, problem, columns, machine.current().info(problem.dtype))
    edges = columns / problem.co * common.outside(combo, [t.outputs for t in scheme])
    share = 1.0
    if common.nested(chosen):
        widths = panel_vectors(common.taps_table(chosen, problem.kernel), filter_windows(chosen, scheme), problem.co, info)
        share = float(widths.sum()) * info["vl"] / (points * common.padded(columns, info))
    return rows, points, outputs, splits, columns, pieces, edges, share, _kept(combo, scheme, info)


def _kept(combo, scheme, info):
    """For each transformed axis: the share of points that is kept, and its tiles."""
    tiles = [(c, t, -(-c.count // t.outputs)) for c, t in zip(combo, scheme, strict=True) if t is not PLAIN]
    return tuple((multiplied_points(c, t, info) / (n * t.points), n) for c, t, n in tiles)


def waiting_bytes(points, block, depth, panel_block, info):
    """Bytes of the points of a block and of all its sums."""
    return points * block * (depth * info["e_size"] + panel_block * info["nr"] * info["t_size"])


def cost_table(info):
    return machine.current().profile["matrix_winograd" if info["parts"] else "winograd"]


def task_cycles(problem, shape, block, panel_block, info, span, across=False):
    """Cycles of a task."""
    return cost_table(info).cycles(_task_counts(problem, shape, block, panel_block, info, span, across))


def _task_counts(problem, shape, block, panel_block, info, span, across):
    """What a task takes: its GEMMs, the weights that they wait for, the transforms of inputs and of products."""
    _, points, outputs, splits, width, pieces, edges, share, kept = shape
    size, vl = info["e_size"], info["vl"]
    depth, chunks, step = depth_chunks(problem, splits, info)
    phases = math.prod(map(min, problem.kernel, problem.strides))
    wide = common.padded(width, info) / width * share
    total = points * depth * size * problem.groups * problem.co * phases * wide  # of all classes, if they are alike
    columns = min(width, panel_block * info["nr"])
    chain = min(step, CHAIN) if points > ONE_AXIS and not info["parts"] else step
    multiplied = share * points
    for n, (part, tiles) in enumerate(kept):  # between stretches of tiles some are multiplied in vain, but on the first axis
        multiplied *= part if n == 0 or 2 * block >= 3 * BRIDGE * tiles else (2 + part) / 3
    again = 0 if info["parts"] else _again(points, block, span * step, chunks > span, panel_block, info) * -(-chunks // span)
    bytes = points * depth * columns * wide * size
    counts = common.weight_counts(bytes, total, again)
    for name, count in common.tile_counts(block, columns, depth, info, chain).items():
        counts[name] = multiplied * count
    if info["parts"]:
        counts["weight_byte_amx"] = common.far(total) * bytes
    if across:
        waiting = waiting_bytes(points, block, depth, panel_block, info)
        counts["wino_waiting_byte"] = common.far(waiting, l2_share()) * waiting
    reads = block * splits * points  # of transformed vectors of a tile's window
    vectors = -(-problem.ci // max(vl, info["kstep"])) * max(1, info["kstep"] // vl)
    counts["wino_in_vector"], counts["wino_in_point"] = reads * vectors, reads
    counts["wino_in_chunk"] = block * splits * chunks
    if info["parts"]:
        counts["amx_split_vector"] = reads * vectors
        counts["amx_split_step"] = block * splits * -(-problem.ci // info["kstep"])
    products = block * points * -(-columns // vl)
    counts["wino_product_vector"], counts["wino_output"] = products, block * outputs * panel_block
    if info["parts"]:
        counts["wino_output_panel"] = block * panel_block
    if share < 1 and problem.co % info["nr"]:  # points multiply a part of a panel, and what is left becomes zeros
        counts["wino_zero_vector"] = products
    stored = block * outputs * columns / width
    counts["piece"], counts["edge_piece"], counts["task"] = stored * pieces, stored * edges, 1
    return counts


def memory_cycles(problem, phases, info):
    """Cycles that data takes which L2 does not hold, and outputs that no tap reaches; of runs of so many phases."""
    non_temporal = common.streams(problem, machine.current().limits.non_temporal)
    counts = common.memory_counts(problem, non_temporal) | common.fill_counts(problem)
    if not non_temporal and not gathers(problem, phases, info):
        counts["out_byte_split"] = common.far(execution.output_bytes(problem)) * common.split_bytes(problem)
    return cost_table(info).cycles(counts)


def _again(points, block, depth, waits, panel_block, info):
    """Bytes of a task's rows and sums that L2 has lost when vectors read them again: lines that are used in turn are lost as
    soon as there are a few more of them than it holds. With ``waits`` the sums of all panels wait for the next depth."""
    lost = lambda bytes: min(1.0, 4 * common.far(bytes, l2_share()))  # noqa: E731
    rows, sums = points * block * depth * info["e_size"], points * block * info["nr"] * info["t_size"]
    weights = points * depth * info["nr"] * info["e_size"]
    again = panel_block * (rows + sums) * lost(rows + sums + weights)
    return again + 4 * panel_block * sums * lost(rows + panel_block * (sums + weights)) * waits


def depth_chunks(problem, splits, info):
    """(depth of the windows that are summed, number of its chunks, depth of one)."""
    kstep = info["kstep"]
    depth = splits * common.filled(problem.ci, info)
    step = -(-depth // (-(-depth // _core.KC) * kstep)) * kstep
    return depth, -(-depth // step), step


def gathers(problem, phases, info):
    """Whether outputs are gathered, so many phases of the last axis side by side, before non-temporal stores write them: those
    of a large output whose vectors are not aligned there."""
    wide = problem.co * phases >= 2 * info["nr"]
    return wide and common.split_bytes(problem) > 0
