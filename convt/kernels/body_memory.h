/* Between user memory (S) and ours (T): widening in, rounding out. The includer defines
 *   S, T, V, VL, V_(op), FN(name)
 *   S_LOAD, S_LOADN, S_STORE, S_STOREN   vectors of T from and to S
 * Elements that are not adjacent go through a vector's worth on the stack.
 */
/* n vectors, 1, 2 or 4, as one sequence that takes their lanes in turns. */
INLINE void FN(zip)(const int n, V *v)
{
    V u[4];
#pragma GCC unroll 4
    for (int step = 1; step < n; step *= 2) {
#pragma GCC unroll 2
        for (int i = 0; i < n / 2; i++) {
            u[2 * i] = V_(zip_low)(v[i], v[i + n / 2]);
            u[2 * i + 1] = V_(zip_high)(v[i], v[i + n / 2]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            v[i] = u[i];
    }
}

/* Elements of T in 16 bytes, the part of a vector that shuffles stay within where they are cheapest. */
#define PART ((int)(16 / sizeof(T)))

/* The parts of a vector, each from a place of its own. */
INLINE V FN(load_parts)(const S *from, const ptrdiff_t *at)
{
#ifdef S_IS_T
    return V_(load_parts)(from, at);
#else
    S some[VL];
#pragma GCC unroll 4
    for (int i = 0; i < VL / PART; i++)
        memcpy(some + i * PART, from + at[i], PART * sizeof(S));
    return S_LOAD(some);
#endif
}

/* Numbers of lanes. */
INLINE V FN(lanes)(void)
{
    T number[VL];
    for (int i = 0; i < VL; i++)
        number[i] = i;
    return V_(load)(number);
}

/* Each part of PART vectors transposed by itself. */
INLINE void FN(transpose_parts)(V *v)
{
    V u[PART];
#pragma GCC unroll 2
    for (int step = 1; step < PART; step *= 2) {
#pragma GCC unroll 2
        for (int p = 0; p < PART / 2; p++) {
            u[2 * p] = V_(zip_low_parts)(v[p], v[p + PART / 2]);
            u[2 * p + 1] = V_(zip_high_parts)(v[p], v[p + PART / 2]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PART; p++)
            v[p] = u[p];
    }
}

/* `widen` where rows are adjacent, for up to VL columns, `full` for all: as many rows at a time as a part has elements, each
 * part transposed by itself. The last rows may be done twice. */
INLINE void FN(widen_columns)(const int full, T *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int cols, int padded)
{
    const V lane = FN(lanes)();
    ptrdiff_t at[PART][VL / PART];
#pragma GCC unroll 4
    for (int p = 0; p < PART; p++)
#pragma GCC unroll 4
        for (int i = 0; i < VL / PART; i++)
            at[p][i] = (full || i * PART + p < cols ? i * PART : cols - 1 - p) * cs; /* of none, the last one again */
    for (int r = 0; r < rows; r += PART) {
        V v[PART];
        r = r + PART <= rows ? r : rows - PART;
        if (full) /* the columns after these */
#pragma GCC unroll 4
            for (int p = 0; p < PART; p++)
                __builtin_prefetch(from + 2 * VL * cs + (r + p) * VL);
#pragma GCC unroll 4
        for (int p = 0; p < PART; p++)
            v[p] = FN(load_parts)(from + p * cs + r, at[p]);
        FN(transpose_parts)(v);
#pragma GCC unroll 4
        for (int p = 0; p < PART; p++)
            if (full)
                V_(store)(to + (r + p) * ld, v[p]);
            else if (padded >= VL)
                V_(store)(to + (r + p) * ld, V_(select)(lane < V_(set1)(cols), v[p], V_(set1)(0)));
            else
                V_(storen)(to + (r + p) * ld, v[p], cols);
    }
}

static int FN(widen)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                      int cols_padded)
{
    int whole = 0; /* columns done by vectors of rows */
    if (rs == 1 && cs != 1 && rows >= PART) {
        for (; whole + VL <= cols; whole += VL)
            FN(widen_columns)(1, (T *)dst + whole, ld, (const S *)src + whole * cs, cs, rows, VL, VL);
        if (whole < cols)
            FN(widen_columns)(0, (T *)dst + whole, ld, (const S *)src + whole * cs, cs, rows, cols - whole,
                              cols_padded - whole);
        if (cols_padded <= cols)
            return 1;
        whole = cols;
    }
    for (int r = 0; r < rows; r++) {
        T *to = (T *)dst + r * ld;
        const S *from = (const S *)src + r * rs;
        int c = whole;
        if (cs == 1) {
            __builtin_prefetch(from + cols - 1 + 6 * rs); /* on a line more than there are vectors, where rows start within one */
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
    return 1;
}

#ifdef S_IS_T
#define EACH_ROW(value)                              \
    for (int r = 0; r < rows; r++) {                 \
        const S *row = from + r * rs;                \
        __builtin_prefetch(row + 8 * rs);            \
        const V v = value;                           \
        if (whole)                                   \
            V_(store)(to + r * ld, v);               \
        else                                         \
            V_(storen)(to + r * ld, v, n);           \
    }
#ifdef HAVE_PICK
INLINE int FN(there)(int n) { return n < 0 ? 0 : n < VL ? n : VL; }

/* Lanes of a row's first `span` elements by their numbers, from pairs of vectors: `has` says which lanes each pair has. */
INLINE V FN(pick_pairs)(const int pairs, const T *row, int span, const int32_t *index, const V *has)
{
    V v = V_(pick)(V_(load)(row), V_(load)(row + VL), index); /* (by the numbers modulo two vectors) */
#pragma GCC unroll 4
    for (int p = 1; p < pairs; p++) {
        const int at = 2 * p * VL, left = span - at;
        const V low = V_(loadn)(row + at, FN(there)(left)), high = V_(loadn)(row + at + VL, FN(there)(left - VL));
        v = V_(select)(has[p] > V_(set1)(0), V_(pick)(low, high, index), v);
    }
    return v;
}

/* A vector whose elements are within eight: sooner than a gather. */
static __attribute__((noinline)) void FN(gather_pairs)(T *to, ptrdiff_t ld, const S *from, ptrdiff_t rs, int span,
                                                       const int32_t *index, int rows, int n, int whole)
{
    V has[4];
    for (int p = 0; p < 4; p++) {
        T lanes[VL];
        for (int i = 0; i < VL; i++)
            lanes[i] = index[i] / (2 * VL) == p;
        has[p] = V_(load)(lanes);
    }
    if (span <= 4 * VL)
        EACH_ROW(FN(pick_pairs)(2, row, span, index, has))
    else
        EACH_ROW(FN(pick_pairs)(4, row, span, index, has))
}
#endif
#endif

/* One vector of `gather`, or what there is of it: n lanes, whole vectors of which may be stored. */
INLINE void FN(gather_vector)(T *to, ptrdiff_t ld, const S *from, ptrdiff_t rs, const int64_t *map, int rows, int n, int whole)
{
#ifdef S_IS_T
    /* By index where the indices fit; a vector that is not full repeats a lane that exists. */
    int32_t index[VL];
    int64_t low = map[0], high = map[0];
    for (int i = 1; i < n; i++) {
        low = map[i] < low ? map[i] : low;
        high = map[i] > high ? map[i] : high;
    }
    for (int i = 0; i < VL; i++)
        index[i] = (int32_t)(map[i < n ? i : n - 1] - low);
    from += low;
    high -= low;
#ifdef HAVE_PICK
    const int span = high < 8 * VL ? (int)high + 1 : 0;
    if (span && span <= VL) {
        EACH_ROW(V_(pick)(V_(loadn)(row, span), V_(set1)(0), index));
        return;
    }
    if (span && span <= 2 * VL) {
        EACH_ROW(V_(pick)(V_(load)(row), V_(loadn)(row + VL, span - VL), index));
        return;
    }
    if (span) {
        FN(gather_pairs)(to, ld, from, rs, span, index, rows, n, whole);
        return;
    }
#endif
    if (high == (int32_t)high) {
        EACH_ROW(V_(gather)(row, index));
        return;
    }
    from -= low;
#endif
    (void)whole;
    for (int r = 0; r < rows; r++) {
        S some[VL];
        for (int i = 0; i < n; i++)
            some[i] = from[r * rs + map[i]];
        V_(storen)(to + r * ld, S_LOADN(some, n), n);
    }
}

#undef EACH_ROW

/* Adjacent elements that are rather copied than gathered. */
#if defined(S_IS_T) && defined(HAVE_PICK)
#define STRETCH VL
#else
#define STRETCH (VL / 2)
#endif
static void FN(gather)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, const int64_t *map, int rows, int cols, int room)
{
    for (int c = 0, n; c < cols; c += n) {
        T *to = (T *)dst + c;
        n = 1;
        while (c + n < cols && map[c + n] == map[c] + n)
            n++;
        if (n >= STRETCH) {
            FN(widen)(to, ld, (const S *)src + map[c], rs, 1, rows, n, n);
            continue;
        }
        n = cols - c < VL ? cols - c : VL;
        FN(gather_vector)(to, ld, src, rs, map + c, rows, n, c + VL <= room);
    }
}
#undef STRETCH

/* VL values of j at once where lanes are few and adjacent: the outputs of consecutive j are then one stretch. Each j is summed
 * as a whole vector, and its idle lanes are written over by the next one. Returns the first j it left. */
static int64_t FN(overlap_block)(const convt_overlap *o)
{
    T sums[VL * VL + VL];
    const int count = o->lanes, before = o->terms - 1, last = o->cols - before * o->lanes;
    int64_t j = o->j0;
    if (count > VL || o->out_c != 1 || o->out_x != o->channels || j - before < o->i0 || o->lane_lo > 0 || o->lane_hi < count)
        return j;
    const V init = V_(loadn)(o->init, count);
    for (; j + VL <= o->j1 && j + VL <= o->i1; j += VL) {
        const T *row = (const T *)o->col + (j - o->i0) * o->ld;
        for (int i = 0; i < VL; i++, row += o->ld) {
            V sum = init;
            const T *from = row;
            for (int u = 0; u < before; u++, from += count - o->ld)
                sum += V_(load)(from);
            /* Columns beyond the last tap belong to someone else, whatever they hold. */
            sum += last < count ? V_(loadn)(from, last) : V_(load)(from);
            V_(store)(sums + i * count, sum);
        }
        S *out = (S *)o->out + (j - o->j0) * o->out_j;
        for (int v = 0; v < count; v++)
            S_STORE(out + v * VL, V_(act)(V_(load)(sums + v * VL), o->act));
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

/* A vector of a stretch of `count` elements, the one at `at`; or what there is of it. */
INLINE void FN(store_first)(S *out, V v, int at, int count)
{
    if (at + VL <= count)
        S_STORE(out + at, v);
    else if (at < count)
        S_STOREN(out + at, v, count - at);
}

/* `across` for nv vectors of pixels from the first-th on, or, not `full`, for one of n. */
INLINE void FN(across_mn)(const int mr, const int nv, const int full, const convt_across *t, int first, int n)
{
    const ptrdiff_t cs = t->cs;
    const S *from = (const S *)t->src + first * cs;
    ptrdiff_t at[PART][VL / PART];
    V acc[CONVT_ACROSS_MR][2];
#pragma GCC unroll 4
    for (int p = 0; p < PART; p++)
#pragma GCC unroll 4
        for (int i = 0; i < VL / PART; i++)
            at[p][i] = (full || i * PART + p < n ? i * PART : n - 1 - p) * cs; /* of none, the last one again */
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)((T)-0.0);
    for (int r = 0; r < t->kc; r += PART) {
        /* The last ones end with the depth; what these repeat is passed over. */
        const int again = r + PART <= t->kc ? 0 : r + PART - t->kc;
        const T *a = (const T *)t->a + r - again;
        V x[2][PART];
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const S *pixels = from + v * VL * cs + r - again;
#pragma GCC unroll 4
            for (int p = 0; p < PART; p++) {
                if (full)
                    __builtin_prefetch(from + (4 * VL) * cs + (v * t->kc + r + p) * VL);
                x[v][p] = FN(load_parts)(pixels + p * cs, at[p]);
            }
            FN(transpose_parts)(x[v]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PART; p++)
            if (p >= again)
#pragma GCC unroll 8
                for (int m = 0; m < mr; m++) {
                    const V weight = V_(set1)(a[m * CONVT_LDA + p]);
#pragma GCC unroll 2
                    for (int v = 0; v < nv; v++)
                        acc[m][v] = V_(fma)(weight, x[v][p], acc[m][v]);
                }
    }
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            T *to = (T *)t->out + m * t->ld + first + v * VL;
            if (t->add)
                acc[m][v] += V_(load)(to);
            V_(store)(to, acc[m][v]);
        }
}

/* With half the registers for sums, vectors that are 64 bytes long go two at a time. */
#define ACROSS_NV (sizeof(V) == 64 ? 2 : 1)
#define ACROSS(mr)                                                         \
    static void FN(across_##mr)(const convt_across *t)                     \
    {                                                                      \
        int p = 0;                                                         \
        for (; p + ACROSS_NV * VL <= t->pixels; p += ACROSS_NV * VL)       \
            FN(across_mn)(mr, ACROSS_NV, 1, t, p, VL);                     \
        for (; p < t->pixels; p += VL)                                     \
            FN(across_mn)(mr, 1, 0, t, p, t->pixels - p);                  \
    }
ACROSS(1) ACROSS(2) ACROSS(3) ACROSS(4) ACROSS(5) ACROSS(6) ACROSS(7) ACROSS(8)
static void FN(across)(int mr, const convt_across *t)
{
    static void (*const some[CONVT_ACROSS_MR])(const convt_across *) = {
        FN(across_1), FN(across_2), FN(across_3), FN(across_4), FN(across_5), FN(across_6), FN(across_7), FN(across_8),
    };
    CONVT_ASSERT(mr >= 1 && mr <= CONVT_ACROSS_MR && t->kc >= PART && t->kc <= CONVT_KC);
    some[mr - 1](t);
}
#undef ACROSS
#undef ACROSS_NV

/* The lane `l` of `overlap_across` for VL values of j; `inside`: all the pixels they sum are there. */
INLINE V FN(across_sum)(const convt_overlap *o, const int inside, int l, int64_t j, V lane)
{
    const ptrdiff_t next = o->lanes * o->ld - 1;
    const T *from = (const T *)o->col + l * o->ld + (j - o->i0);
    V sum = V_(set1)(((const T *)o->init)[l]);
    for (int u = 0, c = l; u < o->terms && c < o->cols; u++, c += o->lanes, from += next) {
        const int64_t i = j - u;
        if (inside)
            sum += V_(load)(from);
        else if (i > o->i0 - VL && i < o->i1) /* of other pixels -0, which adds nothing */
            sum += V_(select)((lane >= V_(set1)((T)(o->i0 - i))) & (lane < V_(set1)((T)(o->i1 - i))), V_(load)(from),
                              V_(set1)((T)-0.0));
    }
    return V_(act)(sum, o->act);
}

/* n lanes, 1, 2 or 4, from the first on, to where those of a j are adjacent, and the j's too: `count` elements. */
INLINE void FN(across_zipped)(const int n, const convt_overlap *o, const int inside, int first, int step, int64_t j, V lane,
                              S *out, int count)
{
    V v[4];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        v[i] = FN(across_sum)(o, inside, first + i * step, j, lane);
    FN(zip)(n, v);
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        FN(store_first)(out, v[i], i * VL, count);
}

/* A set of n lanes likewise. */
INLINE void FN(across_set)(int n, const convt_overlap *o, const int inside, int first, int step, int64_t j, V lane,
                           const int32_t *index, S *out, int count)
{
    T sums[CONVT_ACROSS * VL];
    if (n == 1)
        FN(across_zipped)(1, o, inside, first, step, j, lane, out, count);
    else if (n == 2)
        FN(across_zipped)(2, o, inside, first, step, j, lane, out, count);
    else if (n == 4)
        FN(across_zipped)(4, o, inside, first, step, j, lane, out, count);
    else {
        for (int i = 0; i < n; i++)
            V_(store)(sums + i * VL, FN(across_sum)(o, inside, first + i * step, j, lane));
        for (int i = 0; i < n; i++)
            FN(store_first)(out, V_(gather)(sums, index + i * VL), i * VL, count);
    }
}

static void FN(overlap_across)(const convt_overlap *run)
{
    const convt_overlap mine = *run, *const o = &mine; /* which no store can change */
    int32_t index[CONVT_ACROSS * VL];
    CONVT_ASSERT(o->lanes <= CONVT_ACROSS);
    const int channels = o->channels, whole = o->lane_lo == 0 && o->lane_hi == o->lanes;
    /* Lanes that are adjacent in the output: all of them, or the phases of a channel. */
    int sets = 0, set = o->lanes;
    if (whole && o->out_c == 1 && o->out_x == channels && o->out_j == o->lanes)
        sets = 1;
    else if (whole && o->out_x == 1 && o->out_j * channels == o->lanes)
        sets = channels, set = o->out_j;
    if (set != 1 && set != 2 && set != 4)
        for (int e = 0, j = 0, l = 0; sets && e < set * VL; e++) {
            index[e] = l * VL + j;
            if (++l == set)
                l = 0, j++;
        }
    const V lane = FN(lanes)();
    for (int64_t j = o->j0; j < o->j1; j += VL) {
        S *out = (S *)o->out + (j - o->j0) * o->out_j;
        const int n = o->j1 - j < VL ? (int)(o->j1 - j) : VL;
        const int inside = o->i0 < o->i1 && j - (o->terms - 1) >= o->i0 && j + n <= o->i1;
        for (int i = 0; i < sets; i++)
            if (inside)
                FN(across_set)(set, o, 1, i, sets, j, lane, index, out + i * o->out_c, n * set);
            else
                FN(across_set)(set, o, 0, i, sets, j, lane, index, out + i * o->out_c, n * set);
        if (sets)
            continue;
        for (int l = o->lane_lo, c = l % channels, x = l / channels; l < o->lane_hi; l++) {
            S some[VL];
            S_STORE(some, FN(across_sum)(o, inside, l, j, lane));
            for (int i = 0; i < n; i++)
                out[i * o->out_j + x * o->out_x + c * o->out_c] = some[i];
            if (++c == channels)
                c = 0, x++;
        }
    }
}

static void FN(overlap_picked)(const convt_picked *o)
{
    const int32_t *index = o->index;
    for (int64_t i = 0; i < o->count; i += VL) {
        V sum = V_(gather)((const T *)o->init, index);
        index += VL;
        for (int t = 0; t < o->terms; t++, index += VL)
            sum += V_(gather)((const T *)o->col, index);
        const V y = V_(act)(sum, o->act);
        if (i + VL <= o->count)
            S_STORE((S *)o->out + i, y);
        else
            S_STOREN((S *)o->out + i, y, (int)(o->count - i));
    }
}

static __attribute__((unused)) int FN(pack_b)(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb)
{
    return FN(widen)((T *)dst + (ptrdiff_t)k0 * nb + n0, nb, src, rs, cs, rows, cols, cols);
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
