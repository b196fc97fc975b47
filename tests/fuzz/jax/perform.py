"""Computation of a case with convt and with jax.lax, and the comparison: `perform`."""

import functools
import operator
from collections import Counter

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_disable_most_optimizations", True)  # programs compile in half the time

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import convt  # noqa: E402
import convt.jax  # noqa: E402
from convt._base.activation import ACTIVATIONS  # noqa: E402

from ..pool import Difference  # noqa: E402
from .transforms import TRANSFORMS  # noqa: E402

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 4e-3, "bfloat16": 4e-2}  # in units of the scale of the result


@jax.enable_x64(True)
def perform(case):
    """Compute and check a case. Return ("right" or "error", {what convt computed: 1})."""
    if case["function"] == "call":
        ours, theirs, arguments = _operator(case)
    else:
        ours, theirs, arguments = _function(case)
    transform = functools.partial(_transformed, case["transform"])
    wanted = _outcome(lambda: transform(theirs, *arguments))
    program = transform(ours)
    got = [_outcome(lambda: program(*arguments)) for _ in range(4)]  # one-shot, packed, known
    if wanted[0] == got[0][0] == "error" and got[0] != wanted:
        # JAX's rules for vmap may fail before its own checks, except for a function under jit, as those of convt are.
        wanted = _outcome(lambda: transform(jax.jit(theirs), *arguments))
    for each in got:
        try:
            _compare(each, wanted, lambda: _scale(case, theirs, arguments, transform), case)
        except Difference as difference:
            if difference.kind != "wrong values":
                raise
            _compare_wide(each, theirs, arguments, transform, case, difference)
        if not _same(each, got[0]):
            raise Difference("repeat", "later calls have other bits than the first")
    served = wanted[0] == "value" and "convt_" in str(jax.make_jaxpr(program)(*arguments))
    return "right" if wanted[0] == "value" else "error", Counter([case["function"], case["transform"]] if served else ())


# ---------------------------------------------------------------- the function and its arguments


def _function(case):
    arguments = _arrays(case)
    rank, mistake = len(case["sizes"]), case["mistake"]
    strides, padding, numbers = tuple(case["strides"]), case["padding"], case["numbers"]
    padding = padding if isinstance(padding, str) else tuple(map(tuple, padding))
    precision = case["precision"]
    if mistake == "a short stride":
        strides = strides[1:]
    elif mistake == "a float stride":
        strides = (1.5, *strides[1:])
    elif mistake == "a zero stride":
        strides = (0, *strides[1:])
    elif mistake == "an unknown padding":
        padding = "some"
    elif mistake == "a short padding":
        padding = tuple((1,) for _ in range(rank))
    elif mistake == "an unknown precision":
        precision = "best"
    elif mistake == "an unknown layout":
        numbers = ("NQ", "QI", "NQ")
    keywords = {
        "rhs_dilation": case["dilations"] and tuple(case["dilations"]), "dimension_numbers": numbers and tuple(numbers),
        "precision": precision, "preferred_element_type": case["preferred"],
    }  # fmt: skip
    name = case["function"]
    if name == "conv_transpose":
        keywords |= {"strides": strides, "padding": padding, "transpose_kernel": case["transpose_kernel"]}
        if case["consistent"]:
            keywords["use_consistent_padding"] = True
    else:
        keywords |= {
            "window_strides": tuple(case["window"]), "padding": padding, "lhs_dilation": strides,
            "feature_group_count": case["groups"], "batch_group_count": case["batch_groups"],
        }  # fmt: skip
    theirs = lambda lhs, rhs: getattr(jax.lax, name)(lhs, rhs, **keywords)  # noqa: E731
    if case["transform"] == "patched":
        return convt.jax.accelerate(theirs), theirs, arguments
    return lambda lhs, rhs: getattr(convt.jax, name)(lhs, rhs, **keywords), theirs, arguments


def _arrays(case):
    rng = np.random.default_rng(case["seed"])
    rank, mistake, groups = len(case["sizes"]), case["mistake"], case["groups"]
    numbers = case["numbers"] or [f"N{'DHW'[-rank:]}C", f"{'DHW'[-rank:]}IO", None]
    axes = dict(zip("DHW"[-rank:], range(rank), strict=True))
    ci, co = case["ci"] // groups, case["co"]
    if case.get("transpose_kernel"):
        ci, co = co, ci
    data = {"N": case["batch"] * case.get("batch_groups", 1), "C": case["ci"]}
    filter = {"I": ci, "O": co * case.get("batch_groups", 1)}
    lhs = [data.get(each) or case["sizes"][axes[each]] for each in numbers[0]]
    rhs = [filter.get(each) or case["kernel"][axes[each]] for each in numbers[1]]
    if mistake == "a missing channel":
        lhs[numbers[0].index("C")] += 1
    elif mistake == "an empty axis":
        lhs[0] = 0
    elif mistake == "a missing axis":
        lhs = lhs[1:]
    values = lambda shape: jnp.asarray(rng.uniform(-1, 1, shape)).astype(case["dtype"])  # noqa: E731
    lhs, rhs = values(lhs), values(rhs)
    if case["nonfinite"] and lhs.size:
        lhs = lhs.at[tuple(rng.integers(0, lhs.shape))].set(jnp.asarray(rng.choice([np.nan, np.inf, -np.inf]), lhs.dtype))
    if mistake == "another dtype of rhs":
        rhs = rhs.astype("float16" if case["dtype"] != "float16" else "float32")
    elif mistake == "integers":
        lhs = lhs.astype("int32")
    return lhs, rhs


def _operator(case):
    rng = np.random.default_rng(case["seed"])
    rank, groups = len(case["sizes"]), case["groups"]
    filter = jnp.asarray(rng.uniform(-1, 1, (*case["kernel"], case["ci"], case["co"] // groups))).astype(case["dtype"])
    bias = jnp.asarray(rng.uniform(-1, 1, case["co"])).astype(case["dtype"]) if case["bias"] else None
    activation = case["activation"]
    keywords = {name: case[name] for name in ("strides", "pads_begin", "pads_end", "groups", "data_format")}
    keywords["dilations"] = case["dilations"] or 1
    keywords["activation"] = tuple(activation) if isinstance(activation, list) else activation
    shape = [case["batch"], *case["sizes"], case["ci"]]
    if case["data_format"] == "NCX":
        shape = [shape[0], shape[-1], *shape[1:-1]]
    data = jnp.asarray(rng.uniform(-1, 1, shape)).astype(case["dtype"])
    numpy = np.asarray(filter), None if bias is None else np.asarray(bias)

    op = []

    def ours(data):
        op.extend([] if op else [convt.ConvTranspose(*numpy, **keywords)])
        return convt.jax.call(op[0], data)

    def theirs(data):
        """Compute from the definition of `convt.ConvTranspose`, with jax.lax."""
        channels = 1 if case["data_format"] == "NCX" else rank + 1
        letters = "DHW"[-rank:]
        spec = f"NC{letters}" if channels == 1 else f"N{letters}C"
        d = case["dilations"] or [1] * rank
        reach = [(k - 1) * e for k, e in zip(case["kernel"], d, strict=True)]
        pads = [(r - b, r - e) for r, b, e in zip(reach, case["pads_begin"], case["pads_end"], strict=True)]
        f = jnp.flip(filter, range(rank))
        f = f.reshape(*f.shape[:rank], groups, -1, f.shape[-1])
        f = jnp.moveaxis(f, rank, -2).reshape(*f.shape[:rank], case["ci"] // groups, case["co"])
        y = jax.lax.conv_general_dilated(
            data, f, [1] * rank, pads, case["strides"], d, (spec, f"{letters}IO", spec), groups
        )  # fmt: skip
        y = y if bias is None else y + bias.reshape([-1 if ax == channels else 1 for ax in range(rank + 2)])
        if activation is None:
            return y
        name, *numbers = activation if isinstance(activation, list) else [activation]
        row = ACTIVATIONS[name]
        return operator.attrgetter(row.jax)(jax)(y, *numbers, **row.jax_keywords)

    return ours, theirs, (data,)


# ---------------------------------------------------------------- transformations


def _transformed(name, function, *arguments):
    """Return a transformed function, or its result for arguments."""
    made = TRANSFORMS[name](function)
    return made(*arguments) if arguments else made


# ---------------------------------------------------------------- comparison


def _outcome(function):
    try:
        return "value", [np.asarray(each) for each in jax.tree.leaves(function())]
    except Exception as error:
        return "error", (type(error).__name__, str(error).split("\n")[0][:300])


def _scale(case, function, arguments, transform):
    """Return the scale of the numbers that a result is the sum of."""
    if case["function"] == "call":
        return 10.0 * case["ci"] * np.prod(case["kernel"])
    values = [jnp.abs(jnp.nan_to_num(each, posinf=1, neginf=-1)) for each in arguments]
    found = jax.tree.leaves(transform(function, *values))
    return max(1.0, *(float(np.abs(np.nan_to_num(np.asarray(each, np.float64))).max(initial=0)) for each in found))


def _compare(got, wanted, scale, case):
    # The errors of `call` are those of `convt.ConvTranspose`.
    if got[0] != wanted[0] or (got[0] == "error" and case["function"] != "call" and got[1] != wanted[1]):
        raise Difference("error", f"got {got}, wanted {wanted}"[:600])
    if got[0] == "error":
        return
    if [(each.shape, each.dtype) for each in got[1]] != [(each.shape, each.dtype) for each in wanted[1]]:
        raise Difference("form", f"got {[each.shape for each in got[1]]}, wanted {[each.shape for each in wanted[1]]}")
    for ours, theirs in zip(got[1], wanted[1], strict=True):
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        if not case["nonfinite"] and not finite.all() and case["dtype"] != "float16":
            raise Difference("finiteness", "one of the results is not finite")
        if case["nonfinite"] and not np.array_equal(np.nan_to_num(a[~finite], nan=77), np.nan_to_num(b[~finite], nan=77)):
            raise Difference("finiteness", "other elements are not finite")
        worst = np.abs(a[finite] - b[finite]).max(initial=0)
        if worst > TOLERANCE[case["dtype"]] * max(scale(), np.abs(b[finite]).max(initial=0)):
            raise Difference("values", f"differ by {worst:.3g}, scale {scale():.3g}")


def _compare_wide(got, theirs, arguments, transform, case, difference):
    """Compare a result with jax.lax in float64. XLA's float16 convolutions on CPUs may be wrong where convt's are right."""
    wide = _outcome(lambda: transform(theirs, *(each.astype("float64") for each in arguments)))
    if case["dtype"] != "float16" or wide[0] == "error":
        raise difference
    for ours, exact in zip(got[1], wide[1], strict=True):
        if not np.abs(ours - exact).max(initial=0) <= TOLERANCE["float16"] * max(1.0, np.abs(exact).max(initial=0)):
            raise difference


def _same(a, b):
    return a[0] == b[0] and (a[0] == "error" or all(x.tobytes() == y.tobytes() for x, y in zip(a[1], b[1], strict=True)))
