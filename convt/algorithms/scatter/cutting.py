"""How a problem is cut: which rows, stretches of a row and images are a task, and what it keeps packed."""

import itertools
import math

from ... import _core
from .. import common

_ROWS = 126, 160  # input pixels of a task, for vectors (9 tiles of 14) and matrices
_PIXELS = 1024  # the same across
_FEW_PIXELS = 256  # of a task that has company
_JOINED = 1 << 16  # output rows, of all images, that may be listed
SUMS = 1 << 18  # bytes of their products
_KEPT = 1 << 20  # of input rows that are kept packed
_ROWS_SHARE = 16  # output rows of a task
_LEAST_DEPTH = 32  # in-channels that a chunk should have


def most_rows_read(classes):
    """How many input rows a row reads at most."""
    return math.prod(max((len(c.first_in) for c in axis), default=0) for axis in classes)


def keeps_to_tap(problem, classes, info):
    """Whether a depth chunk keeps to a tap, so that pixels are packed once for all rows that read them, or used in place."""
    taps = most_rows_read(classes)
    return taps == 1 or (problem.ci >= _LEAST_DEPTH and taps * problem.ci * info["e_size"] <= _KEPT // 16)


def rows_of_task(rows, others, threads):
    """How many rows of an image are a task, which packs its pixels once for all of them; ``others`` are stretches of a row,
    images and groups."""
    count = max(-(-rows // _ROWS_SHARE), min(rows, -(-8 * threads // max(others, 1))) if threads > 1 else 1)
    while count < rows and count * others < 32 * threads and count * others % threads:
        count += 1  # so that threads have as many each
    return max(1, -(-rows // max(count, 1)))


def joins_rows(problem, classes, slab, blocks, info):
    """Whether rows that follow each other in the input, of images too, are multiplied as one: where each is packed for one row
    of outputs, or too short to fill vectors."""
    if not slab or blocks > 1 or problem.batch * rows_of_image(classes) > _JOINED or 0 in problem.in_sizes:
        return False
    return most_rows_read(classes) == 1 or problem.in_sizes[-1] <= info["vl"]


def joined_tasks(problem, threads):
    """How many tasks joined rows are."""
    pixels = problem.batch * math.prod(problem.in_sizes)
    most = max(pixels // _PIXELS, min(4 * threads, pixels // _FEW_PIXELS))
    return max(1, -(-most // threads)) * threads


def rows_of_image(classes):
    """How many rows of outputs an image has, over all classes."""
    return sum(math.prod(c.count for c in combo) for combo in itertools.product(*classes))


def blocks_shown(problem):
    """The blocks of stride outputs along the last axis that the window shows."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    return begin // s, -(-(begin + out) // s)


def slab_depth(problem, info):
    """How deep the rows of the weights are across: as many whole taps as fit; 0 where it can't be."""
    fits = info["kstep"] == 1 and 0 < problem.ci <= _core.KC and problem.strides[-1] * problem.co <= _core.ACROSS
    return _core.KC // problem.ci * problem.ci if fits else 0


def block_limit(problem, classes, slab, info):
    """How many blocks of the last axis one task does, so that its products and pixels stay in the cache; below 1 if none
    would."""
    j0, j1 = blocks_shown(problem)
    phases = max(math.prod(len(c.first_out) for c in combo) for combo in itertools.product(*classes))
    pixels = max(1, phases * problem.kernel[-1] * problem.co * info["t_size"])
    kept = max(1, most_rows_read(classes) * problem.ci * info["e_size"] if keeps_to_tap(problem, classes, info) else 1)
    if slab:
        return max(16, min(_PIXELS, j1 - j0, SUMS // pixels, _KEPT // kept))
    return min(_ROWS[info["parts"] > 0], j1 - j0, _KEPT // kept, common.MAX_PARTIAL // pixels - pixels_before(problem) - 1)


def pixels_before(problem):
    """How many pixels before its own a stretch reads."""
    return -(-problem.kernel[-1] // problem.strides[-1]) - 1


def cut_row(problem, rows, most, threads, info):
    """``(block, blocks)``: the stretches of so many, at most ``most``, blocks of stride outputs that a row is cut into; rows
    are so many in all."""
    j0, j1 = blocks_shown(problem)
    block = min(most, max(16, -(-(j1 - j0) * rows // (4 * threads))))
    block = max(1, -(-(j1 - j0) // max(1, -(-(j1 - j0) // max(block, 1)))))
    if info["parts"] and block < j1 - j0:  # in whole tiles but for the last one
        tile, more = info["mr"][-1], pixels_before(problem)
        block = max(1, min(-(-(block + more) // tile), max(1, (most + more) // tile)) * tile - more)
    return block, max(1, -(-(j1 - j0) // block))
