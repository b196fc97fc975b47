# cython: language_level=3
"""The loops of `direct`: an implicit GEMM for each class, a run per axis.

`DirectPlan` runs the tables that bind.py makes. Rows of the GEMM are positions of the runs across image rows and images,
columns are out-channels times merged phases, and depth is taps times in-channels. A task multiplies a row block by a panel
block:

    for each strip of rows (often all rows of the task):
        for each span of depth chunks:
            pack the rows that the GEMM cannot read in place, with zeros outside the input   -> `rows`
            for each panel, or pair of panels:
                for each depth chunk of the span, for each register tile of the strip:
                    accumulators += A x B
                    the last chunk adds the bias, applies the activation and stores; earlier chunks store partial sums -> `sums`

Tasks write disjoint outputs. Each thread has its own workspace with the regions of schedule.book.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport Call, Plan
from convt._flags cimport convt_is_set, convt_set
from convt._kernels cimport (
    CONVT_KC, CONVT_LEAKY, MOST_ROWS, convt_act, convt_kernels, convt_prefetch_row, convt_quotient, convt_tile,
)
from convt._memory cimport keep_table, odd_line_stride, round64, structures
from convt.algorithms.indexing cimport Cut, cut_at, cut_evenly, take_index, within
from convt.algorithms.packing cimport PackClass, PanelRecipe

cnp.import_array()

TILE_ROWS = MOST_ROWS


cdef class DirectPlan(Plan):
    """A plan of `direct`, which runs the classes that direct/bind.py lists."""

    def __init__(self, str name, problem, PanelRecipe recipe, in_strides, out_strides, execution, classes, tiles):
        self.open_direct(name, problem, recipe, in_strides, out_strides, execution, classes, tiles)

    cdef open_direct(self, str name, problem, PanelRecipe recipe, in_strides, out_strides, execution, classes, tiles):
        """Fill in the structures from ``classes`` and ``tiles``, the tables and the `Tiles` of direct/bind.py."""
        self.open_plan(name, problem, recipe.k, in_strides, out_strides, execution)
        self.recipe, self.packing_workspace = recipe, tiles.packing_workspace
        self.panel_major, self.near_bytes, self.far_bytes = tiles.panel_major, tiles.near_bytes, tiles.far_bytes
        self.tile_non_temporal = tiles.non_temporal
        self.nclasses, self.keep, self.works = len(classes), [], []
        self.classes = <DirectClass *>cnp.PyArray_DATA(structures(self.keep, self.nclasses, sizeof(DirectClass)))
        cdef DirectClass *c
        cdef int64_t task = 0, n, ax, x = self.nd - 1, deepest = 0, packed = 0
        for i, spec in enumerate(classes):
            c = &self.classes[i]
            c.count = keep_table(self.keep, spec["count"])
            c.rows, c.block, c.blocks = spec["rows"], spec["block"], spec["blocks"]
            c.ntaps, c.tap_in = len(spec["tap_in"]), keep_table(self.keep, spec["tap_in"])
            c.follows = keep_table(self.keep, np.zeros(c.ntaps, np.int64))
            if self.in_c == 1 and self.in_stride.p[x] == self.ci and self.ci % self.k.kstep == 0:
                for n in range(1, c.ntaps):
                    c.follows[n] = c.tap_in[n * self.nd + x] == c.tap_in[(n - 1) * self.nd + x] + 1
                    for ax in range(x):
                        c.follows[n] &= c.tap_in[n * self.nd + ax] == c.tap_in[(n - 1) * self.nd + ax]
            chunks = np.asarray(spec["chunks"], np.int64)
            c.nchunks = len(chunks)
            c.chunks = keep_table(self.keep, np.column_stack((chunks, chunks[:, 1] // self.k.pace)))
            deepest = max(deepest, chunks[:, 1].max())
            c.npanels, c.panels = len(spec["panels"]), keep_table(self.keep, spec["panels"])
            c.pieces, c.boxes = keep_table(self.keep, spec["pieces"]), keep_table(self.keep, spec["boxes"])
            c.panel_block, c.panel_blocks = spec["panel_block"], spec["panel_blocks"]
            c.inner = keep_table(self.keep, spec["inner"])
            c.whole = all(lo <= 0 and hi >= count for (lo, hi), count in zip(spec["inner"], spec["count"]))
            pack, c.first_panel = spec["pack"]
            c.pack = &recipe.classes[<Py_ssize_t>pack]
            c.first_task = task
            c.ntasks = self.groups * c.blocks * c.panel_blocks
            task += c.ntasks
            self.works.append((spec["work"], c.ntasks))
            self.max_block = max(self.max_block, c.block)
            c.span, c.sparse = spec["span"], spec["sparse"]
            c.run, c.lda, c.in_place = spec["run"]
            c.wide, c.strip = spec["wide"], spec["strip"]
            if not (self.find_rows(c, 0, c.rows, NULL, NULL) and c.in_place):
                packed = max(packed, c.block * min(c.span, c.nchunks))
        self.lda = odd_line_stride(self.k, deepest)
        self.tasks = self.direct_tasks = task
        self.even = self.nclasses == 1
        room = tiles.workspace
        self.workspace = room.bytes
        names = ("rows", "found", "to", "lines", "reached", "heights", "coords", "edge", "tile", "sums")
        for n, name in enumerate(names):
            (&self.at.rows)[n] = room[name]
        cdef size_t rows = round64((packed + self.k.grain) * self.lda * self.k.e_size)
        if self.at.found - self.at.rows < rows:  # some rows that are read in place in contiguous data are packed
            self.at.rows, self.workspace = self.workspace, self.workspace + rows

    cdef bint taps_contiguous(self, DirectClass *c, int64_t *chunk, int64_t *low, int64_t *high, int64_t *at) noexcept nogil:
        """Check whether a depth chunk is contiguous memory inside the input at every position in the box [low, high].

        ``at`` receives the input offset of the chunk at the first row of the class.
        """
        cdef int64_t ci = convt_quotient(self.ci + self.k.kstep - 1, self.k.kstep) * self.k.kstep
        cdef int64_t tap, ax, i, place, first = convt_quotient(chunk[0], ci)
        for tap in range(first, convt_quotient(chunk[0] + chunk[1] - 1, ci) + 1):
            place = chunk[0] - first * ci
            for ax in range(self.nd):
                i = c.tap_in[tap * self.nd + ax]
                if i + low[ax] < 0 or i + high[ax] >= self.in_size.p[ax]:
                    return False
                place += i * self.in_stride.p[ax]
            if tap == first:
                at[0] = place
            elif self.ci != ci or place != at[0] + (tap - first) * ci:
                return False
        return True

    cdef bint find_rows(self, DirectClass *c, int64_t m0, int64_t m, char *src, char **found) noexcept nogil:
        """Check whether the rows of a block have a constant stride in the input in all depth chunks.

        ``found``, unless NULL, receives for each chunk with such rows the address of the first row, and NULL for other chunks.
        """
        cdef int64_t ax, chunk, at, row = 0, batch = m0, last = m0 + m - 1
        cdef int64_t low[64]
        cdef int64_t high[64]
        cdef bint even = c.run > 0 and convt_quotient(m0, c.run) == convt_quotient(last, c.run), unpacked = True, same
        for ax in range(self.nd - 1 if even else -1, -1, -1):
            low[ax], high[ax] = take_index(&batch, c.count[ax]), take_index(&last, c.count[ax])
            row += low[ax] * self.in_stride.p[ax]
        row += batch * self.in_n
        same = batch == last
        for ax in range(self.nd if even else 0):  # the bounding box of the rows
            if not same:
                low[ax], high[ax] = 0, c.count[ax] - 1
            same = same and low[ax] == high[ax]
        for chunk in range(c.nchunks):
            same = even and self.taps_contiguous(c, c.chunks + 4 * chunk, low, high, &at)
            unpacked = unpacked and same
            if found != NULL:
                found[chunk] = src + (row + at) * self.k.s_size if same else NULL
        return unpacked

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task in the loop order of the module docstring: a row block x a panel block of one class and group."""
        if convt_is_set(call.refused):  # the call is repeated, because another task found values that need a direct sum
            return
        cdef const convt_kernels *k = self.k
        cdef DirectTask w
        self.open(&w, task, call, ws)
        cdef DirectClass *c = w.c
        cdef int64_t start, end, strip, s0, s1, panels = w.p1 - w.p0
        # With one strip, all rows meet a panel before the next panel, so that the task reads each panel once. Vectors always
        # use one strip; AMX does if weights are large. With several strips, a strip is packed just before it meets all panels,
        # so that whole output rows are written in one go. Strips gain nothing if rows are read in place and met once.
        cdef int64_t strips = convt_quotient(w.m + c.strip - 1, c.strip)
        if c.sparse or self.panel_major or w.source != NULL or (w.in_place and panels <= (2 if w.m <= c.wide else 1)) or (
                panels * k.nr * c.pack.depth * k.e_size > self.near_bytes):
            strips = 1
        cdef Cut by_strip = cut_evenly(w.m, strips, w.most if c.strip > w.most else k.grain)
        for strip in range(strips):
            s0, s1 = cut_at(&by_strip, strip), cut_at(&by_strip, strip + 1)
            end = 0
            while end < c.nchunks:
                start, end = end, min(c.nchunks, end + c.span)
                self.pack_chunks(&w, start, end, s0, s1, call.refused)
                self.multiply_panels(&w, start, end, s0, s1, call.back)
        if w.t.late != NULL:
            k.flush(w.t.late)
        if self.tile_non_temporal:
            k.fence()

    cdef void open(self, DirectTask *w, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Set the rows, panels, operands and workspace regions of a task."""
        cdef const convt_kernels *k = self.k
        cdef DirectClass *c
        cdef int64_t group, r
        self.place(task, &w.c, &group, &w.m0, &w.m, &w.p0, &w.p1)
        c = w.c
        w.source = call.source + group * self.recipe.sg if call.source != NULL else NULL
        w.panel, w.refused = ws + round64(self.workspace), call.refused
        w.a, w.found = ws + self.at.rows, <char **>(ws + self.at.found)
        w.to, w.lines = <void **>(ws + self.at.to), <void **>(ws + self.at.lines)
        w.reached, w.heights = <void **>(ws + self.at.reached), <int64_t *>(ws + self.at.heights)
        w.coords, w.edge = <int64_t *>(ws + self.at.coords), <int64_t *>(ws + self.at.edge)
        w.scratch, w.partial = ws + self.at.tile, ws + self.at.sums

        w.src = call.src + group * self.ci * self.in_c * k.s_size
        w.dst = call.dst + group * self.co * self.out_c * k.s_size
        cdef int64_t before = c.first_panel * k.nr
        w.weights = call.weights + c.pack.weights + group * c.pack.group_weights + before * c.pack.depth * k.e_size
        w.bias = call.bias + c.pack.bias + group * c.pack.group_bias + before * k.t_size
        cdef bint unpacked = self.find_rows(c, w.m0, w.m, w.src, w.found)
        self.locate(c, w.m0, w.m, w.dst, w.to, w.coords, w.edge, unpacked)
        w.in_place = unpacked and c.in_place

        w.stride_a, w.stride_partial = c.block * self.lda * k.e_size, self.max_block * k.nr
        w.most = k.mr[2 if k.nr > k.vl else 1]
        w.fast = (k.direct_store or k.narrows) and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        for r in range(w.most):
            w.window[r] = w.scratch + r * k.nr * k.t_size
        for r in range(w.m if c.nchunks > 1 else 0):
            w.lines[r] = w.partial + r * k.nr * k.t_size
        w.late.sums, w.late.left = w.scratch + MOST_ROWS * k.nr * k.t_size, 0
        w.t.late = &w.late if self.tile_non_temporal and k.flush != NULL and k.direct_store else NULL
        # Tiles prefetch into L2: the input of the thread's next task, a part with each tile, and the next weights if L2 does
        # not keep them.
        w.far = c.pack.group_weights > self.far_bytes
        w.next_input = self.next_input(task, call, &w.input_step)

    cdef void pack_chunks(self, DirectTask *w, int64_t start, int64_t end, int64_t s0, int64_t s1, char *refused) noexcept nogil:
        """Pack rows [s0, s1) of depth chunks [start, end) into the region `rows`, except chunks that are read in place.

        A sparse chunk packs all rows of the task that its tap reaches, whatever s0 and s1.
        """
        cdef DirectClass *c = w.c
        cdef int64_t chunk, i, cols, ci = convt_quotient(self.ci + self.k.kstep - 1, self.k.kstep) * self.k.kstep
        cdef int64_t *ch
        for chunk in range(start, end):
            ch, i = c.chunks + 4 * chunk, chunk - start
            if w.found[chunk] != NULL:
                cols = ch[1] if self.ci == ci else min(ch[1], self.ci - ch[0] % ci)  # several unpadded taps, or a single tap
                if not (c.in_place or self.k.pack_far(
                        w.a + i * w.stride_a, self.lda, w.found[chunk] + s0 * c.lda * self.k.s_size, c.lda, 1,
                        <int>(s1 - s0), <int>cols, <int>ch[1])):
                    convt_set(refused)
            elif c.sparse and 0 < chunk < c.nchunks - 1:
                w.heights[i] = self.pack_rows(c, ch[0], ch[1], w.m0, w.m, w.coords, w.src, w.a + i * w.stride_a, w.lines,
                                              w.reached + i * c.block, refused)
            else:
                self.pack_rows(c, ch[0], ch[1], w.m0 + s0, s1 - s0, w.coords + s0 * self.nd, w.src, w.a + i * w.stride_a, NULL,
                               NULL, refused)

    cdef void multiply_panels(self, DirectTask *w, int64_t start, int64_t end, int64_t s0, int64_t s1, bint back) noexcept nogil:
        """Multiply rows [s0, s1) by all panels of the task, for depth chunks [start, end).

        Loop order: panels (or pairs), depth chunks, register tiles. Packed rows begin with row s0. ``back`` reverses the order
        of the panels. Chunks except the last one of the class write partial sums to the region `sums`; the last one writes
        outputs.
        """
        cdef const convt_kernels *k = self.k
        cdef DirectClass *c = w.c
        cdef convt_tile *t = &w.t
        cdef int64_t chunk, n = w.p0, p, both, part, width, height, top, prefetching, next_panel, i, s2, tiles, r0, r1
        cdef int64_t panel_bytes = k.nr * c.pack.depth * k.e_size, cut_rows = -1, cut_height = 0
        cdef const char *next_b
        cdef int64_t *ch
        cdef int64_t *panel
        cdef char *rows
        cdef void **partial_rows  # addresses of the chunk's rows in the partial sums
        cdef Cut by_tile
        cdef bint simple  # tiles store all rows into the output, so that one kernel call can compute all tiles of a height
        while n < w.p1:
            # Few rows are multiplied by two panels at once, because more accumulators hide the latency of multiply-adds. At
            # little depth all rows are (Shape.order).
            p, both = w.p0 + w.p1 - 1 - n if back else n, 1
            if w.m <= c.wide and n + 1 < w.p1 and c.panels[5 * (p + (not back))] == k.nr:
                p, both = p - back, 2
            n += both
            panel = c.panels + 5 * p
            if panel[3] == panel[5 * both - 1]:
                continue
            width = k.vl if panel[0] <= k.vl else k.nr
            t.nv = <int>(both if width == k.vl else 2 * both)
            t.cols = <int>(panel[0] if both == 1 else 2 * k.nr)
            height = k.mr[t.nv] if both == 1 else k.wide
            simple = c.whole and w.fast and panel[1] and panel[5 * both - 4]
            part = (p - w.p0 if c.span < c.nchunks else 0) * w.stride_partial
            for chunk in range(start, end):
                ch = c.chunks + 4 * chunk
                rows, t.lda, top = w.found[chunk], c.lda, 0
                if rows == NULL or not c.in_place:
                    rows, t.lda, top = w.a + (chunk - start) * w.stride_a, self.lda, s0
                t.kc = <int>ch[1]
                t.b = w.weights + p * panel_bytes + ch[2] * width * k.e_size
                t.b2 = <const char *>t.b + panel_bytes
                if w.source != NULL:
                    t.b, t.b2 = w.panel, w.panel + t.kc * width * k.e_size
                    for i in range(both):
                        if self.recipe.pack_depth(c.pack, c.first_panel + p + i, ch[2], t.kc, w.source,
                                                  w.panel + i * t.kc * width * k.e_size):
                            convt_set(w.refused)
                prefetching = 0
                if w.far and ch[3] and w.source == NULL:
                    prefetching = convt_quotient(t.kc * width * k.e_size + 64 * ch[3] - 1, 64 * ch[3])
                elif w.source != NULL:
                    prefetching = 2 * k.pace
                # The first tiles prefetch the next weights: the panel's next chunk, or the first chunk of the next panel.
                next_panel, i = p, chunk + 1
                if i == end:
                    next_panel, i = p - both if back else p + both, start
                next_b = w.weights + next_panel * panel_bytes + c.chunks[4 * i + 2] * width * k.e_size
                if w.source != NULL:
                    next_b = self.recipe.source_at(
                        c.pack, max(0, c.first_panel + next_panel), 0, c.chunks[4 * i + 2], w.source)
                s2, partial_rows = s1, w.lines
                if c.sparse and 0 < chunk < c.nchunks - 1:
                    s2, partial_rows = w.heights[chunk - start], w.reached + (chunk - start) * c.block
                if s2 - s0 != cut_rows or height != cut_height:  # rarely, because divisions are slow
                    cut_rows, cut_height = s2 - s0, height
                    tiles = convt_quotient(cut_rows + height - 1, height)
                    by_tile = cut_evenly(cut_rows, tiles, k.grain)
                i, r1 = 0, s0
                while i < tiles:
                    r0, r1, t.more = r1, s0 + cut_at(&by_tile, i + 1), 0
                    if simple and i >= prefetching and not k.parts:
                        t.more = <int>((by_tile.taller if i < by_tile.taller else tiles) - i - 1)
                        t.more -= s0 + cut_at(&by_tile, i + 1 + t.more) - r1 < t.more * (r1 - r0)
                    t.a = rows + (r0 - top) * t.lda * k.e_size
                    if i < prefetching and w.source != NULL:  # one line of each in-channel, then their next lines
                        t.ahead_step = self.recipe.si * k.s_size
                        t.ahead = next_b + i % k.pace * ch[3] * t.ahead_step + i // k.pace * 64
                    elif i < prefetching:
                        t.ahead, t.ahead_step = next_b + i * 64 * ch[3], 64
                    else:
                        t.ahead, t.ahead_step = w.next_input, w.input_step
                        w.next_input += w.input_step * ch[3] * (1 + t.more)
                    t.init, t.init_ld = NULL, k.nr
                    if chunk == 0:
                        t.init, t.init_ld = w.bias + p * k.nr * k.t_size, 0
                        t.init2 = <const char *>t.init + k.nr * k.t_size
                    elif chunk == c.nchunks - 1:
                        t.init = w.partial + (part + r0 * k.nr) * k.t_size
                        t.init2 = <const char *>t.init + w.stride_partial * k.t_size
                    if chunk < c.nchunks - 1:
                        t.act, t.stream, t.narrow = &self.none, 0, 0
                        t.rows, t.at, t.at2 = partial_rows + r0, part, part + w.stride_partial
                        k.tile(<int>(r1 - r0), t)
                    else:
                        self.last_tile(w, p, both, r0, r1)
                    i += 1 + t.more
                    r1 = s0 + cut_at(&by_tile, i)

    cdef void last_tile(self, DirectTask *w, int64_t p, int64_t both, int64_t r0, int64_t r1) noexcept nogil:
        """Compute the tile of rows [r0, r1) for the last depth chunk, and write its outputs.

        The tile stores rows into the output itself if it can. Rows of which some piece is outside the window go to `scratch`
        first; `store_pieces` then stores their pieces that are inside.
        """
        cdef const convt_kernels *k = self.k
        cdef DirectClass *c = w.c
        cdef convt_tile *t = &w.t
        cdef int64_t *panel = c.panels + 5 * p
        cdef int64_t r = r1 if c.whole else w.edge[r0], outside = 0
        cdef bint inside = r >= r1
        cdef size_t first, second  # output addresses of the panels
        cdef void *aside[MOST_ROWS]  # output addresses of the rows that the tile stores to `scratch`
        cdef int64_t away[MOST_ROWS]  # numbers of these rows
        t.act, t.stream, t.narrow = &self.none, 0, 0
        if k.narrows and both == 1:  # the tile rounds its rows, so that none of them may go to `scratch`
            while r < r1 and within(c.boxes + 2 * self.nd * p, w.coords + r * self.nd, self.nd):
                r = w.edge[r + 1]
            inside = r >= r1
        if not (w.fast and panel[1] and panel[5 * both - 4] and (inside or (both == 1 and not k.narrows))):
            if self.out_c == 1:
                self.prefetch_pieces(c, panel[3], panel[5 * both - 1], w.to, r0, r1)
            t.rows, t.at, t.at2 = w.window, 0, w.most * k.nr
            k.tile(<int>(r1 - r0), t)
            for r in range(both):
                self.store_pieces(c, panel + 5 * r, r0, r1, w.to, w.coords, inside, w.scratch + r * w.most * k.nr * k.t_size,
                                  &self.act)
            return
        t.act, t.narrow = &self.act, k.narrows
        t.rows, t.at, t.at2 = w.to + r0, panel[2], panel[5 * both - 3]
        while r < r1:  # rows of which some piece is outside the window go to `scratch`
            if not within(c.boxes + 2 * self.nd * p, w.coords + r * self.nd, self.nd):
                if outside == 0 and t.late != NULL:  # deferred stores of the previous tile use w.to, which now changes
                    k.flush(t.late)
                aside[outside], away[outside] = w.to[r], r
                w.to[r] = <char *>w.window[r - r0] - panel[2] * k.s_size
                outside += 1
            r = w.edge[r + 1]
        first, second = <size_t>(w.dst + panel[2] * k.s_size), <size_t>(w.dst + panel[5 * both - 3] * k.s_size)
        t.stream = outside == 0 and self.tile_non_temporal and not (first | second) & (self.tile_non_temporal - 1)
        k.tile(<int>(r1 - r0), t)
        while outside:
            outside -= 1
            r = away[outside]
            w.to[r] = aside[outside]
            self.store_pieces(c, panel, r, r + 1, w.to, w.coords, False, <char *>w.window[r - r0], &self.none)

    cdef void prefetch_pieces(self, DirectClass *c, int64_t first, int64_t last, void **to, int64_t r0, int64_t r1) noexcept nogil:
        """Prefetch output lines of pieces [first, last) of rows [r0, r1), because a tile that stores to `scratch` does not."""
        cdef int64_t width = 3 + 2 * self.nd, r, n
        for r in range(r0, r1):
            for n in range(first, last):
                convt_prefetch_row(<char *>to[r] + c.pieces[n * width + 2] * self.k.s_size, c.pieces[n * width + 1] * self.k.s_size)

    cdef void place(self, Py_ssize_t task, DirectClass **which, int64_t *group, int64_t *m0, int64_t *m, int64_t *p0,
                    int64_t *p1) noexcept nogil:
        """Return the class, channel group, first row, number of rows, first panel and end of the panels of a task."""
        cdef DirectClass *c = self.classes
        while task >= c.first_task + c.ntasks:
            c += 1
        which[0] = c
        group[0] = task - c.first_task
        m0[0] = take_index(group, c.blocks) * c.block
        m[0] = min(c.block, c.rows - m0[0])
        p0[0] = take_index(group, c.panel_blocks) * c.panel_block
        p1[0] = min(c.npanels, p0[0] + c.panel_block)

    cdef const char *next_input(self, Py_ssize_t task, const Call *call, int64_t *step) noexcept nogil:
        """Return the address of the input of the thread's next task, and the bytes that each prefetch of this task advances.

        ``step`` is 0 if this input is not contiguous. The address is that of the last tap, because earlier rows have read the
        inputs of the other taps.
        """
        cdef DirectClass *c
        cdef int64_t group, m0, m, p0, p1, ax, x = self.nd - 1, j, steps, tile
        self.place(task, &c, &group, &m0, &m, &p0, &p1)
        tile = self.k.mr[self.k.nr // self.k.vl]
        steps = max(1, convt_quotient((p1 - p0) * convt_quotient(m + tile - 1, tile) * c.pack.depth, self.k.pace))
        if c.pack.group_weights > self.far_bytes:
            steps = (steps + 1) // 2
        if call.back:
            task -= 1 if self.even else call.threads
        else:
            task += 1
            if task == convt_quotient(task, call.grab) * call.grab:  # the other threads take tasks in between
                task += (call.threads - 1) * call.grab
        step[0] = 0
        if task < 0 or task >= self.direct_tasks or self.in_c != 1 or self.in_stride.p[x] != self.ci:
            return call.src
        self.place(task, &c, &group, &m0, &m, &p0, &p1)
        if c.ntaps == 0:
            return call.src
        # An AMX tile prefetches one cache line at a time, other tiles as many as they read of A in the meantime.
        cdef int64_t most = 64 if self.k.parts else round64(tile * self.k.pace * self.k.e_size)
        step[0] = min(most, convt_quotient(m * self.ci * self.k.s_size + steps - 1, steps))
        cdef int64_t at = 0
        for ax in range(x, -1, -1):
            j = take_index(&m0, c.count[ax])
            at += (c.tap_in[(c.ntaps - 1) * self.nd + ax] + j) * self.in_stride.p[ax]
        return call.src + (at + m0 * self.in_n) * self.k.s_size

    cdef void locate(self, DirectClass *c, int64_t m0, int64_t m, char *dst, void **to, int64_t *coords,
                     int64_t *edge, bint unpacked) noexcept nogil:
        """Fill ``to``, ``coords`` and ``edge`` for the rows of a block.

        ``to`` receives output addresses, ``coords`` positions on each axis, and ``edge[r]`` the first row from r on at which
        some phase is outside the window (m or more if there is none). ``coords`` and ``edge`` are left out if nothing reads
        them.
        """
        cdef int nd = self.nd, ax
        cdef int64_t x = nd - 1, row = 0, n, i, at, batch = m0
        # An axis with one position may have any stride, so that a product with it could overflow.
        cdef int64_t step = self.stride.p[x] * self.out_stride.p[x] if c.count[x] > 1 else 0, bytes = step * self.k.s_size
        cdef int64_t j[64]
        cdef bint outside
        cdef char *first
        for ax in range(nd - 1, -1, -1):
            j[ax] = take_index(&batch, c.count[ax])
        while row < m:  # consecutive rows along the last axis
            n = min(c.count[x] - j[x], m - row)
            at = batch * self.out_n + step * j[x]
            for ax in range(x):
                if j[ax]:
                    at += self.stride.p[ax] * j[ax] * self.out_stride.p[ax]
            first = dst + at * self.k.s_size
            for i in range(n):
                to[row + i] = first
                first += bytes
            if not (unpacked and c.whole):
                for i in range(n):
                    for ax in range(x):
                        coords[(row + i) * nd + ax] = j[ax]
                    coords[(row + i) * nd + x] = j[x] + i
            if not c.whole:
                outside = False
                for ax in range(x):
                    outside |= j[ax] < c.inner[2 * ax] or j[ax] >= c.inner[2 * ax + 1]
                for i in range(n):
                    edge[row + i] = outside or j[x] + i < c.inner[2 * x] or j[x] + i >= c.inner[2 * x + 1]
            row += n
            j[x] += n
            for ax in range(x, 0, -1):
                if j[ax] == c.count[ax]:
                    j[ax] = 0
                    j[ax - 1] += 1
            if j[0] == c.count[0]:
                j[0] = 0
                batch += 1
        edge[m] = m
        for row in range(m - 1 if not c.whole else -1, -1, -1):
            edge[row] = row if edge[row] else edge[row + 1]

    cdef int64_t pack_rows(self, DirectClass *c, int64_t k0, int64_t kc, int64_t m0, int64_t m, int64_t *coords,
                           char *src, char *a, void **lines, void **reached, char *refused) noexcept nogil:
        """Pack depth [k0, k0 + kc) of rows [m0, m0 + m) into ``a``, with zeros outside the input.

        Return the number of packed rows of a sparse chunk, else 0. Loop order: consecutive rows along the last axis, then taps.
        Taps that are adjacent in memory are packed together. If ``reached`` is not NULL, the chunk is sparse and has one tap:
        rows that the tap does not reach are skipped, and ``reached`` receives the ``lines`` of the other rows.
        """
        cdef const convt_kernels *k = self.k
        cdef int nd = self.nd, ax
        cdef int64_t x = nd - 1
        cdef int64_t ci_p = convt_quotient(self.ci + k.kstep - 1, k.kstep) * k.kstep
        cdef int64_t pixels = 1
        for ax in range(nd):
            pixels *= c.count[ax]
        cdef int64_t row = 0, kept = 0, run, batch, tap, first, last, depth, lo, hi, i, at, cols, r, n
        cdef int64_t *j
        cdef int64_t *first_in
        cdef bint inside
        cdef char *to
        while row < m:
            j = coords + row * nd
            run = min(c.count[x] - j[x], m - row)
            batch = convt_quotient(m0 + row, pixels)
            depth = k0
            while depth < k0 + kc:
                tap = convt_quotient(depth, ci_p)
                first = depth - tap * ci_p
                last = min(ci_p, first + k0 + kc - depth)
                first_in = c.tap_in + tap * nd
                inside = True
                at = batch * self.in_n + first * self.in_c
                for ax in range(nd - 1):
                    i = first_in[ax] + j[ax]
                    if i < 0 or i >= self.in_size.p[ax]:
                        inside = False
                        break
                    at += i * self.in_stride.p[ax]
                i = first_in[x] + j[x]
                lo = min(run, max(0, -i)) if inside else 0
                hi = max(lo, min(run, self.in_size.p[x] - i)) if inside else 0
                cols = min(self.ci, last) - first
                n = 1
                while lo == 0 and hi == run and last < first + k0 + kc - depth and c.follows[tap + n] and (
                        i + run + n <= self.in_size.p[x]):
                    n += 1
                    last = min(n * ci_p, first + k0 + kc - depth)
                    cols = last - first
                to = a + ((row + lo if reached == NULL else kept) * self.lda + depth - k0) * k.e_size
                if hi > lo and not k.pack_far(to, self.lda, src + (at + (i + lo) * self.in_stride.p[x]) * k.s_size,
                                              self.in_stride.p[x], self.in_c, <int>(hi - lo), <int>cols, <int>(last - first)):
                    convt_set(refused)
                if reached == NULL:
                    for r in range(-lo, 0):
                        memset(to + r * self.lda * k.e_size, 0, (last - first) * k.e_size)
                    for r in range(hi - lo, run - lo):
                        memset(to + r * self.lda * k.e_size, 0, (last - first) * k.e_size)
                else:
                    for r in range(lo, hi):
                        reached[kept] = lines[row + r]
                        kept += 1
                depth += last - first
            row += run
        return kept

    cdef void store_pieces(self, DirectClass *c, int64_t *panel, int64_t r0, int64_t r1, void **to, int64_t *coords,
                           bint inside, char *scratch, const convt_act *act) noexcept nogil:
        """Store rows [r0, r1) of a tile in ``scratch`` into the output, each piece where it is inside the window.

        ``inside`` says that all pieces of all these rows are. ``act`` is applied. 16-bit outputs are rounded.
        """
        cdef const convt_kernels *k = self.k
        cdef int64_t width = 3 + 2 * self.nd, r, n
        cdef int64_t *piece
        cdef void *rows[MOST_ROWS]
        cdef bint some
        if inside and panel[1]:
            for r in range(r0, r1):
                rows[r - r0] = <char *>to[r] + panel[2] * k.s_size
            k.store(rows, self.out_c, scratch, k.nr, <int>(r1 - r0), <int>panel[0], act)
            return
        for n in range(panel[3], panel[4]):
            piece = c.pieces + n * width
            some = inside
            for r in range(r0, r1):
                rows[r - r0] = NULL
                if inside or within(piece + 3, coords + r * self.nd, self.nd):
                    rows[r - r0] = <char *>to[r] + piece[2] * k.s_size
                    some = True
            if some:
                k.store(rows, self.out_c, scratch + piece[0] * k.t_size, k.nr, <int>(r1 - r0), <int>piece[1], act)
