/* pool_test.c - every part runs once, at any thread count, also when workers have gone to sleep. */
#include "base/clock.h"
#include "base/place.h"
#include "base/pool.h"
#include "base/queue.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_PARTS = 257 };

struct tally {
    _Atomic uint32_t hits[N_PARTS];
    uint32_t plain[N_PARTS]; /* written by workers, read by the caller: the join must order it */
    uint32_t n_workers;
};

static void count(void *ctx, uint32_t part, uint32_t worker)
{
    struct tally *t = ctx;
    atomic_fetch_add_explicit(&t->hits[part], 1, memory_order_relaxed);
    t->plain[part] = part * 3;
    if (worker >= t->n_workers)
        abort();
}

static void every_part_runs_exactly_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 5; n++) {
        struct pool *p;
        assert_int_equal(pool_new(&(struct pool_opts){.n_threads = n}, &p, NULL), RC_OK);
        assert_int_equal(pool_n_threads(p), n);
        for (int run = 0; run < 300; run++) {
            struct tally t = {.n_workers = n};
            const uint32_t parts = (uint32_t)run % (N_PARTS + 1);
            if (run == 150)
                usleep(20000); /* long enough for every worker to be asleep */
            pool_run(p, parts, count, &t);
            for (uint32_t i = 0; i < N_PARTS; i++) {
                assert_int_equal(t.hits[i], i < parts);
                assert_int_equal(t.plain[i], i < parts ? i * 3 : 0);
            }
        }
        pool_free(p);
    }
}

static void absurd_thread_counts_are_refused(void **state)
{
    (void)state;
    struct pool *p;
    struct err e;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 100000}, &p, &e), RC_LIMIT);
    pool_free(NULL);
}

struct where {
    _Atomic int cpu[8]; /* of each worker, + 1 */
};

static void note_cpus(void *ctx, uint32_t part, uint32_t worker)
{
    struct where *w = ctx;
    cpu_set_t set;
    (void)part;
    CPU_ZERO(&set);
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set))
        abort();
    int cpu = 0;
    while (!CPU_ISSET((size_t)cpu, &set))
        cpu++;
    w->cpu[worker] = CPU_COUNT(&set) == 1 ? cpu + 1 : -1;
    usleep(1000); /* the others get parts too */
}

/* A thread of its own, since it stays bound. */
static void *run_pinned(void *arg)
{
    struct pool *p;
    if (pool_new(&(struct pool_opts){.n_threads = 2, .pin = true}, &p, NULL))
        abort();
    /* on a busy machine the other worker may come late */
    const struct where *w = arg;
    for (int i = 0; i < 500 && !(w->cpu[0] && w->cpu[1]); i++)
        pool_run(p, 64, note_cpus, arg);
    pool_free(p);
    return NULL;
}

static void pinned_workers_and_their_caller_have_a_cpu_each(void **state)
{
    (void)state;
    struct cpus can;
    cpus_allowed(&can);
    if (cpus_count(&can) < 2)
        skip();
    struct where w = {0};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, run_pinned, &w), 0);
    pthread_join(t, NULL);
    assert_true(w.cpu[0] > 0 && w.cpu[1] > 0);
    assert_int_not_equal(w.cpu[0], w.cpu[1]);
}

static void many_threads_on_few_cpus_still_finish_soon(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 16}, &p, NULL), RC_OK);
    const uint64_t begun = clock_mono_ns();
    for (int run = 0; run < 500; run++) {
        struct tally t = {.n_workers = 16};
        pool_run(p, 64, count, &t);
        for (uint32_t i = 0; i < 64; i++)
            assert_int_equal(t.hits[i], 1);
    }
    assert_true(clock_mono_ns() - begun < UINT64_C(20000000000));
    pool_free(p);
}

struct msg {
    struct qmsg q;
    int v;
};

enum { N_MSGS = 2000 };

static void *producer(void *arg)
{
    struct queue *q = arg;
    for (int i = 0; i < N_MSGS; i++) {
        struct msg *m = malloc(sizeof *m);
        m->v = i;
        if (!queue_put(q, &m->q))
            abort();
    }
    return NULL;
}

static void messages_arrive_once_and_in_order(void **state)
{
    (void)state;
    struct queue q;
    queue_init(&q);
    assert_null(queue_get(&q, 0));
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, producer, &q), 0);
    for (int want = 0; want < N_MSGS;) {
        struct msg *m = (struct msg *)queue_get(&q, UINT64_MAX);
        if (!m)
            continue;
        assert_int_equal(m->v, want++);
        free(m);
    }
    pthread_join(t, NULL);
    assert_null(queue_get(&q, 1000000));
    queue_close(&q);
    assert_null(queue_get(&q, UINT64_MAX));
    struct msg late = {.v = 1};
    assert_false(queue_put(&q, &late.q));
    queue_release(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_runs_exactly_once),
        cmocka_unit_test(pinned_workers_and_their_caller_have_a_cpu_each),
        cmocka_unit_test(many_threads_on_few_cpus_still_finish_soon),
        cmocka_unit_test(absurd_thread_counts_are_refused),
        cmocka_unit_test(messages_arrive_once_and_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
