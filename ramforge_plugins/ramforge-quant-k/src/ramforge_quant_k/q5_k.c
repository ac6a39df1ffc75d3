/* Q5_K: 256 values in 176 bytes, 5.5 bits each.
 *
 *   0  d      f16     scale of the scales
 *   2  dmin   f16     scale of the minima
 *   4  scales 12      6-bit scales and minima of 8 groups of 32 values, see scales_q4_k.h
 *  16  qh     32      bit 4 of q: bit g of byte l < 32 belongs to value l of group g
 *  48  qs     128     low 4 bits: bytes 32c..32c+31 hold group 2c in their low and group 2c+1 in their high nibbles
 *
 * value = (d * scale) * q - (dmin * min)
 * Source: ggml, ggml-common.h block_q5_K and ggml-quants.c dequantize_row_q5_K.
 */
#define RF_FORMAT "q5_k.c"
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
    rf_interleave(p + 16, stride, t->x);
    rf_interleave(p + 32, stride, t->x + 4);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    RF_UNROLL
    for (int c = 0; c < 2; c++) {
        rf_u32 w[4];
        rf_interleave(p + 48 + 32 * part + 16 * c, stride, w);
        RF_UNROLL
        for (int j = 0; j < 4; j++) {
            const rf_u32 high = t->x[4 * c + j] >> (2 * part);
            q[4 * c + j] = (w[j] & 0x0f0f0f0fu) | (high & 0x01010101u) << 4;
            q[8 + 4 * c + j] = (w[j] >> 4 & 0x0f0f0f0fu) | (high >> 1 & 0x01010101u) << 4;
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
    const rf_u32 low = rf_fields(p + 48 + 32 * i, 0, 4, h) & 0x0f0f0f0fu;
    return low | (rf_fields(p + 16, 2 * i - 4, 2 * i - 3, h) & 0x10101010u);
}
#endif

RF_MATMUL_ROW_Q8_256(rf_q5_k_matmul, RF_(head), RF_(part), RF_(row_head), RF_(row_part),
                     .block_bytes = 176, .width = 8, .qmax = 31, .min = RF_MIN_FLOAT)

#else
#include "scales_q4_k.h"

int rf_q5_k_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 176, dst += 256) {
        const float d = rf_load_f16(src), dmin = rf_load_f16(src + 2);
        for (int group = 0; group < 8; group++) {
            const uint8_t *qh = src + 16, *qs = src + 48 + 32 * (group / 2);
            const float scale = d * (float)rf_q4_k_scale(src + 4, group), min = dmin * (float)rf_q4_k_min(src + 4, group);
            for (int i = 0; i < 32; i++) {
                const int q = (qs[i] >> 4 * (group % 2) & 15) | (qh[i] >> group & 1) << 4;
                dst[32 * group + i] = scale * (float)q - min;
            }
        }
    }
    return 0;
}
#endif
