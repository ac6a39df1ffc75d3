/* Q4_K: 256 values in 144 bytes, 4.5 bits each.
 *
 *   0  d      f16     scale of the scales
 *   2  dmin   f16     scale of the minima
 *   4  scales 12      6-bit scales and minima of 8 groups of 32 values, see scales_q4_k.h
 *  16  qs     128     4-bit q: bytes 32c..32c+31 hold group 2c in their low and group 2c+1 in their high nibbles
 *
 * value = (d * scale) * q - (dmin * min)
 * Source: ggml, ggml-common.h block_q4_K and ggml-quants.c dequantize_row_q4_K.
 */
#define RF_FORMAT "q4_k.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "ramforge_row_q8_256.h"
#include "scales_q4_k.h"

static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    RF_(unpack_scales)(w, t);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    (void)t;
    RF_UNROLL
    for (int c = 0; c < 2; c++) {
        rf_u32 w[4];
        rf_interleave(p + 16 + 32 * part + 16 * c, stride, w);
        RF_UNROLL
        for (int j = 0; j < 4; j++) {
            q[4 * c + j] = w[j] & 0x0f0f0f0fu;
            q[8 + 4 * c + j] = w[j] >> 4 & 0x0f0f0f0fu;
        }
    }
}

#if RF_ROWS
static RF_INLINE void RF_(row_head)(const uint8_t *p, rf_row *t)
{
    RF_(row_scales)(p, t);
}

static RF_INLINE rf_u32 RF_(row_part)(const uint8_t *p, int i, int h)
{
    return rf_fields(p + 16 + 32 * i, 0, 4, h) & 0x0f0f0f0fu;
}
#endif

RF_MATMUL_ROW_Q8_256(rf_q4_k_matmul, RF_(head), RF_(part), RF_(row_head), RF_(row_part),
                     .block_bytes = 144, .width = 8, .qmax = 15, .min = RF_MIN_FLOAT)

#else
#include "scales_q4_k.h"

int rf_q4_k_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 144, dst += 256) {
        const float d = rf_load_f16(src), dmin = rf_load_f16(src + 2);
        for (int group = 0; group < 8; group++) {
            const uint8_t *qs = src + 16 + 32 * (group / 2);
            const float scale = d * (float)rf_q4_k_scale(src + 4, group), min = dmin * (float)rf_q4_k_min(src + 4, group);
            for (int i = 0; i < 32; i++)
                dst[32 * group + i] = scale * (float)(qs[i] >> 4 * (group % 2) & 15) - min;
        }
    }
    return 0;
}
#endif
