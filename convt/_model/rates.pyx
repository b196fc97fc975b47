# cython: language_level=3
"""Measurements of this CPU's rates, for the machine file of ``python -m convt calibrate``.

The module is compiled for any CPU. The loops for each vector width are separate functions, with a target attribute for the
instructions that they need.
"""

from cython.parallel cimport prange
from libc.string cimport memset

import numpy as np

from convt._core cimport kernels_of, note_pool, run_in_parallel
from convt._run.kernels cimport CONVT_MOST_ROWS, convt_act, convt_kernels, convt_tile
from convt._run.memory cimport round64

cdef extern from *:
    """
    #include <stddef.h>
    #include <time.h>

    #define convt_take_one(next) __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)

    enum { RATE_READ, RATE_WRITE, RATE_STREAM, RATE_CLOCK, RATE_CHAIN, RATE_PRODUCTS };

    /* Computes 20,000 dependent integer additions, one per cycle. */
    static void rate_clock(void)
    {
        size_t x = 1;
        for (int n = 0; n < 2000; n++)
            _Pragma("GCC unroll 10") for (int i = 0; i < 10; i++) { /* a loop of one addition would wait for its branch */
                x += (size_t)n;
                __asm__ volatile("" : "+r"(x));
            }
    }

    /* Defines a function that reads and sums, or writes, `count` floats, a multiple of eight vectors, or that computes 20,000
     * dependent multiply-adds. */
    #define RATE_LOOPS(name, target, V, VL, load, store, stream, add, fma, set1, fence)            \\
        target static void name(int what, float *data, size_t count)                               \\
        {                                                                                          \\
            V sum[8], x = set1(0.5f);                                                              \\
            for (int i = 0; i < 8; i++)                                                            \\
                sum[i] = set1(1.0f);                                                               \\
            if (what == RATE_READ)                                                                 \\
                for (size_t n = 0; n < count; n += 8 * VL)                                         \\
                    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) sum[i] = add(sum[i], load(data + n + i * VL)); \\
            else if (what == RATE_WRITE)                                                           \\
                for (size_t n = 0; n < count; n += 8 * VL)                                         \\
                    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) store(data + n + i * VL, sum[i]); \\
            else if (what == RATE_STREAM) {                                                        \\
                for (size_t n = 0; n < count; n += 8 * VL)                                         \\
                    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) stream(data + n + i * VL, sum[i]); \\
                fence();                                                                           \\
            } else                                                                                 \\
                for (int n = 0; n < 20000; n++)                                                    \\
                    x = fma(x, sum[0], sum[1]);                                                    \\
            volatile V sink = x;                                                                   \\
            for (int i = 0; i < 8; i++)                                                            \\
                sink = sum[i]; /* keeps the sums alive */                                          \\
            (void)sink;                                                                            \\
        }

    #if defined(__x86_64__)
    #include <immintrin.h>
    #define MUL_ADD_128(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
    RATE_LOOPS(rate_128, , __m128, 4, _mm_loadu_ps, _mm_storeu_ps, _mm_stream_ps, _mm_add_ps, MUL_ADD_128, _mm_set1_ps, _mm_sfence)
    RATE_LOOPS(rate_256, __attribute__((target("avx2,fma"))), __m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps,
               _mm256_add_ps, _mm256_fmadd_ps, _mm256_set1_ps, _mm_sfence)
    RATE_LOOPS(rate_512, __attribute__((target("avx512f"))), __m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps,
               _mm512_add_ps, _mm512_fmadd_ps, _mm512_set1_ps, _mm_sfence)

    /* Computes 20,000 products of AMX tiles with four accumulators in turn, as the kernels do. */
    #if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
    __attribute__((target("amx-tile,amx-bf16"))) static int rate_products(void)
    {
        static const struct {
            unsigned char palette, start, reserved[14];
            unsigned short bytes[16];
            unsigned char rows[16];
        } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
        _tile_loadconfig(&shapes);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_zero(4);
        _tile_zero(5);
        for (int n = 0; n < 5000; n++) {
            _tile_dpbf16ps(0, 4, 5);
            _tile_dpbf16ps(1, 4, 5);
            _tile_dpbf16ps(2, 4, 5);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_release();
        return 1;
    }
    #else
    static int rate_products(void) { return 0; }
    #endif
    #else
    typedef float rate_v __attribute__((vector_size(16), aligned(4)));
    #define RATE_LOAD(p) (*(const rate_v *)(p))
    #define RATE_STORE(p, v) (*(rate_v *)(p) = (v))
    #define RATE_ADD(a, b) ((a) + (b))
    #define RATE_MUL_ADD(a, b, c) ((a) * (b) + (c))
    #define RATE_SET1(x) ((rate_v){x, x, x, x})
    #define RATE_FENCE() ((void)0)
    RATE_LOOPS(rate_128, , rate_v, 4, RATE_LOAD, RATE_STORE, RATE_STORE, RATE_ADD, RATE_MUL_ADD, RATE_SET1, RATE_FENCE)
    #define rate_256 rate_128
    #define rate_512 rate_128
    static int rate_products(void) { return 0; }
    #endif

    static double rate_of(int what, int bits, void *data, size_t bytes, double seconds)
    {
        const size_t count = bytes / 512 * (512 / sizeof(float));
        const int sweeps = what < RATE_CLOCK;
        double done = 0, elapsed;
        struct timespec start, now;
        clock_gettime(CLOCK_MONOTONIC, &start);
        do {
            if (what == RATE_CLOCK)
                rate_clock();
            else if (what == RATE_PRODUCTS && !rate_products())
                return 0;
            else if (what != RATE_PRODUCTS)
                (bits == 512 ? rate_512 : bits == 256 ? rate_256 : rate_128)(what, data, count);
            done += sweeps ? (double)(count * sizeof(float)) : 20000;
            clock_gettime(CLOCK_MONOTONIC, &now);
            elapsed = (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec);
        } while (elapsed < seconds);
        return done / elapsed;
    }
    """
    Py_ssize_t convt_take_one(Py_ssize_t *next) noexcept nogil
    double rate_of(int what, int bits, void *data, size_t bytes, double seconds) noexcept nogil

_RATES = ("read", "write", "stream", "clock", "chain", "products")  # in the order of the enum above


def rate(str what, data, int threads, double seconds):
    """Measure a rate for about ``seconds`` seconds and return it, per second and for all threads together.

    ``what`` is "read", "write" or "stream" for bytes read, written, or written by non-temporal stores, where each thread sweeps
    its own part of ``data``, an array of uint8; "clock" for cycles; "chain" for dependent multiply-adds; or "products" for
    products of AMX tiles, which the CPU must support.
    """
    cdef unsigned char[::1] memory = data
    cdef size_t first = round64(<size_t>&memory[0]), bytes = ((<size_t>&memory[0] + data.nbytes - first) // threads) & ~<size_t>63
    cdef const convt_kernels *k = kernels_of("float32")
    cdef int index = _RATES.index(what), bits = 8 * k.vl * k.t_size, t
    cdef double total = 0
    if threads > 1:
        note_pool()
    for t in prange(threads, num_threads=threads, nogil=True, schedule="static", chunksize=1):
        total += rate_of(index, bits, <void *>(first + t * bytes), bytes, seconds)
    return total


cdef struct Takers:
    Py_ssize_t next, end


cdef void take_all(void *given, size_t thread) noexcept nogil:
    """Take tasks until none is left."""
    cdef Takers *job = <Takers *>given
    while convt_take_one(&job.next) < job.end:
        pass


def take_tasks(int regions, Py_ssize_t tasks, int threads):
    """Run ``regions`` parallel regions that each take ``tasks`` empty tasks, so that the caller can time them."""
    cdef Takers job
    cdef int n
    job.end = tasks
    for n in range(regions):
        job.next = 0
        with nogil:
            run_in_parallel(take_all, threads, &job)


def call_tiles(int calls):
    """Call the float32 register tile ``calls`` times, with all rows and a depth of 1, so that the caller can time it."""
    cdef const convt_kernels *k = kernels_of("float32")
    cdef int rows = k.mr[k.nr // k.vl], n
    cdef float[::1] a = np.zeros(rows * k.lda, np.float32), b = np.zeros(k.nr, np.float32), c = np.zeros(rows * k.nr, np.float32)
    cdef convt_tile tile
    cdef convt_act act
    cdef void *to[CONVT_MOST_ROWS]
    for n in range(rows):
        to[n] = &c[n * k.nr]
    memset(&act, 0, sizeof(act))
    memset(&tile, 0, sizeof(tile))
    tile.kc, tile.nv, tile.a, tile.b, tile.lda = 1, k.nr // k.vl, &a[0], &b[0], k.lda
    tile.rows, tile.cols, tile.act, tile.prefetch = to, k.nr, &act, <const char *>&a[0]
    with nogil:
        for n in range(calls):
            k.tile(rows, &tile)
