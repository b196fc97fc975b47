/* PEAK(name, V, set1, step, flops_per_step) defines a function that measures the FLOP/s of one thread: CHAINS independent
 * chains of multiply-adds, which hide the latency, for at least `seconds`. */
#include <time.h>

#define CHAINS 12
#define PEAK(name, V, set1, step, flops_per_step)                                            \
    static double name(double seconds)                                                       \
    {                                                                                        \
        V acc[CHAINS];                                                                       \
        for (int i = 0; i < CHAINS; i++)                                                     \
            acc[i] = set1((float)i);                                                         \
        struct timespec start, now;                                                          \
        clock_gettime(CLOCK_MONOTONIC, &start);                                              \
        double flops = 0, elapsed;                                                           \
        do {                                                                                 \
            for (int n = 0; n < 20000; n++)                                                  \
                _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) acc[i] = step(acc[i]); \
            flops += 20000.0 * CHAINS * (flops_per_step);                                    \
            clock_gettime(CLOCK_MONOTONIC, &now);                                            \
            elapsed = (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec); \
        } while (elapsed < seconds);                                                         \
        volatile V sink;                                                                     \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) /* in registers if unrolled */ \
            sink = acc[i]; /* keeps the compiler from removing the loop */                   \
        (void)sink;                                                                          \
        return flops / elapsed;                                                              \
    }
