/* The CPU features that setup.py's table of instruction sets names. */
#ifndef CONVT_CPU_FEATURES_H
#define CONVT_CPU_FEATURES_H

enum {
    CPU_AVX2 = 1 << 0,
    CPU_FMA = 1 << 1,
    CPU_F16C = 1 << 2,
    CPU_AVX512F = 1 << 3,
    CPU_AVX512BW = 1 << 4,
    CPU_AVX512DQ = 1 << 5,
    CPU_AVX512VL = 1 << 6,
    CPU_AVX512_BF16 = 1 << 7,
    CPU_AMX_BF16 = 1 << 8, /* and the operating system lets this process use its registers */
};

/* Features that this CPU has and this operating system saves the registers of. */
unsigned convt_cpu_features(void);

/* Whether vdpbf16ps does twice the multiply-adds of float32's FMA, as AMD's cores do. Intel's do half as many, so that
 * converting to float32 is the faster way there (docs/measurements/kernels.md). */
int convt_cpu_fast_dot(void);

#endif
