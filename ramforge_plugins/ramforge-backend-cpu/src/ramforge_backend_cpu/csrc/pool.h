/* pool.h: threads that walk through the same job together. Each waits at a barrier: it spins for a moment, then sleeps. */
#ifndef RAMFORGE_CPU_POOL_H
#define RAMFORGE_CPU_POOL_H
#include "isa.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* What a thread does for a run: run.c. */
typedef void (*rf_walk_fn)(struct rf_pool *pool, int thread);

struct rf_pool {
    int n_threads;
    pid_t process;        /* where the threads are: a forked child has the pool, but no threads */
    const rf_table *table;
    rf_run *run;          /* the current job; NULL tells the threads to end */
    atomic_int failed;    /* 1 + index of a unit that failed, 0: none */
    int stopping;         /* written at barriers only, so that all threads read the same */

    pthread_t *threads;   /* (n_threads - 1) */
    struct rf_start { struct rf_pool *pool; int thread; } *starts;
    rf_walk_fn walk;
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint generation;
    atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* Wait until all threads have come here. The last one notes whether the run has to stop. */
void rf_barrier(rf_pool *pool);
void rf_walk(rf_pool *pool, int thread);
#endif
