/* The GEMM on AMX tiles, which multiply bfloat16 and accumulate in float, for user memory of type S. Included by
 * isa_avx512_amx.c (flags -mamx-tile -mamx-bf16). The includer defines
 *
 *   S, S_LOAD, S_LOADN, FN(name)
 *            as for body_widen.h, whose `widen` it uses; T is float
 *   S_STORE, S_STOREN, S_STORE_2, S_STREAM_2, S_STREAM
 *            if S is not T, as for body_memory.h; S_STREAM is the non-temporal store of one vector
 *   BF16_PARTS
 *            the number of bfloat16 parts of an element: 3 hold a float32 (8 bits each), 2 a float16, 1 a bfloat16; fewer
 *            parts hold a float32 less exactly
 *
 * `tile`. Register tile: up to 32 rows by 32 columns, in 2 x 2 AMX tiles of accumulators (tiles 0 to 3); tiles 4 and 5 hold
 * A, 6 and 7 hold B. Loop order: steps of depth (32), then pairs of parts. The file also has `pack`, `pack_uncached`, `pack_b`,
 * and, for float32 in two or three parts, `wino_rows` and `wino_filter`.
 *
 * Products. The product of two elements is the sum of products of their parts; parts i and j are multiplied if they matter:
 *
 *   float32, 3 parts    six products, i + j < 3; the others are below 2^-24 of the product, because the first part is rounded
 *                       and the remainder has either sign
 *   float32, 2 parts    three products, i + j < 2; the error of a product is below 2^-16
 *   float16, 2 parts    all four, because its products must be exact
 *   1 part              one product
 *
 * vec_parts.h defines the range of elements. The bias must be zero, or its magnitude not below that of the smallest product.
 *
 * Panels. Depth is divided into steps of MATRIX_DEPTH (32). Within a step, elements are stored as pairs of depth k and k + 16.
 * A row of A has, for each step, its parts one after the other, 64 bytes each. A step of B has its parts one after the other;
 * each part has its vectors of columns, one AMX tile (1024 bytes) each.
 */
#define E_SIZE (2 * BF16_PARTS)
/* 1 if the first part is rounded: always, except if it holds the whole element. */
#ifdef S_IS_T
#define ROUND_FIRST_PART 1
#else
#define ROUND_FIRST_PART (BF16_PARTS > 1)
#endif
#define PACK_PREFETCH 32768 /* bytes between a row that is packed and the prefetch */

/* Split two vectors of elements and store their parts in pairs, `part_stride` bytes from each other. Adds the elements to
 * `range`. */
INLINE void FN(split)(char *to, ptrdiff_t part_stride, vf a, vf b, v_range *range)
{
    v_range_add(range, a);
    v_range_add(range, b);
#pragma GCC unroll 3
    for (int part = 0; part < BF16_PARTS; part++) {
        const int rounded = part == 0 && ROUND_FIRST_PART;
        const vf high_a = rounded ? vf_upper_rounded(a) : vf_upper(a), high_b = rounded ? vf_upper_rounded(b) : vf_upper(b);
        vf_store((float *)(to + part * part_stride), vf_pairs(high_a, high_b));
        a -= high_a;
        b -= high_b;
    }
}

INLINE int FN(matrix_rows)(const int prefetches, void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows,
                           int cols, int cols_padded)
{
    float transposed[MATRIX_ROWS * MATRIX_DEPTH];
    v_range range = v_range_none();
    if (cs == 1) {
        const ptrdiff_t row = (rs < 0 ? -rs : rs) * (ptrdiff_t)sizeof(S), prefetch = row ? PACK_PREFETCH / row * rs : 0;
        for (int r = 0; r < rows; r++) {
            char *to = (char *)dst + r * ld * E_SIZE;
            const S *from = (const S *)src + r * rs;
            int k = 0;
            for (; k + MATRIX_DEPTH <= cols; k += MATRIX_DEPTH) {
                for (int i = 0; i < (prefetches ? MATRIX_DEPTH : 0); i += 64 / (int)sizeof(S))
                    __builtin_prefetch(from + prefetch + k + i, 0, 2);
                FN(split)(to + k * E_SIZE, 64, S_LOAD(from + k), S_LOAD(from + k + VF), &range);
            }
            for (; k < cols_padded; k += MATRIX_DEPTH) {
                const int n = cols - k;
                for (int i = 0; i < (prefetches ? n : 0); i += 64 / (int)sizeof(S))
                    __builtin_prefetch(from + prefetch + k + i, 0, 2);
                const vf a = n <= 0 ? vf_set1(0) : n < VF ? S_LOADN(from + k, n) : S_LOAD(from + k);
                const vf b = n <= VF ? vf_set1(0) : S_LOADN(from + k + VF, n - VF);
                FN(split)(to + k * E_SIZE, 64, a, b, &range);
            }
        }
        return v_range_fits(&range);
    }
    for (int r = 0; r < rows; r += MATRIX_ROWS)
        for (int k = 0; k < cols_padded; k += MATRIX_DEPTH) {
            const int m = rows - r < MATRIX_ROWS ? rows - r : MATRIX_ROWS;
            const int n = cols - k < MATRIX_DEPTH ? cols - k : MATRIX_DEPTH;
            FN(widen)(transposed, MATRIX_DEPTH, (const S *)src + r * rs + k * cs, rs, cs, m, n > 0 ? n : 0, MATRIX_DEPTH);
            for (int i = 0; i < m; i++)
                FN(split)((char *)dst + (r + i) * ld * E_SIZE + k * E_SIZE, 64, vf_load(transposed + i * MATRIX_DEPTH),
                          vf_load(transposed + i * MATRIX_DEPTH + VF), &range);
        }
    return v_range_fits(&range);
}

static int FN(matrix_pack)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                           int cols_padded)
{
    return FN(matrix_rows)(0, dst, ld, src, rs, cs, rows, cols, cols_padded);
}

static int FN(matrix_pack_uncached)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                                    int cols_padded)
{
    return FN(matrix_rows)(1, dst, ld, src, rs, cs, rows, cols, cols_padded);
}

#if defined S_IS_T && BF16_PARTS > 1
/* `wino_in` of the base table; isa_avx512_amx.c sets it. */
static int (*FN(wino_in))(int ny, int nx, const convt_wino_in *w);

/* `wino_rows` of the contract: Winograd's input transform, split into parts, one step of depth after the other. */
static int FN(matrix_wino_rows)(int ny, int nx, const convt_wino_in *w)
{
    float points[36 * MATRIX_DEPTH] __attribute__((aligned(64)));
    v_range range = v_range_none();
    convt_wino_in step = *w;
    step.out = points;
    step.out_x = MATRIX_DEPTH * sizeof(float);
    step.out_y = nx * step.out_x;
    char *to = w->out;
    for (step.first = w->first; step.first < w->last; step.first += MATRIX_DEPTH, to += MATRIX_DEPTH * E_SIZE) {
        const int n = w->last - step.first;
        step.last = n < MATRIX_DEPTH ? w->last : step.first + MATRIX_DEPTH;
        FN(wino_in)(ny, nx, &step);
        const float *point = points;
        for (int y = 0; y < ny; y++)
            for (int x = 0; x < nx; x++, point += MATRIX_DEPTH)
                FN(split)(to + y * w->out_y + x * w->out_x, 64, vf_load(point), n > VF ? vf_load(point + VF) : vf_set1(0),
                          &range);
    }
    return v_range_within(&range, LOW_DATA, HIGH);
}

/* Return one vector of columns of one row of a point of Winograd's filter transform: sum over e < terms of scale[e] *
 * in[at[e]]. */
INLINE vf FN(matrix_wino_row)(const int64_t terms, const int64_t *at, const float *scale, const float *in)
{
    vf sum = vf_set1(0);
    for (int64_t e = 0; e < terms; e++)
        sum = vf_fma(vf_set1(scale[e]), vf_load(in + at[e]), sum);
    return sum;
}

/* Compute one vector of columns of point p, from `terms` taps: a whole step of depth, with zeros from row n on. */
INLINE void FN(matrix_wino_point)(const int64_t terms, const convt_wino_filter *w, int p, int c, v_range *range)
{
    const int64_t *at = w->offset + w->start[p];
    const float *scale = (const float *)w->scale + w->start[p], *in = (const float *)w->in + c;
    const ptrdiff_t in_step = w->in_step, part = w->out_step / VF * 1024;
    char *to = (char *)w->out + p * w->out_row * E_SIZE + c / VF * 1024;
    const int whole = w->n == MATRIX_DEPTH;
    for (int i = 0; i < MATRIX_DEPTH / 2; i++, in += in_step, to += 64) {
        const vf a = whole || i < w->n ? FN(matrix_wino_row)(terms, at, scale, in) : vf_set1(0);
        const vf b = whole || i + MATRIX_DEPTH / 2 < w->n
            ? FN(matrix_wino_row)(terms, at, scale, in + MATRIX_DEPTH / 2 * in_step) : vf_set1(0);
        FN(split)(to, part, a, b, range);
    }
}

/* `wino_filter` of the contract for a step of depth, split into parts: point by point, so that stores are contiguous. */
static int FN(matrix_wino_filter)(const convt_wino_filter *w)
{
    v_range range = v_range_none();
    CONVT_ASSERT(w->n <= MATRIX_DEPTH && w->cols % VF == 0);
    for (int p = 0; p < w->rows; p++) {
        const int64_t terms = w->start[p + 1] - w->start[p];
        for (int c = 0; c < w->cols; c += VF) {
            /* Unrolled for the usual numbers of terms, those of phases of two taps per axis. */
            if (terms == 1)
                FN(matrix_wino_point)(1, w, p, c, &range);
            else if (terms == 2)
                FN(matrix_wino_point)(2, w, p, c, &range);
            else if (terms == 4)
                FN(matrix_wino_point)(4, w, p, c, &range);
            else
                FN(matrix_wino_point)(terms, w, p, c, &range);
        }
    }
    return v_range_within(&range, LOW_WEIGHTS, HIGH);
}
#endif

/* Pack one element (k, n) of a panel; return the value that `pack` returns. */
static int FN(matrix_pack_one)(char *dst, int k, int n, float x, int nb)
{
    char parts[BF16_PARTS * 64];
    v_range range = v_range_none();
    FN(split)(parts, 64, vf_set1(x), vf_set1(x), &range);
    char *to = dst + (ptrdiff_t)k / MATRIX_DEPTH * MATRIX_DEPTH * nb * E_SIZE;
    k %= MATRIX_DEPTH;
    to += n / VF * 1024 + k % 16 * 64 + (n % VF * 2 + k / 16) * 2;
    for (int part = 0; part < BF16_PARTS; part++)
        memcpy(to + part * nb / VF * 1024, parts + part * 64, 2);
    return v_range_fits(&range);
}

static int FN(matrix_pack_b)(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb)
{
    float block[MATRIX_DEPTH * VF];
    v_range range = v_range_none();
    int fits = CONVT_FITS_WEIGHTS, one;
    for (int k = 0, some; k < rows; k += some) {
        some = MATRIX_DEPTH - (k0 + k) % MATRIX_DEPTH;
        some = some < rows - k ? some : rows - k;
        for (int n = 0, width; n < cols; n += width) {
            width = VF - (n0 + n) % VF;
            width = width < cols - n ? width : cols - n;
            const S *from = (const S *)src + k * rs + n * cs;
            FN(widen)(block, VF, from, rs, cs, some, width, VF);
            if ((k0 + k) % MATRIX_DEPTH || width < VF) { /* other calls may pack the rest of the vector */
                for (int r = 0; r < some; r++)
                    for (int c = 0; c < width; c++) {
                        one = FN(matrix_pack_one)(dst, k0 + k + r, n0 + n + c, block[r * VF + c], nb);
                        fits = one < fits ? one : fits;
                    }
                continue;
            }
            memset(block + some * VF, 0, (size_t)(MATRIX_DEPTH - some) * VF * sizeof(float));
            char *to = (char *)dst + (ptrdiff_t)(k0 + k) * nb * E_SIZE + (n0 + n) / VF * 1024;
            for (int r = 0; r < MATRIX_DEPTH / 2; r++)
                FN(split)(to + r * 64, nb / VF * 1024, vf_load(block + r * VF), vf_load(block + (r + 16) * VF), &range);
        }
    }
    one = v_range_fits(&range);
    return one < fits ? one : fits;
}

/* AMX tiles 0 to 3 are accumulators, [row tile][column tile]; 4 and 5 hold A, 6 and 7 hold B. The second tile of A is used if
 * `tall`, the second one of B if nv > 1. */
INLINE void FN(matrix_load_a)(const int tall, const char *a, ptrdiff_t ld)
{
    MATRIX_LOAD(4, a, ld);
    if (tall)
        MATRIX_LOAD(5, a + MATRIX_ROWS * ld, ld);
}
INLINE void FN(matrix_load_b)(const int nv, const char *b)
{
    MATRIX_LOAD(6, b, 64);
    if (nv > 1)
        MATRIX_LOAD(7, b + 1024, 64);
}
INLINE void FN(matrix_multiply)(const int tall, const int nv)
{
    MATRIX_MUL_ADD(0, 4, 6);
    if (nv > 1)
        MATRIX_MUL_ADD(1, 4, 7);
    if (tall)
        MATRIX_MUL_ADD(2, 5, 6);
    if (tall && nv > 1)
        MATRIX_MUL_ADD(3, 5, 7);
}

/* Prefetch `lines` cache lines, `step` bytes apart; return the next address. */
INLINE const char *FN(matrix_prefetch)(const char *prefetch, ptrdiff_t step, const int lines)
{
#pragma GCC unroll 8
    for (int i = 0; i < lines; i++, prefetch += step)
        __builtin_prefetch(prefetch, 0, 2);
    return prefetch;
}

/* Store up to `rows` of the rows that the tile before left, by non-temporal stores. `pending` may be NULL. */
INLINE void FN(matrix_store_pending)(convt_pending_stores *pending, int rows)
{
    if (!pending)
        return;
    for (; rows > 0 && pending->left > 0; rows--, pending->left--, pending->rows++,
         pending->next_row = (float *)pending->next_row + pending->cols) {
        float *to = (float *)*pending->rows + pending->row_offset;
        for (int c = 0; c < pending->cols; c += VF) {
            vf x = vf_load((const float *)pending->next_row + c);
            if (pending->act->code != CONVT_NONE)
                x = vf_act_simple(x, pending->act);
            vf_stream(to + c, x);
        }
    }
}

/* Prefetch `some` of the rows that a tile will store, from row m on; return the next row. */
INLINE int FN(matrix_prefetch_rows)(const int nv, int m, int some, int mr, const convt_tile *t)
{
    for (const int last = m + some < mr ? m + some : mr; m < last; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            __builtin_prefetch((const char *)t->rows[m] + (t->row_offset + v * VF) * (t->narrow_dtype ? 2 : 4), 1);
    return m;
}

INLINE void FN(matrix_load_bias)(const int tall, const int nv, const float *row)
{
    MATRIX_LOAD(0, row, 0);
    if (nv > 1)
        MATRIX_LOAD(1, row + VF, 0);
    if (tall)
        MATRIX_LOAD(2, row, 0);
    if (tall && nv > 1)
        MATRIX_LOAD(3, row + VF, 0);
}

INLINE void FN(matrix_zero)(const int tall, const int nv)
{
    MATRIX_ZERO(0);
    if (nv > 1)
        MATRIX_ZERO(1);
    if (tall)
        MATRIX_ZERO(2);
    if (tall && nv > 1)
        MATRIX_ZERO(3);
}

INLINE void FN(matrix_store)(const int tall, const int nv, float *to, ptrdiff_t step)
{
    MATRIX_STORE(0, to, step);
    if (nv > 1)
        MATRIX_STORE(1, to + VF, step);
    if (tall)
        MATRIX_STORE(2, (char *)to + MATRIX_ROWS * step, step);
    if (tall && nv > 1)
        MATRIX_STORE(3, (char *)to + MATRIX_ROWS * step + VF * sizeof(float), step);
}

/* Return the stride of rows in bytes, if AMX tiles can be stored there directly (constant stride, whole tiles); else 0. */
static ptrdiff_t FN(matrix_row_stride)(int mr, const convt_tile *t)
{
    char *const *rows = (char *const *)t->rows;
    const ptrdiff_t step = rows[1] - rows[0];
    if (mr % MATRIX_ROWS || t->cols % VF)
        return 0;
    for (int m = 2; m < mr; m++)
        if (rows[m] - rows[m - 1] != step)
            return 0;
    return step;
}

/* Compute a register tile. With `has_pending`, it meanwhile makes the stores that the tile before left. */
INLINE void FN(matrix_mn)(const int tall, const int nv, const int has_pending, int mr, const convt_tile *t)
{
    float sums[2 * MATRIX_ROWS * TILE_NV * VF] __attribute__((aligned(64)));
    float *const *rows = (float *const *)t->rows;
    const float *init = t->init;
    const ptrdiff_t row_stride = mr > 1 && !t->narrow_dtype ? FN(matrix_row_stride)(mr, t) : 0;
    /* The bias is the initial value: a stride of 0 bytes fills a tile with it. Partial sums of earlier depth chunks are added
     * last, because adding up chunks loses less than one long chain; this holds for all rows alike, because results must not
     * depend on how rows are cut. */
    const int from_bias = init && !t->init_ld;
    if (from_bias)
        FN(matrix_load_bias)(tall, nv, init);
    else
        FN(matrix_zero)(tall, nv);

    const ptrdiff_t ld = t->lda * E_SIZE, part = nv * 1024;
    const char *a = t->a, *b = t->b, *prefetch = t->prefetch;
    convt_pending_stores *const pending = has_pending ? t->pending : NULL;
    const int rows_at_once = pending && t->kc ? (pending->left * MATRIX_DEPTH / 2 + t->kc - 1) / t->kc : 0;
    /* Shallow tiles prefetch the rows that they store. Deep tiles take longer than their stores anyway. */
    int prefetched = from_bias && t->kc && t->kc <= CONVT_KC / 2 && !t->stream && !pending ? 0 : mr;
    const int some = prefetched ? 0 : (mr * MATRIX_DEPTH / 2 + t->kc - 1) / t->kc;
    for (int k = 0; k < t->kc; k += MATRIX_DEPTH, a += 64 * BF16_PARTS, b += part * BF16_PARTS) {
        FN(matrix_load_a)(tall, a, ld);
#if BF16_PARTS == 3
        /* Small products first. Each step loads only one operand. */
        FN(matrix_load_b)(nv, b + 2 * part);
        FN(matrix_multiply)(tall, nv);
        FN(matrix_load_b)(nv, b + part);
        FN(matrix_multiply)(tall, nv);
        prefetch = FN(matrix_prefetch)(prefetch, t->prefetch_step, 8);
        FN(matrix_store_pending)(pending, rows_at_once);
        prefetched = FN(matrix_prefetch_rows)(nv, prefetched, some, mr, t);
        FN(matrix_load_a)(tall, a + 64, ld);
        FN(matrix_multiply)(tall, nv);
        FN(matrix_load_b)(nv, b);
        FN(matrix_multiply)(tall, nv);
        prefetch = FN(matrix_prefetch)(prefetch, t->prefetch_step, 8);
        FN(matrix_store_pending)(pending, rows_at_once);
        prefetched = FN(matrix_prefetch_rows)(nv, prefetched, some, mr, t);
        FN(matrix_load_a)(tall, a + 128, ld);
        FN(matrix_multiply)(tall, nv);
        FN(matrix_load_a)(tall, a, ld);
#else
        prefetch = FN(matrix_prefetch)(prefetch, t->prefetch_step, 8);
        FN(matrix_store_pending)(pending, rows_at_once);
        prefetched = FN(matrix_prefetch_rows)(nv, prefetched, some, mr, t);
        prefetch = FN(matrix_prefetch)(prefetch, t->prefetch_step, 8);
        FN(matrix_store_pending)(pending, rows_at_once);
        prefetched = FN(matrix_prefetch_rows)(nv, prefetched, some, mr, t);
#if BF16_PARTS == 2
        FN(matrix_load_b)(nv, b);
        FN(matrix_multiply)(tall, nv);
        FN(matrix_load_b)(nv, b + part);
        FN(matrix_multiply)(tall, nv);
        FN(matrix_load_a)(tall, a + 64, ld);
#ifndef S_IS_T
        FN(matrix_multiply)(tall, nv);
#endif
        FN(matrix_load_b)(nv, b);
#else
        FN(matrix_load_b)(nv, b);
#endif
#endif
        FN(matrix_multiply)(tall, nv);
    }
    if (from_bias && row_stride && !t->stream && t->act->code == CONVT_NONE) {
        FN(matrix_store)(tall, nv, rows[0] + t->row_offset, row_stride);
        return;
    }
    if (pending) {
        FN(matrix_store_pending)(pending, pending->left);
        if (t->stream && t->cols == nv * VF) {
            float *to = pending->sums;
            FN(matrix_store)(tall, nv, to, nv * VF * (ptrdiff_t)sizeof(float));
            for (int m = 0; m < (from_bias ? 0 : mr); m++)
#pragma GCC unroll 2
                for (int v = 0; v < nv; v++) {
                    const vf x = vf_load(to + (m * nv + v) * VF);
                    vf_store(to + (m * nv + v) * VF, x + vf_load((init ? init + m * t->init_ld : rows[m] + t->row_offset)
                                                                 + v * VF));
                }
            *pending = (convt_pending_stores){to, to, t->rows, t->row_offset, nv * VF, mr, t->act};
            return;
        }
    }
    FN(matrix_store)(tall, nv, sums, nv * VF * (ptrdiff_t)sizeof(float));

    const int rest = t->cols - (nv - 1) * VF;
#ifndef S_IS_T
    if (t->narrow_dtype && nv == 2 && rest == VF && from_bias && t->act->code == CONVT_NONE) {
        for (int m = 0; m < mr; m++) {
            S *to = (S *)rows[m] + t->row_offset;
            const vf first = vf_load(sums + 2 * m * VF), second = vf_load(sums + (2 * m + 1) * VF);
            if (t->stream)
                S_STREAM_2(to, first, second);
            else
                S_STORE_2(to, first, second);
        }
        return;
    }
#endif
    for (int m = 0; m < mr; m++) {
        float *row = rows[m] + t->row_offset;
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            vf x = vf_load(sums + (m * nv + v) * VF);
            if (!from_bias)
                x += vf_load((init ? init + m * t->init_ld : row) + v * VF);
            if (t->act->code != CONVT_NONE)
                x = vf_act_simple(x, t->act);
#ifndef S_IS_T
            if (t->narrow_dtype) {
                S *to = (S *)rows[m] + t->row_offset + v * VF;
                if (v == nv - 1 && rest < VF)
                    S_STOREN(to, x, rest);
                else if (t->stream)
                    S_STREAM(to, x);
                else
                    S_STORE(to, x);
                continue;
            }
#endif
            if (v == nv - 1 && rest < VF)
                vf_storen(row + v * VF, x, rest);
            else if (t->stream)
                vf_stream(row + v * VF, x);
            else
                vf_store(row + v * VF, x);
        }
    }
}

static void FN(matrix_flush)(convt_pending_stores *pending)
{
    FN(matrix_store_pending)(pending, pending->left);
}

static void FN(matrix_tile)(int mr, const convt_tile *t)
{
    CONVT_ASSERT(t->nv >= 1 && t->nv <= TILE_NV && mr >= 1 && mr <= 2 * MATRIX_ROWS);
    CONVT_ASSERT(t->kc >= 0 && t->kc <= CONVT_KC && t->kc % MATRIX_DEPTH == 0);
    CONVT_ASSERT(t->cols > (t->nv - 1) * VF && t->cols <= t->nv * VF && t->act->code <= CONVT_LEAKY);
    const int tall = mr > MATRIX_ROWS, wide = t->nv > 1;
    switch (tall + 2 * wide + 4 * (t->pending != NULL)) {
#define MN(h, w, has_pending) \
    case h + 2 * w + 4 * has_pending: FN(matrix_mn)(h, 1 + w, has_pending, mr, t); break
        MN(0, 0, 0); MN(1, 0, 0); MN(0, 1, 0); MN(1, 1, 0);
        MN(0, 0, 1); MN(1, 0, 1); MN(0, 1, 1); MN(1, 1, 1);
#undef MN
    }
}
#undef E_SIZE
#undef ROUND_FIRST_PART
#undef PACK_PREFETCH
