# Flags that threads set and read without a lock, by relaxed atomic operations.

cdef extern from *:
    """
    #define convt_set(flag) __atomic_store_n(flag, 1, __ATOMIC_RELAXED)
    #define convt_is_set(flag) __atomic_load_n(flag, __ATOMIC_RELAXED)
    """
    void convt_set(char *flag) noexcept nogil
    bint convt_is_set(const char *flag) noexcept nogil
