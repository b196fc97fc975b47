# cython: language_level=3, cdivision=True
"""The long tables of a class: depth chunks and columns.

direct/bind.py makes them from the runs of a class for the loops of `direct`; winograd/bind.py uses `columns`. The module is
compiled because the tables may be long.
"""

from libc.stdint cimport int64_t

import numpy as np

from convt._run.kernels cimport CONVT_KC


def depth_chunks(ranges, totals, int64_t filled, int64_t step, int64_t slab):
    """Return depth chunks: (first depth in the class, depth, first depth in the panel).

    Chunks have at most CONVT_KC of depth, in whole steps. On each axis, the class uses the taps in ``ranges`` of the ``totals``
    taps in the panel. Each tap has ``filled`` in-channels. A chunk covers depth that is contiguous in the panel and does not
    cross a multiple of ``slab`` (0: no such bound).
    """
    cdef int64_t rank = len(ranges), count = 1, ax, n, flat, rest, depth = 0, start = 0, panel = 0, at, pieces, size
    cdef int64_t chunk_depth
    cdef int64_t low[64]
    cdef int64_t sizes[64]
    cdef int64_t panel_taps[64]
    for ax in range(rank):
        low[ax], sizes[ax], panel_taps[ax] = ranges[ax][0], ranges[ax][1] - ranges[ax][0], totals[ax]
        count *= sizes[ax]
    chunks = []
    for n in range(count + 1 if filled else 0):
        flat, rest, size = 0, n, 1
        if n < count:
            for ax in range(rank - 1, -1, -1):
                flat += (low[ax] + rest % sizes[ax]) * size
                rest //= sizes[ax]
                size *= panel_taps[ax]
            flat *= filled
            if depth and panel + depth == flat and (slab == 0 or flat % slab):
                depth += filled
                continue
        if depth:
            pieces = (depth + CONVT_KC - 1) // CONVT_KC
            chunk_depth = ((depth + pieces - 1) // pieces + step - 1) // step * step
            at = 0
            while at < depth:
                chunks.append((start + at, min(chunk_depth, depth - at), panel + at))
                at += chunk_depth
        start, panel, depth = n * filled, flat, filled
    return np.array(chunks or [(0, 0, 0)], np.int64)


def columns(problem, runs, out_elements, unit):
    """Return the tables `panels`, `pieces` and `boxes` of DirectClass (loops.pxd).

    A piece is a range of columns of a panel that are adjacent in the output and inside the window at the same positions. Phases
    that the window does not show have no pieces. ``out_elements`` are the strides of the output in elements.
    """
    cdef int64_t co = problem.co, nr = unit.nr, rank = problem.rank, step = out_elements[rank + 1], phases = 1, ax, n, p, i
    cdef int64_t column, end, count, channel, offset, shown_columns, used, first_piece, start
    cdef int64_t sizes[64]
    cdef bint adjacent, same
    for ax in range(rank):
        sizes[ax] = len(runs[ax].first_out)
        phases *= sizes[ax]
    cdef int64_t npanels = (co * phases + nr - 1) // nr
    table = np.zeros((max(phases, 1), 1 + 2 * rank), np.int64)  # per phase: output offset, [low, high) on each axis
    cdef int64_t[:, :] at = table
    for ax in range(rank):
        i = 1
        for n in range(ax + 1, rank):
            i *= sizes[n]
        first_out, valid = runs[ax].first_out, runs[ax].valid
        offsets = np.array([first * out_elements[ax + 1] for first in first_out], np.int64)
        index = np.arange(phases) // i % max(sizes[ax], 1)
        table[:phases, 0] += offsets[index]
        table[:phases, 1 + 2 * ax : 3 + 2 * ax] = np.array(valid, np.int64)[index]
    shown = (table[:, 1::2] < table[:, 2::2]).all(1).astype(np.int64)
    cdef int64_t[:] phase_shown = shown
    panel_table, box_table = np.zeros((npanels, 5), np.int64), np.zeros((npanels, 2 * rank), np.int64)
    piece_table = np.empty((npanels + phases, 3 + 2 * rank), np.int64)  # each piece begins with a panel or a phase
    cdef int64_t[:, :] panels = panel_table
    cdef int64_t[:, :] boxes = box_table
    cdef int64_t[:, :] pieces = piece_table
    used = 0
    for n in range(npanels):
        column, end, first_piece, adjacent, shown_columns, start = n * nr, min(co * phases, (n + 1) * nr), used, True, 0, 0
        while column < end:
            p, channel = column // co, column % co
            count = min(co - channel, end - column)
            if phase_shown[p]:
                offset = at[p, 0] + channel * step
                same = used > first_piece and pieces[used - 1, 0] + pieces[used - 1, 1] == column - n * nr and (
                    pieces[used - 1, 2] + pieces[used - 1, 1] * step == offset)
                for ax in range(2 * rank if same else 0):
                    same = same and pieces[used - 1, 3 + ax] == at[p, 1 + ax]
                if same:
                    pieces[used - 1, 1] += count
                else:
                    pieces[used, 0], pieces[used, 1], pieces[used, 2] = column - n * nr, count, offset
                    for ax in range(2 * rank):
                        pieces[used, 3 + ax] = at[p, 1 + ax]
                    used += 1
                offset -= (column - n * nr) * step  # offset of the panel's first column, if pieces are adjacent
                adjacent = adjacent and (shown_columns == 0 or start == offset)
                start = offset if shown_columns == 0 else min(start, offset)
                shown_columns += count
            column += count
        panels[n, 0], panels[n, 1], panels[n, 2], panels[n, 3], panels[n, 4] = (
            end - n * nr, adjacent and shown_columns == end - n * nr, start, first_piece, used)
        for i in range(first_piece, used):
            for ax in range(rank):
                if i == first_piece or pieces[i, 3 + 2 * ax] > boxes[n, 2 * ax]:
                    boxes[n, 2 * ax] = pieces[i, 3 + 2 * ax]
                if i == first_piece or pieces[i, 4 + 2 * ax] < boxes[n, 2 * ax + 1]:
                    boxes[n, 2 * ax + 1] = pieces[i, 4 + 2 * ax]
    return panel_table, piece_table[:used], box_table
