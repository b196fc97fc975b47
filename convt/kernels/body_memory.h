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
