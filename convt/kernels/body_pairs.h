/* Packing for the bfloat16 dot product: panels keep the 16-bit elements, B interleaves two rows of depth. */
static int pack_pairs_a(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                        int cols_padded)
{
    for (int r = 0; r < rows; r++) {
        uint16_t *to = (uint16_t *)dst + r * ld;
        const uint16_t *from = (const uint16_t *)src + r * rs;
        if (cs == 1)
            memcpy(to, from, (size_t)cols * 2);
        else
            for (int c = 0; c < cols; c++)
                to[c] = from[c * cs];
        for (int c = cols; c < cols_padded; c++)
            to[c] = 0;
    }
    return CONVT_FITS_WEIGHTS;
}

static int pack_pairs_b(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb)
{
    uint16_t *to = dst;
    const uint16_t *from = src;
    for (int r = 0; r < rows; r++) {
        const int k = k0 + r;
        for (int c = 0; c < cols; c++)
            to[((ptrdiff_t)(k / 2) * nb + n0 + c) * 2 + k % 2] = from[r * rs + c * cs];
    }
    return CONVT_FITS_WEIGHTS;
}
