"""What depthwise's loops do, as counts: see convt.algorithms.costs."""

from .. import common, execution, machine
from .cutting import cut_rows, js_shown, pairs_met, rows_met
from .kernels import converts, input_span, permuted_fma, skips_outside, whole_rows

_NEAR = 1 << 15  # bytes of weights in L1


def cost_part(problem, width, groups):
    """Whose kernels do it: their costs have a part each in convt.algorithms.costs."""
    if width:
        return "depthwise_cells"
    return "depthwise_groups" if groups else "depthwise_stride_1" if problem.strides[-1] == 1 else "depthwise"


def row_counts(problem, info, cut, width, groups, meet, new):
    """What a row of outputs takes that ``meet`` input rows reach in the mean, ``new`` of them for the first time."""
    s, k, ci, size, vl = problem.strides[-1], problem.kernel[-1], problem.ci, problem.in_sizes[-1], info["vl"]
    js, terms = js_shown(problem), -(-k // s)
    phases, wide = (1, width) if width else (min(s, k), 1)
    vectors, single = -(-wide * cut.lanes // vl), -(-cut.lanes // vl)
    taps = meet * ci * (terms if width else k)  # of a j
    # Outputs all of whose taps are inside; the others are runs of their own, unless kernels skip what is not there.
    inner = js if not width and skips_outside(problem, groups) else max(0, min(js, size - terms + 1))
    outer = js - inner
    edges = max(0, pairs_met(problem, -1) - inner * k) * taps / k * single  # multiply-adds of the others
    gathered = _gathered(problem, info, width, groups)
    calls = cut.blocks * -(-inner // (8 * wide * cut.blocks))
    loads = calls * vectors * taps + edges  # of a vector of weights
    weights = cut.lane_block * taps * info["t_size"]
    stores = js / wide * vectors * phases
    counts = {
        _fma_kind(problem, info, width, groups, gathered, meet, terms): inner / wide * vectors * taps + edges,
        "dw_edge_fma": edges,
        "dw_weight": loads,
        "dw_weight_l2": loads * common.far(weights, _NEAR),
        "dw_weight_l3": loads * common.far(common.filter_bytes(problem, info)),
        "dw_call": (calls + 2 * outer + (cut.blocks if width else 0)) * vectors * phases,
        "dw_store": stores,
        "dw_term": cut.lane_blocks * (taps * cut.blocks + edges / single),
        "dw_row": cut.lane_blocks * cut.blocks,
        "dw_in_row": cut.lane_blocks * cut.blocks * meet,
    }
    if s > 2 and not width:  # two phases store side by side, more go along the row one after the other
        counts["dw_store_phase"] = stores
    if problem.groups * problem.co * info["t_size"] % 1024 == 0:  # outputs of a vector fall into few sets of L1
        counts["dw_store_crowded"] = stores
    if not gathered:
        return counts
    if not (width or permuted_fma(problem, info)):  # what is gathered serves all phases
        counts["dw_gathered_fma"] = (inner / wide * vectors * taps + edges) / s
    in_rows = new + (cut.row_taps - 1) / cut.rows  # that a row gathers: each task keeps what it gathered for the rows after
    rows = in_rows * ci
    counts["dw_gather_row"] = rows * cut.blocks * cut.lane_blocks
    counts["dw_gather_near" if input_span(problem, info) <= 2 * vl else "dw_gather"] = rows * size * single
    return counts


def conversion_counts(problem, cut, new, info):
    """What it takes to widen the inputs and to round the outputs of a row, if they are of 16 bits; ``new`` as above."""
    if not converts(problem):
        return {}
    pixels = (new + (cut.row_taps - 1) / cut.rows) * problem.in_sizes[-1]
    return {
        "wide_in_vector": pixels * problem.groups * problem.ci / info["vl"],
        "wide_out_vector": problem.out_sizes[-1] * problem.groups * problem.co / info["vl"],
    }


def _gathered(problem, info, width, groups):
    """Whether inputs are gathered into vectors of lanes before they are multiplied."""
    return not (whole_rows(problem, width, groups) or (permuted_fma(problem, info) and not width))


def _fma_kind(problem, info, width, groups, gathered, meet, terms):
    """The name of a multiply-add, by how it comes by its input."""
    if width:
        return "dw_fma_cell"
    if groups:  # few accumulators let a broadcast serve few, as does a single tap
        many = info["mr"][-1] * info["nr"] // info["vl"] > 16 and problem.kernel[-1] > 1
        return "dw_fma_group" if many else "dw_fma_group_few"
    permuted = permuted_fma(problem, info)
    if permuted:
        return permuted
    if gathered:
        return "dw_fma_gathered"
    return "dw_fma_few" if meet * problem.ci * terms <= 4 else "dw_fma"


def dots_cost(problem, info):
    """Cycles where vectors run over in-channels."""
    part = machine.current().profile["depthwise_dots"]
    s, k, vectors = problem.strides[-1], problem.kernel[-1], problem.ci // info["vl"]
    rows, meet, new = rows_met(problem)
    js = js_shown(problem)
    tiles = -(-js // max(1, info["vl"] // problem.co))
    # Terms of a stretch, by the registers that there are.
    most = 3 if info["mr"][-1] * info["nr"] // info["vl"] > 16 else max(1, min(3, 7 // problem.co))
    loads = ends = starts = 0
    for phase in range(min(s, k)):
        terms = -(-(k - phase) // s)
        stretches = -(-terms // most)
        loads += (js * stretches + tiles * (terms - stretches)) * meet * vectors
        ends += tiles
        starts += tiles * stretches * meet
    counts = {
        "dw_fma": problem.groups * pairs_met(problem, -1) * meet * vectors * problem.co,
        "dw_load": problem.groups * loads,
        "dw_weight": problem.groups * tiles * k * meet * vectors * problem.co,
        "dw_tile": problem.groups * ends,
        "dw_stretch": problem.groups * starts,
        "dw_row": 1,
        "dw_in_row": meet,
    }
    cut = cut_rows(problem, 0, js, 2)
    tasks = -(-rows // cut.rows)
    conversion = machine.current().profile["planes"].cycles(conversion_counts(problem, cut, new, info))
    data = execution.data_bytes(problem)
    memory = common.memory_counts(problem) | common.fill_counts(problem)
    memory["in_byte_memory"] = data * common.far(data, machine.current().last_bytes)
    return common.shared([(rows * (part.cycles(counts) + conversion), tasks)]) + part.cycles(memory)
