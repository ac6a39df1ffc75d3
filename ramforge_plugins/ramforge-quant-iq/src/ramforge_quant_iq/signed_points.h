/* signed_points.h: what IQ2 and IQ3 share: points of positive values, and a sign bit for each value.
 *
 * A weight is stored as offset + value or offset - value, so that it is positive.
 */
#include "points.h"

#ifdef RF_ISA
#define rf_u8 RF_(rf_u8)
#define rf_odd_scale RF_(rf_odd_scale)
#define rf_two_bits RF_(rf_two_bits)
#define rf_seven_to_eight RF_(rf_seven_to_eight)
#define rf_spread_signs RF_(rf_spread_signs)
#define rf_with_signs RF_(rf_with_signs)
#define rf_iq2_group RF_(rf_iq2_group)
#define rf_iq2_values RF_(rf_iq2_values)
#define rf_iq3_codes RF_(rf_iq3_codes)

typedef uint8_t rf_u8 __attribute__((vector_size(4 * RF_LANES)));

/* Scale i is 2s + 1. */
static RF_INLINE void rf_odd_scale(rf_tile *t, int i, rf_u32 s, int offset)
{
    const rf_i32 scale = (rf_i32)(2 * s + 1);
    rf_set_scale(t, i, scale, offset * scale);
}

/* Each byte holds seven sign bits; the eighth makes their number even. */
static RF_INLINE rf_u32 rf_seven_to_eight(rf_u32 s)
{
    rf_u32 parity = s ^ s >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return s | (parity & 0x01010101u) << 7;
}

/* The low 28 bits, four times seven sign bits, to 32. */
static RF_INLINE rf_u32 rf_spread_signs(rf_u32 x)
{
    return rf_seven_to_eight((x & 0x7fu) | (x << 1 & 0x7f00u) | (x << 2 & 0x7f0000u) | (x << 3 & 0x7f000000u));
}

/* Four values each as offset +- value. Dword j of the eight whose sign bits are the 32 of `signs`. */
static RF_INLINE rf_u32 rf_with_signs(rf_u32 values, rf_u32 signs, int j, int offset)
{
#if RF_LANES == 4
    const rf_u32 ones = ((signs >> (4 * j) & 15u) * 0x00204081u) & 0x01010101u, minus = (ones << 8) - ones;
    const rf_u8 base = (rf_u8){0} + (uint8_t)offset;
    return (rf_u32)((rf_u8)(values ^ minus) - (rf_u8)minus + base);
#else
    const uint32_t byte = 0x01010101u * (uint32_t)(j / 2), bit = j % 2 ? 0x80402010u : 0x08040201u;
#if RF_LANES == 16
    const __m512i lanes = _mm512_set4_epi32((int)(byte + 0x0c0c0c0cu), (int)(byte + 0x08080808u),
                                            (int)(byte + 0x04040404u), (int)byte);
    const __mmask64 minus = _mm512_test_epi8_mask(_mm512_shuffle_epi8((__m512i)signs, lanes), _mm512_set1_epi32((int)bit));
    const __m512i base = _mm512_set1_epi8((char)offset), v = (__m512i)values;
    return (rf_u32)_mm512_mask_sub_epi8(_mm512_add_epi8(base, v), minus, base, v);
#else
    const __m256i lanes = _mm256_setr_epi32((int)byte, (int)(byte + 0x04040404u), (int)(byte + 0x08080808u),
                                            (int)(byte + 0x0c0c0c0cu), (int)byte, (int)(byte + 0x04040404u),
                                            (int)(byte + 0x08080808u), (int)(byte + 0x0c0c0c0cu));
    const __m256i bits = _mm256_set1_epi32((int)bit), base = _mm256_set1_epi8((char)offset);
    const __m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8((__m256i)signs, lanes), bits), bits);
    return (rf_u32)_mm256_add_epi8(base, _mm256_sub_epi8(_mm256_xor_si256((__m256i)values, minus), minus));
#endif
#endif
}

/* IQ2: byte j of each dword, four fields of two bits, to four bytes. */
static RF_INLINE rf_u32 rf_two_bits(rf_u32 codes, int j)
{
    rf_u32 x = codes >> (8 * j) & 0xffu;
    x |= x << 12;
    return (x | x << 6) & 0x03030303u;
}

/* IQ2: byte j of the codes to four values of 8, 25 or 43. */
static RF_INLINE rf_u32 rf_iq2_values(rf_u32 codes, int j)
{
#if RF_LANES == 16
    const int byte = 0x01010101 * j;
    const __m512i lanes = _mm512_set4_epi32(byte + 0x0c0c0c0c, byte + 0x08080808, byte + 0x04040404, byte);
    const __m512i fields = _mm512_shuffle_epi8((__m512i)codes, lanes);
    const __mmask64 one = _mm512_test_epi8_mask(fields, _mm512_set1_epi32(0x40100401));
    const __mmask64 two = _mm512_test_epi8_mask(fields, _mm512_set1_epi32((int)0x80200802u));
    return (rf_u32)_mm512_mask_mov_epi8(_mm512_mask_mov_epi8(_mm512_set1_epi8(8), one, _mm512_set1_epi8(25)), two,
                                        _mm512_set1_epi8(43));
#else
    const rf_u32 level = rf_two_bits(codes, j);
    return 0x08080808u + level + (level << 4) + (level >> 1 & 0x01010101u);
#endif
}

/* IQ2: 32 values from the codes of points 0 and 2, and of 1 and 3, and their sign bits. */
static RF_INLINE void rf_iq2_group(rf_u32 even, rf_u32 odd, rf_u32 signs, rf_u32 q[8])
{
    RF_UNROLL
    for (int j = 0; j < 8; j++) /* dwords 2i, 2i+1 are point i, half i / 2 of its codes */
        q[j] = rf_with_signs(rf_iq2_values(j / 2 % 2 ? odd : even, j / 4 * 2 + j % 2), signs, j, 43);
}

/* IQ3: half j of the codes to the numbers of four levels. */
static RF_INLINE rf_u32 rf_iq3_codes(rf_u32 codes, int j)
{
    codes = j ? codes >> 16 : codes & 0xffffu;
    return (codes | codes << 12) & 0x0f0f0f0fu;
}

#elif !defined(RF_SIGNED_POINTS)
#define RF_SIGNED_POINTS

static inline uint32_t rf_signs_of_seven(uint32_t s)
{
    uint32_t parity = s ^ s >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return s | (parity & 1) << 7;
}

/* IQ2: the 8 values of a point, scale * (+- value). */
static inline void rf_decode_iq2(float *dst, unsigned code, uint32_t signs, float scale)
{
    static const float levels[4] = {8, 25, 43, 0};
    for (int i = 0; i < 8; i++)
        dst[i] = scale * (signs >> i & 1 ? -levels[code >> 2 * i & 3] : levels[code >> 2 * i & 3]);
}

/* IQ3: the 4 values of a point. */
static inline void rf_decode_iq3(float *dst, unsigned code, const int8_t levels[16], uint32_t signs, float scale)
{
    static const int at[4] = {0, 8, 4, 12};
    for (int i = 0; i < 4; i++) {
        const float value = levels[code >> at[i] & 15];
        dst[i] = scale * (signs >> i & 1 ? -value : value);
    }
}
#endif
