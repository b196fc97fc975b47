# cython: language_level=3
"""A fast checksum of an array's values, which detects that weights changed after they were packed."""

from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

import numpy as np

from convt._core cimport run_jobs

from convt import _core

cnp.import_array()

cdef enum:
    BLOCK_BYTES = 1 << 16  # bytes that one thread sums at a time
    PARALLEL_BYTES = 1 << 18  # smaller arrays use one thread, because waking others takes longer than they save
    SAMPLES = 16  # samples of an array, of SAMPLE_BYTES each
    SAMPLE_BYTES = 1 << 10

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* Six independent chains of products hide the latency of a multiplication. A product depends on all bits of both factors,
     * so a change of one or more values, or of their order, leaves the sum unchanged only with a probability of 2^-64. */
    enum { CONVT_CHAINS = 6, CONVT_STEP = 16 * CONVT_CHAINS };

    static const uint64_t convt_keys[CONVT_CHAINS + 1] = {  /* random numbers */
        0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0xd6e8feb86659fd93u, 0xa0761d6478bd642fu,
        0xe7037ed1a0b428dbu, 0x8ebc6af09c88c6e3u,
    };

    static inline uint64_t convt_mix(uint64_t a, uint64_t b)
    {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }

    /* Unrolled to keep the chains in registers. */
    #define CONVT_EACH_CHAIN _Pragma("GCC unroll 6") for (int n = 0; n < CONVT_CHAINS; n++)

    static inline __attribute__((always_inline)) void convt_sum_step(uint64_t *chains, const char *p)
    {
        CONVT_EACH_CHAIN {
            uint64_t words[2];
            memcpy(words, p + 16 * n, sizeof words);
            chains[n] = convt_mix(words[0] ^ convt_keys[n], words[1] ^ chains[n]);
        }
    }

    /* Returns the checksum of block number `index` of an array; the block has `bytes` bytes. */
    static uint64_t convt_sum_block(const char *p, Py_ssize_t bytes, Py_ssize_t index)
    {
        uint64_t chains[CONVT_CHAINS], sum = convt_keys[CONVT_CHAINS] ^ (uint64_t)index;
        char rest[CONVT_STEP] = {0};
        Py_ssize_t at = 0;
        CONVT_EACH_CHAIN
            chains[n] = convt_keys[CONVT_CHAINS - n];
        for (; at + CONVT_STEP <= bytes; at += CONVT_STEP)
            convt_sum_step(chains, p + at);
        memcpy(rest, p + at, bytes - at);
        convt_sum_step(chains, rest);
        CONVT_EACH_CHAIN
            sum = convt_mix(sum ^ chains[n], convt_keys[n] + (uint64_t)bytes);
        return sum;
    }
    """
    uint64_t convt_sum_block(const char *p, Py_ssize_t bytes, Py_ssize_t index) noexcept nogil


cdef struct Parts:
    # An array and the number of its parts, for `sum_part`.
    const char *p
    Py_ssize_t bytes, blocks, parts


cdef uint64_t sum_part(void *given, int64_t part, size_t thread) noexcept nogil:
    """Return the sum of the checksums of the blocks of a part."""
    cdef Parts *a = <Parts *>given
    cdef uint64_t total = 0
    cdef Py_ssize_t n
    for n in range(a.blocks * part // a.parts, a.blocks * (part + 1) // a.parts):
        total += convt_sum_block(a.p + n * BLOCK_BYTES, min(<Py_ssize_t>BLOCK_BYTES, a.bytes - n * BLOCK_BYTES), n)
    return total


def checksum(array, int threads):
    """Return the checksum of an array's elements, an unsigned 64-bit integer.

    It does not depend on shape and dtype. Elements are read in memory order, so a transposed view of contiguous memory needs no
    copy. An axis of stride 0 is read once.
    """
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        array = in_memory_order(array)
    if _core.serial:
        threads = 1
    cdef uint64_t total
    cdef const char *p = <const char *>cnp.PyArray_DATA(array)
    cdef Py_ssize_t bytes = cnp.PyArray_NBYTES(array)
    with nogil:
        total = checksum_of_bytes(p, bytes, threads)
    return total


def samples(array):
    """Return the checksum of samples of an array's elements. If it differs, so does `checksum`."""
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        array = in_memory_order(array)
    return checksum_of_samples(<const char *>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array))


cdef uint64_t checksum_of_bytes(const char *p, Py_ssize_t bytes, int threads) noexcept nogil:
    """Return the checksum of contiguous memory."""
    cdef Parts parts
    parts.p, parts.bytes, parts.blocks = p, bytes, (bytes + BLOCK_BYTES - 1) // BLOCK_BYTES
    if bytes < PARALLEL_BYTES:
        threads = 1
    parts.parts = min(<Py_ssize_t>threads, parts.blocks)
    return run_jobs(sum_part, parts.parts, threads, &parts)


cdef uint64_t checksum_of_samples(const char *p, Py_ssize_t bytes) noexcept nogil:
    """Return the checksum of samples of contiguous memory, spread evenly. If it differs, so do the values."""
    cdef uint64_t total = 0
    cdef Py_ssize_t n, sample = min(<Py_ssize_t>SAMPLE_BYTES, bytes)
    for n in range(SAMPLES):
        total += convt_sum_block(p + (bytes - sample) * n // (SAMPLES - 1), sample, n)
    return total


cdef in_memory_order(array):
    """Return the elements of an array in memory order as a C-contiguous array: a view if possible, else a copy."""
    array = array[tuple(0 if step == 0 and size else slice(None) for size, step in zip(array.shape, array.strides))]
    axes = sorted(range(array.ndim), key=lambda ax: -abs(array.strides[ax]))
    return np.ascontiguousarray(array.transpose(axes))
