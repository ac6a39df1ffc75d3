/* TQ2_0: 256 values in 66 bytes, 2.0625 bits each.
 *
 *   0  qs  64    2-bit q: in each half of 128 values, bits 2i, 2i+1 of byte l < 32 are value l + 32i
 *  64  d   f16   scale
 *
 * value = d * (q - 1)
 * Source: ggml, ggml-common.h block_tq2_0 and ggml-quants.c dequantize_row_tq2_0.
 */
#define RF_FORMAT "tq2_0.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"

/* The scale, and what is subtracted: 1 for each of the 16 sub-blocks, whose own scales are 1. */
static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p + 50, stride, w); /* the last 16 bytes: nothing past the block is read */
    t->d = rf_f16(w[3] >> 16);
    RF_UNROLL
    for (int j = 0; j < 16; j++)
        t->sc[j] = rf_scale(rf_set(1));
    RF_UNROLL
    for (int j = 0; j < 8; j++)
        t->mn[j] = rf_set(0x00010001);
}

/* Part 2h + r: bytes 16r .. 16r+15 of half h, all four shifts. */
static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 w[4];
    (void)t;
    rf_interleave(p + 16 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 16; i++)
        q[i] = w[i % 4] >> (i / 4 * 2) & 0x03030303u;
}

RF_MATMUL_Q8_256(rf_tq2_0_matmul, RF_(head), RF_(part), .block_bytes = 66, .width = 4, .strided = 1, .qmax = 3,
                 .min = RF_MIN_INT)

#else

int rf_tq2_0_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 66, dst += 256) {
        const float d = rf_load_f16(src + 64);
        for (int i = 0; i < 256; i++)
            dst[i] = d * (float)((src[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
    }
    return 0;
}
#endif
