"""What convt changes in a whole program: `profile`."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from .._base import check, terminal
from .._call import worth
from .._call.worth import LayerTime, Worth
from .._model.limits import MachineLimits
from .._run import config
from . import _site
from ._patch import accelerate
from ._primitive import CONVOLUTION, conv_transpose_p, site_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def profile(
    function: Callable[..., Any], *inputs: Any, keywords: Mapping[str, Any] | None = None, budget: float = 2.0
) -> Worth:
    """Measure what convt changes in a function: the share of transposed convolution, the bound that it sets, what is reached.

    The function is compiled by `jax.jit` without convt and, as `accelerate` does, with it, and both are timed in turns. Each
    transposed convolution in it is timed alone, on random data of its shapes, with weights that are equal at each call.

    Parameters
    ----------
    function : callable
        A function of arrays that `jax.jit` can compile.
    *inputs
        Arguments of the function.
    keywords : dict, optional
        Keyword arguments of the function.
    budget : float
        Seconds to time the whole, without convt and with it each.

    Returns
    -------
    Worth
        Layers with their times, and the properties ``share``, ``bound`` and ``reached``. ``print`` shows a table; a notebook
        shows it, too.

    Raises
    ------
    TypeError, ValueError
        ``function`` is not callable, or ``budget`` is not a number of at least 0.
    Exception
        Raised by JAX for a function that it cannot compile.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, convt.jax
    >>> upsample = lambda x, w: jax.lax.conv_transpose(x, w, (2,), "SAME")
    >>> worth = convt.jax.profile(upsample, jnp.ones((1, 30, 8)), jnp.ones((4, 8, 4)), budget=0.01)
    >>> worth.layers[0].output
    (1, 60, 4)
    """
    fast = accelerate(function)  # raises TypeError for what is not callable
    budget = check.number("budget", budget, 0)
    call = functools.partial(function, **(keywords or {}))
    fast = functools.partial(fast, **(keywords or {}))
    found = _convolutions(jax.make_jaxpr(fast)(*inputs).jaxpr)
    with terminal.progress(2 * worth.ROUNDS * (1 + len(found))) as begin:
        step, limits = functools.partial(begin, "timing the function"), MachineLimits(config.get_num_threads())
        host, ours = worth.in_turns([_program(call, inputs), _program(fast, inputs)], budget, step)
        layers = [_layer(equation, calls, budget / (1 + len(found)), step, limits) for equation, calls in found]
    looked_for = "calls of jax.lax with lhs_dilation above 1"
    return Worth("JAX", tuple(layers), host, ours, looked_for, "Use convt.jax.accelerate(function).")


def _program(function, inputs):
    """Return a function that computes ``function(*inputs)`` as a compiled program."""
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*inputs))


def _convolutions(jaxpr):
    """Return [(equation, number of its calls)] of the transposed convolutions of a program, equal ones together.

    A loop of unknown length counts as one call.
    """
    found, counts = {}, Counter()
    for equation, times in _equations(jaxpr, 1):
        key = str(equation.source_info.name_stack), str([each.aval for each in equation.invars]), str(equation.params)
        found.setdefault(key, equation)
        counts[key] += times
    return [(equation, counts[key]) for key, equation in found.items()]


def _equations(jaxpr, calls):
    for equation in jaxpr.eqns:
        dilated = equation.primitive is CONVOLUTION and any(each != 1 for each in equation.params["lhs_dilation"])
        if equation.primitive is conv_transpose_p or dilated:
            yield equation, calls
            continue
        times = calls * equation.params.get("length", 1) if equation.primitive.name == "scan" else calls
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if isinstance(inner, (ClosedJaxpr, Jaxpr)):
                    yield from _equations(getattr(inner, "jaxpr", inner), times)


def _layer(equation, calls, budget, step, limits):
    """Return the `LayerTime` of an equation. ``limits`` is a `MachineLimits`."""
    rng = np.random.default_rng(0)
    arrays = [jax.numpy.asarray(rng.standard_normal(each.aval.shape), each.aval.dtype) for each in equation.invars]
    name, shape = str(equation.source_info.name_stack) or "convolution", tuple(arrays[0].shape)
    primitives = [CONVOLUTION] if equation.primitive is CONVOLUTION else [CONVOLUTION, conv_transpose_p]
    programs = [_program(functools.partial(each.bind, **equation.params), arrays) for each in primitives]
    host, *ours = worth.in_turns(programs, budget, step)
    found = {"algorithm": "convt does not support it"}
    if ours:
        site = _site.WithGivenWeights(*site_arguments(shape, arrays[1].shape, equation.params))
        operator = site.operator_of(np.asarray(arrays[1]))
        found = {"convt_seconds": ours[0] * calls} | worth.planned(operator, shape, ours[0], limits)
    return LayerTime(name, shape, tuple(equation.outvars[0].aval.shape), host * calls, **found, calls=calls)
