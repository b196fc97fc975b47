"""The functions of `jax.lax`, replaced in a block."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING

import jax

from . import _functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

# Whether the current thread is in a block. JAX traces and compiles functions for each value, so no compiled function of a block
# is used outside, and none from outside is used in a block.
_is_active = jax.make_user_context(False)
_lock = threading.Lock()
_blocks = 0  # number of blocks that threads are in; with the first one, the functions of jax.lax are replaced


def _replacement(ours, jaxs):
    @functools.wraps(jaxs)
    def function(*args, **keywords):
        return ours(*args, **keywords) if _is_active.value else jaxs(*args, **keywords)

    return function


_PAIRS = {
    "conv_transpose": (_functions.conv_transpose, _functions.LAX_CONV_TRANSPOSE),
    "conv_general_dilated": (_functions.conv_general_dilated, _functions.LAX_CONV_GENERAL_DILATED),
}
_REPLACEMENTS = {name: _replacement(*pair) for name, pair in _PAIRS.items()}


def _count(more):
    """Count a block that begins (``more`` is 1) or ends (-1), and replace or restore the functions of jax.lax."""
    global _blocks
    with _lock:
        _blocks += more
        for name, (_, jaxs) in _PAIRS.items():
            present = getattr(jax.lax, name)
            if _blocks and present is jaxs:
                setattr(jax.lax, name, _REPLACEMENTS[name])
            elif not _blocks and present is _REPLACEMENTS[name]:
                setattr(jax.lax, name, jaxs)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Let convt compute the transposed convolutions of `jax.lax` that this thread calls inside a ``with`` block.

    Layers that call `jax.lax.conv_transpose` or `jax.lax.conv_general_dilated` need no change: ``ConvTranspose`` of flax.linen,
    flax.nnx, Haiku and Equinox. JAX traces functions under `jax.jit` again for the block, so functions that were compiled
    before also use convt in it, and functions that are compiled in it use JAX's convolution after it.

    The two functions of the module `jax.lax` are replaced for the whole process while a thread is in a block, and call JAX's
    in all other threads. A function that was imported by name (``from jax.lax import conv_transpose``) is not replaced.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, convt.jax
    >>> x, w = jnp.ones((1, 3, 2)), jnp.ones((2, 2, 1))
    >>> with convt.jax.patched():
    ...     jax.lax.conv_transpose(x, w, (2,), "VALID").shape
    (1, 6, 1)
    """
    with _is_active(True):
        _count(1)
        try:
            yield
        finally:
            _count(-1)


def accelerate(function: Function) -> Function:
    """Return a function that calls ``function`` in a `patched` block.

    Parameters
    ----------
    function : callable
        A function, also one under `jax.jit` or another transformation of JAX.

    Returns
    -------
    callable
        A function with the same arguments and results. Transform it as any other: ``jax.jit(convt.jax.accelerate(f))``.

    Raises
    ------
    TypeError
        ``function`` is not callable.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, convt.jax
    >>> upsample = jax.jit(lambda x, w: jax.lax.conv_transpose(x, w, (2,), "SAME"))
    >>> convt.jax.accelerate(upsample)(jnp.ones((1, 3, 2)), jnp.ones((2, 2, 1))).shape
    (1, 6, 1)
    """
    if not callable(function):
        raise TypeError(f"function: got {type(function).__name__}, wanted a callable")

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        with patched():
            return function(*args, **keywords)

    return wrapper  # type: ignore[return-value]
