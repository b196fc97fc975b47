"""What winograd's loops do, as counts: see convt.algorithms.costs."""

from typing import NamedTuple

from ... import _core
from .. import common, execution
from .loops import BRIDGE, CHAIN

ONE_AXIS = 6  # points: tiles of more are transformed on two axes, and summed in shorter chains


class Work(NamedTuple):
    """What the cost of a class depends on."""

    rows: int  # tiles
    points: int  # of a tile
    outputs: int  # of a tile
    windows: int  # that are summed
    columns: int
    ci: int
    co: int
    pieces: float  # of an output of all columns
    edges: float  # such pieces at the window's edge
    share: float  # of points times columns that is multiplied
    ends: tuple  # for each transformed axis: (share of its points that is multiplied, tiles along it)
    weight_bytes: float  # of all classes
    depth: int  # of the windows that are summed,
    chunks: int  # which are so many depth chunks
    step: int  # of such a depth


def depth_chunks(ci, windows, unit):
    """(depth of the windows that are summed, number of its chunks, depth of one)."""
    kstep = unit.kstep
    depth = windows * unit.filled(ci)
    step = -(-depth // (-(-depth // _core.KC) * kstep)) * kstep
    return depth, -(-depth // step), step


def cost(schedule, here):
    """Cycles of all threads together, and of threads that have nothing left to do."""
    return schedule.cycles


def packing(schedule, here):
    """Cycles to pack the weights of a call that brings its own, of every point, which takes no longer to make than to write."""
    unit = here.info(schedule.problem.dtype, schedule.unit)
    cycles = common.packing_cycles(schedule.weight_bytes, unit, schedule.again_bytes, here)
    return table(unit, here)["transform_weights"] + cycles


def table(unit, here):
    """The prices of winograd on a unit."""
    return here.profile["matrix_winograd" if unit.matrix else "winograd"]


def near_bytes(here):
    """Bytes of L2 that a task may count on."""
    return here.l2 // 8 * 7


def waiting_bytes(work, block, panel_block, unit):
    """Bytes of the points of a block and of all its sums."""
    return work.points * block * (work.depth * unit.e_size + panel_block * unit.nr * unit.t_size)


def task_counts(work, block, panel_block, span, across, unit, here):
    """What a task takes: its GEMMs, the weights that they wait for, the transforms of inputs and of products."""
    _, points, outputs, windows, width, ci, co, pieces, edges, share, ends, weight_bytes, depth, chunks, step = work
    nr, vl, size, t_size, kstep, matrix = unit.nr, unit.vl, unit.e_size, unit.t_size, unit.kstep, unit.matrix
    columns, near = min(width, panel_block * nr), here.l2 // 8 * 7
    multiplied = share * points
    for n, (part, tiles) in enumerate(ends):  # gaps between stretches of tiles are multiplied too, but on the first axis
        multiplied *= part if n == 0 or 2 * block >= 3 * BRIDGE * tiles else (2 + part) / 3
    bytes = points * depth * columns * -(-width // vl) * vl / width * share * size
    again = 0.0
    if not matrix:  # lines that are used in turn are lost as soon as there are a few more of them than L2 holds
        rows, sums = points * block * span * step * size, points * block * nr * t_size
        weights = points * span * step * nr * size
        if rows + sums + weights > near:
            again = panel_block * (rows + sums) * min(1.0, 4 * (1 - near / (rows + sums + weights)))
        if span < chunks:  # the sums of all panels wait for the next depth
            waiting = rows + panel_block * (sums + weights)
            if waiting > near:
                again += 4 * panel_block * sums * min(1.0, 4 * (1 - near / waiting))
            again *= -(-chunks // span)
    chain = min(step, CHAIN) if points > ONE_AXIS and not matrix else step
    counts = common.tile_counts(block, columns, depth, unit, chain)
    for name in counts:
        counts[name] *= multiplied
    fetched = max(0.0, 1 - here.l2 / weight_bytes) * bytes + again
    counts["weight_byte"], counts["weight_byte_l3"], counts["in_byte_l3"] = bytes, fetched, fetched
    vectors, reads = -(-ci // max(vl, kstep)) * max(1, kstep // vl), block * windows * points
    counts["wino_in_vector"], counts["store"], counts["call"] = reads * vectors, reads, block * windows * chunks
    products, stored = block * points * -(-columns // vl), block * outputs * columns / width
    counts["wino_product_vector"], counts["wino_output"] = products, block * outputs * panel_block
    counts["piece"], counts["task"] = stored * (pieces + edges), 1
    if share < 1 and co % nr:  # points multiply a part of a panel, and what is left becomes zeros
        counts["move"] = products
    if matrix:
        counts["weight_byte_amx"] = max(0.0, 1 - here.l2 / weight_bytes) * bytes
        counts["store"] += reads * vectors
        counts["amx_pack"] = block * windows * -(-ci // kstep)
        counts["piece"] += block * panel_block
        if across:
            waiting = waiting_bytes(work, block, panel_block, unit)
            counts["in_byte_l3"] += max(0.0, waiting - near)
    return counts


def memory_cycles(problem, non_temporal, gathered, unit, here):
    """``(cycles to stream data that L2 does not hold, cycles to fill outputs beforehand)``. Outputs are written by non-temporal
    stores or not, or gathered for them."""
    counts, prices = common.memory_counts(problem, non_temporal, here), table(unit, here)
    if not non_temporal and not gathered:
        counts["out_byte_split"] = common.far(execution.output_bytes(problem), here.l2) * common.split_bytes(problem)
    return prices.cycles(counts), prices.cycles(common.fill_counts(problem, here))
