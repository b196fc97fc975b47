"""What a schedule of depthwise costs: what its loops do, as counts (see convt.algorithms.costs)."""

from .. import common, costs
from .kinds import kind_of

_NEAR = 1 << 15  # bytes of weights in L1


def cost(schedule, here):
    """Cycles of all threads together."""
    p = schedule.problem
    info, kind = here.info(p.dtype), kind_of(p, here)
    memory, fill = common.memory_counts(p, False, here), {} if kind.width else common.fill_counts(p, here)
    rows, meet, new = common.rows_met(p)
    if kind.dots:
        counts = _dot_counts(p, info, meet)
        tasks = schedule.blocks * -(-rows // schedule.rows)
    else:
        counts = _row_counts(schedule, kind, info, meet, new, here)
        tasks = schedule.blocks * -(-schedule.lanes // schedule.lane_block) * -(-rows // schedule.rows)
    part = here.profile["depthwise"]
    cycles = part.cycles({name: rows * count for name, count in counts.items()})
    if schedule.converts:  # the inputs of a row are widened, its outputs are rounded
        pixels = (new + (schedule.row_taps - 1) / schedule.rows) * p.in_sizes[-1]
        cycles += here.profile["planes"].cycles({
            "move": rows * (pixels * p.groups * p.ci + p.out_sizes[-1] * p.groups * p.co) / info.vl,
        })  # fmt: skip
    return costs.beside(common.shared_alike(cycles, tasks, schedule.threads) + part.cycles(fill), part.cycles(memory))


def packing(schedule, here):
    """Cycles to pack the weights of a call that brings its own."""
    info = here.info(schedule.problem.dtype)
    return common.packing_cycles(common.filter_bytes(schedule.problem, info), info, here=here)


def _row_counts(schedule, kind, info, meet, new, here):
    """What a row of outputs takes that ``meet`` input rows reach in the mean, ``new`` of them for the first time."""
    p, (width, each, *_), vl, blocks = schedule.problem, kind, info.vl, schedule.blocks
    s, k, ci, size, lanes = p.strides[-1], p.kernel[-1], p.ci, p.in_sizes[-1], schedule.lanes
    js = max(1, -(-(p.begin[-1] + p.out_sizes[-1]) // s) - p.begin[-1] // s)
    terms, lane_blocks, phases, wide = -(-k // s), -(-lanes // schedule.lane_block), 1 if width else min(s, k), width or 1
    vectors, single = -(-wide * lanes // vl), -(-lanes // vl)
    taps = meet * ci * (terms if width else k)  # of a j
    # Outputs all of whose taps are inside; the others are runs of their own, unless kernels skip what is not there.
    inner = js if schedule.skips else max(0, min(js, size - terms + 1))
    outer = js - inner
    pairs = common.pairs_met(k, s, p.dilations[-1], size, p.begin[-1], p.out_sizes[-1])
    edges = max(0, pairs - inner * k) * taps / k * single  # multiply-adds of the others
    calls = blocks * -(-inner // (8 * wide * blocks))
    loads = calls * vectors * taps + edges  # of a vector of weights
    fmas = inner / wide * vectors * taps + edges
    stores = js / wide * vectors * phases
    counts = {
        # (An output at the end of a row, and the addresses of a term of a run, take as long as a multiply-add each.)
        "dw_fma": fmas * kind.operations + edges + lane_blocks * (taps * blocks + edges / single),
        "dw_weight": loads * (1 + common.far(schedule.lane_block * taps * info.t_size, _NEAR)
                              + common.far(common.filter_bytes(p, info), here.l2)),
        "call": (calls + 2 * outer + (blocks if width else 0)) * vectors * phases,
        "dw_store": stores,
        "start": lane_blocks * blocks * (1 + meet),
    }
    if s > 2 and not width:  # two phases store side by side, more go along the row one after the other
        counts["dw_store"] += stores
    if p.groups * p.co * info.t_size % 1024 == 0:  # outputs of a vector fall into few sets of L1
        counts["dw_store"] += stores
    if each or kind.reads == "as they are" or (kind.reads == "permuted" and not width):
        return counts
    if not width:  # what is gathered serves all phases
        counts["dw_gathered_fma"] = fmas / s
    rows = (new + (schedule.row_taps - 1) / schedule.rows) * ci  # that a row gathers: each task keeps them for the rows after
    counts["start"] += rows * blocks * lane_blocks
    span = (-(-min(vl, p.groups * p.co) // p.co) - 1) * ci + 1  # how far apart the inputs of a vector are
    counts["move" if span <= 2 * vl else "collect"] = rows * size * single
    return counts


def _dot_counts(problem, info, meet):
    """What a row of outputs takes where vectors run over in-channels."""
    p, vl = problem, info.vl
    s, k, co, vectors = p.strides[-1], p.kernel[-1], p.co, p.ci // vl
    js = max(1, -(-(p.begin[-1] + p.out_sizes[-1]) // s) - p.begin[-1] // s)
    tiles = -(-js // max(1, vl // co))
    # Terms of a stretch, by the registers that there are.
    most = 3 if info.mr[-1] * info.nr // vl > 16 else max(1, min(3, 7 // co))
    phases, terms = min(s, k), -(-k // s)
    longer = k - (terms - 1) * s if terms > 1 else phases  # phases that have all the terms; the others have one less
    stretches = longer * -(-terms // most) + (phases - longer) * -(-(terms - 1) // most)
    pairs = common.pairs_met(k, s, p.dilations[-1], p.in_sizes[-1], p.begin[-1], p.out_sizes[-1])
    return {
        "dw_fma": p.groups * meet * vectors * (pairs * co + js * stretches + tiles * (k - stretches)),  # and loads of pixels
        "dw_weight": p.groups * tiles * k * meet * vectors * co,
        "piece": p.groups * tiles * (phases + stretches * meet),
        "start": 1 + meet,
    }
