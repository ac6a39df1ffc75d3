/* IQ2_XS: 256 values in 74 bytes, 2.3125 bits each.
 *
 *   0  d       f16     scale of the scales
 *   2  qs      32 u16  for 8 values each: number of a point in bits 0..8, 7 sign bits in bits 9..15
 *  66  scales  8       s of 16 groups of 16 values: byte j holds group 2j in its low and 2j + 1 in its high nibble
 *
 * value = (d / 8 * (2s + 1)) * (+- point), points from rf_iq2_xs_grid; the eighth sign makes their number even
 * Source: ggml, ggml-common.h block_iq2_xs and ggml-quants.c dequantize_row_iq2_xs.
 */
#define RF_FORMAT "iq2_xs.c"
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
    RF_UNROLL
    for (int i = 0; i < 8; i++) {
        if (i % 2 == 0)
            rf_interleave(p + 2 + 8 * i, stride, w);
        const rf_u32 a = w[i % 2 * 2] >> 9 & 0x007f007fu, b = w[i % 2 * 2 + 1] >> 9 & 0x007f007fu;
        t->x[i] = rf_seven_to_eight(((a | a >> 8) & 0xffffu) | (b | b >> 8) << 16);
    }
    rf_interleave(p + 58, stride, w);
    RF_UNROLL
    for (int i = 0; i < 16; i++)
        rf_odd_scale(t, i, w[2 + i / 8] >> (i % 8 * 4) & 15, 43);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 w[4];
    rf_interleave(p + 2 + 16 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 2; i++) {
        const rf_u32 first = rf_codes(rf_iq2_xs_grid, 512, w[2 * i] & 0x01ff01ffu);
        const rf_u32 second = rf_codes(rf_iq2_xs_grid, 512, w[2 * i + 1] & 0x01ff01ffu);
        rf_iq2_group((first & 0xffffu) | second << 16, first >> 16 | (second & 0xffff0000u), t->x[2 * part + i],
                     q + 8 * i);
    }
}

RF_MATMUL_Q8_256(rf_iq2_xs_matmul, RF_(head), RF_(part), .block_bytes = 74, .width = 4, .qmax = 86,
                 .min = RF_MIN_INT)

#else
#include "signed_points.h"

int rf_iq2_xs_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 74, dst += 256) {
        const float d = rf_load_f16(src) * 0.125f;
        for (int i = 0; i < 32; i++) {
            const unsigned q = rf_load_u16(src + 2 + 2 * i), s = src[66 + i / 4] >> i / 2 % 2 * 4 & 15;
            rf_decode_iq2(dst + 8 * i, rf_iq2_xs_grid[q & 511], rf_signs_of_seven(q >> 9), d * (float)(2 * s + 1));
        }
    }
    return 0;
}
#endif
