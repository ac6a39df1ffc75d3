/* BF16: the upper half of an IEEE single, little-endian, 2 bytes. value = it, exactly. */
#define RF_FORMAT "bf16.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "float_rows.h"

static RF_INLINE rf_f32 RF_(load)(const uint8_t *p)
{
#if RF_LANES == 16
    return (rf_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif RF_LANES == 8
    return (rf_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#elif defined(RF_NEON)
    return (rf_f32)vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16);
#else
    uint16_t half[4];
    memcpy(half, p, sizeof half);
    return (rf_f32)((rf_u32){half[0], half[1], half[2], half[3]} << 16);
#endif
}

RF_MATMUL_F32(rf_bf16_matmul, RF_(load), 2)

#else

int rf_bf16_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (int64_t i = 0; i < n_blocks; i++) {
        uint16_t half;
        uint32_t bits;
        memcpy(&half, src + 2 * i, 2);
        bits = (uint32_t)half << 16;
        memcpy(dst + i, &bits, 4);
    }
    return 0;
}
#endif
