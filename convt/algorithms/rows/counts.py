"""What the loops of rows do, as counts: see convt.algorithms.costs."""

import itertools

from ..._problem import ITEMSIZE
from .. import common, costs, execution
from ..depthwise.cutting import rows_met
from . import cutting

_GATHERED = 16  # phases up to this are interleaved by vectors


def cost(problem, here):
    info = here.info(problem.dtype)
    cut = cutting.cut_rows(problem, info, 2)
    groups = cutting.phase_groups(problem)
    rows, meet, new = rows_met(problem)
    s, vl = problem.strides[-1], info["vl"]
    sources = meet * problem.ci
    cycles = calls = 0.0
    accumulators = info["mr"][2] * info["nr"] // vl
    bounds = cutting.channel_blocks(problem.co, groups, info["mr"][2])
    vectors = cut.blocks * -(-cut.block // vl) if cut.blocks > 1 else -(-cut.js // vl)
    for first, end in itertools.pairwise(bounds):
        for group in groups:
            parts = -(-len(group.residues) // info["mr"][2])
            height = (end - first) * len(group.residues) / parts
            wide = 8 if height * 8 <= accumulators else 4 if height * 4 <= accumulators else 2
            step = max(height * wide / costs.FMA_PORTS, (height + 1.5 * wide) / costs.LOAD_PORTS, costs.FMA_LATENCY)
            cycles += parts * sources * len(group.offsets) * step * vectors / wide
            calls += parts * cut.blocks
    shared = 1 + (cut.rows - 1) * min(1.0, new / max(meet, 1e-9)) if problem.rank > 1 else cut.rows
    packed = problem.ci * meet * shared / cut.rows * cut.blocks * -(-(cut.block + len(groups[0].offsets)) // vl)
    stored = problem.co * s * vectors
    if s in (1, 2, 4, 8):
        order = "rows_zip"
    else:
        order = "rows_gather" if s <= _GATHERED and info["t_size"] == ITEMSIZE[problem.dtype] else "rows_single"
    counts = {
        "rows_cycle": cycles,
        "rows_call": calls,
        "rows_source": calls * sources,
        "rows_pack_vector": packed,
        order: stored,
        "rows_interleave": problem.co * cut.blocks,
        "rows_row": cut.blocks,
    }
    part = here.profile["rows"]
    total = part.cycles({name: rows * problem.groups * count for name, count in counts.items()})
    tasks = cut.blocks * problem.groups * -(-rows // cut.rows)
    memory = common.memory_counts(problem, execution.outgrows(problem, here.limits.non_temporal))
    del memory["in_line"], memory["out_line"]  # groups are apart in memory
    return common.shared([(total, tasks)]) + part.cycles(memory)
