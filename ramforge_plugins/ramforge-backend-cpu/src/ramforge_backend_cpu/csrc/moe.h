/* moe.h: mixtures of experts. Text that is compiled once per instruction set, see isa.h.
 *
 * A row of routes holds k expert numbers, ascending, and their weights. The hidden values of a token's j-th expert lie
 * at j * F of its row; packed, at j * act_bytes. Each task goes through the experts in order, gathers the activations
 * of an expert's tokens and multiplies its rows of the matrix by all of them; so every matrix is read once, and the sum
 * over a token's experts has one order whatever the batch, the threads and the goes that it is done in. */

RF_FN void RF_NAME(gate)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    (void)scratch;
    int64_t n = run->values[u->out].width, whole_row = run->values[u->b].width == 1;
    for (int64_t i = first; i < last; i++) {
        const float *x = rf_row(run, u->a, i), *gate = rf_row(run, u->b, i);
        float *out = rf_row(run, u->out, i);
        v16 s = v_sigmoid(v_set(gate[0]));
        for (int64_t k = 0; k < n; k += 16)
            v_store_part(out + k, v_load_part(x + k, n - k) * (whole_row ? s : v_sigmoid(v_load_part(gate + k, n - k))),
                         n - k);
    }
}

/* scores[0..n) = softmax(logits) or sigmoid(logits) */
RF_INLINE void route_scores(const rf_unit *u, const float *logits, int64_t n, float *scores)
{
    v16 top = v_set(0), sum = v_set(0);
    if (!u->sigmoid) {
        float highest = logits[0];
        for (int64_t e = 1; e < n; e++)
            highest = logits[e] > highest ? logits[e] : highest;
        top = v_set(highest);
    }
    for (int64_t e = 0; e < n; e += 16) {
        v16 x = v_load_part(logits + e, n - e);
        v16 s = u->sigmoid ? v_sigmoid(x) : v_exp(x - top);
        v_store_part(scores + e, s, n - e);
        sum += v_load_part(scores + e, n - e);
    }
    float total = v_sum(sum);
    for (int64_t e = 0; e < n && !u->sigmoid; e++)
        scores[e] /= total;
}

/* True if expert e goes before `best`: what is not a number first, then the larger; of equal ones the earlier. */
RF_INLINE int route_before(const rf_unit *u, const float *scores, int64_t e, int64_t best)
{
    float a = scores[e], b = scores[best];
    if (u->vector)
        a += u->vector[e], b += u->vector[best];
    return a > b || (a != a && b == b);
}

RF_FN void RF_NAME(route)(const rf_run *run, const rf_unit *u, int64_t first, int64_t last, float *scratch)
{
    int64_t n = u->n_experts, k = u->chosen;
    float *scores = scratch, *taken = scratch + RF_ROUND16(n);
    for (int64_t i = first; i < last; i++) {
        float *out = rf_row(run, u->out, i), total = 0;
        route_scores(u, rf_row(run, u->a, i), n, scores);
        memset(taken, 0, (size_t)n * sizeof *taken);
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < n; e++)
                if (taken[e] == 0 && (best < 0 || route_before(u, scores, e, best)))
                    best = e;
            taken[best] = 1;
        }
        for (int64_t e = 0, j = 0; j < k; e++)
            if (taken[e] != 0) {
                out[j] = (float)e;
                out[k + j++] = scores[e];
                total += scores[e];
            }
        for (int64_t j = k; j < 2 * k; j++)
            out[j] = (u->normalise ? out[j] / total : out[j]) * u->number;
    }
}

/* Some tokens of one expert: token t has it as its slot-th. */
typedef struct {
    int64_t t[RF_MOE_TOKENS], slot[RF_MOE_TOKENS], n;
} moe_group;

/* Fill a group with the next tokens of an expert, from token `from` on. Returns where to go on. */
RF_INLINE int64_t moe_next(const rf_run *run, const rf_unit *u, int64_t expert, int64_t from, moe_group *group)
{
    int64_t n_tokens = u->wanted ? run->n_wanted : run->n_tokens;
    group->n = 0;
    for (; from < n_tokens && group->n < RF_MOE_TOKENS; from++) {
        const float *routes = rf_row(run, u->a, from);
        for (int64_t j = 0; j < u->chosen; j++)
            if (routes[j] == (float)expert) {
                group->t[group->n] = from;
                group->slot[group->n++] = j;
            }
    }
    return from;
}

/* The packed activations of a group one after the other; a single one stays where it is. by_slot: rows hold one for
 * each chosen expert. */
RF_INLINE const uint8_t *moe_gather(const rf_run *run, int32_t value, const moe_group *group, int64_t act_bytes,
                                    int by_slot, uint8_t *space)
{
    for (int64_t i = 0; i < group->n; i++) {
        const uint8_t *act = (const uint8_t *)rf_row(run, value, group->t[i]) + (by_slot ? group->slot[i] * act_bytes : 0);
        if (group->n == 1)
            return act;
        memcpy(space + i * act_bytes, act, (size_t)act_bytes);
    }
    return space;
}

/* out (n, RF_MOE_ROWS) = rows [first, first + n_rows) of the expert's matrix times each activation, plus bias */
RF_INLINE int moe_product(const rf_experts *m, int64_t expert, int64_t first, int64_t n_rows, const uint8_t *acts,
                          int64_t n, float *out)
{
    if (!m->weights[expert])
        return -1;
    const uint8_t *rows = m->weights[expert] + first * m->row_bytes;
    ramforge_matmul_fn matmul = m->matmul ? m->matmul : RF_NAME(matmul_f32);
    int result = matmul(rows, m->row_bytes, n_rows, m->n_cols, acts, m->act_bytes, n, out, RF_MOE_ROWS);
    if (m->bias)
        for (int64_t i = 0; i < n; i++)
            for (int64_t r = 0; r < n_rows; r++)
                out[i * RF_MOE_ROWS + r] += m->bias[expert * m->n_rows + first + r];
    return result;
}

RF_INLINE v16 moe_act(int32_t act, v16 gate, v16 up)
{
    if (act == RF_ACT_SILU)
        return gate * v_sigmoid(gate) * up;
    if (act == RF_ACT_GELU)
        return gate * v_sigmoid(1.5957691216057308f * (gate + 0.044715f * gate * gate * gate)) * up;
    gate = v_select(gate > 7.0f, v_set(7.0f), gate);
    up = v_select(up > 7.0f, v_set(7.0f), v_select(up < -7.0f, v_set(-7.0f), up));
    return (up + 1.0f) * (gate * v_sigmoid(1.702f * gate));
}

/* Rows of an expert's hidden values, for all tokens that chose it. */
RF_INLINE int moe_hidden(const rf_run *run, const rf_unit *u, int64_t e, int64_t first, int64_t n_rows, float *scratch)
{
    float *gate = scratch, *up = gate + RF_MOE_TOKENS * RF_MOE_ROWS;
    uint8_t *space = (uint8_t *)(up + RF_MOE_TOKENS * RF_MOE_ROWS);
    int64_t width = u->experts->n_rows;
    moe_group group;
    for (int64_t t = moe_next(run, u, e, 0, &group); group.n; t = moe_next(run, u, e, t, &group)) {
        const uint8_t *acts = moe_gather(run, u->b, &group, u->experts->act_bytes, 0, space);
        if (moe_product(u->experts, e, first, n_rows, acts, group.n, gate))
            return -1;
        if (u->b != u->c)
            acts = moe_gather(run, u->c, &group, u->second->act_bytes, 0, space);
        if (moe_product(u->second, e, first, n_rows, acts, group.n, up))
            return -1;
        for (int64_t i = 0; i < group.n; i++) {
            float *out = rf_row(run, u->out, group.t[i]) + group.slot[i] * width + first;
            for (int64_t r = 0; r < n_rows; r += 16)
                v_store_part(out + r,
                             moe_act(u->act, v_load(gate + i * RF_MOE_ROWS + r), v_load(up + i * RF_MOE_ROWS + r)),
                             n_rows - r);
        }
    }
    return 0;
}

RF_FN int RF_NAME(moe_up)(const rf_run *run, const rf_unit *u, int64_t first, int64_t n_rows, float *scratch)
{
    int64_t n = run->hidden ? run->n_hidden : u->n_experts;
    for (int64_t i = 0; i < n; i++)
        if (moe_hidden(run, u, run->hidden ? run->hidden[i] : i, first, n_rows, scratch))
            return -1;
    return 0;
}

RF_FN int RF_NAME(moe_down)(const rf_run *run, const rf_unit *u, int64_t first, int64_t n_rows, float *scratch)
{
    float *y = scratch;
    uint8_t *space = (uint8_t *)(y + 2 * RF_MOE_TOKENS * RF_MOE_ROWS);
    int64_t n_tokens = u->wanted ? run->n_wanted : run->n_tokens;
    int64_t last = run->last_summed < u->n_experts ? run->last_summed : u->n_experts;
    moe_group group;
    for (int64_t t = 0; t < n_tokens && run->first_summed == 0; t++)
        memset(rf_row(run, u->out, t) + first, 0, (size_t)n_rows * sizeof(float));
    for (int64_t e = run->first_summed; e < last; e++)
        for (int64_t t = moe_next(run, u, e, 0, &group); group.n; t = moe_next(run, u, e, t, &group)) {
            const uint8_t *acts = moe_gather(run, u->b, &group, u->experts->act_bytes, 1, space);
            if (moe_product(u->experts, e, first, n_rows, acts, group.n, y))
                return -1;
            for (int64_t i = 0; i < group.n; i++) {
                float *out = rf_row(run, u->out, group.t[i]) + first;
                float weight = rf_row(run, u->a, group.t[i])[u->chosen + group.slot[i]];
                for (int64_t r = 0; r < n_rows; r++)
                    out[r] += weight * y[i * RF_MOE_ROWS + r];
            }
        }
    return 0;
}
