"""What the loops of turned do, as counts: see convt.algorithms.costs."""

import math

from ... import _core
from .. import common, costs, execution
from .schedule import takes


def cost(schedule, here):
    """Cycles of all threads together."""
    p = schedule.problem
    info, part = here.info(p.dtype, schedule.unit), here.profile["turned" if schedule.unit == "vectors" else "matrix_turned"]
    weights = common.filter_bytes(p, info)
    far = max(0.0, 1 - here.l2 / weights)
    tasks = []
    for c in schedule.classes:
        count = p.groups * c.blocks * c.tile_blocks
        tasks.append((part.cycles(_counts(p, c, info, far)), count))
    total, count = sum([each * n for each, n in tasks]), sum([n for _, n in tasks])
    if schedule.threads > 1 and count <= common.EVEN:  # so few that threads wait for the last one
        total = 2 * common.makespan(sorted(tasks, reverse=True), 2)
    memory, fill = _memory_counts(schedule, here)
    return costs.beside(total + part.cycles(fill), part.cycles(memory))


def _counts(problem, c, info, far):
    """What a task of a class takes. Of all weights L2 lacks the share ``far``."""
    vl, nr, s = info.vl, info.nr, problem.strides[-1]
    pixels, units, depth = min(c.block, c.pixels), c.units / c.tile_blocks, c.depth
    rows = units * s
    chains = max(1, -(-depth // _core.KC))
    # Runs of pixels that are beside each other in memory are cut where panels end.
    ends = pixels / c.row if c.row % nr else 0.0
    pieces = pixels / nr + ends
    partial = min(2 * ends, pieces) if c.row % vl else 0.0  # pieces that are no whole vectors
    vectors = pixels / vl + partial * (vl - 1) / (2 * vl)
    inside = min(1.0, problem.batch * math.prod(problem.in_sizes) / c.pixels)  # the share that is not zeros, about
    bytes = rows * depth * info.e_size
    found = {
        "weight_byte": bytes, "weight_byte_l3": far * bytes, "in_byte_l3": far * bytes,
        "collect": inside * depth * vectors,
        "start": inside * c.taps * pieces,
        "piece": -(-c.tiles // (c.tile_blocks * c.together)) * pieces,
        "task": 1,
    }  # fmt: skip
    stored = vectors if s > 1 else 2 * ends  # a tile of one phase is stored as it is, but where a row ends within a panel
    found["zip" if s in (1, 2, 4, 8) else "gather"] = rows * stored
    if info.matrix:
        blocks = -(-rows // info.grain) * -(-pixels // vl)
        found["amx_product"] = blocks * -(-depth // info.kstep) * info.products
        found["amx_call"] = blocks * chains
        found["amx_pack_panel"] = depth / info.kstep * pixels / vl
        return found
    # Whole panels, and one that is not.
    full, rest = divmod(pixels, nr)
    cycles = calls = accumulators = 0.0
    tiles = c.tiles / c.tile_blocks
    height = rows / tiles
    for count, wide in ((full, nr // vl), (rest > 0, -(-rest // vl))):
        if count:
            step = max(height * wide / costs.FMA_PORTS, (height + wide) / costs.LOAD_PORTS, costs.FMA_LATENCY)
            cycles += count * tiles * depth * step
            calls += count * tiles * chains
            accumulators += count * tiles * chains * height * wide
    found["tile_cycle"], found["tile_call"], found["tile_accumulator"] = cycles, calls, accumulators
    return found


def _memory_counts(schedule, here):
    """Inputs and outputs that L2 does not hold; what fills the output before."""
    p = schedule.problem
    outputs = execution.output_bytes(p)
    fill = {"task": 1, "out_byte_l2": outputs, "out_byte_l3": max(0, outputs - here.l2)} if schedule.how.hole else {}
    return common.plane_counts(p, schedule.stream, here), fill


def packing(schedule, here):
    """Cycles to pack the weights of a call that brings its own."""
    info = here.info(schedule.problem.dtype, schedule.unit)
    return common.packing_cycles(common.filter_bytes(schedule.problem, info), info)


def least(problem, here, unit="vectors"):
    """Cycles that no schedule is below: multiply-adds by whole tiles, without anything else."""
    info = here.info(problem.dtype, unit)
    if not takes(problem, info):
        return math.inf
    taps = 1
    for k, s in zip(problem.kernel, problem.strides, strict=True):
        taps *= max(k, s) / s
    outputs = math.prod(problem.out_shape)
    if info.matrix:
        part = here.profile["matrix_turned"]
        per = info.products * part["amx_product"] / (info.grain * info.vl * info.kstep)
    else:
        per = here.profile["turned"]["tile_cycle"] / (info.vl * costs.FMA_PORTS)
    return outputs * taps * problem.ci * per
