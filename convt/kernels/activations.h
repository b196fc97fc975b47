/* The activations that take more than an instruction or two: they are applied to sums in memory. Included by vec_common.h. */
#ifndef CONVT_ACTIVATIONS_H
#define CONVT_ACTIVATIONS_H

/* Return exp(r) - 1, where x = n ln 2 + r, and set two factors of 2^n. There are two so that the ends of the range over- and
 * underflow correctly. */
INLINE vf vf_exp_parts(vf x, vf *scale, vf *scale2)
{
    x = vf_select(x < vf_set1(-104.f), vf_set1(-104.f), x);
    x = vf_select(x > vf_set1(89.f), vf_set1(89.f), x);
    const vf magic = vf_set1(12582912.f); /* 1.5 * 2^23: adding this rounds to an integer */
    const vf n = vf_fma(x, vf_set1(1.44269504f), magic) - magic;
    const vf r = vf_fma(n, vf_set1(2.12194440e-4f), vf_fma(n, vf_set1(-0.693359375f), x));
    vf p = vf_set1(1.f / 5040);
    p = vf_fma(p, r, vf_set1(1.f / 720));
    p = vf_fma(p, r, vf_set1(1.f / 120));
    p = vf_fma(p, r, vf_set1(1.f / 24));
    p = vf_fma(p, r, vf_set1(1.f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    const vi i = __builtin_convertvector(vf_select(n == n, n, vf_set1(0)), vi);
    const vi half = i >> 1;
    *scale = (vf)((half + 127) << 23);
    *scale2 = (vf)((i - half + 127) << 23);
    return vf_fma(p * r, r, r);
}
/* exp to about 1 ulp. */
INLINE vf vf_exp(vf x)
{
    vf scale, scale2;
    const vf p = vf_exp_parts(x, &scale, &scale2) + vf_set1(1.f);
    return p * scale * scale2;
}
INLINE vf vf_elu(vf x, vf a)
{
    vf scale, scale2;
    const vf p = vf_exp_parts(vf_select(x < vf_set1(0), x, vf_set1(0)), &scale, &scale2); /* large x would overflow */
    const vf power = scale * scale2;
    return vf_select(x < vf_set1(0), a * vf_fma(p, power, power - vf_set1(1.f)), x);
}
INLINE vf vf_tanh(vf x)
{
    /* Near 0 the quotient would cancel. For |x| < 0.5 an odd polynomial (Taylor to x^13) is exact up to rounding. */
    const vf z = x * x;
    vf p = vf_set1(21844.f / 6081075);
    p = vf_fma(p, z, vf_set1(-1382.f / 155925));
    p = vf_fma(p, z, vf_set1(62.f / 2835));
    p = vf_fma(p, z, vf_set1(-17.f / 315));
    p = vf_fma(p, z, vf_set1(2.f / 15));
    p = vf_fma(p, z, vf_set1(-1.f / 3));
    const vf small = x * vf_fma(z, p, vf_set1(1.f)); /* -0 stays -0 */
    const vf large = vf_set1(1.f) - vf_set1(2.f) / (vf_exp(x + x) + vf_set1(1.f));
    return vf_select((x < vf_set1(0.5f)) & (x > vf_set1(-0.5f)), small, large);
}
/* erf by Abramowitz and Stegun 7.1.26, absolute error below 2e-7. */
INLINE vf vf_erf(vf x)
{
    const vf a = vf_select(x < vf_set1(0), -x, x);
    const vf t = vf_set1(1.f) / vf_fma(vf_set1(0.3275911f), a, vf_set1(1.f));
    vf p = vf_set1(1.061405429f);
    p = vf_fma(p, t, vf_set1(-1.453152027f));
    p = vf_fma(p, t, vf_set1(1.421413741f));
    p = vf_fma(p, t, vf_set1(-0.284496736f));
    p = vf_fma(p, t, vf_set1(0.254829592f));
    const vf y = vf_fma(-p * t, vf_exp(-a * a), vf_set1(1.f));
    return vf_select(x < vf_set1(0), -y, y);
}
/* GELU, swish and hard swish of -Inf are -Inf * 0 = NaN, as in PyTorch, ONNX Runtime and oneDNN. */
INLINE vf vf_sigmoid(vf x) { return vf_set1(1.f) / (vf_set1(1.f) + vf_exp(-x)); }
INLINE vf vf_gelu(vf x) { return vf_set1(0.5f) * x * (vf_set1(1.f) + vf_erf(x * vf_set1(0.70710678f))); }
INLINE vf vf_swish(vf x) { return x / (vf_set1(1.f) + vf_exp(-x)); }
INLINE vf vf_hard_swish(vf x)
{
    const vf gate = vf_fma(x, vf_set1(1.f / 6), vf_set1(0.5f));
    return x * vf_min(vf_set1(1.f), vf_max(vf_set1(0), gate));
}
INLINE double hard_swish(double x)
{
    const double gate = x / 6 + 0.5;
    return x * (gate < 0 ? 0 : gate > 1 ? 1 : gate);
}

/* X(NAME, result for a vector v of floats, result for a double v) for each activation. `a` is a parameter of the user, of the
 * type of v. The code of an activation is CONVT_NAME; codes follow CONVT_LEAKY in this order. */
#define ACTIVATIONS(X)                                                        \
    X(TANH, vf_tanh(v), tanh(v))                                              \
    X(SIGMOID, vf_sigmoid(v), 1 / (1 + exp(-v)))                              \
    X(GELU, vf_gelu(v), 0.5 * v * (1 + erf(v * 0.70710678118654752440)))      \
    X(SWISH, vf_swish(v), v / (1 + exp(-v)))                                  \
    X(ELU, vf_elu(v, a), v < 0 ? a * expm1(v) : v)                            \
    X(HARD_SWISH, vf_hard_swish(v), hard_swish(v))

#define CODE(name, of_vector, of_double) CONVT_##name,
enum { CONVT_BEFORE_ACTIVATIONS = CONVT_LEAKY, ACTIVATIONS(CODE) };
#undef CODE

/* Apply an activation to several vectors, which are independent and therefore hide each other's latency. An unknown code gives
 * NaN. */
static __attribute__((noinline)) void vf_act_transcendental(vf *x, int count, const convt_act *act)
{
    const vf a = vf_set1((float)act->a);
#define CASE(name, of_vector, of_double)  \
    case CONVT_##name:                    \
        for (int i = 0; i < count; i++) { \
            const vf v = x[i];            \
            x[i] = of_vector;             \
        }                                 \
        break;
    switch (act->code) {
        ACTIVATIONS(CASE)
    default:
        CONVT_ASSERT(!"an activation without a case");
        for (int i = 0; i < count; i++)
            x[i] = vf_set1(NAN);
    }
#undef CASE
}
static __attribute__((noinline)) void vd_act_transcendental(vd *x, int count, const convt_act *act)
{
    const double a = act->a;
#define CASE(name, of_vector, of_double)        \
    case CONVT_##name:                          \
        for (int i = 0; i < count * VD; i++) {  \
            const double v = x[i / VD][i % VD]; \
            x[i / VD][i % VD] = of_double;      \
        }                                       \
        break;
    switch (act->code) {
        ACTIVATIONS(CASE)
    default:
        CONVT_ASSERT(!"an activation without a case");
        for (int i = 0; i < count; i++)
            x[i] = vd_set1(NAN);
    }
#undef CASE
}
#endif
