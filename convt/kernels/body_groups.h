/* Depthwise runs whose groups have several channels (convt_dw_groups): a small GEMM for each vector of out-channels. The
 * includer defines T, V, VL, V_(op), FN(name).
 *
 * A register tile has one vector of out-channels and up to 14 j, for one phase or for two that read the same inputs. Loop
 * order: phases, vectors of out-channels (whose weights stay in L1), tiles of j, blocks of terms, in-channels. Each input is
 * broadcast by its load, because a permutation would occupy a port that multiplies. The number of registers (TILE_MOST) bounds
 * the tiles.
 *
 * ng is groups_per_vector. With ng = 1, a vector of accumulators belongs to one channel group, or to a part of one. With
 * ng = 2, a vector of outputs has two groups of half as many out-channels each, and a tile has one accumulator per group. In
 * the accumulator of a group, each out-channel has two lanes: one sums even in-channels, the other odd ones. In the half of the
 * vector in which the outputs of the group are, channels are in order; in the other half, adjacent channels are swapped. A
 * broadcast pair of inputs therefore meets one lane of a channel with its even element and the other lane with its odd element.
 * The outputs are the sum of two vectors: the halves in order of both groups, and the swapped halves of both.
 */
#define DWG_REGISTERS (TILE_NV * TILE_MOST + 4)
#define DWG_MOST_J 14

/* Broadcast `ng` contiguous elements. */
INLINE V FN(dwg_broadcast)(const int ng, const void *p)
{
    return ng == 2 ? V_(set2)(p) : V_(set1)(*(const T *)p);
}

/* A block of terms of one source: up to three of a phase, or up to two of each of two phases, where each term reads the pixel
 * before that of the previous term. */
typedef struct {
    const char *x; /* the input of the first term at the first j */
    const T *w[2][3]; /* weights of each phase for the first vector of out-channels */
    int terms, second;
    int64_t low, high; /* the j for which the first term is inside the row */
} FN(dwg_terms);

/* The addresses of the pixels of each group: two pointers, nine pixels apart. An x86 address is a register plus another one
 * times 1, 2, 4 or 8, so few registers reach all pixels. */
typedef struct {
    const char *x[2][2];
    ptrdiff_t ld, ld3, ld5, ld7; /* bytes between pixels, and 3, 5 and 7 times as many */
} FN(dwg_pixel_pointers);

/* Add all in-channels of a block of terms. `inside` has a bit for each pixel; bit 0 is the pixel that the last term reads at
 * the first j. A pixel outside the row is skipped, so that a run can include the ends of a row. A broadcast serves all terms
 * that read it. */
INLINE void FN(dwg_add_terms)(const int ng, const int terms, const int second, const int count, FN(dwg_pixel_pointers) p,
                              const FN(dwg_terms) *block, ptrdiff_t weights, int ci, unsigned inside, V acc[2][2][DWG_MOST_J])
{
    const T *low[3], *high[3];
#pragma GCC unroll 3
    for (int u = 0; u < terms; u++)
        low[u] = block->w[0][u] + weights, high[u] = block->w[1][u] + weights;
    for (; ci > 0; ci -= ng) {
        HIDE_VALUE(p.ld);
        HIDE_VALUE(p.ld3);
        HIDE_VALUE(p.ld5);
        if (count + terms > 8)
            HIDE_VALUE(p.ld7);
#pragma GCC unroll 2
        for (int r = 0; r < ng; r++) {
            V first[3], other[3];
#pragma GCC unroll 3
            for (int u = 0; u < terms; u++) {
                first[u] = V_(load)(low[u]);
                IN_REGISTER(first[u]);
                low[u] += VL;
                if (u >= second)
                    continue;
                other[u] = V_(load)(high[u]);
                IN_REGISTER(other[u]);
                high[u] += VL;
            }
            HIDE_VALUE(p.x[r][0]);
            if (count + terms > 10)
                HIDE_VALUE(p.x[r][1]);
            HIDE_VALUE(inside); /* else each bit takes a register */
#pragma GCC unroll 16
            for (int i = 0; i < count + terms - 1; i++) {
                const int m = i % 9;
                const char *x = p.x[r][i / 9];
                x += m == 3 ? p.ld3 : m == 5 ? p.ld5 : m == 6 ? 2 * p.ld3 : m == 7 ? p.ld7 : m * p.ld;
                if (!(inside >> i & 1))
                    continue;
                V pixel = FN(dwg_broadcast)(ng, x);
                if (terms + second > 1)
                    IN_REGISTER(pixel);
#pragma GCC unroll 3
                for (int u = 0; u < terms; u++) {
                    const int j = i + u - (terms - 1);
                    if (j < 0 || j >= count)
                        continue;
                    acc[0][r][j] = V_(fma)(pixel, first[u], acc[0][r][j]);
                    if (u < second)
                        acc[1][r][j] = V_(fma)(pixel, other[u], acc[1][r][j]);
                }
            }
            p.x[r][0] += ng * (ptrdiff_t)sizeof(T);
            p.x[r][1] += ng * (ptrdiff_t)sizeof(T);
        }
    }
}

/* Store outputs with an activation, of part of a vector, or by non-temporal stores. */
static __attribute__((noinline)) void FN(dwg_store_outputs)(const convt_dw *d, const T *sums, int count, T *out, int lanes)
{
    for (; count > 0; count--, sums += VL, out += d->out_ld) {
        const V sum = V_(act_simple)(V_(load)(sums), d->act);
        if (DW_NON_TEMPORAL(d, lanes == VL))
            V_(stream)(out, sum);
        else
            V_(storen)(out, sum, lanes);
    }
}

/* Compute `tiles` register tiles of `count` j each along the row. */
INLINE void FN(dwg_tiles)(const int ng, const int phases, const int count, const convt_dw *d, const convt_dw_phase *phase,
                          const FN(dwg_terms) *blocks, const FN(dwg_terms) *end, int j, int tiles, int v)
{
    V acc[2][2][DWG_MOST_J];
    const convt_dw_groups *g = d->groups;
    const ptrdiff_t ld = d->in_ld * (ptrdiff_t)sizeof(T), out_ld = d->out_ld, out_prefetch = d->out_prefetch;
    FN(dwg_pixel_pointers) p = {.ld = ld, .ld3 = 3 * ld, .ld5 = 5 * ld, .ld7 = 7 * ld};
    const int c = (int)(g->first[v] - g->first[d->v0]), lanes = (int)g->lanes[v];
    const int plain = d->act->code == CONVT_NONE && !DW_NON_TEMPORAL(d, 1) && lanes == VL;
    const V init = V_(load)((const T *)d->init + c), none = V_(set1)(-0.0f); /* -0, the neutral element of addition */
    const V start[2] = {ng == 2 ? V_(halves)(init, none) : init, V_(halves)(none, init)};
    const T *next_input_row = d->next_input_row ? (const T *)d->next_input_row + d->in_offset + j * d->in_ld
        + g->group_offset[v * ng] : NULL;
    for (; tiles > 0; tiles--, j += count) {
        if (next_input_row)
            for (int i = 0; i < count; i++, next_input_row += d->in_ld)
                __builtin_prefetch(next_input_row, 0, 2);
#pragma GCC unroll 2
        for (int q = 0; q < phases; q++)
#pragma GCC unroll 2
            for (int r = 0; r < ng; r++)
#pragma GCC unroll 14
                for (int i = 0; i < count; i++)
                    acc[q][r][i] = start[r];
        for (const FN(dwg_terms) *block = blocks; block < end; block++) {
            const int before = block->terms - 1, pixels = count + before;
            const int64_t low = block->low - (j - before), high = block->high - (j - before);
            const unsigned inside = range_bits(low, high, pixels);
            if (!inside)
                continue;
#pragma GCC unroll 2
            for (int r = 0; r < ng; r++) {
                p.x[r][0] = block->x + (j - before) * ld + g->group_offset[v * ng + r] * (ptrdiff_t)sizeof(T);
                p.x[r][1] = p.x[r][0] + 9 * ld;
            }
#define ADD_TERMS(t, s)                                                                                \
    else if (phases == 1 + ((s) >= 0) && block->terms == (t) && (phases == 1 || block->second == (s))) \
        FN(dwg_add_terms)(ng, t, phases == 1 ? 0 : s, count, p, block, v * g->w_ld, g->ci, inside, acc);
            if (0)
                ;
            ADD_TERMS(3, -1) ADD_TERMS(2, -1) ADD_TERMS(1, -1) ADD_TERMS(2, 2) ADD_TERMS(2, 1) ADD_TERMS(1, 1) ADD_TERMS(1, 0)
#undef ADD_TERMS
        }
#pragma GCC unroll 2
        for (int q = 0; q < phases; q++) {
            /* the j that the phase stores */
            const int64_t first = phase[q].first - d->first_j - j, last = phase[q].last - d->first_j - j;
            T *out = (T *)d->out + j * out_ld + phase[q].out + c, *to = out;
            T sums[DWG_MOST_J * VL];
            unsigned stored = range_bits(first, last, count);
            if (ng == 2)
#pragma GCC unroll 14
                for (int i = 0; i < count; i++)
                    acc[q][0][i] = V_(halves)(acc[q][0][i], acc[q][1][i]) + V_(crossed)(acc[q][0][i], acc[q][1][i]);
            if (plain) {
#pragma GCC unroll 14
                for (int i = 0; i < count; i++, to += out_ld) {
                    HIDE_VALUE(stored);
                    if (!(stored >> i & 1))
                        continue;
                    if (out_prefetch)
                        __builtin_prefetch(to + out_prefetch, 1);
                    V_(store)(to, acc[q][0][i]);
                }
            } else if (stored) {
                const int from = first < 0 ? 0 : (int)first;
#pragma GCC unroll 14
                for (int i = 0; i < count; i++)
                    V_(store)(sums + i * VL, acc[q][0][i]);
                FN(dwg_store_outputs)(d, sums + from * VL, (last < count ? (int)last : count) - from, out + from * out_ld,
                                      lanes);
            }
        }
    }
}

/* One function for each count of j: as many accumulators as fit the registers, besides the weights and a pixel. */
#define DWG_FITS(ng, phases, count) ((ng) * (phases) * (count) + (phases) + 3 <= DWG_REGISTERS)
#define DWG_TILE(ng, phases, count)                                                                             \
    static void FN(dwg_##ng##_##phases##_##count)(const convt_dw *d, const convt_dw_phase *phase,               \
                                                  const FN(dwg_terms) *blocks, const FN(dwg_terms) *end, int j, \
                                                  int tiles, int v)                                             \
    {                                                                                                           \
        if (DWG_FITS(ng, phases, count))                                                                        \
            FN(dwg_tiles)(ng, phases, count, d, phase, blocks, end, j, tiles, v);                               \
    }
#define DWG_NAME(ng, phases, count) FN(dwg_##ng##_##phases##_##count),
#ifdef FEW_SHAPES
#define DWG_NUMBERS {1, 2, 4, 8}
#define DWG_COUNTS(X, ng, phases) X(ng, phases, 1) X(ng, phases, 2) X(ng, phases, 4) X(ng, phases, 8)
#else
#define DWG_NUMBERS {1, 2, 3, 4, 5, 6, 8, 10, 12, 14}
#define DWG_COUNTS(X, ng, phases)                                                                         \
    X(ng, phases, 1) X(ng, phases, 2) X(ng, phases, 3) X(ng, phases, 4) X(ng, phases, 5) X(ng, phases, 6) \
    X(ng, phases, 8) X(ng, phases, 10) X(ng, phases, 12) X(ng, phases, 14)
#endif
#define DWG_KINDS(X) DWG_COUNTS(X, 1, 1) DWG_COUNTS(X, 1, 2) DWG_COUNTS(X, 2, 1) DWG_COUNTS(X, 2, 2)
DWG_KINDS(DWG_TILE)

static const int FN(dwg_counts)[] = DWG_NUMBERS;
#define DWG_LAST ((int)(sizeof FN(dwg_counts) / sizeof(int)) - 1)

/* Return the index of the smallest count that covers n values of j, or of the largest count if none does. */
INLINE int FN(dwg_covering_count)(int n)
{
    int size = 0;
    while (size < DWG_LAST && FN(dwg_counts)[size] < n)
        size++;
    return size;
}

/* Return the approximate time of a tile of n values of j with `sums` accumulators each: at least the latency of a chain of
 * multiply-adds. */
INLINE int FN(dwg_tile_time)(int n, int sums)
{
    return (n * sums < 4 ? 4 / sums : n) + 2;
}

/* Return the index of the count, at most `most`, that computes n values of j fastest; another count may compute the rest. */
static int FN(dwg_fastest_count)(int n, int most, int sums)
{
    int best = 0, least = n * FN(dwg_tile_time)(1, sums);
    for (int size = 1; size <= DWG_LAST && FN(dwg_counts)[size] <= most && FN(dwg_counts)[size] <= n; size++) {
        const int count = FN(dwg_counts)[size], rest = n % count;
        const int last = rest ? FN(dwg_tile_time)(FN(dwg_counts)[FN(dwg_covering_count)(rest)], sums) : 0;
        const int takes = n / count * FN(dwg_tile_time)(count, sums) + last;
        best = takes < least ? size : best;
        least = takes < least ? takes : least;
    }
    return best;
}

/* Compute all j of a phase, or of two that read the same inputs, one vector of out-channels after the other; its weights stay
 * in L1. */
static void FN(dwg_run)(const convt_dw *d)
{
    static void (*const tiles[][2][DWG_LAST + 1])(const convt_dw *, const convt_dw_phase *, const FN(dwg_terms) *,
                                                  const FN(dwg_terms) *, int, int, int) = {
        {{DWG_COUNTS(DWG_NAME, 1, 1)}, {DWG_COUNTS(DWG_NAME, 1, 2)}},
        {{DWG_COUNTS(DWG_NAME, 2, 1)}, {DWG_COUNTS(DWG_NAME, 2, 2)}},
    };
    FN(dwg_terms) blocks[CONVT_DW_PRODUCTS], *q;
    const int ng = d->groups->groups_per_vector;
    for (const convt_dw_phase *phase = d->phase, *end = phase + d->phases; phase < end;)
        for (int unfinished = phase->set_size, phases; unfinished > 0; unfinished -= phases, phase += phases) {
            phases = unfinished > 1 ? 2 : 1;
            q = blocks;
            CONVT_ASSERT(d->sources * phase->terms <= CONVT_DW_PRODUCTS);
            for (int u = 0, terms; u < phase->terms; u += terms) {
                const int left = phase->terms - u, both = phases == 2 ? phase[1].terms - u : 0;
                terms = !phase->sliding ? 1 : left < 4 - phases ? left : 4 - phases;
                terms = phases == 2 && both < terms - 1 ? 1 : terms;
                for (int s = 0; s < d->sources; s++, q++) {
                    q->x = (const char *)((const T *)d->in[s] + d->in_offset + phase->term[u].in);
                    q->terms = terms;
                    q->second = both < 0 ? 0 : both < terms ? both : terms;
                    /* if terms do not slide, all of them are inside the row */
                    q->low = phase->sliding ? d->low_pixel + u : INT32_MIN;
                    q->high = phase->sliding ? d->high_pixel + u : INT32_MAX;
                    for (int n = 0; n < terms; n++) {
                        q->w[0][n] = (const T *)d->w[s] + phase->term[u + n].w;
                        q->w[1][n] = n < q->second ? (const T *)d->w[s] + phase[1].term[u + n].w : q->w[0][n];
                    }
                }
            }
            const int fit = (DWG_REGISTERS - phases - 3) / (ng * phases), size = FN(dwg_fastest_count)(d->n, fit, ng * phases);
            const int count = FN(dwg_counts)[size], full = d->n / count, rest = d->n % count,
                last = FN(dwg_covering_count)(rest);
            for (int v = d->v0; v < d->v1; v++) {
                tiles[ng - 1][phases - 1][size](d, phase, blocks, q, 0, full, v);
                if (rest) /* some j are computed twice if no count equals the rest */
                    tiles[ng - 1][phases - 1][last](d, phase, blocks, q, d->n - FN(dwg_counts)[last], 1, v);
            }
        }
}
#undef DWG_REGISTERS
#undef DWG_MOST_J
#undef DWG_FITS
#undef DWG_TILE
#undef DWG_NAME
#undef DWG_COUNTS
#undef DWG_NUMBERS
#undef DWG_LAST
#undef DWG_KINDS
