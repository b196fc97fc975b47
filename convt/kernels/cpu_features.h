/* The CPU features that the table of instruction sets in setup.py names. */
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
    /* AMX-TILE and AMX-BF16, and the operating system lets this process use the tile registers. */
    CPU_AMX_BF16 = 1 << 8,
    CPU_ARM_BF16 = 1 << 9, /* FEAT_BF16 of Armv8.6-A */
};

#endif
