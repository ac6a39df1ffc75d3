/* pool.c: the threads of a program. */
#include "pool.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Between units the others are microseconds away, and waking a sleeper takes tens of them. */
#define SPIN_NS 50000

/* After milliseconds of sleep a core is slow for as long again. So where a pass waits for experts, one thread stays awake
 * for most of the time that a part of one takes, and gives way to whoever wants its processor. */
#define AWAKE_NS 1500000

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

typedef int (*ready_fn)(rf_pool *pool, int64_t x);

/* Spin for a moment, then sleep, until ready(pool, x). What makes it ready calls wake_all. */
static void wait_for(rf_pool *pool, ready_fn ready, int64_t x, int64_t spin_ns)
{
    int64_t start = 0, spent = 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (ready(pool, x))
                return;
            relax();
        }
        start = start ? start : now_ns();
        spent = now_ns() - start;
        if (spent > SPIN_NS)
            sched_yield();
    } while (spent < spin_ns);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1); /* before the look at what is waited for: wake_all looks the other way round */
    while (!ready(pool, x))
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void wake_all(rf_pool *pool)
{
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static int has_job(rf_pool *pool, int64_t last) { return atomic_load(&pool->job) != (unsigned)last; }
static int is_left(rf_pool *pool, int64_t nobody) { return atomic_load(&pool->inside) == nobody; }
static int is_done(rf_pool *pool, int64_t items)
{
    return atomic_load(&pool->done) >= items || atomic_load(&pool->result) != RF_DONE;
}

int64_t rf_meet(rf_pool *pool, int64_t mine, int64_t expected)
{
    if (mine && atomic_fetch_add(&pool->done, mine) + mine == expected)
        wake_all(pool);
    wait_for(pool, is_done, expected, SPIN_NS);
    return atomic_load(&pool->result) == RF_DONE ? atomic_load(&pool->done) : -1;
}

void rf_end(rf_pool *pool, int result)
{
    int done = RF_DONE;
    atomic_compare_exchange_strong(&pool->result, &done, result);
    wake_all(pool);
}

/* Let the threads in to pool->run. */
static void open_job(rf_pool *pool)
{
    atomic_store(&pool->inside, 0);
    atomic_fetch_add(&pool->job, 1);
    wake_all(pool);
}

/* True if the thread takes part from now on; false if the job is over already. */
static int enter(rf_pool *pool)
{
    int inside = atomic_load(&pool->inside);
    while (inside >= 0)
        if (atomic_compare_exchange_weak(&pool->inside, &inside, inside + 1))
            return 1;
    return 0;
}

static void *thread_main(void *argument)
{
    struct rf_start start = *(struct rf_start *)argument;
    rf_pool *pool = start.pool;
    unsigned job = 0;
    int64_t spin_ns = SPIN_NS;
    for (;;) {
        wait_for(pool, has_job, job, spin_ns);
        job = atomic_load(&pool->job);
        if (!enter(pool))
            continue;
        if (!pool->run)
            return NULL;
        job = atomic_load(&pool->job);
        pool->walk(pool, start.thread);
        spin_ns = start.thread == 1 && pool->run->to_be_continued ? AWAKE_NS : SPIN_NS;
        atomic_fetch_sub(&pool->inside, 1);
        wake_all(pool);
    }
}

int rf_pool_run(rf_pool *pool, rf_run *run)
{
    pool->run = run;
    atomic_store(&pool->result, RF_DONE);
    atomic_store(&pool->done, 0);
    for (int t = 0; t < pool->n_threads; t++)
        atomic_store_explicit(&pool->shares[t].taken, 0, memory_order_relaxed);
    open_job(pool);
    pool->walk(pool, 0);
    atomic_fetch_add(&pool->inside, INT_MIN); /* whatever is not done yet is in the hands of those inside */
    wait_for(pool, is_left, INT_MIN, SPIN_NS);
    int result = atomic_load(&pool->result);
    if (result != RF_DONE)
        return result;
    int32_t steps = 0;
    for (int64_t i = run->first; i < run->last; i++)
        steps += run->units[i].ends_step;
    __atomic_store_n(&run->flags[1], steps, __ATOMIC_RELAXED);
    return RF_DONE;
}

/* Start threads 1..n-1 with all signals blocked: those are for the interpreter. Returns how many run. */
static int start_threads(rf_pool *pool, int n)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 1;
    for (; started < n; started++) {
        pool->starts[started - 1] = (struct rf_start){pool, started};
        if (pthread_create(&pool->threads[started - 1], NULL, thread_main, &pool->starts[started - 1])) {
            pool->starts[started - 1].pool = NULL;
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

rf_pool *rf_pool_new(int n_threads, int isa)
{
    const rf_table *table = rf_isa_table(isa);
    rf_pool *pool = NULL;
    if (n_threads < 1 || !table || posix_memalign((void **)&pool, 64, sizeof *pool))
        return NULL;
    *pool = (rf_pool){.n_threads = n_threads, .process = getpid(), .table = table, .walk = rf_walk, .inside = INT_MIN};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->threads = calloc((size_t)n_threads, sizeof *pool->threads);
    pool->starts = calloc((size_t)n_threads, sizeof *pool->starts);
    if (posix_memalign((void **)&pool->shares, 64, (size_t)n_threads * sizeof *pool->shares))
        pool->shares = NULL;
    int started = pool->threads && pool->starts && pool->shares ? start_threads(pool, n_threads) : 1;
    if (started == n_threads)
        return pool;
    rf_pool_free(pool);
    return NULL;
}

void rf_pool_free(rf_pool *pool)
{
    if (!pool || pool->process != getpid())
        return;
    int others = pool->n_threads - 1;
    pool->run = NULL;
    open_job(pool);
    for (int i = 0; i < others; i++)
        if (pool->starts && pool->starts[i].pool)
            pthread_join(pool->threads[i], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    free(pool->threads);
    free(pool->starts);
    free(pool->shares);
    free(pool);
}
