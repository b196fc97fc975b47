/* One run of a depthwise convolution. The includer defines T, V, VL, V_(op), FN(name). */
INLINE void FN(dw_block)(const int count, const int full, const convt_dw *d, int j, int c, int lanes)
{
    V acc[8];
    const V start = V_(load)((const T *)d->init + c);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[i] = start;
    for (int t = 0; t < d->taps; t++) {
        const T *in = (const T *)d->in[t] + j * d->in_ld + c;
        const V w = V_(load)((const T *)d->w[t] + c);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            acc[i] = V_(fma)(full ? V_(load)(in + i * d->in_ld) : V_(loadn)(in + i * d->in_ld, lanes), w, acc[i]);
    }
    T *out = (T *)d->out + j * d->out_ld + c;
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        const V y = V_(act_simple)(acc[i], d->act);
        if (full)
            V_(store)(out + i * d->out_ld, y);
        else
            V_(storen)(out + i * d->out_ld, y, lanes);
    }
}

static void FN(depthwise)(const convt_dw *d)
{
    CONVT_ASSERT(d->act->code <= CONVT_LEAKY);
    for (int c = 0; c < d->cols; c += VL) {
        const int lanes = d->cols - c < VL ? d->cols - c : VL;
        int j = 0;
        if (lanes == VL) {
            for (; j + 8 <= d->n; j += 8)
                FN(dw_block)(8, 1, d, j, c, VL);
            for (; j < d->n; j++)
                FN(dw_block)(1, 1, d, j, c, VL);
        } else {
            for (; j + 8 <= d->n; j += 8)
                FN(dw_block)(8, 0, d, j, c, lanes);
            for (; j < d->n; j++)
                FN(dw_block)(1, 0, d, j, c, lanes);
        }
    }
}
