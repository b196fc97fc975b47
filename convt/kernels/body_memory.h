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
            for (; c + VL <= cols; c += VL)
                V_(store)(to + c, S_LOAD(from + c));
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
        for (int c = cols; c < cols_padded; c++)
            to[c] = 0;
    }
}

static void FN(overlap)(const convt_overlap *o)
{
    for (int64_t j = o->j0; j < o->j1; j++) {
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
