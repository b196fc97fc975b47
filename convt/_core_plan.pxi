# What all plans are: sizes and strides, which input rows reach an output row, tasks and their threads.
# Included by _core.pyx.

cdef struct Call:
    char *src
    char *dst
    char *weights
    char *bias
    char *source  # the filter itself, where tasks pack what they multiply
    char *refused  # set where a plan finds that its result may not be what a direct sum gives
    Py_ssize_t threads, grab  # how many tasks a thread takes at a time
    bint back  # last task first
    int64_t *deal_first  # a Deal; deal_tasks is NULL where there is none
    int64_t *deal_tasks


cdef class Deal:
    """Which tasks each of so many threads does: the next one goes to who is done first with those before."""
    cdef int threads
    cdef _Table first, tasks  # where each thread's start, and the last one's end

    def __init__(self, works, Py_ssize_t tasks, int threads):
        """``works`` lists (cycles of a task, how many), in the order of all the tasks."""
        assert sum(count for _, count in works) == tasks
        done = [(0.0, thread) for thread in range(threads)]
        dealt = [[] for _ in done]
        for work, count in works:
            for _ in range(count):
                end, thread = done[0]
                heapq.heapreplace(done, (end + work, thread))
                dealt[thread].append(sum(map(len, dealt)))
        self.threads = threads
        self.first, self.tasks = _Table(np.cumsum([0, *map(len, dealt)])), _Table(sum(dealt, []))


cdef inline int64_t take_index(int64_t *n, int64_t size) noexcept nogil:
    """The last index of a place counted across axes, of an axis of that size; ``n`` gets what counts the others."""
    cdef int64_t all = n[0]
    n[0] = convt_quotient(all, size)
    return all - n[0] * size


cdef struct Cut:
    # Some rows in equal parts of whole grains: how many each has, and how many parts, the first ones, have a grain more.
    int64_t rows, grain, height, taller


cdef inline Cut cut_evenly(int64_t rows, int64_t parts, int64_t grain) noexcept nogil:
    cdef Cut c
    cdef int64_t grains = rows
    if grain > 1:
        grains = convt_quotient(rows + grain - 1, grain)
    cdef int64_t each = grains
    if parts > 1:
        each = convt_quotient(grains, parts)
    c.rows, c.grain, c.height, c.taller = rows, grain, each * grain, grains - each * parts
    return c


cdef inline int64_t cut_at(const Cut *c, int64_t n) noexcept nogil:
    """Where the n-th part starts, and the one before it ends."""
    return min(c.rows, n * c.height + min(n, c.taller) * c.grain)


cdef class Plan:
    """What all algorithms share: kernels, sizes, strides, activation, workspace, the way to run."""
    cdef readonly str algorithm, isa
    cdef readonly str backend, tile
    cdef const convt_kernels *k
    cdef PackRecipe recipe
    cdef convt_act act, none
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace  # bytes per thread
    cdef readonly size_t passing  # more of them, for weights that tasks pack in passing, in calls that bring theirs; 0: not so
    cdef int nd
    cdef int64_t batch, groups, ci, co
    cdef _Table in_size, in_stride, out_stride, stride, kernel  # per spatial axis; strides in elements
    # Row algorithms: for each output of each axis but the last, the (tap, input index) pairs that reach it.
    cdef _Table outer_out, outer_start, outer_taps
    cdef int64_t out_rows, row_taps  # output rows of the batch; the most taps of one
    cdef int64_t in_n, in_c, out_n, out_c
    cdef bint beyond  # the output outgrows the caches
    cdef size_t boundary  # bytes of a vector, if every one of a row starts on a boundary where the output does; else 0
    cdef size_t streamed  # alignment that every output row must have to bypass the caches; 0 where it should not
    cdef bint even  # tasks take the same time: each thread then has the same ones at every call, and their lines in its cache
    cdef bint small  # too little work for a second thread
    cdef bint brief  # so little that weights are best found in the cache of the core that had them at the call before
    cdef list works  # (cycles of a task, tasks), class by class, where tasks are not even
    cdef Deal deal  # of the last call
    cdef bint back  # the call before went through its tasks from the last to the first
    cdef readonly bint hole  # there are outputs that no task writes, as no tap reaches their phase

    def __cinit__(self, *args, **kwargs):
        self.backend = "native"

    cdef _common(self, problem, PackRecipe recipe, in_strides, out_strides, bint hole, cycles):
        self.hole = hole
        self.recipe = recipe
        self.k = recipe.k
        self.isa = recipe.isa.name.decode()
        self.tile = f"{self.k.mr[self.k.nr // self.k.vl]}x{self.k.nr}"
        name, a, b = problem.activation
        self.act.code, self.act.a, self.act.b = _ACTIVATIONS[name], a, b
        if name == "relu":
            self.act.b = float("inf")
        self.nd = problem.rank
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        item = self.k.s_size
        ins, outs = [s // item for s in in_strides], [s // item for s in out_strides]
        self.in_size, self.stride = _Table(problem.in_sizes), _Table([min(s, 2**62) for s in problem.strides])
        self.kernel = _Table(problem.kernel)
        self.in_n, self.in_stride, self.in_c = ins[0], _Table(ins[1:self.nd + 1]), ins[self.nd + 1]
        self.out_n, self.out_stride, self.out_c = outs[0], _Table(outs[1:self.nd + 1]), outs[self.nd + 1]
        self.small = cycles < SMALL_CYCLES
        self.brief = problem.flops < BRIEF_FLOPS
        # Outputs that outgrow the caches are written around them, where every vector of a row starts on a boundary.
        cdef size_t vector = self.k.vl * self.k.t_size
        self.boundary = vector if all(s % vector == 0 for s in out_strides[:self.nd + 1]) else 0
        bytes_out = int(np.prod(problem.out_shape)) * item
        bytes_in = problem.batch * int(np.prod(problem.in_sizes)) * problem.groups * problem.ci * item
        limits = {"depthwise": PAST_BYTES - bytes_in, "matrix": PASSED_BYTES - bytes_in}
        self.beyond = bytes_out > limits.get(self.algorithm, STREAM_BYTES)
        self.streamed = self.boundary if self.beyond else 0

    cdef _outer(self, axes):
        """Tables of the axes but the last: ``axes[ax][output]`` lists (tap, input index)."""
        self.outer_out = _Table([len(axis) for axis in axes])
        starts, pairs = [], []
        self.out_rows, self.row_taps = self.batch, 1
        for axis in axes:
            self.out_rows *= len(axis)
            self.row_taps *= max([len(taps) for taps in axis], default=0)
            for taps in axis:
                starts.append(len(pairs))
                pairs += taps
        self.outer_start, self.outer_taps = _Table([*starts, len(pairs)]), _Table(pairs)

    cdef int64_t row_inputs(self, int64_t row, int64_t *taps, int64_t *src, int64_t *dst) noexcept nogil:
        """Which input rows reach an output row: fills ``taps`` with (input offset, tap of the outer axes), returns how many.

        ``src`` and ``dst`` get the offsets of the row's image and of the row in the output.
        """
        cdef int64_t count = 1, kernel = 1, axis_start = 0, ax, o, first, last, n, more
        cdef int64_t *pair
        for ax in range(self.nd - 1):
            axis_start += self.outer_out.p[ax]
        taps[0] = 0
        taps[1] = 0
        dst[0] = 0
        for ax in range(self.nd - 2, -1, -1):
            axis_start -= self.outer_out.p[ax]
            o = take_index(&row, self.outer_out.p[ax])
            dst[0] += o * self.out_stride.p[ax]
            first, last = self.outer_start.p[axis_start + o], self.outer_start.p[axis_start + o + 1]
            # Expand from the back, so that the entries still to be read are not overwritten.
            for more in range(last - first - 1, -1, -1):
                pair = self.outer_taps.p + 2 * (first + more)
                for n in range(count):
                    taps[2 * (more * count + n)] = taps[2 * n] + pair[1] * self.in_stride.p[ax]
                    taps[2 * (more * count + n) + 1] = taps[2 * n + 1] + pair[0] * kernel
            count *= last - first
            kernel *= self.kernel.p[ax]
        src[0] = row * self.in_n
        dst[0] += row * self.out_n
        return count

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        pass

    cdef void run_shares(self, Py_ssize_t thread, int team, const Call *call, char *ws) noexcept nogil:
        """A thread's tasks where each has its own: those it was dealt, or else a stretch of all; of a team that is smaller
        than it was to be, those of several threads."""
        cdef Py_ssize_t n, i, first, last
        while thread < call.threads:
            first = convt_quotient(thread * self.tasks, call.threads)
            last = convt_quotient((thread + 1) * self.tasks, call.threads)
            if call.deal_tasks != NULL:
                first, last = call.deal_first[thread], call.deal_first[thread + 1]
            for n in range(last - first):
                i = last - 1 - n if call.back else first + n
                self.run_task(i if call.deal_tasks == NULL else call.deal_tasks[i], call, ws)
            thread += team

    cpdef int threads(self, int available):
        """How many threads a run uses when ``available`` are allowed."""
        return 1 if self.small else max(1, min(available, self.tasks))

    def run(self, data, out, PackedFilter packed, int available, fill=None):
        """Compute; ``data`` and ``out`` are views in NXC order with the strides the plan was made for.

        ``fill`` is what outputs hold that no product reaches, for a plan with a ``hole``. False where the result
        is worthless, as the data made values that the algorithm can't be trusted with.
        """
        return self.compute(<char *>cnp.PyArray_DATA(data), <char *>cnp.PyArray_DATA(out), packed, available, out, fill)

    cdef compute(self, char *src, char *dst, PackedFilter packed, int available, out=None, fill=None):
        cdef int threads = self.threads(available)
        cdef size_t per_thread = _round64(self.workspace) + (_round64(self.passing) if packed.source != NULL else 0)
        cdef Buffer ws = _buffer(per_thread * threads, &_workspaces)
        cdef Py_ssize_t t
        cdef Py_ssize_t tasks = self.tasks
        cdef Call call
        cdef char refused = 0
        call.refused = &refused
        call.src, call.dst, call.weights, call.bias, call.source = src, dst, packed.weights, packed.bias, packed.source
        # Several neighbours at a time, which read much the same, yet few enough that the last ones even out.
        call.threads, call.grab = threads, tasks if self.even else max(1, convt_quotient(tasks, GRABS * threads))
        cdef Deal deal = self.deal
        call.deal_tasks = NULL
        if self.brief and not self.even and threads > 1:
            if deal is None or deal.threads != threads:
                self.deal = deal = Deal(self.works, tasks, threads)
            call.deal_first, call.deal_tasks = deal.first.p, deal.tasks.p
        if fill is not None:  # only now, as nothing is written where there is no memory
            out[...] = fill
        # Weights that a core's cache does not hold are read to and fro: first those that the call before read last.
        call.back = self.back = self.brief and packed.nbytes > FAR_BYTES and not self.back
        if threads > 1:
            if not _pool_used:
                _note_pool()
            with nogil, parallel(num_threads=threads):
                if self.k.enter != NULL:
                    self.k.enter()
                if self.even or self.brief:
                    self.run_shares(threadid(), convt_team_size(), &call, ws.data + threadid() * per_thread)
                else:
                    for t in prange(tasks, schedule="dynamic", chunksize=call.grab):
                        self.run_task(t, &call, ws.data + threadid() * per_thread)
                if self.k.leave != NULL:
                    self.k.leave()
        else:
            with nogil:
                if self.k.enter != NULL:
                    self.k.enter()
                self.run_shares(0, 1, &call, ws.data)
                if self.k.leave != NULL:
                    self.k.leave()
        return not refused
