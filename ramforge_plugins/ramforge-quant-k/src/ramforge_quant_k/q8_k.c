/* Q8_K: 256 values in 292 bytes, 9.125 bits each. ggml packs activations so; no real file holds it.
 *
 *   0  d      f32       scale
 *   4  qs     256 i8    q
 * 260  bsums  16 i16    sums of 16 q each; not read here
 *
 * value = d * q
 * Source: ggml, ggml-common.h block_q8_K and ggml-quants.c dequantize_row_q8_K.
 */
#define RF_FORMAT "q8_k.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"

static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d = (rf_f32)w[0];
    RF_UNROLL
    for (int j = 0; j < 4; j++)
        t->sc[j] = rf_scale(rf_set(1));
    RF_UNROLL
    for (int j = 0; j < 8; j++)
        t->mn[j] = rf_set(RF_SIGNED_OFFSET * 0x00010001);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    (void)t;
    RF_UNROLL
    for (int c = 0; c < 4; c++)
        rf_interleave(p + 4 + 64 * part + 16 * c, stride, q + 4 * c);
    RF_UNROLL
    for (int i = 0; i < 16; i++)
        q[i] = rf_signed(q[i]);
}

RF_MATMUL_Q8_256(rf_q8_k_matmul, RF_(head), RF_(part), .block_bytes = 292, .width = 16, .qmax = 128,
                 .min = RF_SIGNED_OFFSET ? RF_MIN_INT : RF_MIN_NONE)

#else

int rf_q8_k_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 292, dst += 256) {
        const float d = rf_load_f32(src);
        for (int i = 0; i < 256; i++)
            dst[i] = d * (float)(int8_t)src[4 + i];
    }
    return 0;
}
#endif
