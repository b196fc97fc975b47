"""The cost stage of turned: the counts of the loops of a schedule, and their cycles (see convt._model.costs)."""

import math

from ... import _core
from ..._model import costs
from ..._run import execution
from .. import common
from .schedule import accepts


def cost(schedule, here):
    """Return the cycles of all threads together."""
    p = schedule.problem
    info, part = here.info(p.dtype, schedule.unit), here.profile["turned" if schedule.unit == "vectors" else "turned_amx"]
    weights = common.filter_bytes(p, info)
    far = max(0.0, 1 - here.l2 / weights)
    tasks = []
    for c in schedule.classes:
        count = p.groups * c.cut.tasks
        tasks.append((count * part.cycles(_counts(p, c, info, far)), count))
    total = common.cycles_with_idle_thread(tasks, schedule.threads, here)
    memory, fill = _memory_counts(schedule, here)
    return costs.overlapped(total + part.cycles(fill), part.cycles(memory))


def _counts(problem, c, info, far):
    """Return the counts of a task of a class. L2 does not hold the fraction ``far`` of the weights."""
    vl, nr, s = info.vl, info.nr, problem.strides[-1]
    pixels, units, depth = min(c.cut.block, c.pixels), c.units / c.cut.panel_blocks, c.depth
    rows = units * s
    chunks = max(1, -(-depth // _core.KC))
    # Runs of contiguous pixels are cut into pieces at the ends of panels.
    ends = pixels / c.row if c.row % nr else 0.0
    pieces = pixels / nr + ends
    partial = min(2 * ends, pieces) if c.row % vl else 0.0  # pieces that do not fill their vectors
    vectors = pixels / vl + partial * (vl - 1) / (2 * vl)
    inside = min(1.0, problem.batch * math.prod(problem.in_sizes) / c.pixels)  # the fraction of inputs inside the data
    bytes = rows * depth * info.e_size
    found = {
        "weight_byte": bytes, "weight_byte_l3": far * bytes, "in_byte_l3": far * bytes,
        "collect": inside * depth * vectors,
        "start": inside * c.taps * pieces,
        "piece": -(-c.tiles // (c.cut.panel_blocks * c.call_tiles)) * pieces,
        "task": 1,
    }  # fmt: skip
    stored = vectors if s > 1 else 2 * ends  # tiles of one phase store directly, except where a row ends in a panel
    found[common.interleaving(s, info)] = rows * stored
    if info.matrix:
        blocks = -(-rows // info.m_step) * -(-pixels // vl)
        found["amx_product"] = blocks * -(-depth // info.kstep) * info.products
        found["amx_call"] = blocks * chunks
        found["amx_pack_panel"] = depth / info.kstep * pixels / vl
        return found
    # Register tiles of full panels, and of the last panel if it is narrower.
    full, rest = divmod(pixels, nr)
    cycles = calls = accumulators = 0.0
    tiles = c.tiles / c.cut.panel_blocks
    height = rows / tiles
    for count, wide in ((full, nr // vl), (rest > 0, -(-rest // vl))):
        if count:
            step = max(height * wide / costs.FMA_PORTS, (height + wide) / costs.LOAD_PORTS, costs.FMA_LATENCY)
            cycles += count * tiles * depth * step
            calls += count * tiles * chunks
            accumulators += count * tiles * chunks * height * wide
    found["tile_cycle"], found["tile_call"], found["tile_accumulator"] = cycles, calls, accumulators
    return found


def _memory_counts(schedule, here):
    """Return two dicts of counts: the inputs and outputs outside L2, and the filling of empty phases before the tasks."""
    p = schedule.problem
    outputs, fills = execution.output_bytes(p), schedule.execution.has_empty_phases
    fill = {"task": 1, "out_byte_l2": outputs, "out_byte_l3": max(0, outputs - here.l2)} if fills else {}
    return common.plane_counts(p, schedule.stream, here), fill


def least(problem, here, unit="vectors"):
    """Return a lower bound of the cycles: those of the multiply-adds in whole tiles."""
    info = here.info(problem.dtype, unit)
    if not accepts(problem, info):
        return math.inf
    taps = 1
    for k, s in zip(problem.kernel, problem.strides, strict=True):
        taps *= max(k, s) / s
    outputs = math.prod(problem.out_shape)
    return outputs * taps * problem.ci * common.product_price(info, here.profile["turned"])
