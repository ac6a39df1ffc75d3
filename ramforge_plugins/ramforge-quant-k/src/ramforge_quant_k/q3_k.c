/* Q3_K: 256 values in 110 bytes, 3.4375 bits each.
 *
 *   0  hmask  32      bit 2 of q: bit i of byte l < 32 belongs to value l + 32i
 *  32  qs     64      low 2 bits of q: in each half of 128, bits 2i, 2i+1 of byte l < 32 are value l + 32i
 *  96  scales 12      6-bit scales of 16 groups of 16 values: 8 bytes of low nibbles (groups 0..7 low, 8..15 high),
 *                     then 4 bytes of high bits: bits 2i, 2i+1 of byte j belong to group 4i + j
 * 108  d      f16     scale of the scales
 *
 * value = (d * (scale - 32)) * (q - 4)
 * Source: ggml, ggml-common.h block_q3_K and ggml-quants.c dequantize_row_q3_K.
 */
#define RF_FORMAT "q3_k.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "ramforge_row_q8_256.h"

static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4], low[2], high, sc[4];
    rf_interleave(p + 94, stride, w); /* ends where the block ends, half a dword off */
    low[0] = w[0] >> 16 | w[1] << 16;
    low[1] = w[1] >> 16 | w[2] << 16;
    high = w[2] >> 16 | w[3] << 16;
    t->d = rf_f16(w[3] >> 16);
    RF_UNROLL
    for (int i = 0; i < 4; i++)
        sc[i] = (low[i % 2] >> (i / 2 * 4) & 0x0f0f0f0fu) | (high >> (2 * i) & 0x03030303u) << 4;
    RF_UNROLL
    for (int j = 0; j < 8; j++) {
        const rf_i32 a = rf_byte(sc[j / 2], j % 2 * 2) - 32, b = rf_byte(sc[j / 2], j % 2 * 2 + 1) - 32;
        t->sc[2 * j] = rf_scale(a);
        t->sc[2 * j + 1] = rf_scale(b);
        t->mn[j] = ((4 * a) & 0xffff) | b << 18; /* the 4 of (q - 4) */
    }
    rf_interleave(p, stride, t->x);
    rf_interleave(p + 16, stride, t->x + 4);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    const int half = part >> 1, run = part & 1;
    rf_u32 w[4];
    rf_interleave(p + 32 + 16 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 16; i++)
        q[i] = (w[i % 4] >> (i / 4 * 2) & 0x03030303u) | (t->x[4 * run + i % 4] >> (4 * half + i / 4) & 0x01010101u) << 2;
}

#if RF_ROWS
static RF_INLINE void RF_(row_head)(const uint8_t *p, rf_row *t)
{
    const uint32_t high = rf_load_u32(p + 104);
    const uint64_t first = (high & 0x03030303u) | (uint64_t)(high >> 2 & 0x03030303u) << 32;
    const uint64_t second = (high >> 4 & 0x03030303u) | (uint64_t)(high >> 6 & 0x03030303u) << 32;
    const __m128i both = _mm_loadl_epi64((const __m128i *)(p + 96));
    const __m128i low = _mm_and_si128(_mm_unpacklo_epi64(both, _mm_srli_epi16(both, 4)), _mm_set1_epi8(15));
    const __m128i top = _mm_slli_epi16(_mm_set_epi64x((long long)second, (long long)first), 4);
    t->dm = rf_load_u32(p + 106) >> 16;
    t->sc = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_or_si128(low, top)), _mm256_set1_epi16(32));
    t->mn = _mm256_slli_epi16(t->sc, 2); /* the 4 of (q - 4) */
}

static RF_INLINE rf_u32 RF_(row_part)(const uint8_t *p, int i, int h)
{
    const rf_u32 low = rf_fields(p + 32 + 32 * (i / 2), i % 2 * 4, i % 2 * 4 + 2, h) & 0x03030303u;
    return low | (rf_fields(p, 2 * i - 2, 2 * i - 1, h) & 0x04040404u);
}
#endif

RF_MATMUL_ROW_Q8_256(rf_q3_k_matmul, RF_(head), RF_(part), RF_(row_head), RF_(row_part),
                     .block_bytes = 110, .width = 4, .strided = 1, .qmax = 7, .min = RF_MIN_INT)

#else

int rf_q3_k_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 110, dst += 256) {
        const float d = rf_load_f16(src + 108);
        for (int group = 0; group < 16; group++) {
            const int low = src[96 + group % 8] >> group / 8 * 4 & 15, high = src[104 + group % 4] >> group / 4 * 2 & 3;
            const uint8_t *qs = src + 32 + 32 * (group / 8) + 16 * (group % 2), *hmask = src + 16 * (group % 2);
            const float scale = d * (float)((low | high << 4) - 32);
            for (int k = 0; k < 16; k++) {
                const int q = (qs[k] >> group % 8 / 2 * 2 & 3) | (hmask[k] >> group / 2 & 1) << 2;
                dst[16 * group + k] = scale * (float)(q - 4);
            }
        }
    }
    return 0;
}
#endif
