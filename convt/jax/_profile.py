"""What convt changes in a whole program: `profile`."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from .._base import check, terminal
from .._call import worth
from .._call.worth import LayerTime, Worth
from .._run import config
from . import _site
from ._patch import accelerate
from ._primitive import CONVOLUTION, conv_transpose_p, site_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_ROUNDS = 4


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
    found = list(_convolutions(jax.make_jaxpr(fast)(*inputs).jaxpr, 1))
    with terminal.progress(2 * _ROUNDS * (1 + len(found))) as begin:
        step = functools.partial(begin, "timing the function")
        programs = [_program(call, inputs), _program(fast, inputs)]
        host, ours = worth.in_turns(programs, budget, _ROUNDS, step=step)
        limit = worth.machine_limit(config.get_num_threads())
        layers = [_layer(equation, calls, budget / (1 + len(found)), step, limit) for equation, calls in found]
    looked_for = "calls of jax.lax with lhs_dilation above 1"
    return Worth("JAX", tuple(layers), host, ours, looked_for, "Use convt.jax.accelerate(function).")


def _program(function, inputs):
    """Return a function that computes ``function(*inputs)`` as a compiled program."""
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*inputs))


def _convolutions(jaxpr, calls):
    """Yield (equation, number of its calls) of the transposed convolutions of a program, equal ones together.

    A loop of unknown length counts as one call.
    """
    found, counts = {}, defaultdict(int)
    for equation, times in _equations(jaxpr, calls):
        key = str(equation.source_info.name_stack), str([each.aval for each in equation.invars]), str(equation.params)
        found.setdefault(key, equation)
        counts[key] += times
    for key, equation in found.items():
        yield equation, counts[key]


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


def _layer(equation, calls, budget, step, limit):
    """Return the `LayerTime` of an equation. ``limit`` is a `limits.MachineLimits`."""
    rng = np.random.default_rng(0)
    arrays = [jax.numpy.asarray(rng.standard_normal(each.aval.shape), each.aval.dtype) for each in equation.invars]
    (output,) = equation.outvars
    name = str(equation.source_info.name_stack) or "convolution"
    shapes = tuple(arrays[0].shape), tuple(output.aval.shape)
    programs = [_program(functools.partial(CONVOLUTION.bind, **equation.params), arrays)]
    if equation.primitive is CONVOLUTION:
        (host,) = worth.in_turns(programs, budget, _ROUNDS, step=step)
        return LayerTime(name, *shapes, host * calls, algorithm="convt does not support it", calls=calls)
    programs.append(_program(functools.partial(conv_transpose_p.bind, **equation.params), arrays))
    host, ours = worth.in_turns(programs, budget, _ROUNDS, step=step)
    site = _site.WithGivenWeights(*site_arguments(arrays[0].shape, arrays[1].shape, equation.params))
    operator = site.operator_of(np.asarray(arrays[1]))
    algorithm, least = worth.planned(operator, shapes[0], limit)
    return LayerTime(name, *shapes, host * calls, ours * calls, algorithm, least / ours, calls=calls)
