/* F32: one IEEE single, little-endian, 4 bytes. value = it. */
#define RF_FORMAT "f32.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "float_rows.h"

static RF_INLINE rf_f32 RF_(load)(const uint8_t *p)
{
    rf_f32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

RF_MATMUL_F32(rf_f32_matmul, RF_(load), 4)

#else

int rf_f32_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    memcpy(dst, src, (size_t)n_blocks * 4);
    return 0;
}
#endif
