# cython: language_level=3
"""The heart: the instruction set in use, threads, and a Plan's life.

A Plan is made by an algorithm (see convt.algorithms) for one problem and the strides of its data and output. It holds flat
tables and runs on views in NXC axis order: `run` cuts the work into tasks, which threads compute by `run_task`, the loops of
the algorithm over the micro-kernels. Everything that can fail has been checked above; memory is taken before the parallel
region; a run only computes. Threads are OpenMP's, or a Pool of somebody else's that a caller named for its own thread.
"""

import heapq
import os

cimport cython
from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._flags cimport convt_is_set, convt_set
from convt._kernels cimport (
    CONVT_ACROSS, CONVT_DOTS, CONVT_DW_ORDERED, CONVT_DW_PRODUCTS, CONVT_DW_SOURCES, CONVT_DW_TERMS, CONVT_KC, CONVT_UNITS, convt_cache_bytes,
    convt_isa, convt_isa_at, convt_isa_available, convt_isa_count, convt_kernels, convt_quotient,
)
from convt._memory cimport Buffer, Table, round64, take_buffer, workspaces
from convt._shares cimport convt_give, convt_take_first, convt_take_last
from convt._team cimport convt_now, convt_team, convt_team_note, convt_team_of

cnp.import_array()

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    #define CONVT_OPENMP _OPENMP
    #define convt_team_size omp_get_num_threads
    #else
    #define CONVT_OPENMP 0
    #define convt_team_size() 1
    #endif
    #define convt_take(next, count) __atomic_fetch_add(next, count, __ATOMIC_RELAXED)
    #define convt_peek(next) __atomic_load_n(next, __ATOMIC_RELAXED)
    static __thread const void *convt_pool;  /* a Pool, or NULL */
    #ifdef __VERSION__
    #define CONVT_COMPILER __VERSION__
    #else
    #define CONVT_COMPILER "unknown"
    #endif
    """
    int CONVT_OPENMP
    Py_ssize_t convt_take(Py_ssize_t *next, Py_ssize_t count) noexcept nogil
    Py_ssize_t convt_peek(Py_ssize_t *next) noexcept nogil
    const void *convt_pool
    int convt_team_size() nogil
    const char *CONVT_COMPILER
    const char *CONVT_IDENTITY  # given by setup.py

_DTYPES = ("float32", "float64", "float16", "bfloat16")
UNITS = ("vectors", "dots", "amx", "amx_two", "amx_one")  # what multiplies: see kernels/convt_kernels.h
assert len(UNITS) == CONVT_UNITS
_ACTIVATIONS = {"none": 0, "clip": 1, "relu": 1, "leaky_relu": 2, "tanh": 3, "sigmoid": 4, "gelu": 5, "swish": 6}

# What the contract of the kernels (kernels/convt_kernels.h) limits plans to.
KC, ACROSS, DOTS = CONVT_KC, CONVT_ACROSS, CONVT_DOTS
DW_TERMS, DW_SOURCES, DW_ORDERED, DW_PRODUCTS = CONVT_DW_TERMS, CONVT_DW_SOURCES, CONVT_DW_ORDERED, CONVT_DW_PRODUCTS

cdef enum:
    GRABS = 32  # shares of a thread's tasks: several neighbouring tasks read much the same, but the last ones must even out
    FINITE_BYTES = 1 << 16  # that a thread looks at in one go
    SHARE_BYTES = 64  # before each thread's workspace: its share of the tasks, in a cache line of its own
    MOST_SHARED = 0x7fffffff  # tasks: a share holds two numbers of 32 bits


# ---------------------------------------------------------------- what this build and this CPU offer

def openmp():
    """The OpenMP version this build uses, as a string, or an empty one."""
    return str(CONVT_OPENMP) if CONVT_OPENMP else ""


def compiler():
    return CONVT_COMPILER.decode()


def identity():
    """The name of the compiled code: a hash of the kernels, their compiler and flags, and the text of the loops (setup.py)."""
    return CONVT_IDENTITY.decode()


def cache_bytes():
    """Bytes of this CPU's data caches, (L1 and L2 of a core, last level); those of a small CPU where it does not say."""
    return convt_cache_bytes(1) or 1 << 15, convt_cache_bytes(2) or 1 << 20, convt_cache_bytes(3) or 1 << 24


def isa_rows():
    """The instruction sets built, from least to most; whether this CPU can run them."""
    return [
        {"name": convt_isa_at(i).name.decode(), "available": bool(convt_isa_available(i))} for i in range(convt_isa_count())
    ]


cdef const convt_isa *_isa = NULL


def use_isa(str name):
    """Make later plans and packings use this instruction set; raises LookupError if it is not built or not there."""
    global _isa
    for i in range(convt_isa_count()):
        if convt_isa_at(i).name.decode() == name and convt_isa_available(i):
            _isa = convt_isa_at(i)
            return
    raise LookupError(name)


def isa():
    """The instruction set in use."""
    return _isa.name.decode()


cdef const convt_isa *isa_in_use() noexcept:
    return _isa


cdef const convt_kernels *_set_of(const convt_isa *isa, str dtype, str unit):
    cdef int index = _DTYPES.index(dtype), which = UNITS.index(unit)
    return &isa.set[which][index]


cdef const convt_kernels *kernels_of(str dtype, str unit="vectors"):
    """The kernels in use for a dtype, whose GEMM multiplies by a unit of UNITS."""
    return _set_of(_isa, dtype, unit)


def kernel_info(str dtype, str unit="vectors", str isa=None):
    """Tile and vector sizes of the kernels for a dtype, None where the CPU or the dtype has no such unit; of the instruction set in
    use, or of another one that was built, which this CPU need not have."""
    cdef const convt_isa *table = _isa
    for i in range(convt_isa_count() if isa is not None else 0):
        if convt_isa_at(i).name.decode() == isa:
            table = convt_isa_at(i)
    cdef const convt_kernels *k = _set_of(table, dtype, unit)
    if k.tile == NULL:
        return None
    return {
        "mr": [k.mr[i] for i in range(3)], "nr": k.nr, "vl": k.vl, "kstep": k.kstep, "s_size": k.s_size, "e_size": k.e_size,
        "t_size": k.t_size, "grain": k.grain, "lda": k.lda, "wide": k.wide, "parts": k.parts,
        "direct_store": bool(k.direct_store), "reach": k.reach if k.direct_store else 0,
    }


def fma_peak(str dtype, int threads, double seconds):
    """Measured peak of the multiply-add units used for a dtype: GFLOP/s of ``threads`` threads together."""
    cdef const convt_isa *table = _isa
    cdef int index = _DTYPES.index(dtype), t
    cdef double total = 0
    cdef int count = threads if CONVT_OPENMP and not forked() else 1
    if count > 1:
        note_pool()
    for t in prange(count, num_threads=count, nogil=True, schedule="static", chunksize=1):
        total += table.peak(index, seconds)
    return total * 1e-9


# ---------------------------------------------------------------- threads

# libgomp's pool does not survive a fork: a child of a process that has used it computes on one thread.
cdef char _pool_used = False  # threads that call at once all set it, without the GIL
_forked = False


cpdef void note_pool():
    """To be called before a parallel region: remembers that this process has an OpenMP pool."""
    convt_set(&_pool_used)


def _after_fork():
    global _forked
    _forked = convt_is_set(&_pool_used)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def forked():
    """Whether this process was forked from one whose thread pool was already running."""
    return _forked


cdef Py_ssize_t _forgotten = 0, _scopes = 0


cpdef void forget_known():
    """Calls without the GIL (convt.onnxruntime.known) must look anew: something that is kept was dropped, or threads are others."""
    convt_take(&_forgotten, 1)


def count_scopes(Py_ssize_t more):
    """Count a `num_threads` that begins (1) or ends (-1)."""
    convt_take(&_scopes, more)


cdef int64_t known_until() noexcept nogil:
    """A number that is another one after each `forget_known`."""
    return convt_peek(&_forgotten)


cdef bint scoped() noexcept nogil:
    """Whether some thread is inside a `num_threads`."""
    return convt_peek(&_scopes) != 0


cdef void use_pool(const Pool *pool) noexcept nogil:
    """Calls of this thread compute on a pool of somebody else's from now on; NULL: on OpenMP's."""
    global convt_pool
    convt_pool = pool


cdef convt_team _team  # how long regions of this process waited, and what threads saved


def team_sizes(int threads, regions):
    """How many threads brief calls would use after each of some regions, if they may use so many. Regions are listed as
    (threads, nanoseconds when it began, when its first thread was done, when all were)."""
    cdef convt_team team
    memset(&team, 0, sizeof(team))
    found = []
    for used, began, done, ended in regions:
        convt_team_note(&team, used, began, done, ended)
        found.append(convt_team_of(&team, threads, ended))
    return found


cdef void each_thread(Work work, int count, void *job) noexcept nogil:
    """Call work(job, n) for every n below ``count``, on a thread each where there are so many."""
    cdef const Pool *pool = <const Pool *>convt_pool
    cdef int n
    cdef int64_t times[2]  # when the region began, and when its first thread was done
    if count == 1:
        work(job, 0)
    elif pool != NULL:
        pool.run(pool.context, work, count, job)
    else:
        convt_set(&_pool_used)
        times[0] = convt_now()
        with parallel(num_threads=count):
            n = threadid()
            while n < count:  # a team may be smaller than asked for
                work(job, n)
                n = n + convt_team_size()
            if threadid() == 0:
                times[1] = convt_now()
        convt_team_note(&_team, count, times[0], times[1], convt_now())


cdef class Deal:
    """Which tasks each of a number of threads runs: the next task goes to the thread that is done first with those before."""

    def __init__(self, works, Py_ssize_t tasks, int threads):
        """``works`` lists (cycles of a task, how many), in the order of all the tasks."""
        assert sum(count for _, count in works) == tasks
        done = [(0.0, thread) for thread in range(threads)]
        dealt = [[] for _ in done]
        n = 0
        for work, count in works:
            for _ in range(count):
                end, thread = done[0]
                heapq.heapreplace(done, (end + work, thread))
                dealt[thread].append(n)
                n += 1
        self.threads = threads
        self.first, self.tasks = Table(np.cumsum([0, *map(len, dealt)])), Table(sum(dealt, []))


# ---------------------------------------------------------------- NaN and infinity

def finite(str dtype, array, int threads):
    """Whether no element of an array is NaN or infinite; any strides."""
    return all_finite(kernels_of(dtype), array, threads)


cdef bint all_finite(const convt_kernels *k, array, int threads):
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        # Most views are permutations of contiguous memory, which need no copy.
        axes = sorted(range(array.ndim), key=lambda ax: -abs(array.strides[ax]))
        array = np.ascontiguousarray(array.transpose(axes))
    cdef const char *p = <const char *>cnp.PyArray_DATA(array)
    cdef Py_ssize_t bytes = cnp.PyArray_NBYTES(array), blocks = (bytes + FINITE_BYTES - 1) // FINITE_BYTES, n
    cdef Py_ssize_t wrong = 0
    threads = <int>min(threads, blocks)
    if threads <= 1:
        return k.finite(p, bytes)
    note_pool()
    for n in prange(blocks, num_threads=threads, nogil=True, schedule="static"):
        wrong += not k.finite(p + n * FINITE_BYTES, min(<Py_ssize_t>FINITE_BYTES, bytes - n * FINITE_BYTES))
    return wrong == 0


# ---------------------------------------------------------------- plans

cdef class PackedFilter:
    """Weights and bias as the kernels of one instruction set read them; made by a recipe (convt.algorithms.packing).

    ``source`` is the filter itself where tasks pack weights on the fly: there are no packed weights then.
    """


cdef struct Job:
    # A call, as its threads need it.
    void *plan
    Call *call


cdef void run_part(void *given, size_t thread) noexcept nogil:
    """The part of a call that one thread does."""
    cdef Job *job = <Job *>given
    (<Plan>job.plan).run_tasks(thread, job.call, job.call.ws + thread * job.call.per_thread + SHARE_BYTES)


cdef class Plan:
    """What all native algorithms share: kernels, sizes, strides, activation, and the way tasks run.

    Strides are in elements. `workspace` is in bytes per thread; `packing_workspace` is what a thread needs beside it where tasks
    pack the weights of a one-shot call on the fly, 0 where they don't. Tasks that are ``even`` take the same time. Each thread
    begins with the same share of them at every call, because its cache may hold what they read, and takes tasks of the other
    threads' shares when its own are done, because another process may have delayed those threads. `works` lists (cycles of a
    task, tasks) where tasks differ.
    """

    def __cinit__(self, *args, **kwargs):
        self.backend = "native"

    cdef open_plan(self, str algorithm, problem, const convt_kernels *k, in_strides, out_strides, execution):
        """``execution`` is a convt.algorithms.execution.Execution: what was decided about threads, stores and holes."""
        self.algorithm, self.k, self.isa = algorithm, k, isa()
        self.tile = f"{k.mr[k.nr // k.vl]}x{k.nr}"
        name, a, b = problem.activation
        self.act.code, self.act.a, self.act.b = _ACTIVATIONS[name], a, b
        if name == "relu":
            self.act.b = float("inf")
        self.nd = problem.rank
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        ins, outs = [s // k.s_size for s in in_strides], [s // k.s_size for s in out_strides]
        self.in_size, self.stride = Table(problem.in_sizes), Table([min(s, 2**62) for s in problem.strides])
        self.kernel = Table(problem.kernel)
        self.in_n, self.in_stride, self.in_c = ins[0], Table(ins[1:self.nd + 1]), ins[self.nd + 1]
        self.out_n, self.out_stride, self.out_c = outs[0], Table(outs[1:self.nd + 1]), outs[self.nd + 1]
        self.hole, self.single_thread, self.pinned = execution.hole, execution.single_thread, execution.pinned
        self.alternate, self.non_temporal = execution.alternate, execution.non_temporal
        self.brief = problem.flops < BRIEF

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        pass

    cdef void run_tasks(self, Py_ssize_t thread, Call *call, char *ws) noexcept nogil:
        """Run a thread's share and then what is left of other shares, or the next tasks of all. ``ws`` is its workspace."""
        cdef Py_ssize_t first, n
        if self.k.enter != NULL:
            self.k.enter()
        if call.threads == 1:
            self.run_all(call, ws)
        elif call.shared:
            for n in range(call.threads):
                self.run_share((thread + n) % call.threads, n == 0, call, ws)
        else:
            first = convt_take(&call.next, call.grab)
            while first < self.tasks:
                for n in range(first, min(first + call.grab, self.tasks)):
                    self.run_task(n, call, ws)
                first = convt_take(&call.next, call.grab)
        if self.k.leave != NULL:
            self.k.leave()

    cdef void run_all(self, const Call *call, char *ws) noexcept nogil:
        """Run all tasks on one thread."""
        cdef Py_ssize_t n
        for n in range(self.tasks):
            self.run_task(self.tasks - 1 - n if call.back else n, call, ws)

    cdef void run_share(self, Py_ssize_t owner, bint own, const Call *call, char *ws) noexcept nogil:
        """Run what is left of a thread's share: the thread itself from one end, others from the other end."""
        cdef int64_t *share = <int64_t *>(call.ws + owner * call.per_thread)
        cdef int64_t at = convt_take_first(share) if own != call.back else convt_take_last(share)
        while at >= 0:
            self.run_task(at if call.deal_tasks == NULL else call.deal_tasks[at], call, ws)
            at = convt_take_first(share) if own != call.back else convt_take_last(share)

    cdef void give_shares(self, Call *call) noexcept nogil:
        """Give each thread its share: the tasks that were dealt to it, or a contiguous part of all."""
        cdef int64_t first, last = 0, thread
        for thread in range(call.threads):
            first = last
            last = convt_quotient((thread + 1) * self.tasks, call.threads)
            if call.deal_tasks != NULL:
                last = call.deal_first[thread + 1]
            convt_give(<int64_t *>(call.ws + thread * call.per_thread), first, last)

    cpdef int threads(self, int available):
        """How many threads a run uses when ``available`` are allowed."""
        return 1 if self.single_thread else max(1, min(available, self.tasks))

    cdef Py_ssize_t grab(self, int threads) noexcept nogil:
        """How many tasks a thread takes at a time."""
        return self.tasks if self.even else max(1, convt_quotient(self.tasks, GRABS * threads))

    cdef Deal deal_for(self, int threads):
        """The `Deal` of a call, or None where threads take the next tasks, or have a contiguous share each."""
        cdef Deal deal
        if not self.pinned or self.even or threads == 1:
            return None
        with cython.critical_section(self):  # calls of several threads make one, where there is no GIL
            deal = self.deal
            if deal is None or deal.threads != threads:
                self.deal = deal = Deal(self.works, self.tasks, threads)
        return deal

    cpdef tuple dealt(self, int available):
        """How tasks come to threads: ``(tasks that each thread begins with, 0)``, or ``(None, n)`` where each takes the next n again
        and again."""
        cdef int threads = self.threads(available), t
        cdef Deal deal = self.deal_for(threads)
        if deal is not None:
            bounds, tasks = deal.first.array.tolist(), deal.tasks.array.tolist()
        elif self.even or threads == 1:
            bounds, tasks = [t * self.tasks // threads for t in range(threads + 1)], list(range(self.tasks))
        else:
            return None, self.grab(threads)
        return [tasks[bounds[t]:bounds[t + 1]] for t in range(threads)], 0

    def run(self, data, out, PackedFilter packed, int available, fill=None):
        """Compute; ``data`` and ``out`` are views in NXC order with the strides the plan was made for.

        ``fill`` is what outputs hold that no product reaches, for a plan with a ``hole``. False where the result
        is worthless, as the data made values that the algorithm can't be trusted with.
        """
        return self.compute(<char *>cnp.PyArray_DATA(data), <char *>cnp.PyArray_DATA(out), packed, available, out, fill)

    cdef compute(self, char *src, char *dst, PackedFilter packed, int available, out, fill):
        """`run` on addresses."""
        cdef Run run
        run.src, run.dst, run.weights, run.bias, run.source = src, dst, packed.weights, packed.bias, packed.source
        run.threads = self.threads(self.brief_threads(available))
        cdef Deal deal = self.deal_for(run.threads)  # this reference keeps its tables until the call is over
        run.deal_tasks = NULL
        if deal is not None:
            run.deal_first, run.deal_tasks = deal.first.p, deal.tasks.p
        cdef Buffer ws = take_buffer(self.room(&run), workspaces())  # all that can fail of a call
        if fill is not None:
            out[...] = fill
        cdef bint done
        with nogil:
            done = self.run_in(ws.data, &run)
        return done

    cdef int brief_threads(self, int available) noexcept nogil:
        """How many of the threads that are available a call uses: fewer for a brief call while other processes delay some."""
        if self.brief and available > 1 and convt_pool == NULL:
            return convt_team_of(&_team, available, convt_now())
        return available

    cdef size_t per_thread(self, const Run *run) noexcept nogil:
        """Bytes of a thread's workspace, and of its share."""
        return SHARE_BYTES + round64(self.workspace) + (round64(self.packing_workspace) if run.source != NULL else 0)

    cdef size_t room(self, const Run *run) noexcept nogil:
        """Bytes of the workspace of a run."""
        return self.per_thread(run) * run.threads

    cdef bint run_in(self, char *ws, const Run *run) noexcept nogil:
        """Compute in a workspace; False where the result is worthless."""
        cdef Call call
        cdef char refused = 0
        cdef int threads = run.threads
        call.refused = &refused
        call.src, call.dst, call.weights, call.bias, call.source = run.src, run.dst, run.weights, run.bias, run.source
        call.next, call.threads, call.grab = 0, threads, self.grab(threads)
        call.deal_first, call.deal_tasks = run.deal_first, run.deal_tasks
        call.ws, call.per_thread = ws, self.per_thread(run)
        call.shared = threads > 1 and (self.even or self.pinned) and self.tasks <= MOST_SHARED
        if call.shared:
            self.give_shares(&call)
        # Weights that a core's cache does not hold are read forwards and backwards in turns: those that the call before read last
        # are still there.
        call.back = self.alternate and convt_take(&self.turns, 1) % 2
        cdef Job job
        job.plan, job.call = <void *>self, &call
        each_thread(run_part, threads, &job)
        return not refused
