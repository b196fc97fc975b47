"""The case of a seed."""

import random

from cases import CURVED_ACTIVATIONS, EXACT_ACTIVATIONS

DTYPES = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
TRANSFORMS = (
    "eager", "jit", "jit", "vmap lhs", "vmap rhs", "vmap both", "nested vmap", "grad", "jvp", "jacrev", "hessian", "scan",
    "checkpoint", "patched", "shard_map", "vmap of grad",
)  # fmt: skip
_LETTERS = "DHW"
_ACTIVATIONS = [list(each) if isinstance(each, tuple) else each for each in (None, *EXACT_ACTIVATIONS, *CURVED_ACTIVATIONS)]


def case(seed):
    """Return the case of a seed."""
    r = random.Random(seed)
    rank = r.choice((1, 1, 2, 2, 2, 3))
    groups = r.choice((1, 1, 1, 2, 3))
    ci, co = r.randint(1, 12 if rank < 3 else 6), r.randint(1, 12 if rank < 3 else 6)
    function = r.choice(("conv_transpose", "conv_general_dilated", "call"))
    groups = 1 if function == "conv_transpose" else groups
    ci, co = ci * groups, co * groups
    per_axis = lambda low, high: [r.randint(low, high) for _ in range(rank)]  # noqa: E731
    sizes, kernel = per_axis(1, 20 if rank == 1 else 9 if rank == 2 else 5), per_axis(1, 5 if rank < 3 else 3)
    strides, dilations = per_axis(1, 4), r.choice((None, per_axis(1, 3)))
    found = {
        "function": function, "seed": seed, "dtype": r.choice(DTYPES), "transform": r.choice(TRANSFORMS),
        "sizes": sizes, "kernel": kernel, "batch": r.randint(1, 3), "ci": ci, "co": co, "groups": groups, "strides": strides,
        "dilations": dilations, "nonfinite": r.random() < 0.05,
    }  # fmt: skip
    letters = _LETTERS[-rank:]
    if function == "call":
        found |= {
            "pads_begin": per_axis(0, 1), "pads_end": [r.randint(0, max(0, k - 2)) for k in kernel], "bias": r.random() < 0.5,
            "data_format": r.choice(("NXC", "NCX")),
            "activation": r.choice(_ACTIVATIONS),
        }  # fmt: skip
    else:
        data = r.choice([f"N{letters}C"] * 5 + [f"NC{letters}"] * 5 + [f"{letters}NC"])
        out = data if r.random() < 0.95 else r.choice((f"N{letters}C", f"NC{letters}"))
        filter = r.choice((f"{letters}IO", f"OI{letters}", f"IO{letters}", f"{letters}OI"))
        reach = [(k - 1) * d for k, d in zip(kernel, dilations or [1] * rank, strict=True)]
        pads = [[r.randint(-1, n + (r.random() < 0.1)), r.randint(-1, n + 3)] for n in reach]
        found |= {
            "numbers": [data, filter, out], "padding": pads, "precision": r.choice((None, None, "highest", "high", "default")),
            "preferred": r.choice((*[None] * 10, "float32", "float64")), "mistake": _mistake(r),
        }  # fmt: skip
        if function == "conv_transpose":
            found["transpose_kernel"] = r.random() < 0.3
            found["padding"] = r.choice(("SAME", "VALID", "SAME", pads))
            found["consistent"] = r.random() < 0.1
            if r.random() < 0.2:
                found["numbers"] = None
        else:
            found["batch_groups"] = 1 if r.random() < 0.95 else 2
            found["window"] = [1] * rank if r.random() < 0.9 else per_axis(1, 2)
    return found


def _mistake(r):
    """Return a change of one argument that jax.lax may refuse, or None."""
    return None if r.random() < 0.9 else r.choice((
        "another dtype of rhs", "a missing channel", "a short stride", "a float stride", "a zero stride", "an unknown padding",
        "a short padding", "an unknown precision", "an unknown layout", "an empty axis", "a missing axis", "integers",
    ))  # fmt: skip
