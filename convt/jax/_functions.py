"""The transposed convolutions of `jax.lax`, computed by convt or left to JAX."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from ._primitive import replaced

if TYPE_CHECKING:
    from collections.abc import Sequence

# JAX's functions at the time convt.jax was imported. `patched` replaces those of jax.lax.
LAX_CONV_TRANSPOSE, LAX_CONV_GENERAL_DILATED = jax.lax.conv_transpose, jax.lax.conv_general_dilated


class _StaticKeywords:
    """Keyword arguments of a function of jax.lax, as a key of compiled functions."""

    def __init__(self, function, values):
        self.function, self.values = function, values
        self.key = function, tuple((name, _typed(value)) for name, value in values.items())
        self.hash = hash(self.key)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return type(other) is _StaticKeywords and self.key == other.key


def _typed(value):
    """Return a value with its type, because values of different types may compare equal (1, True and 1.0)."""
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_typed, value))
    return type(value), value


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _computed(data, filter, keywords):
    function = lambda data, filter: keywords.function(data, filter, **keywords.values)  # noqa: E731
    return replaced(function, data, filter)[0]


def _compute(function, lhs, rhs, **values):
    """Compute a function of jax.lax, with its transposed convolution by convt if convt supports it."""
    try:
        keywords = _StaticKeywords(function, values)
    except TypeError:  # a value without a hash, such as an array: JAX accepts or refuses it
        return function(lhs, rhs, **values)
    # JAX refuses arrays of foreign byte order, but a compiled function would read them as native ones.
    if not all(hasattr(each, "shape") and getattr(getattr(each, "dtype", None), "isnative", False) for each in (lhs, rhs)):
        return function(lhs, rhs, **values)
    return _computed(lhs, rhs, keywords)


def conv_transpose(
    lhs: jax.Array, rhs: jax.Array, strides: Sequence[int], padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None, transpose_kernel: bool = False,
    precision: Any = None, preferred_element_type: Any = None, **more: Any,
) -> jax.Array:  # fmt: skip
    """Compute `jax.lax.conv_transpose` with convt.

    JAX computes what convt does not support: other platforms than CPUs, other dtypes, layouts with channels neither first nor
    last, and no spatial axis. Derivatives are JAX's own.

    Parameters
    ----------
    lhs : array
        float32, float64, float16 or bfloat16; shape (N, *spatial, C), or another order of axes by ``dimension_numbers``.
    rhs : array of the same dtype
        Shape (*kernel, C, out_channels), or another order. Weights that come to the same call of a compiled program for the
        second time are packed. Later calls reuse them while a checksum of all values is unchanged. The first call packs
        constants of the program. `call` packs once.
    strides, padding, rhs_dilation, dimension_numbers, transpose_kernel, precision, preferred_element_type
        As in `jax.lax.conv_transpose`.
    **more
        Further keywords of the installed JAX, such as ``use_consistent_padding``.

    Returns
    -------
    array
        As from `jax.lax.conv_transpose`.

    Raises
    ------
    Exception
        Raised by JAX for invalid arguments.

    Examples
    --------
    >>> import jax.numpy as jnp, convt.jax
    >>> convt.jax.conv_transpose(jnp.ones((1, 3, 2)), jnp.ones((2, 2, 1)), (2,), "VALID").ravel().tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    """
    return _compute(
        LAX_CONV_TRANSPOSE, lhs, rhs, strides=strides, padding=padding, rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers, transpose_kernel=transpose_kernel, precision=precision,
        preferred_element_type=preferred_element_type, **more,
    )  # fmt: skip


def conv_general_dilated(
    lhs: jax.Array, rhs: jax.Array, window_strides: Sequence[int], padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None, rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None,
    feature_group_count: int = 1, batch_group_count: int = 1, precision: Any = None, preferred_element_type: Any = None,
    **more: Any,
) -> jax.Array:  # fmt: skip
    """Compute `jax.lax.conv_general_dilated` with convt if it is a transposed convolution.

    This is a convolution whose ``lhs_dilation`` has a value above 1 and whose ``window_strides`` are 1. JAX computes all
    others, and what convt does not support: see `conv_transpose`.

    Parameters
    ----------
    lhs, rhs : array
        Data and weights, as in `conv_transpose`.
    window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, batch_group_count
        As in `jax.lax.conv_general_dilated`.
    precision, preferred_element_type
        As in `jax.lax.conv_general_dilated`.
    **more
        Further keywords of the installed JAX, such as ``out_sharding``.

    Returns
    -------
    array
        As from `jax.lax.conv_general_dilated`.

    Raises
    ------
    Exception
        Raised by JAX for invalid arguments.

    Examples
    --------
    >>> import jax.numpy as jnp, convt.jax
    >>> x, w = jnp.ones((1, 8, 5, 5)), jnp.ones((4, 8, 2, 2))
    >>> convt.jax.conv_general_dilated(x, w, (1, 1), [(1, 1), (1, 1)], lhs_dilation=(2, 2)).shape
    (1, 4, 10, 10)
    """
    values = dict(
        window_strides=window_strides, padding=padding, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers, feature_group_count=feature_group_count,
        batch_group_count=batch_group_count, precision=precision, preferred_element_type=preferred_element_type, **more,
    )  # fmt: skip
    if isinstance(lhs_dilation, (tuple, list)) and any(each != 1 for each in lhs_dilation):
        return _compute(LAX_CONV_GENERAL_DILATED, lhs, rhs, **values)
    return LAX_CONV_GENERAL_DILATED(lhs, rhs, **values)
