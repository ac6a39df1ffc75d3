/* IQ3_XXS: 256 values in 98 bytes, 3.0625 bits each.
 *
 *   0  d     f16    scale of the scales
 *   2  qs    64     numbers of points of 4 values
 *  66  rest  8 u32  for 32 values each: 4 times 7 sign bits, s in bits 28..31
 *
 * value = (d / 4 * (2s + 1)) * (+- point), points from rf_iq3_xxs_grid; the eighth sign makes their number even
 * Source: ggml, ggml-common.h block_iq3_xxs and ggml-quants.c dequantize_row_iq3_xxs.
 */
#define RF_FORMAT "iq3_xxs.c"
#include "ramforge_tile.h"

#ifndef RF_IQ3_XXS
#define RF_IQ3_XXS
static const int8_t rf_iq3_xxs_levels[16] = {4, 12, 20, 28, 36, 44, 52, 62};
#endif

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "ramforge_tile_lookup.h"
#include "signed_points.h"

/* x: the sign bits of 32 values each. */
static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d = rf_f16(w[0] & 0xffffu) * 0.25f;
    RF_UNROLL
    for (int i = 0; i < 8; i++) {
        if (i % 4 == 0)
            rf_interleave(p + 66 + 4 * i, stride, w);
        t->x[i] = rf_spread_signs(w[i % 4]);
        rf_odd_scale(t, i, w[i % 4] >> 28, 62);
    }
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    const rf_u32 levels = rf_table16(rf_iq3_xxs_levels);
    rf_u32 w[4];
    rf_interleave(p + 2 + 16 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 4; i++) {
        const rf_u32 even = rf_codes(rf_iq3_xxs_grid, 256, w[i] & 0x00ff00ffu);
        const rf_u32 odd = rf_codes(rf_iq3_xxs_grid, 256, w[i] >> 8 & 0x00ff00ffu);
        RF_UNROLL
        for (int j = 0; j < 4; j++)
            q[4 * i + j] = rf_with_signs(rf_lookup16(levels, rf_iq3_codes(j % 2 ? odd : even, j / 2)),
                                         t->x[2 * part + i / 2], i % 2 * 4 + j, 62);
    }
}

RF_MATMUL_Q8_256(rf_iq3_xxs_matmul, RF_(head), RF_(part), .block_bytes = 98, .width = 8, .qmax = 124,
                 .min = RF_MIN_INT)

#else
#include "signed_points.h"

int rf_iq3_xxs_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 98, dst += 256) {
        const float d = rf_load_f16(src) * 0.25f;
        for (int i = 0; i < 64; i++) {
            const uint32_t rest = rf_load_u32(src + 66 + 4 * (i / 8));
            rf_decode_iq3(dst + 4 * i, rf_iq3_xxs_grid[src[2 + i]], rf_iq3_xxs_levels,
                          rf_signs_of_seven(rest >> 7 * (i / 2 % 4) & 127) >> i % 2 * 4, d * (float)(2 * (rest >> 28) + 1));
        }
    }
    return 0;
}
#endif
