/* ramforge_tile_q8_32_wide.h: multiply blocks of 64 or 128 values with activations of the packing q8_32.
 *
 * Included by a format's file inside its RF_ISA part, after ramforge_tile.h. For one row, one activation, groups s of 16
 * or 32 values in order, da of the activation's block that holds the group:
 *
 *     t   = sum of (q - offset) * activation       exact int32
 *     acc = acc + (d[s] * da) * (float)t
 */
#ifndef RAMFORGE_TILE_Q8_32_WIDE_H
#define RAMFORGE_TILE_Q8_32_WIDE_H

/* Facts of a format, all compile-time constants.
 * values  in a block, at most 128
 * group   16 or 32, values whose integer sum becomes a float
 * scaled  values that share a scale, a multiple of group
 * offset  what is subtracted from each unpacked weight
 * qmax    largest weight after unpacking, for the int16 sums of AVX2 */
typedef struct {
    int64_t block_bytes;
    int values, group, scaled, offset, qmax;
} rf_wide;

enum { RF_MAX_WIDE_BYTES = 36 };

/* Defines the matmul function of a format: RF_MATMUL_WIDE(rf_q1_0_matmul, unpack, fields of rf_wide). */
#define RF_MATMUL_WIDE(name, unpack, ...)                                                                      \
    RF_KERNEL int RF_(name)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,         \
                            const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,                \
                            int64_t out_stride)                                                                \
    {                                                                                                          \
        return rf_matmul_wide(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride,    \
                              unpack, (rf_wide){__VA_ARGS__});                                                 \
    }

static inline int32_t rf_sum16(const uint8_t *act)
{
#ifdef __SSE2__
    const __m128i x = _mm_xor_si128(_mm_loadu_si128((const __m128i *)act), _mm_set1_epi8(-128));
    const __m128i sums = _mm_sad_epu8(x, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#elif defined(__aarch64__)
    return vaddlvq_s8(vreinterpretq_s8_u8(vld1q_u8(act)));
#else
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += (int8_t)act[i];
    return sum;
#endif
}
#endif

#define rf_wide_tile RF_(rf_wide_tile)
#define rf_wide_fn RF_(rf_wide_fn)
#define rf_wide_group RF_(rf_wide_group)
#define rf_matmul_wide RF_(rf_matmul_wide)

/* One block of RF_LANES rows: dword i of q holds values 4i .. 4i+3. */
typedef struct {
    rf_u32 q[32];
    rf_f32 d[8];
} rf_wide_tile;

/* Unpacks a block of each row: the first row's is at p, rows are `stride` bytes apart. */
typedef void (*rf_wide_fn)(const uint8_t *p, int64_t stride, rf_wide_tile *t);

/* One block with g activations (a constant). */
static RF_INLINE void rf_wide_group(const rf_wide_tile *t, const uint8_t *act, int64_t act_bytes, rf_f32 *acc,
                                    rf_wide f, int g)
{
    rf_f32 sums[RF_GROUP];
    RF_UNROLL
    for (int a = 0; a < g; a++)
        sums[a] = acc[a];
    RF_UNROLL
    for (int s = 0; s < f.values / f.group; s++) {
        const uint8_t *block = act + s * f.group / 32 * (int64_t)sizeof(ramforge_q8_32), *q = block + s * f.group % 32;
        rf_i32 sum[RF_GROUP];
        RF_UNROLL
        for (int a = 0; a < g; a++)
            sum[a] = rf_set(-f.offset * (f.group == 32 ? (int32_t)rf_load_u32(block + a * act_bytes + 40)
                                                       : rf_sum16(q + a * act_bytes)));
        rf_dots(sum, t->q + s * f.group / 4, f.group / 4, q, act_bytes, sum[0], 1, f.qmax, g);
        RF_UNROLL
        for (int a = 0; a < g; a++)
            sums[a] = sums[a] + t->d[s * f.group / f.scaled] * rf_load_f32(block + a * act_bytes + 32) *
                                    __builtin_convertvector(sum[a], rf_f32);
    }
    RF_UNROLL
    for (int a = 0; a < g; a++)
        acc[a] = sums[a];
}

static RF_INLINE int rf_matmul_wide(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                    const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                    int64_t out_stride, rf_wide_fn unpack, rf_wide f)
{
    const int64_t n_blocks = n_cols / f.values, block_acts = f.values / 32 * (int64_t)sizeof(ramforge_q8_32);
    uint8_t spare[RF_LANES * RF_MAX_WIDE_BYTES] = {0}; /* a block of fewer rows than lanes */
    rf_f32 acc[RF_CHUNK];
    rf_wide_tile tile;

    if (n_cols < 0 || n_cols % f.values || n_rows < 0 || n_acts < 0 || row_bytes < n_blocks * f.block_bytes ||
        (n_acts > 1 && (act_bytes < n_blocks * block_acts || out_stride < n_rows)))
        return -1;
    for (int64_t r = 0; r < n_rows; r += RF_LANES) {
        const int64_t rows = n_rows - r < RF_LANES ? n_rows - r : RF_LANES;
        for (int64_t first = 0; first < n_acts; first += RF_CHUNK) {
            const int64_t n = n_acts - first < RF_CHUNK ? n_acts - first : RF_CHUNK;
            for (int64_t a = 0; a < n; a++)
                acc[a] = (rf_f32){0};
            for (int64_t b = 0; b < n_blocks; b++) {
                const uint8_t *p = weights + r * row_bytes + b * f.block_bytes;
                const uint8_t *act = acts + first * act_bytes + b * block_acts;
                int64_t stride = row_bytes, a = 0;
                if (first == 0) /* the b-th part of the next tile */
                    rf_prefetch(weights + (r + RF_LANES) * row_bytes + b * RF_LANES * f.block_bytes,
                                RF_LANES * f.block_bytes);
                if (rows < RF_LANES) {
                    for (int64_t l = 0; l < rows; l++)
                        memcpy(spare + l * f.block_bytes, p + l * row_bytes, (size_t)f.block_bytes);
                    p = spare, stride = f.block_bytes;
                }
                if (n == 1) { /* weights that never leave the registers */
                    rf_wide_tile one;
                    unpack(p, stride, &one);
                    rf_wide_group(&one, act, 0, acc, f, 1);
                    continue;
                }
                unpack(p, stride, &tile);
                for (; a + RF_GROUP <= n; a += RF_GROUP)
                    rf_wide_group(&tile, act + a * act_bytes, act_bytes, acc + a, f, RF_GROUP);
                for (; a < n; a++)
                    rf_wide_group(&tile, act + a * act_bytes, act_bytes, acc + a, f, 1);
            }
            for (int64_t a = 0; a < n; a++)
                memcpy(out + (first + a) * out_stride + r, &acc[a], (size_t)rows * sizeof(float));
        }
    }
    return 0;
}
