/* `depthwise` of the contract: the choice of the kernel for a run (convt_dw). The includer defines T, V, VL, V_(op), FN(name).
 *
 *   body_dots.h        groups with few out-channels: vectors of in-channels
 *   body_groups.h      groups of several channels
 *   body_ordered.h     few terms, outputs stored in memory order
 *   body_stationary.h  few terms, weights in registers (weight-stationary)
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
/* Up to this many outputs of a phase do not repay loading weights into registers. With a single output, out_ld may
 * also be 0. */
#define DW_FEW_OUTPUTS 3

#define DW_KINDS(X, mode, sources)                                                                                       \
    X(mode, sources, 1, 1, 0) X(mode, sources, 1, 2, 0) X(mode, sources, 1, 3, 0) X(mode, sources, 2, 1, 1)              \
    X(mode, sources, 2, 2, 1) X(mode, sources, 2, 2, 2) X(mode, sources, 2, 3, 2) X(mode, sources, 2, 3, 3)

/* Return the index in DW_KINDS of the next phase; or of the next two phases, if they read the same inputs and their numbers of
 * terms differ by at most one. *phases is the number of phases taken. */
INLINE int FN(dw_kind)(const convt_dw_phase *phase, int rest, int *phases)
{
    const int terms = phase->terms, fewer = rest > 1 ? terms - phase[1].terms : 2;
    *phases = fewer < 2 ? 2 : 1;
    return *phases == 2 ? 2 * terms + 1 - fewer : terms - 1;
}

/* Check whether kernels for few terms exist for all phases. */
static int FN(dw_has_few_terms)(const convt_dw *d)
{
    const int all = d->n + d->phase->outputs_before + d->phase->outputs_after;
    int fits = d->vector_offset || (!d->skip_outside && d->n > 1 && all > DW_FEW_OUTPUTS && d->sources > 0 &&
                                    d->sources <= CONVT_DW_SOURCES);
    for (int p = 0; p < d->phases; p++)
        fits &= d->phase[p].sliding && !d->phase[p].masked && d->phase[p].terms > 0 && d->phase[p].terms <= CONVT_DW_TERMS;
    return fits;
}

#include "body_stationary.h"
#ifdef HAVE_PERMUTE
#include "body_permuted.h"
#endif
#undef DW_KINDS
#undef DW_FEW_OUTPUTS
#endif

static void FN(depthwise)(const convt_dw *d)
{
    CONVT_ASSERT(d->act->code <= CONVT_LEAKY && (!d->stream || sizeof(V) == 64));
    if (d->groups) {
        (d->groups->dots ? FN(dot_run) : FN(dwg_run))(d);
        return;
    }
#ifndef FEW_SHAPES
    const int fits = FN(dw_has_few_terms)(d);
    if (fits && d->ordered) {
        FN(dw_run_ordered)(d);
        return;
    }
    if (fits && !d->vector_offset) {
        FN(dw_run_stationary)(d);
        return;
    }
#ifdef HAVE_PERMUTE
    if (fits) {
        FN(dw_run_permuted)(d);
        return;
    }
#endif
    if (FN(dw_rest_is_half)(d))
        FN(dw_run_halves)(d);
    else
#endif
        FN(dw_run_blocks)(d);
    const convt_dw_phase *p = d->phase;
    for (int lead = 0; p < d->phase + d->phases; p++) {
        lead = p->set_size ? p->terms : lead;
        for (int i = 1; d->has_before && i <= p->outputs_before; i++)
            FN(dw_edge_output)(d, p, -i, 0, lead - i);
        for (int i = 1; d->has_after && i <= p->outputs_after; i++)
            FN(dw_edge_output)(d, p, d->n - 1 + i, i, p->terms);
    }
}
#undef STEP
#undef EACH
#undef DW_NON_TEMPORAL
#undef DW_MOST_J
