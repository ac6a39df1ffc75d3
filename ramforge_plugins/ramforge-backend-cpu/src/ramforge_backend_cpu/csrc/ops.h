/* ops.h: the units that work row by row. Text that is compiled once per instruction set, see isa.h.
 *
 * A unit may be given the same memory for `out` and for an input: every function reads a piece before it writes it.
 * Sums go into 16 lanes, value k of a run into lane k % 16, and are reduced by v_sum. */

RF_FN void RF_NAME(gather)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    for (int64_t i = first; i < last; i++)
        memcpy(rf_row(run, u->out, i), rf_row(run, u->a, run->wanted[i]),
               (size_t)run->values[u->out].width * sizeof(float));
}

RF_FN void RF_NAME(slice)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    int64_t width = run->values[u->out].width / u->heads, whole = run->values[u->a].width / u->heads;
    for (int64_t i = first; i < last; i++)
        for (int64_t h = 0; h < u->heads; h++)
            memcpy(rf_row(run, u->out, i) + h * width, rf_row(run, u->a, i) + h * whole + u->start,
                   (size_t)width * sizeof(float));
}

RF_FN void RF_NAME(join)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    int64_t a = run->values[u->a].width / u->heads, b = run->values[u->b].width / u->heads;
    for (int64_t i = first; i < last; i++)
        for (int64_t h = 0; h < u->heads; h++) {
            float *out = rf_row(run, u->out, i) + h * (a + b);
            memcpy(out, rf_row(run, u->a, i) + h * a, (size_t)a * sizeof(float));
            memcpy(out + a, rf_row(run, u->b, i) + h * b, (size_t)b * sizeof(float));
        }
}

/* x / sqrt(mean(x^2) + eps) * weight, of runs of n values */
RF_INLINE void rms_run(const float *x, const float *weight, const float *bias, float eps, int64_t n, float *out)
{
    v16 sum = v_set(0);
    for (int64_t k = 0; k < n; k += 16) {
        v16 a = v_load_part(x + k, n - k);
        sum += a * a;
    }
    v16 factor = v_set(1.0f / sqrtf(v_sum(sum) / (float)n + eps));
    for (int64_t k = 0; k < n; k += 16) {
        v16 y = v_load_part(x + k, n - k) * factor * v_load_part(weight + k, n - k);
        if (bias)
            y += v_load_part(bias + k, n - k);
        v_store_part(out + k, y, n - k);
    }
}

/* (x - mean) / sqrt(var + eps) * weight + bias, of runs of n values */
RF_INLINE void layer_run(const float *x, const float *weight, const float *bias, float eps, int64_t n, float *out)
{
    v16 sum = v_set(0), squares = v_set(0);
    for (int64_t k = 0; k < n; k += 16)
        sum += v_load_part(x + k, n - k);
    float mean = v_sum(sum) / (float)n;
    for (int64_t k = 0; k < n; k++) {
        float d = x[k] - mean;
        squares[k % 16] += d * d;
    }
    v16 factor = v_set(1.0f / sqrtf(v_sum(squares) / (float)n + eps));
    for (int64_t k = 0; k < n; k += 16) {
        v16 y = (v_load_part(x + k, n - k) - mean) * factor * v_load_part(weight + k, n - k);
        if (bias)
            y += v_load_part(bias + k, n - k);
        v_store_part(out + k, y, n - k);
    }
}

RF_FN void RF_NAME(norm)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    int64_t n = u->vector_width;
    for (int64_t i = first; i < last; i++) {
        const float *x = rf_row(run, u->a, i);
        float *out = rf_row(run, u->out, i);
        for (int64_t k = 0; k < run->values[u->out].width; k += n)
            if (u->kind == RF_NORM_RMS)
                rms_run(x + k, u->vector, u->bias, u->number, n, out + k);
            else
                layer_run(x + k, u->vector, u->bias, u->number, n, out + k);
    }
}

/* One function per elementwise unit: EXPRESSION of a, b and the unit's number f. */
#define RF_ELEMENTWISE(name, EXPRESSION)                                                                             \
    RF_FN void RF_NAME(name)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)       \
    {                                                                                                                \
        (void)scratch;                                                                                               \
        int64_t n = run->values[u->out].width;                                                                       \
        v16 f = v_set(u->number);                                                                                    \
        (void)f;                                                                                                     \
        for (int64_t i = first; i < last; i++) {                                                                     \
            const float *pa = rf_row(run, u->a, i), *pb = u->b < 0 ? pa : rf_row(run, u->b, i);                      \
            float *out = rf_row(run, u->out, i);                                                                     \
            for (int64_t k = 0; k < n; k += 16) {                                                                    \
                v16 a = v_load_part(pa + k, n - k), b = v_load_part(pb + k, n - k);                                  \
                (void)b;                                                                                             \
                v_store_part(out + k, EXPRESSION, n - k);                                                            \
            }                                                                                                        \
        }                                                                                                            \
    }

RF_ELEMENTWISE(add, a + b)
RF_ELEMENTWISE(mul, a *b)
RF_ELEMENTWISE(scale, a *f)
RF_ELEMENTWISE(softcap, f *v_tanh(a / f))
RF_ELEMENTWISE(glu_silu, a *v_sigmoid(a) * b)
/* 0.5 x (1 + tanh(u)) = x sigmoid(2u), with u = sqrt(2/pi) (x + 0.044715 x^3) */
RF_ELEMENTWISE(glu_gelu, a *v_sigmoid(1.5957691216057308f * (a + 0.044715f * a * a * a)) * b)

/* a cos - b sin and a sin + b cos of all pairs of one head; pair i is (x[i * step], x[i * step + distance]) */
RF_INLINE void rotate(const float *x, float *out, const float *cosine, const float *sine, int64_t pairs, int64_t step,
                      int64_t distance)
{
    for (int64_t i = 0; i < pairs; i++) {
        float a = x[i * step], b = x[i * step + distance];
        out[i * step] = a * cosine[i] - b * sine[i];
        out[i * step + distance] = a * sine[i] + b * cosine[i];
    }
}

RF_FN void RF_NAME(rope)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    int64_t pairs = u->vector_width, rotated = 2 * pairs;
    float *cosine = scratch, *sine = scratch + RF_ROUND16(pairs);
    for (int64_t i = first; i < last; i++) {
        double position = run->positions[rf_token(run, u, i)];
        for (int64_t k = 0; k < pairs; k++)
            sincos_of(position * (double)u->vector[k], (double)u->number, &cosine[k], &sine[k]);
        const float *x = rf_row(run, u->a, i);
        float *out = rf_row(run, u->out, i);
        for (int64_t h = 0; h < run->values[u->out].width; h += u->head_width) {
            if (u->kind == RF_ROPE_ADJACENT)
                rotate(x + h, out + h, cosine, sine, pairs, 2, 1);
            else
                rotate(x + h, out + h, cosine, sine, pairs, 1, pairs);
            if (out != x)
                memcpy(out + h + rotated, x + h + rotated, (size_t)(u->head_width - rotated) * sizeof(float));
        }
    }
}
