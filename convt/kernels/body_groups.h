/* A run of a depthwise convolution whose groups have several channels: a small GEMM for each vector of out channels. The
 * includer defines T, V, VL, V_(op), FN(name).
 *
 * A vector of sums is of one group, or of part of one; or, if `each` is 2, of a group that has half as many out channels:
 * each has two lanes side by side, for two in-channels, and the sums of two groups are added up and put together for a vector of
 * outputs. Either way an input is repeated by the load alone, where picking it for each lane would take the port that
 * multiplies. */
#define DWG_SUMS (TILE_NV * (TILE_MOST))
#define DWG_MOST 14

/* So many adjacent elements, repeated. */
INLINE V FN(dwg_repeat)(const int each, const void *p)
{
    return each == 2 ? V_(set2)(p) : V_(set1)(*(const T *)p);
}

/* A term of a source: where it reads at the first j, its weights for the first vector, and how far the second phase's are from
 * these, which may not have it: 0. */
typedef struct {
    const char *x;
    const T *w;
    ptrdiff_t apart;
} FN(dwg_product);

/* Where the j's of each group are: two starts, seven j's apart, from which an address takes one register, and another 1, 2 or 4
 * times. */
typedef struct {
    const char *x[2][2];
    ptrdiff_t ld, ld3, ld5; /* bytes between j's, and those of three and five */
} FN(dwg_place);

/* All in-channels of a term, for one phase or two. */
INLINE void FN(dwg_term)(const int each, const int phases, const int count, FN(dwg_place) p, const T *w, ptrdiff_t apart, int ci,
                         V acc[2][2][DWG_MOST])
{
    for (; ci > 0; ci -= each) {
        FORGET(p.ld);
        FORGET(p.ld3);
        FORGET(p.ld5);
#pragma GCC unroll 2
        for (int r = 0; r < each; r++, w += VL) {
            V first = V_(load)(w), second = first;
            IN_REGISTER(first);
            if (phases == 2) {
                second = V_(load)(w + apart);
                IN_REGISTER(second);
            }
            FORGET(p.x[r][0]);
            if (count > 7)
                FORGET(p.x[r][1]);
#pragma GCC unroll 14
            for (int i = 0; i < count; i++) {
                const int m = i % 7;
                const char *x = p.x[r][i / 7] + (m == 3 ? p.ld3 : m == 5 ? p.ld5 : m == 6 ? 2 * p.ld3 : m * p.ld);
                V some = FN(dwg_repeat)(each, x);
                if (phases == 2)
                    IN_REGISTER(some);
                acc[0][r][i] = V_(fma)(some, first, acc[0][r][i]);
                if (phases == 2)
                    acc[1][r][i] = V_(fma)(some, second, acc[1][r][i]);
            }
            p.x[r][0] += each * sizeof(T);
            p.x[r][1] += each * sizeof(T);
        }
    }
}

/* Outputs that need more than a store. */
static __attribute__((noinline)) void FN(dwg_finish)(const convt_dw *d, const T *sums, int count, T *out, int lanes)
{
    for (; count > 0; count--, sums += VL, out += d->out_ld) {
        const V sum = V_(act_simple)(V_(load)(sums), d->act);
        if (d->stream && lanes == VL)
            V_(stream)(out, sum);
        else
            V_(storen)(out, sum, lanes);
    }
}

INLINE void FN(dwg_tile)(const int each, const int phases, const int count, const convt_dw *d, const convt_dw_phase *phase,
                         const FN(dwg_product) *product, const FN(dwg_product) *end, int j, int v)
{
    V acc[2][2][DWG_MOST];
    const convt_dw_groups *g = d->groups;
    const ptrdiff_t ld = d->in_ld * (ptrdiff_t)sizeof(T), weights = v * g->w_ld;
    FN(dwg_place) p = {.ld = ld, .ld3 = 3 * ld, .ld5 = 5 * ld};
    ptrdiff_t at[2];
#pragma GCC unroll 2
    for (int r = 0; r < each; r++)
        at[r] = j * ld + g->at[v * each + r] * (ptrdiff_t)sizeof(T);
#pragma GCC unroll 2
    for (int q = 0; q < phases; q++)
#pragma GCC unroll 2
        for (int r = 0; r < each; r++)
#pragma GCC unroll 14
            for (int i = 0; i < count; i++)
                acc[q][r][i] = V_(set1)(-0.0f); /* keeps the sign of others */
    for (; product < end; product++) {
#pragma GCC unroll 2
        for (int r = 0; r < each; r++) {
            p.x[r][0] = product->x + at[r];
            p.x[r][1] = p.x[r][0] + 7 * ld;
        }
        if (phases == 2 && product->apart)
            FN(dwg_term)(each, 2, count, p, product->w + weights, product->apart, g->ci, acc);
        else
            FN(dwg_term)(each, 1, count, p, product->w + weights, 0, g->ci, acc);
    }
    const int c = g->first[v] - g->first[d->v0], lanes = g->lanes[v];
    const V init = V_(load)((const T *)d->init + c);
    const int plain = d->act->code == CONVT_NONE && !d->stream && lanes == VL;
    T sums[DWG_MOST * VL];
#pragma GCC unroll 2
    for (int q = 0; q < phases; q++) {
        T *out = (T *)d->out + j * d->out_ld + phase[q].out + c, *to = plain ? out : sums;
        const ptrdiff_t step = plain ? d->out_ld : VL;
#pragma GCC unroll 14
        for (int i = 0; i < count; i++, to += step) {
            V sum = acc[q][0][i];
            if (each == 2)
                sum = V_(add_pairs)(sum, acc[q][1][i]);
            if (plain)
                __builtin_prefetch(to + d->ahead, 1);
            V_(store)(to, sum + init);
        }
        if (!plain)
            FN(dwg_finish)(d, sums, count, out, lanes);
    }
}

/* A function for each count of j's: as many sums as there are registers for, at most. */
#define DWG_FITS(each, phases, count) ((each) * (phases) * (count) <= DWG_SUMS)
#define DWG_TILE(each, phases, count)                                                                                        \
    static void FN(dwg_##each##_##phases##_##count)(const convt_dw *d, const convt_dw_phase *phase,                          \
                                                    const FN(dwg_product) *product, const FN(dwg_product) *end, int j, int v) \
    {                                                                                                                        \
        if (DWG_FITS(each, phases, count))                                                                                   \
            FN(dwg_tile)(each, phases, count, d, phase, product, end, j, v);                                                 \
    }
#define DWG_NAME(each, phases, count) FN(dwg_##each##_##phases##_##count),
#define DWG_COUNTS(of, each, phases)                                                                                          \
    of(each, phases, 1) of(each, phases, 2) of(each, phases, 3) of(each, phases, 4) of(each, phases, 5) of(each, phases, 6)   \
    of(each, phases, 7) of(each, phases, 9) of(each, phases, 14)
#define DWG_KINDS(of) DWG_COUNTS(of, 1, 1) DWG_COUNTS(of, 1, 2) DWG_COUNTS(of, 2, 1) DWG_COUNTS(of, 2, 2)
DWG_KINDS(DWG_TILE)

static const int FN(dwg_counts)[] = {1, 2, 3, 4, 5, 6, 7, 9, 14};

/* Which of the counts, of no more than so many sums, does n j's soonest. */
static int FN(dwg_size)(int n, int most)
{
    int best = 0, least = 3 * n;
    for (int size = 1; size < 9 && FN(dwg_counts)[size] <= most && FN(dwg_counts)[size] <= n; size++) {
        const int count = FN(dwg_counts)[size], takes = (n + count - 1) / count * (count + 2);
        best = takes <= least ? size : best;
        least = takes <= least ? takes : least;
    }
    return best;
}

/* Vectors of channels one after the other, each with all j's of a phase, or of two that read the same inputs: its weights stay in
 * the first-level cache. */
static void FN(dwg_run)(const convt_dw *d)
{
    static void (*const tiles[][2][9])(const convt_dw *, const convt_dw_phase *, const FN(dwg_product) *, const FN(dwg_product) *,
                                       int, int) = {
        {{DWG_COUNTS(DWG_NAME, 1, 1)}, {DWG_COUNTS(DWG_NAME, 1, 2)}},
        {{DWG_COUNTS(DWG_NAME, 2, 1)}, {DWG_COUNTS(DWG_NAME, 2, 2)}},
    };
    FN(dwg_product) products[CONVT_DW_PRODUCTS], *p;
    const int each = d->groups->each;
    for (const convt_dw_phase *phase = d->phase, *end = phase + d->phases; phase < end;)
        for (int rest = phase->sharing, phases; rest > 0; rest -= phases, phase += phases) {
            phases = rest > 1 ? 2 : 1;
            p = products;
            CONVT_ASSERT(d->sources * phase->terms <= CONVT_DW_PRODUCTS);
            for (int s = 0; s < d->sources; s++)
                for (int u = 0; u < phase->terms; u++, p++) {
                    p->x = (const char *)((const T *)d->in[s] + d->from + phase->term[u].in);
                    p->w = (const T *)d->w[s] + phase->term[u].w;
                    p->apart = phases == 2 && u < phase[1].terms ? phase[1].term[u].w - phase->term[u].w : 0;
                }
            const int fit = DWG_SUMS / (each * phases), size = FN(dwg_size)(d->n, fit), count = FN(dwg_counts)[size];
            for (int v = d->v0; v < d->v1; v++)
                /* (The last ones once more, where counts don't divide them.) */
                for (int j = 0; j < d->n; j += count)
                    tiles[each - 1][phases - 1][size](d, phase, products, p, j + count <= d->n ? j : d->n - count, v);
        }
}
#undef DWG_SUMS
#undef DWG_MOST
#undef DWG_FITS
#undef DWG_TILE
#undef DWG_NAME
#undef DWG_COUNTS
#undef DWG_KINDS
