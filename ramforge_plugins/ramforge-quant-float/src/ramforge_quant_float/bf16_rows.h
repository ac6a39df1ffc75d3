/* bf16_rows.h: multiply rows of BF16 weights with activations that are rounded to BF16, to nearest even.
 *
 * Included by bf16.c after float_rows.h. Processors multiply BF16 in pairs, twice as fast as float32. For one row and one
 * activation, in this order on every instruction set, and with the reduction of float_rows.h at the end:
 *
 *     s[k / 2 % 16] = fma(w[k], x[k], fma(w[k + 1], x[k + 1], s[k / 2 % 16]))                     k = 0, 2, 4, ...
 *
 * Numbers below 2^-126 count as zero, what is read as well as what results. That is what VDPBF16PS does (Intel 64 and
 * IA-32 Architectures Software Developer's Manual; AMD's Zen 4 gives the same bits); elsewhere two fused multiply-adds do.
 */
#ifndef RAMFORGE_BF16_ROWS_H
#define RAMFORGE_BF16_ROWS_H

/* Rows and activations that meet, whose sums are 96 KiB, and values of the activations that are converted at a time,
 * 192 KiB at most. */
enum { RF_PAIR_ROWS = 64, RF_PAIR_ACTS = 24, RF_PAIR_VALUES = 24 * 4096 };

static inline uint16_t rf_bf16(uint32_t x)
{
    const uint32_t size = x & 0x7fffffffu;
    const uint32_t rounded = size > 0x7f800000u ? x | 0x00400000u : x + 0x7fffu + (x >> 16 & 1);
    return (uint16_t)((size < 0x00800000u ? x & 0x80000000u : rounded) >> 16);
}

/* Numbers below 2^-126 are zero until rf_keep_small. Returns how it was. */
static inline uint64_t rf_flush_small(void)
{
    uint64_t was = 0;
#if defined(__x86_64__)
    was = _mm_getcsr();
    _mm_setcsr((unsigned)was | 0x8040u); /* flush to zero, denormals are zeros */
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(was));
    __asm__ volatile("msr fpcr, %0" ::"r"(was | 1u << 24));
#endif
    return was;
}

static inline void rf_keep_small(uint64_t was)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned)was);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(was));
#endif
    (void)was;
}
#endif

#undef RF_PAIR_TARGET
#if RF_LANES == 16
#define RF_PAIR_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,f16c")))
#else
#define RF_PAIR_TARGET RF_FMA_TARGET
#endif
#define RF_PAIR_INLINE inline __attribute__((always_inline)) RF_PAIR_TARGET

#define rf_pair RF_(rf_pair)
#define rf_pair_convert RF_(rf_pair_convert)
#define rf_pair_sums RF_(rf_pair_sums)
#define rf_pair_group RF_(rf_pair_group)
#define rf_pair_rows RF_(rf_pair_rows)
#define rf_matmul_bf16 RF_(rf_matmul_bf16)

/* RF_LANES pairs; direct (a constant): the processor has an instruction for them. */
static RF_PAIR_INLINE rf_f32 rf_pair(rf_f32 s, rf_u32 w, rf_u32 x, int direct)
{
#if RF_LANES == 16
    if (direct)
        return (rf_f32)_mm512_dpbf16_ps((__m512)s, (__m512bh)w, (__m512bh)x);
#endif
    (void)direct;
    s = rf_fma((rf_f32)(w & 0xffff0000u), (rf_f32)(x & 0xffff0000u), s);
    return rf_fma((rf_f32)(w << 16), (rf_f32)(x << 16), s);
}

/* n floats at x as BF16, filled up with zeros to a multiple of 32. */
static RF_PAIR_INLINE void rf_pair_convert(const uint8_t *x, int64_t n, uint16_t *out, int direct)
{
    int64_t k = 0;
#if RF_LANES == 16
    for (; direct && k + 32 <= n; k += 32) {
        const __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 4 * k + 64), _mm512_loadu_ps(x + 4 * k));
        memcpy(out + k, &pairs, sizeof pairs);
    }
#endif
    (void)direct;
    for (; k < n; k++)
        out[k] = rf_bf16(rf_load_u32(x + 4 * k));
    for (; k % 32; k++)
        out[k] = 0;
}

/* Adds `width` columns (a multiple of 32) of n rows and g activations to their partial sums, those of row r and
 * activation a at sums[(a * RF_PAIR_ROWS + r) * RF_PARTS], which begin at zero if `fresh`; n, g and direct are constants.
 * next: 4 rows, a piece for every 128 columns. */
static RF_PAIR_INLINE void rf_pair_sums(rf_f32 *sums, const uint8_t *w, int64_t row_bytes, int64_t width,
                                        const uint16_t *x, int64_t x_apart, rf_ahead next, int fresh, int n, int g,
                                        int direct)
{
    RF_UNROLL
    for (int part = 0; part < RF_PARTS; part++) {
        rf_f32 s[4 * RF_ACTS];
        rf_u32 v[RF_ACTS], weight;
        RF_UNROLL
        for (int r = 0; r < n; r++) {
            RF_UNROLL
            for (int a = 0; a < g; a++)
                s[r * g + a] = fresh ? (rf_f32){0} : sums[(a * RF_PAIR_ROWS + r) * RF_PARTS + part];
        }
        for (int64_t k = 2 * part * RF_LANES; k < width; k += 32) {
            if (n * g == 1)
                rf_prefetch_ahead(w + 2 * k);
            if (next.p && part == 0)
                rf_prefetch(next.p + k / 32 % 4 * next.row_bytes + k / 128 * next.piece, next.piece);
            RF_UNROLL
            for (int a = 0; a < g; a++)
                memcpy(&v[a], x + a * x_apart + k, sizeof v[a]);
            RF_UNROLL
            for (int r = 0; r < n; r++) {
                memcpy(&weight, w + r * row_bytes + 2 * k, sizeof weight);
                RF_UNROLL
                for (int a = 0; a < g; a++)
                    s[r * g + a] = rf_pair(s[r * g + a], weight, v[a], direct);
            }
        }
        RF_UNROLL
        for (int r = 0; r < n; r++) {
            RF_UNROLL
            for (int a = 0; a < g; a++)
                sums[(a * RF_PAIR_ROWS + r) * RF_PARTS + part] = s[r * g + a];
        }
    }
}

/* rf_pair_sums for a part of the columns of up to RF_PAIR_ROWS rows, `block` (1 or 4) at a time. The last columns of the
 * weights are filled up with zeros. */
static RF_PAIR_INLINE void rf_pair_group(rf_f32 *sums, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t width,
                                         const uint16_t *x, int64_t x_apart, rf_ahead next, int fresh, int block, int g,
                                         int direct)
{
    const rf_ahead nothing = {0};
    const int64_t whole = width / 32 * 32, rest = width - whole;
    uint8_t last[64] = {0};
    int64_t r = 0;
    for (; block == 4 && r + 4 <= rows; r += 4, next.p += next.p ? 4 * row_bytes : 0)
        rf_pair_sums(sums + r * RF_PARTS, w + r * row_bytes, row_bytes, whole, x, x_apart, next, fresh, 4, g,
                     direct);
    for (; r < rows; r++)
        rf_pair_sums(sums + r * RF_PARTS, w + r * row_bytes, 0, whole, x, x_apart, nothing, fresh, 1, g, direct);
    for (r = 0; rest && r < rows; r++) {
        memcpy(last, w + r * row_bytes + 2 * whole, (size_t)rest * 2);
        rf_pair_sums(sums + r * RF_PARTS, last, 0, 32, x + whole, x_apart, nothing, 0, 1, g, direct);
    }
}

/* Up to RF_PAIR_ROWS rows with up to RF_PAIR_ACTS activations. later: rows to ask for meanwhile, or NULL. */
static RF_PAIR_INLINE void rf_pair_rows(const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n_cols,
                                        const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                        int64_t out_stride, const uint8_t *later, int direct)
{
    rf_f32 sums[RF_PAIR_ACTS * RF_PAIR_ROWS * RF_PARTS];
    uint16_t x[RF_PAIR_VALUES] __attribute__((aligned(64)));
    const int64_t slice = RF_PAIR_VALUES / n_acts / 32 * 32;
    const int block = n_acts == 1 ? 1 : 4; /* as rf_few of float_rows.h */
    for (int64_t k = 0; k == 0 || k < n_cols; k += slice) { /* once where there are no columns */
        const int64_t width = n_cols - k < slice ? n_cols - k : slice;
        const uint8_t *p = w + 2 * k, *after = k + slice < n_cols ? p + 2 * slice : later;
        for (int64_t a = 0; a < n_acts; a++)
            rf_pair_convert(acts + a * act_bytes + 4 * k, width, x + a * slice, direct);
        for (int64_t a = 0, g; a < n_acts; a += g) {
            rf_f32 *s = sums + a * RF_PAIR_ROWS * RF_PARTS;
            g = rf_group_size(n_acts - a);
            rf_ahead next = {after ? after + 2 * width * a / n_acts : NULL, row_bytes, 256 * g / n_acts};
            if (g == n_acts) /* the rows after these, not those of the next time */
                next.p = p + 4 * row_bytes;
            const uint16_t *v = x + a * slice;
            if (block == 1)
                rf_pair_group(s, p, row_bytes, rows, width, v, slice, next, k == 0, 1, 1, direct);
            else if (g == RF_ACTS)
                rf_pair_group(s, p, row_bytes, rows, width, v, slice, next, k == 0, 4, RF_ACTS, direct);
            else if (RF_ACTS > 4 && g == 4)
                rf_pair_group(s, p, row_bytes, rows, width, v, slice, next, k == 0, 4, RF_ACTS > 4 ? 4 : 1, direct);
            else if (g == 2)
                rf_pair_group(s, p, row_bytes, rows, width, v, slice, next, k == 0, 4, 2, direct);
            else
                rf_pair_group(s, p, row_bytes, rows, width, v, slice, next, k == 0, 4, 1, direct);
        }
    }
    for (int64_t a = 0; a < n_acts; a++)
        for (int64_t r = 0; r < rows; r += RF_ROW_BLOCK)
            rf_reduce(sums + (a * RF_PAIR_ROWS + r) * RF_PARTS, rows - r < RF_ROW_BLOCK ? rows - r : RF_ROW_BLOCK,
                      out + a * out_stride + r);
}

static RF_PAIR_INLINE int rf_matmul_bf16(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                         const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                         int64_t out_stride, int direct)
{
    if (n_cols < 0 || n_rows < 0 || n_acts < 0 || row_bytes < n_cols * 2 ||
        (n_acts > 1 && (act_bytes < 4 * n_cols || out_stride < n_rows)))
        return -1;
    const uint64_t was = rf_flush_small();
    for (int64_t r = 0; r < n_rows; r += RF_PAIR_ROWS) {
        const int64_t rows = n_rows - r < RF_PAIR_ROWS ? n_rows - r : RF_PAIR_ROWS;
        const uint8_t *w = weights + r * row_bytes;
        for (int64_t a = 0; a < n_acts; a += RF_PAIR_ACTS) {
            const int64_t n = n_acts - a < RF_PAIR_ACTS ? n_acts - a : RF_PAIR_ACTS;
            rf_pair_rows(w, row_bytes, rows, n_cols, acts + a * act_bytes, act_bytes, n, out + a * out_stride + r,
                         out_stride, a + n == n_acts ? w + rows * row_bytes : NULL, direct);
        }
    }
    rf_keep_small(was);
    return 0;
}
