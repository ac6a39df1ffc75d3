/* IQ2_S: 256 values in 82 bytes, 2.5625 bits each.
 *
 *   0  d       f16  scale of the scales
 *   2  qs      32   low 8 bits of the number of a point, for 8 values each
 *  34  signs   32   sign bits of 8 values each
 *  66  qh      8    high 2 bits: bits 2i, 2i+1 of byte j belong to point 4j + i
 *  74  scales  8    s of 16 groups of 16 values: byte j holds group 2j in its low and 2j + 1 in its high nibble
 *
 * value = (d / 8 * (2s + 1)) * (+- point), points from rf_iq2_s_grid
 * Source: ggml, ggml-common.h block_iq2_s and ggml-quants.c dequantize_row_iq2_s.
 */
#define RF_FORMAT "iq2_s.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "signed_points.h"

/* x: the sign bits of 32 values each. */
static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d = rf_f16(w[0] & 0xffffu) * 0.125f;
    rf_interleave(p + 66, stride, w);
    rf_interleave(p + 34, stride, t->x);
    rf_interleave(p + 50, stride, t->x + 4);
    RF_UNROLL
    for (int i = 0; i < 16; i++)
        rf_odd_scale(t, i, w[2 + i / 8] >> (i % 8 * 4) & 15, 43);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 w[4], high;
    rf_interleave(p + 66, stride, w);
    high = w[part / 2] >> (part % 2 * 16);
    rf_interleave(p + 2 + 8 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 2; i++) {
        const rf_u32 h = high >> (8 * i); /* bits 2k, 2k+1 are those of point k of 4 */
        const rf_u32 even = (w[i] & 0x00ff00ffu) | (h << 8 & 0x300u) | (h << 20 & 0x3000000u);
        const rf_u32 odd = (w[i] >> 8 & 0x00ff00ffu) | (h << 6 & 0x300u) | (h << 18 & 0x3000000u);
        rf_iq2_group(rf_codes(rf_iq2_s_grid, 1024, even), rf_codes(rf_iq2_s_grid, 1024, odd), t->x[2 * part + i],
                     q + 8 * i);
    }
}

RF_MATMUL_Q8_256(rf_iq2_s_matmul, RF_(head), RF_(part), .block_bytes = 82, .width = 4, .qmax = 86,
                 .min = RF_MIN_INT, .fence = 1)

#else
#include "signed_points.h"

int rf_iq2_s_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 82, dst += 256) {
        const float d = rf_load_f16(src) * 0.125f;
        for (int i = 0; i < 32; i++) {
            const int point = src[2 + i] | (src[66 + i / 4] >> i % 4 * 2 & 3) << 8;
            const int s = src[74 + i / 4] >> i / 2 % 2 * 4 & 15;
            rf_decode_iq2(dst + 8 * i, rf_iq2_s_grid[point], src[34 + i], d * (float)(2 * s + 1));
        }
    }
    return 0;
}
#endif
