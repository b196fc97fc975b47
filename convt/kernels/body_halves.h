/* Depthwise runs in blocks (body_blocks.h) whose last channels fill at most half a vector: two j share a vector. Included by
 * body_depthwise.h after body_blocks.h, whose functions it uses.
 *
 * A register tile has up to 8 vectors, each with half a vector of channels of two j that are `pair_distance` apart. Loop order:
 * blocks of j; in each, first the whole vectors of channels, then the last channels.
 */

/* Choose how many j, from *j on, share vectors with as many others: 1, 2, 4 or 8. Return the base-2 logarithm of that number;
 * *beside is the distance between the j of a vector. At the end, *j and *beside are smaller, and some j are computed twice. n
 * is at least 2. */
INLINE int FN(dw_choose_pairs)(int n, int *j, ptrdiff_t *pair_distance)
{
    *j = *j < n - 2 ? *j : n - 2;
    const int left = n - *j, size = left > 8 ? 3 : left > 4 ? 2 : left > 2 ? 1 : 0;
    *pair_distance = left < 2 << size ? left - (1 << size) : 1 << size;
    return size;
}

/* Check whether the last channels fill at most half a vector and there are enough j to share vectors. Inputs that are not in
 * cache are excluded, because loading them takes most of the time. */
static int FN(dw_rest_is_half)(const convt_dw *d)
{
    const int rest = d->cols % VL, fits = rest && 2 * rest <= VL && 2 * d->cols >= VL && d->n >= DW_MOST_J;
    return fits && !(d->vector_offset || d->inputs_uncached || d->skip_outside || d->stream || d->phase->masked);
}

#define DW_HALVED(n)                                                                         \
    static __attribute__((noinline)) void FN(dw_halved_##n)(const convt_dw *d, int j, int c) \
    {                                                                                        \
        FN(dw_compute_tile)(n, 0, DW_HALVES, d, j, c, VL / 2);                               \
    }
DW_HALVED(1) DW_HALVED(2) DW_HALVED(4) DW_HALVED(8)
#undef DW_HALVED

/* Compute blocks of twice as many j: the whole vectors first, then the last channels with two j in a vector. */
static void FN(dw_run_halves)(const convt_dw *d)
{
    static void (*const halved[])(const convt_dw *, int, int) = {
        FN(dw_halved_1), FN(dw_halved_2), FN(dw_halved_4), FN(dw_halved_8),
    };
    convt_dw part = *d;
    part.cols = d->cols / VL * VL;
    for (int j = 0; j < d->n; j += part.n) {
        part.n = d->n - j < 4 * DW_MOST_J ? d->n - j : 2 * DW_MOST_J;
        part.in_offset = d->in_offset + j * d->in_ld;
        part.out = (T *)d->out + j * d->out_ld;
        if (part.cols)
            FN(dw_run_blocks)(&part);
        for (int i = 0, size; i < part.n; i += (1 << size) + (int)part.pair_distance) {
            size = FN(dw_choose_pairs)(part.n, &i, &part.pair_distance);
            halved[size](&part, i, d->cols - VL / 2);
        }
    }
}
