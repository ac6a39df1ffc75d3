/* shifted_points.h: what IQ1_S and IQ1_M share: points of -1, 0, 1, shifted by 1/8 up or down.
 *
 * Eight times a value is an odd number from -9 to 9, which is 2w - 9 with the weight w = 4 * level + (1 if the shift is
 * up). A grid of 2048 points is looked up with plain loads: faster than gathers, and than registers full of codes.
 */
#include "points.h"

#ifdef RF_ISA
#define rf_iq1_scale RF_(rf_iq1_scale)
#define rf_iq1_codes RF_(rf_iq1_codes)
#define rf_iq1_values RF_(rf_iq1_values)

/* Scale i of 2s + 1 for eight times a value. */
static RF_INLINE void rf_iq1_scale(rf_tile *t, int i, rf_u32 s)
{
    const rf_i32 scale = (rf_i32)(2 * s + 1);
    rf_set_scale(t, i, 2 * scale, 9 * scale);
}

/* The codes of 8 points of each row: 8 low bytes of their numbers at qs, and at qh a uint32 whose halves hold the three
 * high bits of four points each, `step` bits apart. */
static RF_INLINE void rf_iq1_codes(const uint8_t *qs, const uint8_t *qh, int64_t stride, int step, rf_u32 codes[8])
{
    uint32_t rows[RF_LANES][8];
    for (int lane = 0; lane < RF_LANES; lane++, qs += stride, qh += stride) {
        const uint64_t high = (uint64_t)rf_load_u32(qh) << 8;
        uint32_t c[8];
        RF_UNROLL
        for (int i = 0; i < 8; i++)
            c[i] = rf_iq1_s_grid[qs[i] | (high >> (i / 4 * 16 + i % 4 * step) & 0x700)];
#if RF_LANES == 4
        memcpy(rows[lane], c, sizeof c);
#else /* in one store, since a load cannot be served from two that are on their way */
        _mm256_storeu_si256((__m256i *)rows[lane],
                            _mm256_setr_epi32((int)c[0], (int)c[1], (int)c[2], (int)c[3], (int)c[4], (int)c[5],
                                              (int)c[6], (int)c[7]));
#endif
    }
    rf_interleave((const uint8_t *)rows, sizeof rows[0], codes);
    rf_interleave((const uint8_t *)rows + 16, sizeof rows[0], codes + 4);
}

/* The 8 weights of a point; the sign of its shift is 0 or 1. */
static RF_INLINE void rf_iq1_values(rf_u32 code, rf_u32 sign, rf_u32 q[2])
{
    const rf_u32 up = (sign - 1) & 0x01010101u;
    q[0] = (code & 0x0f0f0f0fu) | up;
    q[1] = (code >> 4 & 0x0f0f0f0fu) | up;
}

#elif !defined(RF_SHIFTED_POINTS)
#define RF_SHIFTED_POINTS

/* The 8 values of a point; scale is that of eight times the value. */
static inline void rf_decode_iq1(float *dst, uint32_t code, unsigned sign, float scale)
{
    for (int i = 0; i < 8; i++)
        dst[i] = scale * (float)(2 * (int)(code >> (i % 4 * 8 + i / 4 * 4) & 15) - (sign ? 9 : 7));
}
#endif
