/* run.c: walks through the units of a run. Every thread takes the same way and they share the tasks of big units.
 *
 * Small units are done by thread 0 alone, so that a chain of them needs no barrier. Which units are big, and how they
 * are cut, depends on sizes only and changes no result. */
#include "pool.h"

#include <string.h>

/* Below these a unit is done before another thread could have begun. */
#define MIN_PARALLEL_FLOATS 16384
#define MIN_PARALLEL_SCORES 32768

/* What one task of a matrix product should be worth: weight bytes read, and multiplications. */
#define TASK_BYTES (192 << 10)
#define TASK_PRODUCTS (8 << 20)
#define TASKS_PER_THREAD 4

/* Kernels work on 16 rows at once. */
#define KERNEL_ROWS 16

typedef struct {
    int64_t n;      /* tasks */
    int64_t size;   /* rows of `out`, rows of the weight, or heads in a task */
    int parallel;
    int64_t tokens, ranges; /* attention: tokens in a task; tasks that share the keys of some rows */
} plan;

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static plan plan_matmul(const rf_unit *u, int64_t rows, int n_threads)
{
    int64_t size = TASK_BYTES / u->row_bytes, by_work = TASK_PRODUCTS / (u->n_cols * rows);
    int64_t fair = u->n_rows / (n_threads * TASKS_PER_THREAD);
    size = size > 4 * KERNEL_ROWS ? size : 4 * KERNEL_ROWS;
    size = size < by_work ? size : by_work;
    size = size < fair ? size : fair;
    size = size < KERNEL_ROWS ? KERNEL_ROWS : size / KERNEL_ROWS * KERNEL_ROWS;
    int64_t n = divide_up(u->n_rows, size);
    return (plan){.n = n, .size = size, .parallel = n > 1 && u->n_rows * u->n_cols * rows >= MIN_PARALLEL_FLOATS};
}

/* A task is some tokens, some of the query heads that share a key/value head, and all ranges of keys or one. */
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
    plan p = {.parallel = seen * u->heads * (u->key_width + u->value_width) >= MIN_PARALLEL_SCORES};
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
    p.size = heads;
    return p;
}

/* A task is some rows of what every expert gives, for all tokens. */
static plan plan_moe(const rf_unit *u, int64_t rows, int n_threads)
{
    const rf_experts *e = u->experts;
    int64_t size = TASK_BYTES / (e->row_bytes * u->chosen * (u->second ? 2 : 1));
    int64_t fair = e->n_rows / (n_threads * TASKS_PER_THREAD);
    size = size > 4 * KERNEL_ROWS ? size : 4 * KERNEL_ROWS;
    size = rows == 1 && size < fair ? size : fair; /* many tokens share the gathering of their activations */
    size = size < RF_MOE_ROWS ? size : RF_MOE_ROWS;
    size = size < KERNEL_ROWS ? KERNEL_ROWS : size / KERNEL_ROWS * KERNEL_ROWS;
    int64_t n = divide_up(e->n_rows, size);
    int parallel = n > 1 && e->n_rows * e->n_cols * rows * u->chosen >= MIN_PARALLEL_FLOATS;
    return (plan){.n = n, .size = size, .parallel = parallel};
}

static plan plan_unit(const rf_run *run, const rf_unit *u, int n_threads)
{
    int64_t rows = u->wanted ? run->n_wanted : run->n_tokens;
    if (rows == 0)
        return (plan){.n = 0, .size = 1, .parallel = 0};
    if (u->kind == RF_MATMUL)
        return plan_matmul(u, rows, n_threads);
    if (u->kind == RF_HEADS)
        return (plan){.n = u->heads, .size = 1,
                      .parallel = u->heads * u->n_rows * u->n_cols * rows >= MIN_PARALLEL_FLOATS};
    if (u->kind == RF_ATTEND)
        return plan_attend(run, u, n_threads);
    if (u->kind == RF_MOE_UP || u->kind == RF_MOE_DOWN)
        return plan_moe(u, rows, n_threads);
    int64_t size = divide_up(rows, n_threads * 4), width = run->values[u->out < 0 ? u->a : u->out].width;
    int parallel = rows > 1 && rows * width >= MIN_PARALLEL_FLOATS;
    return (plan){.n = divide_up(rows, size), .size = size, .parallel = parallel};
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

static int do_attend(const rf_table *table, const rf_run *run, const rf_unit *u, const plan *p, int64_t task,
                     float *scratch)
{
    int64_t shared = u->heads / u->kv_heads, parts = divide_up(shared, p->size), rows = task / p->ranges;
    /* late tokens see most: they come first */
    int64_t first = (divide_up(run->n_tokens, p->tokens) - 1 - rows / (u->kv_heads * parts)) * p->tokens;
    int64_t last = first + p->tokens < run->n_tokens ? first + p->tokens : run->n_tokens;
    int64_t group = rows / parts % u->kv_heads, head = rows % parts * p->size;
    int64_t heads = shared - head < p->size ? shared - head : p->size;
    head += group * shared;
    if (p->ranges == 1) {
        table->attend(run, u, first, last, group, head, heads, RF_ALL_RANGES, scratch);
        return 0;
    }
    table->attend(run, u, first, last, group, head, heads, task % p->ranges, scratch);
    if (__atomic_add_fetch(&run->parts_done[rows], 1, __ATOMIC_ACQ_REL) == p->ranges) {
        __atomic_store_n(&run->parts_done[rows], 0, __ATOMIC_RELAXED);
        table->attend(run, u, first, last, group, head, heads, RF_MERGE_RANGES, scratch);
    }
    return 0;
}

/* Returns 0, or what a foreign kernel returned. */
static int do_task(const rf_table *table, const rf_run *run, const rf_unit *u, const plan *p, int64_t task,
                   float *scratch)
{
    if (u->kind == RF_ATTEND)
        return do_attend(table, run, u, p, task, scratch);
    if (u->kind == RF_HEADS)
        return do_head(table, run, u, task);
    int64_t rows = u->experts ? u->experts->n_rows
                   : u->kind == RF_MATMUL ? u->n_rows
                   : u->wanted ? run->n_wanted : run->n_tokens;
    int64_t first = task * p->size, last = first + p->size < rows ? first + p->size : rows;
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

/* Take tasks of unit i until there are none, the stop flag is up or a kernel has failed. */
static void do_tasks(rf_pool *pool, int64_t i, const plan *p, float *scratch)
{
    rf_run *run = pool->run;
    for (;;) {
        if (__atomic_load_n(&run->flags[0], __ATOMIC_RELAXED) || atomic_load_explicit(&pool->failed, memory_order_relaxed))
            return;
        int64_t task = p->parallel ? __atomic_fetch_add(&run->next_task[i], 1, __ATOMIC_RELAXED) : run->next_task[i]++;
        if (task >= p->n)
            return;
        if (do_task(pool->table, run, &run->units[i], p, task, scratch))
            atomic_store(&pool->failed, (int)i + 1);
    }
}

void rf_walk(rf_pool *pool, int thread)
{
    rf_run *run = pool->run;
    float *scratch = run->scratch + thread * run->scratch_floats;
    enum { NONE, SERIAL, PARALLEL } since = NONE; /* units done since the last barrier */
    int skipped = 0; /* a sync between units of thread 0 needed no barrier, but the next shared unit does */
    int32_t steps = 0;
    for (int64_t i = run->first; i < run->last; i++) {
        plan p = plan_unit(run, &run->units[i], pool->n_threads);
        p.parallel = p.parallel && pool->n_threads > 1;
        int needed = run->units[i].sync || (skipped && p.parallel);
        if (needed && (since == PARALLEL || (since == SERIAL && p.parallel))) {
            rf_barrier(pool);
            if (pool->stopping)
                return;
            since = NONE;
            skipped = 0;
        } else if (needed && since == SERIAL)
            skipped = 1;
        if (thread == 0 && since != PARALLEL) /* all before this one is done */
            __atomic_store_n(&run->flags[1], steps, __ATOMIC_RELAXED);
        if (p.parallel || thread == 0)
            do_tasks(pool, i, &p, scratch);
        if (p.n)
            since = p.parallel || since == PARALLEL ? PARALLEL : SERIAL;
        steps += run->units[i].ends_step;
    }
}
