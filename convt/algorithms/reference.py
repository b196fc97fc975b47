"""The "reference" backend: slow and simple, in NumPy and float64, one strided addition per tap.

It shares only `Problem` and the activations with the native backend, so tests can compare the two.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from .._base import activation
from .._base.problem import Problem
from . import stages


class _Schedule(NamedTuple):
    """The fields of all schedules (see stages.py)."""

    problem: Problem
    unit: str
    threads: int = 1
    form: tuple = ()  # one form: the weights as they are


class _Weights(NamedTuple):
    """Weights as they are, with the interface of packed weights."""

    filter: np.ndarray
    bias: np.ndarray | None
    finite: bool = True  # whatever they contain, the plan supports it
    nbytes: int = 0


class _Recipe:
    """The recipe of weights that are not packed."""

    def pack(self, filter, bias, threads):
        return _Weights(filter, bias)


class ReferencePlan(NamedTuple):
    """The plan of a problem, with the interface of _core's plans."""

    problem: Problem
    backend: str = "reference"
    algorithm: str = "scatter"
    isa: str = "numpy"
    tasks: int = 1
    workspace: int = 0
    packed_bytes: int = 0
    has_empty_phases: bool = False

    def threads(self, available):
        return 1

    def run(self, data, out, weights, threads):
        run(self.problem, data, weights.filter, weights.bias, out)


class ReferenceAddition(NamedTuple):
    """The addition of an array to outputs, in float64, and the activation ``(name, a, b)`` of the sums."""

    dtype: str
    activation: tuple[str, float, float]

    def run(self, out, add, threads):
        sums = out.astype(np.float64) + add
        out[...] = activation.reference(*self.activation, sums).astype(out.dtype)


def run(problem, data, filter, bias, out):
    """Compute ``problem`` into ``out``.

    ``data`` (N, *in, C) and ``out`` (N, *out, C) are views in NXC axis order. ``filter`` is a view (groups, ci, co, *kernel),
    ``bias`` has shape (groups * co,) or is None.
    """
    p = problem
    x = data.astype(np.float64).reshape(p.batch, *p.in_sizes, p.groups, p.ci)
    w = filter.astype(np.float64)
    y = np.zeros((p.batch, *p.out_sizes, p.groups, p.co))
    for tap in itertools.product(*map(range, p.kernel)):
        source, target = [slice(None)], [slice(None)]
        for ax, t in enumerate(tap):
            s = p.strides[ax]
            first = t * p.dilations[ax] - p.begin[ax]  # output position that input 0 of this axis adds to
            lo = max(0, -(first // s))  # smallest input i with first + i * s >= 0
            hi = min(p.in_sizes[ax], (p.out_sizes[ax] - 1 - first) // s + 1)  # one past the last input inside the output
            if lo >= hi:
                break
            source.append(slice(lo, hi))
            target.append(slice(first + lo * s, first + (hi - 1) * s + 1, s))
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                y[tuple(target)] += np.einsum("...gi,gio->...go", x[tuple(source)], w[(..., *tap)])
    y = y.reshape(p.out_shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if bias is not None:
            y += bias.astype(np.float64)
        out[...] = activation.reference(*p.activation, y).astype(out.dtype)


STAGES = stages.Stages(
    schedule=lambda problem, here, unit, threads, finite: _Schedule(problem, unit),
    cost=lambda schedule, here: math.inf,
    recipe=lambda attributes, filter, bias, form, unit: _Recipe(),
    bind=lambda schedule, in_strides, out_strides, recipe: ReferencePlan(schedule.problem),
)
