"""turned, and matrix_turned on AMX tiles: direct's GEMM turned round for planes (NCX). Rows are outputs, columns are pixels.

Inputs are read and outputs are stored along rows of planes, so that nothing is transposed. The key of its weights is
``("turned",)`` or ``("matrix_turned",)``.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from ..._problem import ITEMSIZE
from .. import common, execution, machine
from ..direct import plan as direct
from ..phases import NESTED
from .plan import make_by_blocks
from .turned_loops import MOST_PHASES, TurnedPlan
from .turned_weights import TurnedRecipe

LIMIT = "it wants channels as planes (NCX), and in each phase of the last axis a tap"
_PANELS = 400 << 10, 1000 << 10  # bytes of L2 for the inputs of a task, for vectors and AMX
_MOST_PIXELS = 1024  # of a task
_TASKS = 8  # of a thread, at least, if each still has so many pixels:
_LEAST_PIXELS = 96
_LEAST_ROWS = 64  # of a task, whose inputs are packed for each


def merges(rank):
    """On which axes phases are merged: on the last all, as they alternate in the output; on others those that read the same."""
    return (True,) * (rank - 1) + (NESTED,)


def cost(problem, unit="vectors"):
    """Cycles; infinite for what it does not do."""
    info = machine.current().info(problem.dtype, unit)
    if not problem.planar or info is None or not _takes(problem, info):
        return math.inf
    return cut(_flat(problem), unit, machine.current())[0]


def _flat(problem):
    """The problem with its axes as one, where that is the same: every output reads but the input at its place."""
    axes = zip(problem.kernel, problem.strides, problem.begin, problem.in_sizes, problem.out_sizes, strict=True)
    if problem.rank == 1 or any((k, s, begin, size) != (1, 1, 0, out) for k, s, begin, size, out in axes):
        return problem
    pixels, one = (math.prod(problem.in_sizes),), (1,)
    return problem._replace(in_sizes=pixels, out_sizes=pixels, kernel=one, strides=one, dilations=one, begin=(0,))


def _flat_strides(problem, strides):
    """Strides of the array of a `_flat` problem; None where its pixels are not at a constant stride."""
    for size, outer, inner in zip(problem.in_sizes[1:], strides[1:-2], strides[2:-1], strict=True):
        if outer != size * inner:
            return None
    return strides[0], *strides[-2:]


def _takes(problem, info):
    """Whether each phase of the last axis has a tap, and a tile has room for all phases of a channel."""
    s, d, k = problem.strides[-1], problem.dilations[-1], problem.kernel[-1]
    if problem.ci * math.prod(problem.out_shape) == 0 or math.gcd(s, d) > 1 or s > k:
        return False
    return s <= min(info["mr"][2], MOST_PHASES)


def recipe(attributes, filter, bias, key, unit="vectors"):
    return TurnedRecipe(attributes.dtype, filter, bias, common.pack_classes(attributes, merges(len(attributes.kernel))), unit)


class Cut(NamedTuple):
    """How a class is cut into tasks."""

    block: int  # pixels of a task
    blocks: int
    units: list  # the first unit of each tile; a unit is the phases of the last axis of a channel and a phase of the others
    tile_block: int  # tiles of a task
    tile_blocks: int
    work: float  # cycles of a task


@functools.lru_cache(maxsize=256)
def cut(problem, unit, here, threads=2):
    """(cycles, groups, [(class, Cut)], hole)."""
    info = here.info(problem.dtype, unit)
    groups, classes = common.axes(problem, merges(problem.rank), (False,) * problem.rank)
    if math.prod(map(len, classes)) > common.MANY_CLASSES:
        return math.inf, groups, [], False
    combos = [combo for combo in itertools.product(*classes) if all(c.group >= 0 for c in combo)]
    hole = any(c.group < 0 for axis in classes for c in axis)
    part = here.profile["turned" if unit == "vectors" else "matrix_turned"]
    cuts = [(combo, _classcut(problem, combo, info, part, len(combos), threads)) for combo in combos]
    tasks = [(each.work * n, n) for _, each in cuts for n in [problem.groups * each.blocks * each.tile_blocks]]
    outgrows = execution.outgrows(problem, here.limits.direct_non_temporal)
    memory = common.memory_counts(problem, outgrows) | common.fill_counts(problem)
    del memory["in_line"], memory["out_line"]  # groups are apart in memory
    return common.shared(tasks) + part.cycles(memory), groups, cuts, hole


def _classcut(problem, combo, info, part, classes, threads):
    taps, phases = math.prod(len(c.first_in) for c in combo), math.prod(len(c.first_out) for c in combo)
    depth, s = taps * common.filled(problem.ci, info), problem.strides[-1]
    pixels, nr = problem.batch * math.prod(c.count for c in combo), info["nr"]
    units = problem.co * phases // s
    tiles = -(-units // (info["mr"][2] // s))
    room = _PANELS[info["parts"] > 0] // (max(depth, 1) * info["e_size"])
    block = max(nr, min(_MOST_PIXELS, room) // nr * nr)
    few = _TASKS * threads / (problem.groups * classes)
    while block > _LEAST_PIXELS and -(-pixels // block) < few:
        block -= nr
    blocks = -(-pixels // block)
    block = -(-pixels // (blocks * nr)) * nr
    blocks = -(-pixels // block)
    most = max(1, tiles * (info["mr"][2] // s * s) // _LEAST_ROWS)
    tile_blocks = max(1, min(most, tiles, math.ceil(few / blocks)))
    tile_block = -(-tiles // tile_blocks)
    tile_blocks = -(-tiles // tile_block)
    rows = units * s / tile_blocks
    counts = _counts(problem, combo, min(block, pixels), rows, depth, taps, units / tile_blocks, info)
    return Cut(block, blocks, [units * n // tiles for n in range(tiles + 1)], tile_block, tile_blocks, part.cycles(counts))


def _counts(problem, combo, pixels, rows, depth, taps, units, info):
    """What a task of so many pixels and rows takes."""
    vl, nr = info["vl"], info["nr"]
    counts = common.tile_counts(rows, pixels, depth, info)
    counts |= common.weight_counts(rows * depth * info["e_size"], common.filter_bytes(problem, info))
    run = min(combo[-1].count, nr)
    pieces = -(-pixels // run) if combo[-1].count <= nr else pixels / nr + pixels / combo[-1].count
    vectors = pixels / nr * -(-nr // vl) if run >= vl else pixels / max(run, 1)
    if info["parts"]:
        counts["amx_pack"] = depth / info["kstep"] * pixels / vl
    counts["turned_pack_vector"], counts["turned_pack_piece"] = depth * vectors, taps * pieces
    s = problem.strides[-1]
    name = "turned_store" if s in (1, 2, 4, 8) else "turned_store_gathered"
    counts[name] = rows * vectors
    counts["turned_store_piece"] = units * pieces
    counts["task"] = 1
    return counts


def make(problem, recipe, packed, in_strides, out_strides, threads, name="turned", unit="vectors"):
    key = (name,)
    if not packed(key).finite:  # NaN or infinity, or what AMX's bfloat16 parts can't hold
        return make_by_blocks(direct.cost, direct.make, problem, recipe, packed, in_strides, out_strides, threads)
    flat, ins, outs = _flat(problem), _flat_strides(problem, in_strides), _flat_strides(problem, out_strides)
    if flat is not problem and ins and outs:
        problem, in_strides, out_strides = flat, ins, outs
    here = machine.current()
    info = here.info(problem.dtype, unit)
    cycles, groups, cuts, hole = cut(problem, unit, here, common.threads(cut(problem, unit, here)[0], threads))
    index = common.pack_index(groups)
    pack_of = lambda combo: index[tuple(c.group for c in combo)]  # noqa: E731
    specs = [_spec(problem, combo, groups, each, pack_of(combo), out_strides, info) for combo, each in cuts]
    specs.sort(key=lambda spec: -spec["work"])
    packing = recipe(key)
    how = execution.execution(problem, here, info, out_strides, hole, cycles, packing.weight_bytes, False)
    stream = execution.outgrows(problem, here.limits.direct_non_temporal)
    far = packing.weight_bytes > here.limits.far
    return TurnedPlan(name, problem, packing, in_strides, out_strides, how, specs, stream, far), key


def _spec(problem, combo, groups, cut, pack, out_strides, info):
    """The tables of a class for TurnedPlan."""
    chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
    taps = list(itertools.product(*(c.first_in for c in combo)))
    outer = combo[:-1]
    steps = [stride // ITEMSIZE[problem.dtype] for stride in out_strides[1:-2]]
    phases = list(itertools.product(*(range(len(c.first_out)) for c in outer)))
    last = combo[-1]
    return {
        "count": [c.count for c in combo],
        "pixels": problem.batch * math.prod(c.count for c in combo),
        "block": cut.block,
        "blocks": cut.blocks,
        "tap_in": np.asarray(taps, np.int64).reshape(len(taps), problem.rank),
        "chunks": common.depth_chunks(combo, chosen, common.filled(problem.ci, info), info),
        "units": cut.units,
        "tile_block": cut.tile_block,
        "tile_blocks": cut.tile_blocks,
        "outer_at": [sum(c.first_out[p] * step for c, p, step in zip(outer, phase, steps, strict=True)) for phase in phases],
        "outer_valid": [[bound for c, p in zip(outer, phase, strict=True) for bound in c.valid[p]] for phase in phases],
        "whole": all((low, high) == (0, c.count) for c in outer for low, high in c.valid),
        "x_first": problem.strides[-1] * last.start - problem.begin[-1],
        "pack": pack,
        "nested": common.nested(chosen),
        "work": cut.work,
    }
