/*
 * The vector vocabulary (simd.h) in AVX-512, and the kernels over it.
 */
#include "cpu/cpu.h"

#ifdef HTI_X86
#include <immintrin.h>

#include "cpu/fast/simd.h"

#define VW 16
typedef __m512 vf;

INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE void vf_stream(float *p, vf a) { _mm512_stream_ps(p, a); }
INLINE void vf_stream_end(void) { _mm_sfence(); }
INLINE __mmask16 first_n(int n) { return (__mmask16)((1u << n) - 1); }
INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(first_n(n), p); }
INLINE void vf_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, first_n(n), a); }
INLINE vf vf_set1(float a) { return _mm512_set1_ps(a); }
INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE uint32_t vf_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_fma_if(uint32_t take, vf a, vf b, vf c) {
    return _mm512_mask3_fmadd_ps(a, b, c, (__mmask16)(0u - take));
}
INLINE float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE void vf_sums4(float out[4], vf a, vf b, vf c, vf d) {
    vf x = vf_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    vf y = vf_add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    vf z = vf_add(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
    __m256 w = _mm256_add_ps(_mm512_castps512_ps256(z), _mm512_extractf32x8_ps(z, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1)));
}
INLINE vf vf_pick(uint32_t bits, vf a, vf b) { return _mm512_mask_mov_ps(b, (__mmask16)bits, a); }
INLINE vf vf_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf vf_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }
INLINE vf vf_drop_below(vf y, vf x, vf b) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, b, _CMP_NLT_UQ), y);
}
INLINE vf vf_pick_positive(vf x, vf a, vf b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ), a);
}
INLINE vf vf_exponent(vf a) { return _mm512_getexp_ps(a); }

typedef __m512i vi;
INLINE vi vi_set1(uint32_t a) { return _mm512_set1_epi32((int)a); }
INLINE vi vi_count(void) {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vi vi_mul(vi *hi, vi a, vi b) {
    vi even = _mm512_mul_epu32(a, b), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    *hi = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
    return _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
}
INLINE vf vf_pick_below(vi x, vi bound, vf a, vf b) {
    return _mm512_mask_mov_ps(b, _mm512_cmplt_epu32_mask(x, bound), a);
}

INLINE void vf_transpose(vf r[16]) {
    vf t[16];
    UNROLL for (int i = 0; i < 16; i += 4) { /* 4 x 4 inside each 128-bit lane */
        vf a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
        vf c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) { /* then the 4 x 4 matrix of lanes */
        vf a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88),
           b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        vf c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88),
           d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

/* 32 registers: 16 keys x 1 vector of queries, or 4 rows x 4 vectors of an output tile */
#define SCORE_G0 16
#define SCORE_G1 8
#define SCORE_G2 4
#define SCORE_GROUP(n) ((n) >= 16 ? 16 : (n) >= 8 ? 8 : (n) >= 4 ? 4 : 1)
#define VALUE_ROWS 4
#define VALUE_VECTORS 4

#define FAST(name) name##_avx512
#include "cpu/fast/kernels.h"
#endif
