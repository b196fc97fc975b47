"""The call of an operator of convt in a JAX program."""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from .._base import activation, check
from .._call.operator import ConvTranspose
from . import _site
from ._primitive import primitive, replaced


def call(op: ConvTranspose, x: jax.Array) -> jax.Array:
    """Compute ``op(x)`` in a JAX program, with the weights that ``op`` has packed and its fused bias and activation.

    The operator is a constant of the program: it has no derivative with respect to its weights. The derivative with respect to
    ``x`` is that of `jax.lax.conv_general_dilated`, the bias and the activation, which also compute other platforms than CPUs.
    A compiled program keeps the operator alive. Do not call ``op.update``, because programs have copies of its weights for
    derivatives.

    Parameters
    ----------
    op : convt.ConvTranspose
        The operator.
    x : array of the operator's dtype
        Data of `convt.ConvTranspose`. An additional leading axis of `jax.vmap` becomes a part of the batch.

    Returns
    -------
    array
        The output, in the operator's data_format.

    Raises
    ------
    TypeError
        ``op`` is no `convt.ConvTranspose`, or the dtype of ``x`` differs from the operator's.
    ValueError
        The shape of ``x`` does not fit the operator.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np, convt.jax
    >>> op = convt.ConvTranspose(np.ones((2, 2, 8, 4), np.float32), strides=2, activation="relu")
    >>> jax.jit(lambda x: convt.jax.call(op, x))(jnp.ones((1, 5, 5, 8))).shape
    (1, 10, 10, 4)
    """
    if not isinstance(op, ConvTranspose):
        raise TypeError(f"op: got {type(op).__name__}, wanted a convt.ConvTranspose")
    return call_p.bind(jnp.asarray(x), op=op)


# ---------------------------------------------------------------- the operator in JAX's terms


def _activated(y, name, *parameters):
    """Apply an activation with a function of JAX."""
    row = activation.ACTIVATIONS[name]
    return operator.attrgetter(row.jax)(jax)(y, *parameters[: len(row.parameters)], **row.jax_keywords)


_ANY_SIZE = 2**20  # in place of a size that is a symbol: the padding does not depend on it


def _is_symbol(size):
    return not isinstance(size, (int, np.integer))


def _padding(a, in_sizes):
    """Return the padding (low, high) of each axis of JAX's convolution for Attributes. Sizes may be symbols of an export."""
    if a.output_shape is not None and any(map(_is_symbol, in_sizes)):
        raise TypeError(f"x: got sizes {in_sizes}, wanted integers, because the operator has an output_shape")
    in_sizes = [_ANY_SIZE if _is_symbol(size) else size for size in in_sizes]
    begin, _, out_sizes = a.windows(in_sizes)
    axes = zip(in_sizes, a.kernel, a.strides, a.dilations, begin, out_sizes, strict=True)
    return [((k - 1) * d - low, out - 1 - (n - 1) * s + low) for n, k, s, d, low, out in axes]


def _in_jax(x, op):
    """Compute ``op(x)`` with operations of JAX."""
    a, channels = op._attributes, 1 if op._attributes.data_format != "NXC" else x.ndim - 1
    padding = _padding(a, a.shape_of(x.shape)[1])
    filter = np.flip(op._plans.filter, range(3, x.ndim + 1)).swapaxes(0, 1)  # (in channels, groups, out channels, *kernel)
    filter = jnp.asarray(filter.reshape(filter.shape[0], -1, *filter.shape[3:]))
    spatial = [ax for ax in range(1, x.ndim) if ax != channels]
    data = (0, channels, *spatial)
    numbers = jax.lax.ConvDimensionNumbers(data, (1, 0, *range(2, x.ndim)), data)
    y = jax.lax.conv_general_dilated(
        x, filter, (1,) * len(spatial), padding, a.strides, a.dilations, numbers, a.groups, precision="highest"
    )
    if op._plans.bias is not None:
        y = y + jnp.expand_dims(jnp.asarray(op._plans.bias), [ax for ax in range(x.ndim) if ax != channels])
    return _activated(y, *a.activation).astype(x.dtype)


# ---------------------------------------------------------------- the primitive


def _text(context, operands, op):
    if 0 in context.avals_out[0].shape or 0 in context.avals_in[0].shape:
        return None
    context.module_context.add_keepalive(op)
    return _site.text_for_operator(op)


call_p = primitive("convt_call", _in_jax, _text, 16)


@call_p.def_abstract_eval
def _shape(x, op):
    if x.dtype.name != op._attributes.dtype:
        raise TypeError(f"x: got dtype {x.dtype}, wanted {op._attributes.dtype}, the operator's")
    with check.renamed({"data": "x"}):
        is_known = not any(map(_is_symbol, x.shape))
        shape = op.output_shape(x.shape) if is_known else jax.eval_shape(functools.partial(_in_jax, op=op), x).shape
    return x.update(shape=shape, weak_type=False)


def _jvp(primals, tangents, op):
    differentiable = lambda x: replaced(functools.partial(_in_jax, op=op), x)[0]  # noqa: E731
    return call_p.bind(*primals, op=op), jax.jvp(differentiable, primals, tangents)[1]


ad.primitive_jvps[call_p] = _jvp


def _vmap(arguments, axes, op):
    x = jnp.moveaxis(arguments[0], axes[0], 0)
    result = call_p.bind(x.reshape(-1, *x.shape[2:]), op=op)
    return result.reshape(*x.shape[:2], *result.shape[1:]), 0


batching.primitive_batchers[call_p] = _vmap
