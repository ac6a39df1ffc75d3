/* vec.h: 16 float lanes. Text that is compiled once per instruction set, see isa.h.
 *
 * Helpers carry the target too: gcc lowers vector code before it inlines. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed between inlined functions only */
#endif

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef RF_HAVE_F16C
#include <immintrin.h>
#elif defined(RF_HAVE_NEON)
#include <arm_neon.h>
#endif

#define RF_FN static __attribute__((unused)) RF_TARGET
#define RF_INLINE static inline __attribute__((always_inline, unused)) RF_TARGET

typedef float v16 __attribute__((vector_size(64)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
typedef double v8d __attribute__((vector_size(64)));
typedef int64_t v8l __attribute__((vector_size(64)));
typedef int32_t i16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias)); /* at any float */

RF_INLINE v16 v_set(float x) { return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
RF_INLINE v16 v_load(const float *p) { return *(const v16u *)p; }
RF_INLINE void v_store(float *p, v16 x) { *(v16u *)p = x; }

/* The first n values, n <= 16; the other lanes are 0. */
RF_INLINE v16 v_load_part(const float *p, int64_t n)
{
    if (n >= 16)
        return v_load(p);
    v16 x = v_set(0);
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
}

RF_INLINE void v_store_part(float *p, v16 x, int64_t n)
{
    if (n >= 16)
        v_store(p, x);
    else
        memcpy(p, &x, (size_t)n * sizeof *p);
}

RF_INLINE v16 v_select(i16 mask, v16 a, v16 b) { return (v16)((mask & (i16)a) | (~mask & (i16)b)); }
RF_INLINE v16 v_abs(v16 x) { return (v16)((i16)x & 0x7fffffff); }
RF_INLINE v16 v_max(v16 a, v16 b) { return v_select(a > b, a, b); }

/* a * b + c, rounded once. */
RF_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
#if defined(RF_HAVE_AVX512)
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(RF_HAVE_F16C)
    union { v16 all; __m256 half[2]; } x = {a}, y = {b}, z = {c};
    z.half[0] = _mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]);
    z.half[1] = _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1]);
    return z.all;
#elif defined(RF_HAVE_NEON)
    union { v16 all; float32x4_t quarter[4]; } x = {a}, y = {b}, z = {c};
    for (int i = 0; i < 4; i++)
        z.quarter[i] = vfmaq_f32(z.quarter[i], x.quarter[i], y.quarter[i]);
    return z.all;
#elif defined(__FP_FAST_FMAF)
    for (int i = 0; i < 16; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    /* In double the product is exact, and the sum is rounded to odd: where it is not exact and its last bit is 0, it
     * goes to its other neighbour. Rounding that to float gives what a single rounding gives (Boldo and Melquiond,
     * "Emulation of FMA and correctly rounded sums", 2008). */
    union { v16 all; v8 half[2]; } x = {a}, y = {b}, z = {c};
    for (int i = 0; i < 2; i++) {
        v8d addend = __builtin_convertvector(z.half[i], v8d);
        v8d product = __builtin_convertvector(x.half[i], v8d) * __builtin_convertvector(y.half[i], v8d);
        v8d sum = product + addend, back = sum - product;
        v8d error = (product - (sum - back)) + (addend - back);
        v8l inexact = (error > 0) | (error < 0); /* neither where it is not a number */
        v8l toward_zero = (error > 0) ^ (sum > 0), even = ((v8l)sum & 1) - 1;
        z.half[i] = __builtin_convertvector((v8d)((v8l)sum + (((toward_zero << 1) + 1) & inexact & even)), v8);
    }
    return z.all;
#endif
}

/* (((s0+s8)+(s4+s12)) + ((s2+s10)+(s6+s14))) + (the same of the odd lanes): the order of ramforge_kernel.h. */
RF_INLINE float v_sum(v16 s)
{
    union { v16 all; v8 half[2]; } x = {s};
    union { v8 all; v4 half[2]; } y = {x.half[0] + x.half[1]};
    v4 z = y.half[0] + y.half[1];
    return (z[0] + z[2]) + (z[1] + z[3]);
}

/* out[i] = v_sum(s[i]) for n vectors. 16 at once share the additions where the target has shuffles for that. */
RF_INLINE void v_sums(const v16 *s, int n, float *out)
{
#ifdef RF_HAVE_AVX512
    if (n == 16) {
        /* the order in which vectors go in makes sum i come out in lane i */
        __m512 a[8], b[4], c[2];
        for (int i = 0; i < 8; i++) { /* lanes l + 8 to lanes l */
            __m512 x = (__m512)s[i / 2 + i % 2 * 8], y = (__m512)s[i / 2 + i % 2 * 8 + 4];
            a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
        }
        for (int i = 0; i < 4; i++) /* l + 4 to l */
            b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
        for (int i = 0; i < 2; i++) /* l + 2 to l */
            c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                                 _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
        _mm512_storeu_ps(out, _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd)));
        return;
    }
#endif
    int i = 0;
#ifdef RF_HAVE_F16C
    for (; i + 4 <= n; i += 4) {
        __m128 part[4];
        for (int j = 0; j < 4; j++) {
            union { v16 all; __m256 half[2]; } x = {s[i + j]};
            __m256 y = _mm256_add_ps(x.half[0], x.half[1]);
            part[j] = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
        }
        _MM_TRANSPOSE4_PS(part[0], part[1], part[2], part[3]);
        _mm_storeu_ps(out + i, _mm_add_ps(_mm_add_ps(part[0], part[2]), _mm_add_ps(part[1], part[3])));
    }
#endif
    for (; i < n; i++)
        out[i] = v_sum(s[i]);
}

/* The largest lane; none may be not a number. */
RF_INLINE float v_highest(v16 s)
{
#ifdef RF_HAVE_F16C
    union { v16 all; __m256 half[2]; } y = {s};
    __m256 h = _mm256_max_ps(y.half[0], y.half[1]);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
#endif
    union { v16 all; float lane[16]; } x = {s};
    float m = x.lane[0];
    for (int i = 1; i < 16; i++)
        m = x.lane[i] > m ? x.lane[i] : m;
    return m;
}

/* The nearest integer, ties to even, as float and as int; |x| < 2^22. Not a number in, any integer out. */
RF_INLINE v16 v_round(v16 x, i16 *as_int)
{
    const v16 magic = v_set(12582912.0f); /* 1.5 * 2^23: its last bit is worth 1 */
    v16 shifted = x + magic;
    *as_int = (i16)shifted - (i16)magic;
    return shifted - magic;
}

/* f16 to float32, exact. */
RF_INLINE v16 v_from_f16(const uint16_t *p)
{
#if defined(RF_HAVE_AVX512)
    return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(RF_HAVE_F16C)
    union { v16 all; __m256 half[2]; } x;
    x.half[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    x.half[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)));
    return x.all;
#elif defined(RF_HAVE_NEON)
    union { v16 all; float32x4_t quarter[4]; } x;
    for (int i = 0; i < 4; i++)
        x.quarter[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return x.all;
#else
    typedef uint32_t u16v __attribute__((vector_size(64)));
    u16v h;
    for (int i = 0; i < 16; i++)
        h[i] = p[i];
    u16v sign = (h & 0x8000) << 16, rest = (h & 0x7fff) << 13;
    /* exponents are 112 apart; numbers below 2^-14 and infinity have exponents of their own */
    v16 normal = (v16)(rest + (112u << 23));
    v16 tiny = (v16)(rest + (113u << 23)) - v_set(6.103515625e-05f);
    v16 special = (v16)(rest | 0x7f800000u);
    v16 x = v_select((i16)((h & 0x7c00) == 0), tiny, normal);
    x = v_select((i16)((h & 0x7c00) == 0x7c00), special, x);
    return (v16)((u16v)x | sign);
#endif
}

/* float32 to f16, to nearest even; above 65519 to infinity. */
RF_INLINE uint16_t f16_from(float x)
{
    uint32_t bits, half;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        half = 0x7e00 | (size >> 13 & 0x1ff); /* not a number stays one */
    else if (size >= 0x477ff000)
        half = 0x7c00;
    else if (size < 0x38800000) { /* below 2^-14: let the adder round at 2^-24 */
        float r;
        memcpy(&r, &size, 4);
        r += 0.5f;
        memcpy(&half, &r, 4);
        half -= 0x3f000000;
    } else
        half = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
    return (uint16_t)(sign | half);
}

RF_INLINE void v_to_f16(uint16_t *p, v16 x)
{
#if defined(RF_HAVE_AVX512)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)x, 0));
#elif defined(RF_HAVE_F16C)
    union { v16 all; __m256 half[2]; } y = {x};
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(y.half[0], 0));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(y.half[1], 0));
#elif defined(RF_HAVE_NEON)
    union { v16 all; float32x4_t quarter[4]; } y = {x};
    for (int i = 0; i < 4; i++)
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(y.quarter[i])));
#else
    for (int i = 0; i < 16; i++)
        p[i] = f16_from(x[i]);
#endif
}
