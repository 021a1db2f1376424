// Waiting spins for a short, bounded time and then sleeps: work is waited for many times a token, far more often than
// the operating system could wake anyone, but when a processor is taken away spinning only takes it from others as well.
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SPINS = 2000, LINE = 64 };  // about 20 to 50 microseconds

// A counter that rises each time something happens, with those who wait for it.
typedef struct {
    _Alignas(LINE) atomic_uint turn;
    atomic_int sleepers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} Signal;

struct Pool {
    Signal start, left, progress;
    _Alignas(LINE) atomic_int inside;  // workers that have yet to return from a job that all run
    int workers, threads;
    pthread_t *ids;
    pthread_mutex_t posting;           // guards the three below
    Job job;
    void *context;
    int joined;
    atomic_int stop;
};

typedef struct {
    Pool *pool;
    int worker;
} Seat;

static void relax(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int signal_init(Signal *signal) {
    atomic_init(&signal->turn, 0);
    atomic_init(&signal->sleepers, 0);
    if (pthread_mutex_init(&signal->lock, NULL)) return 0;
    if (pthread_cond_init(&signal->changed, NULL) == 0) return 1;
    pthread_mutex_destroy(&signal->lock);
    return 0;
}

static void signal_free(Signal *signal) {
    pthread_cond_destroy(&signal->changed);
    pthread_mutex_destroy(&signal->lock);
}

// A sleeper counts itself before it looks at the turn again; the raiser looks for sleepers after it has raised the
// turn. One of the two sees the other, so nobody sleeps through.
static void signal_raise(Signal *signal) {
    atomic_fetch_add(&signal->turn, 1);
    if (atomic_load(&signal->sleepers) == 0) return;
    pthread_mutex_lock(&signal->lock);
    pthread_cond_broadcast(&signal->changed);
    pthread_mutex_unlock(&signal->lock);
}

static void signal_wait(Signal *signal, unsigned turn) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&signal->turn, memory_order_acquire) != turn) return;
        relax();
    }
    pthread_mutex_lock(&signal->lock);
    atomic_fetch_add(&signal->sleepers, 1);
    while (atomic_load(&signal->turn) == turn) pthread_cond_wait(&signal->changed, &signal->lock);
    atomic_fetch_sub(&signal->sleepers, 1);
    pthread_mutex_unlock(&signal->lock);
}

void pool_wait(Pool *pool, int (*ready)(const void *context), const void *context) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (ready(context)) return;
        relax();
    }
    Signal *signal = &pool->progress;
    pthread_mutex_lock(&signal->lock);
    atomic_fetch_add(&signal->sleepers, 1);
    while (!ready(context)) pthread_cond_wait(&signal->changed, &signal->lock);
    atomic_fetch_sub(&signal->sleepers, 1);
    pthread_mutex_unlock(&signal->lock);
}

void pool_wake(Pool *pool) { signal_raise(&pool->progress); }

static void post(Pool *pool, Job job, void *context, int joined) {
    pthread_mutex_lock(&pool->posting);
    pool->job = job;
    pool->context = context;
    pool->joined = joined;
    signal_raise(&pool->start);
    pthread_mutex_unlock(&pool->posting);
}

static void *work(void *argument) {
    const Seat seat = *(Seat *)argument;
    Pool *pool = seat.pool;
    free(argument);
    unsigned turn = 0;
    for (;;) {
        signal_wait(&pool->start, turn);
        if (atomic_load(&pool->stop)) return NULL;
        // A job that only asks for help may have been missed; the newest is what counts.
        pthread_mutex_lock(&pool->posting);
        turn = atomic_load(&pool->start.turn);
        const Job job = pool->job;
        void *context = pool->context;
        const int joined = pool->joined;
        pthread_mutex_unlock(&pool->posting);
        job(context, seat.worker);
        if (joined && atomic_fetch_sub(&pool->inside, 1) == 1) signal_raise(&pool->left);
    }
}

void pool_help(Pool *pool, Job job, void *context) {
    if (pool->workers > 1) post(pool, job, context, 0);
    job(context, 0);
}

void pool_run(Pool *pool, Job job, void *context) {
    if (pool->workers == 1) {
        job(context, 0);
        return;
    }
    const unsigned turn = atomic_load(&pool->left.turn);
    atomic_store(&pool->inside, pool->workers - 1);
    post(pool, job, context, 1);
    job(context, 0);
    signal_wait(&pool->left, turn);
}

static int start_threads(Pool *pool) {
    for (; pool->threads < pool->workers - 1; pool->threads++) {
        Seat *seat = malloc(sizeof *seat);
        if (!seat) return 0;
        *seat = (Seat){pool, pool->threads + 1};
        if (pthread_create(&pool->ids[pool->threads], NULL, work, seat)) {
            free(seat);
            return 0;
        }
    }
    return 1;
}

static int prepare(Pool *pool) {
    Signal *const signals[3] = {&pool->start, &pool->left, &pool->progress};
    int ready = 0;
    while (ready < 3 && signal_init(signals[ready])) ready++;
    if (ready == 3 && pthread_mutex_init(&pool->posting, NULL) == 0) return 1;
    while (ready > 0) signal_free(signals[--ready]);
    return 0;
}

Pool *pool_new(int workers) {
    Pool *pool = aligned_alloc(LINE, (sizeof *pool + LINE - 1) / LINE * LINE);
    if (!pool) return NULL;
    pool->workers = workers;
    pool->threads = 0;
    atomic_init(&pool->inside, 0);
    atomic_init(&pool->stop, 0);
    pool->ids = calloc((size_t)workers, sizeof *pool->ids);
    if (!pool->ids || !prepare(pool)) {
        free(pool->ids);
        free(pool);
        return NULL;
    }
    if (start_threads(pool)) return pool;
    pool_free(pool);
    return NULL;
}

void pool_free(Pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, 1);
    signal_raise(&pool->start);
    for (int i = 0; i < pool->threads; i++) pthread_join(pool->ids[i], NULL);
    pthread_mutex_destroy(&pool->posting);
    signal_free(&pool->progress);
    signal_free(&pool->left);
    signal_free(&pool->start);
    free(pool->ids);
    free(pool);
}

int pool_workers(const Pool *pool) { return pool->workers; }
