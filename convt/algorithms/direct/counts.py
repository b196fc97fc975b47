"""What direct's loops do, as counts: see convt.algorithms.costs."""

import math

from ... import _core
from .. import common, execution, machine
from . import reading


def task_cycles(problem, combo, rows, columns, info):
    """Cycles of some rows and columns of a class, of which panels that the window does not show are left out."""
    return _costs(problem, combo, info).cycles(class_counts(problem, combo, rows, columns, info))


def _costs(problem, combo, info):
    """The costs of a class: of little depth one call of a kernel does all tiles of a height."""
    taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
    shallow = machine.current().limits.shallow_depth
    most = shallow if taps == 1 else 0 if info["parts"] else shallow // 2
    many = info["parts"] or 5 * info["wide"] >= 2 * info["mr"][-1]
    part = "matrix" if info["parts"] else "direct"
    return machine.current().profile[part + "_shallow" if taps * common.filled(problem.ci, info) <= most and many else part]


def class_counts(problem, combo, rows, columns, info):
    """What some rows and columns of a class take: tiles, weights read, rows packed, outputs stored piece by piece."""
    columns = math.ceil(columns * shown_share(problem, combo, info))
    taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
    bytes = common.padded(columns, info) * taps * common.filled(problem.ci, info) * info["e_size"]
    bytes *= -(-rows // reading.most_rows(info))
    total = common.filter_bytes(problem, info, columns)
    share = reading.dense_share(problem, combo) if reading.sparse(problem, combo) else 1.0
    window, packed = reading.reading(problem, combo, info)
    chain = min(_core.KC, window * problem.ci) if window else _core.KC
    counts = common.weight_counts(bytes, total)
    for part, depth in reading.depths(problem, combo, info):
        for name, count in common.tile_counts(rows * part, columns, depth, info, chain, info["wide"]).items():
            counts[name] = counts.get(name, 0.0) + count
    for name, count in _pack_counts(problem, info).items():
        counts[name] = packed * taps * rows * share * count
    counts["pack_run"] = packed * taps * rows / max(1, min(combo[-1].count, reading.most_rows(info)))
    outside = common.outside(combo, [1] * len(combo))
    counts["row"], counts["task"] = rows, 1
    counts["piece"] = rows * (1 - outside) * common.pieces(combo, problem, columns, info)
    counts["edge_piece"] = rows * outside * common.pieces(combo, problem, columns, info, edge=True)
    counts["edge_panel"] = rows * edge_share(combo, info) * -(-columns // info["nr"])
    if info["parts"]:
        counts["weight_byte_amx"] = common.far(total, 2 * machine.current().l2) * bytes  # L2 of both cores
        counts["store_vector_split" if common.splits_lines(problem) else "store_vector"] = rows * columns / info["vl"]
    return counts


def shown_share(problem, combo, info):
    """The share of a class's panels that the window shows."""
    *shares, last = (len(c.shown) / len(c.first_out) for c in combo)
    if last < 1:  # they may start and end within one
        last = min(1.0, last + info["nr"] / (problem.co * len(combo[-1].first_out)))
    return math.prod(shares) * last


def _pack_counts(problem, info):
    """What packing a tap of a row takes."""
    if info["parts"]:
        steps, rest = divmod(problem.ci, info["kstep"])
        return {"amx_pack": steps + 0.7 * (rest > 0)}
    whole, rest = divmod(problem.ci, info["vl"])
    return {"pack_vector": whole, "pack_rest": rest > 0}


def edge_share(combo, info):
    """The share of a class's tiles with a row where some phase is outside the window."""
    high, inside = info["mr"][-1], 1.0
    for n, c in enumerate(reversed(combo)):
        out = c.count - max(0, c.inner[1] - c.inner[0])
        # Along the last axis the end of a run and the start of the next one are neighbours.
        share = out if n else high + out - 1 if out else 0
        inside *= max(0.0, 1 - share / max(c.count, 1))
    return 1 - inside


def class_cost(problem, combo, info):
    """(cycles, the most tasks) of a class in all groups."""
    rows = problem.batch * math.prod(c.count for c in combo)
    columns = problem.co * math.prod(len(c.first_out) for c in combo)
    tasks = max(1, rows // reading.LEAST_ROWS) * max(1, -(-columns // info["nr"]))
    return task_cycles(problem, combo, rows, columns, info) * problem.groups, tasks * problem.groups


def non_temporal_from(problem, amx, here):
    """Bytes of output beyond which non-temporal stores write it."""
    return here.limits.amx_non_temporal - execution.data_bytes(problem) if amx else here.limits.direct_non_temporal


def memory_cycles(problem, info):
    """Cycles that data takes which L2 does not hold, and outputs that no tap reaches."""
    here = machine.current()
    limit = non_temporal_from(problem, info["parts"] > 0, here)
    non_temporal = common.streams(problem, limit) and not here.limits.ordinary_stores
    counts = common.memory_counts(problem, non_temporal) | common.fill_counts(problem)
    if not non_temporal and common.splits_lines(problem):
        bytes = execution.output_bytes(problem)
        counts["out_byte_split"] = common.far(bytes) * bytes
    if info["parts"]:
        data = execution.data_bytes(problem)
        counts["in_byte_memory"] = common.far(data, here.last_bytes) * data
    elif info["s_size"] < info["t_size"]:
        counts["narrow_vector"] = math.prod(problem.out_shape) / info["vl"]
    return here.profile["matrix" if info["parts"] else "direct"].cycles(counts)
