/* Q1_0: 128 values in 18 bytes, 1.125 bits each.
 *
 *   0  d   f16   scale
 *   2  qs  16    bit i of byte j belongs to value 8j + i
 *
 * value = d where the bit is set, else -d
 * Source: ggml, ggml-common.h block_q1_0 and ggml-quants.c dequantize_row_q1_0.
 */
#define RF_FORMAT "q1_0.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32_wide.h"

/* Bits 4j .. 4j+3 of each dword as bytes of 0 or 2. */
static RF_INLINE rf_u32 RF_(bits)(rf_u32 w, int j)
{
#if RF_LANES == 16
    const uint32_t byte = 0x01010101u * (uint32_t)(j / 2), bit = j % 2 ? 0x80402010u : 0x08040201u;
    const __m512i lanes = _mm512_set4_epi32((int)(byte + 0x0c0c0c0cu), (int)(byte + 0x08080808u),
                                            (int)(byte + 0x04040404u), (int)byte);
    const __m512i bytes = _mm512_shuffle_epi8((__m512i)w, lanes);
    return (rf_u32)_mm512_maskz_mov_epi8(_mm512_test_epi8_mask(bytes, _mm512_set1_epi32((int)bit)), _mm512_set1_epi8(2));
#else
    rf_u32 x = w >> (4 * j) & 15u;
    x |= x << 14;
    return (x << 1 | x << 8) & 0x02020202u;
#endif
}

/* Weights of 0 and 2, less an offset of 1. */
static RF_INLINE void RF_(unpack)(const uint8_t *p, int64_t stride, rf_wide_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d[0] = rf_f16(w[0] & 0xffffu);
    rf_interleave(p + 2, stride, w);
    RF_UNROLL
    for (int i = 0; i < 32; i++)
        t->q[i] = RF_(bits)(w[i / 8], i % 8);
}

RF_MATMUL_WIDE(rf_q1_0_matmul, RF_(unpack), .block_bytes = 18, .values = 128, .group = 32, .scaled = 128, .offset = 1,
               .qmax = 2)

#else

int rf_q1_0_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 18, dst += 128) {
        const float d = rf_load_f16(src);
        for (int i = 0; i < 128; i++)
            dst[i] = src[2 + i / 8] >> i % 8 & 1 ? d : -d;
    }
    return 0;
}
#endif
