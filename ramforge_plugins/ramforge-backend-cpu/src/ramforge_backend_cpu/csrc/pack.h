/* pack.h: activations as int8, and the matrix product for weights without kernels. Text that is compiled once per
 * instruction set, see isa.h. Layouts and rounding: ramforge_kernel.h. */

typedef int8_t b16 __attribute__((vector_size(16)));

/* Pack n values, n a multiple of 16 and at most 256: q = x / d to nearest even, d = max|x| / 127. Returns d.
 * sums[j] = q[16j] + ... + q[16j+15]. What is not finite gives a d that is not, so that it cannot get lost. */
RF_INLINE float pack_block(const float *x, int64_t n, int8_t *q, int32_t *sums)
{
    /* as integers: not-a-number is then above infinity, and infinity above all numbers */
    union { i16 all; int32_t lane[16]; } top = {(i16)v_set(0)};
    for (int64_t k = 0; k < n; k += 16) {
        i16 size = (i16)v_abs(v_load(x + k));
        i16 larger = size > top.all;
        top.all = (larger & size) | (~larger & top.all);
    }
    int32_t highest = 0;
    for (int i = 0; i < 16; i++)
        highest = top.lane[i] > highest ? top.lane[i] : highest;
    float d;
    memcpy(&d, &highest, 4);
    d = d / 127.0f;
    v16 divisor = v_set(d == 0.0f ? 1.0f : d);
    for (int64_t k = 0; k < n; k += 16) {
        v16 y = v_load(x + k) / divisor;
        y = v_select(y > 127.0f, v_set(127.0f), v_select(y < -127.0f, v_set(-127.0f), y)); /* where d is denormal */
        union { i16 all; int32_t lane[16]; } whole;
        v_round(y, &whole.all);
        b16 bytes = __builtin_convertvector(whole.all, b16);
        memcpy(q + k, &bytes, 16);
        int32_t sum = 0;
        for (int i = 0; i < 16; i++)
            sum += (int8_t)whole.lane[i];
        sums[k / 16] = sum;
    }
    return d;
}

RF_FN void RF_NAME(pack_q8_32)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    for (int64_t i = first; i < last; i++) {
        const float *x = rf_row(run, u->a, i);
        ramforge_q8_32 *block = (ramforge_q8_32 *)rf_row(run, u->out, i);
        for (int64_t k = 0; k < run->values[u->a].width; k += 32, block++) {
            int32_t sums[2];
            block->d = pack_block(x + k, 32, block->q, sums);
            block->sum = sums[0] + sums[1];
            block->s = block->d * (float)block->sum;
        }
    }
}

RF_FN void RF_NAME(pack_q8_256)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    for (int64_t i = first; i < last; i++) {
        const float *x = rf_row(run, u->a, i);
        ramforge_q8_256 *block = (ramforge_q8_256 *)rf_row(run, u->out, i);
        for (int64_t k = 0; k < run->values[u->a].width; k += 256, block++) {
            int32_t sums[16];
            block->d = pack_block(x + k, 256, block->q, sums);
            for (int j = 0; j < 16; j++)
                block->sum[j] = (int16_t)sums[j];
        }
    }
}

/* ramforge_matmul_fn for rows of float32. Four activations share each load of a row. */
RF_FN int RF_NAME(matmul_f32)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                              const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out, int64_t out_stride)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const float *row = (const float *)(weights + r * row_bytes);
        for (int64_t a = 0; a < n_acts; a += 4) {
            const float *x[4];
            v16 sum[4];
            for (int j = 0; j < 4; j++) {
                x[j] = (const float *)(acts + (a + j < n_acts ? a + j : a) * act_bytes);
                sum[j] = v_set(0);
            }
            int64_t k = 0;
            for (; k + 16 <= n_cols; k += 16)
                for (int j = 0; j < 4; j++)
                    sum[j] += v_load(row + k) * v_load(x[j] + k);
            if (k < n_cols)
                for (int j = 0; j < 4; j++)
                    sum[j] += v_load_part(row + k, n_cols - k) * v_load_part(x[j] + k, n_cols - k);
            for (int j = 0; j < 4 && a + j < n_acts; j++)
                out[(a + j) * out_stride + r] = v_sum(sum[j]);
        }
    }
    return 0;
}
