"""Which kernels of depthwise take a problem, whatever its sizes: vectors over what, inputs from where."""

import functools
import math
from typing import NamedTuple

from ... import _core

LIMIT = "it wants groups of at most 16 in-channels, 64 if their out channels fill vectors, or few out channels"
FULL = 0.6  # of the lanes of a vector, by the channels of a group
KEPT = _core.DW_TERMS  # taps of a phase whose weights stay in registers
_FAR = 2**62  # a window that begins so far in the scatter is beyond its integers
_CHANNELS = 16  # in-channels of a group
_WIDE = 64  # where its out channels fill vectors
_TERMS = 64  # taps of a cell, which has a run for each at either border
_PRODUCTS = _core.DW_PRODUCTS  # taps of a phase, where groups of several channels lie in vectors


class Kind(NamedTuple):
    """Which kernels take an operator, whatever the sizes."""

    width: int  # how many j's make a cell, whose lanes are channels of several outputs; 0 where each phase is computed apart
    each: int  # how many groups of several channels share a vector; 0 where lanes are channels
    dots: bool  # vectors run over in-channels
    reads: str  # where inputs are: rows "as they are", "permuted" as they are loaded, or "gathered" beforehand
    operations: int  # that a multiply-add takes: two where its input has to be spread over the lanes first


def kind_of(problem, here):
    """The `Kind` of a problem; None where depthwise does not take it."""
    ci, co, groups = problem.ci, problem.co, problem.groups
    if ci > _CHANNELS and co > _core.DOTS and (groups < 2 or ci > _WIDE):  # most problems: no time is lost with them
        return None
    if not ci or not co or max(problem.begin) >= _FAR:
        return None
    return kind_of_operator(problem.dtype, groups, ci, co, problem.kernel, problem.strides, problem.dilations, here)


@functools.lru_cache(maxsize=256)
def kind_of_operator(dtype, groups, ci, co, kernel, strides, dilations, here):
    info = here.info(dtype)
    vl, s, k, d = info.vl, strides[-1], kernel[-1], dilations[-1]
    single = ci == co == 1
    products = math.prod(-(-k * math.gcd(s, d) // s) for k, s, d in zip(kernel, strides, dilations, strict=True))  # of a phase
    # Vectors run over in-channels where out channels are few, even of two groups. (Sums of single taps are done sooner by
    # scatter, which has no lanes to add up.)
    few = co <= min(_core.DOTS, vl) and (groups == 1 or 2 * co < vl)
    if few and ci % vl == 0 and 1 < products <= _PRODUCTS:
        return Kind(0, 1, True, "as they are", 1)
    each = _each(info, groups, ci, co, products)
    if ci > (_WIDE if each else _CHANNELS):
        return None
    if each:
        return Kind(0, each, False, "as they are", 1)
    # How far apart the inputs of a vector are, where channels are contiguous: they are permuted where they lie if it is near.
    last = min(vl, groups * co) - 1
    span = (last + (co - math.gcd(vl, co) if groups * co > vl else 0)) // co * ci + 1 if groups > 1 else 1
    permuted = not single and span <= info.reach
    width = _width(vl, groups * co, s, k, d, single, permuted)
    if single and (not width or s == 1):
        reads = "as they are"
    elif (permuted and not width) or (width == 1 and groups == 1 and info.reach > 1):  # (the lanes of a cell repeat)
        reads = "permuted"
    else:
        reads = "gathered"
    if width:
        return Kind(width, 0, False, reads, 2)
    # (Vectors of a cache line are broadcast as they are multiplied.)
    return Kind(0, 0, False, reads, 2 if permuted and span == 1 and vl * info.t_size < 64 else 1)


def _each(info, groups, ci, co, products):
    """How many groups of several channels share a vector, as `convt_dw_groups` has them; 0 where others are better.

    Inputs of one group for a vector, or a few of them, are loaded or permuted as fast."""
    vl = info.vl
    each = 2 if 2 * co == vl else 1
    if ci * co == 1 or ci % each or products > _PRODUCTS or groups < (2 if ci > _CHANNELS else each):
        return 0
    if co * each < FULL * -(-co * each // vl) * vl:
        return 0
    return each if each == 2 or co % vl == 0 or info.reach <= 1 else 0


def _width(vl, channels, s, k, d, single, permuted):
    """How many j's make a cell; 0 where each phase is better computed apart.

    Cells fill their vectors; but phases that read the same inputs keep them in registers, and read them where they lie.
    """
    vectors = channels / vl
    full = 0.6 if s == 1 else 0.5 if permuted else 0.53
    if single and k <= KEPT * s:  # it is rather the store of a phase that a vector costs
        full = min(full, 0.25 if s == 1 else (s - 2) / 6)
    if d > 1 or s > k or k > _TERMS * s or vectors >= full * math.ceil(vectors):
        return 0
    waste = lambda m: max(math.ceil(m * s * vectors) / (m * s * vectors), 1.1)  # noqa: E731
    return min(range(1, vl + 1), key=waste)  # the first of the best


def widens(problem, here):
    """Whether a problem of a 16-bit type is better computed as one of float32, block by block: where inputs are permuted or
    gathered, which is slow from such types."""
    kind = None if problem.planar else kind_of(problem, here)
    return kind is None or kind.reads != "as they are"
