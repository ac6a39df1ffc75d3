/* TQ1_0: 256 values in 54 bytes, 1.6875 bits each.
 *
 *   0  qs  32    values   0 .. 159: five digits in each byte, digit n of byte l is value l + 32n
 *  32  qs  16    values 160 .. 239: the same, digit n of byte l is value 160 + l + 16n
 *  48  qh  4     values 240 .. 255: four digits, digit n of byte l is value 240 + l + 4n
 *  52  d   f16   scale
 *
 * A byte b is the fraction b / 256 in base 3: digit n = (b * 3^n mod 256) * 3 >> 8.   value = d * (digit - 1)
 * Source: ggml, ggml-common.h block_tq1_0 and ggml-quants.c dequantize_row_tq1_0.
 */
#define RF_FORMAT "tq1_0.c"
#include "ramforge_tile.h"

#ifdef RF_ISA
#include "ramforge_tile_q8_256.h"

#define rf_digit RF_(rf_digit)

/* Digit n of the four bytes of each dword; power is 3^n. Even and odd bytes by themselves, with 16 bits of room. */
static RF_INLINE rf_u32 rf_digit(rf_u32 x, uint32_t power)
{
    const rf_u32 even = (x & 0x00ff00ffu) * power & 0x00ff00ffu, odd = (x >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00ff00ffu) | (odd * 3 & 0xff00ff00u);
}

static RF_INLINE void RF_(head)(const uint8_t *p, int64_t stride, rf_tile *t)
{
    rf_u32 w[4];
    rf_interleave(p + 38, stride, w); /* bytes 38 .. 53: the last two of qs 46 and 47, qh, d */
    t->x[0] = w[2] >> 16 | w[3] << 16;
    t->d = rf_f16(w[3] >> 16);
    RF_UNROLL
    for (int j = 0; j < 16; j++)
        t->sc[j] = rf_scale(rf_set(1));
    RF_UNROLL
    for (int j = 0; j < 8; j++)
        t->mn[j] = rf_set(0x00010001);
}

/* Values 64 * part to 64 * part + 63. */
static RF_INLINE void RF_(part)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16])
{
    static const uint32_t power[5] = {1, 3, 9, 27, 81};
    rf_u32 w[12];
    rf_interleave(p, stride, w);
    rf_interleave(p + 16, stride, w + 4);
    rf_interleave(p + 32, stride, w + 8);
    RF_UNROLL
    for (int j = 0; j < 16; j++) {
        const int i = 16 * part + j; /* the dword of the superblock: values 4i .. 4i+3 */
        if (i < 40)
            q[j] = rf_digit(w[i % 8], power[i / 8]);
        else if (i < 60)
            q[j] = rf_digit(w[8 + i % 4], power[(i - 40) / 4]);
        else
            q[j] = rf_digit(t->x[0], power[i - 60]);
    }
}

RF_MATMUL_Q8_256(rf_tq1_0_matmul, RF_(head), RF_(part), .block_bytes = 54, .width = 16, .qmax = 2, .min = RF_MIN_INT)

#else

int rf_tq1_0_decode(const uint8_t *src, int64_t n_blocks, float *dst)
{
    if (n_blocks < 0)
        return -1;
    for (; n_blocks > 0; n_blocks--, src += 54, dst += 256) {
        const float d = rf_load_f16(src + 52);
        for (int i = 0; i < 256; i++) {
            const uint8_t *run = src + (i < 160 ? 0 : i < 240 ? 32 : 48);
            const int width = i < 160 ? 32 : i < 240 ? 16 : 4, k = i < 160 ? i : i < 240 ? i - 160 : i - 240;
            unsigned rest = run[k % width];
            for (int n = 0; n < k / width; n++)
                rest = rest * 3 & 255u;
            dst[i] = d * (float)((int)(rest * 3 >> 8) - 1);
        }
    }
    return 0;
}
#endif
