/* attention.h: keys and values into the KV cache, and attention over it in place. Text that is compiled once per
 * instruction set, see isa.h.
 *
 * Softmax is computed while keys come by, tile after tile: a row, that is a query head of a token, keeps its highest
 * score so far, the sum of its weights and the weighted sum of values, and scales both sums down whenever a higher
 * score turns up. It starts afresh at every multiple of RF_RANGE_KEYS; what the ranges give is merged in their order.
 *
 * Tiles and ranges lie at absolute positions whatever the window, position p always is in lane p % 16, and keys that a
 * row does not see add nothing. So a row's sums have one order, with whatever rows it shares the loads of keys and
 * values and whoever computes its ranges. */

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
    if (run->kv_type == RF_KV_F32) {
        for (int64_t k = 0; k < padded; k += 16)
            v_store(out + k, v_load_part((const float *)row + k, width - k));
        return;
    }
    const uint16_t *half = (const uint16_t *)row;
    int64_t k = 0;
    for (; k + 64 <= width; k += 64)
        for (int64_t i = k; i < k + 64; i += 16)
            v_store(out + i, v_from_f16(half + i));
    for (; k < padded; k += 16) {
        uint16_t part[16] = {0};
        memcpy(part, half + k, (size_t)(width - k < 16 ? width - k : 16) * 2);
        v_store(out + k, v_from_f16(part));
    }
}

/* 16 rows of a head, from position `start`, as float32 padded with zeros to whole lanes. Returns them, in place where
 * they already are so, else in `block`. */
RF_INLINE const float *load_block(const rf_run *run, int64_t t, int64_t offset, int64_t group, int64_t width,
                                  int64_t start, float *block)
{
    int64_t row_bytes = kv_row_bytes(run, width), padded = RF_ROUND16(width);
    const uint8_t *row = kv_chunk(run, t, start) + offset +
                         (group * run->chunk_positions + start % run->chunk_positions) * row_bytes;
    if (run->kv_type == RF_KV_F32 && padded == width)
        return (const float *)row;
    if (padded == width) /* without gaps the rows are one long one */
        load_row(run, row, 16 * width, 16 * width, block);
    else
        for (int64_t j = 0; j < 16; j++, row += row_bytes)
            load_row(run, row, width, padded, block + j * padded);
    return block;
}

/* scores[r * RF_TILE_KEYS + j] = q[r] . keys[j] for `rows` rows and `n` keys, constants: so many sums in registers */
RF_INLINE void score_rows(const float *q, const float *keys, int64_t padded, float *scores, int rows, int n)
{
    v16 sum[RF_SCORE_SUMS];
    float out[RF_SCORE_SUMS];
    for (int i = 0; i < rows * n; i++)
        sum[i] = v_set(0);
    for (int64_t k = 0; k < padded; k += 16) {
        v16 key[RF_SCORE_SUMS];
        for (int j = 0; j < n; j++)
            key[j] = v_load(keys + j * padded + k);
        for (int r = 0; r < rows; r++) {
            v16 a = v_load(q + r * padded + k);
            for (int j = 0; j < n; j++)
                sum[r * n + j] = v_fma(a, key[j], sum[r * n + j]);
        }
    }
    v_sums(sum, rows * n, out);
    for (int r = 0; r < rows; r++)
        memcpy(scores + r * RF_TILE_KEYS, out + r * n, (size_t)n * sizeof(float));
}

/* Scores of n rows and 16 keys. */
RF_INLINE void score_block(const float *q, int64_t n, const float *keys, int64_t padded, float *scores)
{
    int64_t r = 0;
    for (; RF_SCORE_ROWS > 2 && r + RF_SCORE_ROWS <= n; r += RF_SCORE_ROWS)
        for (int64_t j = 0; j < 16; j += RF_SCORE_SUMS / RF_SCORE_ROWS)
            score_rows(q + r * padded, keys + j * padded, padded, scores + r * RF_TILE_KEYS + j, RF_SCORE_ROWS,
                       RF_SCORE_SUMS / RF_SCORE_ROWS);
    for (; RF_SCORE_ROWS > 1 && r + 2 <= n; r += 2)
        for (int64_t j = 0; j < 16; j += RF_SCORE_SUMS / 2)
            score_rows(q + r * padded, keys + j * padded, padded, scores + r * RF_TILE_KEYS + j, 2, RF_SCORE_SUMS / 2);
    for (; r < n; r++)
        for (int64_t j = 0; j < 16; j += RF_SCORE_SUMS)
            score_rows(q + r * padded, keys + j * padded, padded, scores + r * RF_TILE_KEYS + j, 1, RF_SCORE_SUMS);
}

/* acc[r][k] += weights[r][j] * values[j][k] for j in [first, last), in this order, for 16 * `lanes` columns; `rows`
 * and `lanes` are constants */
RF_INLINE void add_columns(const float *weights, const float *values, int64_t padded, int64_t first, int64_t last,
                           float *acc, int64_t stride, int rows, int lanes)
{
    v16 sum[RF_VALUE_SUMS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < lanes; i++)
            sum[r * lanes + i] = v_load(acc + r * stride + 16 * i);
    for (int64_t j = first; j < last; j++) {
        v16 value[RF_VALUE_SUMS];
        for (int i = 0; i < lanes; i++)
            value[i] = v_load(values + j * padded + 16 * i);
        for (int r = 0; r < rows; r++) {
            v16 weight = v_set(weights[r * RF_TILE_KEYS + j]);
            for (int i = 0; i < lanes; i++)
                sum[r * lanes + i] = v_fma(weight, value[i], sum[r * lanes + i]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < lanes; i++)
            v_store(acc + r * stride + 16 * i, sum[r * lanes + i]);
}

RF_INLINE void add_values(const float *weights, const float *values, int64_t padded, int64_t first, int64_t last,
                          float *acc, int64_t stride, int rows)
{
    int64_t k = 0;
    for (; k + 16 * (RF_VALUE_SUMS / RF_VALUE_ROWS) <= padded; k += 16 * (RF_VALUE_SUMS / RF_VALUE_ROWS))
        add_columns(weights, values + k, padded, first, last, acc + k, stride, rows, RF_VALUE_SUMS / RF_VALUE_ROWS);
    for (; k < padded; k += 16)
        add_columns(weights, values + k, padded, first, last, acc + k, stride, rows, 1);
}

/* Rows that go over the keys together: `heads` query heads, from `head` on, of n tokens from t on, all of one sequence.
 * Row r is head r % heads of token r / heads. */
typedef struct {
    int64_t t, n, head, heads, rows, group;
    int64_t k_width, v_width, stride; /* padded to whole lanes; floats of a state */
    int64_t low[RF_ATTEND_ROWS], end[RF_ATTEND_ROWS]; /* by row: the positions that it sees */
    float top[RF_ATTEND_ROWS];                        /* by row: highest score of the range */
    float *block;  /* (16, k_width or v_width) */
    float *q;      /* (rows, k_width) */
    float *scores; /* (rows, RF_TILE_KEYS), then weights in the same place */
    float *state;  /* (rows, stride): sum of values, then that of weights in 16 lanes */
    float *total;  /* (rows, stride): parts merged, see merge_part */
} attend_rows;

RF_INLINE attend_rows attend_begin(const rf_run *run, const rf_unit *u, int64_t t, int64_t n, int64_t group,
                                   int64_t head, int64_t heads, float *scratch)
{
    attend_rows a = {.t = t, .n = n, .head = head, .heads = heads, .rows = n * heads, .group = group};
    a.k_width = RF_ROUND16(u->key_width);
    a.v_width = RF_ROUND16(u->value_width);
    a.stride = rf_part_floats(u->value_width);
    a.block = scratch;
    a.q = a.block + 16 * (a.k_width > a.v_width ? a.k_width : a.v_width);
    a.scores = a.q + RF_ATTEND_ROWS * a.k_width;
    a.state = a.scores + RF_ATTEND_ROWS * RF_TILE_KEYS;
    a.total = a.state + RF_ATTEND_ROWS * a.stride;
    for (int64_t r = 0; r < a.rows; r++) {
        int64_t token = t + r / heads;
        a.end[r] = run->positions[token] + 1;
        a.low[r] = u->window && a.end[r] > u->window ? a.end[r] - u->window : 0;
        float *q = a.q + r * a.k_width;
        memset(q + u->key_width, 0, (size_t)(a.k_width - u->key_width) * sizeof(float));
        memcpy(q, rf_row(run, u->a, token) + (head + r % heads) * u->key_width, (size_t)u->key_width * sizeof(float));
    }
    return a;
}

/* Scores of keys [from, to) of a row's tile to weights exp(score - highest), in place; lanes outside [from, to) give 0.
 * Scales the row's state down if there is a new highest score. */
RF_INLINE void weigh_tile(attend_rows *a, int64_t r, int64_t from, int64_t to, float scale, float cap)
{
    const i16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float *scores = a->scores + r * RF_TILE_KEYS, *state = a->state + r * a->stride;
    int64_t begin = from / 16 * 16;
    v16 top = v_set(-INFINITY);
    for (int64_t j = begin; j < to; j += 16) {
        v16 s = v_load(scores + j) * scale;
        if (cap != 0.0f)
            s = cap * v_tanh(s / cap);
        if (j < from || j + 16 > to) {
            i16 key = lanes + (int32_t)j;
            s = v_select((key >= (int32_t)from) & (key < (int32_t)to), s, v_set(-INFINITY));
        }
        v_store(scores + j, s);
        top = v_max(s, top);
    }
    float highest = v_highest(top);
    v16 sum = v_load(state + a->v_width);
    if (highest > a->top[r]) {
        v16 factor = v_exp(v_set(a->top[r] - highest));
        for (int64_t k = 0; k < a->v_width; k += 16)
            v_store(state + k, v_load(state + k) * factor);
        sum *= factor;
        a->top[r] = highest;
    }
    v16 shift = v_set(a->top[r]);
    for (int64_t j = begin; j < to; j += 16) {
        v16 e = v_exp(v_load(scores + j) - shift);
        v_store(scores + j, e);
        sum += e;
    }
    v_store(state + a->v_width, sum);
}

RF_INLINE void add_tile_values(attend_rows *a, const float *values, int64_t at, const int64_t *from, const int64_t *to)
{
    for (int64_t r = 0, n; r < a->rows; r += n) {
        n = r + RF_VALUE_ROWS <= a->rows ? RF_VALUE_ROWS : a->rows - r;
        for (int64_t i = r; i < r + n; i++) /* together only those that see the whole block */
            if (from[i] > at || to[i] < at + 16)
                n = 1;
        int64_t first = from[r] > at ? from[r] - at : 0, last = to[r] - at < 16 ? to[r] - at : 16;
        const float *weights = a->scores + r * RF_TILE_KEYS + at;
        float *acc = a->state + r * a->stride;
        if (n == RF_VALUE_ROWS)
            add_values(weights, values, a->v_width, first, last, acc, a->stride, RF_VALUE_ROWS);
        else if (n == 3 && RF_VALUE_ROWS > 3)
            add_values(weights, values, a->v_width, first, last, acc, a->stride, 3);
        else if (n == 2 && RF_VALUE_ROWS > 2)
            add_values(weights, values, a->v_width, first, last, acc, a->stride, 2);
        else if (first < last)
            add_values(weights, values, a->v_width, first, last, acc, a->stride, 1);
    }
}

/* Go over the tile of keys at position p. */
RF_INLINE void attend_tile(const rf_run *run, const rf_unit *u, attend_rows *a, int64_t p)
{
    int64_t from[RF_ATTEND_ROWS], to[RF_ATTEND_ROWS], begin = RF_TILE_KEYS, end = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        from[r] = a->low[r] > p ? a->low[r] - p : 0;
        to[r] = a->end[r] - p < RF_TILE_KEYS ? a->end[r] - p : RF_TILE_KEYS;
        if (from[r] < to[r]) {
            begin = from[r] < begin ? from[r] : begin;
            end = to[r] > end ? to[r] : end;
        }
    }
    begin = begin / 16 * 16;
    for (int64_t at = begin; at < end; at += 16) {
        const float *keys = load_block(run, a->t, u->key_offset, a->group, u->key_width, p + at, a->block);
        score_block(a->q, a->rows, keys, a->k_width, a->scores + at);
    }
    for (int64_t r = 0; r < a->rows; r++)
        if (from[r] < to[r])
            weigh_tile(a, r, from[r], to[r], u->number, u->softcap);
    for (int64_t at = begin; at < end; at += 16) {
        const float *values = load_block(run, a->t, u->value_offset, a->group, u->value_width, p + at, a->block);
        add_tile_values(a, values, at, from, to);
    }
}

/* A part is what a range of keys gives a row: sum of values, highest score, sum of weights. */
RF_INLINE int sees_range(const attend_rows *a, int64_t r, int64_t range)
{
    return a->low[r] < (range + 1) * RF_RANGE_KEYS && a->end[r] > range * RF_RANGE_KEYS;
}

/* Go over the keys of a range; then the states are parts. */
RF_INLINE void attend_range(const rf_run *run, const rf_unit *u, attend_rows *a, int64_t range)
{
    int64_t p = range * RF_RANGE_KEYS, end = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        memset(a->state + r * a->stride, 0, (size_t)a->stride * sizeof(float));
        a->top[r] = -INFINITY;
        end = a->end[r] > end ? a->end[r] : end;
    }
    end = end < p + RF_RANGE_KEYS ? end : p + RF_RANGE_KEYS;
    for (; p < end; p += RF_TILE_KEYS)
        attend_tile(run, u, a, p);
    for (int64_t r = 0; r < a->rows; r++) {
        float *state = a->state + r * a->stride;
        float sum = v_sum(v_load(state + a->v_width));
        state[a->v_width] = a->top[r];
        state[a->v_width + 1] = sum;
    }
}

/* total += part, both relative to their highest scores. The first part is the total. */
RF_INLINE void merge_part(const attend_rows *a, float *total, const float *part, int is_first)
{
    int64_t v = a->v_width;
    if (is_first) {
        memcpy(total, part, (size_t)(v + 2) * sizeof(float));
        return;
    }
    float highest = part[v] > total[v] ? part[v] : total[v];
    v16 f = v_exp((v16){total[v] - highest, part[v] - highest});
    v16 mine = v_set(f[0]), other = v_set(f[1]);
    for (int64_t k = 0; k < v; k += 16)
        v_store(total + k, v_load(total + k) * mine + v_load(part + k) * other);
    total[v + 1] = total[v + 1] * f[0] + part[v + 1] * f[1];
    total[v] = highest;
}

/* From the total of a row to its output. */
RF_INLINE void attend_end(const rf_run *run, const rf_unit *u, const attend_rows *a, int64_t r, float *total)
{
    int64_t v = a->v_width, head = a->head + r % a->heads;
    float *out = rf_row(run, u->out, a->t + r / a->heads) + head * u->value_width, sum = total[v + 1], factor = 1;
    if (u->vector) { /* a sink takes its share, and has no value */
        float highest = u->vector[head] > total[v] ? u->vector[head] : total[v];
        v16 f = v_exp((v16){total[v] - highest, u->vector[head] - highest});
        factor = f[0];
        sum = sum * f[0] + f[1];
    }
    for (int64_t k = 0; k < u->value_width; k += 16)
        v_store_part(out + k, v_load(total + k) * factor / sum, u->value_width - k);
}

/* Of n tokens of one sequence: all ranges. */
RF_INLINE void attend_whole(const rf_run *run, const rf_unit *u, attend_rows *a)
{
    int64_t low = a->low[0], end = a->end[0];
    for (int64_t r = 1; r < a->rows; r++) {
        low = a->low[r] < low ? a->low[r] : low;
        end = a->end[r] > end ? a->end[r] : end;
    }
    for (int64_t range = low / RF_RANGE_KEYS; range * RF_RANGE_KEYS < end; range++) {
        attend_range(run, u, a, range);
        for (int64_t r = 0; r < a->rows; r++)
            if (sees_range(a, r, range))
                merge_part(a, a->total + r * a->stride, a->state + r * a->stride, range == a->low[r] / RF_RANGE_KEYS);
    }
    for (int64_t r = 0; r < a->rows; r++)
        attend_end(run, u, a, r, a->total + r * a->stride);
}

/* Of n tokens of one sequence: one range, its parts into run->parts. */
RF_INLINE void attend_part(const rf_run *run, const rf_unit *u, attend_rows *a, int64_t range)
{
    attend_range(run, u, a, range);
    for (int64_t r = 0; r < a->rows; r++)
        if (sees_range(a, r, range))
            memcpy(rf_part(run, u, a->t + r / a->heads, a->head + r % a->heads, range), a->state + r * a->stride,
                   (size_t)(a->v_width + 2) * sizeof(float));
}

RF_INLINE void attend_merge(const rf_run *run, const rf_unit *u, attend_rows *a)
{
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t first = a->low[r] / RF_RANGE_KEYS, last = (a->end[r] - 1) / RF_RANGE_KEYS;
        for (int64_t range = first; range <= last; range++)
            merge_part(a, a->total, rf_part(run, u, a->t + r / a->heads, a->head + r % a->heads, range),
                       range == first);
        attend_end(run, u, a, r, a->total);
    }
}

RF_FN void RF_NAME(attend)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, int64_t group,
                           int64_t head, int64_t heads, int64_t range, float *scratch)
{
    for (int64_t t = first, n; t < last; t += n) {
        for (n = 1; t + n < last && run->sequences[t + n] == run->sequences[t];)
            n++;
        attend_rows a = attend_begin(run, u, t, n, group, head, heads, scratch);
        if (range == RF_ALL_RANGES)
            attend_whole(run, u, &a);
        else if (range == RF_MERGE_RANGES)
            attend_merge(run, u, &a);
        else
            attend_part(run, u, &a, range);
    }
}
