/* IQ2_XXS: 256 values in 66 bytes, 2.0625 bits each.
 *
 *   0  d       f16   scale of the scales
 *   2  groups  8*8   of 32 values: 4 bytes, numbers of points of 8 values, then u32: 4 times 7 sign bits, s in bits 28..31
 *
 * value = (d / 8 * (2s + 1)) * (+- point), points from rf_iq2_xxs_grid; the eighth sign makes their number even
 * Source: ggml, ggml-common.h block_iq2_xxs and ggml-quants.c dequantize_row_iq2_xxs.
 */
#define RF_FORMAT "iq2_xxs.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "signed_points.h"

/* x: the sign bits of the 8 groups. */
static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d = rf_f16(w[0] & 0xffffu) * 0.125f;
    RF_UNROLL
    for (int i = 0; i < 8; i++) {
        if (i % 2 == 0)
            rf_interleave(p + 2 + 8 * i, stride, w);
        t->x[i] = rf_spread_signs(w[i % 2 * 2 + 1]);
        rf_odd_scale(t, i, w[i % 2 * 2 + 1] >> 28, 43);
    }
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 w[4];
    rf_interleave(p + 2 + 16 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 2; i++) {
        const rf_u32 even = rf_codes(rf_iq2_xxs_grid, 256, w[2 * i] & 0x00ff00ffu);
        const rf_u32 odd = rf_codes(rf_iq2_xxs_grid, 256, w[2 * i] >> 8 & 0x00ff00ffu);
        rf_iq2_group(even, odd, t->x[2 * part + i], q + 8 * i);
    }
}

RF_MATMUL_Q8_256(rf_iq2_xxs_matmul, RF_(head), RF_(part), .block_bytes = 66, .width = 8, .qmax = 86,
                 .min = RF_MIN_INT)

#else
#include "signed_points.h"

int rf_iq2_xxs_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 66, dst += 256) {
        const float d = rf_load_f16(src) * 0.125f;
        for (int i = 0; i < 32; i++) {
            const uint8_t *group = src + 2 + 8 * (i / 4);
            const uint32_t rest = rf_load_u32(group + 4);
            rf_decode_iq2(dst + 8 * i, rf_iq2_xxs_grid[group[i % 4]], rf_signs_of_seven(rest >> 7 * (i % 4) & 127),
                            d * (float)(2 * (rest >> 28) + 1));
        }
    }
    return 0;
}
#endif
