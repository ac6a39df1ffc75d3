/* IQ4_XS: 256 values in 136 bytes, 4.25 bits each.
 *
 *   0  d         f16  scale of the scales
 *   2  scales_h  u16  high 2 bits of the scales of 8 groups of 32 values: bits 2j, 2j+1 of group j
 *   4  scales_l  4    low 4 bits: byte j holds group 2j in its low and 2j + 1 in its high nibble
 *   8  qs        128  4-bit q: 16 bytes a group, byte j holds value j in its low and value j + 16 in its high nibble
 *
 * value = (d * (scale - 32)) * rf_steps[q]
 * Source: ggml, ggml-common.h block_iq4_xs and ggml-quants.c dequantize_row_iq4_xs.
 */
#define RF_FORMAT "iq4_xs.c"
#include "ramforge_tile.h"
#include "steps.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "ramforge_tile_lookup.h"

static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d = rf_f16(w[0] & 0xffffu);
    RF_UNROLL
    for (int i = 0; i < 8; i++) {
        const rf_i32 scale = (rf_i32)((w[1] >> (4 * i) & 15) | (w[0] >> (16 + 2 * i) & 3) << 4) - 32;
        const rf_i32 min = RF_SIGNED_OFFSET * scale;
        t->sc[i] = rf_scale(scale);
        t->mn[i / 2] = i % 2 ? t->mn[i / 2] | min << 16 : (min & 0xffff);
    }
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    const rf_u32 table = rf_signed(rf_table16(rf_steps));
    (void)t;
    RF_UNROLL
    for (int group = 0; group < 2; group++) {
        rf_u32 w[4];
        rf_interleave(p + 8 + 32 * part + 16 * group, stride, w);
        RF_UNROLL
        for (int j = 0; j < 4; j++) {
            q[8 * group + j] = rf_lookup16(table, w[j] & 0x0f0f0f0fu);
            q[8 * group + 4 + j] = rf_lookup16(table, w[j] >> 4 & 0x0f0f0f0fu);
        }
    }
}

RF_MATMUL_Q8_256(rf_iq4_xs_matmul, RF_(head), RF_(part), .block_bytes = 136, .width = 8, .qmax = 128,
                 .min = RF_SIGNED_OFFSET ? RF_MIN_INT : RF_MIN_NONE)

#else

int rf_iq4_xs_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 136, dst += 256) {
        const float d = rf_load_f16(src);
        const unsigned high = src[2] | (unsigned)src[3] << 8;
        for (int group = 0; group < 8; group++) {
            const int low = src[4 + group / 2] >> group % 2 * 4 & 15;
            const float scale = d * (float)((low | (int)(high >> 2 * group & 3) << 4) - 32);
            for (int i = 0; i < 32; i++)
                dst[32 * group + i] = scale * (float)rf_steps[src[8 + 16 * group + i % 16] >> i / 16 * 4 & 15];
        }
    }
    return 0;
}
#endif
