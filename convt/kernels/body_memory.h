/* Between user memory (S) and accumulators (T): widening loads, rounding stores. The includer defines
 *   S, T, V, VL, V_(op), FN(name)
 *   S_LOAD, S_LOADN, S_STORE, S_STOREN   vectors of T from and to S
 *   S_STORE_2, S_STREAM_2   two vectors at once, by ordinary and by non-temporal stores, where S is not T
 * Elements that are not contiguous go through a vector on the stack.
 */
#include "body_widen.h"
#include "body_transpose.h"
#ifndef S_IS_T
#include "body_narrow.h"
#endif
#include "body_gather.h"
#include "body_interleave.h"
#include "body_overlap.h"
#include "body_across.h"

static int FN(pack_b)(void *dst, int k0, int n0, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols, int nb)
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
