"""The packed weights of rows: for each channel group and each output block, [tap of the other axes][in-channel][tap of the last
axis][output], so that a micro-kernel reads its weights in order."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from ..._model import machine
from ..packing import Copy, TableRecipe, outer_taps
from .schedule import channel_blocks, phase_blocks


class OutputBlock(NamedTuple):
    """The outputs (channel, phase), phases fastest, that a micro-kernel computes together."""

    outputs: int  # number of outputs, m_r of the micro-kernel
    shifts: int  # taps of each output on the last axis
    weights: int  # byte offset in a group's packed weights
    bias: int  # byte offset in a group's packed bias


class Layout(NamedTuple):
    """The places of packed weights."""

    blocks: list  # the `OutputBlock` of each channel block and each block of phases
    group_weights: int  # bytes of a channel group
    group_bias: int


def recipe(attributes, filter, bias, form, unit):
    """Return the recipe that packs weights. There is one form."""
    info = machine.current().info(attributes.dtype)
    (groups, ci, co, *kernel), (group, channel, out, *taps) = filter.shape, filter.strides
    size, stride, step = info.s_size, attributes.strides[-1], 0 if bias is None else bias.strides[0] // info.s_size
    phases = phase_blocks(kernel[-1], stride, attributes.dilations[-1], info.mr[2])
    parts = channel_blocks(co, phases, info.mr[2])
    bounds = [co * n // parts for n in range(parts + 1)]
    layout = _layout(phases, bounds, math.prod(kernel[:-1]) * ci, info.t_size)
    (firsts, (count, outer)), copies, biases, tables = outer_taps(kernel, taps), [], [], {}
    for n, block in enumerate(layout.blocks):
        part, number = divmod(n, len(phases))
        if (number, block.outputs) not in tables:
            channels, first_taps = np.arange(bounds[part + 1] - bounds[part])[:, None], np.array(phases[number].taps)
            places = channels * (out // size) + first_taps * (taps[-1] // size)
            tables[number, block.outputs] = places.ravel(), (channels * step + 0 * first_taps).ravel()
        places, bias_places = tables[number, block.outputs]
        last, row = (block.shifts - 1) * stride * taps[-1], block.shifts * block.outputs  # the first shift reads the last tap
        for m, first in enumerate(firsts):
            copies.append(Copy(
                first + bounds[part] * out + last, block.weights + m * count * ci * row * info.t_size, block.outputs,
                places, ci, channel // size, row,
                loops=(
                    (groups, group, layout.group_weights), (count, outer, ci * row * info.t_size),
                    (block.shifts, -stride * taps[-1], block.outputs * info.t_size),
                ),
            ))  # fmt: skip
        biases.append(Copy(
            bounds[part] * step * size, block.bias, block.outputs, bias_places,
            loops=((groups, co * step * size, layout.group_bias),),
        ))  # fmt: skip
    weight_bytes, bias_bytes = groups * layout.group_weights, groups * layout.group_bias
    return TableRecipe(attributes.dtype, filter, bias, layout, copies, biases, weight_bytes, bias_bytes)


def _layout(phases, bounds, sources, size):
    """Return the `Layout` of channel blocks with these bounds. ``sources`` is the taps of the other axes times in-channels."""
    blocks, weights, bias = [], 0, 0
    for low, high in itertools.pairwise(bounds):
        for some in phases:
            outputs = (high - low) * len(some.residues)
            blocks.append(OutputBlock(outputs, some.terms, weights, bias))
            weights += -(-sources * some.terms * outputs * size // 64) * 64
            bias += -(-outputs * size // 64) * 64
    return Layout(blocks, weights, bias)
