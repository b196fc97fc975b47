"""The choice of a depthwise kernel for an operator.

The choice depends on dtype, channels, kernel, strides and dilations, not on data sizes: it decides the dimension of the vectors
and the source of their inputs. schedule.py and cost.py read the `CellKind`; it also names the form of the packed weights.
"""

import math
from typing import NamedTuple

from ... import _core
from .. import phases
from ..caches import remembered

LIMIT = "channel groups of at most 16 in-channels (64 if their out-channels fill vectors), or few out-channels"
LEAST_FILL = 0.6  # the least fraction of the lanes of a vector that out-channels fill
REGISTER_TERMS = _core.DW_TERMS  # the most taps of a phase whose weights stay in registers
_MOST_BEGIN = 2**62  # a window that begins here or later exceeds the integers of the loops
_CHANNELS = 16  # the most in-channels of a channel group
_WIDE = 64  # the most in-channels of a channel group whose out-channels fill vectors
_TERMS = 64  # the most taps of a cell, because each tap adds a run at either end of a row
_PRODUCTS = _core.DW_PRODUCTS  # the most taps of a phase, on all axes, of the groups and dot-product kernels


class CellKind(NamedTuple):
    """The kernel of an operator, independent of data sizes."""

    width: int  # the number of j in a cell; 0 if each phase is computed separately, without cells
    groups_per_vector: int  # channel groups that share a vector (1 or 2) in the groups kernel; 0: lanes are channels
    dots: bool  # vectors run over in-channels (dot-product kernel)
    reads: str  # the source of inputs: "as they are" (in place), "permuted" while loading, or "gathered" beforehand
    operations: int  # vector operations of a multiply-add: 2 if its input is first spread over the lanes, else 1


def kind_of(problem, here):
    """Return the `CellKind` of a problem, or None if depthwise does not accept it."""
    ci, co, groups = problem.ci, problem.co, problem.groups
    if ci > _CHANNELS and co > _core.DOTS and (groups < 2 or ci > _WIDE):  # a quick test that rejects most problems
        return None
    if not ci or not co or max(problem.begin) >= _MOST_BEGIN:
        return None
    return kind_of_operator(problem.dtype, groups, ci, co, problem.kernel, problem.strides, problem.dilations, here)


@remembered(256)
def kind_of_operator(dtype, groups, ci, co, kernel, strides, dilations, here):
    """Return the `CellKind` of an operator, or None if depthwise does not accept it."""
    info = here.info(dtype)
    vl, s, k, d = info.vl, strides[-1], kernel[-1], dilations[-1]
    single = ci == co == 1
    # `products`: the taps of a phase on all axes.
    products = math.prod(map(phases.most_taps, kernel, strides, dilations))
    # If out-channels are few, also those of two groups together, vectors run over in-channels. Phases of a single tap are left
    # to scatter, which is faster because it does not add up lanes.
    few = co <= min(_core.DOTS, vl) and (groups == 1 or 2 * co < vl)
    if few and ci % vl == 0 and 1 < products <= _PRODUCTS:
        return CellKind(0, 1, True, "as they are", 1)
    groups_per_vector = _groups_per_vector(info, groups, ci, co, products)
    if ci > (_WIDE if groups_per_vector else _CHANNELS):
        return None
    if groups_per_vector:
        return CellKind(0, groups_per_vector, False, "as they are", 1)
    # `span`: elements from the first to the last input of a vector, for contiguous channels. Inputs are permuted in place if
    # the span is within the reach of the kernels.
    last = min(vl, groups * co) - 1
    span = (last + (co - math.gcd(vl, co) if groups * co > vl else 0)) // co * ci + 1 if groups > 1 else 1
    permuted = not single and span <= info.reach
    width = _width(vl, groups * co, s, k, d, single, permuted)
    if single and (not width or s == 1):
        reads = "as they are"
    elif (permuted and not width) or (width == 1 and groups == 1 and info.reach > 1):  # the lanes of a cell repeat the inputs
        reads = "permuted"
    else:
        reads = "gathered"
    # A vector of a cache line (AVX-512) broadcasts its input within the multiply-add, without a second operation.
    broadcasts = vl * info.t_size >= 64 and (width == 1 and ci == 1 if width else span == 1)
    spreads = (width or (permuted and span == 1)) and not broadcasts
    return CellKind(width, 0, False, reads, 2 if spreads else 1)


def _groups_per_vector(info, groups, ci, co, products):
    """Return the number of channel groups that share a vector of `convt_dw_groups`; 0 if another kernel is as fast or faster.

    A vector whose inputs belong to one group, or to a few nearby ones, is loaded or permuted as fast by the other kernels.
    """
    vl = info.vl
    groups_per_vector = 2 if 2 * co == vl else 1
    if ci * co == 1 or ci % groups_per_vector or products > _PRODUCTS or groups < (2 if ci > _CHANNELS else groups_per_vector):
        return 0
    if co * groups_per_vector < LEAST_FILL * -(-co * groups_per_vector // vl) * vl:
        return 0
    return groups_per_vector if groups_per_vector == 2 or co % vl == 0 or info.reach <= 1 else 0


def _width(vl, channels, s, k, d, single, permuted):
    """Return the number of j in a cell; 0 if computing each phase separately is faster.

    Cells fill their vectors. Separate phases instead keep shared inputs in registers and read them in place.
    """
    vectors = channels / vl
    least_fill = 0.6 if s == 1 else 0.5 if permuted else 0.53  # vectors filled by at least this fraction need no cells
    if single and k <= REGISTER_TERMS * s:  # storing the phases costs more than multiplying
        least_fill = min(least_fill, 0.25 if s == 1 else (s - 2) / 6)
    if d > 1 or s > k or k > _TERMS * s or vectors >= least_fill * math.ceil(vectors):
        return 0
    waste = lambda m: max(math.ceil(m * s * vectors) / (m * s * vectors), 1.1)  # noqa: E731
    return min(range(1, vl + 1), key=waste)  # the least width of those with the least waste


def widens(problem, here):
    """Check whether a problem of a 16-bit dtype is computed in float32 blocks: if its inputs are permuted or gathered, because
    these loads are slow for 16-bit elements."""
    kind = None if problem.planar else kind_of(problem, here)
    return kind is None or kind.reads != "as they are"
