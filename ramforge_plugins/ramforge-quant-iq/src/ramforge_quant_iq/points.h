/* points.h: what the formats with points from a grid share.
 *
 * A point is a code, which _build.py writes from grids.py:
 *   IQ2  uint16, the number of the level of value i at bits 2i, 2i+1
 *   IQ3  uint16, those of the 4 values at nibbles 0, 2, 1, 3, so that two shifts spread them over a dword
 *   IQ1  uint32, four times the level, of value i < 4 in the low and of value i + 4 in the high nibble of byte i
 * Codes are unfolded to values with lanes as rows.
 *
 * Included after ramforge_tile_q8_256.h in the RF_ISA part, and by itself in the other.
 */
#ifndef RF_POINTS
#define RF_POINTS
#include <stdint.h>
#include <string.h>

extern const uint32_t rf_iq1_s_grid[2048];
extern const uint16_t rf_iq2_xxs_grid[256], rf_iq2_xs_grid[512], rf_iq2_s_grid[1024];
extern const uint16_t rf_iq3_xxs_grid[256], rf_iq3_s_grid[512];

static inline uint16_t rf_load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
#endif

#ifdef RF_ISA
#define rf_codes RF_(rf_codes)
#define rf_set_scale RF_(rf_set_scale)

/* The codes of two points of each lane, whose numbers below n (a constant, at most 1024) are the halves of each dword. */
static RF_INLINE rf_u32 rf_codes(const uint16_t *grid, int n, rf_u32 points)
{
#if RF_LANES == 16 /* 64 codes lie in two registers, where 32 points are looked up at once */
    __m512i part[16];
    RF_UNROLL
    for (int i = 0; i < n / 64; i++)
        part[i] = _mm512_permutex2var_epi16(_mm512_loadu_si512(grid + 64 * i), (__m512i)points,
                                            _mm512_loadu_si512(grid + 64 * i + 32));
    RF_UNROLL
    for (int bit = 64; bit < n; bit *= 2) {
        const __mmask32 odd = _mm512_test_epi16_mask((__m512i)points, _mm512_set1_epi16((short)bit));
        RF_UNROLL
        for (int i = 0; i < n / bit / 2; i++)
            part[i] = _mm512_mask_mov_epi16(part[2 * i], odd, part[2 * i + 1]);
    }
    return (rf_u32)part[0];
#else
    uint16_t codes[2 * RF_LANES];
    (void)n;
    memcpy(codes, &points, sizeof codes);
    for (int i = 0; i < 2 * RF_LANES; i++)
        codes[i] = grid[codes[i]];
    memcpy(&points, codes, sizeof codes);
    return points;
#endif
}

/* Sets scale i and what is subtracted for its offset. */
static RF_INLINE void rf_set_scale(rf_tile *t, int i, rf_i32 scale, rf_i32 min)
{
    t->sc[i] = rf_scale(scale);
    t->mn[i / 2] = i % 2 ? t->mn[i / 2] | min << 16 : min;
}
#endif
