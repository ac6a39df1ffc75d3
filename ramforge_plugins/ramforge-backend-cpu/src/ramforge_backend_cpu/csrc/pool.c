/* pool.c: the threads of a program. */
#include "pool.h"

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

/* True if the generation changed before the spinning time was over. */
static int spin(rf_pool *pool, unsigned generation, int64_t ns)
{
    int64_t start = now_ns(), spent;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&pool->generation, memory_order_acquire) != generation)
                return 1;
            relax();
        }
        spent = now_ns() - start;
        if (spent > SPIN_NS)
            sched_yield();
    } while (spent < ns);
    return 0;
}

static void meet(rf_pool *pool, int64_t spin_ns)
{
    unsigned generation = atomic_load(&pool->generation);
    if (atomic_fetch_add(&pool->arrived, 1) == pool->n_threads - 1) {
        pool->stopping = pool->run && (atomic_load(&pool->failed) ||
                                       __atomic_load_n(&pool->run->flags[0], __ATOMIC_RELAXED));
        atomic_store(&pool->arrived, 0);
        atomic_store(&pool->generation, generation + 1);
        if (atomic_load(&pool->sleepers)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_broadcast(&pool->wake);
            pthread_mutex_unlock(&pool->mutex);
        }
        return;
    }
    if (spin(pool, generation, spin_ns))
        return;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1); /* before the look at generation: the last thread looks the other way round */
    while (atomic_load(&pool->generation) == generation)
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

void rf_barrier(rf_pool *pool) { meet(pool, SPIN_NS); }

static void *thread_main(void *argument)
{
    struct rf_start start = *(struct rf_start *)argument;
    int64_t spin_ns = SPIN_NS;
    for (;;) {
        meet(start.pool, spin_ns);
        if (!start.pool->run)
            return NULL;
        start.pool->walk(start.pool, start.thread);
        spin_ns = start.thread == 1 && start.pool->run->to_be_continued ? AWAKE_NS : SPIN_NS;
        rf_barrier(start.pool);
    }
}

int rf_pool_run(rf_pool *pool, rf_run *run)
{
    pool->run = run;
    atomic_store(&pool->failed, 0);
    rf_barrier(pool);
    pool->walk(pool, 0);
    rf_barrier(pool);
    int failed = atomic_load(&pool->failed);
    if (failed)
        return -failed;
    if (pool->stopping)
        return RF_STOPPED;
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
    *pool = (rf_pool){.n_threads = n_threads, .process = getpid(), .table = table, .walk = rf_walk};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->threads = calloc((size_t)n_threads, sizeof *pool->threads);
    pool->starts = calloc((size_t)n_threads, sizeof *pool->starts);
    int started = pool->threads && pool->starts ? start_threads(pool, n_threads) : 1;
    if (started == n_threads)
        return pool;
    /* the barrier waits for n_threads: those that never started are stood in for */
    atomic_fetch_add(&pool->arrived, n_threads - started);
    rf_pool_free(pool);
    return NULL;
}

void rf_pool_free(rf_pool *pool)
{
    if (!pool || pool->process != getpid())
        return;
    int others = pool->n_threads - 1;
    pool->run = NULL;
    rf_barrier(pool);
    for (int i = 0; i < others; i++)
        if (pool->starts && pool->starts[i].pool)
            pthread_join(pool->threads[i], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    free(pool->threads);
    free(pool->starts);
    free(pool);
}
