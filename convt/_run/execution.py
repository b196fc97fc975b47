"""Decisions about threads, stores and task order that all plans share."""

import math
from typing import NamedTuple

from .._base.problem import ITEMSIZE


class Execution(NamedTuple):
    """The decisions that every plan receives beside its tables."""

    has_empty_phases: bool  # some outputs are written by no task, because no tap reaches their phase
    single_thread: bool  # the schedule is for one thread
    pinned: bool  # each thread runs the same tasks at every call, because its core's cache may still hold their weights
    alternate: bool  # calls run their tasks alternately forwards and backwards
    non_temporal: int  # bytes to which output rows must be aligned for non-temporal stores; 0 for ordinary stores

    def for_strides(self, out_strides):
        """Return the Execution for an output of these byte strides: with ordinary stores if some row is not aligned."""
        if self.non_temporal == 0 or all(s % self.non_temporal == 0 for s in out_strides[:-1]):
            return self
        return self._replace(non_temporal=0)


def decide(problem, here, unit, threads, weight_bytes, has_empty_phases=False, outgrows=False):
    """Return the Execution of a schedule, before strides are known (`Execution.for_strides`).

    ``threads`` and ``weight_bytes`` (packed) are those of the schedule. ``outgrows`` says whether the algorithm expects data
    and output to exceed the caches.
    """
    pinned = problem.flops < here.limits.pinned_flops
    return Execution(
        has_empty_phases=has_empty_phases,
        single_thread=threads == 1,
        pinned=pinned,
        alternate=pinned and weight_bytes > here.limits.far,
        non_temporal=store_bytes(unit) if outgrows else 0,
    )


def store_bytes(unit):
    """Return the bytes of a non-temporal store, a vector of accumulators, or 0 if there is none.

    16-bit elements need vectors of a cache line, because a tile writes as many bytes at a time as one vector has, and
    non-temporal stores of less than a cache line are slow.
    """
    vector = unit.vl * unit.t_size
    return 0 if unit.s_size < unit.t_size and vector < 64 else vector


def vector_alignment(info, out_strides):
    """Return the bytes of a vector of accumulators if every row is aligned to them whenever the output is, else 0."""
    vector = store_bytes(info)
    return vector if vector and all(s % vector == 0 for s in out_strides[:-1]) else 0


def contiguous_strides(problem):
    """Return the byte strides of a contiguous output in NXC order."""
    return _strides(problem, problem.out_shape)


def contiguous_in_strides(problem):
    """Return the byte strides of contiguous data in NXC order."""
    return _strides(problem, problem.in_shape)


def _strides(problem, shape):
    step, strides = ITEMSIZE[problem.dtype], [0] * len(shape)
    for ax in reversed(range(len(shape))):
        strides[ax] = step
        step *= max(shape[ax], 1)
    return tuple(strides)


def outgrows(problem, limit):
    """Check whether the output exceeds a limit in bytes."""
    return output_bytes(problem) > limit


def output_bytes(problem):
    return math.prod(problem.out_shape) * ITEMSIZE[problem.dtype]


def data_bytes(problem):
    return math.prod(problem.in_shape) * ITEMSIZE[problem.dtype]


def packs_on_the_fly(machine, packed_bytes, again_bytes):
    """Check whether tasks of a one-shot call pack weights on the fly, one depth chunk of a panel at a time.

    The chunk is then in L1, and no packed weights go to memory and back. Each row block packs again, ``again_bytes`` in all, so
    that packing on the fly pays only if these are few.
    """
    return packed_bytes >= machine.limits.pack_on_the_fly and (
        again_bytes <= machine.limits.pack_on_the_fly_again * packed_bytes
    )
