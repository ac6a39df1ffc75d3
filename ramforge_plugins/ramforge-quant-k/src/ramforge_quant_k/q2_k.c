/* Q2_K: 256 values in 84 bytes, 2.625 bits each.
 *
 *   0  scales 16      of 16 groups of 16 values: scale in the low, minimum in the high nibble
 *  16  qs     64      2-bit q: in each half of 128 values, bits 2i, 2i+1 of byte l < 32 are value l + 32i
 *  80  d      f16     scale of the scales
 *  82  dmin   f16     scale of the minima
 *
 * value = (d * scale) * q - (dmin * min)
 * Source: ggml, ggml-common.h block_q2_K and ggml-quants.c dequantize_row_q2_K.
 */
#define RF_FORMAT "q2_k.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "ramforge_row_q8_256.h"

static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    RF_UNROLL
    for (int j = 0; j < 16; j++)
        t->sc[j] = rf_scale(rf_byte(w[j / 4] & 0x0f0f0f0fu, j % 4));
    RF_UNROLL
    for (int j = 0; j < 8; j++)
        t->mn[j] = rf_byte_pairs(w[j / 2] >> 4 & 0x0f0f0f0fu, j % 2);
    rf_interleave(p + 68, stride, w); /* ends where the block ends */
    t->d = rf_f16(w[3] & 0xffffu);
    t->m = rf_f16(w[3] >> 16);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 w[4];
    (void)t;
    rf_interleave(p + 16 + 16 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 16; i++)
        q[i] = w[i % 4] >> (i / 4 * 2) & 0x03030303u;
}

#if RF_ROWS
static RF_INLINE void RF_(row_head)(const uint8_t *p, rf_row *t)
{
    const __m128i scales = _mm_loadu_si128((const __m128i *)p), low = _mm_set1_epi8(15);
    t->dm = rf_load_u32(p + 80);
    t->sc = _mm256_cvtepu8_epi16(_mm_and_si128(scales, low));
    t->mn = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(scales, 4), low));
}

static RF_INLINE rf_u32 RF_(row_part)(const uint8_t *p, int i, int h)
{
    return rf_fields(p + 16 + 32 * (i / 2), i % 2 * 4, i % 2 * 4 + 2, h) & 0x03030303u;
}
#endif

RF_MATMUL_ROW_Q8_256(rf_q2_k_matmul, RF_(head), RF_(part), RF_(row_head), RF_(row_part),
                     .block_bytes = 84, .width = 4, .strided = 1, .qmax = 3, .min = RF_MIN_FLOAT)

#else

int rf_q2_k_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 84, dst += 256) {
        const float d = rf_load_f16(src + 80), dmin = rf_load_f16(src + 82);
        for (int group = 0; group < 16; group++) {
            const uint8_t *qs = src + 16 + 32 * (group / 8) + 16 * (group % 2);
            const float scale = d * (float)(src[group] & 15), min = dmin * (float)(src[group] >> 4);
            for (int k = 0; k < 16; k++)
                dst[16 * group + k] = scale * (float)(qs[k] >> group % 8 / 2 * 2 & 3) - min;
        }
    }
    return 0;
}
#endif
