"""Smaller cases than a failing one."""

import copy

_PER_AXIS = ("in_sizes", "kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape")
_PLAIN = {
    "form": "shot", "precision": None, "values": "integers", "machine": {}, "algorithm": "auto", "backend": "native", "seed": 0,
}  # fmt: skip
_PLAIN_PROBLEM = {
    "activation": None, "bias": False, "add": False, "data_format": "NXC", "filter_format": "XIO", "dtype": "float32",
    "auto_pad": None,
}  # fmt: skip
_MINIMUM = {"in_sizes": 1, "kernel": 1, "strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0, "output_padding": 0,
          "output_shape": 0}  # fmt: skip


def smaller(case):
    """Yield cases that are one step smaller, large steps first."""
    for n in range(len(case["calls"])):
        if len(case["calls"]) > 1:
            yield _changed(case, lambda c, n=n: c["calls"].pop(n))
    if "odd" in case:
        yield _changed(case, lambda c: c.pop("odd"))
    for name, plain in _PLAIN.items():
        if case[name] != plain and not (name == "form" and case["dialect"] != "core"):
            yield _changed(case, lambda c, name=name, plain=plain: c.__setitem__(name, copy.copy(plain)))
    problem = case["problem"]
    if case["dialect"] == "core":
        for name, plain in _PLAIN_PROBLEM.items():
            if problem[name] != plain:
                yield _changed(case, lambda c, name=name, plain=plain: c["problem"].__setitem__(name, plain))
    if problem["output_shape"] is not None:
        yield _changed(case, lambda c: c["problem"].__setitem__("output_shape", None))
    rank = len(problem["kernel"])
    for axis in range(rank if rank > 1 else 0):
        yield _changed(case, lambda c, axis=axis: _drop_axis(c, axis))
    yield from _with_one_default(case)
    for name in ("batch", "groups", "ci", "co"):
        for n in _smaller_numbers(problem[name], 1):
            yield _changed(case, lambda c, name=name, n=n: c["problem"].__setitem__(name, n))
    for name in _PER_AXIS:
        for axis in range(rank if problem[name] is not None else 0):
            for n in _smaller_numbers(problem[name][axis], _MINIMUM[name]):
                yield _changed(case, lambda c, name=name, axis=axis, n=n: c["problem"][name].__setitem__(axis, n))


def _with_one_default(case):
    """Yield the case without one property of the machine or of a call."""
    for name in case["machine"]:
        yield _changed(case, lambda c, name=name: c["machine"].pop(name))
    for part in ("limits", "constants"):
        for name in case["machine"].get(part, ()):
            yield _changed(case, lambda c, part=part, name=name: c["machine"][part].pop(name))
    for n, call in enumerate(case["calls"]):
        plain = {"threads": 1, "out": None, "as": "numpy", "clear": False, "values": 0}
        for name, value in plain.items():
            if call[name] != value:
                yield _changed(case, lambda c, n=n, name=name, value=value: c["calls"][n].__setitem__(name, value))
        for array in ("data", "filter", "bias", "add", "out"):
            for name in call[array] or ():
                yield _changed(case, lambda c, n=n, array=array, name=name: c["calls"][n][array].pop(name))


def _smaller_numbers(n, least):
    return sorted({least, n // 2, n - 1} - {n}) if n > least else ()


def _changed(case, change):
    case = copy.deepcopy(case)
    change(case)
    return case


def _drop_axis(case, axis):
    for name in _PER_AXIS:
        if case["problem"][name] is not None:
            del case["problem"][name][axis]
    if "chunks" in case:
        del case["chunks"][axis + 1]
    at = axis + (1 if case["problem"]["data_format"] == "NXC" else 2)
    for call in case["calls"]:
        for array in ("data", "filter", "add", "out"):
            layout = call[array] or {}
            if "order" in layout:
                del layout["order"]
            if "steps" in layout:
                del layout["steps"][min(at, len(layout["steps"]) - 1)]
