/* IQ3_S: 256 values in 110 bytes, 3.4375 bits each.
 *
 *   0  d       f16  scale of the scales
 *   2  qs      64   low 8 bits of the number of a point, for 4 values each
 *  66  qh      8    bit 8: bit i of byte j belongs to point 8j + i
 *  74  signs   32   sign bits of 8 values each
 * 106  scales  4    s of 8 groups of 32 values: byte j holds group 2j in its low and 2j + 1 in its high nibble
 *
 * value = (d * (2s + 1)) * (+- point), points from rf_iq3_s_grid
 * Source: ggml, ggml-common.h block_iq3_s and ggml-quants.c dequantize_row_iq3_s.
 */
#define RF_FORMAT "iq3_s.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"
#include "signed_points.h"

/* x: the sign bits of 32 values each. */
static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p, stride, w);
    t->d = rf_f16(w[0] & 0xffffu);
    rf_interleave(p + 94, stride, w);
    rf_interleave(p + 74, stride, t->x);
    rf_interleave(p + 90, stride, t->x + 4);
    RF_UNROLL
    for (int i = 0; i < 8; i++)
        rf_odd_scale(t, i, w[3] >> (4 * i) & 15, 15);
}

static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    rf_u32 w[4], high;
    rf_interleave(p + 66, stride, w);
    high = w[part / 2] >> (part % 2 * 16);
    rf_interleave(p + 2 + 16 * part, stride, w);
    RF_UNROLL
    for (int i = 0; i < 4; i++) {
        const rf_u32 h = high >> (4 * i); /* bit k is that of point k of 4 */
        const rf_u32 even = (w[i] & 0x00ff00ffu) | (h << 8 & 0x100u) | (h << 22 & 0x1000000u);
        const rf_u32 odd = (w[i] >> 8 & 0x00ff00ffu) | (h << 7 & 0x100u) | (h << 21 & 0x1000000u);
        const rf_u32 codes[2] = {rf_codes(rf_iq3_s_grid, 512, even), rf_codes(rf_iq3_s_grid, 512, odd)};
        RF_UNROLL
        for (int j = 0; j < 4; j++)
            q[4 * i + j] = rf_with_signs(2 * rf_iq3_codes(codes[j % 2], j / 2) + 0x01010101u, t->x[2 * part + i / 2],
                                         i % 2 * 4 + j, 15);
    }
}

RF_MATMUL_Q8_256(rf_iq3_s_matmul, RF_(head), RF_(part), .block_bytes = 110, .width = 8, .qmax = 30,
                 .min = RF_MIN_INT)

#else
#include "signed_points.h"

int rf_iq3_s_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    static const int8_t levels[16] = {1, 3, 5, 7, 9, 11, 13, 15};
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 110, dst += 256) {
        const float d = rf_load_f16(src);
        for (int i = 0; i < 64; i++) {
            const int point = src[2 + i] | (src[66 + i / 8] >> i % 8 & 1) << 8, s = src[106 + i / 16] >> i / 8 % 2 * 4 & 15;
            rf_decode_iq3(dst + 4 * i, rf_iq3_s_grid[point], levels, src[74 + i / 2] >> i % 2 * 4, d * (float)(2 * s + 1));
        }
    }
    return 0;
}
#endif
