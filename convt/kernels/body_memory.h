/* Between user memory (S) and ours (T): widening in, rounding out. The includer defines
 *   S, T, V, VL, V_(op), FN(name)
 *   S_LOAD, S_LOADN, S_STORE, S_STOREN   vectors of T from and to S
 * Elements that are not adjacent go through a vector's worth on the stack.
 */
static void FN(widen)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                      int cols_padded)
{
    for (int r = 0; r < rows; r++) {
        T *to = (T *)dst + r * ld;
        const S *from = (const S *)src + r * rs;
        int c = 0;
        if (cs == 1) {
            for (; c + VL <= cols; c += VL) {
                __builtin_prefetch(from + c + 6 * rs);
                V_(store)(to + c, S_LOAD(from + c));
            }
            if (c < cols)
                V_(storen)(to + c, S_LOADN(from + c, cols - c), cols - c);
        } else {
            for (; c < cols; c += VL) {
                const int n = cols - c < VL ? cols - c : VL;
                S some[VL];
                for (int i = 0; i < n; i++)
                    some[i] = from[(c + i) * cs];
                V_(storen)(to + c, S_LOADN(some, n), n);
            }
        }
        for (c = cols; c < cols_padded; c++)
            to[c] = 0;
    }
}

static void FN(gather)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, const int64_t *map, int rows, int cols,
                       int cols_padded)
{
#ifdef S_IS_T
    /* By index where the indices fit: whole vectors, the last one repeating a lane that exists. */
    int32_t index[VL];
    for (int c = 0; c < cols_padded; c += VL) {
        int fits = 1;
        for (int i = 0; i < VL; i++) {
            const int64_t at = map[c + i < cols ? c + i : cols - 1];
            index[i] = (int32_t)at;
            fits &= at == index[i];
        }
        T *to = (T *)dst + c;
        const S *from = src;
        if (fits)
            for (int r = 0; r < rows; r++)
                V_(store)(to + r * ld, V_(gather)(from + r * rs, index));
        else
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < VL && c + i < cols; i++)
                    to[r * ld + i] = from[r * rs + map[c + i]];
    }
#else
    for (int r = 0; r < rows; r++) {
        T *to = (T *)dst + r * ld;
        const S *from = (const S *)src + r * rs;
        for (int c = 0; c < cols; c += VL) {
            const int n = cols - c < VL ? cols - c : VL;
            S some[VL];
            for (int i = 0; i < n; i++)
                some[i] = from[map[c + i]];
            V_(storen)(to + c, S_LOADN(some, n), n);
        }
    }
#endif
}

/* VL values of j at once where lanes are few and adjacent: the outputs of consecutive j are then one stretch, and its
 * vectors are gathered from col by index. Returns the first j it left. */
static int64_t FN(overlap_block)(const convt_overlap *o)
{
    int32_t index[VL * VL / 2];
    T last_mask[VL * VL / 2], init[VL * VL / 2];
    const int count = o->lanes, last = o->cols - (o->terms - 1) * o->lanes;
    int64_t j = o->j0;
    if (2 * count > VL || o->out_c != 1 || o->out_x != o->channels || j - (o->terms - 1) < o->i0 || o->lane_lo > 0
        || o->lane_hi < count)
        return j;
    for (int e = 0; e < VL * count; e++) {
        index[e] = (int32_t)(e / count * o->ld + e % count);
        init[e] = ((const T *)o->init)[e % count];
        last_mask[e] = e % count < last; /* 1 or 0 */
    }
    for (; j + VL <= o->j1 && j + VL <= o->i1; j += VL) {
        S *out = (S *)o->out + (j - o->j0) * o->out_j;
        for (int v = 0; v < count; v++) {
            V sum = V_(load)(init + v * VL);
            for (int u = 0; u < o->terms; u++) {
                const T *from = (const T *)o->col + (j - u - o->i0) * o->ld + u * count;
                const V some = V_(gather)(from, index + v * VL);
                /* Columns beyond the last tap belong to someone else, whatever they hold. */
                sum += u == o->terms - 1 && last < count ? V_(select_ne)(V_(load)(last_mask + v * VL), some) : some;
            }
            S_STORE(out + v * VL, V_(act)(sum, o->act));
        }
    }
    return j;
}

static void FN(overlap)(const convt_overlap *o)
{
    for (int64_t j = FN(overlap_block)(o); j < o->j1; j++) {
        S *out = (S *)o->out + (j - o->j0) * o->out_j;
        for (int l = o->lane_lo; l < o->lane_hi; l += VL) {
            const int n = o->lane_hi - l < VL ? o->lane_hi - l : VL;
            V sum = V_(loadn)((const T *)o->init + l, n);
            for (int u = 0; u < o->terms; u++) {
                const int64_t i = j - u;
                const int c = u * o->lanes + l;
                if (i < o->i0 || i >= o->i1 || c >= o->cols)
                    continue;
                sum += V_(loadn)((const T *)o->col + (i - o->i0) * o->ld + c, o->cols - c < n ? o->cols - c : n);
            }
            const V y = V_(act)(sum, o->act);
            if (o->out_c == 1 && o->out_x == o->channels) { /* lanes are adjacent */
                if (n == VL)
                    S_STORE(out + l, y);
                else
                    S_STOREN(out + l, y, n);
            } else {
                S some[VL];
                S_STORE(some, y);
                for (int i = 0, x = l / o->channels, c = l % o->channels; i < n; i++) {
                    out[x * o->out_x + c * o->out_c] = some[i];
                    if (++c == o->channels)
                        c = 0, x++;
                }
            }
        }
    }
}

static __attribute__((unused)) void FN(pack_b)(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb)
{
    FN(widen)((T *)dst + (ptrdiff_t)k0 * nb + n0, nb, src, rs, cs, rows, cols, cols);
}

static void FN(store)(void *const *rows, ptrdiff_t cs, const void *src, ptrdiff_t ld, int mr, int cols, const convt_act *act)
{
    for (int m = 0; m < mr; m++) {
        const T *from = (const T *)src + m * ld;
        S *to = rows[m];
        if (!to)
            continue;
        for (int c = 0; c < cols; c += VL) {
            const int n = cols - c < VL ? cols - c : VL;
            const V y = V_(act)(V_(loadn)(from + c, n), act);
            if (cs == 1 && n == VL) {
                S_STORE(to + c, y);
            } else if (cs == 1) {
                S_STOREN(to + c, y, n);
            } else {
                S some[VL];
                S_STORE(some, y);
                for (int i = 0; i < n; i++)
                    to[(c + i) * cs] = some[i];
            }
        }
    }
}
