/*
 * The vector vocabulary (simd.h) in AVX2 and FMA, and the kernels over it.
 */
#include "cpu/cpu.h"

#ifdef HTI_X86
#include <immintrin.h>

#include "cpu/fast/simd.h"

#define VW 8
typedef __m256 vf;

INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
INLINE void vf_stream(float *p, vf a) { _mm256_stream_ps(p, a); }
INLINE void vf_stream_end(void) { _mm_sfence(); }

/* n times all ones, then zeros */
INLINE __m256i first_n(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, first_n(n)); }
INLINE void vf_store_n(float *p, vf a, int n) { _mm256_maskstore_ps(p, first_n(n), a); }
INLINE vf vf_set1(float a) { return _mm256_set1_ps(a); }
INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE uint32_t vf_less(vf a, vf b) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vf_fma_if(uint32_t take, vf a, vf b, vf c) {
    __m256 all = _mm256_castsi256_ps(_mm256_set1_epi32((int)(0u - take)));
    return _mm256_fmadd_ps(_mm256_and_ps(a, all), _mm256_and_ps(b, all), c);
}
INLINE float vf_sum(vf a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
INLINE void vf_sums4(float out[4], vf a, vf b, vf c, vf d) {
    vf x = vf_add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    vf y = vf_add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    vf z = vf_add(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(z), _mm256_extractf128_ps(z, 1)));
}
INLINE vf vf_pick(uint32_t bits, vf a, vf b) {
    __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)bits), bit);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit)));
}
INLINE vf vf_pick_positive(vf x, vf a, vf b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NLE_UQ));
}
INLINE vf vf_round(vf a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf vf_scale2(vf a, vf n) {
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}
INLINE vf vf_drop_below(vf y, vf x, vf b) {
    return _mm256_and_ps(y, _mm256_cmp_ps(x, b, _CMP_NLT_UQ));
}
INLINE vf vf_exponent(vf a) {
    __m256i e = _mm256_srli_epi32(_mm256_castps_si256(a), 23);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(e, _mm256_set1_epi32(127)));
}

typedef __m256i vi;
INLINE vi vi_set1(uint32_t a) { return _mm256_set1_epi32((int)a); }
INLINE vi vi_count(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
INLINE vi vi_mul(vi *hi, vi a, vi b) {
    vi even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
INLINE vf vf_pick_below(vi x, vi bound, vf a, vf b) {
    vi sign = _mm256_set1_epi32((int)0x80000000u); /* there is no unsigned comparison */
    vi below = _mm256_cmpgt_epi32(vi_xor(bound, sign), vi_xor(x, sign));
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(below));
}

INLINE void vf_transpose(vf r[8]) {
    vf t[8];
    UNROLL for (int i = 0; i < 8; i += 4) { /* 4 x 4 inside each 128-bit lane */
        vf a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
        vf c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) { /* then the 2 x 2 matrix of lanes */
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

/* 16 registers: 6 keys x 2 vectors of queries, or 4 rows x 3 vectors of an output tile */
#define SCORE_G0 6
#define SCORE_G1 4
#define SCORE_G2 2
#define SCORE_GROUP(n) ((n) == 6 || (n) >= 10 ? 6 : (n) >= 4 ? 4 : (n) >= 2 ? 2 : 1)
#define VALUE_ROWS 4
#define VALUE_VECTORS 3

#define FAST(name) name##_avx2
#include "cpu/fast/kernels.h"
#endif
