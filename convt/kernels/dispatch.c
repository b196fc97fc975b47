/* The table of instruction sets that were built, and the detection of those that this CPU and operating system can run.
 * Compiled without ISA flags. */
#include "convt_kernels.h"
#include "cpu_features.h"

#if defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#include "detect_arm.h"
#elif defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

/* Check whether this process may use the AMX registers, which Linux requires a process to request. */
static int may_use_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    const int request = 0x1023, tiles = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA */
    return syscall(SYS_arch_prctl, request, tiles) == 0;
#else
    return 0;
#endif
}

/* Return the features (cpu_features.h) that this CPU has and whose registers this operating system saves. */
static unsigned found_features(void)
{
    unsigned a, b, c, d, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    /* Bits of XCR0, the state that the operating system saves: SSE and AVX; opmask and both halves of ZMM; AMX configuration
     * and tiles. */
    const uint64_t ymm = 0x6, zmm = 0xe6, tiles = 0x60000;
    const uint64_t saved = xcr0();
    if ((saved & ymm) != ymm)
        return 0;
    if (c & bit_FMA)
        found |= CPU_FMA;
    if (c & bit_F16C)
        found |= CPU_F16C;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        const unsigned subleaves = a, amx = 1u << 24 | 1u << 22; /* AMX-TILE, AMX-BF16 */
        if (b & bit_AVX2)
            found |= CPU_AVX2;
        if ((d & amx) == amx && (saved & tiles) == tiles && may_use_tiles())
            found |= CPU_AMX_BF16;
        if ((saved & zmm) == zmm) {
            if (b & bit_AVX512F)
                found |= CPU_AVX512F;
            if (b & bit_AVX512BW)
                found |= CPU_AVX512BW;
            if (b & bit_AVX512DQ)
                found |= CPU_AVX512DQ;
            if (b & bit_AVX512VL)
                found |= CPU_AVX512VL;
            if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)))
                found |= CPU_AVX512_BF16;
        }
    }
    return found;
}

long convt_cache_bytes(int level)
{
    unsigned a, b, c, d, type;
    const int amd = __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx;
    const unsigned leaf = amd ? 0x8000001d : 4; /* the lists of caches of AMD and Intel */
    for (unsigned n = 0; n < 16 && __get_cpuid_count(leaf, n, &a, &b, &c, &d) && (type = a & 31) != 0; n++)
        if (type != 2 && (int)(a >> 5 & 7) == level) /* a data cache or a unified cache */
            /* ways * partitions * line size * sets */
            return ((b >> 22) + 1L) * ((b >> 12 & 0x3ff) + 1L) * ((b & 0xfff) + 1L) * (c + 1L);
    return 0;
}
#else
static unsigned found_features(void)
{
    return 0;
}

long convt_cache_bytes(int level)
{
    return 0 * level;
}
#endif

#define ISA(name, base, features) ROW_##name,
enum {
#include "isa_rows.h"
    ROWS,
    ROW_none = -1
};
#undef ISA


static const struct {
    const char *name;
    int base;
    unsigned features;
} rows[ROWS] = {
#define ISA(name, base, features) {#name, ROW_##base, (features)},
#include "isa_rows.h"
#undef ISA
};

/* The parts of a row (see body.h), of which isa_<name>.c defines one function each, in the order of their calls. */
#define PART(name, part) CONVT_ANY_CPU void convt_set_kernels_##part(convt_isa *isa);
#include "isa_rows.h"
#undef PART

static const struct {
    int row;
    void (*set_kernels)(convt_isa *isa);
} parts[] = {
#define PART(name, part) {ROW_##name, convt_set_kernels_##part},
#include "isa_rows.h"
#undef PART
};

static convt_isa tables[ROWS];
static unsigned features_here; /* detected once, because CPUID takes tens of microseconds in a virtual machine */

/* Fill the tables when the library is loaded. Rows that this CPU lacks also get tables, so that plans of other CPUs can be
 * inspected, if the compiler can make their `set_kernels` run on every CPU (CONVT_TABLES_ANYWHERE). Otherwise they have only a
 * name. */
static __attribute__((constructor)) void fill_tables(void)
{
    features_here = found_features();
    for (int i = 0; i < ROWS; i++) {
        if (CONVT_TABLES_ANYWHERE || convt_isa_available(i)) {
            if (rows[i].base != ROW_none)
                tables[i] = tables[rows[i].base];
            for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++)
                if (parts[p].row == i)
                    parts[p].set_kernels(&tables[i]);
        }
        tables[i].name = rows[i].name;
    }
}

int convt_isa_count(void)
{
    return ROWS;
}

/* Exported, so that tests can call the kernels of a table. */
__attribute__((visibility("default"))) const convt_isa *convt_isa_at(int index)
{
    return &tables[index];
}

int convt_isa_available(int index)
{
    return (rows[index].features & ~features_here) == 0;
}
