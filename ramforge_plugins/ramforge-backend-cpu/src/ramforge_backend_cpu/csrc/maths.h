/* maths.h: exp, tanh, sigmoid, sin and cos of our own, so that every libm and instruction set gives the same bits.
 * Text that is compiled once per instruction set, see isa.h. Not a number goes through all of them.
 *
 * Polynomials: exp and tanh as in Cephes (expf.c, tanhf.c), sin and cos as in fdlibm (k_sin.c, k_cos.c). */

/* e^x, within 2 ulp; 0 below -87.3, and above 88.3 the value at 88.3. */
RF_INLINE v16 v_exp(v16 x)
{
    i16 n;
    v16 clipped = v_select(x > 88.3f, v_set(88.3f), v_select(x < -87.3f, v_set(-87.3f), x));
    v16 k = v_round(clipped * 1.44269504088896341f, &n);
    v16 r = clipped - k * 0.693359375f; /* exact: the constant has 9 bits */
    r = r - k * -2.12194440e-4f;
    v16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return v_select(x < -87.3f, v_set(0), p * (v16)((n + 127) << 23));
}

RF_INLINE v16 v_sigmoid(v16 x) { return 1.0f / (1.0f + v_exp(-x)); }

RF_INLINE v16 v_tanh(v16 x)
{
    v16 size = v_abs(x), z = x * x;
    v16 p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    v16 small = p * z * x + x;
    v16 large = 1.0f - 2.0f / (v_exp(size + size) + 1.0f);
    large = (v16)((i16)large | ((i16)x & (int32_t)0x80000000));
    return v_select(size < 0.625f, small, large);
}

/* cos and sin of an angle, rounded from double: reduced by multiples of pi/2, exact for angles up to 1.6 million. */
RF_INLINE void sincos_of(double angle, double magnitude, float *cosine, float *sine)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    double shifted = angle * 6.36619772367581382433e-01 + magic;
    double n = shifted - magic;
    int64_t quadrant;
    memcpy(&quadrant, &shifted, 8);
    double r = angle - n * 1.57079632673412561417e+00; /* the first 33 bits of pi/2: exact products */
    r = r - n * 6.07710050650619224932e-11;
    double z = r * r;
    double s = -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10;
    s = 2.75573137070700676789e-06 + z * s;
    s = -1.98412698298579493134e-04 + z * s;
    s = 8.33333333332248946124e-03 + z * s;
    s = r + z * r * (-1.66666666666666324348e-01 + z * s);
    double c = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11;
    c = -2.75573143513906633035e-07 + z * c;
    c = 2.48015872894767294178e-05 + z * c;
    c = -1.38888888888741095749e-03 + z * c;
    c = 1.0 - (0.5 * z - z * z * (4.16666666666666019037e-02 + z * c));
    double sin_r = quadrant & 1 ? c : s, cos_r = quadrant & 1 ? s : c;
    *sine = (float)((quadrant & 2 ? -sin_r : sin_r) * magnitude);
    *cosine = (float)(((quadrant + 1) & 2 ? -cos_r : cos_r) * magnitude);
}

RF_FN void RF_NAME(math)(int function, const float *x, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += 16) {
        v16 a = v_load_part(x + i, n - i);
        if (function < 2)
            v_store_part(out + i, function == 0 ? v_exp(a) : v_tanh(a), n - i);
        else
            for (int64_t j = i; j < n && j < i + 16; j++) {
                float c, s;
                sincos_of(x[j], 1.0, &c, &s);
                out[j] = function == 2 ? s : c;
            }
    }
}
