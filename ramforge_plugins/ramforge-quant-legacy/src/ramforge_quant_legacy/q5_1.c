/* Q5_1: 32 values in 24 bytes, 6 bits each.
 *
 *   0  d   f16   scale
 *   2  m   f16   minimum
 *   4  qh  u32   bit j is bit 4 of value j
 *   8  qs  16    low 4 bits: byte j holds value j in its low and value j + 16 in its high nibble
 *
 * value = d * q + m
 * Source: ggml, ggml-common.h block_q5_1 and ggml-quants.c dequantize_row_q5_1.
 */
#define RF_FORMAT "q5_1.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32.h"
#include "fifth_bit.h"

static RF_INLINE void RF_(pair)(const uint8_t *p, int64_t stride, rf_pair *t)
{
    rf_u32 w[12];
    rf_interleave(p, stride, w);
    rf_interleave(p + 16, stride, w + 4);
    rf_interleave(p + 32, stride, w + 8);
    RF_UNROLL
    for (int i = 0; i < 2; i++) {
        t->d[i] = rf_f16(w[6 * i] & 0xffffu);
        t->m[i] = rf_f16(w[6 * i] >> 16);
        RF_(five_bits)(w + 6 * i + 2, w[6 * i + 1], t->q + 8 * i);
    }
}

RF_MATMUL_Q8_32(rf_q5_1_matmul, RF_(pair), .block_bytes = 24, .qmax = 31, .min = 1)

#else

int rf_q5_1_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 24, dst += 32) {
        const float d = rf_load_f16(src), m = rf_load_f16(src + 2);
        const uint32_t high = rf_load_u32(src + 4);
        for (int i = 0; i < 32; i++) {
            const int low = src[8 + i % 16] >> i / 16 * 4 & 15;
            dst[i] = d * (float)(low | (int)(high >> i & 1) << 4) + m;
        }
    }
    return 0;
}
#endif
