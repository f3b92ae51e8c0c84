/*
 * The vector vocabulary. A file per instruction set (avx2.c, avx512.c) defines it and includes
 * kernels.h, which is written in these words alone:
 *
 *     VW                         lanes of a vector, a divisor of 16
 *     vf                         VW floats
 *     vf_load, vf_store          whole vectors, any alignment
 *     vf_stream                  a whole aligned vector, past the cache
 *     vf_stream_end()            after the last one
 *     vf_load_n, vf_store_n      the first n lanes, 1 <= n <= VW; other lanes load as 0, and
 *                                memory beyond n is not touched
 *     vf_set1, vf_zero
 *     vf_add, vf_sub, vf_mul, vf_div
 *     vf_sqrt                    rounded
 *     vf_max, vf_min             of NaN: the second operand
 *     vf_less(a, b)              bit i is set where lane i of a is below that of b, not of NaN
 *     vf_fma(a, b, c)            a*b + c, rounded once
 *     vf_fma_if(take, a, b, c)   the same if take is 1; if it is 0, c, whatever a and b are
 *     vf_sum(a)                  of all lanes, in a fixed order
 *     vf_sums4(out, a, b, c, d)  the sums of four vectors to four floats, in a fixed order
 *     vf_pick(bits, a, b)        lane i of a where bit i is set, else of b
 *     vf_pick_positive(x, a, b)  lane of a where x > 0 or NaN, else of b
 *     vf_round(a)                to the nearest integer
 *     vf_scale2(a, n)            a * 2^n, n integral, -126 <= n <= 127
 *     vf_drop_below(y, x, b)     y, but 0 where x < b
 *     vf_exponent(a)             floor(log2(a)) of normal a > 0
 *     vf_transpose(r)            the VW x VW matrix r[VW] in place
 *     vi                         VW unsigned 32-bit integers
 *     vi_set1, vi_count          the same in all lanes; 0, 1, 2, ...
 *     vi_add, vi_or, vi_xor
 *     vi_mul(&hi, a, b)          the products' low halves, and their high ones; b: of vi_set1
 *     vf_pick_below(x, y, a, b)  lane of a where x < y, else of b
 *     SCORE_GROUP(n)             how many of n keys to take into registers together: one of
 *                                SCORE_G0 > SCORE_G1 > SCORE_G2 > 1
 *     VALUE_ROWS, VALUE_VECTORS  rows and vectors of an output tile kept in registers
 */
#ifndef HTI_CPU_FAST_SIMD_H
#define HTI_CPU_FAST_SIMD_H

#define INLINE static inline __attribute__((always_inline))

/* Loops over registers: the trip count is a constant once inlined, and they must disappear. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

#endif
