# cython: language_level=3
"""A node's shapes that were met, computed without Python and its lock.

A run that a node computed by Python leaves an entry: shapes, the plan and its packed weights, how many threads. The next run of the
same shape finds it with a few comparisons. An entry is used only while nothing has been dropped and no number of threads has
changed since (`convt._core.forget_known`); else Python computes, and makes a new one. An entry holds what it refers to: weights
that were dropped are freed when the node makes its next entry.

Threads may read an entry while another one wants to replace it. Readers count themselves; a writer that finds readers leaves the
entry as it is.
"""

from libc.stdint cimport int64_t

from .. import _config

cimport numpy as cnp

from convt._core cimport Deal, PackedFilter, Plan, Run, known_until, scoped
from convt._memory cimport give_block, take_block, workspaces
from convt._repeat cimport Bound, layout

cnp.import_array()

cdef extern from *:
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
    int64_t convt_enter(int64_t *users) noexcept nogil
    int64_t convt_leave(int64_t *users) noexcept nogil
    bint convt_begin_writing(int64_t *users) noexcept nogil
    int64_t convt_end_writing(int64_t *users) noexcept nogil


cdef class Known:
    """The entries of a node. ``held`` has what each of them refers to."""

    def __cinit__(self):
        cdef int n
        self.held, self.next = [None] * KNOWN, 0
        for n in range(KNOWN):
            self.entries[n].users, self.entries[n].until = 0, -1

    cdef learn(self, operator, data, out, int threads):
        """Leave an entry for a call of an operator that just computed ``out`` from ``data``; ``threads`` is the session's number,
        0 for convt's own."""
        cdef Entry *entry
        cdef int ax, rank = cnp.PyArray_NDIM(data)
        cdef int64_t until = known_until()
        cdef Bound bound
        cdef PackedFilter packed
        cdef Deal deal
        cdef int available = threads or _config.get_num_threads()
        if rank > KNOWN_RANK or (threads == 0 and scoped()):
            return
        found = operator._kept.get(layout(data, available))
        if found is None:
            return
        bound = <Bound>found
        weights = bound.form.weights()
        if bound.native is None or bound.fill is not None or type(weights) is not PackedFilter:
            return
        packed = weights
        cdef int n = self.place(rank, cnp.PyArray_DIMS(data), until)
        entry = &self.entries[n]
        if not convt_begin_writing(&entry.users):
            return  # another thread reads it
        entry.run.threads = bound.native.threads(available)
        deal = bound.native.deal_for(entry.run.threads)
        self.held[n] = bound, packed, deal
        entry.until, entry.rank, entry.own_threads = until, rank, threads != 0
        for ax in range(rank):
            entry.sizes[ax], entry.out_sizes[ax] = cnp.PyArray_DIMS(data)[ax], cnp.PyArray_DIMS(out)[ax]
        entry.bound, entry.plan = <void *>bound, <void *>bound.native
        entry.run.weights, entry.run.bias, entry.run.source = packed.weights, packed.bias, packed.source
        entry.run.deal_tasks = NULL
        if deal is not None:
            entry.run.deal_first, entry.run.deal_tasks = deal.first.p, deal.tasks.p
        entry.room = bound.native.room(&entry.run)
        convt_end_writing(&entry.users)

    cdef int place(self, int rank, const cnp.npy_intp *sizes, int64_t until):
        """Where the entry of a shape goes: to where it was, or to the next place. Entries that are not valid any more go."""
        cdef Entry *entry
        cdef int n, ax, found = -1
        cdef bint same
        for n in range(KNOWN):
            entry = &self.entries[n]
            same = <int>entry.rank == rank
            for ax in range(rank if same else 0):
                same = same and entry.sizes[ax] == sizes[ax]
            found = n if same else found
            if entry.until != until and convt_begin_writing(&entry.users):
                entry.until, self.held[n] = -1, None
                convt_end_writing(&entry.users)
        if found < 0:
            found = <int>self.next
            self.next = (self.next + 1) % KNOWN
        return found

    cdef Entry *find(self, size_t rank, const int64_t *sizes) noexcept nogil:
        """The entry of a shape, which stays as it is until `leave`; NULL where there is none to be used."""
        cdef Entry *entry
        cdef size_t ax
        cdef int n
        cdef bint same
        for n in range(KNOWN):
            entry = &self.entries[n]
            if convt_enter(&entry.users) < CONVT_WRITING and entry.until == known_until() and entry.rank == rank and (
                    entry.own_threads or not scoped()):
                same = True
                for ax in range(rank):
                    same = same and entry.sizes[ax] == sizes[ax]
                if same:
                    return entry
            convt_leave(&entry.users)
        return NULL


cdef void leave(Entry *entry) noexcept nogil:
    convt_leave(&entry.users)


cdef bint compute(Entry *entry, char *data, char *out) noexcept nogil:
    """Compute an entry's output; False where it is worthless, or where there is no memory for it."""
    cdef size_t got
    cdef Run run = entry.run
    cdef char *ws = take_block(entry.room, workspaces(), &got)
    cdef bint done
    if ws == NULL:
        return False
    run.src, run.dst = data, out
    done = (<Plan>entry.plan).run_in(ws, &run)
    give_block(ws, got, workspaces())
    (<Bound>entry.bound).touch_all()
    return done
