# cython: language_level=3
"""Passes over an output after it was computed: the addition of an array and the activation of the sum; slopes per channel."""

import math

from libc.stdint cimport int64_t

cimport numpy as cnp

import numpy as np

from convt._core cimport act_of, kernels_of, run_in_parallel
from convt._run.kernels cimport CONVT_LEAKY, convt_act, convt_kernels

cnp.import_array()

cdef enum:
    LEAST_BYTES = 1 << 16  # the fewest bytes that a thread adds if there are several
    LINE = 64  # bytes of a cache line, of which each thread writes whole ones


cdef struct Job:
    # An addition, for `add_part`.
    const convt_kernels *k
    const convt_act *act
    char *out
    const char *add
    int64_t count  # elements
    int64_t parts


cdef void add_part(void *given, size_t part) noexcept nogil:
    """Add one of the parts of an array."""
    cdef Job *job = <Job *>given
    cdef int64_t line = LINE // job.k.s_size, lines = (job.count + line - 1) // line
    cdef int64_t first = lines * <int64_t>part // job.parts * line, last = lines * <int64_t>(part + 1) // job.parts * line
    job.k.add(job.out + first * job.k.s_size, job.add + first * job.k.s_size, min(last, job.count) - first, job.act)


cdef struct PlanesJob:
    # The arguments of `slope_part`.
    const convt_kernels *k
    const double *slopes
    int64_t channels
    char *out
    int64_t planes
    int64_t plane  # elements
    int64_t parts


cdef void slope_part(void *given, size_t part) noexcept nogil:
    """Apply the slopes to one of the parts of the planes."""
    cdef PlanesJob *job = <PlanesJob *>given
    cdef int64_t n
    cdef convt_act act
    act.code, act.b = CONVT_LEAKY, 0
    for n in range(job.planes * <int64_t>part // job.parts, job.planes * <int64_t>(part + 1) // job.parts):
        act.a = job.slopes[n % job.channels]
        job.k.add(job.out + n * job.plane * job.k.s_size, NULL, job.plane, &act)


cdef class Addition:
    """The addition of an array to outputs of a dtype, and the activation ``(name, a, b)`` of the sums."""

    def __init__(self, str dtype, tuple activation):
        self.k, self.act = kernels_of(dtype), act_of(activation)

    def run(self, out, add, int threads):
        """Replace ``out`` by the activation of ``out + add``. Both arrays have the same strides, and no gaps."""
        cdef char *to = cnp.PyArray_BYTES(out)
        cdef char *given = cnp.PyArray_BYTES(add)
        cdef int64_t count = cnp.PyArray_SIZE(out)
        with nogil:
            self.compute(to, given, count, threads)

    cdef void compute(self, char *out, const char *add, int64_t count, int threads) noexcept nogil:
        """Do what `run` does for ``count`` contiguous elements."""
        cdef Job job
        job.k, job.act, job.out, job.add, job.count = self.k, &self.act, out, add, count
        job.parts = max(<int64_t>1, min(<int64_t>threads, count * self.k.s_size // LEAST_BYTES))
        run_in_parallel(add_part, <int>job.parts, &job)


cdef class Slopes:
    """A slope for each channel of a contiguous NCX output of a dtype: negative outputs are multiplied by it."""

    def __init__(self, str dtype, slopes):
        self.k, self.slopes = kernels_of(dtype), np.ascontiguousarray(slopes, np.float64)
        self.values = <const double *>cnp.PyArray_DATA(self.slopes)

    def run(self, out, int threads):
        """Apply the slopes to ``out``."""
        cdef char *to = cnp.PyArray_BYTES(out)
        cdef int64_t planes = out.shape[0] * out.shape[1], plane = math.prod(out.shape[2:])
        with nogil:
            self.compute(to, planes, plane, threads)

    cdef void compute(self, char *out, int64_t planes, int64_t plane, int threads) noexcept nogil:
        """Do what `run` does for ``planes`` planes of ``plane`` elements."""
        cdef PlanesJob job
        job.k, job.slopes, job.channels = self.k, self.values, cnp.PyArray_SIZE(self.slopes)
        job.out, job.planes, job.plane = out, planes, plane
        job.parts = max(<int64_t>1, min(<int64_t>threads, min(planes, planes * plane * self.k.s_size // LEAST_BYTES)))
        run_in_parallel(slope_part, <int>job.parts, &job)
