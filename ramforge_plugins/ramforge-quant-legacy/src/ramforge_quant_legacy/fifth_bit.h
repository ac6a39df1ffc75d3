/* fifth_bit.h: the 5-bit weights that Q5_0 and Q5_1 share. Included after ramforge_tile.h, once per instruction set. */

/* low: 4 dwords of nibbles; high: 32 bits, one per value. q: 8 dwords of values 0..31. */
static RF_INLINE void RF_(five_bits)(const rf_u32 *low, rf_u32 high, rf_u32 *q)
{
    RF_UNROLL
    for (int j = 0; j < 8; j++) {
        /* Bits 4j .. 4j+3 of high go to bit 4 of each byte: the product lays copies of the nibble 7 bits apart,
         * so that bit k of it falls on bit 8k; the bits in between are masked away. */
        const rf_u32 bits = (high >> (4 * j) & 15u) * 0x00204081u & 0x01010101u;
        q[j] = (low[j % 4] >> (j / 4 * 4) & 0x0f0f0f0fu) | bits << 4;
    }
}
