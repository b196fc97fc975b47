"""oneDNN as one more algorithm: when "auto" takes it, and its plans. Its weights have one key, ``("onednn",)``."""

import math

from .. import _config, _core, _onednn


def preferred(problem, attributes):
    """Whether "auto" takes oneDNN for weights that are packed once; never for one-shot calls.

    One class gains: bfloat16 where oneDNN has AMX tiles, which convt's kernels do not use. On two cores of an Intel
    Xeon it is 1.4 to 20 times as fast (half of them above 4) on dense NXC layers with 16 in-channels or more, 2
    out-channels or more and tens of pixels; long kernels, and pads as long as the kernel, leave it its slow paths. float32
    stays native: of 45 layers of public networks oneDNN was more than a tenth faster on 7 (at most twice as fast), with no
    rule of shape that tells them from the 30 on which it was slower, up to 48 times; in NCX it has only GEMM and col2im.

    Decided without making a primitive, and the library is opened only for the class. Where the instruction set was chosen
    (CONVT_ISA), oneDNN's would not be the one asked for.
    """
    return (
        problem.dtype == "bfloat16"
        and (attributes.data_format, attributes.algorithm) == ("NXC", "auto")
        and problem.groups == 1
        and problem.ci >= 16
        and problem.co >= 2
        and max(problem.dilations) == 1
        and max(problem.kernel) <= 16
        and all(b < k and e < k for b, e, k in zip(problem.begin, _onednn.pads_end(problem), problem.kernel, strict=True))
        and math.prod(problem.in_sizes) >= 32
        and problem.flops >= 20_000_000
        and _core.isa() == _config.preferred_isa()
        and _onednn.can(problem)
        and "amx" in _onednn.library()["isa"]
    )


def recipe(attributes, filter, bias, key):
    return _onednn.Recipe(attributes.dtype, filter, bias)


def make(problem, recipe, packed, in_strides, out_strides):
    key = ("onednn",)
    return _onednn.Plan(problem, recipe(key).biased, in_strides, out_strides, _config.get_num_threads()), key
