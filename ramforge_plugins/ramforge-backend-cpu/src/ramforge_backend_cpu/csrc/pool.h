/* pool.h: threads that do the units of a run together. The caller is thread 0 and waits for nobody who has not begun: a
 * thread that wakes late, or lost its processor, joins in where the others are. */
#ifndef RAMFORGE_CPU_POOL_H
#define RAMFORGE_CPU_POOL_H
#include "isa.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* What a thread does for a run: run.c. */
typedef void (*rf_walk_fn)(struct rf_pool *pool, int thread);

/* How much of a thread's share of a unit is taken: the unit's number in the high half, items in the low one. A line of
 * its own: to get one from another core can take as long as a small task. */
typedef struct { _Alignas(64) atomic_ullong taken; } rf_share;

struct rf_pool {
    int n_threads;
    pid_t process;        /* where the threads are: a forked child has the pool, but no threads */
    const rf_table *table;
    rf_run *run;          /* the current job; NULL tells the threads to end */
    rf_share *shares;     /* (n_threads) */
    pthread_t *threads;   /* (n_threads - 1) */
    struct rf_start { struct rf_pool *pool; int thread; } *starts;
    rf_walk_fn walk;

    _Alignas(64) atomic_uint job; /* counts the runs */
    atomic_int inside;            /* threads that take part, the caller apart; below zero when none may join any more */
    _Alignas(64) atomic_llong done; /* items of the run that are done */
    atomic_int result;              /* what the run has come to: RF_DONE as long as it goes on */
    _Alignas(64) atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* Report `mine` items as done and wait until `expected` are. Returns how many are, or -1 if the run has to end. */
int64_t rf_meet(rf_pool *pool, int64_t mine, int64_t expected);
/* Ends the run for all threads, unless another result came first. */
void rf_end(rf_pool *pool, int result);
void rf_walk(rf_pool *pool, int thread);
#endif
