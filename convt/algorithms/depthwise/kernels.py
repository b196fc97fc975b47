"""Which of the kernels take a problem: cells or phases, groups, dot products; inputs permuted or gathered."""

import math

from ... import _core
from ..._problem import ITEMSIZE
from .. import machine

_CHANNELS = 16  # in-channels of a group
_WIDE = 64  # where its out channels fill vectors
_TERMS = 64  # taps of a cell, which has a run for each at either border
KEPT = _core.DW_TERMS  # taps of a phase whose weights stay in registers
_PRODUCTS = _core.DW_PRODUCTS  # taps of a phase, of such groups as `groups_in_vector` speaks of
_FULL = 0.6  # of the lanes of a vector, by the channels of a group


def input_span(problem, info):
    """How far apart the inputs of a vector are."""
    groups = -(-min(info["vl"], problem.groups * problem.co) // problem.co)  # that a vector meets
    return (groups - 1) * problem.ci + 1


def whole_rows(problem, width, groups):
    """Whether kernels read a row of the input as it is, channel after channel, if channels are contiguous: nothing is permuted
    or gathered."""
    return groups or (problem.ci == problem.co == 1 and (not width or problem.strides[-1] == 1))


def converts(problem):
    """Whether rows are widened to float32 as they are first read, and outputs rounded from L1."""
    return ITEMSIZE[problem.dtype] == 2


def permuted_fma(problem, info):
    """The name of a multiply-add whose inputs are permuted where they lie, if channels are contiguous; None where they are
    gathered."""
    if problem.ci == problem.co == 1:
        return None
    span = input_span(problem, info)
    if span > info["reach"]:
        return None
    if span == 1:
        return "dw_fma_broadcast"
    terms = -(-problem.kernel[-1] // problem.strides[-1])
    sliding = problem.dilations[-1] in (1, run_step(problem)) and 1 < terms <= 3  # terms share a permutation
    return ("dw_fma_permuted" if span <= info["vl"] else "dw_fma_permuted_2") + ("_sliding" if sliding else "")


def takes(problem, info):
    """Whether groups are small enough for kernels that have their in-channels one after the other."""
    most = _WIDE if groups_in_vector(problem, info) > 0 else _CHANNELS
    return 0 < problem.ci <= most and problem.co > 0


def takes_dots(problem, info):
    """Whether vectors run over in-channels, as `body_dots.h` takes them: where out channels are few, even of two groups."""
    co, vl = problem.co, info["vl"]
    few = 0 < co <= min(_core.DOTS, vl) and (problem.groups == 1 or 2 * co < vl)
    whole = problem.ci > 0 and problem.ci % vl == 0
    # (Sums of single taps are done sooner by scatter, which has no lanes to add up.)
    return few and whole and 1 < most_taps(problem) <= _PRODUCTS


def widens(problem, contiguous):
    """Whether a problem of a 16-bit type is better computed as one of float32, block by block: where inputs are permuted or
    gathered, which is slow from such types."""
    info = machine.current().info(problem.dtype)
    if not contiguous or not takes(problem, info):
        return True
    groups = groups_in_vector(problem, info) > 0
    return not whole_rows(problem, 0 if groups else cell_width(problem, info), groups)


def most_taps(problem):
    """Of a phase, at most."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, strict=True)
    return math.prod(-(-k * math.gcd(s, d) // s) for k, s, d in axes)


def groups_in_vector(problem, info):
    """Groups of several channels as `convt_dw_groups` has them: how many share a vector; 0 where others are better.

    Inputs of one group for a vector, or a few of them, are loaded or permuted as fast."""
    ci, co, vl = problem.ci, problem.co, info["vl"]
    each = 2 if 2 * co == vl else 1
    if takes_dots(problem, info):
        return 1
    if ci * co == 1 or ci % each or most_taps(problem) > _PRODUCTS or problem.groups < (2 if ci > _CHANNELS else each):
        return 0
    if co * each < _FULL * -(-co * each // vl) * vl:
        return 0
    return each if each == 2 or co % vl == 0 or info["reach"] <= 1 else 0


def cell_width(problem, info):
    """How many j's make a cell; 0 where each phase is better computed apart.

    Cells fill their vectors; but phases that read the same inputs keep them in registers, and read them where they lie.
    """
    s, k, vl = problem.strides[-1], problem.kernel[-1], info["vl"]
    channels = problem.groups * problem.co
    vectors = channels / vl
    full = 0.6 if s == 1 else 0.5 if permuted_fma(problem, info) else 0.53
    if problem.ci == problem.co == 1 and k <= KEPT * s:  # it is rather the store of a phase that a vector costs
        full = min(full, 0.25 if s == 1 else (s - 2) / 6)
    if problem.dilations[-1] > 1 or s > k or k > _TERMS * s or vectors >= full * math.ceil(vectors):
        return 0
    waste = lambda m: math.ceil(m * s * vectors) / (m * s * vectors)  # noqa: E731
    return min(range(1, vl + 1), key=lambda m: (max(waste(m), 1.1), m))


def skips_outside(problem, each):
    """Whether runs may read outside the input, of which kernels skip what is not there: if each term reads the pixel before."""
    s, k, d, end = problem.strides[-1], problem.kernel[-1], problem.dilations[-1], problem.begin[-1] + problem.out_sizes[-1]
    if max(s, abs(problem.begin[-1]), abs(end)) >= 2**31 or (s % d and d != run_step(problem)):
        return False
    if each:
        return True
    # (Of few terms and rows weights stay in registers, in kernels that have their own way with ends.)
    single = problem.ci == problem.co == 1
    return single and s == 1 and (k > KEPT or row_taps_met(problem) > _core.DW_SOURCES)


def run_step(problem):
    """How far apart the j's of a run are: of stride 1 as far as taps are dilated, so that each reads the pixel before, if lanes
    fill their vectors and such a run is no shorter than two at the borders otherwise."""
    d, vectors = problem.dilations[-1], problem.groups * problem.co / machine.current().info(problem.dtype)["vl"]
    some = problem.strides[-1] == 1 < problem.kernel[-1] and 2 * d * d <= problem.in_sizes[-1]
    return d if some and vectors >= _FULL * math.ceil(vectors) else 1


def row_taps_met(problem):
    """Input rows that meet in one of outputs, at most."""
    axes = zip(problem.kernel[:-1], problem.strides[:-1], problem.in_sizes[:-1], strict=True)
    return max(1, math.prod(min(-(-k // s), size) for k, s, size in axes))
