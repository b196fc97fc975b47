"""oneDNN as one more algorithm: when "auto" takes it, and its plans. Its weights have one key, ``("onednn",)``."""

import math

from .. import _config, _core, _onednn


def preferred(problem, attributes):
    """Whether "auto" takes oneDNN for weights that are packed once; never for one-shot calls.

    One class gains: bfloat16 where oneDNN has AMX tiles; see `_suits_amx`. float32 stays native, which was faster on
    each of 45 layers of public networks with a matrix unit, on 43 at AVX2; in NCX oneDNN has only GEMM and col2im.

    Decided without making a primitive, and the library is opened only for the class. Where the instruction set was chosen
    (CONVT_ISA), oneDNN's would not be the one asked for.
    """
    return (
        problem.dtype == "bfloat16"
        and (attributes.data_format, attributes.algorithm) == ("NXC", "auto")
        and _suits_amx(problem)
        and _core.isa() == _config.preferred_isa()
        and _onednn.can(problem)
        and "amx" in _onednn.library()["isa"]
    )


_FEW_CHANNELS = 8  # below, most of a tile of AMX is empty, and scatter competes


def _suits_amx(problem):
    """Whether oneDNN's bfloat16 kernels for AMX are expected to win.

    On two cores of an Intel Xeon they were 0.9 to 11 times as fast as vectors on 278 dense problems with 16 in-channels or
    more, 2 out-channels or more, and some work to share, half of them above 3; and 0.9 to 1.8 times as fast as `matrix` on ten
    layers. Pads as long as the kernel, long kernels and, for few
    out-channels, an output that is no multiple of the strides leave oneDNN its slow paths.
    """
    few = problem.co < _FEW_CHANNELS
    ends = _onednn.pads_end(problem)
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
    return _onednn.Recipe(attributes.dtype, filter, bias)


def make(problem, recipe, packed, in_strides, out_strides):
    key = ("onednn",)
    return _onednn.Plan(problem, recipe(key).biased, in_strides, out_strides, _config.get_num_threads()), key
