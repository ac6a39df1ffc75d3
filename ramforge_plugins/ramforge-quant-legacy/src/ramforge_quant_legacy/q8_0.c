/* Q8_0: 32 values in 34 bytes, 8.5 bits each.
 *
 *   0  d   f16     scale
 *   2  qs  32 i8   q
 *
 * value = d * q
 * Source: ggml, ggml-common.h block_q8_0 and ggml-quants.c dequantize_row_q8_0.
 */
#define RF_FORMAT "q8_0.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32.h"

static RF_INLINE void RF_(pair)(const uint8_t *p, int64_t stride, rf_pair *t)
{
    rf_u32 w[9], x[4], last[8]; /* the 17 dwords: w 0..8, last 9..16 */
    rf_interleave(p, stride, w);
    rf_interleave(p + 16, stride, w + 4);
    rf_interleave(p + 20, stride, x);
    rf_interleave(p + 36, stride, last);
    rf_interleave(p + 52, stride, last + 4);
    w[8] = x[3];
    t->d[0] = rf_f16(w[0] & 0xffffu);
    t->d[1] = rf_f16(w[8] >> 16);
    RF_UNROLL
    for (int j = 0; j < 8; j++) {
        t->q[j] = rf_signed(w[j] >> 16 | w[j + 1] << 16);
        t->q[8 + j] = rf_signed(last[j]);
    }
}

RF_MATMUL_Q8_32(rf_q8_0_matmul, RF_(pair), .block_bytes = 34, .offset = RF_SIGNED_OFFSET, .qmax = 128)

#else

int rf_q8_0_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 34, dst += 32) {
        const float d = rf_load_f16(src);
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)(int8_t)src[2 + i];
    }
    return 0;
}
#endif
