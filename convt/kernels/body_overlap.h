/* `overlap` and `overlap_gather` of the contract: overlap-add into user memory (S), directly or by indices. The includer
 * defines the macros listed in body_memory.h.
 *
 * `overlap`: loop order j, then vectors of lanes, then terms; or blocks of VL values of j if lanes are few and contiguous.
 * `overlap_gather`: loop order vectors of outputs, then terms; each operand is a gather.
 */

/* Compute VL values of j at a time, if lanes are few and contiguous; the outputs of consecutive j are then contiguous, too.
 * Each j is summed as a whole vector, whose unused lanes the next j overwrites. Return the first j that is not computed. */
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
            /* columns beyond the last tap may hold anything */
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
            if (o->out_c == 1 && o->out_x == o->channels) { /* contiguous lanes */
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

static void FN(overlap_gather)(const convt_overlap_gather *o)
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
