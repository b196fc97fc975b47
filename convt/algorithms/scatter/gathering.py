"""The table of the products that each output of an image sums, for the layout GATHERED and for `unpacked`."""

import math

import numpy as np

from .. import common
from ..caches import remembered


@remembered(16)
def gathered_products(problem):
    """Return ``(columns, pixels)``, [output][term]: the product of each term of each output of an image.

    Outputs with fewer terms are filled up with the dummy column, one past the last. Its products are -0.0, the neutral element
    of addition.
    """
    dummy = math.prod(problem.kernel) * problem.co
    taps, pixels, valid = (np.full((1, 1), n, np.int64) for n in (0, 0, 1))
    for ax, (kernel, size) in enumerate(zip(problem.kernel, problem.in_sizes, strict=True)):
        pairs = common.taps_of_outputs(problem, ax)
        table = np.full((len(pairs), max(map(len, pairs), default=0), 2), -1, np.int64)
        for row, some in zip(table, pairs, strict=True):
            row[: len(some)] = np.reshape(some, (-1, 2))
        shape = len(taps) * len(table), taps.shape[1] * table.shape[1]
        tap, at = (table[None, :, None, :, n] for n in (0, 1))
        taps = (taps[:, None, :, None] * kernel + tap).reshape(shape)
        pixels = (pixels[:, None, :, None] * size + at).reshape(shape)
        valid = (valid[:, None, :, None] * (tap >= 0)).reshape(shape)
    columns = taps[:, None] * problem.co + np.arange(problem.co)[:, None]
    valid = np.broadcast_to(valid[:, None], columns.shape)
    columns, pixels = np.where(valid, columns, dummy), np.where(valid, pixels[:, None], 0)
    return tuple(a.reshape(len(taps) * problem.co, taps.shape[1]) for a in (columns, pixels))


def lanes_of(index, vl):
    """Return indices [output][bias, terms] as `overlap_gather` reads them, [vector of outputs][bias, terms][lane]."""
    padded = np.zeros((-(-len(index) // vl) * vl, index.shape[1]), np.int32)
    padded[: len(index)] = index
    return np.ascontiguousarray(padded.reshape(-1, vl, index.shape[1]).transpose(0, 2, 1))


def is_contiguous(sizes, strides, step):
    """Check whether an array has the strides of a contiguous one, whose last axis has the stride ``step``."""
    for size, stride in zip(sizes[::-1], strides[::-1], strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
