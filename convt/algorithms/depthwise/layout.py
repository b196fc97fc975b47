"""The packed weights of depthwise: one row of lanes (group, out-channel) per tap and in-channel, in the accumulators' type.

`Lanes` is the layout, `recipe` the table of copies. The groups and dot-product kernels have layouts of their own.
"""

import math
from typing import NamedTuple

import numpy as np

from ..._model import machine
from ..packing import Copy, TableRecipe, outer_taps


class Lanes(NamedTuple):
    """The layout of packed weights.

    For cells, a row of lanes holds a tap of each phase of the last axis, once for each j of the cell. Lanes without a tap are
    zero. If the last row lacks taps, a mask row follows, whose bits are set in the lanes that have a tap. In the layout of
    groups, lanes are those of `convt_dw_groups` in kernels/convt_kernels.h.
    """

    kernel: int  # taps of the last axis
    stride: int  # taps of the last axis in a row of lanes: the stride of cells, else 1
    terms: int  # rows of lanes per tap of the other axes and in-channel
    repeats: int  # number of times that a row of lanes holds all channels
    padded: int  # lanes of a row, rounded up to whole vectors
    groups_per_vector: int  # channel groups that share a vector (1 or 2); 0: lanes are channels
    dots: bool  # vectors run over in-channels
    vectors: int  # vectors of out-channels in the layout of groups: each has `groups_per_vector` groups or part of one
    tap_bytes: int  # bytes of a tap: of all its rows of lanes, or in one of the vectors in the layout of groups
    row_bytes: int  # bytes of a row of lanes
    mask: int  # byte offset of the mask row; 0 if there is none
    bytes: int  # bytes of all weights


def lanes(problem, form, info):
    """Return the `Lanes` of a problem, or of attributes, for a form ``(width, groups_per_vector, dots)``."""
    width, each, dots = form
    groups, ci, co, k, taps = problem.groups, problem.ci, problem.co, problem.kernel[-1], math.prod(problem.kernel)
    stride, vl, size = problem.strides[-1] if width else 1, info.vl, info.t_size
    terms, repeats = -(-k // stride), max(1, width) * stride
    padded, vectors = info.padded(repeats * groups * co), 0
    row_bytes, mask = padded * size, 0
    tap_bytes = ci * row_bytes
    bytes = taps // k * terms * tap_bytes
    if each:
        vectors, tap_bytes = -(-groups // each) * -(-co * each // vl), ci * (co if dots else vl) * size
        bytes = vectors * taps * tap_bytes
    elif k % stride:
        mask, bytes = bytes, bytes + row_bytes
    return Lanes(k, stride, terms, repeats, padded, each, dots, vectors, tap_bytes, row_bytes, mask, bytes)


def recipe(attributes, filter, bias, form, unit):
    """Return the recipe that packs weights in a form, ``(width, groups_per_vector, dots)`` of a `kinds.CellKind`."""
    info = machine.current().info(attributes.dtype)
    layout, size, channels = lanes(attributes, form, info), info.t_size, filter.shape[0] * filter.shape[2]
    step = bias.strides[0] // info.s_size if bias is not None else 0
    copies = _groups(layout, filter, info) if layout.groups_per_vector else list(_rows(layout, filter, info))
    biases = [Copy(0, 0, channels, step, loops=((layout.repeats, 0, channels * size),))]
    # Vectors may be read from any lane on, because groups and phases of cells begin anywhere. So the bias has one vector more,
    # and a vector of weights may extend into the bias.
    bias_bytes = layout.row_bytes + info.vl * size
    in_place = not layout.groups_per_vector and layout.repeats == 1 and info.s_size == size and _is_packed(layout, filter)
    return TableRecipe(attributes.dtype, filter, bias, layout, copies, biases, layout.bytes, bias_bytes, True, in_place)


def _is_packed(layout, filter):
    """Check whether a filter has the layout [tap][in-channel][lane] already, without padding."""
    order = filter.transpose(*range(3, filter.ndim), 1, 0, 2)
    return filter.shape[0] * filter.shape[2] == layout.padded and order.flags.c_contiguous


def _rows(layout, filter, info):
    """Yield the copies of [tap][in-channel][lane]. For cells, a row of lanes has the taps of one stride."""
    groups, ci, co, *kernel = filter.shape
    group, channel, out, *taps = filter.strides
    # One call copies all lanes if they are at a constant stride in the filter, otherwise one row per group.
    rows, step, channels = groups, out, groups * co
    if co == 1 or group == co * out:
        rows, step = 1, group if co == 1 else out
    firsts, (count, outer) = outer_taps(kernel, taps)
    for n, first in enumerate(firsts):
        for repeat in range(layout.repeats):
            tap, at = repeat % layout.stride, n * count * layout.terms * layout.tap_bytes + repeat * channels * info.t_size
            yield Copy(
                first + tap * taps[-1], at, channels // rows, step // info.s_size, rows, group // info.s_size, channels // rows,
                loops=(
                    (count, outer, layout.terms * layout.tap_bytes),
                    (-(-(layout.kernel - tap) // layout.stride), layout.stride * taps[-1], layout.tap_bytes),
                    (ci, channel, layout.row_bytes),
                ),
            )  # fmt: skip
    for repeat in range(layout.repeats if layout.mask else 0):
        if repeat % layout.stride < layout.kernel % layout.stride:
            yield Copy(None, layout.mask + repeat * channels * info.t_size, channels)


def _groups(layout, filter, info):
    """Return the copies of the layout of groups, [vector][tap][in-channel][lane], or of that of dot products,
    [group][tap][vector of in-channels][out-channel][lane]."""
    groups, ci, co, *kernel = filter.shape
    group, channel, out, *taps = filter.strides
    each, vl, size, t_size = layout.groups_per_vector, info.vl, info.s_size, info.t_size
    firsts, (count, outer) = outer_taps(kernel, taps)
    vector = math.prod(kernel) * layout.tap_bytes  # bytes of the taps of a vector
    # For each place in a vector: offsets in filter and weights, columns and their places, rows, their strides, and loop.
    if layout.dots:
        places = [
            (c * out, c * vl * t_size, vl, channel // size, ci // vl, channel * vl // size, co * vl, (groups, group, vector))
            for c in range(co)
        ]
    elif each == 1:
        some = layout.vectors // groups
        places = [
            (v * vl * out, v * vector, min(vl, co - v * vl), out // size, ci, channel // size, vl,
             (groups, group, some * vector))
            for v in range(some)
        ]  # fmt: skip
    else:
        # In the half of the vector that belongs to the other group, adjacent lanes are swapped, unless a half is one lane.
        half, lane = np.divmod(np.arange(vl), co)
        swapped = [np.where((half == r) | (co == 1), lane, lane ^ 1) * out + np.arange(vl) % 2 * channel for r in range(2)]
        places = [
            (r * group, r * vl * t_size, vl, swapped[r] // size, ci // 2, 2 * channel // size, 2 * vl,
             (-(-(groups - r) // 2), 2 * group, vector))
            for r in range(2)
        ]  # fmt: skip
    return [
        Copy(
            first + src, n * count * layout.kernel * layout.tap_bytes + dst, cols, columns, rows, rs, ld, vl,
            (loop, (count, outer, layout.kernel * layout.tap_bytes), (layout.kernel, taps[-1], layout.tap_bytes)),
        )
        for n, first in enumerate(firsts) for src, dst, cols, columns, rows, rs, ld, loop in places
    ]  # fmt: skip
