/* attention.h: keys and values into the KV cache, and attention over it in place. Text that is compiled once per
 * instruction set, see isa.h.
 *
 * A token's scores over all positions it sees are kept in scratch: one pass for scores and their maximum, one for
 * exp and sum, one over the values. Tiles start at multiples of RF_TILE_KEYS whatever the window, so that position p
 * is always in lane p % 16, and the order of every sum depends on the token alone. */

RF_INLINE const uint8_t *kv_chunk(const rf_run *run, int64_t t, int64_t position)
{
    return run->chunks[run->first_chunk[run->sequences[t]] + position / run->chunk_positions];
}

#define RF_KV_BLOCK 32
#define RF_KV_BLOCK_BYTES 34

RF_INLINE int64_t kv_row_bytes(const rf_run *run, int64_t width)
{
    return run->kv_type == RF_KV_Q8_0 ? width / RF_KV_BLOCK * RF_KV_BLOCK_BYTES
                                      : width * (run->kv_type == RF_KV_F16 ? 2 : 4);
}

RF_INLINE void store_f16(uint16_t *out, const float *x, int64_t width)
{
    int64_t k = 0;
    for (; k + 16 <= width; k += 16)
        v_to_f16(out + k, v_load(x + k));
    for (; k < width; k++)
        out[k] = f16_from(x[k]);
}

RF_INLINE void store_q8_0(uint8_t *out, const float *x, int64_t width)
{
    for (int64_t k = 0; k < width; k += RF_KV_BLOCK, out += RF_KV_BLOCK_BYTES) {
        int32_t sums[2];
        uint16_t d = f16_from(pack_block(x + k, RF_KV_BLOCK, (int8_t *)out + 2, sums));
        memcpy(out, &d, 2);
    }
}

/* Write one row of `width` values per head to its place in a chunk. */
RF_INLINE void store_rows(const rf_run *run, const float *x, int64_t heads, int64_t width, uint8_t *base, int64_t at)
{
    for (int64_t g = 0; g < heads; g++, x += width) {
        uint8_t *out = base + (g * run->chunk_positions + at) * kv_row_bytes(run, width);
        if (run->kv_type == RF_KV_F16)
            store_f16((uint16_t *)out, x, width);
        else if (run->kv_type == RF_KV_Q8_0)
            store_q8_0(out, x, width);
        else
            memcpy(out, x, (size_t)width * sizeof(float));
    }
}

RF_FN void RF_NAME(store_kv)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    for (int64_t t = first; t < last; t++) {
        int64_t position = run->positions[t], at = position % run->chunk_positions;
        uint8_t *chunk = (uint8_t *)kv_chunk(run, t, position);
        store_rows(run, rf_row(run, u->a, t), u->kv_heads, u->key_width, chunk + u->key_offset, at);
        store_rows(run, rf_row(run, u->b, t), u->kv_heads, u->value_width, chunk + u->value_offset, at);
    }
}

/* One row as float32, padded with zeros to whole lanes. */
RF_INLINE void load_row(const rf_run *run, const uint8_t *row, int64_t width, int64_t padded, float *out)
{
    if (run->kv_type == RF_KV_Q8_0) {
        for (int64_t k = 0; k < width; k += RF_KV_BLOCK, row += RF_KV_BLOCK_BYTES) {
            uint16_t half[16] = {0};
            memcpy(half, row, 2);
            v16 d = v_set(v_from_f16(half)[0]);
            for (int64_t i = 0; i < RF_KV_BLOCK; i += 16) {
                b16 q;
                memcpy(&q, row + 2 + i, 16);
                v_store(out + k + i, d * __builtin_convertvector(q, v16));
            }
        }
        return;
    }
    for (int64_t k = 0; k < padded; k += 16) {
        int64_t n = width - k;
        uint16_t part[16] = {0};
        if (run->kv_type == RF_KV_F32)
            v_store(out + k, v_load_part((const float *)row + k, n));
        else if (n >= 16)
            v_store(out + k, v_from_f16((const uint16_t *)row + k));
        else {
            memcpy(part, (const uint16_t *)row + k, (size_t)n * 2);
            v_store(out + k, v_from_f16(part));
        }
    }
}

/* RF_TILE_KEYS rows of a head, from position `start`, as float32 padded with zeros to whole lanes. Returns them, in
 * place where they already are so, else in `tile`. */
RF_INLINE const float *load_tile(const rf_run *run, int64_t t, int64_t offset, int64_t group, int64_t width,
                                 int64_t start, float *tile)
{
    int64_t row_bytes = kv_row_bytes(run, width), padded = RF_ROUND16(width);
    const uint8_t *row = kv_chunk(run, t, start) + offset +
                         (group * run->chunk_positions + start % run->chunk_positions) * row_bytes;
    if (run->kv_type == RF_KV_F32 && padded == width)
        return (const float *)row;
    for (int64_t j = 0; j < RF_TILE_KEYS; j++, row += row_bytes)
        load_row(run, row, width, padded, tile + j * padded);
    return tile;
}

/* scores[j] = q . keys[j] for the keys of a tile, RF_QK_KEYS sums in registers at a time */
RF_INLINE void score_tile(const float *q, const float *keys, int64_t padded, float *scores)
{
    for (int64_t j = 0; j < RF_TILE_KEYS; j += RF_QK_KEYS) {
        v16 sum[RF_QK_KEYS];
        for (int i = 0; i < RF_QK_KEYS; i++)
            sum[i] = v_set(0);
        for (int64_t k = 0; k < padded; k += 16) {
            v16 a = v_load(q + k);
            for (int i = 0; i < RF_QK_KEYS; i++)
                sum[i] += a * v_load(keys + (j + i) * padded + k);
        }
        v_sums(sum, RF_QK_KEYS, scores + j);
    }
}

/* acc[k] += weights[j] * values[j][k] for j in [first, last), in this order */
RF_INLINE void add_values(const float *weights, const float *values, int64_t padded, int64_t first, int64_t last,
                          float *acc)
{
    int64_t k = 0;
    for (; k + 16 * RF_PV_LANES <= padded; k += 16 * RF_PV_LANES) {
        v16 sum[RF_PV_LANES];
        for (int i = 0; i < RF_PV_LANES; i++)
            sum[i] = v_load(acc + k + 16 * i);
        for (int64_t j = first; j < last; j++)
            for (int i = 0; i < RF_PV_LANES; i++)
                sum[i] += weights[j] * v_load(values + j * padded + k + 16 * i);
        for (int i = 0; i < RF_PV_LANES; i++)
            v_store(acc + k + 16 * i, sum[i]);
    }
    for (; k < padded; k += 16) {
        v16 sum = v_load(acc + k);
        for (int64_t j = first; j < last; j++)
            sum += weights[j] * v_load(values + j * padded + k);
        v_store(acc + k, sum);
    }
}

/* Scores to weights exp(score - max), in place, over whole tiles; returns their sum. Lanes outside [low, end) count 0. */
RF_INLINE float softmax_row(float *scores, int64_t tile0, int64_t low, int64_t end, float scale, float cap,
                            const float *sink)
{
    const i16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    v16 top = v_set(-INFINITY);
    for (int64_t p = tile0; p < end; p += 16) {
        v16 s = v_load(scores + p - tile0) * scale;
        if (cap != 0.0f)
            s = cap * v_tanh(s / cap);
        i16 position = lanes + (int32_t)p;
        s = v_select((position >= (int32_t)low) & (position < (int32_t)end), s, v_set(-INFINITY));
        v_store(scores + p - tile0, s);
        top = v_max(s, top);
    }
    float highest = v_highest(top);
    if (sink && *sink > highest)
        highest = *sink;
    v16 sum = v_set(0);
    for (int64_t p = tile0; p < end; p += 16) {
        v16 e = v_exp(v_load(scores + p - tile0) - highest);
        v_store(scores + p - tile0, e);
        sum += e;
    }
    float total = v_sum(sum);
    if (sink)
        total += v_exp(v_set(*sink - highest))[0];
    return total;
}

RF_FN void RF_NAME(attend)(const rf_run *run, const rf_unit *u, int64_t t, int64_t group, int64_t head, int64_t heads,
                           float *scratch)
{
    int64_t end = run->positions[t] + 1, low = u->window && end > u->window ? end - u->window : 0;
    int64_t tile0 = low / RF_TILE_KEYS * RF_TILE_KEYS;
    int64_t row = (end - tile0 + RF_TILE_KEYS - 1) / RF_TILE_KEYS * RF_TILE_KEYS;
    int64_t k_width = RF_ROUND16(u->key_width), v_width = RF_ROUND16(u->value_width);
    float *tile = scratch;                                                   /* (RF_TILE_KEYS, k_width or v_width) */
    float *q = tile + RF_TILE_KEYS * (k_width > v_width ? k_width : v_width); /* (heads, k_width) */
    float *acc = q + RF_ATTEND_HEADS * k_width;                              /* (heads, v_width) */
    float *scores = acc + RF_ATTEND_HEADS * v_width;                         /* (heads, row) */
    float total[RF_ATTEND_HEADS];

    memset(q, 0, (size_t)(RF_ATTEND_HEADS * (k_width + v_width)) * sizeof(float));
    for (int64_t h = 0; h < heads; h++)
        memcpy(q + h * k_width, rf_row(run, u->a, t) + (head + h) * u->key_width,
               (size_t)u->key_width * sizeof(float));

    for (int64_t p = tile0; p < end; p += RF_TILE_KEYS) {
        const float *keys = load_tile(run, t, u->key_offset, group, u->key_width, p, tile);
        for (int64_t h = 0; h < heads; h++)
            score_tile(q + h * k_width, keys, k_width, scores + h * row + (p - tile0));
    }
    for (int64_t h = 0; h < heads; h++)
        total[h] = softmax_row(scores + h * row, tile0, low, end, u->number, u->softcap,
                               u->vector ? u->vector + head + h : NULL);
    for (int64_t p = tile0; p < end; p += RF_TILE_KEYS) {
        const float *values = load_tile(run, t, u->value_offset, group, u->value_width, p, tile);
        int64_t from = low > p ? low - p : 0, to = end - p < RF_TILE_KEYS ? end - p : RF_TILE_KEYS;
        for (int64_t h = 0; h < heads; h++)
            add_values(scores + h * row + (p - tile0), values, v_width, from, to, acc + h * v_width);
    }
    for (int64_t h = 0; h < heads; h++) {
        float *out = rf_row(run, u->out, t) + (head + h) * u->value_width;
        for (int64_t k = 0; k < u->value_width; k += 16)
            v_store_part(out + k, v_load(acc + h * v_width + k) / total[h], u->value_width - k);
    }
}
