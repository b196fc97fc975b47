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

from convt._core cimport Call, NativePlan
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_KC,
    CONVT_LEAKY,
    MOST_ROWS,
    convt_act,
    convt_kernels,
    convt_prefetch_row_l1,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport keep_table, odd_line_stride, round64, structures
from convt.algorithms.indexing cimport Cut, cut_at, cut_evenly, is_inside, take_index
from convt.algorithms.packing cimport PackClass, PanelRecipe

cnp.import_array()

TILE_ROWS = MOST_ROWS


cdef class DirectPlan(NativePlan):
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
            c.follows_previous = keep_table(self.keep, np.zeros(c.ntaps, np.int64))
            if self.in_c == 1 and self.in_stride.p[x] == self.ci and self.ci % self.k.kstep == 0:
                for n in range(1, c.ntaps):
                    c.follows_previous[n] = c.tap_in[n * self.nd + x] == c.tap_in[(n - 1) * self.nd + x] + 1
                    for ax in range(x):
                        c.follows_previous[n] &= c.tap_in[n * self.nd + ax] == c.tap_in[(n - 1) * self.nd + ax]
            chunks = np.asarray(spec["chunks"], np.int64)
            c.nchunks = len(chunks)
            c.chunks = keep_table(self.keep, np.column_stack((chunks, chunks[:, 1] // self.k.prefetch_interval)))
            deepest = max(deepest, chunks[:, 1].max())
            c.npanels, c.panels = len(spec["panels"]), keep_table(self.keep, spec["panels"])
            c.pieces, c.boxes = keep_table(self.keep, spec["pieces"]), keep_table(self.keep, spec["boxes"])
            c.panel_block, c.panel_blocks = spec["panel_block"], spec["panel_blocks"]
            c.inner = keep_table(self.keep, spec["inner"])
            c.all_inside = all(lo <= 0 and hi >= count for (lo, hi), count in zip(spec["inner"], spec["count"]))
            pack, c.first_panel = spec["pack"]
            c.pack = &recipe.classes[<Py_ssize_t>pack]
            c.first_task = task
            c.ntasks = self.groups * c.blocks * c.panel_blocks
            task += c.ntasks
            self.works.append((spec["work"], c.ntasks))
            self.max_block = max(self.max_block, c.block)
            c.span, c.sparse = spec["span"], spec["sparse"]
            c.strided_rows, c.lda, c.in_place = spec["row_stride"]
            c.pair_rows, c.strip = spec["pair_rows"], spec["strip"]
            if not (self.find_strided_rows(c, 0, c.rows, NULL, NULL) and c.in_place):
                packed = max(packed, c.block * min(c.span, c.nchunks))
        self.lda = odd_line_stride(self.k, deepest)
        self.tasks = self.direct_tasks = task
        self.equal_tasks = self.nclasses == 1
        regions = tiles.workspace
        self.workspace = regions.bytes
        names = (
            "rows", "chunk_inputs", "out_rows", "sum_rows", "reached_rows", "reached_counts", "coords", "next_outside",
            "scratch", "sums",
        )
        for n, name in enumerate(names):
            (&self.region_at.rows)[n] = regions[name]
        cdef size_t rows = round64((packed + self.k.grain) * self.lda * self.k.e_size)
        # Rows that are read in place in contiguous data may be packed in data of other strides, which takes a larger region.
        if self.region_at.chunk_inputs - self.region_at.rows < rows:
            self.region_at.rows, self.workspace = self.workspace, self.workspace + rows

    cdef bint taps_contiguous(self, DirectClass *c, int64_t *chunk, int64_t *low, int64_t *high, int64_t *at) noexcept nogil:
        """Check whether a depth chunk is contiguous memory inside the input at every position in the box [low, high].

        ``at`` receives the input offset of the chunk at the first row of the class.
        """
        cdef int64_t ci = convt_quotient(self.ci + self.k.kstep - 1, self.k.kstep) * self.k.kstep
        cdef int64_t tap, ax, i, offset, first = convt_quotient(chunk[0], ci)
        for tap in range(first, convt_quotient(chunk[0] + chunk[1] - 1, ci) + 1):
            offset = chunk[0] - first * ci
            for ax in range(self.nd):
                i = c.tap_in[tap * self.nd + ax]
                if i + low[ax] < 0 or i + high[ax] >= self.in_size.p[ax]:
                    return False
                offset += i * self.in_stride.p[ax]
            if tap == first:
                at[0] = offset
            elif self.ci != ci or offset != at[0] + (tap - first) * ci:
                return False
        return True

    cdef bint find_strided_rows(self, DirectClass *c, int64_t m0, int64_t m, char *src, char **chunk_inputs) noexcept nogil:
        """Check whether the rows of a block have a constant stride in the input in all depth chunks.

        ``chunk_inputs``, unless NULL, receives for each chunk with such rows the address of the first row, and NULL for
        other chunks.
        """
        cdef int64_t ax, chunk, at, row = 0, batch = m0, last = m0 + m - 1
        cdef int64_t low[64]
        cdef int64_t high[64]
        cdef bint one_stride = c.strided_rows > 0 and convt_quotient(m0, c.strided_rows) == convt_quotient(last, c.strided_rows)
        cdef bint all_strided = True, same, strided
        for ax in range(self.nd - 1 if one_stride else -1, -1, -1):
            low[ax], high[ax] = take_index(&batch, c.count[ax]), take_index(&last, c.count[ax])
            row += low[ax] * self.in_stride.p[ax]
        row += batch * self.in_n
        same = batch == last
        for ax in range(self.nd if one_stride else 0):  # the bounding box of the rows
            if not same:
                low[ax], high[ax] = 0, c.count[ax] - 1
            same = same and low[ax] == high[ax]
        for chunk in range(c.nchunks):
            strided = one_stride and self.taps_contiguous(c, c.chunks + 4 * chunk, low, high, &at)
            all_strided = all_strided and strided
            if chunk_inputs != NULL:
                chunk_inputs[chunk] = src + (row + at) * self.k.s_size if strided else NULL
        return all_strided

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task in the loop order of the module docstring: a row block x a panel block of one class and group."""
        if convt_is_set(call.refused):  # the call is repeated, because another task found values that need a direct sum
            return
        cdef const convt_kernels *k = self.k
        cdef DirectTask w
        self.open_task(&w, task, call, ws)
        cdef DirectClass *c = w.c
        cdef int64_t start, end, strip, s0, s1, panels = w.p1 - w.p0
        # With one strip, a panel multiplies all rows before the next panel, so that the task reads each panel once. Vectors
        # always use one strip; AMX does if weights are large. With several strips, a strip is packed just before all panels
        # multiply it, so that whole output rows are written in one go. Several strips gain nothing if rows are read in place
        # and only once.
        cdef int64_t strips = convt_quotient(w.m + c.strip - 1, c.strip)
        if c.sparse or self.panel_major or w.source != NULL or (w.in_place and panels <= (2 if w.m <= c.pair_rows else 1)) or (
                panels * k.nr * c.pack.depth * k.e_size > self.near_bytes):
            strips = 1
        cdef Cut by_strip = cut_evenly(w.m, strips, w.max_tile_rows if c.strip > w.max_tile_rows else k.grain)
        for strip in range(strips):
            s0, s1 = cut_at(&by_strip, strip), cut_at(&by_strip, strip + 1)
            end = 0
            while end < c.nchunks:
                start, end = end, min(c.nchunks, end + c.span)
                self.pack_chunks(&w, start, end, s0, s1, call.refused)
                self.multiply_panels(&w, start, end, s0, s1, call.backwards)
        if w.t.pending != NULL:
            k.flush_stores(w.t.pending)
        if self.tile_non_temporal:
            k.fence()

    cdef void open_task(self, DirectTask *w, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Set the rows, panels, operands and workspace regions of a task."""
        cdef const convt_kernels *k = self.k
        cdef DirectClass *c
        cdef int64_t group, r
        self.locate_task(task, &w.c, &group, &w.m0, &w.m, &w.p0, &w.p1)
        c = w.c
        w.source = call.source + group * self.recipe.sg if call.source != NULL else NULL
        w.panel, w.refused = ws + round64(self.workspace), call.refused
        w.a, w.chunk_inputs = ws + self.region_at.rows, <char **>(ws + self.region_at.chunk_inputs)
        w.out_rows, w.sum_rows = <void **>(ws + self.region_at.out_rows), <void **>(ws + self.region_at.sum_rows)
        w.reached_rows = <void **>(ws + self.region_at.reached_rows)
        w.reached_counts = <int64_t *>(ws + self.region_at.reached_counts)
        w.coords, w.next_outside = <int64_t *>(ws + self.region_at.coords), <int64_t *>(ws + self.region_at.next_outside)
        w.scratch, w.sums = ws + self.region_at.scratch, ws + self.region_at.sums

        w.src = call.src + group * self.ci * self.in_c * k.s_size
        w.dst = call.dst + group * self.co * self.out_c * k.s_size
        cdef int64_t before = c.first_panel * k.nr
        w.weights = call.weights + c.pack.weights + group * c.pack.group_weights + before * c.pack.depth * k.e_size
        w.bias = call.bias + c.pack.bias + group * c.pack.group_bias + before * k.t_size
        cdef bint all_strided = self.find_strided_rows(c, w.m0, w.m, w.src, w.chunk_inputs)
        self.locate_rows(c, w.m0, w.m, w.dst, w.out_rows, w.coords, w.next_outside, all_strided)
        w.in_place = all_strided and c.in_place

        w.stride_a, w.stride_sums = c.block * self.lda * k.e_size, self.max_block * k.nr
        w.max_tile_rows = k.mr[2 if k.nr > k.vl else 1]
        w.can_store_direct = (k.direct_store or k.narrow_dtype) and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        for r in range(w.max_tile_rows):
            w.scratch_rows[r] = w.scratch + r * k.nr * k.t_size
        for r in range(w.m if c.nchunks > 1 else 0):
            w.sum_rows[r] = w.sums + r * k.nr * k.t_size
        w.pending.sums, w.pending.left = w.scratch + MOST_ROWS * k.nr * k.t_size, 0
        w.t.pending = &w.pending if self.tile_non_temporal and k.flush_stores != NULL and k.direct_store else NULL
        # Tiles prefetch into L2: the input of the thread's next task, a part with each tile, and the next weights if L2 does
        # not keep them.
        w.far_weights = c.pack.group_weights > self.far_bytes
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
            if w.chunk_inputs[chunk] != NULL:
                cols = ch[1] if self.ci == ci else min(ch[1], self.ci - ch[0] % ci)  # several unpadded taps, or a single tap
                if not (c.in_place or self.k.pack_uncached(
                        w.a + i * w.stride_a, self.lda, w.chunk_inputs[chunk] + s0 * c.lda * self.k.s_size, c.lda, 1,
                        <int>(s1 - s0), <int>cols, <int>ch[1])):
                    convt_set(refused)
            elif c.sparse and 0 < chunk < c.nchunks - 1:
                w.reached_counts[i] = self.pack_rows(c, ch[0], ch[1], w.m0, w.m, w.coords, w.src, w.a + i * w.stride_a,
                                                     w.sum_rows, w.reached_rows + i * c.block, refused)
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
        cdef int64_t chunk, n = w.p0, p, panel_count, sums_at, width, height, first_row, prefetching, next_panel, i, s2, tiles
        cdef int64_t r0, r1
        cdef int64_t panel_bytes = k.nr * c.pack.depth * k.e_size, cut_rows = -1, cut_height = 0
        cdef const char *next_b
        cdef int64_t *ch
        cdef int64_t *panel
        cdef char *rows
        cdef void **sum_rows  # addresses of the chunk's rows in the partial sums
        cdef Cut by_tile
        cdef bint simple  # tiles store all rows into the output, so that one kernel call can compute all tiles of a height
        while n < w.p1:
            # Few rows are multiplied by two panels at once, because more accumulators hide the latency of multiply-adds. At
            # little depth all rows are (Shape.order).
            p, panel_count = w.p0 + w.p1 - 1 - n if back else n, 1
            if w.m <= c.pair_rows and n + 1 < w.p1 and c.panels[5 * (p + (not back))] == k.nr:
                p, panel_count = p - back, 2
            n += panel_count
            panel = c.panels + 5 * p
            if panel[3] == panel[5 * panel_count - 1]:
                continue
            width = k.vl if panel[0] <= k.vl else k.nr
            t.nv = <int>(panel_count if width == k.vl else 2 * panel_count)
            t.cols = <int>(panel[0] if panel_count == 1 else 2 * k.nr)
            height = k.mr[t.nv] if panel_count == 1 else k.wide
            simple = c.all_inside and w.can_store_direct and panel[1] and panel[5 * panel_count - 4]
            sums_at = (p - w.p0 if c.span < c.nchunks else 0) * w.stride_sums
            for chunk in range(start, end):
                ch = c.chunks + 4 * chunk
                rows, t.lda, first_row = w.chunk_inputs[chunk], c.lda, 0
                if rows == NULL or not c.in_place:
                    rows, t.lda, first_row = w.a + (chunk - start) * w.stride_a, self.lda, s0
                t.kc = <int>ch[1]
                t.b = w.weights + p * panel_bytes + ch[2] * width * k.e_size
                t.b2 = <const char *>t.b + panel_bytes
                if w.source != NULL:
                    t.b, t.b2 = w.panel, w.panel + t.kc * width * k.e_size
                    for i in range(panel_count):
                        if self.recipe.pack_depth(c.pack, c.first_panel + p + i, ch[2], t.kc, w.source,
                                                  w.panel + i * t.kc * width * k.e_size):
                            convt_set(w.refused)
                prefetching = 0
                if w.far_weights and ch[3] and w.source == NULL:
                    prefetching = convt_quotient(t.kc * width * k.e_size + 64 * ch[3] - 1, 64 * ch[3])
                elif w.source != NULL:
                    prefetching = 2 * k.prefetch_interval
                # The first tiles prefetch the next weights: the panel's next chunk, or the first chunk of the next panel.
                next_panel, i = p, chunk + 1
                if i == end:
                    next_panel, i = p - panel_count if back else p + panel_count, start
                next_b = w.weights + next_panel * panel_bytes + c.chunks[4 * i + 2] * width * k.e_size
                if w.source != NULL:
                    next_b = self.recipe.source_at(
                        c.pack, max(0, c.first_panel + next_panel), 0, c.chunks[4 * i + 2], w.source)
                s2, sum_rows = s1, w.sum_rows
                if c.sparse and 0 < chunk < c.nchunks - 1:
                    s2, sum_rows = w.reached_counts[chunk - start], w.reached_rows + (chunk - start) * c.block
                if s2 - s0 != cut_rows or height != cut_height:  # rarely, because divisions are slow
                    cut_rows, cut_height = s2 - s0, height
                    tiles = convt_quotient(cut_rows + height - 1, height)
                    by_tile = cut_evenly(cut_rows, tiles, k.grain)
                i, r1 = 0, s0
                while i < tiles:
                    r0, r1, t.more_tiles = r1, s0 + cut_at(&by_tile, i + 1), 0
                    if simple and i >= prefetching and not k.parts:
                        t.more_tiles = <int>((by_tile.taller if i < by_tile.taller else tiles) - i - 1)
                        t.more_tiles -= s0 + cut_at(&by_tile, i + 1 + t.more_tiles) - r1 < t.more_tiles * (r1 - r0)
                    t.a = rows + (r0 - first_row) * t.lda * k.e_size
                    if i < prefetching and w.source != NULL:  # one line of each in-channel, then their next lines
                        t.prefetch_step = self.recipe.si * k.s_size
                        t.prefetch = next_b + i % k.prefetch_interval * ch[3] * t.prefetch_step + i // k.prefetch_interval * 64
                    elif i < prefetching:
                        t.prefetch, t.prefetch_step = next_b + i * 64 * ch[3], 64
                    else:
                        t.prefetch, t.prefetch_step = w.next_input, w.input_step
                        w.next_input += w.input_step * ch[3] * (1 + t.more_tiles)
                    t.init, t.init_ld = NULL, k.nr
                    if chunk == 0:
                        t.init, t.init_ld = w.bias + p * k.nr * k.t_size, 0
                        t.init2 = <const char *>t.init + k.nr * k.t_size
                    elif chunk == c.nchunks - 1:
                        t.init = w.sums + (sums_at + r0 * k.nr) * k.t_size
                        t.init2 = <const char *>t.init + w.stride_sums * k.t_size
                    if chunk < c.nchunks - 1:
                        t.act, t.stream, t.narrow_dtype = &self.none, 0, 0
                        t.rows, t.row_offset, t.row_offset2 = sum_rows + r0, sums_at, sums_at + w.stride_sums
                        k.tile(<int>(r1 - r0), t)
                    else:
                        self.compute_output_tile(w, p, panel_count, r0, r1)
                    i += 1 + t.more_tiles
                    r1 = s0 + cut_at(&by_tile, i)

    cdef void compute_output_tile(self, DirectTask *w, int64_t p, int64_t panel_count, int64_t r0, int64_t r1) noexcept nogil:
        """Compute the tile of rows [r0, r1) for the last depth chunk, and write its outputs.

        The tile stores rows into the output itself if it can. Rows of which some piece is outside the window go to `scratch`
        first; `store_pieces` then stores their pieces that are inside.
        """
        cdef const convt_kernels *k = self.k
        cdef DirectClass *c = w.c
        cdef convt_tile *t = &w.t
        cdef int64_t *panel = c.panels + 5 * p
        cdef int64_t r = r1 if c.all_inside else w.next_outside[r0], noutside = 0
        cdef bint inside = r >= r1
        cdef size_t first, second  # output addresses of the panels
        cdef void *saved_out_rows[MOST_ROWS]  # output addresses of the rows that the tile stores to `scratch`
        cdef int64_t outside_rows[MOST_ROWS]  # numbers of these rows
        t.act, t.stream, t.narrow_dtype = &self.none, 0, 0
        if k.narrow_dtype and panel_count == 1:  # the tile rounds its rows, so that none of them may go to `scratch`
            while r < r1 and is_inside(c.boxes + 2 * self.nd * p, w.coords + r * self.nd, self.nd):
                r = w.next_outside[r + 1]
            inside = r >= r1
        if not (w.can_store_direct and panel[1] and panel[5 * panel_count - 4] and (
                inside or (panel_count == 1 and not k.narrow_dtype))):
            if self.out_c == 1:
                self.prefetch_pieces(c, panel[3], panel[5 * panel_count - 1], w.out_rows, r0, r1)
            t.rows, t.row_offset, t.row_offset2 = w.scratch_rows, 0, w.max_tile_rows * k.nr
            k.tile(<int>(r1 - r0), t)
            for r in range(panel_count):
                self.store_pieces(c, panel + 5 * r, r0, r1, w.out_rows, w.coords, inside,
                                  w.scratch + r * w.max_tile_rows * k.nr * k.t_size, &self.act)
            return
        t.act, t.narrow_dtype = &self.act, k.narrow_dtype
        t.rows, t.row_offset, t.row_offset2 = w.out_rows + r0, panel[2], panel[5 * panel_count - 3]
        while r < r1:  # rows of which some piece is outside the window go to `scratch`
            if not is_inside(c.boxes + 2 * self.nd * p, w.coords + r * self.nd, self.nd):
                if noutside == 0 and t.pending != NULL:  # pending stores of the previous tile use w.out_rows, which changes
                    k.flush_stores(t.pending)
                saved_out_rows[noutside], outside_rows[noutside] = w.out_rows[r], r
                w.out_rows[r] = <char *>w.scratch_rows[r - r0] - panel[2] * k.s_size
                noutside += 1
            r = w.next_outside[r + 1]
        first, second = <size_t>(w.dst + panel[2] * k.s_size), <size_t>(w.dst + panel[5 * panel_count - 3] * k.s_size)
        t.stream = noutside == 0 and self.tile_non_temporal and not (first | second) & (self.tile_non_temporal - 1)
        k.tile(<int>(r1 - r0), t)
        while noutside:
            noutside -= 1
            r = outside_rows[noutside]
            w.out_rows[r] = saved_out_rows[noutside]
            self.store_pieces(c, panel, r, r + 1, w.out_rows, w.coords, False, <char *>w.scratch_rows[r - r0], &self.none)

    cdef void prefetch_pieces(self, DirectClass *c, int64_t first, int64_t last, void **out_rows, int64_t r0,
                              int64_t r1) noexcept nogil:
        """Prefetch output lines of pieces [first, last) of rows [r0, r1), because a tile that stores to `scratch` does not."""
        cdef int64_t width = 3 + 2 * self.nd, r, n
        for r in range(r0, r1):
            for n in range(first, last):
                convt_prefetch_row_l1(<char *>out_rows[r] + c.pieces[n * width + 2] * self.k.s_size,
                                      c.pieces[n * width + 1] * self.k.s_size)

    cdef void locate_task(self, Py_ssize_t task, DirectClass **class_out, int64_t *group, int64_t *m0, int64_t *m, int64_t *p0,
                          int64_t *p1) noexcept nogil:
        """Return the class, channel group, first row, number of rows, first panel and end of the panels of a task."""
        cdef DirectClass *c = self.classes
        while task >= c.first_task + c.ntasks:
            c += 1
        class_out[0] = c
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
        self.locate_task(task, &c, &group, &m0, &m, &p0, &p1)
        tile = self.k.mr[self.k.nr // self.k.vl]
        steps = max(1, convt_quotient((p1 - p0) * convt_quotient(m + tile - 1, tile) * c.pack.depth, self.k.prefetch_interval))
        if c.pack.group_weights > self.far_bytes:
            steps = (steps + 1) // 2
        if call.backwards:
            task -= 1 if self.equal_tasks else call.threads
        else:
            task += 1
            if task == convt_quotient(task, call.task_chunk) * call.task_chunk:  # the other threads take tasks in between
                task += (call.threads - 1) * call.task_chunk
        step[0] = 0
        if task < 0 or task >= self.direct_tasks or self.in_c != 1 or self.in_stride.p[x] != self.ci:
            return call.src
        self.locate_task(task, &c, &group, &m0, &m, &p0, &p1)
        if c.ntaps == 0:
            return call.src
        # An AMX tile prefetches one cache line at a time, other tiles as many as they read of A in the meantime.
        cdef int64_t most = 64 if self.k.parts else round64(tile * self.k.prefetch_interval * self.k.e_size)
        step[0] = min(most, convt_quotient(m * self.ci * self.k.s_size + steps - 1, steps))
        cdef int64_t at = 0
        for ax in range(x, -1, -1):
            j = take_index(&m0, c.count[ax])
            at += (c.tap_in[(c.ntaps - 1) * self.nd + ax] + j) * self.in_stride.p[ax]
        return call.src + (at + m0 * self.in_n) * self.k.s_size

    cdef void locate_rows(self, DirectClass *c, int64_t m0, int64_t m, char *dst, void **out_rows, int64_t *coords,
                          int64_t *next_outside, bint all_strided) noexcept nogil:
        """Fill ``out_rows``, ``coords`` and ``next_outside`` for the rows of a block.

        ``out_rows`` receives output addresses, ``coords`` positions on each axis, and ``next_outside[r]`` the first row from r
        on at which some phase is outside the window (m or more if there is none). ``coords`` and ``next_outside`` are left out
        if nothing reads them.
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
                out_rows[row + i] = first
                first += bytes
            if not (all_strided and c.all_inside):
                for i in range(n):
                    for ax in range(x):
                        coords[(row + i) * nd + ax] = j[ax]
                    coords[(row + i) * nd + x] = j[x] + i
            if not c.all_inside:
                outside = False
                for ax in range(x):
                    outside |= j[ax] < c.inner[2 * ax] or j[ax] >= c.inner[2 * ax + 1]
                for i in range(n):
                    next_outside[row + i] = outside or j[x] + i < c.inner[2 * x] or j[x] + i >= c.inner[2 * x + 1]
            row += n
            j[x] += n
            for ax in range(x, 0, -1):
                if j[ax] == c.count[ax]:
                    j[ax] = 0
                    j[ax - 1] += 1
            if j[0] == c.count[0]:
                j[0] = 0
                batch += 1
        next_outside[m] = m
        for row in range(m - 1 if not c.all_inside else -1, -1, -1):
            next_outside[row] = row if next_outside[row] else next_outside[row + 1]

    cdef int64_t pack_rows(self, DirectClass *c, int64_t k0, int64_t kc, int64_t m0, int64_t m, int64_t *coords,
                           char *src, char *a, void **sum_rows, void **reached_rows, char *refused) noexcept nogil:
        """Pack depth [k0, k0 + kc) of rows [m0, m0 + m) into ``a``, with zeros outside the input.

        Return the number of packed rows of a sparse chunk, else 0. Loop order: consecutive rows along the last axis, then taps.
        Taps that are adjacent in memory are packed together. If ``reached_rows`` is not NULL, the chunk is sparse and has one
        tap: rows that the tap does not reach are skipped, and ``reached_rows`` receives the ``sum_rows`` of the other rows.
        """
        cdef const convt_kernels *k = self.k
        cdef int nd = self.nd, ax
        cdef int64_t x = nd - 1
        cdef int64_t ci_p = convt_quotient(self.ci + k.kstep - 1, k.kstep) * k.kstep
        cdef int64_t pixels = 1
        for ax in range(nd):
            pixels *= c.count[ax]
        cdef int64_t row = 0, npacked = 0, nrows, batch, tap, first, last, depth, lo, hi, i, at, cols, r, n
        cdef int64_t *j
        cdef int64_t *first_in
        cdef bint inside
        cdef char *packed
        while row < m:
            j = coords + row * nd
            nrows = min(c.count[x] - j[x], m - row)
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
                lo = min(nrows, max(0, -i)) if inside else 0
                hi = max(lo, min(nrows, self.in_size.p[x] - i)) if inside else 0
                cols = min(self.ci, last) - first
                n = 1
                while lo == 0 and hi == nrows and last < first + k0 + kc - depth and c.follows_previous[tap + n] and (
                        i + nrows + n <= self.in_size.p[x]):
                    n += 1
                    last = min(n * ci_p, first + k0 + kc - depth)
                    cols = last - first
                packed = a + ((row + lo if reached_rows == NULL else npacked) * self.lda + depth - k0) * k.e_size
                if hi > lo and not k.pack_uncached(packed, self.lda, src + (at + (i + lo) * self.in_stride.p[x]) * k.s_size,
                                                   self.in_stride.p[x], self.in_c, <int>(hi - lo), <int>cols,
                                                   <int>(last - first)):
                    convt_set(refused)
                if reached_rows == NULL:
                    for r in range(-lo, 0):
                        memset(packed + r * self.lda * k.e_size, 0, (last - first) * k.e_size)
                    for r in range(hi - lo, nrows - lo):
                        memset(packed + r * self.lda * k.e_size, 0, (last - first) * k.e_size)
                else:
                    for r in range(lo, hi):
                        reached_rows[npacked] = sum_rows[row + r]
                        npacked += 1
                depth += last - first
            row += nrows
        return npacked

    cdef void store_pieces(self, DirectClass *c, int64_t *panel, int64_t r0, int64_t r1, void **out_rows, int64_t *coords,
                           bint inside, char *scratch, const convt_act *act) noexcept nogil:
        """Store rows [r0, r1) of a tile in ``scratch`` into the output, each piece where it is inside the window.

        ``inside`` says that all pieces of all these rows are. ``act`` is applied. 16-bit outputs are rounded.
        """
        cdef const convt_kernels *k = self.k
        cdef int64_t width = 3 + 2 * self.nd, r, n
        cdef int64_t *piece
        cdef void *rows[MOST_ROWS]
        cdef bint any_inside
        if inside and panel[1]:
            for r in range(r0, r1):
                rows[r - r0] = <char *>out_rows[r] + panel[2] * k.s_size
            k.store(rows, self.out_c, scratch, k.nr, <int>(r1 - r0), <int>panel[0], act)
            return
        for n in range(panel[3], panel[4]):
            piece = c.pieces + n * width
            any_inside = inside
            for r in range(r0, r1):
                rows[r - r0] = NULL
                if inside or is_inside(piece + 3, coords + r * self.nd, self.nd):
                    rows[r - r0] = <char *>out_rows[r] + piece[2] * k.s_size
                    any_inside = True
            if any_inside:
                k.store(rows, self.out_c, scratch + piece[0] * k.t_size, k.nr, <int>(r1 - r0), <int>piece[1], act)
