# A thread's share of the tasks: numbers from `first` to `last` - 1, two 32-bit integers in one 64-bit integer, which threads
# change without a lock. The owner takes tasks from one end; threads whose own share is done take tasks from the other end.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    static inline int64_t convt_share(int64_t first, int64_t last) { return (int64_t)((uint64_t)last << 32 | (uint64_t)first); }

    /* Sets a share, before other threads can access it. */
    static inline void convt_set_share(int64_t *share, int64_t first, int64_t last) { *share = convt_share(first, last); }

    /* Takes one number from the beginning (low 1, high 0) or the end (low 0, high 1) of a share. Returns it, or -1 if the share
     * is empty. */
    static inline int64_t convt_take_from(int64_t *share, int low, int high)
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
    #define convt_take_first(share) convt_take_from(share, 1, 0)
    #define convt_take_last(share) convt_take_from(share, 0, 1)
    """
    void convt_set_share(int64_t *share, int64_t first, int64_t last) noexcept nogil
    int64_t convt_take_first(int64_t *share) noexcept nogil
    int64_t convt_take_last(int64_t *share) noexcept nogil
