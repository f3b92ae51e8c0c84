/*
 * 2^x and log2 x on vectors. tests/attention/test_exp.c holds the exponential to its bound.
 */

/* 2^x for x <= 128: at most 1.01 ulp off where x >= -126; below, and for -inf, exactly 0. NaN stays
 * NaN. x = n + r with |r| <= 1/2, 2^r by a polynomial of degree 6 (relative error 1.9e-9 before
 * rounding). */
INLINE vf exp2_v(vf x) {
    vf n = vf_round(x), r = vf_sub(x, n);
    vf p = vf_set1(0x1.41d334p-13f);
    p = vf_fma(p, r, vf_set1(0x1.5f456ap-10f));
    p = vf_fma(p, r, vf_set1(0x1.3b2dbcp-7f));
    p = vf_fma(p, r, vf_set1(0x1.c6aed4p-5f));
    p = vf_fma(p, r, vf_set1(0x1.ebfbdap-3f));
    p = vf_fma(p, r, vf_set1(0x1.62e430p-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_drop_below(vf_scale2(p, n), x, vf_set1(-126.0f));
}

/* log2 of x in [1, 2^64]: at most 3.1 ulp off. x = m 2^e with m in [sqrt(1/2), sqrt(2)] and
 * log2 m = 2/ln 2 atanh(t), t = (m - 1)/(m + 1), |t| <= 0.172: five terms of the series. */
INLINE vf log2_v(vf x) {
    vf one = vf_set1(1.0f), e = vf_exponent(vf_mul(x, vf_set1(0x1.6a09e6p0f)));
    vf m = vf_scale2(x, vf_sub(vf_zero(), e));
    vf t = vf_div(vf_sub(m, one), vf_add(m, one)), u = vf_mul(t, t);
    vf p = vf_set1(1.0f / 9);
    p = vf_fma(p, u, vf_set1(1.0f / 7));
    p = vf_fma(p, u, vf_set1(1.0f / 5));
    p = vf_fma(p, u, vf_set1(1.0f / 3));
    p = vf_fma(vf_mul(p, u), t, t);
    return vf_fma(p, vf_set1(0x1.715476p1f), e);
}
