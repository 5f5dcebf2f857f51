/* exp and what is made of it, in one polynomial: the same bits on every instruction set, which libm does not promise. */
#ifndef COLIBRI_VEC_MATH_H
#define COLIBRI_VEC_MATH_H
#include "vec/vec.h"

/* 2^n for n in -126..127 */
VEC vf vf_power_of_2(vi n) { return vf_bits(vi_shl(vi_add(n, vi_set1(127)), 23)); }

/* Within 1.5 units in the last place; infinity above 88.73, NaN for NaN, and 0 below -87: subnormal results would take a
 * hundred times as long on some processors. x = n ln 2 + r, |r| <= ln 2 / 2. */
VEC vf vf_exp(vf x) {
    const vf lowest = vf_set1(-87.0f), given = x;
    x = vf_min(vf_set1(89.0f), vf_max(lowest, x)); /* in this order a NaN stays */
    vi n = vi_from_vf(vf_mul(x, vf_set1(0x1.715476p+0f)));
    vf whole = vf_from_vi(n);
    vf r = vf_fma(whole, vf_set1(-0x1.62e400p-1f), x);
    r = vf_fma(whole, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_set1(0x1.a01a02p-13f); /* 1/7!, 1/6!, ... */
    p = vf_fma(p, r, vf_set1(0x1.6c16c2p-10f));
    p = vf_fma(p, r, vf_set1(0x1.111112p-7f));
    p = vf_fma(p, r, vf_set1(0x1.555556p-5f));
    p = vf_fma(p, r, vf_set1(0x1.555556p-3f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    vi half = vi_sar(n, 1); /* in two factors, for n = 128 */
    vf power = vf_mul(vf_mul(p, vf_power_of_2(half)), vf_power_of_2(vi_sub(n, half)));
    return vf_select_less(given, lowest, vf_zero(), power);
}
VEC vf vf_sigmoid(vf x) { return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }
/* (1 - t) / (1 + t), t = e^-2|x|, with the sign of x: within 1e-7 */
VEC vf vf_tanh(vf x) {
    const vf one = vf_set1(1.0f), t = vf_exp(vf_mul(vf_abs(x), vf_set1(-2.0f)));
    const vf size = vf_div(vf_sub(one, t), vf_add(one, t));
    return vf_select_less(x, vf_zero(), vf_sub(vf_zero(), size), size);
}
VEC vf vf_sqrt(vf x) {
    float lanes[16];
    vf_store(lanes, x);
    for (int i = 0; i < 16; i++) lanes[i] = sqrtf(lanes[i]); /* rounded correctly everywhere */
    return vf_load(lanes);
}
/* ln(1 + e^x) = max(x, 0) + ln(1 + t), t = e^-|x|; ln(1 + t) = 2 artanh z = 2 (z + z^3/3 + ...), z = t / (2 + t) <= 1/3 */
VEC vf vf_softplus(vf x) {
    const vf t = vf_exp(vf_sub(vf_zero(), vf_abs(x))), z = vf_div(t, vf_add(vf_set1(2.0f), t)), square = vf_mul(z, z);
    vf p = vf_set1(1.0f / 15);
    for (int odd = 13; odd > 0; odd -= 2) p = vf_fma(p, square, vf_set1(1.0f / (float)odd));
    return vf_fma(vf_add(z, z), p, vf_max(vf_zero(), x));
}
VEC vf vf_silu(vf x) { return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }
/* x/2 (1 + erf(x / sqrt 2)); erf of |x| / sqrt 2 as Abramowitz and Stegun 7.1.26 have it, within 1.5e-7 */
VEC vf vf_gelu_erf(vf x) {
    const vf z = vf_mul(vf_abs(x), vf_set1(0.70710678f)), t = vf_div(vf_set1(1.0f), vf_fma(vf_set1(0.3275911f), z, vf_set1(1.0f)));
    vf p = vf_set1(1.061405429f);
    p = vf_fma(p, t, vf_set1(-1.453152027f));
    p = vf_fma(p, t, vf_set1(1.421413741f));
    p = vf_fma(p, t, vf_set1(-0.284496736f));
    p = vf_fma(p, t, vf_set1(0.254829592f));
    const vf tail = vf_mul(vf_mul(p, t), vf_exp(vf_sub(vf_zero(), vf_mul(z, z)))); /* 1 - erf z */
    const vf part = vf_mul(vf_mul(vf_set1(0.5f), x), tail);
    return vf_select_less(x, vf_zero(), part, vf_sub(x, part));
}
/* x/2 (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
VEC vf vf_gelu_tanh(vf x) {
    vf u = vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(0.044715f), vf_set1(1.0f)));
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_mul(u, vf_set1(-1.5957691216057308f)))));
}
#endif
