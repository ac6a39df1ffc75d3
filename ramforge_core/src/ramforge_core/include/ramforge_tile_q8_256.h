/* ramforge_tile_q8_256.h: multiply superblocks of 256 values with activations of the packing q8_256.
 *
 * Included by a format's file inside its RF_ISA part, after ramforge_tile.h. The format says with two functions how
 * a superblock is unpacked, and rf_matmul_q8_256 does the rest. For one row, one activation, superblocks b in order:
 *
 *     isum = sum over sub-blocks s: scale[s] * (sum of q * activation in s)        exact int32
 *     msum = sum over j < 16:       min[j] * activation sum[j]                     exact int32
 *     RF_MIN_NONE, RF_MIN_INT:      acc = acc + (d * da) * (float)(isum - msum)    (msum = 0 without minima)
 *     RF_MIN_FLOAT:                 acc = acc + (d * da) * (float)isum;  acc = acc - (m * da) * (float)msum
 */

#ifndef RAMFORGE_TILE_Q8_256_H
#define RAMFORGE_TILE_Q8_256_H
enum { RF_MIN_NONE, RF_MIN_INT, RF_MIN_FLOAT };

/* Facts of a format, all compile-time constants.
 * width   dwords in a sub-block with one scale: 4, 8 or 16
 * strided how the 16 dwords of a part are numbered: contiguous, or (strided) part 2h + r holds the four sub-blocks
 *         of 16 values 8h + r + 0, 2, 4, 6, as the two-bit shifts of Q2_K, Q3_K and Q6_K give them
 * qmax    largest weight after unpacking, for the int16 sums of AVX2; 128: signed weights, see rf_signed
 * fence   1: also for a single activation the compiler shall not unpack two parts at once; try both */
typedef struct {
    int64_t block_bytes;
    int width, strided, qmax, min, fence;
} rf_superblock;

enum { RF_MAX_SUPERBLOCK_BYTES = 292 };

/* Defines the matmul function of a format: RF_MATMUL_Q8_256(rf_q4_k_matmul, head, part, fields of rf_superblock). */
#define RF_MATMUL_Q8_256(name, head, part, ...)                                                                \
    RF_KERNEL int RF_(name)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,         \
                            const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,                \
                            int64_t out_stride)                                                                \
    {                                                                                                          \
        return rf_matmul_q8_256(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride,  \
                                head, part, (rf_superblock){__VA_ARGS__});                                     \
    }
#endif

#define rf_tile RF_(rf_tile)
#define rf_head_fn RF_(rf_head_fn)
#define rf_part_fn RF_(rf_part_fn)
#define rf_finish RF_(rf_finish)
#define rf_first_dword RF_(rf_first_dword)
#define rf_one RF_(rf_one)
#define rf_group RF_(rf_group)
#define rf_groups RF_(rf_groups)
#define rf_unpack RF_(rf_unpack)
#define rf_matmul_q8_256 RF_(rf_matmul_q8_256)
#define rf_byte RF_(rf_byte)
#define rf_signed_byte RF_(rf_signed_byte)
#define rf_pair_sums RF_(rf_pair_sums)
#define rf_minima RF_(rf_minima)
#define rf_ask RF_(rf_ask)
#define rf_byte_pairs RF_(rf_byte_pairs)

/* One superblock of RF_LANES rows. */
typedef struct {
    rf_u32 q[64];  /* unpacked weights, dword i holds values 4i .. 4i+3 */
    rf_i32 sc[16]; /* sub-block scales, as rf_scale gives them */
    rf_i32 mn[8];  /* minima as int16 pairs: mn[j] holds those of 2j (low) and 2j+1, of 16 values each; of 32 if
                    * that is what a sub-block has (width 8), in mn[0..3] */
    rf_u32 x[8];   /* whatever the head leaves for the parts */
    rf_f32 d, m;
} rf_tile;

/* Fills sc, mn, d, m (and x) from the superblock of each row: the first row's at p, rows `stride` bytes apart. */
typedef void (*rf_head_fn)(const uint8_t *p, int64_t stride, rf_tile *t);
/* Unpacks a quarter of the superblock, 16 dwords; part 0..3. */
typedef void (*rf_part_fn)(const uint8_t *p, int64_t stride, int part, const rf_tile *t, rf_u32 q[16]);

/* Byte i of each dword, unsigned or signed. On AVX-512 as a dot product: shifts are what unpacking waits for. */
static RF_INLINE rf_i32 rf_byte(rf_u32 x, int i)
{
#if RF_LANES == 16
    return (rf_i32)_mm512_dpbusd_epi32((__m512i){0}, (__m512i)x, _mm512_set1_epi32(1 << (8 * i)));
#else
    return (rf_i32)(x >> (8 * i) & 0xffu);
#endif
}

static RF_INLINE rf_i32 rf_signed_byte(rf_u32 x, int i)
{
#if RF_LANES == 16
    return (rf_i32)_mm512_dpbusd_epi32((__m512i){0}, _mm512_set1_epi32(1 << (8 * i)), (__m512i)x);
#else
    return (rf_i32)(x << (24 - 8 * i)) >> 24;
#endif
}

/* Bytes 2i and 2i+1 of each dword as a pair of int16, unsigned. */
static RF_INLINE rf_i32 rf_byte_pairs(rf_u32 x, int i)
{
    x = i ? x >> 16 : x;
    return (rf_i32)((x & 0xffu) | (x & 0xff00u) << 8);
}

/* First dword of sub-block s of a part. */
static RF_INLINE int rf_first_dword(int part, int s, int width, int strided)
{
    return strided ? 32 * (part >> 1) + 4 * (part & 1) + 8 * s : 16 * part + width * s;
}

/* The sums of 32 values each, of an activation's superblock. */
static RF_INLINE void rf_pair_sums(const uint8_t *act, int16_t pairs[8])
{
    const uint8_t *sums = act + 256;
#if RF_LANES > 4
    const __m128i low = _mm_loadu_si128((const __m128i *)sums), high = _mm_loadu_si128((const __m128i *)(sums + 16));
    _mm_storeu_si128((__m128i *)pairs, _mm_hadd_epi16(low, high));
#else
    int16_t s[16];
    memcpy(s, sums, sizeof s);
    for (int j = 0; j < 8; j++)
        pairs[j] = (int16_t)(s[2 * j] + s[2 * j + 1]);
#endif
}

/* msum[a] of g activations, whose sums of as many values as a minimum has lie `apart` bytes apart: 2 n of them. */
static RF_INLINE void rf_minima(rf_i32 *msum, const rf_tile *t, const uint8_t *sums, int64_t apart, int n, int g)
{
    RF_UNROLL
    for (int j = 0; j < n; j++) {
        RF_UNROLL
        for (int a = 0; a < g; a++)
            msum[a] = rf_madd(msum[a], t->mn[j], rf_set((int32_t)rf_load_u32(sums + a * apart + 4 * j)));
    }
}

static RF_INLINE void rf_finish(rf_f32 *acc, rf_i32 *isum, const rf_tile *t, const uint8_t *act, int64_t act_bytes,
                                rf_superblock f, int g)
{
    rf_i32 msum[RF_GROUP];
    int16_t pairs[RF_GROUP][8];
    RF_UNROLL
    for (int a = 0; a < g; a++) {
        msum[a] = (rf_i32){0};
        if (f.min != RF_MIN_NONE && f.width == 8)
            rf_pair_sums(act + a * act_bytes, pairs[a]);
    }
    if (f.min != RF_MIN_NONE && f.width == 8)
        rf_minima(msum, t, (const uint8_t *)pairs, sizeof pairs[0], 4, g);
    else if (f.min != RF_MIN_NONE)
        rf_minima(msum, t, act + 256, act_bytes, 8, g);
    RF_UNROLL
    for (int a = 0; a < g; a++) {
        float da = rf_load_f32(act + a * act_bytes + 288);
        if (f.min == RF_MIN_FLOAT) {
            acc[a] = acc[a] + t->d * da * __builtin_convertvector(isum[a], rf_f32);
            acc[a] = acc[a] - t->m * da * __builtin_convertvector(msum[a], rf_f32);
        } else {
            acc[a] = acc[a] + t->d * da * __builtin_convertvector(isum[a] - msum[a], rf_f32);
        }
    }
}

/* Asks for the i-th of n pieces of a superblock's worth of the next tile. All at once would be more than a core can
 * have under way, and what is computed would wait for room. */
static RF_INLINE void rf_ask(const uint8_t *next, rf_superblock f, int i, int n)
{
    const int64_t piece = RF_LANES * f.block_bytes / n;
    if (next)
        rf_prefetch(next + i * piece, piece);
}

/* A single activation: each part is multiplied while it is still in registers. */
static RF_INLINE void rf_one(const uint8_t *p, int64_t stride, const uint8_t *act, rf_f32 *acc, rf_head_fn head,
                             rf_part_fn unpack_part, rf_superblock f, const uint8_t *next)
{
    rf_tile t;
    rf_i32 isum = {0};
    head(p, stride, &t);
    RF_UNROLL
    for (int part = 0; part < 4; part++) {
        rf_u32 q[16];
        if (f.fence)
            __asm__ volatile("" : "+r"(p), "+r"(stride)::"memory");
        rf_ask(next, f, part, 4);
        unpack_part(p, stride, part, &t, q);
        RF_UNROLL
        for (int s = 0; s < 16 / f.width; s++) {
            int i = rf_first_dword(part, s, f.width, f.strided);
            rf_dots(&isum, q + f.width * s, f.width, act + 4 * i, 0, t.sc[i / f.width], 0, f.qmax, 1);
        }
    }
    rf_finish(acc, &isum, &t, act, 0, f, 1);
}

static RF_INLINE void rf_unpack(const uint8_t *p, int64_t stride, rf_tile *t, rf_head_fn head, rf_part_fn unpack_part,
                                rf_superblock f)
{
    head(p, stride, t);
    RF_UNROLL
    for (int part = 0; part < 4; part++) {
        rf_u32 q[16];
        __asm__ volatile("" : "+r"(p), "+r"(stride)::"memory"); /* part by part: all at once does not fit the registers */
        unpack_part(p, stride, part, t, q);
        RF_UNROLL
        for (int j = 0; j < 16; j++)
            t->q[rf_first_dword(part, j / f.width, f.width, f.strided) + j % f.width] = q[j];
    }
}

/* g activations (a constant) and an unpacked superblock. Most of the running time of prefill is spent here. */
static RF_INLINE void rf_group(const rf_tile *t, const uint8_t *act, int64_t act_bytes, rf_f32 *acc, rf_superblock f,
                               int g, const uint8_t *next)
{
    rf_i32 isum[RF_GROUP];
    RF_UNROLL
    for (int a = 0; a < g; a++)
        isum[a] = (rf_i32){0};
    for (int s = 0; s < 64 / f.width; s++) {
        rf_ask(next, f, s, 64 / f.width);
        rf_dots(isum, t->q + f.width * s, f.width, act + 4 * f.width * s, act_bytes, t->sc[s], 0, f.qmax, g);
    }
    rf_finish(acc, isum, t, act, act_bytes, f, g);
}

/* Any number of activations and an unpacked superblock. next: memory to ask for meanwhile, or NULL. */
static RF_INLINE void rf_groups(const rf_tile *t, const uint8_t *act, int64_t act_bytes, int64_t n, rf_f32 *acc,
                                rf_superblock f, const uint8_t *next)
{
    int64_t a = 0;
#if RF_GROUP == 8
    for (; a + 8 <= n; a += 8, next = NULL)
        rf_group(t, act + a * act_bytes, act_bytes, acc + a, f, 8, next);
#endif
    for (; a + 4 <= n; a += 4, next = NULL)
        rf_group(t, act + a * act_bytes, act_bytes, acc + a, f, 4, next);
    for (; a + 2 <= n; a += 2, next = NULL)
        rf_group(t, act + a * act_bytes, act_bytes, acc + a, f, 2, next);
    if (a < n)
        rf_group(t, act + a * act_bytes, act_bytes, acc + a, f, 1, next);
}

static RF_INLINE int rf_matmul_q8_256(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                      const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                      int64_t out_stride, rf_head_fn head, rf_part_fn unpack_part, rf_superblock f)
{
    const int64_t n_blocks = n_cols / 256;
    uint8_t spare[RF_LANES * RF_MAX_SUPERBLOCK_BYTES] = {0}; /* a superblock of fewer rows than lanes */
    rf_f32 acc[RF_CHUNK];
    rf_tile tile;

    if (n_cols < 0 || n_cols % 256 || n_rows < 0 || n_acts < 0 || row_bytes < n_blocks * f.block_bytes ||
        (n_acts > 1 && (act_bytes < n_blocks * (int64_t)sizeof(ramforge_q8_256) || out_stride < n_rows)))
        return -1;
    for (int64_t r = 0; r < n_rows; r += RF_LANES) {
        const int64_t rows = n_rows - r < RF_LANES ? n_rows - r : RF_LANES;
        for (int64_t first = 0; first < n_acts; first += RF_CHUNK) {
            const int64_t n = n_acts - first < RF_CHUNK ? n_acts - first : RF_CHUNK;
            for (int64_t a = 0; a < n; a++)
                acc[a] = (rf_f32){0};
            for (int64_t b = 0; b < n_blocks; b++) {
                const uint8_t *p = weights + r * row_bytes + b * f.block_bytes;
                const uint8_t *act = acts + first * act_bytes + b * (int64_t)sizeof(ramforge_q8_256);
                int64_t stride = row_bytes;
                const uint8_t *next = weights + (r + RF_LANES) * row_bytes + b * RF_LANES * f.block_bytes;
                if (first > 0)
                    next = NULL;
                if (rows < RF_LANES) {
                    for (int64_t l = 0; l < rows; l++)
                        memcpy(spare + l * f.block_bytes, p + l * row_bytes, (size_t)f.block_bytes);
                    p = spare, stride = f.block_bytes;
                }
                if (n == 1) {
                    rf_one(p, stride, act, acc, head, unpack_part, f, next);
                } else {
                    rf_unpack(p, stride, &tile, head, unpack_part, f);
                    rf_groups(&tile, act, act_bytes, n, acc, f, next);
                }
            }
            for (int64_t a = 0; a < n; a++)
                memcpy(out + (first + a) * out_stride + r, &acc[a], (size_t)rows * sizeof(float));
        }
    }
    return 0;
}
