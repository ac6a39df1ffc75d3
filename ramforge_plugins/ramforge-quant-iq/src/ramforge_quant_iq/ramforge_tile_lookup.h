/* ramforge_tile_lookup.h: 4-bit steps that are looked up in a table of 16 bytes.
 *
 * Included by a format's file inside its RF_ISA part, after ramforge_tile.h.
 */
#define rf_table16 RF_(rf_table16)
#define rf_lookup16 RF_(rf_lookup16)

/* The table as rf_lookup16 wants it: its 16 bytes over and over. */
static RF_INLINE rf_u32 rf_table16(const int8_t table[16])
{
    rf_u32 v;
    RF_UNROLL
    for (int i = 0; i < RF_LANES / 4; i++)
        memcpy((uint8_t *)&v + 16 * i, table, 16);
    return v;
}

/* Each byte of index, 0..15, replaced by that byte of the table. */
static RF_INLINE rf_u32 rf_lookup16(rf_u32 table, rf_u32 index)
{
#if RF_LANES == 16
    return (rf_u32)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
#elif RF_LANES == 8
    return (rf_u32)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
#elif defined(RF_NEON)
    return (rf_u32)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#else
    uint8_t from[16], bytes[16];
    rf_u32 v;
    memcpy(from, &table, 16);
    memcpy(bytes, &index, 16);
    for (int i = 0; i < 16; i++)
        bytes[i] = from[bytes[i]];
    memcpy(&v, bytes, 16);
    return v;
#endif
}
