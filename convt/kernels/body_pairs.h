/* `pack` and `pack_b` of the contract for dot products of bfloat16 pairs (AVX512_BF16): B has pairs of rows interleaved, as
 * convt_kernels.h defines. Included by isa_avx512_bf16.c. The includer defines
 *
 *   S, S_LOAD, S_LOADN, FN(name)    as for body_widen.h; T is float
 *
 * A float32 is rounded to bfloat16, if it is in the range that vec_parts.h defines. A bfloat16 is copied, and all values are
 * accepted.
 */
static int FN(pairs_fit)(const v_range *range)
{
#ifdef S_IS_T
    return v_range_fits(range);
#else
    (void)range;
    return CONVT_FITS_WEIGHTS;
#endif
}

/* Load n elements, cs apart, as floats whose lower halves are zero. Adds float32 elements to `range`. */
INLINE vf FN(pairs_load)(const S *from, ptrdiff_t cs, int n, v_range *range)
{
    vf x;
    if (cs == 1) {
        x = n == VF ? S_LOAD(from) : S_LOADN(from, n);
    } else {
        S some[VF] = {0};
        for (int i = 0; i < n; i++)
            some[i] = from[i * cs];
        x = S_LOAD(some);
    }
#ifdef S_IS_T
    v_range_add(range, x);
    x = vf_upper_rounded(x);
#else
    (void)range;
#endif
    return x;
}

static int FN(pack_pairs_a)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                            int cols_padded)
{
    v_range range = v_range_none();
    for (int r = 0; r < rows; r++) {
        uint16_t *to = (uint16_t *)dst + r * ld;
        const S *from = (const S *)src + r * rs;
        int c = 0;
#ifndef S_IS_T
        if (cs == 1)
            memcpy(to, from, (size_t)(c = cols) * sizeof(S));
#endif
        for (int n; c < cols; c += n) {
            n = cols - c < VF ? cols - c : VF;
            const vf x = FN(pairs_load)(from + c * cs, cs, n, &range);
            if (n == VF)
                vf_store_upper(to + c, x);
            else
                vf_storen_upper(to + c, x, n);
        }
        for (c = cols; c < cols_padded; c++)
            to[c] = 0;
    }
    return FN(pairs_fit)(&range);
}

static int FN(pack_pairs_b)(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb)
{
    v_range range = v_range_none();
    const S *from = src;
    for (int r = 0, both; r < rows; r += 1 + both) {
        const int k = k0 + r;
        both = k % 2 == 0 && r + 1 < rows;
        uint16_t *to = (uint16_t *)dst + ((ptrdiff_t)(k / 2) * nb + n0) * 2;
        for (int c = 0, n; c < cols; c += n) {
            n = cols - c < VF ? cols - c : VF;
            const vf x = FN(pairs_load)(from + r * rs + c * cs, cs, n, &range);
            if (both) {
                const vf y = FN(pairs_load)(from + (r + 1) * rs + c * cs, cs, n, &range);
                vf_storen((float *)(to + 2 * c), vf_pairs(x, y), n);
            } else {
                uint16_t one[VF];
                vf_store_upper(one, x);
                for (int i = 0; i < n; i++)
                    to[2 * (c + i) + k % 2] = one[i];
            }
        }
    }
    return FN(pairs_fit)(&range);
}
