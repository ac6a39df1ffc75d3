/* float_rows.h: multiply rows of F32, F16 or BF16 weights with float32 activations.
 *
 * Included by a format's file inside its RF_ISA part, after ramforge_tile.h. The format says with one function how
 * RF_LANES weights are loaded as float32. For one row and one activation, in this order on every instruction set:
 *
 *     s[k % 16] = s[k % 16] + w[k] * x[k]                                          k = 0, 1, 2, ...
 *     out = (((s0 + s8) + (s4 + s12)) + ((s2 + s10) + (s6 + s14)))
 *         + (((s1 + s9) + (s5 + s13)) + ((s3 + s11) + (s7 + s15)))
 */

#ifndef RAMFORGE_FLOAT_ROWS_H
#define RAMFORGE_FLOAT_ROWS_H

/* Columns that are multiplied at a time, so that the activations of a group stay in a first-level cache, and rows
 * that a group meets before the next one, so that the weights stay in a second-level cache. */
enum { RF_SLICE = 512, RF_ROW_BLOCK = 16 };

/* Defines the matmul function of a format: RF_MATMUL_F32(rf_f16_matmul, load, bytes of a value). */
#define RF_MATMUL_F32(name, load, value_bytes)                                                                 \
    RF_KERNEL int RF_(name)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,         \
                            const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,                \
                            int64_t out_stride)                                                                \
    {                                                                                                          \
        return rf_matmul_f32(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, out_stride,     \
                             load, value_bytes);                                                               \
    }

static inline float rf_reduce(const float s[16])
{
    return (((s[0] + s[8]) + (s[4] + s[12])) + ((s[2] + s[10]) + (s[6] + s[14]))) +
           (((s[1] + s[9]) + (s[5] + s[13])) + ((s[3] + s[11]) + (s[7] + s[15])));
}
#endif

#define RF_PARTS (16 / RF_LANES) /* vectors that hold the 16 partial sums */
#define RF_ACTS (RF_LANES == 16 ? 6 : 2)
#define rf_load_fn RF_(rf_load_fn)
#define rf_add RF_(rf_add)
#define rf_rows RF_(rf_rows)
#define rf_matmul_f32 RF_(rf_matmul_f32)

/* RF_LANES weights at p as float32. */
typedef rf_f32 (*rf_load_fn)(const uint8_t *p);

/* Adds `width` columns (a multiple of 16) of n rows and g activations to their partial sums; n and g are constants.
 * Most of the running time is spent here. */
static RF_INLINE void rf_add(rf_f32 *sums, const uint8_t *w, int64_t row_bytes, int64_t width, const float *x,
                             int64_t x_stride, rf_load_fn load, int64_t value_bytes, int n, int g)
{
    RF_UNROLL
    for (int part = 0; part < RF_PARTS; part++) {
        rf_f32 s[4 * RF_ACTS], v[RF_ACTS];
        RF_UNROLL
        for (int i = 0; i < n * g; i++)
            s[i] = sums[i * RF_PARTS + part];
        for (int64_t k = part * RF_LANES; k < width; k += 16) {
            RF_UNROLL
            for (int a = 0; a < g; a++)
                memcpy(&v[a], x + a * x_stride + k, sizeof v[a]);
            RF_UNROLL
            for (int r = 0; r < n; r++) {
                const rf_f32 weight = load(w + r * row_bytes + value_bytes * k);
                RF_UNROLL
                for (int a = 0; a < g; a++)
                    s[r * g + a] = s[r * g + a] + weight * v[a];
            }
        }
        RF_UNROLL
        for (int i = 0; i < n * g; i++)
            sums[i * RF_PARTS + part] = s[i];
    }
}

/* Up to RF_ROW_BLOCK rows with g activations (a constant), `first` of all or not. */
static RF_INLINE void rf_rows(const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n_cols, const uint8_t *act,
                              int64_t act_bytes, int first, float *out, int64_t out_stride, rf_load_fn load,
                              int64_t value_bytes, int g)
{
    rf_f32 sums[RF_ROW_BLOCK * RF_ACTS * RF_PARTS];
    float copies[RF_ACTS * RF_SLICE], lanes[16];
    for (int64_t i = 0; i < rows * g * RF_PARTS; i++)
        sums[i] = (rf_f32){0};
    for (int64_t k = 0; k < n_cols; k += RF_SLICE) {
        const int64_t width = n_cols - k < RF_SLICE ? n_cols - k : RF_SLICE, whole = width / 16 * 16;
        const uint8_t *p = w + value_bytes * k;
        const float *x = copies; /* side by side: rows of activations would compete for the same cache lines */
        int64_t r = 0;
        if (first) /* the part of the next rows that corresponds to this slice */
            rf_prefetch(w + rows * row_bytes + rows * value_bytes * k, rows * value_bytes * width);
        if (g == 1 && whole == width)
            x = (const float *)(act + 4 * k);
        for (int a = 0; x == copies && a < g; a++) {
            memcpy(copies + a * RF_SLICE, act + a * act_bytes + 4 * k, (size_t)width * 4);
            for (int64_t i = width; i % 16; i++)
                copies[a * RF_SLICE + i] = 0;
        }
        for (; r + 4 <= rows; r += 4)
            rf_add(sums + r * g * RF_PARTS, p + r * row_bytes, row_bytes, whole, x, RF_SLICE, load, value_bytes, 4, g);
        for (; r < rows; r++)
            rf_add(sums + r * g * RF_PARTS, p + r * row_bytes, row_bytes, whole, x, RF_SLICE, load, value_bytes, 1, g);
        for (r = 0; whole < width && r < rows; r++) { /* the last columns and zeros, which change no sum */
            uint8_t last[64] = {0};
            memcpy(last, p + r * row_bytes + value_bytes * whole, (size_t)((width - whole) * value_bytes));
            rf_add(sums + r * g * RF_PARTS, last, 0, 16, x + whole, RF_SLICE, load, value_bytes, 1, g);
        }
    }
    for (int64_t i = 0; i < rows * g; i++) {
        memcpy(lanes, sums + i * RF_PARTS, sizeof lanes);
        out[i % g * out_stride + i / g] = rf_reduce(lanes);
    }
}

static RF_INLINE int rf_matmul_f32(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                   const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                   int64_t out_stride, rf_load_fn load, int64_t value_bytes)
{
    const int64_t block = n_acts == 1 ? 4 : RF_ROW_BLOCK; /* a single activation: the longest runs of memory */
    if (n_cols < 0 || n_rows < 0 || n_acts < 0 || row_bytes < n_cols * value_bytes ||
        (n_acts > 1 && (act_bytes < 4 * n_cols || out_stride < n_rows)))
        return -1;
    for (int64_t r = 0; r < n_rows; r += block) {
        const int64_t rows = n_rows - r < block ? n_rows - r : block;
        const uint8_t *w = weights + r * row_bytes, *act = acts;
        float *o = out + r;
        int64_t a = 0, g;
        for (; a < n_acts; a += g, act += g * act_bytes, o += g * out_stride) {
            g = n_acts - a >= RF_ACTS ? RF_ACTS : n_acts - a >= 2 ? 2 : 1;
            if (g == RF_ACTS)
                rf_rows(w, row_bytes, rows, n_cols, act, act_bytes, a == 0, o, out_stride, load, value_bytes,
                        RF_ACTS);
            else if (g == 2)
                rf_rows(w, row_bytes, rows, n_cols, act, act_bytes, a == 0, o, out_stride, load, value_bytes, 2);
            else
                rf_rows(w, row_bytes, rows, n_cols, act, act_bytes, a == 0, o, out_stride, load, value_bytes, 1);
        }
    }
    return 0;
}
