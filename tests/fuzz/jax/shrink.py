"""Cases that are smaller than a failing one."""

from ..shrinking import steps

_PLAIN = {
    "transform": "jit", "dtype": "float32", "nonfinite": False, "mistake": None, "precision": None, "preferred": None,
    "dilations": None, "activation": None, "bias": False, "padding": "VALID", "transpose_kernel": False, "consistent": False,
}  # fmt: skip
_LEAST = {
    "groups": 1, "batch_groups": 1, "batch": 1, "ci": 1, "co": 1, "sizes": 1, "kernel": 1, "strides": 1, "dilations": 1,
    "pads_begin": 0, "pads_end": 0,
}  # fmt: skip


def smaller(case):
    """Yield cases that are one step smaller, large steps first."""
    for name in ("ci", "co"):
        if case[name] > case["groups"]:
            yield case | {name: case["groups"]}
    yield from steps(case, _PLAIN, _LEAST, lambda name, holder: False)
