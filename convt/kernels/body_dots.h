/* Depthwise runs whose groups have few out-channels (convt_dw_groups.dots): vectors run over in-channels, and each output is
 * the horizontal sum of one accumulator. All lanes are used, however few out-channels there are, and pixels are not transposed.
 * The includer defines T, V, VL, V_(op), FN(name).
 *
 * A register tile has VL accumulators, one for each (j, out-channel): VL / channels values of j. Reduced, they are one vector.
 * Loop order: phases (as many as have room for their blocks of terms), channel groups, tiles of j, phases, blocks of terms,
 * in-channels. The number of registers (TILE_MOST) decides how many terms share a loaded pixel.
 */
#define DOT_SEGMENT ((int)(16 / sizeof(T)))
#define DOT_PHASES 16

/* Terms of a block: as many as have registers for the weights of their channels, besides the accumulators and a pixel. */
#define DOT_REGISTERS (TILE_NV * TILE_MOST + 4)
#define DOT_FIT(channels) ((DOT_REGISTERS - VL - 1) / (channels))
#define DOT_TERMS(channels) (DOT_FIT(channels) < 1 ? 1 : DOT_FIT(channels) > 3 ? 3 : DOT_FIT(channels))

/* A block of terms of one source: up to three terms of a phase, where each reads the pixel before that of the previous term. */
typedef struct {
    const char *x;  /* the input of the first term at the first j */
    const T *w[3];
    int terms;
    int64_t low, high; /* the j for which the first term is inside the row */
} FN(dot_terms);

/* Add all in-channels of a block of terms. Each pixel is loaded once for all terms and channels. `inside` has a bit for each
 * pixel that is inside the row; bit 0 is the pixel that the last term reads at the first j. */
INLINE void FN(dot_add_terms)(const int channels, const int terms, const char *x, ptrdiff_t ld, const FN(dot_terms) *block,
                              ptrdiff_t weights, int ci, unsigned inside, V *acc)
{
    const int count = VL / channels;
    const T *w[3];
#pragma GCC unroll 3
    for (int u = 0; u < terms; u++)
        w[u] = block->w[u] + weights;
    for (; ci > 0; ci -= VL, x += VL * sizeof(T)) {
        const char *at = x;
        V weight[3][4];
#pragma GCC unroll 3
        for (int u = 0; u < terms; u++) {
#pragma GCC unroll 4
            for (int c = 0; c < channels; c++) {
                weight[u][c] = V_(load)(w[u] + c * VL);
                IN_REGISTER(weight[u][c]);
            }
            w[u] += channels * VL;
        }
        HIDE_VALUE(inside); /* else each bit takes a register */
#pragma GCC unroll 18
        for (int i = 0; i < count + terms - 1; i++, at += ld) {
            if (!(inside >> i & 1))
                continue;
            V pixel = V_(load)((const T *)at);
            if (channels * terms > 1)
                IN_REGISTER(pixel);
#pragma GCC unroll 3
            for (int u = 0; u < terms; u++) {
                const int j = i + u - (terms - 1);
                if (j < 0 || j >= count)
                    continue;
#pragma GCC unroll 4
                for (int c = 0; c < channels; c++)
                    acc[j * channels + c] = V_(fma)(pixel, weight[u][c], acc[j * channels + c]);
            }
        }
    }
}

/* Return the horizontal sums of VL vectors, each added in the same order. */
INLINE V FN(dot_sum_lanes)(const V *v)
{
    T partial[VL / DOT_SEGMENT][VL];
    ptrdiff_t at[VL / DOT_SEGMENT];
    V u[DOT_SEGMENT];
#pragma GCC unroll 4
    for (int q = 0; q < VL / DOT_SEGMENT; q++) { /* sums within 16 bytes, of as many vectors as 16 bytes have elements */
#pragma GCC unroll 4
        for (int p = 0; p < DOT_SEGMENT; p++)
            u[p] = v[q * DOT_SEGMENT + p];
#pragma GCC unroll 2
        for (int half = DOT_SEGMENT / 2; half > 0; half /= 2)
#pragma GCC unroll 2
            for (int p = 0; p < half; p++)
                u[p] = V_(zip_low_segments)(u[p], u[p + half]) + V_(zip_high_segments)(u[p], u[p + half]);
        V_(store)(partial[q], u[0]);
        at[q] = q * VL;
    }
    V sum = V_(load_segments)(partial[0], at);
#pragma GCC unroll 4
    for (int i = 1; i < VL / DOT_SEGMENT; i++)
        sum += V_(load_segments)(partial[0] + i * DOT_SEGMENT, at);
    return sum;
}

INLINE void FN(dot_tile)(const int channels, const convt_dw *d, const convt_dw_phase *phase, const FN(dot_terms) *block,
                         const FN(dot_terms) *end, V init, int j, int v)
{
    const int count = VL / channels;
    const convt_dw_groups *g = d->groups;
    const ptrdiff_t ld = d->in_ld * (ptrdiff_t)sizeof(T);
    V acc[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++)
        acc[i] = V_(set1)(-0.0f); /* -0, the neutral element of addition */
    for (; block < end; block++) {
        const int before = block->terms - 1, first = j - before;
        const unsigned inside = range_bits(block->low - first, block->high - first, count + before);
        const char *x = block->x + first * ld + g->group_offset[v] * (ptrdiff_t)sizeof(T);
        if (!inside)
            continue;
        if (block->terms == 3 && DOT_TERMS(channels) > 2)
            FN(dot_add_terms)(channels, 3, x, ld, block, v * g->w_ld, g->ci, inside, acc);
        else if (block->terms == 2 && DOT_TERMS(channels) > 1)
            FN(dot_add_terms)(channels, 2, x, ld, block, v * g->w_ld, g->ci, inside, acc);
        else
            FN(dot_add_terms)(channels, 1, x, ld, block, v * g->w_ld, g->ci, inside, acc);
    }
    const V sum = V_(act_simple)(FN(dot_sum_lanes)(acc) + init, d->act);
    const int64_t first = phase->first - d->first_j - j, last = phase->last - d->first_j - j; /* the j that the phase stores */
    const int from = first < 0 ? 0 : first < count ? (int)first : count;
    int to = d->n - j < count ? d->n - j : count;
    to = last < to ? (int)last : to;
    T *out = (T *)d->out + j * d->out_ld + phase->out + (g->first[v] - g->first[d->v0]), some[VL];
    if (from == 0 && d->out_ld == channels) { /* contiguous outputs */
        if (to > 0)
            V_(storen)(out, sum, to * channels);
        return;
    }
    V_(store)(some, sum);
    for (int i = from; i < to; i++)
#pragma GCC unroll 4
        for (int c = 0; c < channels; c++)
            out[i * d->out_ld + c] = some[i * channels + c];
}

#define DOT_TILE(channels)                                                                                          \
    static void FN(dot_##channels)(const convt_dw *d, const convt_dw_phase *phase, const FN(dot_terms) *block,  \
                                   const FN(dot_terms) *end, V init, int j, int v)                                \
    {                                                                                                               \
        if (channels <= VL)                                                                                         \
            FN(dot_tile)(channels, d, phase, block, end, init, j, v);                                             \
    }
DOT_TILE(1) DOT_TILE(2) DOT_TILE(3) DOT_TILE(4)

/* Write the blocks of a phase's terms to q; return their end. */
static FN(dot_terms) *FN(dot_blocks)(const convt_dw *d, const convt_dw_phase *phase, int most, FN(dot_terms) *q)
{
    for (int u = 0, terms; u < phase->terms; u += terms) {
        const int left = phase->terms - u;
        terms = !phase->sliding ? 1 : left < most ? left : most;
        for (int s = 0; s < d->sources; s++, q++) {
            q->x = (const char *)((const T *)d->in[s] + d->in_offset + phase->term[u].in);
            q->terms = terms;
            /* Unless the run skips terms, all terms of its own j are inside the row, but a tile may have further j.
             * d->high_pixel is not that of each phase if phases begin with different pixels. */
            q->low = d->skip_outside ? d->low_pixel + u : 1 - terms;
            q->high = d->skip_outside ? d->high_pixel + u : d->n;
            for (int n = 0; n < terms; n++)
                q->w[n] = (const T *)d->w[s] + phase->term[u + n].w;
        }
    }
    return q;
}

/* Prefetch the channels of a group for `count` pixels from j on, of the first source, which is the row that is read for the
 * first time. */
INLINE void FN(dot_prefetch)(const convt_dw *d, int64_t at, int j, int count)
{
    const T *from = (const T *)d->in[0] + d->in_offset + at + j * d->in_ld;
    for (int i = 0; i < count; i++, from += d->in_ld)
        for (int c = 0; c < d->groups->ci; c += 64 / (int)sizeof(T))
            __builtin_prefetch(from + c, 0, 2);
}

/* Compute all tiles of a run, each for as many phases as have room in `blocks`, so that the pixels of a tile are in L1 for all
 * of them. */
static void FN(dot_run)(const convt_dw *d)
{
    static void (*const tiles[])(const convt_dw *, const convt_dw_phase *, const FN(dot_terms) *, const FN(dot_terms) *, V, int,
                                 int) = {FN(dot_1), FN(dot_2), FN(dot_3), FN(dot_4)};
    const convt_dw_groups *g = d->groups;
    const int channels = (int)g->lanes[d->v0], most = DOT_TERMS(channels);
    FN(dot_terms) blocks[CONVT_DW_PRODUCTS], *ends[1 + DOT_PHASES] = {blocks};
    for (const convt_dw_phase *phase = d->phase, *end = phase + d->phases; phase < end;) {
        int some = 0;
        CONVT_ASSERT(d->sources * phase->terms <= CONVT_DW_PRODUCTS);
        while (phase + some < end && some < DOT_PHASES &&
               ends[some] - blocks + d->sources * phase[some].terms <= CONVT_DW_PRODUCTS) {
            ends[some + 1] = FN(dot_blocks)(d, phase + some, most, ends[some]);
            some++;
        }
        for (int v = d->v0; v < d->v1; v++) {
            const T *from = (const T *)d->init + (g->first[v] - g->first[d->v0]);
            T init[VL];
            for (int i = 0, c = 0; i < VL; i++, c = c + 1 < channels ? c + 1 : 0)
                init[i] = from[c];
            const V start = V_(load)(init);
            for (int j = 0; j < d->n; j += VL / channels) {
                if (d->inputs_uncached && d->sources && phase == d->phase)
                    FN(dot_prefetch)(d, g->group_offset[v], j + VL / channels, VL / channels);
                for (int p = 0; p < some; p++)
                    tiles[channels - 1](d, phase + p, ends[p], ends[p + 1], start, j, v);
            }
        }
        phase += some;
    }
}
#undef DOT_PHASES
#undef DOT_SEGMENT
#undef DOT_REGISTERS
#undef DOT_FIT
#undef DOT_TERMS
#undef DOT_TILE
