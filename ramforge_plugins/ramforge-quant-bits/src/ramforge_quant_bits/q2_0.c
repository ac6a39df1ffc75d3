/* Q2_0: 64 values in 18 bytes, 2.25 bits each.
 *
 *   0  d   f16   scale
 *   2  qs  16    2-bit q: bits 2i, 2i+1 of byte j belong to value 4j + i
 *
 * value = d * (q - 1)
 * Source: ggml, ggml-common.h block_q2_0 and ggml-quants.c dequantize_row_q2_0.
 */
#define RF_FORMAT "q2_0.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32_wide.h"

static RF_INLINE void RF_(unpack)(const uint8_t *p, int64_t stride, rf_wide_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d[0] = rf_f16(w[0] & 0xffffu);
    rf_interleave(p + 2, stride, w);
    RF_UNROLL
    for (int i = 0; i < 16; i++) {
        rf_u32 x = w[i / 4] >> (i % 4 * 8) & 0xffu;
        x |= x << 12;
        t->q[i] = (x | x << 6) & 0x03030303u;
    }
}

RF_MATMUL_WIDE(rf_q2_0_matmul, RF_(unpack), .block_bytes = 18, .values = 64, .group = 32, .scaled = 64, .offset = 1,
               .qmax = 3)

#else

int rf_q2_0_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 18, dst += 64) {
        const float d = rf_load_f16(src);
        for (int i = 0; i < 64; i++)
            dst[i] = d * (float)((src[2 + i / 4] >> i % 4 * 2 & 3) - 1);
    }
    return 0;
}
#endif
