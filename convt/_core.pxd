# C interface of _core: kernels of the instruction set in use, threads, and the base class NativePlan of all native algorithms.

from libc.stdint cimport int64_t, uint64_t

from convt._run.kernels cimport convt_act, convt_isa, convt_kernels
from convt._run.memory cimport Buffer, Table


cdef const convt_isa *isa_in_use() noexcept
cdef const convt_kernels *kernels_of(str dtype, str unit=*)
cdef convt_act act_of(tuple activation)
cdef bint all_finite(const convt_kernels *k, array, int threads)
cpdef void note_pool()


ctypedef void (*Work)(void *job, size_t part) noexcept nogil

cdef struct ThreadPool:
    # A thread pool other than OpenMP's. `run` calls work(job, n) for every n below count, in parallel if possible.
    void (*run)(void *context, Work work, size_t count, void *job) noexcept nogil
    void *context

cdef void use_thread_pool(const ThreadPool *pool) noexcept nogil
cpdef void invalidate_known_calls()
cdef int64_t known_calls_version() noexcept nogil
cdef bint has_thread_scope() noexcept nogil
cdef void run_in_parallel(Work work, int count, void *job) noexcept nogil

ctypedef uint64_t (*Job)(void *context, int64_t job, size_t thread) noexcept nogil

cdef uint64_t run_jobs(Job work, int64_t count, int threads, void *context) noexcept nogil


cdef enum:
    BRIEF = 500000000  # operations below which a time slice of another process may take longer than the whole call

cdef struct RunArguments:
    # Addresses and the number of threads of one run of a plan.
    char *src
    char *dst
    char *weights
    char *bias
    char *source  # the filter if tasks pack weights on the fly, else NULL
    int threads
    int64_t *share_first  # tables of `BalancedShares`; share_tasks is NULL without them
    int64_t *share_tasks

cdef struct Call:
    # Data that all tasks of one call share.
    char *src
    char *dst
    char *weights
    char *bias
    char *source  # the filter if tasks pack weights on the fly, else NULL
    char *refused  # set by a task that finds values for which its algorithm is less accurate than a direct sum
    Py_ssize_t next_task  # first task that no thread has begun
    Py_ssize_t threads
    Py_ssize_t task_chunk  # number of tasks that a thread takes at a time
    bint backwards  # tasks run from the last to the first
    bint has_shares  # each thread has a share of the tasks, stored before its workspace; otherwise threads take the next tasks
    char *ws  # the workspaces of all threads, one after the other
    size_t bytes_per_thread
    int64_t *share_first  # tables of `BalancedShares`; share_tasks is NULL without them
    int64_t *share_tasks


cdef class BalancedShares:
    cdef int threads
    cdef Table first, tasks


cdef class PackedFilter:
    cdef Buffer memory
    cdef char *weights
    cdef char *bias
    cdef char *source
    cdef object filter  # owner of the memory at `source`, if it is not the caller's
    cdef public bint finite
    cdef readonly size_t nbytes


cdef class NativePlan:
    cdef public str algorithm  # set by the registry (convt.algorithms)
    cdef readonly str isa, backend, tile
    cdef const convt_kernels *k
    cdef convt_act act, none
    cdef readonly Py_ssize_t tasks
    cdef readonly size_t workspace
    cdef readonly size_t packing_workspace
    cdef readonly bint has_empty_phases
    cdef int nd
    cdef int64_t batch, groups, ci, co
    cdef Table in_size, in_stride, out_stride, stride, kernel
    cdef int64_t in_n, in_c, out_n, out_c
    cdef size_t non_temporal
    cdef bint equal_tasks, single_thread, pinned, alternate, brief
    cdef readonly list works
    cdef BalancedShares balanced_shares
    cdef Py_ssize_t run_count  # number of runs so far, of a plan that alternates

    cdef open_plan(self, problem, const convt_kernels *k, in_strides, out_strides, execution)
    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil
    cdef void run_tasks(self, Py_ssize_t thread, Call *call, char *ws) noexcept nogil
    cdef void run_all(self, const Call *call, char *ws) noexcept nogil
    cdef void run_share(self, Py_ssize_t owner, bint own, const Call *call, char *ws) noexcept nogil
    cdef void set_shares(self, Call *call) noexcept nogil
    cpdef int threads(self, int available)
    cdef Py_ssize_t task_chunk(self, int threads) noexcept nogil
    cdef BalancedShares balanced_shares_for(self, int threads)
    cpdef tuple task_shares(self, int available)
    cdef compute(self, char *src, char *dst, PackedFilter packed, int available, out, fill)
    cdef int brief_threads(self, int available) noexcept nogil
    cdef size_t bytes_per_thread(self, const RunArguments *run) noexcept nogil
    cdef size_t workspace_bytes(self, const RunArguments *run) noexcept nogil
    cdef bint run_with_workspace(self, char *ws, const RunArguments *run) noexcept nogil
