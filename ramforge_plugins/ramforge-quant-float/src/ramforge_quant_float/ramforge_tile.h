/* ramforge_tile.h: optional helpers to write the kernels of a block format once, for every instruction set.
 *
 * A format needs none of this: the contract is ramforge_kernel.h. Whoever uses it writes how a block is unpacked,
 * as plain C over "vectors of rows", and gets decode and prefill speed on AVX-512 VNNI, AVX2, NEON with dot
 * products and portable C, with bit-identical results. Needs a little-endian machine and -ffp-contract=off.
 *
 * The idea. A tile is RF_LANES consecutive rows, and a lane is a row. The raw bytes of the rows are interleaved dword
 * by dword, so that all later work (masks, shifts, dot products, scales, float sums) is the same for each lane and
 * no sum ever crosses lanes. One activation broadcast, four bytes at a time, meets all rows of the tile at once.
 *
 * How to use it. The format's file names itself and comes in two parts; the first is compiled once per instruction
 * set, with RF_LANES, the rf_ types and functions below, and RF_(name) for name_<isa>:
 *
 *     #define RF_FORMAT "q4_k.c"
 *     #include "ramforge_tile.h"
 *     #ifdef RF_ISA
 *     ... static RF_INLINE void RF_(unpack)(...) and RF_KERNEL int RF_(rf_q4_k_matmul)(...)
 *     #else
 *     ... int rf_q4_k_decode(...), plain C
 *     #endif
 */
#ifndef RF_ISA
/* ---- First part: compile RF_FORMAT once per instruction set -------------------------------------------------- */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "ramforge_kernel.h"

#define RF_CAT_(a, b) a##_##b
#define RF_CAT(a, b) RF_CAT_(a, b)
#define RF_(name) RF_CAT(name, RF_ISA)
#define RF_TYPE_(name, lanes) name##x##lanes
#define RF_TYPE(name, lanes) RF_TYPE_(name, lanes)
#define rf_u32 RF_TYPE(rf_u32, RF_LANES)
#define rf_i32 RF_TYPE(rf_i32, RF_LANES)
#define rf_i16 RF_TYPE(rf_i16, RF_LANES)
#define rf_f32 RF_TYPE(rf_f32, RF_LANES)

#ifdef __GNUC__
#define RF_VECTORS(lanes)                                                             \
    typedef uint32_t RF_TYPE_(rf_u32, lanes) __attribute__((vector_size(4 * lanes))); \
    typedef int32_t RF_TYPE_(rf_i32, lanes) __attribute__((vector_size(4 * lanes)));  \
    typedef int16_t RF_TYPE_(rf_i16, lanes) __attribute__((vector_size(4 * lanes)));  \
    typedef float RF_TYPE_(rf_f32, lanes) __attribute__((vector_size(4 * lanes)))
RF_VECTORS(4);
RF_VECTORS(8);
RF_VECTORS(16);
#define RF_INLINE inline __attribute__((always_inline)) RF_TARGET
#define RF_KERNEL RF_TARGET
#ifdef __clang__
#define RF_UNROLL _Pragma("unroll")
#else
#define RF_UNROLL _Pragma("GCC unroll 16")
#endif
#else
#error "ramforge_tile.h needs the vector types of gcc or clang; without them a format works through NumPy"
#endif

/* Exact value of an IEEE half: one bit pattern at a time. */
static inline float rf_f16_to_f32(uint16_t half)
{
    uint32_t magnitude = half & 0x7fffu, bits;
    float value;
    if (magnitude >= 0x7c00u) /* infinity, not a number */
        bits = (magnitude << 13) + (224u << 23);
    else
        bits = (magnitude << 13) + (112u << 23);
    memcpy(&value, &bits, 4);
    if (magnitude < 0x0400u) /* zero, subnormal: a multiple of 2^-24 */
        value = (float)magnitude * 5.9604644775390625e-8f;
    memcpy(&bits, &value, 4);
    bits |= (uint32_t)(half & 0x8000u) << 16;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float rf_load_f16(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, 2);
    return rf_f16_to_f32(half);
}

static inline uint32_t rf_load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline float rf_load_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, 4);
    return v;
}

/* Signed weights go through rf_signed, and RF_SIGNED_OFFSET * sum(activations) has to be subtracted from their sums. */
#define RF_SIGNED_OFFSET (RF_LANES == 16 ? 128 : 0)

/* Asks for memory that the next tile will read; the hardware does not foresee the jump from one set of rows to the
 * next. Costs nothing and faults never, wherever it points. */
static inline void rf_prefetch(const uint8_t *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i, 0, 2); /* to the second level: closer was slower */
}

#define RF_CHUNK 128 /* activations whose float sums of one tile are kept at a time: 8 KiB of stack at 16 lanes */

#define RF_ISA portable
#define RF_LANES 4
#define RF_GROUP 4
#define RF_TARGET
#include RF_FORMAT
#undef RF_ISA
#undef RF_LANES
#undef RF_GROUP
#undef RF_TARGET

#if defined(__x86_64__)
#define RF_ISA avx2
#define RF_LANES 8
#define RF_GROUP 4
#define RF_TARGET __attribute__((target("avx2,f16c")))
#include RF_FORMAT
#undef RF_ISA
#undef RF_LANES
#undef RF_GROUP
#undef RF_TARGET

#define RF_ISA avx512
#define RF_LANES 16
#define RF_GROUP 8
#define RF_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")))
#include RF_FORMAT
#undef RF_ISA
#undef RF_LANES
#undef RF_GROUP
#undef RF_TARGET
#elif defined(__aarch64__)
#define RF_ISA neon
#define RF_NEON /* has the lanes of portable C */
#define RF_LANES 4
#define RF_GROUP 8
#define RF_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#include RF_FORMAT
#undef RF_ISA
#undef RF_NEON
#undef RF_LANES
#undef RF_GROUP
#undef RF_TARGET
#endif

#else
/* ---- Second part: the vocabulary, once per instruction set --------------------------------------------------- */

#define rf_interleave RF_(rf_interleave)
#define rf_f16 RF_(rf_f16)
#define rf_madd RF_(rf_madd)
#define rf_dots RF_(rf_dots)
#define rf_signed RF_(rf_signed)
#define rf_scale RF_(rf_scale)
#define rf_set RF_(rf_set)
#define rf_pairs RF_(rf_pairs)

static RF_INLINE rf_i32 rf_set(int32_t x)
{
    return (rf_i32){0} + x;
}

/* w[j] = dword j of 16 bytes of each row; p is the first row's, rows are `stride` bytes apart. */
static RF_INLINE void rf_interleave(const uint8_t *p, int64_t stride, rf_u32 w[4])
{
#if RF_LANES == 16
    __m512i v[4], a, b, c, d; /* 128-bit lane n of v[k] is row 4n + k */
    RF_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint8_t *r = p + k * stride;
        __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)r));
        __m256i high = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(r + 8 * stride)));
        low = _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)(r + 4 * stride)), 1);
        high = _mm256_inserti128_si256(high, _mm_loadu_si128((const __m128i *)(r + 12 * stride)), 1);
        v[k] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    w[0] = (rf_u32)_mm512_unpacklo_epi64(a, b), w[1] = (rf_u32)_mm512_unpackhi_epi64(a, b);
    w[2] = (rf_u32)_mm512_unpacklo_epi64(c, d), w[3] = (rf_u32)_mm512_unpackhi_epi64(c, d);
#elif RF_LANES == 8
    __m256i v[4], a, b, c, d;
    RF_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint8_t *r = p + k * stride;
        v[k] = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)r));
        v[k] = _mm256_inserti128_si256(v[k], _mm_loadu_si128((const __m128i *)(r + 4 * stride)), 1);
    }
    a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
    c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    w[0] = (rf_u32)_mm256_unpacklo_epi64(a, b), w[1] = (rf_u32)_mm256_unpackhi_epi64(a, b);
    w[2] = (rf_u32)_mm256_unpacklo_epi64(c, d), w[3] = (rf_u32)_mm256_unpackhi_epi64(c, d);
#elif defined(RF_NEON)
    const uint32x4_t r0 = vreinterpretq_u32_u8(vld1q_u8(p)), r1 = vreinterpretq_u32_u8(vld1q_u8(p + stride));
    const uint32x4_t r2 = vreinterpretq_u32_u8(vld1q_u8(p + 2 * stride));
    const uint32x4_t r3 = vreinterpretq_u32_u8(vld1q_u8(p + 3 * stride));
    const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(r0, r1)), b = vreinterpretq_u64_u32(vtrn1q_u32(r2, r3));
    const uint64x2_t c = vreinterpretq_u64_u32(vtrn2q_u32(r0, r1)), d = vreinterpretq_u64_u32(vtrn2q_u32(r2, r3));
    w[0] = (rf_u32)vtrn1q_u64(a, b), w[1] = (rf_u32)vtrn1q_u64(c, d);
    w[2] = (rf_u32)vtrn2q_u64(a, b), w[3] = (rf_u32)vtrn2q_u64(c, d);
#else
    RF_UNROLL
    for (int j = 0; j < 4; j++)
        w[j] = (rf_u32){rf_load_u32(p + 4 * j), rf_load_u32(p + stride + 4 * j), rf_load_u32(p + 2 * stride + 4 * j),
                        rf_load_u32(p + 3 * stride + 4 * j)};
#endif
}

/* Exact values of the IEEE halves in the low 16 bits; the high bits must be zero. */
static RF_INLINE rf_f32 rf_f16(rf_u32 half)
{
#if RF_LANES == 16
    return (rf_f32)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)half));
#elif RF_LANES == 8
    __m256i packed = _mm256_packus_epi32((__m256i)half, (__m256i)half);
    return (rf_f32)_mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x88)));
#elif defined(RF_NEON)
    return (rf_f32)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)half)));
#else
    rf_u32 magnitude = half & 0x7fffu;
    rf_u32 special = (rf_u32)((rf_i32)(0x7bffu - magnitude) >> 31) & (112u << 23);
    rf_u32 small = (rf_u32)((rf_i32)(magnitude - 0x0400u) >> 31);
    rf_u32 normal = (magnitude << 13) + (112u << 23) + special;
    rf_f32 subnormal = __builtin_convertvector((rf_i32)magnitude, rf_f32) * 5.9604644775390625e-8f;
    return (rf_f32)((half & 0x8000u) << 16 | (small & (rf_u32)subnormal) | (~small & normal));
#endif
}

/* sum + lo16(pairs) * lo16(act) + hi16(pairs) * hi16(act), all signed. */
static RF_INLINE rf_i32 rf_madd(rf_i32 sum, rf_i32 pairs, rf_i32 act)
{
#if RF_LANES == 16
    return (rf_i32)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)pairs, (__m512i)act);
#elif RF_LANES == 8
    return sum + (rf_i32)_mm256_madd_epi16((__m256i)pairs, (__m256i)act);
#elif defined(__SSE2__)
    return sum + (rf_i32)_mm_madd_epi16((__m128i)pairs, (__m128i)act);
#elif defined(RF_NEON)
    const int16x8_t p = (int16x8_t)pairs, a = (int16x8_t)act;
    return sum + (rf_i32)vpaddq_s32(vmull_s16(vget_low_s16(p), vget_low_s16(a)), vmull_high_s16(p, a));
#else
    return sum + (pairs << 16 >> 16) * (act << 16 >> 16) + (pairs >> 16) * (act >> 16);
#endif
}

static RF_INLINE rf_u32 rf_signed(rf_u32 q)
{
    return RF_SIGNED_OFFSET ? q ^ 0x80808080u : q;
}

/* The form in which rf_dots wants a sub-block scale (-2^15 .. 2^15-1). */
static RF_INLINE rf_i32 rf_scale(rf_i32 scale)
{
#if RF_LANES == 16 || defined(RF_NEON)
    return scale;
#else
    return (scale & 0xffff) | scale << 16;
#endif
}

/* sum[a] += scale * (the dot product of 4 * width weights with activation a), for g activations act_bytes apart.
 * q: width dwords (4, 8 or 16) of weights 0..qmax (qmax 128: signed weights after rf_signed). one: the scale is 1. */
#if RF_LANES == 16
static RF_INLINE void rf_dots(rf_i32 *sum, const rf_u32 *q, int width, const uint8_t *act, int64_t act_bytes,
                              rf_i32 scale, int one, int qmax, int g)
{
    __m512i t[RF_GROUP];
    (void)qmax;
    RF_UNROLL
    for (int a = 0; a < g; a++)
        t[a] = one ? (__m512i)sum[a] : _mm512_setzero_si512();
    RF_UNROLL
    for (int j = 0; j < width; j++) {
        RF_UNROLL
        for (int a = 0; a < g; a++)
            t[a] = _mm512_dpbusd_epi32(t[a], (__m512i)q[j],
                                       _mm512_set1_epi32((int)rf_load_u32(act + a * act_bytes + 4 * j)));
    }
    RF_UNROLL
    for (int a = 0; a < g; a++)
        sum[a] = one ? (rf_i32)t[a] : sum[a] + scale * (rf_i32)t[a];
}
#elif defined(RF_NEON)
static RF_INLINE void rf_dots(rf_i32 *sum, const rf_u32 *q, int width, const uint8_t *act, int64_t act_bytes,
                              rf_i32 scale, int one, int qmax, int g)
{
    int32x4_t t[RF_GROUP]; /* weights that are not signed are below 128, too */
    (void)qmax;
    RF_UNROLL
    for (int a = 0; a < g; a++)
        t[a] = one ? (int32x4_t)sum[a] : vdupq_n_s32(0);
    RF_UNROLL
    for (int j = 0; j < width; j += 4) {
        RF_UNROLL
        for (int a = 0; a < g; a++) {
            const int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(act + a * act_bytes + 4 * j));
            t[a] = vdotq_laneq_s32(t[a], (int8x16_t)q[j], x, 0);
            t[a] = vdotq_laneq_s32(t[a], (int8x16_t)q[j + 1], x, 1);
            t[a] = vdotq_laneq_s32(t[a], (int8x16_t)q[j + 2], x, 2);
            t[a] = vdotq_laneq_s32(t[a], (int8x16_t)q[j + 3], x, 3);
        }
    }
    RF_UNROLL
    for (int a = 0; a < g; a++)
        sum[a] = one ? (rf_i32)t[a] : sum[a] + scale * (rf_i32)t[a];
}
#else
/* q0*a0 + q1*a1 and q2*a2 + q3*a3 as int16; weights at most 128 in size, activations at most 127. */
static RF_INLINE rf_i16 rf_pairs(rf_u32 q, int32_t act, int qmax)
{
#if RF_LANES == 8
    __m256i a = _mm256_set1_epi32(act);
    if (qmax == 128)
        return (rf_i16)_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)q), _mm256_sign_epi8(a, (__m256i)q));
    return (rf_i16)_mm256_maddubs_epi16((__m256i)q, a);
#else
    rf_i16 a = (rf_i16)rf_set(act);
    (void)qmax;
    return ((rf_i16)q << 8 >> 8) * (a << 8 >> 8) + ((rf_i16)q >> 8) * (a >> 8);
#endif
}

static RF_INLINE void rf_dots(rf_i32 *sum, const rf_u32 *q, int width, const uint8_t *act, int64_t act_bytes,
                              rf_i32 scale, int one, int qmax, int g)
{
    const int run = 32767 / (2 * 127 * qmax); /* pairs that can be added without leaving int16 */
    rf_i16 t[RF_GROUP];
    RF_UNROLL
    for (int j = 0; j < width; j++) {
        RF_UNROLL
        for (int a = 0; a < g; a++) {
            rf_i16 p = rf_pairs(q[j], (int32_t)rf_load_u32(act + a * act_bytes + 4 * j), qmax);
            t[a] = j % run == 0 ? p : t[a] + p;
            if (j % run == run - 1 || j == width - 1)
                sum[a] = rf_madd(sum[a], (rf_i32)t[a], one ? rf_set(0x00010001) : scale);
        }
    }
}
#endif

#endif /* RF_ISA */
