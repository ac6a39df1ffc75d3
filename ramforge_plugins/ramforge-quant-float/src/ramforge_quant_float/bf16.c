/* BF16: the upper half of an IEEE single, little-endian, 2 bytes. value = it, exactly. */
#define RF_FORMAT "bf16.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "float_rows.h"
#include "bf16_rows.h"

RF_PAIR_TARGET int RF_(rf_bf16_matmul)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                       const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                       int64_t out_stride)
{
#if RF_LANES == 16
    if (__builtin_cpu_supports("avx512bf16"))
        return rf_matmul_bf16(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride, 1);
#endif
    return rf_matmul_bf16(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride, 0);
}

#else

int rf_bf16_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (int64_t i = 0; i < n_blocks; i++) {
        uint32_t bits = (uint32_t)(src[2 * i] | src[2 * i + 1] << 8) << 16;
        memcpy(dst + i, &bits, 4);
    }
    return 0;
}
#endif
