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

/* Activations of one pass over the weights: as many as leave room for the rest in a second-level cache. */
enum { RF_CACHED_ACT_BYTES = 384 * 1024 };

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
#define rf_load_fn RF_(rf_load_fn)
#define rf_rows RF_(rf_rows)
#define rf_matmul_f32 RF_(rf_matmul_f32)

/* RF_LANES weights at p as float32. */
typedef rf_f32 (*rf_load_fn)(const uint8_t *p);

/* A small block of n rows and g activations (both constants). Most of the running time is spent here. */
static RF_INLINE void rf_rows(const uint8_t *w, int64_t row_bytes, int64_t n_cols, const uint8_t *act,
                              int64_t act_bytes, float *out, int64_t out_stride, rf_load_fn load, int64_t value_bytes,
                              int n, int g)
{
    rf_f32 s[4][4][RF_PARTS];
    int64_t k = 0;
    RF_UNROLL
    for (int i = 0; i < n * g * RF_PARTS; i++)
        s[i / RF_PARTS / g][i / RF_PARTS % g][i % RF_PARTS] = (rf_f32){0};
    for (; k < n_cols; k += 16) {
        uint8_t tail_w[4][64] = {{0}}, tail_x[4][64] = {{0}}; /* zeros change no sum */
        const int64_t left = n_cols - k < 16 ? n_cols - k : 16;
        const uint8_t *pw = w + k * value_bytes, *px = act + 4 * k;
        int64_t w_stride = row_bytes, x_stride = act_bytes;
        if (left < 16) {
            for (int r = 0; r < n; r++)
                memcpy(tail_w[r], pw + r * row_bytes, (size_t)(left * value_bytes));
            for (int a = 0; a < g; a++)
                memcpy(tail_x[a], px + a * act_bytes, (size_t)(left * 4));
            pw = tail_w[0], px = tail_x[0], w_stride = x_stride = 64;
        }
        RF_UNROLL
        for (int i = 0; i < RF_PARTS; i++) {
            rf_f32 x[4];
            RF_UNROLL
            for (int a = 0; a < g; a++)
                memcpy(&x[a], px + a * x_stride + 4 * RF_LANES * i, sizeof x[a]);
            RF_UNROLL
            for (int r = 0; r < n; r++) {
                const rf_f32 v = load(pw + r * w_stride + value_bytes * RF_LANES * i);
                RF_UNROLL
                for (int a = 0; a < g; a++)
                    s[r][a][i] = s[r][a][i] + v * x[a];
            }
        }
    }
    RF_UNROLL
    for (int i = 0; i < n * g; i++) {
        float lanes[16];
        memcpy(lanes, s[i / g][i % g], sizeof lanes);
        out[i % g * out_stride + i / g] = rf_reduce(lanes);
    }
}

static RF_INLINE int rf_matmul_f32(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                   const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                   int64_t out_stride, rf_load_fn load, int64_t value_bytes)
{
    int64_t chunk = RF_CACHED_ACT_BYTES / (4 * (n_cols > 0 ? n_cols : 1)) / 4 * 4;
    if (n_cols < 0 || n_rows < 0 || n_acts < 0 || row_bytes < n_cols * value_bytes ||
        (n_acts > 1 && (act_bytes < 4 * n_cols || out_stride < n_rows)))
        return -1;
    chunk = chunk < 4 ? 4 : chunk;
    for (int64_t first = 0; first < n_acts; first += chunk) {
        const int64_t n = n_acts - first < chunk ? n_acts - first : chunk;
        for (int64_t r = 0; r < n_rows;) {
            const int rows = n_rows - r < 4 ? 1 : 4;
            const uint8_t *w = weights + r * row_bytes, *act = acts + first * act_bytes;
            float *o = out + first * out_stride + r;
            for (int64_t a = 0; a < n;) {
                const int g = n - a < 4 ? 1 : 4;
                if (rows == 4 && g == 4)
                    rf_rows(w, row_bytes, n_cols, act, act_bytes, o, out_stride, load, value_bytes, 4, 4);
                else if (rows == 4)
                    rf_rows(w, row_bytes, n_cols, act, act_bytes, o, out_stride, load, value_bytes, 4, 1);
                else if (g == 4)
                    rf_rows(w, row_bytes, n_cols, act, act_bytes, o, out_stride, load, value_bytes, 1, 4);
                else
                    rf_rows(w, row_bytes, n_cols, act, act_bytes, o, out_stride, load, value_bytes, 1, 1);
                a += g, act += g * act_bytes, o += g * out_stride;
            }
            r += rows;
        }
    }
    return 0;
}
