/* float_rows.h: multiply rows of F32, F16 or BF16 weights with float32 activations.
 *
 * Included by a format's file inside its RF_ISA part, after ramforge_tile.h. The format says with one function how
 * RF_LANES weights are loaded as float32. For one row and one activation, in this order on every instruction set:
 *
 *     s[k % 16] = fma(w[k], x[k], s[k % 16])                                       k = 0, 1, 2, ...
 *     out = (((s0 + s8) + (s4 + s12)) + ((s2 + s10) + (s6 + s14)))
 *         + (((s1 + s9) + (s5 + s13)) + ((s3 + s11) + (s7 + s15)))
 *
 * Many activations: a slice of some rows is converted once into an array on the stack, and groups of activations
 * meet it there, with as many sums in registers as there are. A single activation reads the weights as they are.
 */

#ifndef RAMFORGE_FLOAT_ROWS_H
#define RAMFORGE_FLOAT_ROWS_H

/* Rows that are converted at a time, and activations that meet them; their sums are 128 KiB. RF_PIECE: columns of four
 * rows that a few activations meet. RF_AHEAD: bytes between what a single one meets and what is asked for. */
enum { RF_ROW_BLOCK = 16, RF_MANY = 128, RF_FEW = 12, RF_PIECE = 512, RF_AHEAD = 8192 };

static inline void rf_prefetch_ahead(const uint8_t *p)
{
    __builtin_prefetch((const void *)((uintptr_t)p + RF_AHEAD), 0, 2); /* a number: p may be what stands for a row's end */
}

/* Memory to ask for in between: of each of four rows a piece for every 64 columns. p may be NULL. */
typedef struct {
    const uint8_t *p;
    int64_t row_bytes, piece;
} rf_ahead;

/* Defines the matmul function of a format: RF_MATMUL_F32(rf_f16_matmul, load, bytes of a value). */
#define RF_MATMUL_F32(name, load, value_bytes)                                                                 \
    RF_FMA_TARGET int RF_(name)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,     \
                                const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,            \
                                int64_t out_stride)                                                            \
    {                                                                                                          \
        return rf_matmul_f32(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride,     \
                             load, value_bytes);                                                               \
    }
#endif

#undef RF_FMA_TARGET
#if RF_LANES == 8
#define RF_FMA_TARGET __attribute__((target("avx2,f16c,fma")))
#else
#define RF_FMA_TARGET RF_TARGET
#endif
#define RF_FMA_INLINE inline __attribute__((always_inline)) RF_FMA_TARGET

#define RF_PARTS (16 / RF_LANES) /* vectors that hold the 16 partial sums */
#define RF_ACTS (RF_GROUP == 8 ? 6 : RF_LANES == 8 ? 3 : 2) /* a group: 4 rows times so many sums fit in registers */
/* Columns that are converted at a time, at most 128 KiB. The more, the less often sums are loaded and stored; but where
 * they take several vectors, each of them passes through the columns, and the first-level cache has to hold those. */
#define RF_SLICE (RF_PARTS == 1 ? 2048 : 512)
#define rf_load_fn RF_(rf_load_fn)
#define rf_fma RF_(rf_fma)
#define rf_reduce RF_(rf_reduce)
#define rf_add RF_(rf_add)
#define rf_group RF_(rf_group)
#define rf_group_size RF_(rf_group_size)
#define rf_convert RF_(rf_convert)
#define rf_few RF_(rf_few)
#define rf_any_group RF_(rf_any_group)
#define rf_many RF_(rf_many)
#define rf_load_f32s RF_(rf_load_f32s)
#define rf_matmul_f32 RF_(rf_matmul_f32)

/* RF_LANES weights at p as float32. */
typedef rf_f32 (*rf_load_fn)(const uint8_t *p);

#if RF_LANES == 4 && !defined(__FP_FAST_FMAF)
/* Products and sums of floats in double: the product is exact, and the sum is rounded to odd. That is, where it is
 * not exact and its last bit is 0, it goes to its other neighbour; so that rounding it to float gives what a single
 * rounding gives (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). */
typedef double rf_f64 __attribute__((vector_size(16)));
typedef int64_t rf_i64 __attribute__((vector_size(16)));

static RF_INLINE rf_f64 rf_odd_fma(rf_f64 a, rf_f64 b, rf_f64 c)
{
    rf_f64 product = a * b, sum = product + c, back = sum - product;
    rf_f64 error = (product - (sum - back)) + (c - back);
    rf_i64 inexact = (error > 0) | (error < 0); /* neither where it is not a number */
    rf_i64 toward_zero = (error > 0) ^ (sum > 0), even = ((rf_i64)sum & 1) - 1;
    return (rf_f64)((rf_i64)sum + (((toward_zero << 1) + 1) & inexact & even));
}
#endif

/* a * b + c, rounded once. */
static RF_FMA_INLINE rf_f32 rf_fma(rf_f32 a, rf_f32 b, rf_f32 c)
{
#if RF_LANES == 16
    return (rf_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif RF_LANES == 8
    return (rf_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(RF_NEON)
    return (rf_f32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(__FP_FAST_FMAF)
    return (rf_f32){__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                    __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
#else
    rf_f64 low = rf_odd_fma((rf_f64){a[0], a[1]}, (rf_f64){b[0], b[1]}, (rf_f64){c[0], c[1]});
    rf_f64 high = rf_odd_fma((rf_f64){a[2], a[3]}, (rf_f64){b[2], b[3]}, (rf_f64){c[2], c[3]});
    rf_f32 rounded = {(float)low[0], (float)low[1], (float)high[0], (float)high[1]};
    __asm__("" : "+m"(rounded)); /* gcc 12 would hand the doubles to the next fma, unrounded */
    return rounded;
#endif
}

/* Adds `width` columns (a multiple of 16) of n rows and g activations to their partial sums, those of row r and
 * activation a at sums[(a * RF_ROW_BLOCK + r) * RF_PARTS]; n and g are constants. Most time is spent here. */
static RF_FMA_INLINE void rf_add(rf_f32 *sums, const uint8_t *w, int64_t row_bytes, int64_t width, const uint8_t *x,
                                 int64_t act_bytes, rf_load_fn load, int64_t value_bytes, rf_ahead next, int n, int g)
{
    if (RF_PARTS > 1 && n * g == 1) { /* the sums do not wait for each other if all parts go on together */
        rf_f32 s[RF_PARTS];
        memcpy(s, sums, sizeof s);
        for (int64_t k = 0; k < width; k += 16) {
            rf_prefetch_ahead(w + value_bytes * k);
            RF_UNROLL
            for (int part = 0; part < RF_PARTS; part++) {
                rf_f32 v;
                memcpy(&v, x + 4 * (k + part * RF_LANES), sizeof v);
                s[part] = rf_fma(load(w + value_bytes * (k + part * RF_LANES)), v, s[part]);
            }
        }
        memcpy(sums, s, sizeof s);
        return;
    }
    RF_UNROLL
    for (int part = 0; part < RF_PARTS; part++) {
        rf_f32 s[4 * RF_ACTS], v[RF_ACTS];
        RF_UNROLL
        for (int r = 0; r < n; r++) {
            RF_UNROLL
            for (int a = 0; a < g; a++)
                s[r * g + a] = sums[(a * RF_ROW_BLOCK + r) * RF_PARTS + part];
        }
        for (int64_t k = part * RF_LANES; k < width; k += 16) {
            if (n * g == 1)
                rf_prefetch_ahead(w + value_bytes * k);
            if (next.p && part == 0)
                rf_prefetch(next.p + k / 16 % 4 * next.row_bytes + k / 64 * next.piece, next.piece);
            RF_UNROLL
            for (int a = 0; a < g; a++)
                memcpy(&v[a], x + a * act_bytes + 4 * k, sizeof v[a]);
            RF_UNROLL
            for (int r = 0; r < n; r++) {
                const rf_f32 weight = load(w + r * row_bytes + value_bytes * k);
                RF_UNROLL
                for (int a = 0; a < g; a++)
                    s[r * g + a] = rf_fma(weight, v[a], s[r * g + a]);
            }
        }
        RF_UNROLL
        for (int r = 0; r < n; r++) {
            RF_UNROLL
            for (int a = 0; a < g; a++)
                sums[(a * RF_ROW_BLOCK + r) * RF_PARTS + part] = s[r * g + a];
        }
    }
}

/* rf_add for a part of the columns of up to RF_ROW_BLOCK rows, with g activations. The last columns are filled up
 * with zeros, the weights' as well as the activations'. */
static RF_FMA_INLINE void rf_group(rf_f32 *sums, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t width,
                                   const uint8_t *x, int64_t act_bytes, rf_load_fn load, int64_t value_bytes,
                                   rf_ahead next, int g)
{
    const rf_ahead nothing = {0};
    const int64_t whole = width / 16 * 16, rest = width - whole;
    float last[RF_ACTS * 16] = {0};
    uint8_t last_weights[64] = {0};
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        rf_add(sums + r * RF_PARTS, w + r * row_bytes, row_bytes, whole, x, act_bytes, load, value_bytes, next, 4, g);
        if (next.p)
            next.p += 4 * next.row_bytes;
    }
    for (; r < rows; r++)
        rf_add(sums + r * RF_PARTS, w + r * row_bytes, row_bytes, whole, x, act_bytes, load, value_bytes, nothing, 1, g);
    if (rest == 0)
        return;
    for (int a = 0; a < g; a++)
        memcpy(last + 16 * a, x + a * act_bytes + 4 * whole, (size_t)rest * 4);
    for (r = 0; r < rows; r++) {
        memcpy(last_weights, w + r * row_bytes + value_bytes * whole, (size_t)(rest * value_bytes));
        rf_add(sums + r * RF_PARTS, last_weights, 0, 16, (const uint8_t *)last, 64, load, value_bytes, nothing, 1, g);
    }
}

/* out[r] = the reduced partial sums of row r. */
static RF_FMA_INLINE void rf_reduce(const rf_f32 *sums, int64_t rows, float *out)
{
#if RF_LANES == 16
    if (rows == 16) { /* sixteen at once share the additions; they go in so that sum i comes out in lane i */
        __m512 a[8], b[4], c[2];
        for (int i = 0; i < 8; i++) { /* lanes l + 8 to lanes l */
            __m512 x = (__m512)sums[i / 2 + i % 2 * 8], y = (__m512)sums[i / 2 + i % 2 * 8 + 4];
            a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
        }
        for (int i = 0; i < 4; i++) /* l + 4 to l */
            b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
        for (int i = 0; i < 2; i++) /* l + 2 to l */
            c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                                 _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
        __m512 sum = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
        memcpy(out, &sum, sizeof sum);
        return;
    }
#endif
    for (int64_t r = 0; r < rows; r++) {
        float s[16];
        memcpy(s, sums + r * RF_PARTS, sizeof s);
        out[r] = (((s[0] + s[8]) + (s[4] + s[12])) + ((s[2] + s[10]) + (s[6] + s[14]))) +
                 (((s[1] + s[9]) + (s[5] + s[13])) + ((s[3] + s[11]) + (s[7] + s[15])));
    }
}

/* How many of n activations make the next group: whole groups, but no rest of one or two, which would keep the processor
 * waiting for each product. */
static RF_INLINE int64_t rf_group_size(int64_t n)
{
    if (n >= RF_ACTS && n != RF_ACTS + 1 && n != RF_ACTS + 2)
        return RF_ACTS;
    return n >= 4 && RF_ACTS > 4 ? 4 : n >= 2 ? 2 : 1;
}

/* rf_group for a g that is not a constant, but from rf_group_size. */
static RF_FMA_INLINE void rf_any_group(rf_f32 *sums, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t width,
                                       const uint8_t *x, int64_t act_bytes, rf_load_fn load, int64_t value_bytes,
                                       rf_ahead next, int64_t g)
{
    if (g == RF_ACTS)
        rf_group(sums, w, row_bytes, rows, width, x, act_bytes, load, value_bytes, next, RF_ACTS);
    else if (RF_ACTS > 4 && g == 4)
        rf_group(sums, w, row_bytes, rows, width, x, act_bytes, load, value_bytes, next, RF_ACTS > 4 ? 4 : 1);
    else if (g == 2)
        rf_group(sums, w, row_bytes, rows, width, x, act_bytes, load, value_bytes, next, 2);
    else
        rf_group(sums, w, row_bytes, rows, width, x, act_bytes, load, value_bytes, next, 1);
}

/* Up to RF_FEW activations, with the weights as they are stored. A single one meets row after row, since memory gives
 * most when it is read in one stream. With several, four rows share each part of the activations, and the next four are
 * asked for. */
static RF_FMA_INLINE void rf_few(const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                 const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                 int64_t out_stride, rf_load_fn load, int64_t value_bytes)
{
    const int64_t block = n_acts == 1 ? 1 : 4, slice = n_acts == 1 ? n_cols : RF_PIECE;
    for (int64_t r = 0; r < n_rows; r += block) {
        const int64_t rows = n_rows - r < block ? n_rows - r : block;
        rf_f32 sums[RF_FEW * RF_ROW_BLOCK * RF_PARTS];
        for (int64_t a = 0; a < n_acts; a++)
            for (int64_t i = 0; i < rows * RF_PARTS; i++)
                sums[a * RF_ROW_BLOCK * RF_PARTS + i] = (rf_f32){0};
        for (int64_t k = 0; k < n_cols; k += slice) {
            const int64_t width = n_cols - k < slice ? n_cols - k : slice;
            const uint8_t *p = w + r * row_bytes + value_bytes * k;
            if (block > 1)
                rf_prefetch(w + (r + rows) * row_bytes + rows * value_bytes * k, rows * value_bytes * width);
            const uint8_t *x = acts + 4 * k;
            for (int64_t a = 0, g = 1; a < n_acts; a += g) {
                if (n_acts > 1)
                    g = rf_group_size(n_acts - a);
                rf_any_group(sums + a * RF_ROW_BLOCK * RF_PARTS, p, row_bytes, rows, width, x + a * act_bytes,
                             act_bytes, load, value_bytes, (rf_ahead){0}, g);
            }
        }
        for (int64_t a = 0; a < n_acts; a++)
            rf_reduce(sums + a * RF_ROW_BLOCK * RF_PARTS, rows, out + a * out_stride + r);
    }
}

static RF_FMA_INLINE rf_f32 rf_load_f32s(const uint8_t *p)
{
    rf_f32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* `width` values of a row as float32. */
static RF_FMA_INLINE void rf_convert(const uint8_t *w, int64_t width, float *out, rf_load_fn load, int64_t value_bytes)
{
    const int64_t whole = width / RF_LANES * RF_LANES;
    uint8_t last[64] = {0};
    for (int64_t k = 0; k < whole; k += RF_LANES) {
        rf_f32 v = load(w + value_bytes * k);
        memcpy(out + k, &v, sizeof v);
    }
    if (whole < width) {
        memcpy(last, w + value_bytes * whole, (size_t)((width - whole) * value_bytes));
        rf_f32 v = load(last);
        memcpy(out + whole, &v, sizeof v);
    }
}

/* Up to RF_ROW_BLOCK rows with up to RF_MANY activations, by way of converted slices. */
static RF_FMA_INLINE void rf_many(const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n_cols,
                                  const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                  int64_t out_stride, rf_load_fn load, int64_t value_bytes)
{
    rf_f32 sums[RF_MANY * RF_ROW_BLOCK * RF_PARTS];
    float slice[RF_ROW_BLOCK * RF_SLICE] __attribute__((aligned(64)));
    const uint8_t *values = (const uint8_t *)slice;
    for (int64_t i = 0; i < n_acts * RF_ROW_BLOCK * RF_PARTS; i++)
        sums[i] = (rf_f32){0};
    for (int64_t k = 0; k < n_cols; k += RF_SLICE) {
        const int64_t width = n_cols - k < RF_SLICE ? n_cols - k : RF_SLICE, next = k + RF_SLICE;
        for (int64_t r = 0; r < rows; r++)
            rf_convert(w + r * row_bytes + value_bytes * k, width, slice + r * RF_SLICE, load, value_bytes);
        for (int64_t a = 0, g; a < n_acts; a += g) {
            const uint8_t *x = acts + a * act_bytes + 4 * k;
            rf_f32 *s = sums + a * RF_ROW_BLOCK * RF_PARTS;
            rf_ahead ahead = {.row_bytes = row_bytes};
            g = rf_group_size(n_acts - a);
            ahead.p = (next < n_cols ? w + value_bytes * next : w + rows * row_bytes) + value_bytes * width * a / n_acts;
            ahead.piece = value_bytes * 64 * g / n_acts;
            rf_any_group(s, values, 4 * RF_SLICE, rows, width, x, act_bytes, rf_load_f32s, 4, ahead, g);
        }
    }
    for (int64_t a = 0; a < n_acts; a++)
        rf_reduce(sums + a * RF_ROW_BLOCK * RF_PARTS, rows, out + a * out_stride);
}

static RF_FMA_INLINE int rf_matmul_f32(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                       const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                       int64_t out_stride, rf_load_fn load, int64_t value_bytes)
{
    if (n_cols < 0 || n_rows < 0 || n_acts < 0 || row_bytes < n_cols * value_bytes ||
        (n_acts > 1 && (act_bytes < 4 * n_cols || out_stride < n_rows)))
        return -1;
    if (n_acts == 1) { /* said as a constant, so that the compiler leaves nothing of the groups */
        rf_few(weights, row_bytes, n_rows, n_cols, acts, 0, 1, out, 0, load, value_bytes);
        return 0;
    }
    if (n_acts <= RF_FEW) {
        rf_few(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride, load, value_bytes);
        return 0;
    }
    for (int64_t r = 0; r < n_rows; r += RF_ROW_BLOCK) {
        const int64_t rows = n_rows - r < RF_ROW_BLOCK ? n_rows - r : RF_ROW_BLOCK;
        for (int64_t a = 0; a < n_acts; a += RF_MANY)
            rf_many(weights + r * row_bytes, row_bytes, rows, n_cols, acts + a * act_bytes, act_bytes,
                    n_acts - a < RF_MANY ? n_acts - a : RF_MANY, out + a * out_stride + r, out_stride, load,
                    value_bytes);
    }
    return 0;
}
