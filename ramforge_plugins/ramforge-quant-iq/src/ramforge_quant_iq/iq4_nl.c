/* IQ4_NL: 32 values in 18 bytes, 4.5 bits each.
 *
 *   0  d   f16   scale
 *   2  qs  16    4-bit q: byte j holds value j in its low and value j + 16 in its high nibble
 *
 * value = d * rf_steps[q]
 * Source: ggml, ggml-common.h block_iq4_nl and ggml-quants.c dequantize_row_iq4_nl.
 */
#define RF_FORMAT "iq4_nl.c"
#include "ramforge_tile.h"
#include "steps.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32.h"
#include "ramforge_tile_lookup.h"

static RF_INLINE void RF_(pair)(const uint8_t *p, int64_t stride, rf_pair *t)
{
    const rf_u32 table = rf_signed(rf_table16(rf_steps));
    rf_u32 w[5], x[4], last[4]; /* the 9 dwords: w 0..4, last 5..8 */
    rf_interleave(p, stride, w);
    rf_interleave(p + 16, stride, x);
    rf_interleave(p + 20, stride, last);
    w[4] = x[0];
    t->d[0] = rf_f16(w[0] & 0xffffu);
    t->d[1] = rf_f16(w[4] >> 16);
    RF_UNROLL
    for (int j = 0; j < 4; j++) {
        const rf_u32 first = w[j] >> 16 | w[j + 1] << 16;
        t->q[j] = rf_lookup16(table, first & 0x0f0f0f0fu);
        t->q[4 + j] = rf_lookup16(table, first >> 4 & 0x0f0f0f0fu);
        t->q[8 + j] = rf_lookup16(table, last[j] & 0x0f0f0f0fu);
        t->q[12 + j] = rf_lookup16(table, last[j] >> 4 & 0x0f0f0f0fu);
    }
}

RF_MATMUL_Q8_32(rf_iq4_nl_matmul, RF_(pair), .block_bytes = 18, .offset = RF_SIGNED_OFFSET, .qmax = 128)

#else

int rf_iq4_nl_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 18, dst += 32) {
        const float d = rf_load_f16(src);
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)rf_steps[src[2 + i % 16] >> i / 16 * 4 & 15];
    }
    return 0;
}
#endif
