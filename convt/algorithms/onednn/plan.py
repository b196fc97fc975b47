"""oneDNN as one more algorithm: when "auto" chooses it, and its plans. Its weights have one key, ``("onednn",)``."""

import math

from ... import _config, _core
from . import library, primitive
from .run import Plan
from .weights import Recipe


def preferred(problem, attributes):
    """Whether "auto" chooses oneDNN for weights that are packed once; never for one-shot calls.

    One class of problems gains: bfloat16 where oneDNN has AMX tiles; see `_suits_amx`. In float32 the native algorithms are
    faster; in NCX oneDNN has only GEMM and col2im.

    Decided without making a primitive, and the library is opened only for that class. Where CONVT_ISA chose the instruction
    set, oneDNN's own choice would not be the one requested.
    """
    return (
        problem.dtype == "bfloat16"
        and (attributes.data_format, attributes.algorithm) == ("NXC", "auto")
        and _suits_amx(problem)
        and _core.isa() == _config.preferred_isa()
        and primitive.can(problem)
        and "amx" in library.opened()["isa"]
    )


_FEW_CHANNELS = 8  # below, most of an AMX tile is empty, and scatter competes


def _suits_amx(problem):
    """Whether oneDNN's bfloat16 kernels for AMX are expected to be faster than the native algorithms.

    They are for dense problems with 16 in-channels or more, 2 out-channels or more, and enough work to share. Pads as long
    as the kernel, long kernels and, for few out-channels, output sizes that are no multiple of the strides leave oneDNN only
    its slow paths.
    """
    few = problem.co < _FEW_CHANNELS
    ends = primitive.pads_end(problem)
    return (
        problem.groups == 1
        and problem.ci >= 16
        and problem.co >= 2
        and max(problem.dilations) == 1
        and max(problem.kernel) <= (9 if few else 16)
        and all(b < k and e < k for b, e, k in zip(problem.begin, ends, problem.kernel, strict=True))
        and not (few and any(o % s for o, s in zip(problem.out_sizes, problem.strides, strict=True)))
        and math.prod(problem.in_sizes) >= 9
        and problem.flops >= 4_000_000
    )


def recipe(attributes, filter, bias, key):
    return Recipe(attributes.dtype, filter, bias)


def make(problem, recipe, packed, in_strides, out_strides, threads):
    key = ("onednn",)
    return Plan(problem, recipe(key).biased, in_strides, out_strides, threads), key
