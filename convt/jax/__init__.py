"""JAX's transposed convolutions, computed by convt on CPUs.

`conv_transpose` and `conv_general_dilated` replace the functions of `jax.lax`. `call` computes a `convt.ConvTranspose`, whose
weights are packed once, in a JAX program. `patched` and `accelerate` let convt compute the layers of Flax, Haiku and Equinox.
`profile` measures what convt changes in a function.
Derivatives are those of `jax.lax`. JAX computes every call that convt does not support, with JAX's results and errors.

    _patch          patched, accelerate: the functions of jax.lax, replaced in a block
    _profile        what convt changes in a function
    _functions      functions of jax.lax: calls computed by convt, and calls left to JAX
    _call           the call of an operator
    _primitive      primitives of JAX that the handler computes; the transposed convolution: shapes, derivatives, vmap
    handler.pyx     the handler that XLA calls in a compiled program, on its buffers and threads
    _site           the computers of a program's calls: packed weights, reused while their values are unchanged
"""

_WANTED = "convt.jax needs JAX 0.9.1 or newer: pip install 'jax>=0.9.1'"

try:
    import jax as _jax
except ImportError as error:
    raise ImportError(_WANTED) from error
if getattr(_jax, "__version_info__", (0,)) < (0, 9, 1):
    raise ImportError(f"{_WANTED}; got JAX {getattr(_jax, '__version__', 'of an unknown version')}")
try:
    from ._call import call
    from ._functions import conv_general_dilated, conv_transpose
    from ._patch import accelerate, patched
    from ._profile import profile
except AttributeError as error:  # a name of JAX that a later version has removed
    raise ImportError(f"{_WANTED}; JAX {_jax.__version__} lacks what convt uses: {error}") from error

__all__ = ["accelerate", "call", "conv_general_dilated", "conv_transpose", "patched", "profile"]
