/* F16: one IEEE half, little-endian, 2 bytes. value = it, exactly. */
#define RF_FORMAT "f16.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "float_rows.h"

static RF_INLINE rf_f32 RF_(load)(const uint8_t *p)
{
#if RF_LANES == 16
    return (rf_f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif RF_LANES == 8
    return (rf_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(RF_NEON)
    return (rf_f32)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
#else
    uint16_t half[4];
    memcpy(half, p, sizeof half);
    return rf_f16((rf_u32){half[0], half[1], half[2], half[3]});
#endif
}

RF_MATMUL_F32(rf_f16_matmul, RF_(load), 2)

#else

int rf_f16_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (int64_t i = 0; i < n_blocks; i++)
        dst[i] = rf_load_f16(src + 2 * i);
    return 0;
}
#endif
