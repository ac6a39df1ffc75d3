/* ramforge_row_q8_256.h: multiply superblocks of 256 values with a single activation of the packing q8_256.
 *
 * Included by a format's file after ramforge_tile_q8_256.h. With one activation there is nothing to gain from the
 * interleaving of rows, and it costs more than the products. Here a row is read from end to end, its values keep
 * their order, and a lane holds four neighbours in a row. All that happens inside a superblock is exact in integers;
 * the sums of RF_LANES rows are put side by side before they become floats. So the bits are those of the tiles.
 *
 * For AVX2 and AVX-512; elsewhere a single activation goes the way of the others. The format gives two functions:
 *
 *     #if RF_ROWS
 *     static RF_INLINE void RF_(row_head)(const uint8_t *p, rf_row *t) ...
 *     static RF_INLINE rf_u32 RF_(row_part)(const uint8_t *p, int i, int h) ...
 *     #endif
 *     RF_MATMUL_ROW_Q8_256(rf_q4_k_matmul, RF_(head), RF_(part), RF_(row_head), RF_(row_part), fields)
 */

#ifndef RAMFORGE_ROW_Q8_256_H
#define RAMFORGE_ROW_Q8_256_H

#define RF_ROWS (RF_LANES > 4)

enum {
    RF_ROW_BLOCKS = 64, /* superblocks of a row whose sums are kept at a time */
    RF_ROW_AHEAD = 8192 /* bytes between what is read and what is asked for: docs/performance.md */
};

/* Like RF_MATMUL_Q8_256, for sub-blocks of 16 or 32 values and a qmax below 128. row_part gives values in their order,
 * so that `strided` matters for the tiles only. */
#define RF_MATMUL_ROW_Q8_256(name, head, part, row_head, row_part, ...)                                        \
    RF_KERNEL int RF_(name)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,         \
                            const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,                \
                            int64_t out_stride)                                                                \
    {                                                                                                          \
        const rf_superblock f = {__VA_ARGS__};                                                                 \
        if (RF_ROWS && n_acts == 1)                                                                            \
            return rf_matvec_q8_256(weights, row_bytes, n_rows, n_cols, acts, out, row_head, row_part, f);     \
        return rf_matmul_q8_256(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride,  \
                                head, part, f);                                                                \
    }
#endif

#undef rf_matvec_q8_256
#if !RF_ROWS
#define rf_matvec_q8_256(...) -1 /* never called */
#else
#define rf_matvec_q8_256 RF_(rf_matvec_q8_256)
#define rf_row RF_(rf_row)
#define rf_row_head_fn RF_(rf_row_head_fn)
#define rf_row_part_fn RF_(rf_row_part_fn)
#define rf_row_sums RF_(rf_row_sums)
#define rf_bytes RF_(rf_bytes)
#define rf_fields RF_(rf_fields)
#define rf_spread RF_(rf_spread)
#define rf_row_block RF_(rf_row_block)
#define rf_sum4 RF_(rf_sum4)
#define rf_sum4_of_8 RF_(rf_sum4_of_8)
#define rf_row_integers RF_(rf_row_integers)
#define rf_row_floats RF_(rf_row_floats)

/* What a superblock of one row says besides its values. */
typedef struct {
    __m256i sc;  /* int16: 16 sub-block scales, or in the low half 8 (width 8) */
    __m256i mn;  /* int16: minima of 16 values each; not read if the format has none */
    uint32_t dm; /* d (low) and m as IEEE halves */
} rf_row;

typedef void (*rf_row_head_fn)(const uint8_t *p, rf_row *t);
/* Values 64i .. 64i+63 of the superblock at p as bytes, or half h of them where a vector holds no more. */
typedef rf_u32 (*rf_row_part_fn)(const uint8_t *p, int i, int h);

/* Integer sums of RF_LANES rows, superblock by superblock. */
typedef struct {
    int32_t isum[RF_LANES][RF_ROW_BLOCKS], msum[RF_LANES][RF_ROW_BLOCKS];
    uint32_t dm[RF_LANES][RF_ROW_BLOCKS];
} rf_row_sums;

/* The 64 bytes at p, or half h of them. */
static RF_INLINE rf_u32 rf_bytes(const uint8_t *p, int h)
{
    rf_u32 x;
    memcpy(&x, p + 32 * h, sizeof x);
    return x;
}

/* The 32 bytes at p twice, shifted right by s0 and by s1 (left if negative), or one of the two. Bits cross from byte
 * to byte: what is wanted has to be masked. */
static RF_INLINE rf_u32 rf_fields(const uint8_t *p, int s0, int s1, int h)
{
#if RF_LANES == 16
    const __m512i shifts = _mm512_inserti64x4(_mm512_set1_epi32(s0 & 31), _mm256_set1_epi32(s1 & 31), 1);
    (void)h;
    return (rf_u32)_mm512_rorv_epi32(_mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p)), shifts);
#else
    const rf_u32 x = (rf_u32)_mm256_loadu_si256((const __m256i *)p);
    const int s = h ? s1 : s0;
    return s >= 0 ? x >> s : x << -s;
#endif
}

/* The scales of part i (half h) of a superblock, one int16 for each two values. */
static RF_INLINE rf_i32 rf_spread(__m256i sc, int i, int h, int width)
{
    const __m128i words = width == 4 && i >= 2 ? _mm256_extracti128_si256(sc, 1) : _mm256_castsi256_si128(sc);
    __m128i order[4]; /* for the n-th 16 values: which two bytes are their scale, eight times */
    RF_UNROLL
    for (int n = 0; n < 4; n++)
        order[n] = _mm_set1_epi16((short)(0x0100 + 0x0202 * (width == 4 ? 4 * (i % 2) + n : 2 * i + n / 2)));
#if RF_LANES == 16
    const __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_setr_m128i(order[0], order[1])),
                                           _mm256_setr_m128i(order[2], order[3]), 1);
    (void)h;
    return (rf_i32)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(words), all);
#else
    const __m256i half = _mm256_setr_m128i(order[2 * h], order[2 * h + 1]);
    return (rf_i32)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(words), half);
#endif
}

/* One superblock of one row. isum is left spread over the lanes; with RF_MIN_INT msum is already subtracted. */
static RF_INLINE void rf_row_block(const uint8_t *p, const uint8_t *act, rf_i32 *isum, __m256i *msum, uint32_t *dm,
                                   rf_row_head_fn head, rf_row_part_fn unpack_part, rf_superblock f)
{
    rf_row t;
    head(p, &t);
    *dm = t.dm;
    RF_UNROLL
    for (int part = 0; part < 64 / RF_LANES; part++) {
        const int halves = 16 / RF_LANES, i = part / halves, h = part % halves;
        const rf_u32 q = unpack_part(p, i, h), a = rf_bytes(act + 64 * i, h);
#if RF_LANES == 16
        const rf_i32 pairs = (rf_i32)_mm512_maddubs_epi16((__m512i)q, (__m512i)a);
#else
        const rf_i32 pairs = (rf_i32)_mm256_maddubs_epi16((__m256i)q, (__m256i)a);
#endif
        *isum = rf_madd(*isum, pairs, rf_spread(t.sc, i, h, f.width));
    }
    if (f.min != RF_MIN_NONE)
        *msum = _mm256_madd_epi16(t.mn, _mm256_loadu_si256((const __m256i *)(act + 256)));
    if (f.min == RF_MIN_INT) {
#if RF_LANES == 16
        *isum -= (rf_i32)_mm512_zextsi256_si512(*msum);
#else
        *isum -= (rf_i32)*msum;
#endif
    }
}

/* The sums of the lanes of four vectors. */
static RF_INLINE __m128i rf_sum4_of_8(const __m256i v[4])
{
    const __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    const __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    const __m256i s = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

static RF_INLINE __m128i rf_sum4(const rf_i32 v[4])
{
    __m256i halves[4];
    RF_UNROLL
    for (int i = 0; i < 4; i++)
#if RF_LANES == 16
        halves[i] = _mm256_add_epi32(_mm512_castsi512_si256((__m512i)v[i]),
                                     _mm512_extracti64x4_epi64((__m512i)v[i], 1));
#else
        halves[i] = (__m256i)v[i];
#endif
    return rf_sum4_of_8(halves);
}

/* The integer sums of n superblocks of one row. */
static RF_INLINE void rf_row_integers(const uint8_t *p, const uint8_t *act, int64_t n, rf_row_sums *s, int64_t row,
                                      rf_row_head_fn head, rf_row_part_fn unpack_part, rf_superblock f)
{
    for (int64_t b = 0; b < n; b += 4) {
        rf_i32 isum[4] = {{0}};
        __m256i msum[4] = {_mm256_setzero_si256()};
        rf_prefetch(p + b * f.block_bytes + RF_ROW_AHEAD, 4 * f.block_bytes);
        RF_UNROLL
        for (int k = 0; k < 4; k++)
            if (b + k < n)
                rf_row_block(p + (b + k) * f.block_bytes, act + (b + k) * (int64_t)sizeof(ramforge_q8_256), &isum[k],
                             &msum[k], &s->dm[row][b + k], head, unpack_part, f);
        _mm_storeu_si128((__m128i *)&s->isum[row][b], rf_sum4(isum));
        if (f.min == RF_MIN_FLOAT)
            _mm_storeu_si128((__m128i *)&s->msum[row][b], rf_sum4_of_8(msum));
    }
}

/* The float sums of n superblocks; a lane is a row. */
static RF_INLINE rf_f32 rf_row_floats(rf_f32 acc, const rf_row_sums *s, const uint8_t *act, int64_t n, rf_superblock f)
{
    for (int64_t b = 0; b < n; b += 4) {
        rf_u32 isum[4], msum[4], dm[4];
        rf_interleave((const uint8_t *)&s->isum[0][b], sizeof s->isum[0], isum);
        rf_interleave((const uint8_t *)&s->dm[0][b], sizeof s->dm[0], dm);
        if (f.min == RF_MIN_FLOAT)
            rf_interleave((const uint8_t *)&s->msum[0][b], sizeof s->msum[0], msum);
        RF_UNROLL
        for (int k = 0; k < 4; k++) {
            if (b + k == n)
                break;
            const float da = rf_load_f32(act + (b + k) * (int64_t)sizeof(ramforge_q8_256) + 288);
            acc = acc + rf_f16(dm[k] & 0xffffu) * da * __builtin_convertvector((rf_i32)isum[k], rf_f32);
            if (f.min == RF_MIN_FLOAT)
                acc = acc - rf_f16(dm[k] >> 16) * da * __builtin_convertvector((rf_i32)msum[k], rf_f32);
        }
    }
    return acc;
}

static RF_INLINE int rf_matvec_q8_256(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                      const uint8_t *act, float *out, rf_row_head_fn head, rf_row_part_fn unpack_part,
                                      rf_superblock f)
{
    const int64_t n_blocks = n_cols / 256;
    rf_row_sums sums;

    if (n_cols < 0 || n_cols % 256 || n_rows < 0 || row_bytes < n_blocks * f.block_bytes)
        return -1;
    if (n_rows % RF_LANES) /* lanes without a row are computed too */
        memset(&sums, 0, sizeof sums);
    for (int64_t r = 0; r < n_rows; r += RF_LANES) {
        const int64_t rows = n_rows - r < RF_LANES ? n_rows - r : RF_LANES;
        rf_f32 acc = {0};
        for (int64_t first = 0; first < n_blocks; first += RF_ROW_BLOCKS) {
            const int64_t n = n_blocks - first < RF_ROW_BLOCKS ? n_blocks - first : RF_ROW_BLOCKS;
            const uint8_t *p = weights + r * row_bytes + first * f.block_bytes;
            const uint8_t *some = act + first * (int64_t)sizeof(ramforge_q8_256);
            for (int64_t l = 0; l < rows; l++)
                rf_row_integers(p + l * row_bytes, some, n, &sums, l, head, unpack_part, f);
            acc = rf_row_floats(acc, &sums, some, n, f);
        }
        memcpy(out + r, &acc, (size_t)rows * sizeof(float));
    }
    return 0;
}
#endif
