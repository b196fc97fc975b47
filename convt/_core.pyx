# cython: language_level=3
"""Execution of plans: the instruction set in use, threads, tasks, and workspace.

An algorithm (see convt.algorithms) makes a plan for one problem and the strides of its data and output. A plan has flat tables
and runs on views in NXC axis order. `run` distributes its tasks to threads, which call `run_task`, the algorithm's loops over
the micro-kernels. Nothing can fail inside the parallel region, because arguments are checked and memory is allocated before it.
Threads are OpenMP's, or those of a ThreadPool that the calling thread has set.
"""

import heapq
import os

cimport cython
from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_DOTS,
    CONVT_DTYPES,
    CONVT_DW_ORDERED,
    CONVT_DW_PRODUCTS,
    CONVT_DW_SOURCES,
    CONVT_DW_TERMS,
    CONVT_KC,
    CONVT_PIXEL_LANES,
    CONVT_UNITS,
    convt_cache_bytes,
    convt_isa,
    convt_isa_at,
    convt_isa_available,
    convt_isa_count,
    convt_kernels,
    convt_quotient,
)
from convt._run.memory cimport Buffer, Table, round64, take_buffer, workspaces
from convt._run.shares cimport convt_set_share, convt_take_first, convt_take_last
from convt._run.team cimport convt_now, convt_team, convt_team_record, convt_team_threads, convt_worked

from convt._base.activation import ACTIVATIONS, numbers_of
from convt._base.dtypes import COMPUTED

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
    #if CONVT_OPENMP >= 201511
    /* Returns the number of places to which threads are bound: 0 if they are not, 1 if all share the place of the first. */
    static inline int convt_places(void)
    {
        const omp_proc_bind_t bind = omp_get_proc_bind();
        return bind == omp_proc_bind_false ? 0 : bind == omp_proc_bind_master ? 1 : omp_get_num_places();
    }
    #define convt_place_size omp_get_place_num_procs
    #define convt_place_cores omp_get_place_proc_ids
    #else
    #define convt_places() 0
    #define convt_place_size(place) 0
    #define convt_place_cores(place, cores)
    #endif
    #define convt_take(next, count) __atomic_fetch_add(next, count, __ATOMIC_RELAXED)
    #define convt_add convt_take
    #define convt_peek(next) __atomic_load_n(next, __ATOMIC_RELAXED)
    static __thread const void *convt_pool;  /* a ThreadPool, or NULL for OpenMP */
    #ifdef __VERSION__
    #define CONVT_COMPILER __VERSION__
    #else
    #define CONVT_COMPILER "unknown"
    #endif
    """
    int CONVT_OPENMP
    Py_ssize_t convt_take(Py_ssize_t *next, Py_ssize_t count) noexcept nogil
    uint64_t convt_add(uint64_t *sum, uint64_t more) noexcept nogil
    Py_ssize_t convt_peek(Py_ssize_t *next) noexcept nogil
    const void *convt_pool
    int convt_team_size() nogil
    int convt_places()
    int convt_place_size(int place)
    void convt_place_cores(int place, int *cores)
    const char *CONVT_COMPILER
    const char *CONVT_IDENTITY  # defined by setup.py

_DTYPES = [each.dtype.name for each in COMPUTED]
assert len(_DTYPES) == CONVT_DTYPES
UNITS = ("vectors", "dots", "amx", "amx_two", "amx_one")  # hardware units that multiply: see kernels/convt_kernels.h
assert len(UNITS) == CONVT_UNITS

# Limits of plans, from the interface of the kernels (kernels/convt_kernels.h).
KC, ACROSS, DOTS = CONVT_KC, CONVT_PIXEL_LANES, CONVT_DOTS
DW_TERMS, DW_SOURCES, DW_ORDERED, DW_PRODUCTS = CONVT_DW_TERMS, CONVT_DW_SOURCES, CONVT_DW_ORDERED, CONVT_DW_PRODUCTS

cdef enum:
    # Times that a thread takes tasks: few, because neighbouring tasks read the same data, but enough to balance threads.
    CHUNKS_PER_THREAD = 32
    FINITE_BYTES = 1 << 16  # bytes that a thread checks at a time
    SHARE_BYTES = 64  # bytes before each thread's workspace, a cache line for its share of the tasks
    MOST_SHARED = 0x7fffffff  # maximum number of tasks of a share, which holds two 32-bit numbers


# ---------------------------------------------------------------- build and CPU

def openmp():
    """Return the version of OpenMP in this build, or "" without OpenMP."""
    return str(CONVT_OPENMP) if CONVT_OPENMP else ""


def compiler():
    """Return the version of the C compiler."""
    return CONVT_COMPILER.decode()


def identity():
    """Return a hash of the compiled code: kernels, compiler, flags, and the source text of the loops (setup.py)."""
    return CONVT_IDENTITY.decode()


def cache_bytes():
    """Return the bytes of the data caches, (L1 of a core, L2 of a core, last level); 32 KiB, 1 MiB, 16 MiB where unknown."""
    return convt_cache_bytes(1) or 1 << 15, convt_cache_bytes(2) or 1 << 20, convt_cache_bytes(3) or 1 << 24


def isa_rows():
    """Return the instruction sets of this build in ascending order, and whether this CPU supports each."""
    return [
        {"name": convt_isa_at(i).name.decode(), "available": bool(convt_isa_available(i))} for i in range(convt_isa_count())
    ]


cdef const convt_isa *_isa = NULL


def use_isa(str name):
    """Set the instruction set of later plans and packings. Raise LookupError if the build or the CPU lacks it."""
    global _isa
    for i in range(convt_isa_count()):
        if convt_isa_at(i).name.decode() == name and convt_isa_available(i):
            _isa = convt_isa_at(i)
            return
    raise LookupError(name)


def isa():
    """Return the name of the instruction set in use."""
    return _isa.name.decode()


cdef const convt_isa *isa_in_use() noexcept:
    return _isa


cdef const convt_kernels *_set_of(const convt_isa *isa, str dtype, str unit):
    cdef int index = _DTYPES.index(dtype), which = UNITS.index(unit)
    return &isa.set[which][index]


cdef const convt_kernels *kernels_of(str dtype, str unit="vectors"):
    """Return the kernels of the instruction set in use for a dtype and a unit of UNITS."""
    return _set_of(_isa, dtype, unit)


def kernel_info(str dtype, str unit="vectors", str isa=None):
    """Return tile and vector sizes of the kernels for a dtype and a unit, or None if there are no such kernels.

    ``isa`` names an instruction set of this build, which this CPU need not support; None means the one in use.
    """
    cdef const convt_isa *table = _isa
    for i in range(convt_isa_count() if isa is not None else 0):
        if convt_isa_at(i).name.decode() == isa:
            table = convt_isa_at(i)
    cdef const convt_kernels *k = _set_of(table, dtype, unit)
    if k.tile == NULL:
        return None
    return {
        "mr": [k.mr[i] for i in range(3)], "nr": k.nr, "vl": k.vl, "kstep": k.kstep, "s_size": k.s_size, "e_size": k.e_size,
        "t_size": k.t_size, "m_step": k.m_step, "lda": k.lda, "wide": k.wide, "parts": k.parts,
        "direct_store": bool(k.direct_store), "reach": k.reach if k.direct_store else 0,
    }


def fma_peak(str dtype, int threads, double seconds, str unit=None):
    """Measure the peak of the multiply-adds of a unit, "vectors" or "dots": GFLOP/s of ``threads`` threads together.

    Without a unit, it is the larger peak of those that kernels of the dtype use.
    """
    if unit is None:
        units = [each for each in ("vectors", "dots") if kernel_info(dtype, each)] if dtype == "bfloat16" else ["vectors"]
        return max([fma_peak(dtype, threads, seconds, each) for each in units])
    cdef const convt_isa *table = _isa
    cdef int index = _DTYPES.index(dtype), on = UNITS.index(unit), t
    cdef double total = 0
    cdef int count = threads if not serial else 1
    if count > 1:
        note_pool()
    for t in prange(count, num_threads=count, nogil=True, schedule="static", chunksize=1):
        total += table.peak[on](index, seconds)
    return total * 1e-9


# ---------------------------------------------------------------- threads

def bound_cores():
    """Return the set of cores to which OpenMP binds its threads (OMP_PLACES, OMP_PROC_BIND), empty if it binds none."""
    found = set()
    for place in range(convt_places()):
        cores = np.empty(convt_place_size(place), np.intc)
        convt_place_cores(place, <int *>cnp.PyArray_DATA(cores))
        found.update(cores.tolist())
    return found


# Whether all calls run on one thread: in a build without OpenMP, and in the child of a process that has used libgomp's thread
# pool, which does not survive a fork.
serial = not CONVT_OPENMP
cdef char _pool_used = False  # concurrent calls set it without the GIL


cpdef void note_pool():
    """Record that this process uses an OpenMP pool. Call it before each parallel region."""
    convt_set(&_pool_used)


def _after_fork():
    global serial
    serial = serial or convt_is_set(&_pool_used)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


cdef Py_ssize_t _known_calls_version = 0, _scopes = 0


cpdef void invalidate_known_calls():
    """Invalidate what calls without the GIL (convt._plan.known) hold, after a cache or the number of threads changed."""
    convt_take(&_known_calls_version, 1)


def count_scopes(Py_ssize_t more):
    """Count a `num_threads` block that begins (``more`` is 1) or ends (-1)."""
    convt_take(&_scopes, more)


cdef int64_t known_calls_version() noexcept nogil:
    """Return a number that changes with each `invalidate_known_calls`."""
    return convt_peek(&_known_calls_version)


cdef bint has_thread_scope() noexcept nogil:
    """Check whether any thread is inside a `num_threads` block."""
    return convt_peek(&_scopes) != 0


cdef void use_thread_pool(const ThreadPool *pool) noexcept nogil:
    """Set the thread pool of all later calls by this thread; NULL means OpenMP's."""
    global convt_pool
    convt_pool = pool


cdef convt_team _team  # waits and savings of the parallel regions of this process


def team_sizes(int threads, regions):
    """Return the number of threads that a brief call would use after each of ``regions``, if up to ``threads`` are allowed.

    A region is (threads, begin, computing time of its first thread, end), with times in nanoseconds.
    """
    cdef convt_team team
    memset(&team, 0, sizeof(team))
    found = []
    for used, began, worked, ended in regions:
        convt_team_record(&team, used, began, worked, ended)
        found.append(convt_team_threads(&team, threads, ended))
    return found


cdef void run_in_parallel(Work work, int count, void *job) noexcept nogil:
    """Call work(job, n) for every n below ``count``, each on its own thread if there are enough."""
    cdef const ThreadPool *pool = <const ThreadPool *>convt_pool
    cdef int n
    cdef int64_t began
    cdef int64_t worked[2]  # computing time of this thread at the begin of the region, and when it is done
    if count == 1:
        work(job, 0)
    elif pool != NULL:
        pool.run(pool.context, work, count, job)
    else:
        convt_set(&_pool_used)
        began, worked[0] = convt_now(), convt_worked()
        with parallel(num_threads=count):
            n = threadid()
            while n < count:  # a team may be smaller than requested
                work(job, n)
                n = n + convt_team_size()
            if threadid() == 0:
                worked[1] = convt_worked()
        convt_team_record(&_team, count, began, worked[1] - worked[0], convt_now())


cdef struct Jobs:
    # The arguments of `run_jobs`, the next job that no thread has begun, and the sum of the results.
    Job work
    void *context
    int64_t count
    Py_ssize_t next
    uint64_t sum


cdef void take_jobs(void *given, size_t thread) noexcept nogil:
    """Do jobs until none is left."""
    cdef Jobs *jobs = <Jobs *>given
    cdef Py_ssize_t job = convt_take(&jobs.next, 1)
    cdef uint64_t sum = 0
    while job < jobs.count:
        sum += jobs.work(jobs.context, job, thread)
        job = convt_take(&jobs.next, 1)
    convt_add(&jobs.sum, sum)


cdef uint64_t run_jobs(Job work, int64_t count, int threads, void *context) noexcept nogil:
    """Return the sum of work(context, job, thread) for every job below ``count``.

    Up to ``threads`` threads take the jobs in order. ``thread`` is below ``threads``, and no two jobs have the same at once.
    """
    cdef Jobs jobs
    jobs.work, jobs.context, jobs.count, jobs.next, jobs.sum = work, context, count, 0, 0
    run_in_parallel(take_jobs, <int>max(<int64_t>1, min(<int64_t>threads, count)), &jobs)
    return jobs.sum


cdef class BalancedShares:
    """Shares of about equal cycles. Each task goes to the thread that is expected to finish its earlier tasks first."""

    def __init__(self, works, Py_ssize_t tasks, int threads):
        """``works`` lists (cycles of a task, number of such tasks), in the order of the tasks."""
        assert sum(count for _, count in works) == tasks
        done = [(0.0, thread) for thread in range(threads)]
        shares = [[] for _ in done]
        n = 0
        for work, count in works:
            for _ in range(count):
                end, thread = done[0]
                heapq.heapreplace(done, (end + work, thread))
                shares[thread].append(n)
                n += 1
        self.threads = threads
        self.first, self.tasks = Table(np.cumsum([0, *map(len, shares)])), Table(sum(shares, []))


# ---------------------------------------------------------------- NaN and infinity

def finite(str dtype, array, int threads):
    """Check that no element of an array is NaN or infinite. The array may have any strides."""
    return all_finite(kernels_of(dtype), array, threads)


cdef struct FiniteJob:
    # The arguments of `not_finite`.
    const convt_kernels *k
    const char *p
    Py_ssize_t bytes, blocks, parts


cdef uint64_t not_finite(void *given, int64_t part, size_t thread) noexcept nogil:
    """Return 1 if one of the parts of an array has NaN or infinity, else 0."""
    cdef FiniteJob *f = <FiniteJob *>given
    cdef Py_ssize_t first = f.blocks * part // f.parts * FINITE_BYTES, last = f.blocks * (part + 1) // f.parts * FINITE_BYTES
    return not f.k.finite(f.p + first, min(last, f.bytes) - first)


cdef bint all_finite(const convt_kernels *k, array, int threads):
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        # Most views are transposed contiguous arrays, which need no copy.
        axes = sorted(range(array.ndim), key=lambda ax: -abs(array.strides[ax]))
        array = np.ascontiguousarray(array.transpose(axes))
    cdef FiniteJob job
    job.k, job.p, job.bytes = k, <const char *>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array)
    job.blocks = (job.bytes + FINITE_BYTES - 1) // FINITE_BYTES
    job.parts = min(<Py_ssize_t>threads, job.blocks)
    cdef uint64_t wrong
    with nogil:
        wrong = run_jobs(not_finite, job.parts, threads, &job)
    return wrong == 0


# ---------------------------------------------------------------- plans

cdef class PackedFilter:
    """Packed weights and bias for the kernels of one instruction set, made by a recipe (convt.algorithms.packing).

    If tasks pack weights on the fly, ``source`` is the filter, and there are no packed weights.
    """


cdef convt_act act_of(tuple activation):
    """Return the kernels' form of an activation ``(name, a, b)``."""
    cdef convt_act act
    act.a, act.b = numbers_of(*activation)
    act.code = ACTIVATIONS[activation[0]].code
    return act


cdef struct PlanJob:
    # A plan and its call, for `run_part`.
    void *plan
    Call *call


cdef void run_part(void *given, size_t thread) noexcept nogil:
    """Run one thread's part of a call."""
    cdef PlanJob *job = <PlanJob *>given
    (<NativePlan>job.plan).run_tasks(thread, job.call, job.call.ws + thread * job.call.bytes_per_thread + SHARE_BYTES)


cdef class NativePlan:
    """Base class of all native plans: kernels, sizes, strides, activation, and the execution of tasks.

    Strides are in elements. `workspace` is in bytes per thread. `packing_workspace` is the additional number of bytes per
    thread if tasks pack the weights of a one-shot call on the fly, else 0. ``equal_tasks`` means that all tasks take the same
    time; otherwise `works` lists (cycles of a task, number of such tasks).

    With shares, each thread begins with the same tasks at every call, because its cache may still hold their data. When its
    share is done, it takes tasks from other shares, because another process may have delayed their threads.
    """

    def __cinit__(self, *args, **kwargs):
        self.backend = "native"

    cdef open_plan(self, problem, const convt_kernels *k, in_strides, out_strides, execution):
        """Initialise the plan. ``execution`` is an `execution.Execution`: decisions on threads, stores and empty phases."""
        self.k, self.isa = k, isa()
        self.tile = f"{k.mr[k.nr // k.vl]}x{k.nr}"
        self.act = act_of(problem.activation)
        self.nd = problem.rank
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        ins, outs = [s // k.s_size for s in in_strides], [s // k.s_size for s in out_strides]
        self.in_size, self.stride = Table(problem.in_sizes), Table([min(s, 2**62) for s in problem.strides])
        self.kernel = Table(problem.kernel)
        self.in_n, self.in_stride, self.in_c = ins[0], Table(ins[1:self.nd + 1]), ins[self.nd + 1]
        self.out_n, self.out_stride, self.out_c = outs[0], Table(outs[1:self.nd + 1]), outs[self.nd + 1]
        self.has_empty_phases, self.single_thread = execution.has_empty_phases, execution.single_thread
        self.pinned, self.alternate, self.non_temporal = execution.pinned, execution.alternate, execution.non_temporal
        self.brief = problem.flops < BRIEF

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute one task. Algorithms override this method."""
        pass

    cdef void run_tasks(self, Py_ssize_t thread, Call *call, char *ws) noexcept nogil:
        """Run a thread's share, then the rest of other shares; without shares, the next tasks. ``ws`` is its workspace."""
        cdef Py_ssize_t first, n
        if self.k.begin_tiles != NULL:
            self.k.begin_tiles()
        if call.threads == 1:
            self.run_all(call, ws)
        elif call.has_shares:
            for n in range(call.threads):
                self.run_share((thread + n) % call.threads, n == 0, call, ws)
        else:
            first = convt_take(&call.next_task, call.task_chunk)
            while first < self.tasks:
                for n in range(first, min(first + call.task_chunk, self.tasks)):
                    self.run_task(n, call, ws)
                first = convt_take(&call.next_task, call.task_chunk)
        if self.k.end_tiles != NULL:
            self.k.end_tiles()

    cdef void run_all(self, const Call *call, char *ws) noexcept nogil:
        """Run all tasks on one thread."""
        cdef Py_ssize_t n
        for n in range(self.tasks):
            self.run_task(self.tasks - 1 - n if call.backwards else n, call, ws)

    cdef void run_share(self, Py_ssize_t owner, bint own, const Call *call, char *ws) noexcept nogil:
        """Run the rest of the share of thread ``owner``: from one end for the owner, from the other end for other threads."""
        cdef int64_t *share = <int64_t *>(call.ws + owner * call.bytes_per_thread)
        cdef int64_t at = convt_take_first(share) if own != call.backwards else convt_take_last(share)
        while at >= 0:
            self.run_task(at if call.share_tasks == NULL else call.share_tasks[at], call, ws)
            at = convt_take_first(share) if own != call.backwards else convt_take_last(share)

    cdef void set_shares(self, Call *call) noexcept nogil:
        """Set each thread's share: its tasks of the `BalancedShares`, or an equal contiguous part of all tasks."""
        cdef int64_t first, last = 0, thread
        for thread in range(call.threads):
            first = last
            last = convt_quotient((thread + 1) * self.tasks, call.threads)
            if call.share_tasks != NULL:
                last = call.share_first[thread + 1]
            convt_set_share(<int64_t *>(call.ws + thread * call.bytes_per_thread), first, last)

    cpdef int threads(self, int available):
        """Return the number of threads of a run if up to ``available`` are allowed."""
        return 1 if self.single_thread else max(1, min(available, self.tasks))

    cdef Py_ssize_t task_chunk(self, int threads) noexcept nogil:
        """Return the number of tasks that a thread takes at a time."""
        return self.tasks if self.equal_tasks else max(1, convt_quotient(self.tasks, CHUNKS_PER_THREAD * threads))

    cdef BalancedShares balanced_shares_for(self, int threads):
        """Return the `BalancedShares` of a call, or None if threads take the next tasks or have contiguous shares."""
        cdef BalancedShares shares
        if not self.pinned or self.equal_tasks or threads == 1:
            return None
        with cython.critical_section(self):  # without a GIL, concurrent calls must make only one
            shares = self.balanced_shares
            if shares is None or shares.threads != threads:
                self.balanced_shares = shares = BalancedShares(self.works, self.tasks, threads)
        return shares

    cpdef tuple task_shares(self, int available):
        """Return how tasks are distributed: ``(list of each thread's first tasks, 0)``, or ``(None, n)``.

        n is the number of tasks that a thread takes at a time if there are no shares.
        """
        cdef int threads = self.threads(available), t
        cdef BalancedShares shares = self.balanced_shares_for(threads)
        if shares is not None:
            bounds, tasks = shares.first.array.tolist(), shares.tasks.array.tolist()
        elif self.equal_tasks or threads == 1:
            bounds, tasks = [t * self.tasks // threads for t in range(threads + 1)], list(range(self.tasks))
        else:
            return None, self.task_chunk(threads)
        return [tasks[bounds[t]:bounds[t + 1]] for t in range(threads)], 0

    def run(self, data, out, PackedFilter packed, int available, fill=None):
        """Compute ``out`` from ``data``, views in NXC order with the strides of the plan.

        ``fill`` is the value of outputs without products, for a plan that has empty phases. Return False, with an invalid
        output, if the data has values for which the algorithm is not accurate.
        """
        return self.compute(<char *>cnp.PyArray_DATA(data), <char *>cnp.PyArray_DATA(out), packed, available, out, fill)

    cdef compute(self, char *src, char *dst, PackedFilter packed, int available, out, fill):
        """Do what `run` does, on addresses of data and output."""
        cdef RunArguments run
        run.src, run.dst, run.weights, run.bias, run.source = src, dst, packed.weights, packed.bias, packed.source
        run.threads = self.threads(self.brief_threads(available))
        cdef BalancedShares shares = self.balanced_shares_for(run.threads)  # keeps its tables alive during the call
        run.share_tasks = NULL
        if shares is not None:
            run.share_first, run.share_tasks = shares.first.p, shares.tasks.p
        cdef Buffer ws = take_buffer(self.workspace_bytes(&run), workspaces())  # the only step of a call that can fail
        if fill is not None:
            out[...] = fill
        cdef bint done
        with nogil:
            done = self.run_with_workspace(ws.data, &run)
        return done

    cdef int brief_threads(self, int available) noexcept nogil:
        """Return the number of available threads for a call: fewer for a brief call while other processes delay threads."""
        if self.brief and available > 1 and convt_pool == NULL:
            return convt_team_threads(&_team, available, convt_now())
        return available

    cdef size_t bytes_per_thread(self, const RunArguments *run) noexcept nogil:
        """Return the bytes of a thread's share and workspace."""
        return SHARE_BYTES + round64(self.workspace) + (round64(self.packing_workspace) if run.source != NULL else 0)

    cdef size_t workspace_bytes(self, const RunArguments *run) noexcept nogil:
        """Return the bytes of the workspaces of all threads of a run."""
        return self.bytes_per_thread(run) * run.threads

    cdef bint run_with_workspace(self, char *ws, const RunArguments *run) noexcept nogil:
        """Compute with a given workspace. Return False if the output is invalid."""
        cdef Call call
        cdef char refused = 0
        cdef int threads = run.threads
        call.refused = &refused
        call.src, call.dst, call.weights, call.bias, call.source = run.src, run.dst, run.weights, run.bias, run.source
        call.next_task, call.threads, call.task_chunk = 0, threads, self.task_chunk(threads)
        call.share_first, call.share_tasks = run.share_first, run.share_tasks
        call.ws, call.bytes_per_thread = ws, self.bytes_per_thread(run)
        call.has_shares = threads > 1 and (self.equal_tasks or self.pinned) and self.tasks <= MOST_SHARED
        if call.has_shares:
            self.set_shares(&call)
        # Calls alternately read weights forwards and backwards if these exceed a core's cache, which then still holds the
        # weights that the previous call read last.
        call.backwards = self.alternate and convt_take(&self.run_count, 1) % 2
        cdef PlanJob job
        job.plan, job.call = <void *>self, &call
        run_in_parallel(run_part, threads, &job)
        return not refused
