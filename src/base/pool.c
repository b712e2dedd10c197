/* pool.c - one ticket counter hands out parts; a generation number starts a run.
 *
 *   caller:  set fn, ctx, n_parts; next = 0; generation++ (release); take parts; wait until every
 *            worker has left (busy == 0)
 *   worker:  spin on generation, then sleep on the futex-like condition; take parts; busy--
 *
 * (1) fn, ctx and n_parts are written only while no worker is inside a run.
 * (2) next is reset only while no worker is inside a run.
 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { SPINS = 20000, MAX_THREADS = 512 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    uint32_t id;
    int cpu; /* -1: anywhere */
};

struct pool {
    uint32_t n_threads;
    struct worker *workers; /* [n_threads - 1], ids from 1 */
    uint32_t n_started;

    pool_fn *fn;
    void *ctx;
    uint32_t n_parts;

    _Alignas(64) _Atomic uint32_t next;       /* part to hand out */
    _Alignas(64) _Atomic uint32_t busy;       /* workers that have not left the current run */
    _Alignas(64) _Atomic uint64_t generation; /* runs started */
    _Atomic bool stop;

    pthread_mutex_t lock; /* guards sleeping only; a leaf */
    pthread_cond_t wake;
    _Atomic uint32_t n_asleep;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void take_parts(struct pool *p, uint32_t worker)
{
    /* relaxed: fn, ctx, n_parts were published by the generation */
    for (uint32_t i;
         (i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n_parts;)
        p->fn(p->ctx, i, worker);
}

/* Returns when a run newer than seen has begun or the pool stops. */
static void await_run(struct pool *p, uint64_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    /* seq_cst pairs with the caller's increment and look at n_asleep: one of the two sees the other */
    atomic_fetch_add(&p->n_asleep, 1);
    while (atomic_load(&p->generation) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void pin_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    /* a hint: failing to pin costs speed only */
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct pool *p = w->pool;
    char name[16];
    snprintf(name, sizeof name, "hf-pool-%u", w->id % 10000);
    pthread_setname_np(pthread_self(), name);
    if (w->cpu >= 0)
        pin_to(w->cpu);
    for (uint64_t seen = 0;; seen++) {
        await_run(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return NULL;
        take_parts(p, w->id);
        /* release: what the parts wrote is the caller's once busy is 0 */
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

static void begin_run(struct pool *p)
{
    atomic_fetch_add(&p->generation, 1);
    if (!atomic_load(&p->n_asleep))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, uint32_t n_parts, pool_fn *fn, void *ctx)
{
    if (p->n_started == 0 || n_parts <= 1) {
        for (uint32_t i = 0; i < n_parts; i++)
            fn(ctx, i, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n_parts = n_parts;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy, p->n_started, memory_order_relaxed);
    begin_run(p);
    take_parts(p, 0);
    for (uint32_t spins = 0; atomic_load_explicit(&p->busy, memory_order_acquire);) {
        relax();
        /* more threads than cores: let the worker have this one */
        if (++spins % SPINS == 0)
            sched_yield();
    }
}

enum rc pool_new(const struct pool_opts *o, struct pool **out, struct err *err)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        CPU_SET(0, &allowed);
    const uint32_t n = o->n_threads ? o->n_threads : (uint32_t)CPU_COUNT(&allowed);
    if (n > MAX_THREADS)
        return err_set(err, RC_LIMIT, "%u threads asked for, at most %d", n, MAX_THREADS);

    int cpus[CPU_SETSIZE], n_cpus = 0;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &allowed))
            cpus[n_cpus++] = c;

    struct pool *p = mem_try_aligned(64, sizeof *p);
    if (!p)
        return err_set(err, RC_NOMEM, "no memory for a thread pool");
    memset(p, 0, sizeof *p);
    p->n_threads = n;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->workers = mem_zalloc(n * sizeof *p->workers);
    for (uint32_t i = 1; i < n; i++) {
        struct worker *w = &p->workers[i - 1];
        *w = (struct worker){
            .pool = p, .id = i, .cpu = o->pin && n_cpus ? cpus[(int)i % n_cpus] : -1};
        if (pthread_create(&w->thread, NULL, worker_main, w)) {
            pool_free(p);
            return err_set(err, RC_NOMEM, "cannot start thread %u of %u", i + 1, n);
        }
        p->n_started++;
    }
    *out = p;
    return RC_OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->stop, true, memory_order_relaxed);
    begin_run(p);
    for (uint32_t i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    mem_free(p->workers);
    mem_free(p);
}

uint32_t pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}
