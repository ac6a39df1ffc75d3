/* scales_q4_k.h: the 12 bytes of 6-bit scales and minima that Q4_K and Q5_K share.
 *
 * Groups 0..3: scale = byte[j] & 63, min = byte[j+4] & 63. Groups 4..7: the low 4 bits are the nibbles of
 * byte[j+4] (low: scale, high: min), the high 2 bits are the top bits of byte[j-4] (scale) and byte[j] (min).
 */
#ifdef RF_ISA

/* w: the first 16 bytes of the superblock, d, dmin and the 12 bytes. Fills d, m, sc[0..7] and mn. */
static RF_INLINE void RF_(unpack_scales)(const rf_u32 w[4], rf_tile *t)
{
    const rf_u32 sc[2] = {w[1] & 0x3f3f3f3fu, (w[3] & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u)};
    const rf_u32 mn[2] = {w[2] & 0x3f3f3f3fu, (w[3] >> 4 & 0x0f0f0f0fu) | (w[2] >> 2 & 0x30303030u)};
    t->d = rf_f16(w[0] & 0xffffu);
    t->m = rf_f16(w[0] >> 16);
    RF_UNROLL
    for (int j = 0; j < 8; j++)
        t->sc[j] = rf_scale(rf_byte(sc[j / 4], j % 4));
    RF_UNROLL
    for (int j = 0; j < 4; j++)
        t->mn[j] = rf_byte_pairs(mn[j / 2], j % 2);
}

#if RF_ROWS
/* The same for one row. */
static RF_INLINE void RF_(row_scales)(const uint8_t *p, rf_row *t)
{
    const uint32_t w1 = rf_load_u32(p + 4), w2 = rf_load_u32(p + 8), w3 = rf_load_u32(p + 12);
    const uint64_t sc = (w1 & 0x3f3f3f3fu) | (uint64_t)((w3 & 0x0f0f0f0fu) | (w1 >> 2 & 0x30303030u)) << 32;
    const uint64_t mn = (w2 & 0x3f3f3f3fu) | (uint64_t)((w3 >> 4 & 0x0f0f0f0fu) | (w2 >> 2 & 0x30303030u)) << 32;
    const __m128i min = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)mn));
    t->dm = rf_load_u32(p);
    t->sc = _mm256_castsi128_si256(_mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)sc)));
    t->mn = _mm256_setr_m128i(_mm_unpacklo_epi16(min, min), _mm_unpackhi_epi16(min, min)); /* both halves of a group */
}
#endif

#elif !defined(RF_SCALES_Q4_K)
#define RF_SCALES_Q4_K

static inline int rf_q4_k_scale(const uint8_t *b, int j)
{
    return j < 4 ? b[j] & 63 : (b[j + 4] & 15) | b[j - 4] >> 6 << 4;
}

static inline int rf_q4_k_min(const uint8_t *b, int j)
{
    return j < 4 ? b[j + 4] & 63 : b[j + 4] >> 4 | b[j] >> 6 << 4;
}

#endif
