# A thread's share of the tasks: the numbers from `first` up to `last`, both of 32 bits in one integer of 64, which threads change
# without a lock. The owner takes from one end, threads that have nothing left to do from the other.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    static inline int64_t convt_share(int64_t first, int64_t last) { return (int64_t)((uint64_t)last << 32 | (uint64_t)first); }

    /* Sets a share, before any other thread knows it. */
    static inline void convt_give(int64_t *share, int64_t first, int64_t last) { *share = convt_share(first, last); }

    /* Takes `low` numbers from the beginning of a share and `high` from its end, one in all: what was taken, -1 if nothing was left. */
    static inline int64_t convt_take_of(int64_t *share, int low, int high)
    {
        int64_t old = __atomic_load_n(share, __ATOMIC_RELAXED), first, last;
        do {
            first = old & INT64_C(0xffffffff), last = (int64_t)((uint64_t)old >> 32);
            if (first >= last)
                return -1;
        } while (!__atomic_compare_exchange_n(share, &old, convt_share(first + low, last - high), 1, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
        return low ? first : last - 1;
    }
    #define convt_take_first(share) convt_take_of(share, 1, 0)
    #define convt_take_last(share) convt_take_of(share, 0, 1)
    """
    void convt_give(int64_t *share, int64_t first, int64_t last) noexcept nogil
    int64_t convt_take_first(int64_t *share) noexcept nogil
    int64_t convt_take_last(int64_t *share) noexcept nogil
