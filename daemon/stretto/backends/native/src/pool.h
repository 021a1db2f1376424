// A few threads that help with jobs, and sleep when there is nothing to do.
#ifndef STRETTO_POOL_H
#define STRETTO_POOL_H

#include <stdint.h>

typedef struct Pool Pool;
typedef void (*Job)(void *context, int worker);

// NULL when memory or threads cannot be had. The caller's thread is worker 0. One caller at a time.
Pool *pool_new(int workers);
void pool_free(Pool *pool);
int pool_workers(const Pool *pool);
// Runs `job` on every worker and returns when all have returned.
void pool_run(Pool *pool, Job job, void *context);
// Runs `job` here, and on those workers that come in time: it returns when the caller's part does, and late workers
// may still call it, so the job must know by itself when there is nothing left. A later `pool_run` drains them.
void pool_help(Pool *pool, Job job, void *context);
// Waits until `ready` is true: spins for a short, bounded time, then sleeps. Whoever makes it true calls `pool_wake`.
void pool_wait(Pool *pool, int (*ready)(const void *context), const void *context);
void pool_wake(Pool *pool);

#endif
