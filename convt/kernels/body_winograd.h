/* `wino_in`, `wino_out` and `wino_filter` of the contract: Winograd's transforms of one or two axes. The includer defines T, V,
 * VL, V_(op), FN(name).
 *
 * F(m, r) on n = m + r - 1 points computes m outputs of a filter of r taps. The points are 0, 1, infinity for n = 3; in
 * addition -1 for n = 4; in addition 2 and -2 for n = 6. The input transform of an axis depends on n only, the output transform
 * on n and m. n = m = 1 leaves an axis unchanged; the last axis is never of this kind. Filters are transformed when they are
 * packed; algorithms/winograd/transforms.py has the coefficients.
 *
 * A register tile is one vector of channels of all points (at most 6 x 6). Loop order: vectors of channels, then the last axis,
 * then the other one; in `wino_filter` points, then columns, then in-channels. Every ISA has these operations; `wino_out`
 * may take non-temporal stores.
 */
INLINE void FN(wino_transform_input)(const int n, V *d)
{
    if (n == 3) {
        d[0] -= d[1];
        d[2] -= d[1];
    } else if (n == 4) {
        const V d1 = d[1], d2 = d[2];
        d[0] -= d2;
        d[1] = d1 + d2;
        d[2] = d2 - d1;
        d[3] -= d1;
    } else if (n == 6) {
        const V four = V_(set1)(4), five = V_(set1)(5);
        const V d1 = d[1], d2 = d[2], d3 = d[3], d4 = d[4];
        const V even = d4 - d2, odd = (d3 - d1) + (d3 - d1), even4 = d4 - four * d2, odd4 = d3 - four * d1;
        d[0] = four * d[0] - five * d2 + d4;
        d[1] = even4 + odd4;
        d[2] = even4 - odd4;
        d[3] = even + odd;
        d[4] = even - odd;
        d[5] = four * d1 - five * d3 + d[5];
    }
}

/* Output transform of an axis. m is a compile-time constant for n < 6; for n = 6 it is 4 or 5. */
INLINE void FN(wino_transform_output)(const int n, int m, V *p)
{
    if (n == 3) {
        p[0] += p[1];
        p[1] += p[2];
    } else if (n == 4) {
        const V sum = p[1] + p[2], difference = p[1] - p[2];
        p[0] += sum;
        p[1] = difference;
        if (m == 2)
            p[1] += p[3];
        else
            p[2] = sum + p[3];
    } else if (n == 6) {
        const V one = p[1] + p[2], minus = p[1] - p[2], two = p[3] + p[4], four = p[3] - p[4], last = p[5];
        p[0] += one + two;
        p[1] = minus + V_(set1)(2) * four;
        p[2] = one + V_(set1)(4) * two;
        p[3] = minus + V_(set1)(8) * four;
        p[4] = one + V_(set1)(16) * two;
        HIDE_VALUE(m); /* else GCC duplicates all that follows for each m */
        if (m == 4)
            p[3] += last;
        else
            p[4] += last;
    }
}

INLINE void FN(wino_in_yx)(const int ny, const int nx, const convt_wino_in *w)
{
    const ptrdiff_t out_y = w->out_y, out_x = w->out_x; /* local copies, which no store can alias */
    char *out = w->out;
    for (int c = w->first; c < w->last; c += VL, out += sizeof(V)) {
        const int lanes = w->last - c;
        V d[6][6];
#pragma GCC unroll 6
        for (int y = 0; y < ny; y++) {
#pragma GCC unroll 6
            for (int x = 0; x < nx; x++) {
                const T *in = (const T *)w->in[y * nx + x] + c;
                d[y][x] = lanes >= VL ? V_(load)(in) : V_(loadn)(in, lanes);
            }
            FN(wino_transform_input)(nx, d[y]);
        }
#pragma GCC unroll 6
        for (int x = 0; x < nx; x++) {
            V column[6];
#pragma GCC unroll 6
            for (int y = 0; y < ny; y++)
                column[y] = d[y][x];
            FN(wino_transform_input)(ny, column);
#pragma GCC unroll 6
            for (int y = 0; y < ny; y++)
                V_(store)((T *)(out + y * out_y + x * out_x), column[y]);
        }
    }
}

INLINE void FN(wino_out_yx)(const int ny, int my, const int nx, int mx, const convt_wino_out *w)
{
    const int most_y = ny == 6 ? 5 : my, most_x = nx == 6 ? 5 : mx;
    const ptrdiff_t in_y = w->in_y, in_x = w->in_x;
    const convt_act act = *w->act;
    const int stream = w->stream;
    for (int c = 0; c < w->cols; c += VL) {
        const int lanes = w->cols - c;
        const T *in = (const T *)w->in + c;
        const V init = V_(load)((const T *)w->init + c);
        V p[6][6], check = V_(load)((const T *)w->check);
#pragma GCC unroll 6
        for (int y = 0; y < ny; y++) {
#pragma GCC unroll 6
            for (int x = 0; x < nx; x++)
                p[y][x] = V_(load)(in + y * in_y + x * in_x);
            FN(wino_transform_output)(nx, mx, p[y]);
        }
#pragma GCC unroll 6
        for (int x = 0; x < most_x; x++) {
            if (nx == 6 && x == 4) {
                HIDE_VALUE(mx);
                if (mx == 4)
                    continue;
            }
            V column[6];
#pragma GCC unroll 6
            for (int y = 0; y < ny; y++)
                column[y] = p[y][x];
            FN(wino_transform_output)(ny, my, column);
#pragma GCC unroll 6
            for (int y = 0; y < most_y; y++) {
                if (ny == 6 && y == 4) {
                    HIDE_VALUE(my);
                    if (my == 4)
                        continue;
                }
                T *to = w->rows[y * mx + x];
                check = V_(fma)(column[y], V_(set1)(0), check); /* becomes NaN if a value is not finite */
                if (!to)
                    continue;
                const V out = V_(act_simple)(column[y] + init, &act);
                if (lanes < VL)
                    V_(storen)(to + c, out, lanes);
                else if (stream)
                    V_(stream)(to + c, out);
                else
                    V_(store)(to + c, out);
            }
        }
        V_(store)((T *)w->check, check);
    }
}

/* Three and four points: one function for each pair of kinds. X(kind, n, m of an axis). */
#define LAST(X, ...) X(1, 3, 2, __VA_ARGS__) X(2, 4, 2, __VA_ARGS__) X(3, 4, 3, __VA_ARGS__)
#define FIRST(X) X(0, 1, 1) X(1, 3, 2) X(2, 4, 2) X(3, 4, 3)
#define OUT(kx, nx, mx, ky, ny, my) \
    static void FN(wino_out_##ky##_##kx)(const convt_wino_out *w) { FN(wino_out_yx)(ny, my, nx, mx, w); }
#define OUTS(ky, ny, my) LAST(OUT, ky, ny, my)
FIRST(OUTS)
#define ENTRY(kx, nx, mx, ky, ny, my) [kx] = FN(wino_out_##ky##_##kx),
#define ENTRIES(ky, ny, my) {LAST(ENTRY, ky, ny, my)},
static void (*const FN(wino_outs)[4][4])(const convt_wino_out *) = {FIRST(ENTRIES)};
#undef FIRST
#undef LAST
#undef OUT
#undef OUTS
#undef ENTRY
#undef ENTRIES

/* Six points: one function for both numbers of outputs, because it is the largest and is called less often. A plan has axes of
 * six points, or of fewer, never both. */
#define SIX static __attribute__((noinline)) void
SIX FN(wino_out_6_6)(int my, int mx, const convt_wino_out *w) { FN(wino_out_yx)(6, my, 6, mx, w); }
SIX FN(wino_out_1_6)(int mx, const convt_wino_out *w) { FN(wino_out_yx)(1, 1, 6, mx, w); }
#undef SIX

/* The pairs of points that exist: */
#define PAIRS(X) X(1, 3) X(1, 4) X(3, 3) X(3, 4) X(4, 3) X(4, 4) X(1, 6) X(6, 6)
#define IN(y, x) \
    static void FN(wino_in_##y##_##x)(const convt_wino_in *w) { FN(wino_in_yx)(y, x, w); }
#define ENTRY(y, x) [y][x] = FN(wino_in_##y##_##x),
PAIRS(IN)
static void (*const FN(wino_ins)[7][7])(const convt_wino_in *) = {PAIRS(ENTRY)};
#undef PAIRS
#undef IN
#undef ENTRY

static int FN(wino_in)(int ny, int nx, const convt_wino_in *w)
{
    CONVT_ASSERT(ny >= 1 && ny <= 6 && nx >= 1 && nx <= 6 && FN(wino_ins)[ny][nx]);
    FN(wino_ins)[ny][nx](w);
    return 1;
}

static void FN(wino_out)(int kind_y, int kind_x, const convt_wino_out *w)
{
    CONVT_ASSERT(kind_y >= 0 && kind_y < CONVT_WINO_KINDS && kind_x > 0 && kind_x < CONVT_WINO_KINDS);
    CONVT_ASSERT(!kind_y || (kind_y < 4) == (kind_x < 4));
    const int my = kind_y, mx = kind_x; /* m of F(4, 3) and F(5, 2), which are kinds 4 and 5 */
    if (kind_x < 4)
        FN(wino_outs)[kind_y][kind_x](w);
    else if (kind_y)
        FN(wino_out_6_6)(my, mx, w);
    else
        FN(wino_out_1_6)(mx, w);
}

/* Compute `count` vectors of point r from column c on. Adds 0 times each to `check`, which becomes NaN if a value is not
 * finite. */
INLINE V FN(wino_point)(const int count, const convt_wino_filter *w, int r, int c, V check)
{
    const int64_t terms = w->start[r + 1] - w->start[r], *at = w->offset + w->start[r];
    const T *in = (const T *)w->in + c, *scale = (const T *)w->scale + w->start[r];
    T *out = (T *)w->out + r * w->out_row + c;
    const ptrdiff_t in_step = w->in_step, out_step = w->out_step;
    V sum[2], nonfinite[2];
    for (int v = 0; v < count; v++)
        nonfinite[v] = V_(set1)(0);
    for (int left = w->n; left > 0; left--, in += in_step, out += out_step) {
        for (int v = 0; v < count; v++)
            sum[v] = V_(set1)(0);
        for (int64_t e = 0; e < terms; e++) {
            const V factor = V_(set1)(scale[e]);
            for (int v = 0; v < count; v++)
                sum[v] = V_(fma)(factor, V_(load)(in + at[e] + v * VL), sum[v]);
        }
        for (int v = 0; v < count; v++) {
            V_(store)(out + v * VL, sum[v]);
            nonfinite[v] = V_(fma)(sum[v], V_(set1)(0), nonfinite[v]);
        }
    }
    for (int v = 0; v < count; v++)
        check += nonfinite[v];
    return check;
}

/* Compute point by point, so that stores are contiguous over long stretches. */
static int FN(wino_filter)(const convt_wino_filter *w)
{
    V check = V_(set1)(0);
    for (int r = 0; r < w->rows; r++) {
        int c = 0;
        for (; c + 2 * VL <= w->cols; c += 2 * VL)
            check = FN(wino_point)(2, w, r, c, check);
        if (c < w->cols)
            check = FN(wino_point)(1, w, r, c, check);
    }
    T lane[VL];
    V_(store)(lane, check);
    for (int i = 0; i < VL; i++)
        if (lane[i] != 0)
            return 0;
    return 1;
}
