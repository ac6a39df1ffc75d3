/* run.c: walks through the units of a run. Every thread takes the same way, and big units are shared.
 *
 * A shared unit is a row of items, of which each thread has a stretch of its own. It takes them a task at a time, and
 * then what is left of the others' stretches, so that a slow core does not hold up the rest. Small units are done by
 * thread 0 alone, so that a chain of them needs no meeting. Which units are big, and how they are cut, depends on sizes
 * only and changes no result. */
#include "pool.h"

#include <string.h>

/* Below these a unit is done before another thread could have begun. */
#define MIN_PARALLEL_FLOATS 16384
#define MIN_PARALLEL_SCORES 32768

/* What one task of a matrix product should be worth: weight bytes read, and multiplications. */
#define TASK_BYTES (192 << 10)
#define TASK_PRODUCTS (64 << 20)
#define TASKS_PER_THREAD 4

/* Kernels work on 16 rows at once. */
#define KERNEL_ROWS 16

typedef struct {
    int64_t n;      /* items */
    int64_t size;   /* items in a task */
    int64_t rows;   /* rows of the weight or of `out` in an item */
    int parallel;
    int64_t tokens, heads, ranges; /* attention: of an item; items that share the keys of some rows */
} plan;

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static plan plan_matmul(const rf_unit *u, int64_t rows, int n_threads)
{
    int64_t size = TASK_BYTES / u->row_bytes, by_work = TASK_PRODUCTS / (u->n_cols * rows);
    int64_t fair = u->n_rows / (n_threads * TASKS_PER_THREAD), n = divide_up(u->n_rows, KERNEL_ROWS);
    size = size > 4 * KERNEL_ROWS ? size : 4 * KERNEL_ROWS;
    size = size < by_work ? size : by_work;
    size = size < fair ? size : fair;
    size = size < KERNEL_ROWS ? 1 : size / KERNEL_ROWS;
    return (plan){.n = n, .size = size, .rows = KERNEL_ROWS,
                  .parallel = n > 1 && u->n_rows * u->n_cols * rows >= MIN_PARALLEL_FLOATS};
}

/* An item is some tokens, some of the query heads that share a key/value head, and all ranges of keys or one. */
static plan plan_attend(const rf_run *run, const rf_unit *u, int n_threads)
{
    int64_t shared = u->heads / u->kv_heads, heads = shared < RF_ATTEND_ROWS ? shared : RF_ATTEND_ROWS;
    int64_t tokens = RF_ATTEND_ROWS / heads, seen = 0, end = 0;
    tokens = tokens < run->n_tokens ? tokens : run->n_tokens;
    for (int64_t t = 0; t < run->n_tokens; t++) {
        int64_t position = run->positions[t];
        seen += u->window && position >= u->window ? u->window : position + 1;
        end = position >= end ? position + 1 : end;
    }
    plan p = {.size = 1, .parallel = seen * u->heads * (u->key_width + u->value_width) >= MIN_PARALLEL_SCORES};
    p.ranges = run->n_tokens <= RF_SPLIT_TOKENS && n_threads > 1 ? divide_up(end, RF_RANGE_KEYS) : 1;
    for (;;) {
        p.n = divide_up(run->n_tokens, tokens) * u->kv_heads * divide_up(shared, heads) * p.ranges;
        if (p.n >= 2 * n_threads || (tokens == 1 && heads == 1))
            break;
        if (tokens > 1)
            tokens = divide_up(tokens, 2);
        else
            heads = divide_up(heads, 2);
    }
    p.tokens = tokens;
    p.heads = heads;
    return p;
}

/* An item is some rows of what every expert gives, for all tokens. */
static plan plan_moe(const rf_unit *u, int64_t rows, int n_threads)
{
    const rf_experts *e = u->experts;
    int64_t size = TASK_BYTES / (e->row_bytes * u->chosen * (u->second ? 2 : 1));
    int64_t fair = e->n_rows / (n_threads * TASKS_PER_THREAD);
    size = size > 4 * KERNEL_ROWS ? size : 4 * KERNEL_ROWS;
    size = rows == 1 && size < fair ? size : fair; /* many tokens share the gathering of their activations */
    size = size < RF_MOE_ROWS ? size : RF_MOE_ROWS;
    size = size < KERNEL_ROWS ? 1 : size / KERNEL_ROWS;
    int64_t n = divide_up(e->n_rows, KERNEL_ROWS);
    int parallel = n > 1 && e->n_rows * e->n_cols * rows * u->chosen >= MIN_PARALLEL_FLOATS;
    return (plan){.n = n, .size = size, .rows = KERNEL_ROWS, .parallel = parallel};
}

static plan plan_unit(const rf_run *run, const rf_unit *u, int n_threads)
{
    int64_t rows = u->wanted ? run->n_wanted : run->n_tokens;
    if (rows == 0)
        return (plan){.n = 0, .size = 1};
    if (u->kind == RF_MATMUL)
        return plan_matmul(u, rows, n_threads);
    if (u->kind == RF_HEADS)
        return (plan){.n = u->heads, .size = 1, .rows = 1,
                      .parallel = u->heads * u->n_rows * u->n_cols * rows >= MIN_PARALLEL_FLOATS};
    if (u->kind == RF_ATTEND)
        return plan_attend(run, u, n_threads);
    if (u->kind == RF_MOE_UP || u->kind == RF_MOE_DOWN)
        return plan_moe(u, rows, n_threads);
    int64_t width = run->values[u->out < 0 ? u->a : u->out].width;
    return (plan){.n = rows, .size = divide_up(rows, n_threads * TASKS_PER_THREAD), .rows = 1,
                  .parallel = rows > 1 && rows * width >= MIN_PARALLEL_FLOATS};
}

static int do_matmul(const rf_table *table, const rf_run *run, const rf_unit *u, int64_t row, int64_t n_rows)
{
    int64_t n_acts = u->wanted ? run->n_wanted : run->n_tokens, stride = run->values[u->out].stride;
    const uint8_t *weight = u->weight + row * u->row_bytes, *acts = (const uint8_t *)rf_row(run, u->a, 0);
    float *out = rf_row(run, u->out, 0) + u->start + row;
    ramforge_matmul_fn matmul = u->matmul ? u->matmul : table->matmul_f32;
    int result = matmul(weight, u->row_bytes, n_rows, u->n_cols, acts, u->act_bytes, n_acts, out, stride);
    if (u->bias)
        for (int64_t a = 0; a < n_acts; a++)
            for (int64_t r = 0; r < n_rows; r++)
                out[a * stride + r] += u->bias[u->start + row + r];
    return result;
}

static int do_head(const rf_table *table, const rf_run *run, const rf_unit *u, int64_t head)
{
    int64_t n_acts = u->wanted ? run->n_wanted : run->n_tokens, apart = run->values[u->a].stride * (int64_t)sizeof(float);
    const uint8_t *weight = u->weight + head * u->n_rows * u->row_bytes;
    const uint8_t *acts = (const uint8_t *)rf_row(run, u->a, 0) + head * u->act_bytes;
    ramforge_matmul_fn matmul = u->matmul ? u->matmul : table->matmul_f32;
    return matmul(weight, u->row_bytes, u->n_rows, u->n_cols, acts, apart, n_acts,
                  rf_row(run, u->out, 0) + head * u->n_rows, run->values[u->out].stride);
}

static int do_embed(const rf_run *run, const rf_unit *u, int64_t first, int64_t last)
{
    int result = 0;
    for (int64_t t = first; t < last; t++) {
        const uint8_t *row = u->weight + run->tokens[t] * u->row_bytes;
        if (u->decode)
            result |= u->decode(row, u->row_blocks, rf_row(run, u->out, t));
        else
            memcpy(rf_row(run, u->out, t), row, (size_t)u->row_bytes);
    }
    return result;
}

static int do_attend(const rf_table *table, const rf_run *run, const rf_unit *u, const plan *p, int64_t item,
                     float *scratch)
{
    int64_t shared = u->heads / u->kv_heads, parts = divide_up(shared, p->heads), rows = item / p->ranges;
    /* late tokens see most: they come first */
    int64_t first = (divide_up(run->n_tokens, p->tokens) - 1 - rows / (u->kv_heads * parts)) * p->tokens;
    int64_t last = first + p->tokens < run->n_tokens ? first + p->tokens : run->n_tokens;
    int64_t group = rows / parts % u->kv_heads, head = rows % parts * p->heads;
    int64_t heads = shared - head < p->heads ? shared - head : p->heads;
    head += group * shared;
    if (p->ranges == 1) {
        table->attend(run, u, first, last, group, head, heads, RF_ALL_RANGES, scratch);
        return 0;
    }
    table->attend(run, u, first, last, group, head, heads, item % p->ranges, scratch);
    if (__atomic_add_fetch(&run->parts_done[rows], 1, __ATOMIC_ACQ_REL) == p->ranges) {
        __atomic_store_n(&run->parts_done[rows], 0, __ATOMIC_RELAXED);
        table->attend(run, u, first, last, group, head, heads, RF_MERGE_RANGES, scratch);
    }
    return 0;
}

/* Items [first, last). Returns 0, or what a foreign kernel returned. */
static int do_task(const rf_table *table, const rf_run *run, const rf_unit *u, const plan *p, int64_t first,
                   int64_t last, float *scratch)
{
    if (u->kind == RF_ATTEND)
        return do_attend(table, run, u, p, first, scratch);
    if (u->kind == RF_HEADS)
        return do_head(table, run, u, first);
    int64_t rows = u->experts ? u->experts->n_rows
                   : u->kind == RF_MATMUL ? u->n_rows
                   : u->wanted ? run->n_wanted : run->n_tokens;
    first *= p->rows;
    last = last * p->rows < rows ? last * p->rows : rows;
    if (u->kind == RF_MATMUL)
        return do_matmul(table, run, u, first, last - first);
    if (u->kind == RF_MOE_UP)
        return table->moe_up(run, u, first, last - first, scratch);
    if (u->kind == RF_MOE_DOWN)
        return table->moe_down(run, u, first, last - first, scratch);
    if (u->kind == RF_EMBED)
        return do_embed(run, u, first, last);
    table->rows[u->kind](run, u, first, last, scratch);
    return 0;
}

/* Take up to `size` items of unit i from [first, last), a thread's share. Returns the first, or `last` if none is left.
 *
 * A count that belongs to an earlier unit means that nothing is taken yet. One of a later unit means that all is: only
 * then does anybody go on to the next unit. */
static int64_t take(rf_share *share, uint64_t i, int64_t first, int64_t last, int64_t size)
{
    uint64_t seen = atomic_load_explicit(&share->taken, memory_order_relaxed), unit = i + 1;
    for (;;) {
        int64_t at = first + (seen >> 32 == unit ? (int64_t)(seen & 0xffffffff) : 0);
        if (seen >> 32 > unit || at >= last)
            return last;
        if (atomic_compare_exchange_weak_explicit(&share->taken, &seen, unit << 32 | (uint64_t)(at + size - first),
                                                  memory_order_relaxed, memory_order_relaxed))
            return at;
    }
}

/* Take tasks of unit i until there are none or the run has to end. Returns how many items it did. */
static int64_t do_tasks(rf_pool *pool, int thread, int64_t i, const plan *p, float *scratch)
{
    int n_shares = p->parallel ? pool->n_threads : 1;
    int64_t done = 0;
    for (int s = 0; s < n_shares; s++) {
        int owner = (thread + s) % n_shares;
        int64_t first = p->n * owner / n_shares, last = p->n * (owner + 1) / n_shares, at = first, end;
        for (;; at = end) {
            if (p->parallel)
                at = take(&pool->shares[owner], (uint64_t)i, first, last, p->size);
            if (at >= last)
                break;
            if (__atomic_load_n(&pool->run->flags[0], __ATOMIC_RELAXED))
                rf_end(pool, RF_STOPPED);
            if (atomic_load_explicit(&pool->result, memory_order_relaxed) != RF_DONE)
                return done;
            end = at + p->size < last ? at + p->size : last;
            if (do_task(pool->table, pool->run, &pool->run->units[i], p, at, end, scratch))
                rf_end(pool, -1 - (int)i);
            done += end - at;
        }
    }
    return done;
}

void rf_walk(rf_pool *pool, int thread)
{
    rf_run *run = pool->run;
    float *scratch = run->scratch + thread * run->scratch_floats;
    enum { NONE, SERIAL, PARALLEL } since = NONE; /* units since the last meeting */
    int skipped = 0; /* a sync between units of thread 0 needed no meeting, but the next shared unit does */
    int64_t mine = 0, expected = 0, known = 0; /* items: done by this thread since then, before unit i, known as done */
    int32_t steps = 0;
    for (int64_t i = run->first; i < run->last; i++) {
        plan p = plan_unit(run, &run->units[i], pool->n_threads);
        p.parallel = p.parallel && pool->n_threads > 1;
        int needed = run->units[i].sync || (skipped && p.parallel);
        if (needed && (since == PARALLEL || (since == SERIAL && p.parallel))) {
            if (expected > known && (known = rf_meet(pool, mine, expected)) < 0)
                return;
            if (thread == 0)
                __atomic_store_n(&run->flags[1], steps, __ATOMIC_RELAXED);
            mine = 0;
            since = NONE;
            skipped = 0;
        } else if (needed && since == SERIAL)
            skipped = 1;
        expected += p.n;
        if (p.parallel ? expected > known : thread == 0) /* whoever reported items has seen all shares empty */
            mine += do_tasks(pool, thread, i, &p, scratch);
        if (p.n)
            since = p.parallel || since == PARALLEL ? PARALLEL : SERIAL;
        steps += run->units[i].ends_step;
    }
}
