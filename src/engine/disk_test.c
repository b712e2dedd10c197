/* The engine over a directory: what is answered, down to the bits of probabilities, never depends on whether state came from
 * a disk, on what happened to the files, or on whether there is room for any.  SEED repeats a run. */
#include "engine/engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/maker.h"
#include "state/io.h"
#include "engine/world_int.h"

enum { N_PROMPT = 300, N_ANSWER = 12, N_PROBS = 40, N_PROMPTS = 8 };

static struct {
    char dir[256];
    uint64_t seed;
    token prompts[N_PROMPTS][N_PROMPT];
    struct answer *want; /* [N_PROMPTS] of an engine that keeps nothing */
} here;

struct answer {
    token tokens[N_ANSWER];
    struct prob probs[N_ANSWER][1 + N_PROBS];
    uint32_t n;
    struct timings t;
    enum stop_kind stop;
    struct err err;
};

/* ---- engines and answers --------------------------------------------------------------------- */

static struct logger lg = {.level = LOG_WARN};

static struct engine *start(const char *dir, uint64_t ram, uint64_t disk)
{
    const struct engine_opts o = {.model = world.model,
                                  .vocab = world.vocab,
                                  .lg = &lg,
                                  .n_parallel = 3,
                                  .n_ctx = 1024,
                                  .cache_ram_bytes = ram,
                                  .cache_policy = ram ? NULL : "none",
                                  .cache_step = 64,
                                  .cache_dir = dir,
                                  .cache_disk_bytes = disk,
                                  .disk_idle_ns = 1000000,
                                  .disk_read_rate = 1e12};
    struct engine *e;
    struct err err;
    must(engine_start(&o, &e, &err), &err);
    return e;
}

static struct engine *start_big(void)
{
    return start(here.dir, 64 * MIB, GIB);
}

/* Room in memory for a few states only. */
static uint64_t small_ram(void)
{
    const struct shape *s = &model_info(world.model)->shape;
    return 6 * shape_snap_bytes(s) + 20 * shape_page_bytes(s) + 200000;
}

static struct job *submit(struct engine *e, const token *prompt, uint32_t n)
{
    struct job_desc d = {
        .prompt = prompt, .n_prompt = n, .n_predict = N_ANSWER, .n_probs = N_PROBS};
    sampling_defaults(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.ignore_eos = true;
    struct job *j;
    struct err err;
    must(engine_submit(e, &d, &j, &err), &err);
    return j;
}

static void read_all(struct job *j, struct answer *a)
{
    memset(a, 0, sizeof *a);
    for (bool last = false; !last;) {
        struct piece *p = job_next(j, UINT64_C(60000000000));
        assert_non_null(p);
        for (uint32_t i = 0; i < p->n_tokens && a->n < N_ANSWER; i++, a->n++) {
            a->tokens[a->n] = p->tokens[i];
            memcpy(a->probs[a->n], p->probs + i * (1 + N_PROBS), sizeof a->probs[0]);
        }
        last = p->last;
        a->t = p->timings;
        a->stop = p->stop;
        a->err = p->err;
        piece_free(p);
    }
    job_free(j);
}

static void assert_same(const struct answer *want, const struct answer *got)
{
    if (got->stop == STOP_ERROR)
        fail_msg("SEED=%" PRIu64 ": %s", here.seed, got->err.msg);
    assert_int_equal(got->n, N_ANSWER);
    assert_memory_equal(want->tokens, got->tokens, sizeof want->tokens);
    assert_memory_equal(want->probs, got->probs, sizeof want->probs);
}

/* Tokens reused for prompt k, whose answer is what it must be. */
static uint32_t ask(struct engine *e, uint32_t k)
{
    struct answer *a = mem_alloc(sizeof *a);
    read_all(submit(e, here.prompts[k], N_PROMPT), a);
    assert_same(&here.want[k], a);
    const uint32_t reused = a->t.n_reused;
    mem_free(a);
    engine_check(e);
    return reused;
}

static struct engine_view view(struct engine *e)
{
    struct engine_view v;
    struct err err;
    must(engine_view(e, false, &v, &err), &err);
    const struct engine_view numbers = v;
    engine_view_release(&v);
    return numbers;
}

/* Until nothing is being written. */
static void settle(struct engine *e)
{
    struct engine_view v = view(e);
    for (int ms = 0; v.cache.spills > v.disk.writes + v.disk.failed_writes; ms++, v = view(e)) {
        assert_true(ms < 20000);
        usleep(1000);
    }
}

/* Until what is worth it has been written (engines here write a millisecond after the last job). */
static void wait_written(struct engine *e, uint64_t n)
{
    for (int ms = 0; view(e).disk.writes < n; ms++) {
        assert_true(ms < 20000);
        usleep(1000);
    }
}

/* ---- the world ------------------------------------------------------------------------------- */

/* What is proved does not need the disk to be real, and syncing a busy one takes minutes. */
static const char memory[] = "/dev/shm";

static int open_world(void **state)
{
    (void)state;
    const char *s = getenv("SEED");
    here.seed = s ? strtoull(s, NULL, 10) : 1;
    if (world_open_with(KV_F16, 64))
        return 1;
    snprintf(here.dir, sizeof here.dir, "%s/engine_disk_test-XXXXXX",
             access(memory, W_OK) ? HOUSE_BINARY_DIR : memory);
    if (!mkdtemp(here.dir))
        return 1;
    /* four unrelated ones, four that leave those at different places */
    struct rng rng = {here.seed};
    for (uint32_t k = 0; k < N_PROMPTS; k++) {
        for (uint32_t i = 0; i < N_PROMPT; i++)
            here.prompts[k][i] = (token)rng_below(&rng, 256);
        if (k >= 4)
            memcpy(here.prompts[k], here.prompts[k - 4],
                   (60 + rng_below(&rng, 200)) * sizeof(token));
    }
    here.want = mem_alloc(N_PROMPTS * sizeof *here.want);
    struct engine *e = start(NULL, 0, 0);
    for (uint32_t k = 0; k < N_PROMPTS; k++)
        read_all(submit(e, here.prompts[k], N_PROMPT), &here.want[k]);
    engine_stop(e, 0);
    return 0;
}

static uint32_t each_file(void (*fn)(const char *path, struct rng *rng), struct rng *rng)
{
    uint32_t n = 0;
    DIR *at = opendir(here.dir);
    assert_non_null(at);
    for (const struct dirent *e; (e = readdir(at));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", here.dir, e->d_name);
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "lock"))
            continue;
        n++;
        if (fn)
            fn(path, rng);
    }
    closedir(at);
    return n;
}

static void remove_file(const char *path, struct rng *rng)
{
    (void)rng;
    unlink(path);
}

static int clear(void **state)
{
    (void)state;
    io_fault_let_go();
    io_fault_set(&(struct io_fault){0});
    mem_fail_after(0);
    each_file(remove_file, NULL);
    return 0;
}

static int close_world(void **state)
{
    char path[300];
    clear(state);
    snprintf(path, sizeof path, "%s/lock", here.dir);
    unlink(path);
    mem_free(here.want);
    world_close(state);
    return rmdir(here.dir);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void after_a_restart_requests_go_on_from_disk_with_the_same_bits(void **state)
{
    (void)state;
    uint32_t reused[N_PROMPTS];
    struct engine *e = start_big();
    for (int round = 0; round < 2; round++)
        for (uint32_t k = 0; k < N_PROMPTS; k++)
            reused[k] = ask(e, k);
    engine_stop(e, 0);
    e = start_big();
    for (uint32_t k = 0; k < N_PROMPTS; k++) {
        assert_true(reused[k] > N_PROMPT / 2);
        assert_int_equal(ask(e, k), reused[k]);
    }
    const struct engine_view v = view(e);
    assert_true(v.has_disk && v.disk.reads >= 4 && v.disk.failed_reads == 0);
    assert_true(v.cache.n_on_disk > 0 && v.disk.n_entries == v.cache.n_on_disk);
    engine_stop(e, 0);
}

static void what_does_not_fit_into_memory_comes_back_from_disk(void **state)
{
    (void)state;
    struct engine *e = start(here.dir, small_ram(), GIB);
    for (int round = 0; round < 4; round++)
        for (uint32_t k = 0; k < N_PROMPTS; k++) {
            ask(e, k);
            settle(e);
        }
    const struct engine_view v = view(e);
    assert_true(v.disk.writes > 0 && v.disk.reads > 0); /* how many, the disk's speed decides */
    assert_true(v.cache.bytes <= v.cache.budget && v.cache.n_disk_only > 0);
    engine_stop(e, 0);
}

/* Many at once, some cancelled at any point, over little memory and little disk. */
static void random_traffic_over_small_tiers_changes_no_answer(void **state)
{
    (void)state;
    struct rng rng = {here.seed};
    const uint64_t disk = 20 * shape_snap_bytes(&model_info(world.model)->shape) + MIB;
    struct answer *a = mem_alloc(sizeof *a);
    uint64_t reads = 0, writes = 0;
    for (int life = 0; life < 4; life++) {
        struct engine *e = start(here.dir, small_ram(), disk);
        struct job *jobs[5] = {NULL};
        uint32_t of[5];
        for (int round = 0; round < 60; round++) {
            const uint32_t i = (uint32_t)rng_below(&rng, 5);
            if (jobs[i] && rng_below(&rng, 3)) {
                read_all(jobs[i], a);
                assert_same(&here.want[of[i]], a);
            } else {
                job_free(jobs[i]); /* wherever it is */
            }
            of[i] = (uint32_t)rng_below(&rng, N_PROMPTS);
            jobs[i] = submit(e, here.prompts[of[i]], N_PROMPT);
            engine_check(e);
        }
        for (uint32_t i = 0; i < 5; i++)
            job_free(jobs[i]);
        const struct engine_view v = view(e);
        reads += v.disk.reads;
        writes += v.disk.writes;
        assert_true(v.disk.bytes <= disk && v.disk.failed_reads == 0);
        engine_stop(e, 0);
    }
    assert_true(reads > 0 && writes > 0);
    mem_free(a);
}

/* What is asked meanwhile is answered, and a cancelled one leaves nothing. */
static void while_state_is_read_others_are_computed(void **state)
{
    (void)state;
    struct engine *e = start_big();
    ask(e, 0);
    ask(e, 0);
    engine_stop(e, 0);
    e = start_big();
    struct answer *a = mem_alloc(sizeof *a);
    io_fault_set(&(struct io_fault){.at = 1, .kind = IO_FAULT_BLOCK});
    struct job *waits = submit(e, here.prompts[0], N_PROMPT);
    struct job *gives_up = submit(e, here.prompts[0], N_PROMPT);
    for (uint32_t k = 1; k < 4; k++) {
        read_all(submit(e, here.prompts[k], N_PROMPT), a);
        assert_same(&here.want[k], a);
        engine_check(e);
    }
    job_free(gives_up);
    assert_null(job_next(waits, 20000000)); /* not a word of its own */
    assert_int_equal(view(e).disk.reads, 0);
    io_fault_let_go();
    read_all(waits, a);
    assert_same(&here.want[0], a);
    assert_true(a->t.n_reused > N_PROMPT / 2);
    assert_true(view(e).disk.reads > 0);
    engine_check(e);
    engine_stop(e, 0);
    mem_free(a);
}

static void while_the_disk_does_not_take_writes_nobody_waits(void **state)
{
    (void)state;
    struct engine *e = start(here.dir, small_ram(), GIB);
    io_fault_set(&(struct io_fault){.at = 3, .kind = IO_FAULT_BLOCK});
    for (int round = 0; round < 3; round++)
        for (uint32_t k = 0; k < N_PROMPTS; k++)
            ask(e, k);
    const struct engine_view v = view(e);
    assert_true(v.cache.spills > 0 && v.cache.bytes <= v.cache.budget);
    assert_int_equal(v.disk.writes, 0);
    io_fault_let_go();
    engine_stop(e, 0);
}

static void flip_some(const char *path, struct rng *rng)
{
    struct stat st;
    char c;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && !fstat(fd, &st));
    for (uint32_t i = 0; i < 2; i++) {
        const off_t at = (off_t)rng_below(rng, (uint32_t)st.st_size);
        assert_int_equal(pread(fd, &c, 1, at), 1);
        c = (char)(c ^ 1 << rng_below(rng, 8));
        assert_int_equal(pwrite(fd, &c, 1, at), 1);
    }
    close(fd);
}

static void tear_some(const char *path, struct rng *rng)
{
    struct stat st;
    if (rng_below(rng, 2) && !stat(path, &st))
        assert_int_equal(truncate(path, (off_t)rng_below(rng, (uint32_t)st.st_size)), 0);
}

static void damaged_files_cost_time_and_no_answer(void **state)
{
    (void)state;
    struct rng rng = {here.seed};
    for (int round = 0; round < 8; round++) {
        struct engine *e = start_big();
        for (uint32_t k = 0; k < N_PROMPTS; k++)
            ask(e, k);
        engine_stop(e, 0);
        assert_true(each_file(round % 2 ? tear_some : flip_some, &rng) > 0);
        e = start_big();
        for (uint32_t k = 0; k < N_PROMPTS; k++)
            ask(e, k);
        engine_stop(e, 0);
    }
}

/* Files whose state is damaged, found only when it is read, by several that wait for it. */
static void those_that_wait_for_a_damaged_file_evaluate_instead(void **state)
{
    (void)state;
    struct engine *e = start_big();
    for (int i = 0; i < 2; i++)
        ask(e, 0);
    engine_stop(e, 0);
    DIR *at = opendir(here.dir);
    for (const struct dirent *d; (d = readdir(at));) {
        char path[600];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", here.dir, d->d_name);
        if (strstr(d->d_name, ".seg") && !stat(path, &st)) {
            const int fd = open(path, O_RDWR); /* the last bytes of the snapshot */
            assert_int_equal(pwrite(fd, "\xff\xfe\xfd\xfc", 4, st.st_size - 4), 4);
            close(fd);
        }
    }
    closedir(at);
    e = start_big();
    assert_true(view(e).cache.n_on_disk > 0);
    struct answer *a = mem_alloc(sizeof *a);
    struct job *jobs[3];
    for (int i = 0; i < 3; i++)
        jobs[i] = submit(e, here.prompts[0], N_PROMPT);
    for (int i = 0; i < 3; i++) {
        read_all(jobs[i], a);
        assert_same(&here.want[0], a);
    }
    mem_free(a);
    assert_true(view(e).disk.failed_reads > 0);
    engine_check(e);
    engine_stop(e, 0);
}

static void a_full_disk_is_said_once_and_costs_no_answer(void **state)
{
    (void)state;
    char *said = NULL;
    size_t n = 0;
    lg.out = open_memstream(&said, &n);
    struct engine *e = start(here.dir, small_ram(), GIB);
    ask(e, 0);
    wait_written(e, 1);
    io_fault_set(&(struct io_fault){.at = 4, .kind = IO_FAULT_HALF, .sys = ENOSPC});
    for (int round = 0; round < 2; round++)
        for (uint32_t k = 0; k < N_PROMPTS; k++)
            ask(e, k);
    for (int ms = 0; view(e).disk.failed_writes == 0; ms++) {
        assert_true(ms < 20000);
        usleep(1000);
    }
    assert_true(view(e).disk.writes_off);
    engine_stop(e, 0);
    io_fault_set(&(struct io_fault){0});
    fclose(lg.out);
    lg.out = NULL;
    const char *first = strstr(said, "No space left on device");
    assert_non_null(first);
    assert_non_null(strstr(said, "nothing is written for a minute"));
    free(said);
    e = start_big();
    for (uint32_t k = 0; k < N_PROMPTS; k++)
        ask(e, k);
    engine_stop(e, 0);
}

static void a_second_engine_on_the_directory_keeps_to_memory(void **state)
{
    (void)state;
    char *said = NULL;
    size_t n = 0;
    struct engine *e = start_big();
    lg.out = open_memstream(&said, &n);
    struct engine *second = start_big(); /* neither runs while the other does */
    fclose(lg.out);
    lg.out = NULL;
    assert_non_null(strstr(said, "in use by another process; what is kept stays in memory"));
    free(said);
    assert_false(view(second).has_disk);
    ask(second, 1);
    assert_true(ask(second, 1) > 0);
    engine_stop(second, 0);
    ask(e, 1);
    assert_true(view(e).has_disk);
    engine_stop(e, 0);
}

static void other_policies_leave_the_directory_alone(void **state)
{
    (void)state;
    struct engine *e = start_big();
    ask(e, 0);
    ask(e, 0);
    engine_stop(e, 0);
    const uint32_t n = each_file(NULL, NULL);
    e = start(here.dir, 0, GIB);
    assert_false(view(e).has_disk);
    assert_int_equal(ask(e, 0), 0);
    engine_stop(e, 0);
    assert_int_equal(each_file(NULL, NULL), n);
}

static void a_smaller_budget_at_the_next_start_keeps_what_was_used_last(void **state)
{
    (void)state;
    struct engine *e = start_big();
    for (uint32_t k = 0; k < 4; k++) {
        ask(e, k);
        ask(e, k);
    }
    engine_stop(e, 0);
    e = start_big();
    const uint64_t all = view(e).disk.bytes;
    engine_stop(e, 0);
    e = start(here.dir, 64 * MIB, all / 2);
    const struct engine_view v = view(e);
    assert_true(v.disk.bytes <= all / 2 && v.disk.n_entries > 0);
    assert_int_equal(v.disk.n_entries, v.cache.n_on_disk);
    assert_true(ask(e, 3) > N_PROMPT / 2); /* the last one */
    engine_stop(e, 0);
}

/* ---- what was learned ---- */

static snap_id warm(struct engine *e, uint32_t k)
{
    struct job_desc d = {.prompt = here.prompts[k], .n_prompt = N_PROMPT, .pin = true};
    struct job *j;
    struct err err;
    snap_id id = 0;
    sampling_defaults(&d.sampling);
    must(engine_submit(e, &d, &j, &err), &err);
    for (bool last = false; !last;) {
        struct piece *p = job_next(j, UINT64_MAX);
        last = p->last;
        id = p->pinned;
        piece_free(p);
    }
    job_free(j);
    return id;
}

struct totals {
    uint32_t n, n_pinned, pinned_pos, hits;
    snap_id unpinned; /* the most used one that is not pinned */
};

static struct totals totals(struct engine *e)
{
    struct engine_view v;
    struct totals t = {0};
    uint32_t most = 0;
    must(engine_view(e, true, &v, NULL), NULL);
    for (uint32_t i = 0; i < v.n_entries; i++) {
        const struct cache_entry *x = &v.entries[i];
        t.n++;
        t.hits += x->hits;
        t.n_pinned += x->user_pin;
        t.pinned_pos += x->user_pin ? x->pos : 0;
        if (!x->user_pin && (!t.unpinned || x->hits > most)) {
            t.unpinned = x->id;
            most = x->hits;
        }
    }
    engine_view_release(&v);
    return t;
}

static void pins_and_hits_outlive_a_restart(void **state)
{
    (void)state;
    struct engine *e = start_big();
    const snap_id warmed = warm(e, 0);
    assert_true(warmed);
    for (int round = 0; round < 3; round++)
        for (uint32_t k = 0; k < 4; k++)
            ask(e, k);
    assert_true(engine_pin(e, totals(e).unpinned, true));
    settle(e);
    wait_written(e, 4);
    for (uint32_t k = 0; k < 4; k++) /* after the files were written */
        ask(e, k);
    const struct totals before = totals(e);
    assert_int_equal(before.n_pinned, 2);
    assert_true(before.hits > 8);
    engine_stop(e, 0);
    e = start_big();
    const struct totals after = totals(e);
    assert_int_equal(after.n_pinned, 2);
    assert_int_equal(after.pinned_pos, before.pinned_pos);
    assert_int_equal(after.hits, before.hits); /* of those not worth writing there were none */
    for (uint32_t i = 1; i < 100; i++)
        engine_pin(e, i, false);
    engine_stop(e, 0);
    e = start_big();
    assert_int_equal(totals(e).n_pinned, 0);
    assert_int_equal(totals(e).n, after.n);
    engine_stop(e, 0);
}

static char copy_dir[300];

static void copy_file(const char *path, struct rng *rng)
{
    (void)rng;
    char *p, to[600];
    size_t n;
    struct err err;
    const char *name = strrchr(path, '/') + 1;
    if (file_read_all(path, GIB, &p, &n, &err)) /* renamed or removed meanwhile */
        return;
    snprintf(to, sizeof to, "%s/%s", copy_dir, name);
    must(file_write_atomically(to, p, n, &err), &err);
    mem_free(p);
}

/* A copy of the directory is what a process killed at that moment would have left. */
static void a_pin_outlives_a_process_that_is_killed(void **state)
{
    (void)state;
    struct engine *e = start_big(), *other;
    assert_true(warm(e, 1));
    for (uint32_t n_pinned = 0, tries = 0; !n_pinned; tries++) {
        assert_true(tries < 200);
        usleep(20000); /* the file is written in idle time, and after it that it is pinned */
        snprintf(copy_dir, sizeof copy_dir, "%s.copy", here.dir);
        assert_int_equal(mkdir(copy_dir, 0700), 0);
        each_file(copy_file, NULL);
        other = start(copy_dir, 64 * MIB, GIB);
        n_pinned = totals(other).n_pinned;
        engine_stop(other, 0);
        char cmd[600];
        snprintf(cmd, sizeof cmd, "rm -r '%s'", copy_dir);
        assert_int_equal(system(cmd), 0);
    }
    engine_stop(e, 0);
}

/* ---- files of another make ---- */

/* The last piece's word on prompt k, asked once over another model of the same file. */
static struct foreign_state foreign_of(const struct model_opts *mo, uint32_t k)
{
    struct model *m;
    struct engine *e;
    struct err err;
    must(model_open(world.g, mo, &m, &err), &err);
    const struct engine_opts o = {.model = m,
                                  .vocab = world.vocab,
                                  .lg = &lg,
                                  .n_parallel = 1,
                                  .n_ctx = 1024,
                                  .cache_ram_bytes = 64 * MIB,
                                  .cache_dir = here.dir,
                                  .cache_disk_bytes = GIB};
    must(engine_start(&o, &e, &err), &err);
    struct foreign_state f = {0};
    for (int again = 0; again < 2; again++) {
        struct job *j = submit(e, here.prompts[k], N_PROMPT);
        for (bool last = false; !last;) {
            struct piece *p = job_next(j, UINT64_MAX);
            last = p->last;
            if (last && !again)
                f = p->foreign;
            else if (last) /* it is known here by now */
                assert_true(!p->foreign.pos && p->timings.n_reused > N_PROMPT / 2);
            if (last && !again)
                assert_true(p->plan.lcp == 0 && p->timings.n_reused == 0);
            piece_free(p);
        }
        job_free(j);
    }
    engine_stop(e, 0);
    model_close(m);
    return f;
}

static void a_prompt_is_told_of_states_that_another_kv_type_or_kernel_table_made(void **state)
{
    (void)state;
    struct engine *e = start_big();
    for (uint32_t k = 0; k < 4; k++)
        ask(e, k / 2);
    engine_stop(e, 0);
    FILE *nowhere = fopen("/dev/null", "w");
    lg.out = nowhere; /* that files are left alone */
    const struct model_opts others[] = {
        {.pool = world.pool, .kv_type = KV_F32, .max_batch = 64},
        {.pool = world.pool,
         .kv_type = KV_F16,
         .max_batch = 64,
         .isa = strcmp(model_info(world.model)->isa, "ref") ? "ref" : "avx2"}};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        const struct foreign_state f = foreign_of(&others[i], (uint32_t)i);
        assert_in_range(f.pos, N_PROMPT / 2, N_PROMPT - 1);
        assert_string_equal(f.by.kv_type, "f16");
        assert_string_equal(f.by.kernels, model_info(world.model)->isa);
        assert_true(f.by.fingerprint == model_info(world.model)->shape.fingerprint);
        assert_int_equal(foreign_of(&others[i], (uint32_t)i + 2).pos, 0); /* nobody asked that */
    }
    lg.out = NULL;
    fclose(nowhere);
    e = start_big();
    assert_true(ask(e, 0) > N_PROMPT / 2); /* and for their maker they are what they were */
    engine_stop(e, 0);
}

static void any_allocation_may_fail_while_state_is_read(void **state)
{
    (void)state;
    struct engine *e = start_big();
    for (uint32_t k = 0; k < 4; k++)
        ask(e, k);
    engine_stop(e, 0);
    struct answer *a = mem_alloc(sizeof *a);
    for (uint64_t n = 1; n < 60; n++) {
        e = start_big();
        struct job *j = submit(e, here.prompts[n % 4], N_PROMPT);
        mem_fail_after(n);
        read_all(j, a);
        mem_fail_after(0);
        assert_true(a->stop != STOP_ERROR || a->err.rc == RC_NOMEM);
        if (a->stop != STOP_ERROR)
            assert_same(&here.want[n % 4], a);
        ask(e, n % 4);
        engine_stop(e, 0);
    }
    mem_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(after_a_restart_requests_go_on_from_disk_with_the_same_bits,
                                  clear),
        cmocka_unit_test_teardown(what_does_not_fit_into_memory_comes_back_from_disk, clear),
        cmocka_unit_test_teardown(random_traffic_over_small_tiers_changes_no_answer, clear),
        cmocka_unit_test_teardown(while_state_is_read_others_are_computed, clear),
        cmocka_unit_test_teardown(while_the_disk_does_not_take_writes_nobody_waits, clear),
        cmocka_unit_test_teardown(damaged_files_cost_time_and_no_answer, clear),
        cmocka_unit_test_teardown(those_that_wait_for_a_damaged_file_evaluate_instead, clear),
        cmocka_unit_test_teardown(a_full_disk_is_said_once_and_costs_no_answer, clear),
        cmocka_unit_test_teardown(a_second_engine_on_the_directory_keeps_to_memory, clear),
        cmocka_unit_test_teardown(other_policies_leave_the_directory_alone, clear),
        cmocka_unit_test_teardown(a_smaller_budget_at_the_next_start_keeps_what_was_used_last,
                                  clear),
        cmocka_unit_test_teardown(pins_and_hits_outlive_a_restart, clear),
        cmocka_unit_test_teardown(a_pin_outlives_a_process_that_is_killed, clear),
        cmocka_unit_test_teardown(
            a_prompt_is_told_of_states_that_another_kv_type_or_kernel_table_made, clear),
        cmocka_unit_test_teardown(any_allocation_may_fail_while_state_is_read, clear),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
