"""The cost stage of rows: the counts of the loops of a schedule, and their cycles (see convt._model.costs)."""

from ..._model import costs
from .. import common


def cost(schedule, here):
    """Return the cycles of all threads together."""
    p = schedule.problem
    info = here.info(p.dtype)
    rows, input_rows, new_rows = common.input_row_counts(p)
    vl, most, blocks, block = info.vl, info.mr[2], schedule.blocks, schedule.block
    sources, accumulators = input_rows * p.ci, most * info.nr // vl
    row_vectors = -(-(block if blocks > 1 else schedule.js) // vl)
    vectors = blocks * row_vectors
    short, longer = divmod(p.co, schedule.channel_blocks)
    cycles = 0.0
    for channels, count in ((short, schedule.channel_blocks - longer), (short + 1, longer)):
        for phases in schedule.phases if count else ():
            cycles += count * phases.terms * _step(channels * len(phases.residues), row_vectors, accumulators)
    calls = schedule.channel_blocks * len(schedule.phases) * blocks
    shared = 1 + (schedule.rows - 1) * min(1.0, new_rows / max(input_rows, 1e-9)) if len(p.kernel) > 1 else schedule.rows
    group_rows = rows * p.groups
    part = here.profile["rows"]
    # Each block of a row reads the weights of its taps.
    weights = group_rows * blocks * sources * p.kernel[-1] * p.co * info.e_size
    total = part.cycles(common.weight_counts(weights, common.filter_bytes(p, info), here=here) | {
        "rows_cycle": group_rows * blocks * cycles * sources,
        "call": group_rows * calls,
        "row": group_rows * calls * sources,
        "collect": group_rows * sources * shared / schedule.rows * blocks * -(-(block + schedule.phases[0].terms) // vl),
        common.interleaving(p.strides[-1], info): group_rows * p.co * p.strides[-1] * vectors,
        "piece": group_rows * p.co * blocks,
        "start": group_rows * blocks,
    })  # fmt: skip
    memory = common.plane_counts(p, schedule.stream, here)
    tasks = blocks * p.groups * -(-rows // schedule.rows)
    return costs.overlapped(common.cycles_with_idle_thread([(total, tasks)], schedule.threads, here), part.cycles(memory))


def _step(height, vectors, accumulators):
    """Return the cycles to multiply a row of ``vectors`` by one weight of each of ``height`` outputs: in blocks of 8, 4 or 2
    vectors, as wide as the accumulators permit, and of one vector at the end."""
    cycles = 0.0
    for wide in (8, 4, 2, 1):
        if wide <= 2 or height * wide <= accumulators:
            count, vectors = divmod(vectors, wide)
            cycles += count * max(height * wide / costs.FMA_PORTS, (height + 1.5 * wide) / costs.LOAD_PORTS, costs.FMA_LATENCY)
    return cycles
