/* MXFP4: 32 values in 17 bytes, 4.25 bits each.
 *
 *   0  e   E8M0  scale 2^(e - 127)
 *   1  qs  16    4-bit floats: byte j holds value j in its low and value j + 16 in its high nibble
 *
 * value = 2^(e - 128) * rf_e2m1[q]
 * Source: ggml, ggml-common.h block_mxfp4 and ggml-quants.c dequantize_row_mxfp4.
 */
#define RF_FORMAT "mxfp4.c"
#include "ramforge_tile.h"
#include "e2m1.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32.h"
#include "ramforge_tile_lookup.h"

/* 2^(e - 128); below e = 2 it is subnormal. */
static RF_INLINE rf_f32 RF_(scale)(rf_u32 e)
{
    const rf_u32 small = (rf_u32)((rf_i32)(e - 2) >> 31);
    return (rf_f32)((small & (e + 1) << 21) | (~small & (e - 1) << 23));
}

static RF_INLINE void RF_(pair)(const uint8_t *p, int64_t stride, rf_pair *t)
{
    const rf_u32 table = rf_table16(rf_e2m1_weights);
    rf_u32 w[4], first[4], second[4];
    rf_interleave(p + 1, stride, first);
    rf_interleave(p + 18, stride, second);
    rf_interleave(p + 14, stride, w);
    t->d[1] = RF_(scale)(w[0] >> 24);
    rf_interleave(p, stride, w);
    t->d[0] = RF_(scale)(w[0] & 0xffu);
    RF_UNROLL
    for (int j = 0; j < 4; j++) {
        t->q[j] = rf_lookup16(table, first[j] & 0x0f0f0f0fu);
        t->q[4 + j] = rf_lookup16(table, first[j] >> 4 & 0x0f0f0f0fu);
        t->q[8 + j] = rf_lookup16(table, second[j] & 0x0f0f0f0fu);
        t->q[12 + j] = rf_lookup16(table, second[j] >> 4 & 0x0f0f0f0fu);
    }
}

RF_MATMUL_Q8_32(rf_mxfp4_matmul, RF_(pair), .block_bytes = 17, .offset = RF_E2M1_MAX, .qmax = 2 * RF_E2M1_MAX)

#else

int rf_mxfp4_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 17, dst += 32) {
        const uint32_t bits = src[0] < 2 ? (src[0] + 1u) << 21 : (src[0] - 1u) << 23;
        float d;
        memcpy(&d, &bits, 4);
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)rf_e2m1[src[1 + i % 16] >> i / 16 * 4 & 15];
    }
    return 0;
}
#endif
