# Memory: of calls that come and go, of outputs, and tables for the loops.
# Included by _core.pyx.

SPARE_WEIGHTS = 1 << 26  # bytes that are kept of those which held the weights of one-shot calls
cdef enum:
    SPARES = 8  # blocks of a kind that are kept for the next calls

cdef struct Spare:
    # Memory of calls that are over, oldest first; the GIL guards it.
    char *data[SPARES]
    size_t size[SPARES]
    Py_ssize_t count
    size_t bytes, most  # of all of them together, and how many there may be

cdef Spare _workspaces, _weights
_workspaces.most, _weights.most = <size_t>-1, SPARE_WEIGHTS


cdef char *_leave(Spare *spare, Py_ssize_t n) noexcept:
    """Take a block out of those kept."""
    cdef char *data = spare.data[n]
    spare.count -= 1
    spare.bytes -= spare.size[n]
    for n in range(n, spare.count):
        spare.data[n], spare.size[n] = spare.data[n + 1], spare.size[n + 1]
    return data


cdef class Buffer:
    """64-byte aligned memory of our own; with a ``home``, that of one call, which goes there afterwards."""
    cdef char *data
    cdef readonly size_t size
    cdef Spare *home

    def __dealloc__(self):
        cdef Spare *home = self.home
        if home == NULL or self.size > home.most:
            free(self.data)
            return
        while home.count == SPARES or home.bytes + self.size > home.most:
            free(_leave(home, 0))
        home.data[home.count], home.size[home.count] = self.data, self.size
        home.count += 1
        home.bytes += self.size


cdef Buffer _buffer(size_t size, Spare *home=NULL):
    """A Buffer of so many bytes or more: of what is spare the least that is enough, else new."""
    cdef Buffer buffer = Buffer.__new__(Buffer)
    cdef Py_ssize_t n, best = -1, largest = 0
    cdef void *p = NULL
    size = max(size, <size_t>64)
    cdef bint huge = size >= 2 * HUGE_BYTES
    if home != NULL:
        for n in range(home.count):
            if home.size[n] >= size and (best < 0 or home.size[n] < home.size[best]):
                best = n
            if home.size[n] > home.size[largest]:
                largest = n
        if best >= 0:
            buffer.home, buffer.size = home, home.size[best]
            buffer.data = _leave(home, best)
            return buffer
        if home.count and size <= home.most:  # the new one will do in its place
            free(_leave(home, largest))
    if posix_memalign(&p, HUGE_BYTES if huge else 64, size) != 0:
        raise MemoryError(f"workspace: {size} bytes are not to be had")
    if huge:  # touching new memory for the first time then takes a third of the time
        convt_huge(p, size)
    buffer.home, buffer.size, buffer.data = home, size, <char *>p
    return buffer


cdef inline size_t _round64(size_t n) noexcept nogil:
    return (n + 63) & ~<size_t>63


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(type subtype, cnp.dtype dtype, int nd, cnp.npy_intp *sizes, cnp.npy_intp *strides, void *data,
                                int flags, object like)


cpdef empty(tuple shape, cnp.dtype dtype):
    """np.empty on a cache line's boundary: NumPy promises less, and whole-line stores want more, as do threads that write
    neighbouring channels."""
    cdef cnp.npy_intp sizes[64]
    cdef cnp.npy_intp bytes = dtype.itemsize
    cdef int ax
    for ax in range(len(shape)):
        sizes[ax] = shape[ax]
        bytes *= sizes[ax]
    bytes += 64
    memory = cnp.PyArray_EMPTY(1, &bytes, cnp.NPY_UINT8, 0)
    cdef char *data = <char *>_round64(<size_t>cnp.PyArray_DATA(memory))
    Py_INCREF(dtype)  # the array takes it over
    result = PyArray_NewFromDescr(cnp.ndarray, dtype, len(shape), sizes, NULL, data, cnp.NPY_ARRAY_CARRAY, None)
    cnp.set_array_base(result, memory)
    return result


cdef class _Table:
    """A contiguous int64 table, from nested Python ints."""
    cdef object array
    cdef int64_t *p

    def __cinit__(self, values):
        self.array = np.ascontiguousarray(values, np.int64)
        if self.array.size:
            self.p = <int64_t *>cnp.PyArray_DATA(self.array)


cdef int64_t *_kept(list keep, values):
    """A table that lives as long as the list it is put into."""
    cdef _Table table = _Table(values)
    keep.append(table)
    return table.p


cdef inline void copy_past(const convt_kernels *k, char *to, const char *from_, size_t bytes) noexcept nogil:
    """A copy whose whole lines bypass the caches."""
    cdef size_t head = -<size_t>to & 63, lines
    if bytes < 128:
        memcpy(to, from_, bytes)
        return
    lines = (bytes - head) & ~<size_t>63
    memcpy(to, from_, head)
    k.stream(to + head, from_ + head, lines)
    memcpy(to + head + lines, from_ + head + lines, bytes - head - lines)


cdef int64_t _row_apart(const convt_kernels *k, int64_t depth):
    """Elements from row to row of a GEMM's packed input: an odd number of lines, or of a matrix's steps, which spreads rows over
    the sets of the caches."""
    cdef int64_t line = max(k.kstep, 64 // k.e_size)
    return ((depth + line - 1) // line | 1) * line


cdef size_t _apart(size_t bytes):
    """A distance of at least so many bytes that spreads what lies at its multiples over the sets of the caches: five lines more
    than a multiple of 4 KiB, or where it is short an odd number of them."""
    cdef size_t lines = _round64(bytes) // 64
    return (lines + (69 - lines % 64) % 64 if lines > 32 else lines | 1) * 64
