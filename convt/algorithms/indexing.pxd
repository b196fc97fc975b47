# Counting across axes and cutting rows evenly: inline helpers of all loops.

from libc.stdint cimport int64_t

from convt._kernels cimport convt_quotient


cdef inline int64_t take_index(int64_t *n, int64_t size) noexcept nogil:
    """The last index of a position counted across axes, of an axis of that size; ``n`` gets what counts the other axes."""
    cdef int64_t all = n[0]
    n[0] = convt_quotient(all, size)
    return all - n[0] * size


cdef struct Cut:
    # Rows in even parts of whole grains: how many rows each part has, and how many parts, the first ones, have a grain more.
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


cdef inline bint within(int64_t *box, int64_t *at, int64_t nd) noexcept nogil:
    """Whether a position is inside a box, (low, high) per axis."""
    cdef int64_t ax
    for ax in range(nd):
        if at[ax] < box[2 * ax] or at[ax] >= box[2 * ax + 1]:
            return False
    return True


cdef inline int64_t steps_to(int64_t n, int64_t step) noexcept nogil:
    """The first multiple of a step that is n or more, in steps."""
    if step == 1:
        return n
    return convt_quotient(n + step - 1, step) if n > 0 else -convt_quotient(-n, step)
