/* Depthwise runs of few terms whose inputs are permuted from vectors of memory (HAVE_PERMUTE: AVX-512). Included by
 * body_depthwise.h after body_blocks.h and body_halves.h, whose functions it uses.
 *
 * A register tile has up to 8 j by one vector of channels, of one phase or of two that read the same inputs; with a single j, 2
 * or 4 vectors of channels. Loop order: vectors of channels (whose weights stay in L1), tiles of j, phases, sources, terms.
 */

/* Compute a register tile of groups of several channels: `shape` values of j, or, from DW_ACROSS on, one j and shape -
 * DW_ACROSS vectors of channels, which are whole and have the same indices. */
#define DW_ACROSS 16
INLINE void FN(dw_group)(const int shape, const int how, const int phases, const int terms, const int second,
                         const convt_dw *d, const convt_dw_phase *phase, int j, int c)
{
    V acc[2][DW_MOST];
    const int count = shape % DW_ACROSS, across = shape > DW_ACROSS, lanes = d->cols - c < VL ? d->cols - c : VL;
    const int32_t *index = d->index + c;
    const ptrdiff_t from = d->from + j * d->in_ld + d->at[c], apart = d->apart;
    const T *init = (const T *)d->init + c;
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[0][i] = acc[1][i] = FN(dw_same)(how, init + (across ? i * VL : 0));
    for (int s = 0; s < d->sources; s++) {
        const T *x = (const T *)d->in[s] + from, *w = (const T *)d->w[s] + c;
        if (!across) {
            FN(dw_slide)(count, terms, second, how, d, x, w, phase->term, phase[phases - 1].term, VL, index, ~0u, acc);
            continue;
        }
        x += phase->term->in;
#pragma GCC unroll 4
        for (int u = 0; u < terms; u++, x -= d->in_ld)
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                const V some = FN(dw_load)(how, x + i * apart, VL, index, 0);
                acc[0][i] = V_(fma)(some, V_(load)(w + phase->term[u].w + i * VL), acc[0][i]);
                if (u < second)
                    acc[1][i] = V_(fma)(some, V_(load)(w + phase[1].term[u].w + i * VL), acc[1][i]);
            }
    }
#pragma GCC unroll 2
    for (int p = 0; p < phases; p++)
        FN(dw_finish)(count, across, how, d, acc[p], (T *)d->out + j * d->out_ld + phase[p].out + c, lanes);
}

/* One function for each shape; if GCC inlines them together, it finds no registers for addresses. */
#define DW_NAME(how, shape, phases, terms, second) FN(dw_##how##_##shape##_##phases##_##terms##_##second),
#define DW_GROUP(how, shape, phases, terms, second)                                                                           \
    static void FN(dw_##how##_##shape##_##phases##_##terms##_##second)(const convt_dw *d, const convt_dw_phase *phase, int j, \
                                                                       int c)                                                 \
    {                                                                                                                         \
        FN(dw_group)(shape, how, phases, terms, second, d, phase, j, c);                                                      \
    }
#define DW_GROUPS(how, shape) DW_KINDS(DW_GROUP, how, shape)
#define DW_NAMES(how, shape) {DW_KINDS(DW_NAME, how, shape)},
#define DW_SHAPES(of, how) of(how, 1) of(how, 2) of(how, 3) of(how, 4) of(how, 8) of(how, 18) of(how, 20)
#define DW_HALVED(of, how) of(how, 1) of(how, 2) of(how, 4) of(how, 8)
DW_SHAPES(DW_GROUPS, DW_BROADCAST) DW_SHAPES(DW_GROUPS, DW_PERMUTE) DW_SHAPES(DW_GROUPS, DW_PERMUTE_2)
DW_HALVED(DW_GROUPS, DW_PERMUTE_HALVES)

/* Return how many of the last j would read outside the row, if each reads `span` elements from the start of its vector's
 * inputs. */
INLINE int FN(dw_beyond)(const convt_dw *d, int c, int span)
{
    const int end = (d->cols - 1) / VL * VL;
    const int64_t most = d->room ? 0 : span - 1 - (d->at[end] + d->index[d->cols - 1] - d->at[c]);
    return most <= 0 ? 0 : d->in_ld > 0 && most <= d->in_ld * d->n ? (int)((most - 1) / d->in_ld) + 1 : d->n;
}

/* Compute all j of half a vector of channels, two j in a vector. */
static void FN(dw_grouped_halves)(const convt_dw *d, int n, int c)
{
    static void (*const kernels[][8])(const convt_dw *, const convt_dw_phase *, int, int) = {
        DW_HALVED(DW_NAMES, DW_PERMUTE_HALVES)
    };
    convt_dw two = *d;
    int32_t index[VL];
    for (int i = 0; i < VL; i++)
        index[i] = i < VL / 2 ? d->index[c + i] : VL + d->index[c + i - VL / 2];
    two.index = index - c;
    two.ahead = 2 * d->ahead; /* beyond the j of this call */
    for (int j = 0, size; j < n; j += (1 << size) + (int)two.beside) {
        size = FN(dw_beside)(n, &j, &two.beside);
        /* Prefetch the next block's pixels of the first source, which is the row that is read for the first time. */
        if (d->far && d->sources) {
            const T *next = (const T *)d->in[0] + d->from + (j + 2 * DW_MOST) * d->in_ld;
            convt_prefetch_ahead((const char *)next, 2 * DW_MOST * d->in_ld * (ptrdiff_t)sizeof(T));
        }
        const convt_dw_phase *phase = d->phase, *end = phase + d->phases;
        while (phase < end)
            for (int rest = phase->sharing, phases; rest > 0; rest -= phases, phase += phases) {
                const int kind = FN(dw_kind)(phase, rest, &phases);
                kernels[size][kind](&two, phase, j, c);
            }
    }
}

/* Compute all j of a vector of channels, or of `across` vectors, before the next ones; their weights stay in L1. */
static void FN(dw_grouped)(const convt_dw *d)
{
    static void (*const kernels[][7][8])(const convt_dw *, const convt_dw_phase *, int, int) = {
        {DW_SHAPES(DW_NAMES, DW_BROADCAST)}, {DW_SHAPES(DW_NAMES, DW_PERMUTE)}, {DW_SHAPES(DW_NAMES, DW_PERMUTE_2)},
    };
    static const int counts[] = {1, 2, 3, 4, DW_MOST};
    for (int c = 0, across; c < d->cols; c += across * VL) {
        const int reach = d->index[c + VL - 1], how = reach == 0 ? 0 : reach < VL ? 1 : 2, vectors = (d->cols - c) / VL;
        across = d->n > 1 || !d->apart || vectors < 2 ? 1 : vectors < 4 ? 2 : 4;
        int n = d->n - FN(dw_beyond)(d, c + (across - 1) * VL, how ? how * VL : 1);
        if (across > 1 && n == 0)
            n = d->n - FN(dw_beyond)(d, c, how * VL), across = 1;
        for (int j = n; j < d->n; j++)
            FN(dw_other_1)(d, j, c);
        if (how == 1 && n > 1 && d->cols - c == VL / 2) {
            FN(dw_grouped_halves)(d, n, c);
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
                for (int rest = phase->sharing, phases; rest > 0; rest -= phases, phase += phases) {
                    const int kind = FN(dw_kind)(phase, rest, &phases);
                    kernels[how][across > 1 ? across / 2 + 4 : size][kind](d, phase, at, c);
                }
        }
    }
}
#undef DW_NAME
#undef DW_GROUP
#undef DW_GROUPS
#undef DW_NAMES
#undef DW_SHAPES
#undef DW_HALVED
#undef DW_ACROSS
