/* Q5_0: 32 values in 22 bytes, 5.5 bits each.
 *
 *   0  d   f16   scale
 *   2  qh  u32   bit j is bit 4 of value j
 *   6  qs  16    low 4 bits: byte j holds value j in its low and value j + 16 in its high nibble
 *
 * value = d * (q - 16)
 * Source: ggml, ggml-common.h block_q5_0 and ggml-quants.c dequantize_row_q5_0.
 */
#define RF_FORMAT "q5_0.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32.h"
#include "fifth_bit.h"

static RF_INLINE void RF_(pair)(const uint8_t *p, int64_t stride, rf_pair *t)
{
    rf_u32 w[12], first[4]; /* the 11 dwords: w 0..7, w[8..11] 7..10 */
    rf_interleave(p, stride, w);
    rf_interleave(p + 16, stride, w + 4);
    rf_interleave(p + 28, stride, w + 8);
    RF_UNROLL
    for (int j = 0; j < 4; j++)
        first[j] = w[j + 1] >> 16 | w[j + 2] << 16;
    t->d[0] = rf_f16(w[0] & 0xffffu);
    t->d[1] = rf_f16(w[5] >> 16);
    RF_(five_bits)(first, w[0] >> 16 | w[1] << 16, t->q);
    RF_(five_bits)(w + 8, w[6], t->q + 8);
}

RF_MATMUL_Q8_32(rf_q5_0_matmul, RF_(pair), .block_bytes = 22, .offset = 16, .qmax = 31)

#else

int rf_q5_0_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 22, dst += 32) {
        const float d = rf_load_f16(src);
        const uint32_t high = rf_load_u32(src + 2);
        for (int i = 0; i < 32; i++) {
            const int low = src[6 + i % 16] >> i / 16 * 4 & 15;
            dst[i] = d * (float)((low | (int)(high >> i & 1) << 4) - 16);
        }
    }
    return 0;
}
#endif
