/* IQ1_M: 256 values in 56 bytes, 1.75 bits each.
 *
 *   0  qs      32     low 8 bits of the number of a point, for 8 values each
 *  32  qh      16     for a point each, low nibble first: 3 high bits and the sign of the shift
 *  48  scales  4 u16  four s of 3 bits each, of groups of 16 values; the top nibbles are d, an f16, lowest nibble first
 *
 * value = (d * (2s + 1)) * (point +- 1/8), points of -1, 0, 1 from rf_iq1_s_grid
 * Source: ggml, ggml-common.h block_iq1_m and ggml-quants.c dequantize_row_iq1_m.
 */
#define RF_FORMAT "iq1_m.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "shifted_points.h"

/* x[0..3]: qh, 8 points each. */
static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p + 32, stride, t->x);
    rf_interleave(p + 40, stride, w);
    t->d = rf_f16((w[2] >> 12 & 0xfu) | (w[2] >> 24 & 0xf0u) | (w[3] >> 4 & 0xf00u) | (w[3] >> 16 & 0xf000u)) * 0.125f;
    RF_UNROLL
    for (int i = 0; i < 16; i++)
        rf_iq1_scale(t, i, w[2 + i / 8] >> (i / 4 % 2 * 16 + i % 4 * 3) & 7);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 codes[8];
    rf_iq1_codes(p + 8 * part, p + 32 + 4 * part, stride, 4, codes);
    RF_UNROLL
    for (int i = 0; i < 8; i++)
        rf_iq1_values(codes[i], t->x[part] >> (4 * i + 3) & 1, q + 2 * i);
}

RF_MATMUL_Q8_256(rf_iq1_m_matmul, RF_(head), RF_(part), .block_bytes = 56, .width = 4, .qmax = 9,
                 .min = RF_MIN_INT)

#else
#include "shifted_points.h"

int rf_iq1_m_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 56, dst += 256) {
        unsigned half = 0;
        for (int i = 0; i < 4; i++)
            half |= (unsigned)(src[49 + 2 * i] >> 4) << 4 * i;
        const float d = rf_f16_to_f32((uint16_t)half) * 0.125f;
        for (int i = 0; i < 32; i++) {
            const unsigned qh = src[32 + i / 2] >> i % 2 * 4, s = rf_load_u16(src + 48 + i / 8 * 2) >> i / 2 % 4 * 3 & 7;
            rf_decode_iq1(dst + 8 * i, rf_iq1_s_grid[src[i] | (qh & 7) << 8], qh >> 3 & 1, d * (float)(2 * s + 1));
        }
    }
    return 0;
}
#endif
