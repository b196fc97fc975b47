/* One run of a depthwise convolution. The includer defines T, V, VL, V_(op), FN(name). */
#include "body_groups.h"
#include "body_dots.h"
#ifndef FEW_SHAPES
#include "body_ordered.h"
#endif

#define DW_MOST 8   /* values of j at once: sums that hide the latency of multiply-adds and share a load of weights */
#define DW_STRETCH 5 /* terms that share what is loaded or picked from a pixel; of two phases four each */
#define DW_FEW 3     /* j's that are not worth loading weights for; of a single one out_ld may be 0, too */
#define DW_NEAR (1 << 14) /* bytes of outputs that stay in the first-level cache */
#define DW_AHEAD 2048     /* bytes ahead of a pixel, which are asked for: read from the last to the first, they are not foreseen */

/* Where the inputs of a vector of lanes are: side by side, all of them or the first ones, or picked from as many elements
 * as a number, a vector or two vectors hold; or from no more than there are, which takes masks. Of half a vector of lanes those
 * of two j's share one: half of the elements, or a pick, from each. */
#ifndef DW_ENUM
#define DW_ENUM
enum { DW_WHOLE, DW_PART, DW_HALVES, DW_ONE, DW_PICK, DW_PICK_2, DW_PICK_LAST, DW_PICK_HALVES };
#endif

INLINE V FN(dw_load)(const int how, const T *p, int lanes, const int32_t *index, ptrdiff_t beside)
{
    if (how == DW_WHOLE)
        return V_(load)(p);
    if (how == DW_ONE)
        return V_(set1)(*p);
    if (how == DW_HALVES)
        return V_(load_halves)(p, p + beside);
#ifdef HAVE_PICK
    if (how == DW_PICK_HALVES)
        return V_(pick)(V_(load)(p), V_(load)(p + beside), index);
    if (how == DW_PICK)
        return V_(pick_1)(V_(load)(p), index);
    if (how == DW_PICK_2)
        return V_(pick)(V_(load)(p), V_(load)(p + VL), index);
    if (how == DW_PICK_LAST) {
        const int span = index[VL - 1] + 1, low = span < VL ? span : VL;
        return V_(pick)(V_(loadn)(p, low), V_(loadn)(p + low, span - low), index);
    }
#else
    (void)index;
#endif
    return V_(loadn)(p, lanes);
}

/* Weights or the like, of which every j has the same. */
INLINE V FN(dw_same)(const int how, const T *p)
{
    return how == DW_HALVES || how == DW_PICK_HALVES ? V_(load_half)(p) : V_(load)(p);
}

/* Below, sums are `count` values of j, so that these share a load of weights; or, `across`, of one j so many vectors of
 * channels, all whole. Pointers move from one to the next: a distance for each would take all the registers that there are.
 * Elements from one to the next: */
#define STEP(ld) (across ? VL : (ld))

/* The i-th vector of weights or the like, of which every j has the same: `first`. */
#define EACH(p, i, first) (across ? V_(load)((p) + (i) * VL) : (first))

/* acc[i] to out + i steps, as T. */
INLINE void FN(dw_finish)(const int count, const int across, const int how, const convt_dw *d, V *acc, T *out, int lanes)
{
    const convt_act act = *d->act;
    const ptrdiff_t ld = STEP(d->out_ld), ahead = d->ahead, beside = d->beside * d->out_ld;
    const int halves = how == DW_HALVES || how == DW_PICK_HALVES;
    if (act.code != CONVT_NONE)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            acc[i] = V_(act_simple)(acc[i], &act);
    if (d->stream) {
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, out += ld)
            V_(stream)(out, acc[i]);
        return;
    }
    if (ahead) {
        const T *next = out + ahead;
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, next += ld) {
            __builtin_prefetch(next, 1);
            if (halves)
                __builtin_prefetch(next + beside, 1);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++, out += ld) {
        if (how == DW_WHOLE)
            V_(store)(out, acc[i]);
        else if (halves)
            V_(store_halves)(out, out + beside, acc[i]);
        else
            V_(storen)(out, acc[i], lanes);
    }
}

/* A sum runs over stretches of DW_STRETCH terms, in these over the sources, of each over the stretch's terms: in every kernel
 * here, so that it does not depend on which computes it. The term that not all lanes have comes last. */

/* A stretch of one source: `terms` terms, and `second` of another phase, where each reads the pixel before that of the term
 * before. What is loaded or picked from a pixel serves all j's that read it. Pixels that are not `there` add nothing. */
INLINE void FN(dw_slide)(const int count, const int terms, const int second, const int how, const convt_dw *d, const T *x,
                         const T *w, const convt_dw_term *term, const convt_dw_term *other, int lanes, const int32_t *index,
                         unsigned there, V acc[2][DW_MOST])
{
    V weights[2][DW_STRETCH];
#pragma GCC unroll 5
    for (int u = 0; u < terms; u++)
        weights[0][u] = FN(dw_same)(how, w + term[u].w);
#pragma GCC unroll 5
    for (int u = 0; u < second; u++)
        weights[1][u] = FN(dw_same)(how, w + other[u].w);
    x += term->in + (count - 1) * d->in_ld;
#pragma GCC unroll 16
    for (int i = count - 1; i > -terms; i--, x -= d->in_ld) {
        if (!(there >> (i + terms - 1) & 1))
            continue;
        V some = FN(dw_load)(how, x, lanes, index, d->beside * d->in_ld);
        if (second > 0 && how != DW_PICK_HALVES && d->far) /* (of one phase the test takes 4% where inputs are near) */
            __builtin_prefetch((const char *)x + DW_AHEAD);
        IN_REGISTER(some); /* else GCC loads it for each multiply-add: two loads, where it crosses lines */
#pragma GCC unroll 5
        for (int u = 0; u < terms; u++) {
            if (i + u < 0 || i + u >= count)
                continue;
            acc[0][i + u] = V_(fma)(some, weights[0][u], acc[0][i + u]);
            if (u < second)
                acc[1][i + u] = V_(fma)(some, weights[1][u], acc[1][i + u]);
        }
    }
}

/* One phase, or two that read the same inputs: `from` and `out` are at channel c of the first j. */
INLINE void FN(dw_some)(const int phases, const int count, const int across, const int how, const convt_dw *d,
                        const convt_dw_phase *phase, ptrdiff_t from, T *out, int j, int c, int lanes)
{
    V acc[2][DW_MOST];
    const ptrdiff_t in_ld = STEP(d->in_ld), beside = d->beside * d->in_ld;
    const int32_t *index = d->index + c;
    const convt_dw_term *term = phase->term, *other = phase[phases - 1].term;
    const int slides = phase->sliding && !across && count > 1, sources = d->sources;
    const T *init = (const T *)d->init + c;
    const V start = FN(dw_same)(how, init);
    const int stretch = phases == 2 ? DW_STRETCH - 1 : DW_STRETCH;
    int64_t begin = d->low_pixel - j, end = d->high_pixel - j; /* where what the stretch's first term reads is there */
    int rest = phase->terms - phase->cut, both = phases == 2 ? phase[1].terms : 0;
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[0][i] = acc[1][i] = EACH(init, i, start);
    for (; rest > 0; rest -= stretch, both -= stretch, term += stretch, other += stretch, begin += stretch, end += stretch) {
#define SLIDE(is, terms, second)                                                                                        \
    if (slides && rest is terms && (phases == 1 || both is second)) {                                                   \
        const unsigned there =                                                                                          \
            d->skips ? there_bits(begin + (terms) - 1, end + (terms) - 1, count + (terms) - 1) : ~0u;                  \
        for (int s = 0; s < sources; s++)                                                                               \
            FN(dw_slide)(count, terms, phases == 1 ? 0 : second, how, d, (const T *)d->in[s] + from,                    \
                         (const T *)d->w[s] + c, term, other, lanes, index, how <= DW_PART && phases == 1 ? there : ~0u, acc);  \
        continue;                                                                                                       \
    }
        if (phases == 1) {
            SLIDE(>=, 5, 0)
            SLIDE(==, 1, 0)
        }
        SLIDE(>=, 4, 4)
        SLIDE(==, 3, 3)
        SLIDE(==, 2, 2)
        if (phases == 2) {
            SLIDE(==, 2, 1)
        }
#undef SLIDE
        for (int s = 0; s < sources; s++)
            for (int u = 0; u < stretch && u < rest; u++) {
                if (d->skips && (-u < begin || -u >= end))
                    continue;
                const T *x = (const T *)d->in[s] + from + term[u].in;
                const T *low = (const T *)d->w[s] + c + term[u].w, *high = low;
                const V first = FN(dw_same)(how, low);
                if (phases == 2 && u < both) {
                    high = (const T *)d->w[s] + c + other[u].w;
                    const V second = FN(dw_same)(how, high);
#pragma GCC unroll 8
                    for (int i = 0; i < count; i++, x += in_ld) {
                        const V some = FN(dw_load)(how, x, lanes, index, beside);
                        acc[0][i] = V_(fma)(some, EACH(low, i, first), acc[0][i]);
                        acc[1][i] = V_(fma)(some, EACH(high, i, second), acc[1][i]);
                    }
                } else {
#pragma GCC unroll 8
                    for (int i = 0; i < count; i++, x += in_ld)
                        acc[0][i] = V_(fma)(FN(dw_load)(how, x, lanes, index, beside), EACH(low, i, first), acc[0][i]);
                }
            }
    }
    /* What the other lanes would add is not 0 where the input is not finite. */
    if (phases == 1 && phase->cut && c < d->none) {
        const T *masks = (const T *)d->mask + c;
        const V mask = V_(load)(masks);
        term = phase->term + phase->terms - 1;
        for (int s = 0; s < sources; s++) {
            const T *x = (const T *)d->in[s] + term->in + from;
            const T *weights = (const T *)d->w[s] + term->w + c;
            const V wt = V_(load)(weights);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++, x += in_ld)
                acc[0][i] = V_(fma_where)(EACH(masks, i, mask), FN(dw_load)(how, x, lanes, index, beside), EACH(weights, i, wt),
                                          acc[0][i]);
        }
    }
    FN(dw_finish)(count, across, how, d, acc[0], out + phase->out, lanes);
    if (phases == 2)
        FN(dw_finish)(count, across, how, d, acc[1], out + phase[1].out, lanes);
}

/* All phases of `count` sums from j and c on. */
INLINE void FN(dw_vector)(const int count, const int across, const int how, const convt_dw *d, int j, int c, int lanes)
{
    const ptrdiff_t from = d->from + j * d->in_ld + (how < DW_ONE ? c : d->at[c]);
    const int most = sizeof(V) < 64 && count == DW_MOST ? count / 2 : count; /* of a pair: there are half as many registers */
    T *out = (T *)d->out + j * d->out_ld + c;
    const convt_dw_phase *phase = d->phase, *end = phase + d->phases;
    if (how == DW_WHOLE && !across && d->coming) {
        const T *coming = (const T *)d->coming + from;
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, coming += d->in_ld)
            __builtin_prefetch(coming, 0, 2);
    }
    for (int rest; phase < end; phase += rest) {
        for (rest = phase->sharing; rest > 1; rest -= 2, phase += 2)
            for (int i = 0; i < count; i += most)
                FN(dw_some)(2, most, across, how, d, phase, from + i * STEP(d->in_ld), out + i * STEP(d->out_ld),
                            j + i, c + i * STEP(0), lanes);
        if (rest)
            FN(dw_some)(1, count, across, how, d, phase, from, out, j, c, lanes);
    }
}

/* Terms first to last - 1 of all sources; the pixel of term 0 is in place `at`, of later ones in those before. */
INLINE V FN(dw_sum)(const int sources, const int terms, const int at, const int first, const int last, V sum,
                    V weights[CONVT_DW_TERMS][CONVT_DW_SOURCES], V pixel[CONVT_DW_TERMS][CONVT_DW_SOURCES])
{
#pragma GCC unroll 4
    for (int s = 0; s < sources; s++)
#pragma GCC unroll 4
        for (int u = first; u < last; u++)
            sum = V_(fma)(pixel[(at + terms - u) % terms][s], weights[u][s], sum);
    return sum;
}

/* One sum of dw_along, on its way to the output. */
INLINE void FN(dw_put)(const int how, const convt_act act, const int stream, ptrdiff_t ahead, int lanes, T *to, V sum)
{
    if (act.code != CONVT_NONE)
        sum = V_(act_simple)(sum, &act);
    if (how == DW_WHOLE && stream) {
        V_(stream)(to, sum);
        return;
    }
    __builtin_prefetch(to + ahead, 1);
    if (how == DW_WHOLE)
        V_(store)(to, sum);
    else
        V_(storen)(to, sum, lanes);
}

/* All j of one phase, or of two that read the same pixels, a vector of channels after the other: weights stay in registers,
 * and a pixel does for all its terms, those of the outputs before and after too. The last vector overlaps the one before, if
 * it has to. */
INLINE void FN(dw_along)(const int how, const int sources, const int phases, const int terms, const int second,
                         const convt_dw *d, const convt_dw_phase *phase)
{
    const convt_act act = *d->act;
    const ptrdiff_t in_ld = d->in_ld, out_ld = d->out_ld, ahead = d->ahead, apart = phase[phases - 1].out - phase->out;
    const int cols = d->cols, stream = d->stream, before = d->low ? phase->before : 0, after = d->high ? phase->after : 0;
    const int before_1 = d->low ? phase[phases - 1].before : 0, after_1 = d->high ? phase[phases - 1].after : 0;
    for (int c = 0; c < cols; c += VL) {
        c = how == DW_PART || c + VL <= cols ? c : cols - VL;
        V weights[2][CONVT_DW_TERMS][CONVT_DW_SOURCES], pixel[CONVT_DW_TERMS][CONVT_DW_SOURCES]; /* that of j is in place j % terms */
        const T *x[CONVT_DW_SOURCES];
        T *out = (T *)d->out + phase->out + c;
        const V start = V_(load)((const T *)d->init + c);
#pragma GCC unroll 4
        for (int s = 0; s < sources; s++) {
            const T *w = (const T *)d->w[s] + c;
            x[s] = (const T *)d->in[s] + d->from + phase->term->in + c;
#pragma GCC unroll 4
            for (int u = 0; u < terms; u++) {
                weights[0][u][s] = V_(load)(w + phase->term[u].w);
                if (u < second)
                    weights[1][u][s] = V_(load)(w + phase[1].term[u].w);
                if (u > 0)
                    pixel[terms - u][s] = FN(dw_load)(how, x[s] - u * in_ld, cols, NULL, 0);
            }
        }
#pragma GCC unroll 4
        for (int i = terms - 1; i > 0; i--) {
            if (before >= i)
                FN(dw_put)(how, act, stream, ahead, cols, out - i * out_ld,
                           FN(dw_sum)(sources, terms, terms - i, 0, terms - i, start, weights[0], pixel));
            if (phases == 2 && before_1 >= i)
                FN(dw_put)(how, act, stream, ahead, cols, out + apart - i * out_ld,
                           FN(dw_sum)(sources, terms, terms - i, 0, terms - i, start, weights[1], pixel));
        }
        for (int n = d->n; n > 0; n -= terms)
#pragma GCC unroll 4
            for (int i = 0; i < terms && i < n; i++) {
#pragma GCC unroll 4
                for (int s = 0; s < sources; s++) {
                    pixel[i][s] = FN(dw_load)(how, x[s], cols, NULL, 0);
                    x[s] += in_ld;
                }
                V acc[2] = {start, start};
#pragma GCC unroll 4
                for (int s = 0; s < sources; s++)
#pragma GCC unroll 4
                    for (int u = 0; u < terms; u++) {
                        const V some = pixel[(i + terms - u) % terms][s];
                        acc[0] = V_(fma)(some, weights[0][u][s], acc[0]);
                        if (u < second)
                            acc[1] = V_(fma)(some, weights[1][u][s], acc[1]);
                    }
                FN(dw_put)(how, act, stream, ahead, cols, out, acc[0]);
                if (phases == 2)
                    FN(dw_put)(how, act, stream, ahead, cols, out + apart, acc[1]);
                out += out_ld;
            }
        if (!after && !after_1)
            continue;
#pragma GCC unroll 4
        for (int s = 0; s < sources; s++)
#pragma GCC unroll 4
            for (int u = 1; u < terms; u++)
                pixel[terms - u][s] = FN(dw_load)(how, x[s] - u * in_ld, cols, NULL, 0);
#pragma GCC unroll 4
        for (int i = 1; i < terms; i++, out += out_ld) {
            if (after >= i)
                FN(dw_put)(how, act, stream, ahead, cols, out,
                           FN(dw_sum)(sources, terms, i - 1, i, terms, start, weights[0], pixel));
            if (phases == 2 && after_1 >= i)
                FN(dw_put)(how, act, stream, ahead, cols, out + apart,
                           FN(dw_sum)(sources, terms, i - 1, i, second, start, weights[1], pixel));
        }
    }
}

#define DW_ALONG(how, sources, phases, terms, second)                                                                          \
    static void FN(dw_along_##how##_##sources##_##phases##_##terms##_##second)(const convt_dw *d, const convt_dw_phase *phase) \
    {                                                                                                                          \
        FN(dw_along)(how, sources, phases, terms, second, d, phase);                                                           \
    }
#define DW_KINDS(of, how, sources)                                                                                       \
    of(how, sources, 1, 1, 0) of(how, sources, 1, 2, 0) of(how, sources, 1, 3, 0) of(how, sources, 2, 1, 1)              \
    of(how, sources, 2, 2, 1) of(how, sources, 2, 2, 2) of(how, sources, 2, 3, 2) of(how, sources, 2, 3, 3)
DW_KINDS(DW_ALONG, DW_WHOLE, 1) DW_KINDS(DW_ALONG, DW_WHOLE, 2) DW_KINDS(DW_ALONG, DW_WHOLE, 3)
#ifndef FEW_SHAPES
DW_KINDS(DW_ALONG, DW_PART, 1) DW_KINDS(DW_ALONG, DW_PART, 2) DW_KINDS(DW_ALONG, DW_PART, 3)
#endif
#undef DW_ALONG

/* Which of these kinds the next phase is, or the next two, if they read the same inputs and terms differ by one at most. */
INLINE int FN(dw_kind)(const convt_dw_phase *phase, int rest, int *phases)
{
    const int terms = phase->terms, fewer = rest > 1 ? terms - phase[1].terms : 2;
    *phases = fewer < 2 ? 2 : 1;
    return *phases == 2 ? 2 * terms + 1 - fewer : terms - 1;
}

/* Whether there are such kernels for all phases. */
static int FN(dw_fits)(const convt_dw *d)
{
    const int all = d->n + d->phase->before + d->phase->after;
    int fits = d->at || (!d->skips && d->n > 1 && all > DW_FEW && d->sources > 0 && d->sources <= CONVT_DW_SOURCES);
    for (int p = 0; p < d->phases; p++)
        fits &= d->phase[p].sliding && !d->phase[p].cut && d->phase[p].terms > 0 && d->phase[p].terms <= CONVT_DW_TERMS;
    return fits;
}

/* Some j's at a time, where phases read the same inputs one after the other or outputs share lines: so these stay near. */
static void FN(dw_all_along)(const convt_dw *d)
{
#define DW_NAME(how, sources, phases, terms, second) FN(dw_along_##how##_##sources##_##phases##_##terms##_##second),
    static void (*const along[][CONVT_DW_SOURCES][8])(const convt_dw *, const convt_dw_phase *) = {
        {{DW_KINDS(DW_NAME, DW_WHOLE, 1)}, {DW_KINDS(DW_NAME, DW_WHOLE, 2)}, {DW_KINDS(DW_NAME, DW_WHOLE, 3)}},
#ifndef FEW_SHAPES
        {{DW_KINDS(DW_NAME, DW_PART, 1)}, {DW_KINDS(DW_NAME, DW_PART, 2)}, {DW_KINDS(DW_NAME, DW_PART, 3)}},
#endif
    };
#undef DW_NAME
    convt_dw part = *d;
    const ptrdiff_t fit = d->ahead ? 0 : DW_NEAR / sizeof(T) / d->out_ld;
    const int shared = d->phases > 2 || d->cols % VL;
    const int most = !shared ? d->n : fit < DW_MOST ? DW_MOST : (int)fit;
    for (int done = 0; done < d->n; done += part.n) {
        part.n = d->n - done < most ? d->n - done : most;
        part.low = d->low && !done;
        part.high = d->high && done + part.n == d->n;
        part.from = d->from + done * d->in_ld;
        part.out = (T *)d->out + done * d->out_ld;
        const convt_dw_phase *phase = d->phase, *end = phase + d->phases;
        while (phase < end)
            for (int rest = phase->sharing, phases; rest > 0; rest -= phases, phase += phases) {
                const int kind = FN(dw_kind)(phase, rest, &phases);
                along[d->cols < VL][d->sources - 1][kind](&part, phase);
            }
    }
}

/* Of the j's from `j` on, how many share vectors with as many others, 1, 2, 4 or 8 by its logarithm, and how far on these are: up
 * to the last j, if that is nearer, some of them once more. There are two at least. */
INLINE int FN(dw_beside)(int n, int *j, ptrdiff_t *beside)
{
    *j = *j < n - 2 ? *j : n - 2;
    const int left = n - *j, size = left > 8 ? 3 : left > 4 ? 2 : left > 2 ? 1 : 0;
    *beside = left < 2 << size ? left - (1 << size) : 1 << size;
    return size;
}

/* A vector of n sums that is not whole, or does not lie as it is. Of a single one it matters little how much is picked from. */
#ifdef HAVE_PICK
#define DW_PICKED(n)                                             \
    else if (n == 1 && !d->room)                                 \
        FN(dw_vector)(1, 0, DW_PICK_LAST, d, j, c, lanes);       \
    else if (!d->room)                                           \
        for (int i = 0; i < n; i++)                              \
            FN(dw_other_1)(d, j + i, c);                         \
    else                                                         \
        FN(dw_vector)(n, 0, DW_PICK_2, d, j, c, lanes);
#else
#define DW_PICKED(n)
#endif
#define DW_OTHER(n)                                                            \
    static __attribute__((noinline)) void FN(dw_other_##n)(const convt_dw *d, int j, int c) \
    {                                                                          \
        const int lanes = d->cols - c < VL ? d->cols - c : VL;                 \
        if (!d->at)                                                            \
            FN(dw_vector)(n, 0, DW_PART, d, j, c, lanes);                      \
        else if (d->index[c + VL - 1] == 0)                                    \
            FN(dw_vector)(n, 0, DW_ONE, d, j, c, lanes);                       \
        DW_PICKED(n)                                                           \
    }
static void FN(dw_other_1)(const convt_dw *d, int j, int c);
DW_OTHER(1) DW_OTHER(8)
#ifndef FEW_SHAPES
DW_OTHER(4)
static void FN(dw_other_2)(const convt_dw *d, int j, int c)
{
    FN(dw_other_1)(d, j, c);
    FN(dw_other_1)(d, j + 1, c);
}
#endif
#undef DW_OTHER
#undef DW_PICKED

#ifdef HAVE_PICK
#include "body_picked.h"
#endif
#undef DW_KINDS

#define DW_COLUMNS(n)                                                        \
    static void FN(dw_columns_##n)(const convt_dw *d, int j)                 \
    {                                                                        \
        int c = 0;                                                           \
        /* Of few j, channels side by side are enough sums. */               \
        for (; n == 1 && !d->at && c + 8 * VL <= d->cols; c += 8 * VL)       \
            FN(dw_vector)(8, 1, DW_WHOLE, d, j, c, VL);                      \
        for (; n == 1 && !d->at && c + 4 * VL <= d->cols; c += 4 * VL)       \
            FN(dw_vector)(4, 1, DW_WHOLE, d, j, c, VL);                      \
        /* The last vector overlaps the one before, where there is one. */   \
        for (; !d->at && VL <= d->cols && c < d->cols; c += VL)              \
            FN(dw_vector)(n, 0, DW_WHOLE, d, j, c + VL <= d->cols ? c : d->cols - VL, VL); \
        for (; c < d->cols; c += VL)                                         \
            FN(dw_other_##n)(d, j, c);                                       \
    }
DW_COLUMNS(1) DW_COLUMNS(8)
#ifndef FEW_SHAPES
DW_COLUMNS(2) DW_COLUMNS(4)
#endif
#undef DW_COLUMNS
#undef STEP
#undef EACH

#ifndef FEW_SHAPES
/* Whether the last channels fill no more than half a vector, of j's enough to share vectors. (Where inputs come from afar, it is
 * these that take the time.) */
static int FN(dw_rest_is_half)(const convt_dw *d)
{
    const int rest = d->cols % VL, fits = rest && 2 * rest <= VL && 2 * d->cols >= VL && d->n >= DW_MOST;
    return fits && !(d->at || d->far || d->skips || d->stream || d->phase->cut);
}
static void FN(dw_blocks_halved)(const convt_dw *d);

#define DW_HALVED(n)                                                                        \
    static __attribute__((noinline)) void FN(dw_halved_##n)(const convt_dw *d, int j, int c) \
    {                                                                                       \
        FN(dw_vector)(n, 0, DW_HALVES, d, j, c, VL / 2);                                    \
    }
DW_HALVED(1) DW_HALVED(2) DW_HALVED(4) DW_HALVED(8)
#undef DW_HALVED
#endif

/* All j's by blocks of a few. */
static void FN(dw_blocks)(const convt_dw *d)
{
#ifdef FEW_SHAPES
    for (int j = 0, count; j < d->n; j += count) {
        count = d->n >= 8 && d->n - j > 1 ? 8 : 1;
        (count == 8 ? FN(dw_columns_8) : FN(dw_columns_1))(d, j + count <= d->n ? j : d->n - count);
    }
#else
    if (FN(dw_rest_is_half)(d)) {
        FN(dw_blocks_halved)(d);
        return;
    }
    static void (*const columns[])(const convt_dw *, int) = {
        FN(dw_columns_1), FN(dw_columns_2), FN(dw_columns_4), FN(dw_columns_8),
    };
    for (int j = 0; j < d->n;) {
        /* The fewest values of j that cover the rest, some of them once more; the most that there are, if none do. */
        int size = 0;
        while (size < 3 && 1 << size < d->n - j)
            size++;
        if (1 << size > d->n)
            size--;
        /* Their channels are enough sums. */
        if (!d->at && size < 3 && d->cols >= 4 * VL)
            size = d->phase->sliding && d->n >= DW_MOST && d->n - j > 2 ? 3 : 0;
        const int count = 1 << size;
        columns[size](d, j + count <= d->n ? j : d->n - count);
        j += count;
    }
#endif
}

#ifndef FEW_SHAPES
/* Blocks of twice as many j's, whose last channels, up to half a vector of them, are those of two j's in a vector. */
static void FN(dw_blocks_halved)(const convt_dw *d)
{
    static void (*const halved[])(const convt_dw *, int, int) = {
        FN(dw_halved_1), FN(dw_halved_2), FN(dw_halved_4), FN(dw_halved_8),
    };
    convt_dw part = *d;
    part.cols = d->cols / VL * VL;
    for (int j = 0; j < d->n; j += part.n) {
        part.n = d->n - j < 4 * DW_MOST ? d->n - j : 2 * DW_MOST;
        part.from = d->from + j * d->in_ld;
        part.out = (T *)d->out + j * d->out_ld;
        if (part.cols)
            FN(dw_blocks)(&part);
        for (int i = 0, size; i < part.n; i += (1 << size) + (int)part.beside) {
            size = FN(dw_beside)(part.n, &i, &part.beside);
            halved[size](&part, i, d->cols - VL / 2);
        }
    }
}
#endif

/* One output of a phase before or after the run: that of j, from some of its terms. */
static void FN(dw_end)(const convt_dw *d, const convt_dw_phase *phase, int j, int first, int last)
{
    convt_dw one = *d;
    convt_dw_phase part = *phase;
    part.term += first;
    part.terms = last - first;
    part.sharing = 1;
    one.n = one.phases = 1;
    one.phase = &part;
    one.from += j * d->in_ld;
    one.out = (T *)d->out + j * d->out_ld;
    FN(dw_blocks)(&one);
}

static void FN(depthwise)(const convt_dw *d)
{
    CONVT_ASSERT(d->act->code <= CONVT_LEAKY);
    if (d->groups) {
        (d->groups->dots ? FN(dot_run) : FN(dwg_run))(d);
        return;
    }
    const int fits = FN(dw_fits)(d);
#ifndef FEW_SHAPES
    if (fits && d->ordered)
        FN(dw_all_in_order)(d);
    else if (fits && !d->at)
        FN(dw_all_along)(d);
#else
    if (fits && !d->at && d->cols >= VL)
        FN(dw_all_along)(d);
#endif
#ifdef HAVE_PICK
    else if (fits)
        FN(dw_grouped)(d);
#endif
    else {
        FN(dw_blocks)(d);
        const convt_dw_phase *p = d->phase;
        for (int lead = 0; p < d->phase + d->phases; p++) {
            lead = p->sharing ? p->terms : lead;
            for (int i = 1; d->low && i <= p->before; i++)
                FN(dw_end)(d, p, -i, 0, lead - i);
            for (int i = 1; d->high && i <= p->after; i++)
                FN(dw_end)(d, p, d->n - 1 + i, i, p->terms);
        }
    }
}
#undef DW_MOST
#undef DW_STRETCH
#undef DW_FEW
#undef DW_NEAR
