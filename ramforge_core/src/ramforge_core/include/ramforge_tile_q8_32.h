/* ramforge_tile_q8_32.h: multiply blocks of 32 values with activations of the packing q8_32.
 *
 * Included by a format's file inside its RF_ISA part, after ramforge_tile.h. The format says with one function how a
 * pair of blocks is unpacked, and rf_matmul_q8_32 does the rest. For one row, one activation, blocks b in order:
 *
 *     t   = sum of q * activation - offset * activation sum        exact int32
 *     acc = acc + (d * da) * (float)t
 *     acc = acc + m * s                                            only where the format has a minimum
 */

#ifndef RAMFORGE_TILE_Q8_32_H
#define RAMFORGE_TILE_Q8_32_H

/* Facts of a format, all compile-time constants.
 * offset  what is subtracted from each unpacked weight
 * qmax    largest weight after unpacking, for the int16 sums of AVX2; 128: signed weights, see rf_signed
 * min     whether m is added */
typedef struct {
    int64_t block_bytes;
    int offset, qmax, min;
} rf_block32;

enum { RF_MAX_PAIR_BYTES = 68, RF_RUN_BLOCKS = 8 };

/* Defines the matmul function of a format: RF_MATMUL_Q8_32(rf_q4_0_matmul, pair, fields of rf_block32). */
#define RF_MATMUL_Q8_32(name, pair, ...)                                                                       \
    RF_KERNEL int RF_(name)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,         \
                            const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,                \
                            int64_t out_stride)                                                                \
    {                                                                                                          \
        return rf_matmul_q8_32(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride,   \
                               pair, (rf_block32){__VA_ARGS__});                                               \
    }
#endif

#define rf_pair RF_(rf_pair)
#define rf_pair_fn RF_(rf_pair_fn)
#define rf_block RF_(rf_block)
#define rf_run RF_(rf_run)
#define rf_runs RF_(rf_runs)
#define rf_unpack RF_(rf_unpack)
#define rf_matmul_q8_32 RF_(rf_matmul_q8_32)

/* Two consecutive blocks of RF_LANES rows: dword 8i + j of q holds values 4j .. 4j+3 of block i. */
typedef struct {
    rf_u32 q[16];
    rf_f32 d[2], m[2];
} rf_pair;

/* Unpacks two blocks of each row: the first row's are at p, rows are `stride` bytes apart. */
typedef void (*rf_pair_fn)(const uint8_t *p, int64_t stride, rf_pair *t);

/* One block i of a pair with g activations (a constant). Most of the running time is spent here. */
static RF_INLINE void rf_block(const rf_pair *t, int i, const uint8_t *act, int64_t act_bytes, rf_f32 *acc,
                               rf_block32 f, int g)
{
    rf_i32 sum[RF_GROUP];
    RF_UNROLL
    for (int a = 0; a < g; a++)
        sum[a] = rf_set(f.offset ? -f.offset * (int32_t)rf_load_u32(act + a * act_bytes + 40) : 0);
    rf_dots(sum, t->q + 8 * i, 8, act, act_bytes, sum[0], 1, f.qmax, g);
    RF_UNROLL
    for (int a = 0; a < g; a++) {
        acc[a] = acc[a] + t->d[i] * rf_load_f32(act + a * act_bytes + 32) * __builtin_convertvector(sum[a], rf_f32);
        if (f.min)
            acc[a] = acc[a] + t->m[i] * rf_load_f32(act + a * act_bytes + 36);
    }
}

/* n_blocks consecutive blocks with g activations; the float sums stay in registers. */
static RF_INLINE void rf_run(const rf_pair *t, int64_t n_blocks, const uint8_t *act, int64_t act_bytes, rf_f32 *acc,
                             rf_block32 f, int g)
{
    rf_f32 sums[RF_GROUP];
    RF_UNROLL
    for (int a = 0; a < g; a++)
        sums[a] = acc[a];
    for (int64_t i = 0; i < n_blocks; i++)
        rf_block(t + i / 2, (int)(i % 2), act + i * (int64_t)sizeof(ramforge_q8_32), act_bytes, sums, f, g);
    RF_UNROLL
    for (int a = 0; a < g; a++)
        acc[a] = sums[a];
}

/* Any number of activations and n_blocks unpacked blocks. */
static RF_INLINE void rf_runs(const rf_pair *t, int64_t n_blocks, const uint8_t *act, int64_t act_bytes, int64_t n,
                              rf_f32 *acc, rf_block32 f)
{
    int64_t a = 0;
#if RF_GROUP == 8
    for (; a + 8 <= n; a += 8)
        rf_run(t, n_blocks, act + a * act_bytes, act_bytes, acc + a, f, 8);
#endif
    for (; a + 4 <= n; a += 4)
        rf_run(t, n_blocks, act + a * act_bytes, act_bytes, acc + a, f, 4);
    for (; a + 2 <= n; a += 2)
        rf_run(t, n_blocks, act + a * act_bytes, act_bytes, acc + a, f, 2);
    if (a < n)
        rf_run(t, n_blocks, act + a * act_bytes, act_bytes, acc + a, f, 1);
}

/* Unpacks two blocks of `rows` rows, or only one where the row ends: then, and where rows are fewer than lanes, by
 * way of a copy, so that nothing past them is read. */
static RF_INLINE void rf_unpack(const uint8_t *p, int64_t row_bytes, int64_t rows, int both, uint8_t *spare,
                                rf_pair *t, rf_pair_fn pair, rf_block32 f)
{
    int64_t stride = row_bytes;
    if (rows < RF_LANES || !both) {
        for (int64_t l = 0; l < rows; l++)
            memcpy(spare + l * RF_MAX_PAIR_BYTES, p + l * row_bytes, (size_t)((both ? 2 : 1) * f.block_bytes));
        p = spare, stride = RF_MAX_PAIR_BYTES;
    }
    pair(p, stride, t);
}

static RF_INLINE int rf_matmul_q8_32(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                     const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                     int64_t out_stride, rf_pair_fn pair, rf_block32 f)
{
    const int64_t n_blocks = n_cols / 32;
    uint8_t spare[RF_LANES * RF_MAX_PAIR_BYTES] = {0};
    rf_f32 acc[RF_CHUNK];
    rf_pair tile[RF_RUN_BLOCKS / 2];

    if (n_cols < 0 || n_cols % 32 || n_rows < 0 || n_acts < 0 || row_bytes < n_blocks * f.block_bytes ||
        (n_acts > 1 && (act_bytes < n_blocks * (int64_t)sizeof(ramforge_q8_32) || out_stride < n_rows)))
        return -1;
    for (int64_t r = 0; r < n_rows; r += RF_LANES) {
        const int64_t rows = n_rows - r < RF_LANES ? n_rows - r : RF_LANES;
        for (int64_t first = 0; first < n_acts; first += RF_CHUNK) {
            const int64_t n = n_acts - first < RF_CHUNK ? n_acts - first : RF_CHUNK;
            for (int64_t a = 0; a < n; a++)
                acc[a] = (rf_f32){0};
            for (int64_t b = 0; b < n_blocks; b += RF_RUN_BLOCKS) {
                const int64_t run = n_blocks - b < RF_RUN_BLOCKS ? n_blocks - b : RF_RUN_BLOCKS;
                const uint8_t *p = weights + r * row_bytes + b * f.block_bytes;
                const uint8_t *act = acts + first * act_bytes + b * (int64_t)sizeof(ramforge_q8_32);
                for (int64_t i = 0; i < run; i += 2) {
                    if (first == 0) /* as much of the next tile as is unpacked here */
                        rf_prefetch(weights + (r + RF_LANES) * row_bytes + (b + i) * RF_LANES * f.block_bytes,
                                    2 * RF_LANES * f.block_bytes);
                    rf_unpack(p + i * f.block_bytes, row_bytes, rows, i + 1 < run, spare, tile + i / 2, pair, f);
                    if (n == 1) { /* while they are still in registers */
                        const uint8_t *one = act + i * (int64_t)sizeof(ramforge_q8_32);
                        rf_block(tile + i / 2, 0, one, 0, acc, f, 1);
                        if (i + 1 < run)
                            rf_block(tile + i / 2, 1, one + sizeof(ramforge_q8_32), 0, acc, f, 1);
                    }
                }
                if (n > 1)
                    rf_runs(tile, run, act, act_bytes, n, acc, f);
            }
            for (int64_t a = 0; a < n; a++)
                memcpy(out + (first + a) * out_stride + r, &acc[a], (size_t)rows * sizeof(float));
        }
    }
    return 0;
}
