/* `depthwise` of the contract: the choice of the kernel for a run (convt_dw). The includer defines T, V, VL, V_(op), FN(name).
 *
 *   body_dots.h        groups with few out-channels: vectors of in-channels
 *   body_groups.h      groups of several channels
 *   body_ordered.h     few terms, outputs stored in memory order
 *   body_along.h       few terms, weights in registers
 *   body_permuted.h    few terms, permuted inputs (HAVE_PERMUTE: AVX-512)
 *   body_halves.h      blocks whose last channels fill at most half a vector
 *   body_blocks.h      every other run
 *
 * FEW_SHAPES (baseline) leaves dots, groups and blocks.
 */
#include "body_blocks.h"
#include "body_groups.h"
#include "body_dots.h"

#ifndef FEW_SHAPES
#include "body_ordered.h"
#include "body_halves.h"
#define DW_FEW 3 /* up to this many outputs of a phase do not repay loading weights into registers; with a single output, out_ld
                  * may be 0, too */

#define DW_KINDS(of, how, sources)                                                                                       \
    of(how, sources, 1, 1, 0) of(how, sources, 1, 2, 0) of(how, sources, 1, 3, 0) of(how, sources, 2, 1, 1)              \
    of(how, sources, 2, 2, 1) of(how, sources, 2, 2, 2) of(how, sources, 2, 3, 2) of(how, sources, 2, 3, 3)

/* Return the index in DW_KINDS of the next phase; or of the next two phases, if they read the same inputs and their numbers of
 * terms differ by at most one. *phases is the number of phases taken. */
INLINE int FN(dw_kind)(const convt_dw_phase *phase, int rest, int *phases)
{
    const int terms = phase->terms, fewer = rest > 1 ? terms - phase[1].terms : 2;
    *phases = fewer < 2 ? 2 : 1;
    return *phases == 2 ? 2 * terms + 1 - fewer : terms - 1;
}

/* Check whether kernels for few terms exist for all phases. */
static int FN(dw_fits)(const convt_dw *d)
{
    const int all = d->n + d->phase->before + d->phase->after;
    int fits = d->at || (!d->skips && d->n > 1 && all > DW_FEW && d->sources > 0 && d->sources <= CONVT_DW_SOURCES);
    for (int p = 0; p < d->phases; p++)
        fits &= d->phase[p].sliding && !d->phase[p].cut && d->phase[p].terms > 0 && d->phase[p].terms <= CONVT_DW_TERMS;
    return fits;
}

#include "body_along.h"
#ifdef HAVE_PERMUTE
#include "body_permuted.h"
#endif
#undef DW_KINDS
#undef DW_FEW
#endif

static void FN(depthwise)(const convt_dw *d)
{
    CONVT_ASSERT(d->act->code <= CONVT_LEAKY && (!d->stream || sizeof(V) == 64));
    if (d->groups) {
        (d->groups->dots ? FN(dot_run) : FN(dwg_run))(d);
        return;
    }
#ifndef FEW_SHAPES
    const int fits = FN(dw_fits)(d);
    if (fits && d->ordered) {
        FN(dw_all_in_order)(d);
        return;
    }
    if (fits && !d->at) {
        FN(dw_all_along)(d);
        return;
    }
#ifdef HAVE_PERMUTE
    if (fits) {
        FN(dw_grouped)(d);
        return;
    }
#endif
    if (FN(dw_rest_is_half)(d))
        FN(dw_blocks_halved)(d);
    else
#endif
        FN(dw_blocks)(d);
    const convt_dw_phase *p = d->phase;
    for (int lead = 0; p < d->phase + d->phases; p++) {
        lead = p->sharing ? p->terms : lead;
        for (int i = 1; d->low && i <= p->before; i++)
            FN(dw_end)(d, p, -i, 0, lead - i);
        for (int i = 1; d->high && i <= p->after; i++)
            FN(dw_end)(d, p, d->n - 1 + i, i, p->terms);
    }
}
#undef STEP
#undef EACH
#undef DW_NON_TEMPORAL
#undef DW_MOST
#undef DW_STRETCH
