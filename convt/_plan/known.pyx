# cython: language_level=3
"""Calls seen before, which integrations compute without Python and the GIL, on buffers of their host."""

from libc.stdint cimport int64_t, uint64_t

from .._run import config

cimport numpy as cnp

from convt._core cimport BalancedShares, NativePlan, PackedFilter, RunArguments, has_thread_scope, known_calls_version
from convt._plan.repeat cimport PreparedCall, signature
from convt._run.memory cimport return_block, take_block, workspaces

cnp.import_array()

cdef extern from * nogil:
    """
    #define CONVT_WRITING (INT64_C(1) << 40)
    #define convt_enter(users) __atomic_fetch_add(users, 1, __ATOMIC_ACQUIRE)
    #define convt_leave(users) __atomic_fetch_sub(users, 1, __ATOMIC_RELEASE)
    static inline int convt_begin_writing(int64_t *users)
    {
        int64_t none = 0;
        return __atomic_compare_exchange_n(users, &none, CONVT_WRITING, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    }
    #define convt_end_writing(users) __atomic_fetch_sub(users, CONVT_WRITING, __ATOMIC_RELEASE)
    """
    const int64_t CONVT_WRITING
    int64_t convt_enter(int64_t *users) noexcept
    int64_t convt_leave(int64_t *users) noexcept
    bint convt_begin_writing(int64_t *users) noexcept
    int64_t convt_end_writing(int64_t *users) noexcept


cdef bint compute_entry(Entry *entry, char *data, char *out, const char *add) noexcept nogil:
    """Compute an entry's output; ``add`` is not NULL if the entry adds.

    Return False if the output is invalid, or if memory for the workspace is lacking.
    """
    cdef size_t got
    cdef RunArguments run = entry.run
    cdef char *ws = take_block(entry.workspace_bytes, workspaces(), &got)
    cdef bint done
    if ws == NULL:
        return False
    run.src, run.dst = data, out
    done = (<NativePlan>entry.plan).run_with_workspace(ws, &run)
    return_block(ws, got, workspaces())
    if done and entry.adds:
        (<PreparedCall>entry.call).add(out, add, run.threads)
    (<PreparedCall>entry.call).touch_all()
    return done


cdef void leave_entry(Entry *entry) noexcept nogil:
    """End the use of an entry that `Known.find` returned."""
    convt_leave(&entry.users)


cdef class Known:
    """Entries for calls of one operator, or of one place in a host's program, whose shapes were seen before.

    After Python computes a call, it writes an entry: the shapes, the plan, its packed weights and the number of threads. The
    next call of that shape finds the entry with a few comparisons. `convt._core.invalidate_known_calls` invalidates all entries
    when convt drops plans or packed weights, or when its number of threads changes. Python computes a call without a valid
    entry, and writes a new one. ``references`` keeps alive what entries refer to: dropped weights are freed when the next entry
    is written. Readers of an entry are counted; a writer that finds readers leaves the entry unchanged.
    """

    def __cinit__(self):
        cdef int n
        self.references, self.next = [None] * KNOWN, 0
        for n in range(KNOWN):
            self.entries[n].users, self.entries[n].version = 0, -1

    cdef remember(self, operator, data, out, int threads, bint adds, uint64_t weights):
        """Write an entry for an operator (`convt.ConvTranspose`) that just computed ``out`` from ``data``.

        ``threads`` is the host's number of threads, or 0 for convt's own number. ``adds`` says whether the call added an array
        of the output's shape. ``weights`` is 0, or identifies the operator among those of one `Known`. No entry is written if
        the call cannot be repeated without Python.
        """
        cdef Entry *entry
        cdef int ax, rank = cnp.PyArray_NDIM(data)
        cdef int64_t version = known_calls_version()
        cdef int64_t sizes[KNOWN_RANK]
        cdef PreparedCall call
        cdef PackedFilter packed
        cdef BalancedShares shares
        cdef int available = threads or config.get_num_threads()
        if rank > KNOWN_RANK or (threads == 0 and has_thread_scope()):
            return
        found = operator._plans.calls.entries.get(signature(data, available, adds))
        if found is None:
            return
        call = <PreparedCall>found
        form = call.form.weights()
        if call.native is None or call.fill is not None or type(form) is not PackedFilter:
            return
        packed = form
        for ax in range(rank):
            sizes[ax] = cnp.PyArray_DIMS(data)[ax]
        cdef int n = self.entry_index(rank, sizes, weights, version)
        entry = &self.entries[n]
        if not convt_begin_writing(&entry.users):
            return  # another thread uses the entry
        entry.run.threads = call.native.threads(available)
        shares = call.native.balanced_shares_for(entry.run.threads)
        self.references[n] = call, packed, shares
        entry.version, entry.rank, entry.fixed_threads, entry.adds = version, rank, threads != 0, adds
        entry.weights = weights
        for ax in range(rank):
            entry.sizes[ax], entry.out_sizes[ax] = sizes[ax], cnp.PyArray_DIMS(out)[ax]
        entry.call, entry.plan = <void *>call, <void *>call.native
        entry.run.weights, entry.run.bias, entry.run.source = packed.weights, packed.bias, packed.source
        entry.run.share_tasks = NULL
        if shares is not None:
            entry.run.share_first, entry.run.share_tasks = shares.first.p, shares.tasks.p
        entry.workspace_bytes = call.native.workspace_bytes(&entry.run)
        convt_end_writing(&entry.users)

    cdef int entry_index(self, int rank, const int64_t *sizes, uint64_t weights, int64_t version):
        """Return the index for the entry of a shape: of its present entry, or the next in turn. Clear invalid entries."""
        cdef Entry *entry
        cdef int n, ax, found = -1
        cdef bint same
        for n in range(KNOWN):
            entry = &self.entries[n]
            same = <int>entry.rank == rank and entry.weights == weights
            for ax in range(rank if same else 0):
                same = same and entry.sizes[ax] == sizes[ax]
            found = n if same else found
            if entry.version != version and convt_begin_writing(&entry.users):
                entry.version, self.references[n] = -1, None
                convt_end_writing(&entry.users)
        if found < 0:
            found = <int>self.next
            self.next = (self.next + 1) % KNOWN
        return found

    cdef Entry *find(self, size_t rank, const int64_t *sizes, uint64_t weights) noexcept nogil:
        """Return the entry of a shape, or NULL if there is no valid one. The entry does not change until `leave_entry`."""
        cdef Entry *entry
        cdef size_t ax
        cdef int n
        cdef bint same
        for n in range(KNOWN):
            entry = &self.entries[n]
            if convt_enter(&entry.users) < CONVT_WRITING and entry.version == known_calls_version() and entry.rank == rank and (
                    entry.fixed_threads or not has_thread_scope()):
                same = entry.weights == weights
                for ax in range(rank):
                    same = same and entry.sizes[ax] == sizes[ax]
                if same:
                    return entry
            convt_leave(&entry.users)
        return NULL
