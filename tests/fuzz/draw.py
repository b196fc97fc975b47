"""The case of a seed: `case`. Rare arguments are drawn much more often than users pass them."""

import copy
import math
import random

from cases import ALGORITHMS, CURVED_ACTIVATIONS, DTYPES, EXACT_ACTIVATIONS, FILTER_FORMATS, ISAS, NCX_ONLY, using_isa

from convt import _core
from convt._plan import plans
from convt.algorithms import name_of

from . import machines, odd, oracle

# rank -> largest input, kernel, stride, dilation
_SIZES = {1: (70, 12, 9, 5), 2: (14, 6, 5, 3), 3: (6, 4, 3, 2), 4: (3, 3, 3, 2), 5: (2, 2, 2, 2)}
_WORK = [30_000, 200_000, 200_000, 1_500_000]  # most multiply-adds of a case
_WIDTHS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96, 128, 200)
_MULTIPLES = [(1, 1), (1, 1), (1, 2), (2, 1), (3, 2)]  # in- and out-channels of a group of depthwise
# Kinds of sizes just above those of buffers, tables and integers (8,192, 2^16), and the most outputs of such a case.
_LARGE = ("taps", "axis", "batch", "groups", "channels")
_LARGE_OUTPUTS = 150_000
_DTYPES = [*DTYPES, "float32", "bfloat16"]


def case(seed, isa=None):
    """Return the case of a seed, at the given instruction set or at one that the CPU has. It depends only on these."""
    rng = random.Random(seed)
    isa = isa or rng.choice(ISAS)
    dialect = rng.choice(["core"] * 8 + ["onnx", "openvino"])
    problem = _problem(rng, dialect)
    form = rng.choice(["operator", "shot"] * 8 + ["borrowing", "pickled", "stream"] * 4 + ["dask"])  # dask is slow, so rare
    form = "operator" if form == "stream" and problem["output_shape"] else form  # which a stream refuses
    form = "shot" if dialect != "core" else form
    found = {
        "isa": isa,
        "dialect": dialect,
        "problem": problem,
        "form": form,
        "backend": rng.choice(["native"] * 18 + ["auto", "reference"]) if dialect == "core" else "auto",
        "algorithm": _algorithm(rng, isa, problem, form) if dialect == "core" else "auto",
        "precision": rng.choice([None, None, None, "highest", "high", "medium"]),
        "values": rng.choice(["integers"] * 6 + ["real", "real", "special", "special", "denormal", "huge"]),
        "seed": rng.randrange(1 << 16),
        "machine": machines.draw(rng),
        "calls": [_call(rng, problem) for _ in range(rng.choice([1, 2, 3, 4, 6, 8]))],
    }
    if rng.random() < 0.35:
        found["calls"] = _repeats(rng, found["calls"][0])
    parts = form in ("dask", "stream")
    if found["backend"] == "reference" or parts:
        found["algorithm"] = "invariant" if parts and rng.random() < 0.7 else "auto"
    if found["values"] == "denormal" and DTYPES[problem["dtype"]][0].itemsize == 2:
        found["values"] = "integers"  # the dot product of bfloat16 flushes denormals to zero
    if parts:
        problem["add"] = False
        found["backend"] = "native"
    if form == "stream":
        axis = rng.randrange(len(problem["kernel"]))
        top = rng.randint(1, max(1, problem["in_sizes"][axis] // 2))  # small ones repeat a length, as most streams do
        found["stream"] = {"axis": axis, "chunks": [rng.randint(0, top) for _ in range(rng.randint(0, 8))]}
    elif form == "dask":
        found["chunks"] = [rng.randint(1, max(1, n)) for n in (problem["batch"], *problem["in_sizes"])]
    elif rng.random() < 0.06:
        found["odd"] = odd.draw(rng, dialect)
    return found


def _algorithm(rng, isa, problem, form):
    if rng.random() < 0.35:
        return "auto"
    if problem["groups"] > 1 and max(problem["ci"], problem["co"]) <= 3 and rng.random() < 0.5:
        return "depthwise:vectors"
    with using_isa(isa):
        names = [name for name in plans.ALGORITHMS if _is_available(name)]
    if problem["data_format"] != "NCX":
        names = [name for name in names if name_of(name) not in NCX_ONLY]
    if rng.random() < 0.8:
        names = [name for name in names if name in ALGORITHMS or problem["dtype"] in ("float32", "bfloat16")]
    return rng.choice(names)


def _is_available(name):
    return any(_core.kernel_info(dtype, plans.ALGORITHMS[name].unit) is not None for dtype in ("float32", "bfloat16"))


def _problem(rng, dialect):
    large = rng.choice(_LARGE) if rng.random() < 0.03 else None
    while True:
        found = _geometry(rng, dialect, large)
        try:
            out = [out for _, out in oracle.windows(found, dialect)]
        except oracle.Invalid:
            continue
        if math.prod(out) <= {None: 40_000, "taps": _LARGE_OUTPUTS, "axis": _LARGE_OUTPUTS}.get(large, 2):
            break
    batch = 0 if rng.random() < 0.01 else rng.choice([1, 1, 2, 3])
    if large:
        batch = _above(rng, 2**16) if large == "batch" else 1
    work = batch * math.prod(found["in_sizes"]) * math.prod(found["kernel"])
    most_channels = max(1, 300_000 // max(1, math.prod(out) * batch, math.prod(found["in_sizes"]) * batch))
    groups, ci, co = _channels(rng, rng.choice(_WORK) // max(1, work), most_channels)
    if large:
        groups, ci, co = _large_channels(rng, large)
    formats = {"core": FILTER_FORMATS, "onnx": ["IOX"], "openvino": ["IOX", "GIOX"]}[dialect]
    filter_format = rng.choice(formats)
    return {
        **found,
        "batch": batch,
        "groups": 1 if dialect == "openvino" and filter_format == "IOX" else groups,
        "ci": ci,
        "co": co,
        "dtype": rng.choice(_DTYPES),
        "data_format": rng.choice(["NXC", "NCX"]) if dialect == "core" else "NCX",
        "filter_format": filter_format,
        "bias": dialect != "openvino" and rng.random() < 0.6,
        "activation": _activation(rng) if dialect == "core" else None,
        "add": dialect == "core" and rng.random() < 0.25,
    }


def _activation(rng):
    if rng.random() < 0.4:
        return None
    unusual = ("leaky_relu", -2.0), ("elu", -2.0), ("clip", 1, 1)
    found = rng.choice([*EXACT_ACTIVATIONS, *EXACT_ACTIVATIONS, *CURVED_ACTIVATIONS, *unusual])
    return list(found) if isinstance(found, tuple) else found


def _channels(rng, work, most_channels):
    kind = rng.choice(["dense", "dense", "grouped", "depthwise", "depthwise", "deep", "wide", "few", "panels", "none"])
    width = lambda: rng.choice(_WIDTHS)  # noqa: E731
    groups, ci, co = {
        "dense": lambda: (1, width(), width()),
        "grouped": lambda: (rng.randint(2, 9), rng.randint(1, 20), rng.randint(1, 20)),
        "depthwise": lambda: (rng.choice([*_WIDTHS, rng.randint(1, 80)]), *rng.choice(_MULTIPLES)),
        "deep": lambda: (1, rng.randint(100, 700), rng.randint(1, 9)),
        "wide": lambda: (1, rng.randint(1, 5), rng.randint(60, 260)),
        "few": lambda: (rng.choice([1, 1, 2, 4]), width(), rng.randint(1, 4)),
        "panels": lambda: (1, rng.randint(1, 140), rng.choice([16, 32, 64])),
        "none": lambda: (1, 0 if rng.random() < 0.2 else 1, width()),
    }[kind]()
    work, most_channels = max(work, 4), max(most_channels, 4)
    if kind == "panels":  # whole panels of out-channels, which tasks can pack on their own
        return groups, max(1, min(ci, work // co, most_channels)), co
    groups = min(groups, work, most_channels)
    ci = min(ci, max(1, work // groups), max(1, most_channels // groups))
    return groups, ci, min(co, max(1, work // (groups * max(ci, 1))), max(1, most_channels // groups))


def _above(rng, size):
    return size + rng.randint(1, 3)


def _large_channels(rng, large):
    some = rng.choice([1, 1, 2, 3])
    if large == "groups":
        return _above(rng, 2**16), 1, rng.choice([1, 2])
    if large == "channels":
        return rng.choice([(1, _above(rng, 2**16), some), (1, some, _above(rng, 2**16))])
    return rng.choice([(1, some, 1), (1, 1, some), (some, 1, 1)])


def _large_sizes(rng, large):
    """Return (inputs, kernel, stride, dilation) of each axis of a problem with a large size of this kind."""
    if large == "taps":
        taps, kernel = rng.randint(8_200, 12_000), []
        for left in range(rng.randint(1, 3) - 1, 0, -1):
            kernel.append(rng.randint(1, round(taps ** (1 / left)) if left > 1 else taps // 2))
            taps //= kernel[-1]
        each_a_phase = rng.random() < 0.5
        return [(rng.randint(1, 3), k, k if each_a_phase else rng.randint(1, k), 1) for k in [*kernel, taps]]
    if large == "axis":
        axes = [(rng.randint(65_530, 70_000), rng.randint(1, 4), rng.choice([1, 1, 2]), rng.choice([1, 2]))]
        axes += [(1, rng.randint(1, 2), 1, 1) for _ in range(rng.randint(0, 3))]
        return rng.sample(axes, len(axes))
    return [(rng.choice([1, 1, 2]), rng.choice([1, 1, 2]), rng.choice([1, 2]), 1) for _ in range(rng.choice([1, 1, 2, 4]))]


def _geometry(rng, dialect, large):
    rank = rng.choice([1, 1, 2, 2, 2, 2, 3, 3, 4, 5])
    top = _SIZES[rank]
    sizes = _large_sizes(rng, large) if large else [_sizes(rng, top) for _ in range(rank)]
    mode = rng.choice(["pads", "pads", "pads", "output_shape", "auto_pad", "both"])
    word = rng.choice(["same_upper", "same_lower", "valid"]) if mode in ("auto_pad", "both") else None
    names = ("in_sizes", "kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape")
    axes = [_axis(rng, *each, dialect, mode, word) for each in sizes]
    found = {name: list(values) for name, values in zip(names, zip(*axes, strict=True), strict=True)}
    if mode not in ("output_shape", "both"):
        found["output_shape"] = None
    return {**found, "auto_pad": word}


def _sizes(rng, top):
    """Return (inputs, kernel, stride, dilation) of an axis."""
    n = 0 if rng.random() < 0.01 else rng.randint(1, top[0])
    k, s = rng.randint(1, top[1]), rng.choice([1, 1, 2, 2, rng.randint(1, top[2])])
    d = rng.choice([1, 1, rng.randint(1, top[3])])
    if rng.random() < 0.03:  # integers near the 64-bit limit, with small results
        n, k = rng.choice([(min(n, 2), 1), (1, min(k, 2)), (2, 2), (rng.randint(17, 40), 2)])
        s, d = (2 ** rng.randint(20, 62) + rng.randint(-2, 2) for _ in range(2))
    return n, k, s, d


def _axis(rng, n, k, s, d, dialect, mode, word):
    op = rng.randint(0, max(s, d) - 1 if dialect == "onnx" else s + 3) if rng.random() < 0.3 and s < 100 else 0
    reach = s * (n - 1) + (k - 1) * d + 1 + op
    if max(s, d) > 2**19:
        begin = rng.choice([0, reach - rng.randint(0, 9), reach // 2, s, d])
        begin = max(0, min(begin, reach))
        want = rng.randint(0, 12)
        return n, k, s, d, begin, max(0, reach - begin - want), op, want
    begin = rng.randint(0, max(0, min(reach, (k - 1) * d + 3))) if rng.random() < 0.7 else 0
    end = rng.randint(0, max(0, min(reach - begin, (k - 1) * d + 3))) if rng.random() < 0.7 else 0
    if dialect == "onnx" and word:
        begin = end = 0
    if mode == "both" and dialect == "core":
        return n, k, s, d, begin, end, op, _auto_pad_size(n, k, s, d, word, op)
    return n, k, s, d, begin, end, op, max(0, rng.randint(reach - (k - 1) * d - 3, reach + (s - 1 if dialect == "onnx" else 4)))


def _auto_pad_size(n, k, s, d, word, op):
    """Return the output size by auto_pad, with which output_shape must agree in the core dialect."""
    return max(0, oracle._core(n, k, s, d, 0, 0, op, word, None)[1])


def _call(rng, problem):
    rank = len(problem["kernel"]) + 2
    return {
        "threads": rng.choice([1, 1, 2, 2, 3, 4, 5, 8, 16, 33, 64]),
        "data": _layout(rng, rank, True),
        "filter": _layout(rng, rank + (problem["filter_format"] == "GIOX"), True),
        "bias": _layout(rng, 1, True),
        "add": _layout(rng, rank, True) if problem["add"] else None,
        "out": _layout(rng, rank, False) if rng.random() < 0.6 else None,
        "as": rng.choice(["numpy"] * 8 + ["dlpack", "array"]),
        "values": rng.randrange(2),
        "clear": rng.random() < 0.05,
    }


def _repeats(rng, call):
    """Return the call several times with other values. Repeated calls take the fast path of convt/_plan/repeat.pyx."""
    out = rng.choice([None, {"end": True}])
    # Copies, because shrinking may change one without the others.
    same = call | {"out": out, "as": "numpy", "clear": False}
    return [copy.deepcopy(same | {"values": rng.randrange(2)}) for _ in range(3)]


def _layout(rng, rank, is_input):
    found = {"end": rng.random() < 0.5}
    kind = rng.choice(["contiguous"] * 5 + ["order", "steps", "gap", "all", "bytes"] + ["broadcast", "sliding"] * is_input)
    if kind in ("order", "all"):
        found["order"] = rng.sample(range(rank), rank)
    if kind in ("steps", "all"):
        found["steps"] = [rng.choice([1, 1, -1, -1, 2, -3]) for _ in range(rank)]
    if kind in ("gap", "all"):
        found["gap"] = rng.randint(1, 5)
    if kind == "bytes":
        found |= rng.choice([{"bytes": 1}, {"bytes": 3, "off": 1}, {"off": 1}])
    if kind == "broadcast":
        found["steps"] = [rng.choice([0, 1, -1]) for _ in range(rank)]
    if kind == "sliding":
        found |= {"sliding": True, "steps": [rng.choice([0, 1, 1, 2, -1]) for _ in range(rank)]}
    return found
