"""Primitives of JAX that `handler` computes on CPUs, and the transposed convolution as one.

The parameters of the transposed convolution are those of `jax.lax.conv_general_dilated_p`, whose rules give shapes, derivatives
and vmap, and which computes it elsewhere.
"""

import functools
import re
from pathlib import Path

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._base.problem import NUMPY_DTYPE
from . import _site, handler

CONVOLUTION = jax.lax.conv_general_dilated_p
_DTYPES = tuple(NUMPY_DTYPE.values())
_MOST = 2**31  # strides, dilations and pads below this limit leave sizes far below 2**63


def _register():
    """Register the handler with XLA. Raise ImportError if XLA's interface is not the one that convt was written for.

    XLA would refuse another version only when JAX creates its first array, which would then fail without convt, too.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text(encoding="utf-8")))
        major, minor = int(found["MAJOR"]), int(found["MINOR"])
    except (OSError, KeyError) as error:
        raise ImportError(f"convt.jax: got a jaxlib without a version of XLA's interface in {header}") from error
    wanted = handler.version()
    if major != wanted[0] or minor < wanted[1]:
        raise ImportError(
            f"convt.jax: got version {major}.{minor} of XLA's foreign function interface in jaxlib, "
            f"wanted {wanted[0]}.{wanted[1]} or a later {wanted[0]}.x, as in jaxlib 0.9.1 and later"
        )
    jax.ffi.register_ffi_target(handler.TARGET, handler.capsules(), platform="cpu")


_register()


def _layout(dimension_numbers):
    """Return convt's layout of data and output, or None for any other order of axes."""
    data, _, out = dimension_numbers
    rank = len(data) - 2
    channels_last, channels_first = (0, rank + 1, *range(1, rank + 1)), tuple(range(rank + 2))
    return {channels_last: "NXC", channels_first: "NCX"}.get(tuple(data)) if tuple(data) == tuple(out) else None


def _precision(precision):
    """Return convt's precision: the one that the user set for convt, unless the call asks for more than JAX's default."""
    asked = [each for each in precision or () if each is not jax.lax.Precision.DEFAULT]
    return "highest" if asked else None


def _keywords(data, filter, parameters):
    """Return the keywords of `convt.conv_transpose` for shapes and parameters of a convolution, or None.

    None means that convt does not support the convolution, or that it is no transposed one.
    """
    p, layout = parameters, _layout(parameters["dimension_numbers"])
    strides, dilations, numbers = p["lhs_dilation"], p["rhs_dilation"], p["dimension_numbers"]
    if layout is None or len(data) < 3 or p["batch_group_count"] != 1 or any(each != 1 for each in p["window_strides"]):
        return None
    if not all(type(size) is int and size > 0 for size in (*data, *filter)):  # sizes may be symbols
        return None
    if any(len(each) != len(data) - 2 for each in (strides, dilations, p["padding"])):  # JAX checks some of them later
        return None
    kernel, sizes = (([shape[ax] for ax in spec[2:]]) for shape, spec in ((filter, numbers[1]), (data, numbers[0])))
    begin, end = [], []
    for n, k, s, d, (low, high) in zip(sizes, kernel, strides, dilations, p["padding"], strict=True):
        reach = (k - 1) * d
        if not (0 < s < _MOST and 0 < d < _MOST and abs(low) < _MOST and abs(high) < _MOST) or low > reach:
            return None
        if (n - 1) * s + 1 + low + high - reach < 1:
            return None
        begin.append(reach - low)
        end.append(reach - high)
    return {
        "strides": strides, "dilations": dilations, "pads_begin": begin, "pads_end": [max(each, 0) for each in end],
        "output_padding": [max(-each, 0) for each in end], "data_format": layout,
        "precision": _precision(p["precision"]),
    }  # fmt: skip


def _is_served(data, filter, parameters):
    """Check whether convt computes a convolution: supported dtypes, layouts and parameters."""
    p = parameters
    wanted = p["preferred_element_type"]
    if (wanted is not None and wanted != data.dtype) or p.get("out_sharding") is not None:
        return False
    if filter.dtype != data.dtype or data.dtype not in _DTYPES:
        return False
    precision = p["precision"]
    if precision is not None and not all(isinstance(each, jax.lax.Precision) for each in np.atleast_1d(precision)):
        return False
    return _keywords(data.shape, filter.shape, p) is not None


def replaced(function, *arguments):
    """Compute a function of JAX arrays, with its transposed convolutions by convt.

    Only convolutions that the function itself makes are replaced, not those in functions under `jax.jit` that it calls.
    """
    traced = jax.make_jaxpr(function)(*arguments)
    equations = [
        each.replace(primitive=conv_transpose_p)
        if each.primitive is CONVOLUTION and _is_served(*(atom.aval for atom in each.invars), each.params) else each
        for each in traced.jaxpr.eqns
    ]  # fmt: skip
    return jax.extend.core.jaxpr_as_fun(traced.replace(jaxpr=traced.jaxpr.replace(eqns=equations)))(*arguments)


def _must_be_jaxs(context):
    """Check whether a program must have JAX's own operations: to be exported, or to be divided between devices by XLA."""
    module = context.module_context
    axes = module.axis_context
    if getattr(module.lowering_parameters, "for_export", False):
        return True
    if isinstance(axes, mlir.ShardingContext):
        return axes.num_devices != 1
    return isinstance(axes, mlir.SPMDAxisContext) and set(axes.mesh.axis_names) != set(axes.manual_axes)


def primitive(name, in_jax, text, kept):
    """Return a new primitive, which `handler` computes on CPUs.

    ``in_jax`` computes it with operations of JAX, on other platforms and in programs that must have these. ``text(context,
    operands, **parameters)`` returns the text of a call, as the functions of `_site` do, or None for a call that JAX computes.
    ``kept`` is how many functions compiled for calls outside of programs are kept, with their parameters.
    """
    made = Primitive(name)

    @functools.lru_cache(kept)
    def compiled(parameters):
        return jax.jit(functools.partial(made.bind, **dict(parameters)))

    @made.def_impl
    def compute(*arrays, **parameters):
        with jax.disable_jit(False):  # a block of jax.disable_jit would call this function again
            return compiled(tuple(sorted(parameters.items())))(*arrays)

    lower_to_jax = mlir.lower_fun(in_jax, multiple_results=False)

    def lower(context, *operands, **parameters):
        found = None if _must_be_jaxs(context) else text(context, operands, **parameters)
        if found is None:
            return lower_to_jax(context, *operands, **parameters)
        return jax.ffi.ffi_lowering(handler.TARGET)(context, *operands, **{handler.ARGUMENTS: found})

    # Not cached, because a cached rule does not see whether an operand is a constant.
    mlir.register_lowering(made, lower, platform="cpu", cacheable=False)
    mlir.register_lowering(made, lower_to_jax)
    made.forget = compiled.cache_clear
    return made


# ---------------------------------------------------------------- the transposed convolution


def site_arguments(data, filter, parameters):
    """Return the arguments of a site for shapes and parameters of a convolution that convt supports."""
    axes, groups = parameters["dimension_numbers"][1], parameters["feature_group_count"]
    return _keywords(data, filter, parameters), axes, groups


def _text(context, operands, **parameters):
    is_constant = getattr(operands[1].owner, "name", None) == "stablehlo.constant"
    return _site.text_for_weights(*site_arguments(*(aval.shape for aval in context.avals_in), parameters), is_constant)


conv_transpose_p = primitive("convt_conv_transpose", CONVOLUTION.bind, _text, 1024)
conv_transpose_p.def_effectful_abstract_eval(CONVOLUTION.abstract_eval)
ad.defjvp(
    conv_transpose_p,
    lambda tangent, data, filter, **parameters: conv_transpose_p.bind(tangent, filter, **parameters),
    lambda tangent, data, filter, **parameters: conv_transpose_p.bind(data, tangent, **parameters),
)
ad.primitive_transposes[conv_transpose_p] = ad.primitive_transposes[CONVOLUTION]


def _vmap(axis, arguments, axes, **parameters):
    """Merge the mapped axis into batch, channels or groups, as JAX's rule does."""
    rule, at = batching.fancy_primitive_batchers[CONVOLUTION], []

    def merged(*arguments):
        result, place = rule(axis, arguments, axes, **parameters)
        at.append(place)
        return result

    return replaced(merged, *arguments)[0], at[0]


batching.fancy_primitive_batchers[conv_transpose_p] = _vmap
