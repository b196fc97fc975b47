/* Depthwise runs of few terms whose inputs are permuted from vectors of memory (HAVE_PERMUTE: AVX-512). Included by
 * body_depthwise.h after body_blocks.h and body_halves.h, whose functions it uses.
 *
 * A register tile has up to 8 j by one vector of channels, of one phase or of two that read the same inputs; with a single j, 2
 * or 4 vectors of channels. Loop order: vectors of channels (whose weights stay in L1), tiles of j, phases, sources, terms.
 */

/* Compute a register tile of groups of several channels: `shape` values of j, or, from DW_CHANNELS on, one j and shape -
 * DW_CHANNELS vectors of channels, which are whole and have the same indices. */
#define DW_CHANNELS 16
INLINE void FN(dw_permuted_tile)(const int shape, const int mode, const int phases, const int terms, const int second,
                                 const convt_dw *d, const convt_dw_phase *phase, int j, int c)
{
    V acc[2][DW_MOST_J];
    const int count = shape % DW_CHANNELS, over_channels = shape > DW_CHANNELS;
    const int lanes = d->cols - c < VL ? d->cols - c : VL;
    const int32_t *index = d->index + c;
    const ptrdiff_t from = d->in_offset + j * d->in_ld + d->vector_offset[c], vector_step = d->vector_step;
    const T *init = (const T *)d->init + c;
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[0][i] = acc[1][i] = FN(dw_load_invariant)(mode, init + (over_channels ? i * VL : 0));
    for (int s = 0; s < d->sources; s++) {
        const T *x = (const T *)d->in[s] + from, *w = (const T *)d->w[s] + c;
        if (!over_channels) {
            FN(dw_add_terms)(count, terms, second, mode, d, x, w, phase->term, phase[phases - 1].term, VL, index, ~0u, acc);
            continue;
        }
        x += phase->term->in;
#pragma GCC unroll 4
        for (int u = 0; u < terms; u++, x -= d->in_ld)
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                const V pixel = FN(dw_load)(mode, x + i * vector_step, VL, index, 0);
                acc[0][i] = V_(fma)(pixel, V_(load)(w + phase->term[u].w + i * VL), acc[0][i]);
                if (u < second)
                    acc[1][i] = V_(fma)(pixel, V_(load)(w + phase[1].term[u].w + i * VL), acc[1][i]);
            }
    }
#pragma GCC unroll 2
    for (int p = 0; p < phases; p++)
        FN(dw_store_tile)(count, over_channels, mode, d, acc[p], (T *)d->out + j * d->out_ld + phase[p].out + c, lanes);
}

/* One function for each shape; if GCC inlines them together, it finds no registers for addresses. */
#define DW_NAME(mode, shape, phases, terms, second) FN(dw_##mode##_##shape##_##phases##_##terms##_##second),
#define DW_TILE(mode, shape, phases, terms, second)                                                                            \
    static void FN(dw_##mode##_##shape##_##phases##_##terms##_##second)(const convt_dw *d, const convt_dw_phase *phase, int j, \
                                                                        int c)                                                 \
    {                                                                                                                          \
        FN(dw_permuted_tile)(shape, mode, phases, terms, second, d, phase, j, c);                                              \
    }
#define DW_TILES(mode, shape) DW_KINDS(DW_TILE, mode, shape)
#define DW_NAMES(mode, shape) {DW_KINDS(DW_NAME, mode, shape)},
#define DW_SHAPES(X, mode) X(mode, 1) X(mode, 2) X(mode, 3) X(mode, 4) X(mode, 8) X(mode, 18) X(mode, 20)
#define DW_HALVED(X, mode) X(mode, 1) X(mode, 2) X(mode, 4) X(mode, 8)
DW_SHAPES(DW_TILES, DW_BROADCAST) DW_SHAPES(DW_TILES, DW_PERMUTE) DW_SHAPES(DW_TILES, DW_PERMUTE_2)
DW_HALVED(DW_TILES, DW_PERMUTE_HALVES)

/* Return how many of the last j would read outside the row, if each reads `span` elements from the start of its vector's
 * inputs. */
INLINE int FN(dw_count_outside)(const convt_dw *d, int c, int span)
{
    const int end = (d->cols - 1) / VL * VL;
    const int64_t most = d->can_overread ? 0 : span - 1 - (d->vector_offset[end] + d->index[d->cols - 1] - d->vector_offset[c]);
    return most <= 0 ? 0 : d->in_ld > 0 && most <= d->in_ld * d->n ? (int)((most - 1) / d->in_ld) + 1 : d->n;
}

/* Compute all j of half a vector of channels, two j in a vector. */
static void FN(dw_run_permuted_halves)(const convt_dw *d, int n, int c)
{
    static void (*const kernels[][8])(const convt_dw *, const convt_dw_phase *, int, int) = {
        DW_HALVED(DW_NAMES, DW_PERMUTE_HALVES)
    };
    convt_dw two = *d;
    int32_t index[VL];
    for (int i = 0; i < VL; i++)
        index[i] = i < VL / 2 ? d->index[c + i] : VL + d->index[c + i - VL / 2];
    two.index = index - c;
    two.out_prefetch = 2 * d->out_prefetch; /* beyond the j of this call */
    for (int j = 0, size; j < n; j += (1 << size) + (int)two.pair_distance) {
        size = FN(dw_choose_pairs)(n, &j, &two.pair_distance);
        /* Prefetch the next block's pixels of the first source, which is the row that is read for the first time. */
        if (d->inputs_uncached && d->sources) {
            const T *next = (const T *)d->in[0] + d->in_offset + (j + 2 * DW_MOST_J) * d->in_ld;
            convt_prefetch_row_l2((const char *)next, 2 * DW_MOST_J * d->in_ld * (ptrdiff_t)sizeof(T));
        }
        const convt_dw_phase *phase = d->phase, *end = phase + d->phases;
        while (phase < end)
            for (int rest = phase->set_size, phases; rest > 0; rest -= phases, phase += phases) {
                const int kind = FN(dw_kind)(phase, rest, &phases);
                kernels[size][kind](&two, phase, j, c);
            }
    }
}

/* Compute all j of a vector of channels, or of `tile_vectors` vectors, before the next ones; their weights stay in L1. */
static void FN(dw_run_permuted)(const convt_dw *d)
{
    static void (*const kernels[][7][8])(const convt_dw *, const convt_dw_phase *, int, int) = {
        {DW_SHAPES(DW_NAMES, DW_BROADCAST)}, {DW_SHAPES(DW_NAMES, DW_PERMUTE)}, {DW_SHAPES(DW_NAMES, DW_PERMUTE_2)},
    };
    static const int counts[] = {1, 2, 3, 4, DW_MOST_J};
    for (int c = 0, tile_vectors; c < d->cols; c += tile_vectors * VL) {
        const int reach = d->index[c + VL - 1], mode = reach == 0 ? 0 : reach < VL ? 1 : 2, vectors = (d->cols - c) / VL;
        tile_vectors = d->n > 1 || !d->vector_step || vectors < 2 ? 1 : vectors < 4 ? 2 : 4;
        int n = d->n - FN(dw_count_outside)(d, c + (tile_vectors - 1) * VL, mode ? mode * VL : 1);
        if (tile_vectors > 1 && n == 0)
            n = d->n - FN(dw_count_outside)(d, c, mode * VL), tile_vectors = 1;
        for (int j = n; j < d->n; j++)
            FN(dw_irregular_1)(d, j, c);
        if (mode == 1 && n > 1 && d->cols - c == VL / 2) {
            FN(dw_run_permuted_halves)(d, n, c);
            continue;
        }
        for (int j = 0, size; j < n; j += counts[size]) {
            /* the smallest size that covers the rest (some j are computed twice), or the largest size if none does */
            for (size = 0; size < 4 && counts[size] < n - j; size++)
                ;
            while (counts[size] > n)
                size--;
            const int at = j + counts[size] <= n ? j : n - counts[size];
            const convt_dw_phase *phase = d->phase, *end = phase + d->phases;
            while (phase < end)
                for (int rest = phase->set_size, phases; rest > 0; rest -= phases, phase += phases) {
                    const int kind = FN(dw_kind)(phase, rest, &phases);
                    kernels[mode][tile_vectors > 1 ? tile_vectors / 2 + 4 : size][kind](d, phase, at, c);
                }
        }
    }
}
#undef DW_NAME
#undef DW_TILE
#undef DW_TILES
#undef DW_NAMES
#undef DW_SHAPES
#undef DW_HALVED
#undef DW_CHANNELS
