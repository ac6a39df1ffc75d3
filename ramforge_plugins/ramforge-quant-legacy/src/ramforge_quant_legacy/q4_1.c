/* Q4_1: 32 values in 20 bytes, 5 bits each.
 *
 *   0  d   f16   scale
 *   2  m   f16   minimum
 *   4  qs  16    4-bit q: byte j holds value j in its low and value j + 16 in its high nibble
 *
 * value = d * q + m
 * Source: ggml, ggml-common.h block_q4_1 and ggml-quants.c dequantize_row_q4_1.
 */
#define RF_FORMAT "q4_1.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32.h"

static RF_INLINE void RF_(pair)(const uint8_t *p, int64_t stride, rf_pair *t)
{
    rf_u32 w[12]; /* dwords 0..7 and 6..9 of the 10 */
    rf_interleave(p, stride, w);
    rf_interleave(p + 16, stride, w + 4);
    rf_interleave(p + 24, stride, w + 8);
    RF_UNROLL
    for (int i = 0; i < 2; i++) {
        t->d[i] = rf_f16(w[5 * i] & 0xffffu);
        t->m[i] = rf_f16(w[5 * i] >> 16);
        RF_UNROLL
        for (int j = 0; j < 4; j++) {
            const rf_u32 x = i ? w[8 + j] : w[1 + j];
            t->q[8 * i + j] = x & 0x0f0f0f0fu;
            t->q[8 * i + 4 + j] = x >> 4 & 0x0f0f0f0fu;
        }
    }
}

RF_MATMUL_Q8_32(rf_q4_1_matmul, RF_(pair), .block_bytes = 20, .qmax = 15, .min = 1)

#else

int rf_q4_1_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 20, dst += 32) {
        const float d = rf_load_f16(src), m = rf_load_f16(src + 2);
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)(src[4 + i % 16] >> i / 16 * 4 & 15) + m;
    }
    return 0;
}
#endif
