"""The counts of the tasks of `winograd`, and the cycles of packing and of memory traffic.

schedule.py calls these functions while it compares divisions into tasks. convt/_model/costs.py defines the counts and
costs.
"""

from typing import NamedTuple

from ... import _core
from ..._run import execution
from .. import common
from .loops import BRIDGE, CHAIN

ONE_AXIS_POINTS = 6  # the most points of a tile that is transformed on one axis; tiles with more points are summed in chains


class Work(NamedTuple):
    """The properties of a class that its cost depends on."""

    rows: int  # tiles of all images
    points: int  # points of a tile
    outputs: int  # outputs of a tile
    windows: int  # tap windows
    columns: int
    ci: int
    co: int
    pieces: float  # extra pieces in which the columns of an output are stored
    edges: float  # extra pieces of an output due to phases outside the window
    share: float  # fraction of points times columns that is multiplied
    axis_shares: tuple  # for each transformed axis: (fraction of its points that is multiplied, tiles along it)
    weight_bytes: float  # bytes of the transformed weights of all classes
    depth: int  # tap windows times in-channels, in whole steps of depth
    chunks: int  # number of depth chunks
    step: int  # depth of a chunk


def depth_chunks(ci, windows, unit):
    """Return (depth of all tap windows, number of depth chunks, depth of a chunk)."""
    kstep = unit.kstep
    depth = windows * unit.filled(ci)
    step = -(-depth // (-(-depth // _core.KC) * kstep)) * kstep
    return depth, -(-depth // step), step


def cost(schedule, here):
    """Return the cycles of all threads together, including threads that idle at the end."""
    return schedule.cycles


def packing(schedule, here):
    """Return the cycles to pack the weights of a one-shot call. Transforming them takes no longer than writing them."""
    unit = here.info(schedule.problem.dtype, schedule.unit)
    cycles = common.packing_cycles(schedule.weight_bytes, unit, schedule.again_bytes, here)
    return unit_prices(unit, here)["transform_weights"] + cycles


def unit_prices(unit, here):
    """Return the costs of winograd on a unit."""
    return here.profile["matrix_winograd" if unit.matrix else "winograd"]


def near_bytes(here):
    """Return the bytes of L2 that a task may use."""
    return here.l2 // 8 * 7


def rows_and_sums_bytes(work, block, panel_block, unit):
    """Return the bytes of a task's transformed rows and sums, with all points and panels."""
    return work.points * block * (work.depth * unit.e_size + panel_block * unit.nr * unit.t_size)


def task_counts(work, block, panel_block, span, point_major, unit, here):
    """Return the counts of a task: its GEMMs, reading weights, the transforms of inputs and of products.

    ``block`` and ``panel_block`` are its tiles and panels, ``span`` the depth chunks that are transformed at once.
    ``point_major`` says whether a point is multiplied for all panels before the next point.
    """
    _, points, outputs, windows, width, ci, co, pieces, edges, share, axis_shares, weight_bytes, depth, chunks, step = work
    nr, vl, size, t_size, kstep, matrix = unit.nr, unit.vl, unit.e_size, unit.t_size, unit.kstep, unit.matrix
    columns, near = min(width, panel_block * nr), here.l2 // 8 * 7
    multiplied = share * points
    for n, (part, tiles) in enumerate(axis_shares):  # small gaps between tiles are multiplied too, except on the first axis
        multiplied *= part if n == 0 or 2 * block >= 3 * BRIDGE * tiles else (2 + part) / 3
    bytes = points * depth * columns * -(-width // vl) * vl / width * share * size
    reread = 0.0
    if not matrix:  # a cyclic access loses its lines as soon as it slightly exceeds L2
        rows, sums = points * block * span * step * size, points * block * nr * t_size
        weights = points * span * step * nr * size
        if rows + sums + weights > near:
            reread = panel_block * (rows + sums) * min(1.0, 4 * (1 - near / (rows + sums + weights)))
        if span < chunks:  # the partial sums of all panels are kept between spans
            working_set = rows + panel_block * (sums + weights)
            if working_set > near:
                reread += 4 * panel_block * sums * min(1.0, 4 * (1 - near / working_set))
            reread *= -(-chunks // span)
    chain = min(step, CHAIN) if points > ONE_AXIS_POINTS and not matrix else step
    counts = common.tile_counts(block, columns, depth, unit, chain)
    for name in counts:
        counts[name] *= multiplied
    fetched = max(0.0, 1 - here.l2 / weight_bytes) * bytes + reread
    counts["weight_byte"], counts["weight_byte_l3"], counts["in_byte_l3"] = bytes, fetched, fetched
    vectors, reads = -(-ci // max(vl, kstep)) * max(1, kstep // vl), block * windows * points
    counts["wino_in_vector"], counts["store"], counts["call"] = reads * vectors, reads, block * windows * chunks
    products, stored = block * points * -(-columns // vl), block * outputs * columns / width
    counts["wino_product_vector"], counts["wino_output"] = products, block * outputs * panel_block
    counts["piece"], counts["task"] = stored * (pieces + edges), 1
    if co % nr:  # the columns of a panel that a point does not multiply are set to zero
        counts["store"] += products * (1 - share)
    if matrix:
        counts["weight_byte_amx"] = max(0.0, 1 - here.l2 / weight_bytes) * bytes
        counts["store"] += reads * vectors
        counts["amx_pack"] = block * windows * -(-ci // kstep)
        counts["piece"] += block * panel_block
        if point_major:
            working_set = rows_and_sums_bytes(work, block, panel_block, unit)
            counts["in_byte_l3"] += max(0.0, working_set - near)
    return counts


def memory_cycles(problem, non_temporal, gathered, unit, here):
    """Return (cycles to stream data that L2 does not hold, cycles to fill outputs beforehand).

    ``non_temporal`` says whether outputs are written with non-temporal stores, ``gathered`` whether they are first gathered in
    the workspace.
    """
    counts, prices = common.memory_counts(problem, non_temporal, here), unit_prices(unit, here)
    if not non_temporal and not gathered:
        uncached = common.uncached_fraction(execution.output_bytes(problem), here.l2)
        counts["out_byte_split"] = uncached * common.split_bytes(problem)
    return prices.cycles(counts), prices.cycles(common.fill_counts(problem, here))
