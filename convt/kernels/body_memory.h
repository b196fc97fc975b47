/* Kernels between user memory (S) and accumulators (T): widening loads, rounding stores, transposition, packing of B
 * (`pack_b`), `store` and `add`. The includer defines
 *
 *   S, T, V, VL, V_(op), FN(name)    element types, a vector of T, its lanes, its operations, the name of an instance
 *   S_LOAD, S_LOADN, S_STORE, S_STOREN    whole and partial vectors of T from and to S
 *   S_STORE_2, S_STREAM_2    stores of two vectors, ordinary and non-temporal, if S is not T
 *   S_IS_T    defined if S is T
 *
 * Elements that are not contiguous go through a vector on the stack. `store` and `add` compute up to eight vectors together, so
 * that transcendental activations hide their latency; `store` goes row by row.
 */
#include "body_widen.h"
#include "body_transpose.h"
#ifndef S_IS_T
#include "body_narrow.h"
#endif
#include "body_gather.h"
#include "body_interleave.h"
#include "body_overlap.h"
#include "body_pixels.h"

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
        for (int c = 0, n; c < cols; c += n) {
            V y[8];
            n = cols - c < 8 * VL ? cols - c : 8 * VL;
            for (int i = 0; i * VL < n; i++)
                y[i] = n - i * VL >= VL ? V_(load)(from + c + i * VL) : V_(loadn)(from + c + i * VL, n - i * VL);
            V_(act_all)(y, (n + VL - 1) / VL, act);
            for (int i = 0; i * VL < n; i++) {
                const int some = n - i * VL < VL ? n - i * VL : VL;
                if (cs == 1 && some == VL) {
                    S_STORE(to + c + i * VL, y[i]);
                } else if (cs == 1) {
                    S_STOREN(to + c + i * VL, y[i], some);
                } else {
                    S each[VL];
                    S_STORE(each, y[i]);
                    for (int j = 0; j < some; j++)
                        to[(c + i * VL + j) * cs] = each[j];
                }
            }
        }
    }
}

static void FN(add)(void *to, const void *from, int64_t n, const convt_act *given)
{
    const convt_act act = *given; /* a local copy, which no store can alias */
    S *y = to;
    const S *x = from;
    for (; n >= 8 * VL; n -= 8 * VL, y += 8 * VL) {
        V sums[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            sums[i] = S_LOAD(y + i * VL);
        if (x) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
                sums[i] += S_LOAD(x + i * VL);
            x += 8 * VL;
        }
        V_(act_all)(sums, 8, &act);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            S_STORE(y + i * VL, sums[i]);
    }
    for (; n > 0; n -= VL, y += VL) {
        const int some = n < VL ? (int)n : VL;
        V sum = S_LOADN(y, some);
        if (x) {
            sum += S_LOADN(x, some);
            x += some;
        }
        S_STOREN(y, V_(act)(sum, &act), some);
    }
}
