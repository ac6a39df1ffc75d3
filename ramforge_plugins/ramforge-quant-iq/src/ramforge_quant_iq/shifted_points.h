/* shifted_points.h: what IQ1_S and IQ1_M share: points of -1, 0, 1, shifted by 1/8 up or down.
 *
 * Eight times a value is an odd number from -9 to 9. A weight is 9 more: eight times the number of the level, and 2 where
 * the shift is up.
 */
#include "points.h"

#ifdef RF_ISA
#define rf_iq1_values RF_(rf_iq1_values)

/* Byte j of the codes to four weights; the sign of their shift is 0 or 1. */
static RF_INLINE rf_u32 rf_iq1_values(rf_u32 codes, int j, rf_u32 sign)
{
    return rf_two_bits(codes, j) << 3 | ((sign - 1) & 0x02020202u);
}

#elif !defined(RF_SHIFTED_POINTS)
#define RF_SHIFTED_POINTS

/* The 8 values of a point; scale is that of eight times the value. */
static inline void rf_decode_iq1(float *dst, unsigned code, unsigned sign, float scale)
{
    for (int i = 0; i < 8; i++)
        dst[i] = scale * (float)(8 * (int)(code >> 2 * i & 3) - (sign ? 9 : 7));
}
#endif
