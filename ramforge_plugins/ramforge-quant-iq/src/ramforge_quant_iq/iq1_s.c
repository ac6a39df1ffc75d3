/* IQ1_S: 256 values in 50 bytes, 1.5625 bits each.
 *
 *   0  d   f16    scale of the scales
 *   2  qs  32     low 8 bits of the number of a point, for 8 values each
 *  34  qh  8 u16  for 32 values each: bits 3i..3i+2 are the high bits of point i, 12..14 are s, 15 the sign of the shift
 *
 * value = (d * (2s + 1)) * (point +- 1/8), points of -1, 0, 1 from rf_iq1_s_grid
 * Source: ggml, ggml-common.h block_iq1_s and ggml-quants.c dequantize_row_iq1_s.
 */
#define RF_FORMAT "iq1_s.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "shifted_points.h"

/* x[0..3]: qh. */
static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d = rf_f16(w[0] & 0xffffu) * 0.125f;
    rf_interleave(p + 34, stride, t->x);
    RF_UNROLL
    for (int i = 0; i < 8; i++)
        rf_iq1_scale(t, i, t->x[i / 2] >> (i % 2 * 16 + 12) & 7);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 codes[8];
    rf_iq1_codes(p + 2 + 8 * part, p + 34 + 4 * part, stride, 3, codes);
    RF_UNROLL
    for (int i = 0; i < 8; i++)
        rf_iq1_values(codes[i], t->x[part] >> (i / 4 * 16 + 15) & 1, q + 2 * i);
}

RF_MATMUL_Q8_256(rf_iq1_s_matmul, RF_(head), RF_(part), .block_bytes = 50, .width = 8, .qmax = 9,
                 .min = RF_MIN_INT)

#else
#include "shifted_points.h"

int rf_iq1_s_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 50, dst += 256) {
        const float d = rf_load_f16(src) * 0.125f;
        for (int i = 0; i < 32; i++) {
            const unsigned qh = rf_load_u16(src + 34 + 2 * (i / 4)), point = src[2 + i] | (qh >> i % 4 * 3 & 7) << 8;
            rf_decode_iq1(dst + 8 * i, rf_iq1_s_grid[point], qh >> 15, d * (float)(2 * (qh >> 12 & 7) + 1));
        }
    }
    return 0;
}
#endif
