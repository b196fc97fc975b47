/* Depthwise runs (convt_dw) in blocks of a few j. Every run can be computed by these kernels. The includer defines T, V, VL,
 * V_(op), FN(name).
 *
 * A register tile has one vector of channels and up to 8 (DW_MOST_J) j, for one phase or for two phases that read the same
 * inputs; or one j and up to 8 vectors of channels. Loop order: blocks of j, then vectors of channels, then phases, then blocks
 * of terms, sources, terms. HAVE_PERMUTE (AVX-512) adds kernels that permute inputs in registers. FEW_SHAPES (baseline) leaves
 * only the sizes 1 and 8.
 */
#define DW_MOST_J 8     /* most j of a register tile: enough accumulators to hide the latency of multiply-adds */
#define DW_BLOCK_TERMS 5   /* terms that share a loaded or permuted pixel; with two phases, one less for each */
#define DW_INPUT_PREFETCH 2048 /* prefetch distance in bytes, because the hardware does not foresee descending reads */

/* Modes of loading a vector of inputs:
 *
 *   DW_WHOLE             VL contiguous elements
 *   DW_PARTIAL           the first lanes of contiguous elements
 *   DW_HALVES            half vectors of two j
 *   DW_BROADCAST         one element in all lanes
 *   DW_PERMUTE           permuted from one vector
 *   DW_PERMUTE_2         permuted from two vectors
 *   DW_PERMUTE_LAST      permuted from two vectors, of which only some elements may be read (masked loads)
 *   DW_PERMUTE_HALVES    half vectors of two j, each permuted
 */
#ifndef DW_ENUM
#define DW_ENUM
enum { DW_WHOLE, DW_PARTIAL, DW_HALVES, DW_BROADCAST, DW_PERMUTE, DW_PERMUTE_2, DW_PERMUTE_LAST, DW_PERMUTE_HALVES };
#endif

INLINE V FN(dw_load)(const int mode, const T *p, int lanes, const int32_t *index, ptrdiff_t pair_distance)
{
    if (mode == DW_WHOLE)
        return V_(load)(p);
    if (mode == DW_BROADCAST)
        return V_(set1)(*p);
    if (mode == DW_HALVES)
        return V_(load_halves)(p, p + pair_distance);
#ifdef HAVE_PERMUTE
    if (mode == DW_PERMUTE_HALVES)
        return V_(permute_2)(V_(load)(p), V_(load)(p + pair_distance), index);
    if (mode == DW_PERMUTE)
        return V_(permute)(V_(load)(p), index);
    if (mode == DW_PERMUTE_2)
        return V_(permute_2)(V_(load)(p), V_(load)(p + VL), index);
    if (mode == DW_PERMUTE_LAST) {
        const int span = index[VL - 1] + 1, low = span < VL ? span : VL;
        return V_(permute_2)(V_(loadn)(p, low), V_(loadn)(p + low, span - low), index);
    }
#else
    (void)index;
#endif
    return V_(loadn)(p, lanes);
}

/* Load weights, mask or bias, which are equal for all j; half vectors are duplicated. */
INLINE V FN(dw_load_invariant)(const int mode, const T *p)
{
    return mode == DW_HALVES || mode == DW_PERMUTE_HALVES ? V_(load_half)(p) : V_(load)(p);
}

/* Below, a register tile has `count` values of j, which share a load of weights; with `over_channels`, it has one j and `count`
 * whole vectors of channels. Pointers advance from one accumulator to the next, because there are not enough registers for one
 * pointer each. STEP is the distance of two accumulators in elements: */
#define STEP(ld) (over_channels ? VL : (ld))

/* The vector of weights of accumulator i; `first` holds it if all j have the same. */
#define OPERAND(p, i, first) (over_channels ? V_(load)((p) + (i) * VL) : (first))

/* 1 if outputs take non-temporal stores, which requires whole vectors that are cache lines. */
#define DW_NON_TEMPORAL(d, whole) (sizeof(V) == 64 && (whole) && (d)->stream)

/* Store acc[i] at out + i * STEP(out_ld), with the activation. */
INLINE void FN(dw_store_tile)(const int count, const int over_channels, const int mode, const convt_dw *d, V *acc, T *out,
                              int lanes)
{
    const convt_act act = *d->act;
    const ptrdiff_t ld = STEP(d->out_ld), out_prefetch = d->out_prefetch, pair_distance = d->pair_distance * d->out_ld;
    const int halves = mode == DW_HALVES || mode == DW_PERMUTE_HALVES;
    if (act.code != CONVT_NONE)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            acc[i] = V_(act_simple)(acc[i], &act);
    if (DW_NON_TEMPORAL(d, !halves && mode != DW_PARTIAL)) {
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, out += ld)
            V_(stream)(out, acc[i]);
        return;
    }
    if (out_prefetch) {
        const T *next = out + out_prefetch;
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, next += ld) {
            __builtin_prefetch(next, 1);
            if (halves)
                __builtin_prefetch(next + pair_distance, 1);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++, out += ld) {
        if (mode == DW_WHOLE)
            V_(store)(out, acc[i]);
        else if (halves)
            V_(store_halves)(out, out + pair_distance, acc[i]);
        else
            V_(storen)(out, acc[i], lanes);
    }
}

/* The order of additions is the same in every kernel but those of body_groups.h and body_dots.h, so that results do not
 * depend on the kernel: blocks of DW_BLOCK_TERMS terms (one less with two phases); within a block, sources; within a source,
 * the terms of the block. The term that only some lanes have (`masked`) comes last. */

/* Add a block of terms of one source: `terms` of a phase, and `second` of another, where each term reads the pixel before that
 * of the previous term. A loaded or permuted pixel serves all j that read it. Pixels without a bit in `inside` are skipped. */
INLINE void FN(dw_add_terms)(const int count, const int terms, const int second, const int mode, const convt_dw *d, const T *x,
                             const T *w, const convt_dw_term *term, const convt_dw_term *other, int lanes, const int32_t *index,
                             unsigned inside, V acc[2][DW_MOST_J])
{
    V weights[2][DW_BLOCK_TERMS];
#pragma GCC unroll 5
    for (int u = 0; u < terms; u++)
        weights[0][u] = FN(dw_load_invariant)(mode, w + term[u].w);
#pragma GCC unroll 5
    for (int u = 0; u < second; u++)
        weights[1][u] = FN(dw_load_invariant)(mode, w + other[u].w);
    x += term->in + (count - 1) * d->in_ld;
#pragma GCC unroll 16
    for (int i = count - 1; i > -terms; i--, x -= d->in_ld) {
        if (!(inside >> (i + terms - 1) & 1))
            continue;
        V pixel = FN(dw_load)(mode, x, lanes, index, d->pair_distance * d->in_ld);
        /* With one phase the test costs more than the prefetch gains. */
        if (second > 0 && mode != DW_PERMUTE_HALVES && d->inputs_uncached)
            __builtin_prefetch((const char *)x + DW_INPUT_PREFETCH);
        IN_REGISTER(pixel); /* else GCC repeats the load for each multiply-add: two loads if it crosses cache lines */
#pragma GCC unroll 5
        for (int u = 0; u < terms; u++) {
            if (i + u < 0 || i + u >= count)
                continue;
            acc[0][i + u] = V_(fma)(pixel, weights[0][u], acc[0][i + u]);
            if (u < second)
                acc[1][i + u] = V_(fma)(pixel, weights[1][u], acc[1][i + u]);
        }
    }
}

/* Compute one phase, or two that read the same inputs. `from` and `out` are those of channel c of the first j. */
INLINE void FN(dw_compute_phases)(const int phases, const int count, const int over_channels, const int mode, const convt_dw *d,
                                  const convt_dw_phase *phase, ptrdiff_t from, T *out, int j, int c, int lanes)
{
    V acc[2][DW_MOST_J];
    const ptrdiff_t in_ld = STEP(d->in_ld), pair_distance = d->pair_distance * d->in_ld;
    const int32_t *index = d->index + c;
    const convt_dw_term *term = phase->term, *other = phase[phases - 1].term;
    const int sliding = phase->sliding && !over_channels && count > 1, sources = d->sources;
    const T *init = (const T *)d->init + c;
    const V start = FN(dw_load_invariant)(mode, init);
    const int block_terms = phases == 2 ? DW_BLOCK_TERMS - 1 : DW_BLOCK_TERMS;
    /* the j for which the first term of the block is inside the row */
    int64_t begin = d->low_pixel - j, end = d->high_pixel - j;
    int rest = phase->terms - phase->masked, both = phases == 2 ? phase[1].terms : 0;
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[0][i] = acc[1][i] = OPERAND(init, i, start);
    for (; rest > 0; rest -= block_terms, both -= block_terms, term += block_terms, other += block_terms, begin += block_terms,
         end += block_terms) {
#define ADD_TERMS(is, terms, second)                                                                         \
    if (sliding && rest is terms && (phases == 1 || both is second)) {                                       \
        const unsigned inside =                                                                              \
            d->skip_outside ? range_bits(begin + (terms) - 1, end + (terms) - 1, count + (terms) - 1) : ~0u; \
        for (int s = 0; s < sources; s++)                                                                    \
            FN(dw_add_terms)(count, terms, phases == 1 ? 0 : second, mode, d, (const T *)d->in[s] + from,    \
                             (const T *)d->w[s] + c, term, other, lanes, index,                              \
                             mode <= DW_PARTIAL && phases == 1 ? inside : ~0u, acc);                         \
        continue;                                                                                            \
    }
        if (phases == 1) {
            ADD_TERMS(>=, 5, 0)
            ADD_TERMS(==, 1, 0)
        }
        ADD_TERMS(>=, 4, 4)
        ADD_TERMS(==, 3, 3)
        ADD_TERMS(==, 2, 2)
        if (phases == 2) {
            ADD_TERMS(==, 2, 1)
        }
#undef ADD_TERMS
        for (int s = 0; s < sources; s++)
            for (int u = 0; u < block_terms && u < rest; u++) {
                if (d->skip_outside && (-u < begin || -u >= end))
                    continue;
                const T *x = (const T *)d->in[s] + from + term[u].in;
                const T *low = (const T *)d->w[s] + c + term[u].w, *high = low;
                const V first = FN(dw_load_invariant)(mode, low);
                if (phases == 2 && u < both) {
                    high = (const T *)d->w[s] + c + other[u].w;
                    const V second = FN(dw_load_invariant)(mode, high);
#pragma GCC unroll 8
                    for (int i = 0; i < count; i++, x += in_ld) {
                        const V pixel = FN(dw_load)(mode, x, lanes, index, pair_distance);
                        acc[0][i] = V_(fma)(pixel, OPERAND(low, i, first), acc[0][i]);
                        acc[1][i] = V_(fma)(pixel, OPERAND(high, i, second), acc[1][i]);
                    }
                } else {
#pragma GCC unroll 8
                    for (int i = 0; i < count; i++, x += in_ld)
                        acc[0][i] = V_(fma)(FN(dw_load)(mode, x, lanes, index, pair_distance), OPERAND(low, i, first),
                                            acc[0][i]);
                }
            }
    }
    /* Lanes outside the mask are not multiplied, because 0 times an input that is not finite is not 0. */
    if (phases == 1 && phase->masked && c < d->mask_end) {
        const T *masks = (const T *)d->mask + c;
        const V mask = V_(load)(masks);
        term = phase->term + phase->terms - 1;
        for (int s = 0; s < sources; s++) {
            const T *x = (const T *)d->in[s] + term->in + from;
            const T *weights = (const T *)d->w[s] + term->w + c;
            const V wt = V_(load)(weights);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++, x += in_ld)
                acc[0][i] = V_(fma_where)(OPERAND(masks, i, mask), FN(dw_load)(mode, x, lanes, index, pair_distance),
                                          OPERAND(weights, i, wt), acc[0][i]);
        }
    }
    FN(dw_store_tile)(count, over_channels, mode, d, acc[0], out + phase->out, lanes);
    if (phases == 2)
        FN(dw_store_tile)(count, over_channels, mode, d, acc[1], out + phase[1].out, lanes);
}

/* Compute all phases for `count` accumulators, from j and c on. */
INLINE void FN(dw_compute_tile)(const int count, const int over_channels, const int mode, const convt_dw *d, int j, int c,
                                int lanes)
{
    const ptrdiff_t from = d->in_offset + j * d->in_ld + (mode < DW_BROADCAST ? c : d->vector_offset[c]);
    /* Accumulators per phase if two phases share the registers: half of 8 where there are fewer registers than in AVX-512. */
    const int most = sizeof(V) < 64 && count == DW_MOST_J ? count / 2 : count;
    T *out = (T *)d->out + j * d->out_ld + c;
    const convt_dw_phase *phase = d->phase, *end = phase + d->phases;
    if (mode == DW_WHOLE && !over_channels && d->next_input_row) {
        const T *next_input_row = (const T *)d->next_input_row + from;
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, next_input_row += d->in_ld)
            __builtin_prefetch(next_input_row, 0, 2);
    }
    for (int rest; phase < end; phase += rest) {
        for (rest = phase->set_size; rest > 1; rest -= 2, phase += 2)
            for (int i = 0; i < count; i += most)
                FN(dw_compute_phases)(2, most, over_channels, mode, d, phase, from + i * STEP(d->in_ld),
                                      out + i * STEP(d->out_ld), j + i, c + i * STEP(0), lanes);
        if (rest)
            FN(dw_compute_phases)(1, count, over_channels, mode, d, phase, from, out, j, c, lanes);
    }
}

/* Compute n values of j for a vector that is not whole, or whose inputs are broadcast or permuted. */
#ifdef HAVE_PERMUTE
#define DW_PERMUTED(n)                                              \
    else if (n == 1 && !d->can_overread)                            \
        FN(dw_compute_tile)(1, 0, DW_PERMUTE_LAST, d, j, c, lanes); \
    else if (!d->can_overread)                                      \
        for (int i = 0; i < n; i++)                                 \
            FN(dw_irregular_1)(d, j + i, c);                        \
    else                                                            \
        FN(dw_compute_tile)(n, 0, DW_PERMUTE_2, d, j, c, lanes);
#else
#define DW_PERMUTED(n)
#endif
#define DW_IRREGULAR(n)                                                                         \
    static __attribute__((noinline)) void FN(dw_irregular_##n)(const convt_dw *d, int j, int c) \
    {                                                                                           \
        const int lanes = d->cols - c < VL ? d->cols - c : VL;                                  \
        if (!d->vector_offset)                                                                  \
            FN(dw_compute_tile)(n, 0, DW_PARTIAL, d, j, c, lanes);                              \
        else if (d->index[c + VL - 1] == 0)                                                     \
            FN(dw_compute_tile)(n, 0, DW_BROADCAST, d, j, c, lanes);                            \
        DW_PERMUTED(n)                                                                          \
    }
static void FN(dw_irregular_1)(const convt_dw *d, int j, int c);
DW_IRREGULAR(1) DW_IRREGULAR(8)
#ifndef FEW_SHAPES
DW_IRREGULAR(4)
static void FN(dw_irregular_2)(const convt_dw *d, int j, int c)
{
    FN(dw_irregular_1)(d, j, c);
    FN(dw_irregular_1)(d, j + 1, c);
}
#endif
#undef DW_IRREGULAR
#undef DW_PERMUTED

/* The sizes of blocks of j. */
#ifdef FEW_SHAPES
#define DW_SIZES(X) X(1) X(8)
#else
#define DW_SIZES(X) X(1) X(2) X(4) X(8)
#endif
#define DW_COLUMNS(n)                                                                            \
    static void FN(dw_columns_##n)(const convt_dw *d, int j)                                     \
    {                                                                                            \
        int c = 0;                                                                               \
        /* With a single j, adjacent vectors hide the latency. */                                \
        for (; n == 1 && !d->vector_offset && c + 8 * VL <= d->cols; c += 8 * VL)                \
            FN(dw_compute_tile)(8, 1, DW_WHOLE, d, j, c, VL);                                    \
        for (; n == 1 && !d->vector_offset && c + 4 * VL <= d->cols; c += 4 * VL)                \
            FN(dw_compute_tile)(4, 1, DW_WHOLE, d, j, c, VL);                                    \
        /* The last vector overlaps the one before. */                                           \
        for (; !d->vector_offset && VL <= d->cols && c < d->cols; c += VL)                       \
            FN(dw_compute_tile)(n, 0, DW_WHOLE, d, j, c + VL <= d->cols ? c : d->cols - VL, VL); \
        for (; c < d->cols; c += VL)                                                             \
            FN(dw_irregular_##n)(d, j, c);                                                       \
    }
DW_SIZES(DW_COLUMNS)
#undef DW_COLUMNS
#undef STEP
#undef OPERAND

/* Compute all j, in blocks. */
static void FN(dw_run_blocks)(const convt_dw *d)
{
#define DW_NAME(n) FN(dw_columns_##n),
    static void (*const columns[])(const convt_dw *, int) = {DW_SIZES(DW_NAME)};
#undef DW_NAME
#define DW_NAME(n) n,
    static const int counts[] = {DW_SIZES(DW_NAME)};
#undef DW_NAME
    const int most = sizeof counts / sizeof *counts - 1;
    for (int j = 0; j < d->n;) {
        /* Take the smallest size that covers the rest (some j are computed twice), or the largest size if none does. */
        int size = 0;
        while (size < most && counts[size] < d->n - j)
            size++;
        while (counts[size] > d->n)
            size--;
        /* With four vectors of channels or more, a single j has enough accumulators. */
        if (!d->vector_offset && size < most && d->cols >= 4 * VL)
            size = d->phase->sliding && d->n >= DW_MOST_J && d->n - j > 2 ? most : 0;
        columns[size](d, j + counts[size] <= d->n ? j : d->n - counts[size]);
        j += counts[size];
    }
}
#undef DW_SIZES

/* Compute one output of a phase before or after the run: that of j, from terms first to last - 1. */
static void FN(dw_edge_output)(const convt_dw *d, const convt_dw_phase *phase, int j, int first, int last)
{
    convt_dw one = *d;
    convt_dw_phase part = *phase;
    part.term += first;
    part.terms = last - first;
    part.set_size = 1;
    one.n = one.phases = 1;
    one.phase = &part;
    one.in_offset += j * d->in_ld;
    one.out = (T *)d->out + j * d->out_ld;
    FN(dw_run_blocks)(&one);
}
