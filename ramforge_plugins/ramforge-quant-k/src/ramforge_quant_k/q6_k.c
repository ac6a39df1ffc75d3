/* Q6_K: 256 values in 210 bytes, 6.5625 bits each.
 *
 *   0  ql     128     low 4 bits of q
 * 128  qh     64      high 2 bits of q
 * 192  scales 16 i8   of 16 groups of 16 values
 * 208  d      f16     scale of the scales
 *
 * In each half of 128 values: q[l + 32i], l < 32, takes the low nibble of ql[l] (i = 0) and ql[l+32] (i = 1), the
 * high nibble of ql[l] (i = 2) and ql[l+32] (i = 3), and bits 2i, 2i+1 of qh[l].
 *
 * value = (d * scale) * (q - 32)
 * Source: ggml, ggml-common.h block_q6_K and ggml-quants.c dequantize_row_q6_K.
 */
#define RF_FORMAT "q6_k.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "ramforge_row_q8_256.h"

static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p + 192, stride, w);
    RF_UNROLL
    for (int j = 0; j < 8; j++) {
        const rf_i32 low = rf_signed_byte(w[j / 2], j % 2 * 2), high = rf_signed_byte(w[j / 2], j % 2 * 2 + 1);
        t->sc[2 * j] = rf_scale(low);
        t->sc[2 * j + 1] = rf_scale(high);
        t->mn[j] = ((32 * low) & 0xffff) | high << 21; /* the 32 of (q - 32) */
    }
    rf_interleave(p + 194, stride, w);
    t->d = rf_f16(w[3] >> 16);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    const int half = part >> 1, run = part & 1;
    rf_u32 low[4], low32[4], high[4];
    (void)t;
    rf_interleave(p + 64 * half + 16 * run, stride, low);
    rf_interleave(p + 64 * half + 32 + 16 * run, stride, low32);
    rf_interleave(p + 128 + 32 * half + 16 * run, stride, high);
    RF_UNROLL
    for (int j = 0; j < 4; j++) {
        q[j] = (low[j] & 0x0f0f0f0fu) | (high[j] << 4 & 0x30303030u);
        q[4 + j] = (low32[j] & 0x0f0f0f0fu) | (high[j] << 2 & 0x30303030u);
        q[8 + j] = (low[j] >> 4 & 0x0f0f0f0fu) | (high[j] & 0x30303030u);
        q[12 + j] = (low32[j] >> 4 & 0x0f0f0f0fu) | (high[j] >> 2 & 0x30303030u);
    }
}

#if RF_ROWS
static RF_INLINE void RF_(row_head)(const uint8_t *p, rf_row *t)
{
    uint16_t d;
    memcpy(&d, p + 208, 2);
    t->dm = d;
    t->sc = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p + 192)));
    t->mn = _mm256_slli_epi16(t->sc, 5); /* the 32 of (q - 32) */
}

static RF_INLINE rf_u32 RF_(row_part)(const uint8_t *p, int i, int h)
{
    const int half = i >> 1, run = i & 1;
    const rf_u32 low = rf_bytes(p + 64 * half, h) >> (4 * run) & 0x0f0f0f0fu;
    return low | (rf_fields(p + 128 + 32 * half, 4 * run - 4, 4 * run - 2, h) & 0x30303030u);
}
#endif

RF_MATMUL_ROW_Q8_256(rf_q6_k_matmul, RF_(head), RF_(part), RF_(row_head), RF_(row_part),
                     .block_bytes = 210, .width = 4, .strided = 1, .qmax = 63, .min = RF_MIN_INT)

#else

int rf_q6_k_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 210, dst += 256) {
        const int8_t *scales = (const int8_t *)src + 192;
        const float d = rf_load_f16(src + 208);
        for (int group = 0; group < 16; group++) {
            const int half = group / 8, i = group % 8 / 2, l = group % 2 * 16;
            const uint8_t *ql = src + 64 * half + i % 2 * 32 + l, *qh = src + 128 + 32 * half + l;
            const float scale = d * (float)scales[group];
            for (int k = 0; k < 16; k++) {
                const int q = (ql[k] >> i / 2 * 4 & 15) | (qh[k] >> 2 * i & 3) << 4;
                dst[16 * group + k] = scale * (float)(q - 32);
            }
        }
    }
    return 0;
}
#endif
