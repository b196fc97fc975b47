"""Cases that are smaller than a failing one."""

_SIMPLE = {
    "transform": "jit", "dtype": "float32", "nonfinite": False, "mistake": None, "precision": None, "preferred": None,
    "dilations": None, "activation": None, "bias": False, "padding": "VALID", "transpose_kernel": False, "batch_groups": 1,
    "consistent": False,
}  # fmt: skip


def smaller(case):
    """Yield cases that are one step smaller, large steps first."""
    for name, simple in _SIMPLE.items():
        if name in case and case[name] != simple and not (name == "padding" and case["function"] != "conv_transpose"):
            yield case | {name: simple}
    if case["groups"] > 1:
        yield case | {"groups": 1}
    for name in ("batch", "ci", "co"):
        step = case["groups"] if name != "batch" else 1
        if case[name] > step:
            yield case | {name: step}
            yield case | {name: case[name] - step}
    for name in ("sizes", "kernel", "strides", "dilations", "pads_begin", "pads_end"):
        for n, value in enumerate(case.get(name) or ()):
            least = 0 if name.startswith("pads") else 1
            for new in {least, value - 1} - {value, least - 1}:
                yield case | {name: [*case[name][:n], new, *case[name][n + 1 :]]}
