"""The cost stage of depthwise: the counts of the loops of a schedule, and their cycles (see convt._model.costs)."""

from ..._model import costs
from .. import common
from .kinds import kind_of

_L1_WEIGHTS = 1 << 15  # the bytes of weights that L1 holds


def cost(schedule, here):
    """Return the cycles of all threads together."""
    p = schedule.problem
    info, kind = here.info(p.dtype), kind_of(p, here)
    memory, fill = common.memory_counts(p, False, here), {} if kind.width else common.fill_counts(p, here)
    rows, input_rows, new_rows = common.input_row_counts(p)
    if kind.dots:
        counts = _dot_counts(p, info, input_rows)
        tasks = schedule.task.blocks * -(-rows // schedule.task.rows)
    else:
        counts = _row_counts(schedule, kind, info, input_rows, new_rows, here)
        tasks = schedule.task.blocks * -(-schedule.task.lanes // schedule.task.lane_block) * -(-rows // schedule.task.rows)
    prices = here.profile["depthwise"]
    cycles = prices.cycles({name: rows * count for name, count in counts.items()})
    if schedule.reads.is_16_bit:  # the inputs of a row are widened, and its outputs are rounded
        pixels = (new_rows + (schedule.task.row_taps - 1) / schedule.task.rows) * p.in_sizes[-1]
        cycles += here.profile["planes"].cycles({
            "move": rows * (pixels * p.groups * p.ci + p.out_sizes[-1] * p.groups * p.co) / info.vl,
        })  # fmt: skip
    total = common.cycles_with_idle_thread([(cycles, tasks)], schedule.threads, here) + prices.cycles(fill)
    return costs.overlapped(total, prices.cycles(memory))


def _row_counts(schedule, kind, info, input_rows, new_rows, here):
    """Return the counts of an output row. ``input_rows`` rows reach it on average, ``new_rows`` of them for the first time."""
    p, (width, groups_per_vector, *_), vl, blocks = schedule.problem, kind, info.vl, schedule.task.blocks
    s, k, ci, size, lanes = p.strides[-1], p.kernel[-1], p.ci, p.in_sizes[-1], schedule.task.lanes
    js = max(1, -(-(p.begin[-1] + p.out_sizes[-1]) // s) - p.begin[-1] // s)
    terms, lane_blocks, phases, wide = -(-k // s), -(-lanes // schedule.task.lane_block), 1 if width else min(s, k), width or 1
    vectors, lane_vectors = -(-wide * lanes // vl), -(-lanes // vl)
    taps = input_rows * ci * (terms if width else k)  # taps times in-channels that one j sums
    # `inner` j have all their taps inside the input. The `outer` j at the ends of a row form runs of their own, unless kernels
    # skip taps outside the input.
    inner = js if schedule.reads.skips_outside else max(0, min(js, size - terms + 1))
    outer = js - inner
    pairs = common.tap_pair_count(k, s, p.dilations[-1], size, p.begin[-1], p.out_sizes[-1])
    edges = max(0, pairs - inner * k) * taps / k * lane_vectors  # vector multiply-adds of the `outer` j
    calls = blocks * -(-inner // (8 * wide * blocks))
    loads = calls * vectors * taps + edges  # loaded vectors of weights
    fmas = inner / wide * vectors * taps + edges
    stores = js / wide * vectors * phases
    counts = {
        # An output at the end of a row, and the addresses of a term of a run, each cost as much as a multiply-add.
        "dw_fma": fmas * kind.operations + edges + lane_blocks * (taps * blocks + edges / lane_vectors),
        "dw_weight": loads * (1 + common.uncached_fraction(schedule.task.lane_block * taps * info.t_size, _L1_WEIGHTS)
                              + common.uncached_fraction(common.filter_bytes(p, info), here.l2)),
        "call": (calls + 2 * outer + (blocks if width else 0)) * vectors * phases,
        "dw_store": stores,
        "start": lane_blocks * blocks * (1 + input_rows),
    }
    if s > 2 and not width:  # kernels store two phases side by side, but write the row again for each further phase
        counts["dw_store"] += stores
    if p.groups * p.co * info.t_size % 1024 == 0:  # consecutive outputs fall into few sets of L1
        counts["dw_store"] += stores
    if groups_per_vector or kind.reads != "gathered":
        return counts
    if not width:  # gathered inputs serve all phases
        counts["dw_gathered_fma"] = fmas / s
    # Gathered rows are kept for later output rows.
    rows = (new_rows + (schedule.task.row_taps - 1) / schedule.task.rows) * ci
    counts["start"] += rows * blocks * lane_blocks
    span = (-(-min(vl, p.groups * p.co) // p.co) - 1) * ci + 1  # elements between the first and the last input of a vector
    counts["move" if span <= 2 * vl else "collect"] = rows * size * lane_vectors
    return counts


def _dot_counts(problem, info, input_rows):
    """Return the counts of an output row of the dot-product kernel, whose vectors run over in-channels."""
    p, vl = problem, info.vl
    s, k, co, vectors = p.strides[-1], p.kernel[-1], p.co, p.ci // vl
    js = max(1, -(-(p.begin[-1] + p.out_sizes[-1]) // s) - p.begin[-1] // s)
    tiles = -(-js // max(1, vl // co))
    # The kernel adds the terms of a phase in stretches. The number of registers limits the terms of a stretch to `most`.
    most = 3 if info.mr[-1] * info.nr // vl > 16 else max(1, min(3, 7 // co))
    phases, terms = min(s, k), -(-k // s)
    longer_phases = k - (terms - 1) * s if terms > 1 else phases  # phases with `terms` terms; the others have one less
    stretches = longer_phases * -(-terms // most) + (phases - longer_phases) * -(-(terms - 1) // most)
    pairs = common.tap_pair_count(k, s, p.dilations[-1], p.in_sizes[-1], p.begin[-1], p.out_sizes[-1])
    return {
        # with loads of pixels
        "dw_fma": p.groups * input_rows * vectors * (pairs * co + js * stretches + tiles * (k - stretches)),
        "dw_weight": p.groups * tiles * k * input_rows * vectors * co,
        "piece": p.groups * tiles * (phases + stretches * input_rows),
        "start": 1 + input_rows,
    }
