/* Depthwise runs of few terms (up to CONVT_DW_TERMS terms and CONVT_DW_SOURCES sources): all j of one or two phases before the
 * next channels. Included by body_depthwise.h after body_blocks.h, whose functions it uses.
 *
 * Registers hold the weights of a vector of channels, and the last `terms` pixels of each source. Loop order: phases (one, or
 * two that read the same pixels), then vectors of channels, then j, then sources and terms. A pixel is loaded once for all its
 * terms. Only the vector width matters: 64-byte vectors may take non-temporal stores.
 */
#define DW_L1_BYTES (1 << 14) /* bytes of outputs that stay in L1 */

/* Add terms first to last - 1 of all sources. The pixel of term 0 is in place `at`; those of later terms are in the places
 * before, modulo `terms`. */
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

/* Store one vector of outputs of dw_stationary, with the activation. */
INLINE void FN(dw_store_vector)(const int mode, const convt_act act, const int stream, ptrdiff_t out_prefetch, int lanes,
                                T *to, V sum)
{
    if (act.code != CONVT_NONE)
        sum = V_(act_simple)(sum, &act);
    if (stream) {
        V_(stream)(to, sum);
        return;
    }
    __builtin_prefetch(to + out_prefetch, 1);
    if (mode == DW_WHOLE)
        V_(store)(to, sum);
    else
        V_(storen)(to, sum, lanes);
}

/* Compute all j of one phase, or of two that read the same pixels (`second` terms in the second one), one vector of channels
 * after the other. Outputs before and after the run are included. The last vector overlaps the one before if it is not
 * whole. */
INLINE void FN(dw_stationary)(const int mode, const int sources, const int phases, const int terms, const int second,
                              const convt_dw *d, const convt_dw_phase *phase)
{
    const convt_act act = *d->act;
    const ptrdiff_t in_ld = d->in_ld, out_ld = d->out_ld, out_prefetch = d->out_prefetch;
    const ptrdiff_t phase_distance = phase[phases - 1].out - phase->out;
    const int cols = d->cols, stream = DW_NON_TEMPORAL(d, mode == DW_WHOLE);
    const int before = d->has_before ? phase->outputs_before : 0, after = d->has_after ? phase->outputs_after : 0;
    const int before_1 = d->has_before ? phase[phases - 1].outputs_before : 0;
    const int after_1 = d->has_after ? phase[phases - 1].outputs_after : 0;
    for (int c = 0; c < cols; c += VL) {
        c = mode == DW_PARTIAL || c + VL <= cols ? c : cols - VL;
        V weights[2][CONVT_DW_TERMS][CONVT_DW_SOURCES];
        V pixel[CONVT_DW_TERMS][CONVT_DW_SOURCES]; /* the pixel of j is in place j % terms */
        const T *x[CONVT_DW_SOURCES];
        T *out = (T *)d->out + phase->out + c;
        const V start = V_(load)((const T *)d->init + c);
#pragma GCC unroll 4
        for (int s = 0; s < sources; s++) {
            const T *w = (const T *)d->w[s] + c;
            x[s] = (const T *)d->in[s] + d->in_offset + phase->term->in + c;
#pragma GCC unroll 4
            for (int u = 0; u < terms; u++) {
                weights[0][u][s] = V_(load)(w + phase->term[u].w);
                if (u < second)
                    weights[1][u][s] = V_(load)(w + phase[1].term[u].w);
                if (u > 0)
                    pixel[terms - u][s] = FN(dw_load)(mode, x[s] - u * in_ld, cols, NULL, 0);
            }
        }
#pragma GCC unroll 4
        for (int i = terms - 1; i > 0; i--) {
            if (before >= i)
                FN(dw_store_vector)(mode, act, stream, out_prefetch, cols, out - i * out_ld,
                                    FN(dw_sum)(sources, terms, terms - i, 0, terms - i, start, weights[0], pixel));
            if (phases == 2 && before_1 >= i)
                FN(dw_store_vector)(mode, act, stream, out_prefetch, cols, out + phase_distance - i * out_ld,
                                    FN(dw_sum)(sources, terms, terms - i, 0, terms - i, start, weights[1], pixel));
        }
        for (int n = d->n; n > 0; n -= terms)
#pragma GCC unroll 4
            for (int i = 0; i < terms && i < n; i++) {
#pragma GCC unroll 4
                for (int s = 0; s < sources; s++) {
                    pixel[i][s] = FN(dw_load)(mode, x[s], cols, NULL, 0);
                    x[s] += in_ld;
                }
                V acc[2] = {start, start};
#pragma GCC unroll 4
                for (int s = 0; s < sources; s++)
#pragma GCC unroll 4
                    for (int u = 0; u < terms; u++) {
                        const V input = pixel[(i + terms - u) % terms][s];
                        acc[0] = V_(fma)(input, weights[0][u][s], acc[0]);
                        if (u < second)
                            acc[1] = V_(fma)(input, weights[1][u][s], acc[1]);
                    }
                FN(dw_store_vector)(mode, act, stream, out_prefetch, cols, out, acc[0]);
                if (phases == 2)
                    FN(dw_store_vector)(mode, act, stream, out_prefetch, cols, out + phase_distance, acc[1]);
                out += out_ld;
            }
        if (!after && !after_1)
            continue;
#pragma GCC unroll 4
        for (int s = 0; s < sources; s++)
#pragma GCC unroll 4
            for (int u = 1; u < terms; u++)
                pixel[terms - u][s] = FN(dw_load)(mode, x[s] - u * in_ld, cols, NULL, 0);
#pragma GCC unroll 4
        for (int i = 1; i < terms; i++, out += out_ld) {
            if (after >= i)
                FN(dw_store_vector)(mode, act, stream, out_prefetch, cols, out,
                                    FN(dw_sum)(sources, terms, i - 1, i, terms, start, weights[0], pixel));
            if (phases == 2 && after_1 >= i)
                FN(dw_store_vector)(mode, act, stream, out_prefetch, cols, out + phase_distance,
                                    FN(dw_sum)(sources, terms, i - 1, i, second, start, weights[1], pixel));
        }
    }
}

#define DW_STATIONARY(mode, sources, phases, terms, second)                                                       \
    static void FN(dw_stationary_##mode##_##sources##_##phases##_##terms##_##second)(const convt_dw *d,           \
                                                                                     const convt_dw_phase *phase) \
    {                                                                                                             \
        FN(dw_stationary)(mode, sources, phases, terms, second, d, phase);                                        \
    }
DW_KINDS(DW_STATIONARY, DW_WHOLE, 1) DW_KINDS(DW_STATIONARY, DW_WHOLE, 2) DW_KINDS(DW_STATIONARY, DW_WHOLE, 3)
DW_KINDS(DW_STATIONARY, DW_PARTIAL, 1) DW_KINDS(DW_STATIONARY, DW_PARTIAL, 2) DW_KINDS(DW_STATIONARY, DW_PARTIAL, 3)
#undef DW_STATIONARY

/* Compute a run by dw_stationary. If more than two phases read the inputs one after the other, or phases share cache lines of
 * the output, a limited number of j is computed at a time, so that these lines stay in L1. */
static void FN(dw_run_stationary)(const convt_dw *d)
{
#define DW_NAME(mode, sources, phases, terms, second) FN(dw_stationary_##mode##_##sources##_##phases##_##terms##_##second),
    static void (*const kernels[][CONVT_DW_SOURCES][8])(const convt_dw *, const convt_dw_phase *) = {
        {{DW_KINDS(DW_NAME, DW_WHOLE, 1)}, {DW_KINDS(DW_NAME, DW_WHOLE, 2)}, {DW_KINDS(DW_NAME, DW_WHOLE, 3)}},
        {{DW_KINDS(DW_NAME, DW_PARTIAL, 1)}, {DW_KINDS(DW_NAME, DW_PARTIAL, 2)}, {DW_KINDS(DW_NAME, DW_PARTIAL, 3)}},
    };
#undef DW_NAME
    convt_dw part = *d;
    const ptrdiff_t fit = d->out_prefetch ? 0 : DW_L1_BYTES / (ptrdiff_t)sizeof(T) / d->out_ld;
    const int shared = d->phases > 2 || d->cols % VL;
    const int most = !shared ? d->n : fit < DW_MOST_J ? DW_MOST_J : (int)fit;
    for (int done = 0; done < d->n; done += part.n) {
        part.n = d->n - done < most ? d->n - done : most;
        part.has_before = d->has_before && !done;
        part.has_after = d->has_after && done + part.n == d->n;
        part.in_offset = d->in_offset + done * d->in_ld;
        part.out = (T *)d->out + done * d->out_ld;
        const convt_dw_phase *phase = d->phase, *end = phase + d->phases;
        while (phase < end)
            for (int rest = phase->set_size, phases; rest > 0; rest -= phases, phase += phases) {
                const int kind = FN(dw_kind)(phase, rest, &phases);
                kernels[d->cols < VL][d->sources - 1][kind](&part, phase);
            }
    }
}
#undef DW_L1_BYTES
