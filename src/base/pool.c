/* pool.c - one word hands out the parts of a run.
 *
 *   ticket = generation << 32 | parts not handed out yet
 *
 *   caller:  done = 0; set fn, ctx, n_parts; publish a new ticket; take parts itself; wait until
 *            done == n_parts
 *   worker:  take parts while the ticket has any; else spin, then sleep
 *
 * (1) A part is taken by one compare-and-swap on the whole ticket, so only from the run it belongs to.
 * (2) fn, ctx and n_parts are read after a part was taken: its run cannot end before that part is done,
 *     and only then are they written again.
 * (3) The caller waits for parts, never for workers: one that the system does not schedule costs
 *     nothing but its help.
 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { SPINS = 20000, FEW_SPINS = 100 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    uint32_t id;
    int cpu; /* -1: anywhere */
};

struct pool {
    uint32_t n_threads;
    int spins;        /* before a thread gives its CPU away */
    int caller_cpu;   /* the caller is to be bound to it; -1: no */
    pthread_t caller; /* the thread that was, once n_bound */
    uint32_t n_bound;
    struct worker *workers; /* [n_threads - 1], ids from 1 */
    uint32_t n_started;

    pool_fn *fn;
    void *ctx;
    uint32_t n_parts;

    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t done; /* parts of the current run that are finished */
    _Alignas(64) _Atomic bool stop;

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

/* Works on the current run until it has no part left to hand out. */
static void take_parts(struct pool *p, uint32_t worker)
{
    /* acquire: pairs with the release of publish, for fn, ctx, n_parts and what the caller wrote */
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while ((uint32_t)t) {
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acquire,
                                                   memory_order_acquire))
            continue;
        p->fn(p->ctx, p->n_parts - (uint32_t)t, worker);
        /* release: what the part wrote is the caller's once it has counted it */
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
}

static bool has_work(struct pool *p)
{
    return (uint32_t)atomic_load(&p->ticket) || atomic_load(&p->stop);
}

/* Returns when there are parts to take or the pool stops. */
static void await_work(struct pool *p)
{
    for (int i = 0; i < p->spins; i++) {
        if (has_work(p))
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    /* sequentially consistent, as publish is: either it sees the sleeper or the sleeper the work */
    atomic_fetch_add(&p->n_asleep, 1);
    while (!has_work(p))
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
    for (;;) {
        await_work(p);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return NULL;
        take_parts(p, w->id);
    }
}

static void wake_sleepers(struct pool *p)
{
    if (!atomic_load(&p->n_asleep))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void bind_caller(struct pool *p)
{
    if (p->n_bound && pthread_equal(p->caller, pthread_self()))
        return;
    p->caller = pthread_self();
    p->n_bound++;
    pin_to(p->caller_cpu);
}

void pool_run(struct pool *p, uint32_t n_parts, pool_fn *fn, void *ctx)
{
    if (p->caller_cpu >= 0)
        bind_caller(p);
    if (p->n_started == 0 || n_parts <= 1) {
        for (uint32_t i = 0; i < n_parts; i++)
            fn(ctx, i, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n_parts = n_parts;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    const uint64_t generation = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->ticket, generation << 32 | n_parts);
    wake_sleepers(p);
    take_parts(p, 0);
    for (int spins = 0; atomic_load_explicit(&p->done, memory_order_acquire) < n_parts;) {
        relax();
        /* perhaps a worker waits for this very CPU */
        if (++spins >= p->spins) {
            sched_yield();
            spins = 0;
        }
    }
}

enum rc pool_new(const struct pool_opts *o, struct pool **out, struct err *err)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        CPU_SET(0, &allowed);
    const uint32_t n = o->n_threads ? o->n_threads : (uint32_t)CPU_COUNT(&allowed);
    if (n > POOL_MAX_THREADS)
        return err_set(err, RC_LIMIT, "%u threads asked for, at most %d", n, POOL_MAX_THREADS);

    int cpus[CPU_SETSIZE], n_cpus = 0;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &allowed))
            cpus[n_cpus++] = c;

    struct pool *p = mem_try_aligned(64, sizeof *p);
    if (!p)
        return err_set(err, RC_NOMEM, "no memory for a thread pool");
    memset(p, 0, sizeof *p);
    p->n_threads = n;
    p->spins = n > (uint32_t)n_cpus ? FEW_SPINS : SPINS;
    p->caller_cpu = o->pin && n_cpus ? cpus[0] : -1;
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
    atomic_store(&p->stop, true);
    wake_sleepers(p);
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
