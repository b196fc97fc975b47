"""How a plan is run: what is decided once, before its loops are made, and handed on to them."""

import math
from typing import NamedTuple

from .._problem import ITEMSIZE


class Execution(NamedTuple):
    """What every plan is told beside its tables."""

    hole: bool  # there are outputs that no task writes, as no tap reaches their phase
    single_thread: bool  # there is too little work for a second thread
    pinned: bool  # a thread runs the same tasks at every call, whose weights its core's cache may still hold
    alternate: bool  # calls run their tasks forwards and backwards in turns
    non_temporal: int  # alignment in bytes that every output row must have for non-temporal stores; 0 for ordinary stores

    def on(self, out_strides):
        """The same for an output of these strides: ordinary stores where some row is not aligned."""
        if self.non_temporal == 0 or all(s % self.non_temporal == 0 for s in out_strides[:-1]):
            return self
        return self._replace(non_temporal=0)


def decide(problem, here, unit, hole, cycles, weight_bytes, outgrows):
    """The Execution of a schedule of so many cycles and bytes of packed weights, for whatever strides (`Execution.on`).
    ``outgrows`` says whether data and output outgrow the caches, as the algorithm sees it."""
    pinned = problem.flops < here.limits.pinned_flops
    return Execution(
        hole=hole,
        single_thread=cycles < here.limits.single_thread_cycles,
        pinned=pinned,
        alternate=pinned and weight_bytes > here.limits.far,
        non_temporal=store_bytes(unit) if outgrows else 0,
    )


def store_bytes(unit):
    """Bytes of a non-temporal store, of a vector of accumulators; 0 where there are none. Of 16-bit types a tile writes as many
    bytes at a time as one vector has; less than a cache line is nothing for non-temporal stores."""
    vector = unit.vl * unit.t_size
    return 0 if unit.s_size < unit.t_size and vector < 64 else vector


def vector_alignment(info, out_strides):
    """Bytes of a vector of accumulators, if every vector of an output row is aligned to them where the output is; else 0."""
    vector = store_bytes(info)
    return vector if vector and all(s % vector == 0 for s in out_strides[:-1]) else 0


def contiguous_strides(problem):
    """Byte strides of a contiguous output of the problem, in NXC order."""
    return _strides(problem, problem.out_shape)


def contiguous_in_strides(problem):
    """Byte strides of contiguous data of the problem, in NXC order."""
    return _strides(problem, problem.in_shape)


def _strides(problem, shape):
    step, strides = ITEMSIZE[problem.dtype], [0] * len(shape)
    for ax in reversed(range(len(shape))):
        strides[ax] = step
        step *= max(shape[ax], 1)
    return tuple(strides)


def outgrows(problem, limit):
    """Whether the output is larger than a limit in bytes."""
    return output_bytes(problem) > limit


def output_bytes(problem):
    return math.prod(problem.out_shape) * ITEMSIZE[problem.dtype]


def data_bytes(problem):
    return math.prod(problem.in_shape) * ITEMSIZE[problem.dtype]


def packs_on_the_fly(machine, packed_bytes, again_bytes):
    """Whether tasks of a one-shot call pack the weights that they multiply, a depth chunk of a panel just before: it then is in
    L1, and no weights go to memory and back. Each block of rows packs again: ``again_bytes`` in all, which have to be few."""
    return packed_bytes >= machine.limits.pack_on_the_fly and (
        again_bytes <= machine.limits.pack_on_the_fly_again * packed_bytes
    )
