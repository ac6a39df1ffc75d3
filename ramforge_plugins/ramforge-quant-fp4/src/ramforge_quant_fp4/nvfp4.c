/* NVFP4: 64 values in 36 bytes, 4.5 bits each.
 *
 *   0  scales  4 E4M3  of 16 values each, without sign: the top bit is ignored
 *   4  qs      32      4-bit floats: in each 8 bytes, byte j holds value j in its low and value j + 8 in its high nibble
 *
 * value = scale / 2 * rf_e2m1[q]; scale = (1 + m / 8) * 2^(e - 7), m / 8 * 2^-6 where e = 0, and 0 for the byte 0x7f
 * Source: ggml, ggml-common.h block_nvfp4, ggml-quants.c dequantize_row_nvfp4 and ggml-impl.h ggml_ue4m3_to_fp32.
 */
#define RF_FORMAT "nvfp4.c"
#include "ramforge_tile.h"
#include "e2m1.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_32_wide.h"
#include "ramforge_tile_lookup.h"

/* Half of the scale. */
static RF_INLINE rf_f32 RF_(scale)(rf_u32 byte)
{
    const rf_u32 x = byte & 0x7fu;
    const rf_u32 small = (rf_u32)((rf_i32)(x - 8) >> 31);
    const rf_u32 none = (rf_u32)((rf_i32)((byte ^ 0x7fu) - 1) >> 31); /* all bits where the byte is 0x7f */
    const rf_f32 subnormal = __builtin_convertvector((rf_i32)x, rf_f32) * 0x1p-10f;
    return (rf_f32)(~none & ((small & (rf_u32)subnormal) | (~small & ((x << 20) + (119u << 23)))));
}

static RF_INLINE void RF_(unpack)(const uint8_t *p, int64_t stride, rf_wide_tile *t)
{
    const rf_u32 table = rf_table16(rf_e2m1_weights);
    rf_u32 w[8], scales[4];
    rf_interleave(p, stride, scales);
    rf_interleave(p + 4, stride, w);
    rf_interleave(p + 20, stride, w + 4);
    RF_UNROLL
    for (int s = 0; s < 4; s++) {
        t->d[s] = RF_(scale)(scales[0] >> (8 * s) & 0xffu);
        RF_UNROLL
        for (int j = 0; j < 2; j++) {
            t->q[4 * s + j] = rf_lookup16(table, w[2 * s + j] & 0x0f0f0f0fu);
            t->q[4 * s + 2 + j] = rf_lookup16(table, w[2 * s + j] >> 4 & 0x0f0f0f0fu);
        }
    }
}

RF_MATMUL_WIDE(rf_nvfp4_matmul, RF_(unpack), .block_bytes = 36, .values = 64, .group = 16, .scaled = 16,
               .offset = RF_E2M1_MAX, .qmax = 2 * RF_E2M1_MAX)

#else

static float half_scale(uint8_t byte)
{
    const int e = byte >> 3 & 15, m = byte & 7;
    const uint32_t bits = ((uint32_t)(byte & 0x7f) << 20) + (119u << 23);
    float normal;
    memcpy(&normal, &bits, 4);
    return byte == 0x7f ? 0 : e ? normal : (float)m * 0x1p-10f;
}

int rf_nvfp4_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 36, dst += 64) {
        for (int s = 0; s < 4; s++) {
            const float d = half_scale(src[s]);
            for (int i = 0; i < 16; i++)
                dst[16 * s + i] = d * (float)rf_e2m1[src[4 + 8 * s + i % 8] >> i / 8 * 4 & 15];
        }
    }
    return 0;
}
#endif
