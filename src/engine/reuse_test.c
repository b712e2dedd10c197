/* Plans carried out over real pages and snapshots, without a model: random traffic of paths that part and end inside
 * pages, each row and each slot stamped with what it stands for.  SEED repeats a run. */
#include "engine/reuse.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"

#include <cmocka.h>

enum { N_MAX = 420, N_LIVES = 4, N_PATHS = 10 };

struct path {
    token seq[N_MAX];
    uint32_t n;
};

struct run {
    struct reuse *r;
    struct live lives[N_LIVES];
    struct path paths[N_LIVES]; /* of lives */
    uint32_t n_prompt[N_LIVES];
    bool on[N_LIVES];
    struct path past[N_PATHS];
    struct rng rng;
    uint32_t n_restores, n_from_disk, n_pauses;
};

static const struct shape shape = {.n_attn = 1,
                                   .n_delta = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = 32,
                                   .kv_type = KV_F16,
                                   .conv_taps = 4,
                                   .conv_channels = 16,
                                   .n_v_heads = 1,
                                   .state_dim = 16,
                                   .fingerprint = 77};
static const struct logger quiet = {.level = LOG_INFO};

static uint64_t seed_of_run(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 10) : 1;
}

/* ---- stamps ---------------------------------------------------------------------------------- */

/* Of a path's first n tokens. */
static uint64_t stamp_of(const token *seq, uint32_t n)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)seq[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return h;
}

static void *row(struct run *t, const struct live *l, uint32_t pos)
{
    return (uint8_t *)kv_v(reuse_kv(t->r), l->kv.pages[pos / KV_PAGE], 0, 0) +
           pos % KV_PAGE * shape_row_bytes(&shape);
}

static void evaluate(struct run *t, uint32_t k, uint32_t n)
{
    struct live *l = &t->lives[k];
    struct err err;
    if (reuse_extend(t->r, l, n, &err))
        fail_msg("%s", err.msg);
    for (uint32_t i = l->pos; i < l->pos + n; i++) {
        const uint64_t s = stamp_of(t->paths[k].seq, i + 1);
        memcpy(row(t, l, i), &s, sizeof s);
        memcpy(rec_bytes(reuse_rec(t->r), l->rec), &s, sizeof s);
    }
    reuse_advance(t->r, l, n);
}

static void check_restored(struct run *t, uint32_t k)
{
    const struct live *l = &t->lives[k];
    for (uint32_t i = 0; i < l->pos; i++) {
        const uint64_t s = stamp_of(t->paths[k].seq, i + 1);
        assert_memory_equal(row(t, l, i), &s, sizeof s);
    }
    const uint64_t s = stamp_of(t->paths[k].seq, l->pos);
    if (l->pos)
        assert_memory_equal(rec_bytes(reuse_rec(t->r), l->rec), &s, sizeof s);
    t->n_restores += l->pos > 0;
    t->n_from_disk += l->pos > 0 && l->plan.fetch;
}

static void remove_dir(const char *path)
{
    char name[600];
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            unlink(name);
    }
    closedir(d);
    rmdir(path);
}

/* ---- traffic --------------------------------------------------------------------------------- */

/* An earlier path, or one that is just being walked, up to somewhere, and some more. */
static void next_path(struct run *t, struct path *p)
{
    const struct path *from = rng_below(&t->rng, 3) ? &t->past[rng_below(&t->rng, N_PATHS)]
                                                    : &t->paths[rng_below(&t->rng, N_LIVES)];
    p->n = from->n && rng_below(&t->rng, 2) ? 1 + (uint32_t)rng_below(&t->rng, from->n) : from->n;
    memcpy(p->seq, from->seq, p->n * sizeof *p->seq);
    uint32_t more = 1 + (uint32_t)rng_below(&t->rng, rng_below(&t->rng, 3) ? 70 : 200);
    while (more-- && p->n < N_MAX)
        p->seq[p->n++] = (token)rng_below(&t->rng, 1000);
}

static void begin(struct run *t, uint32_t k)
{
    struct live *l = &t->lives[k];
    struct path *p = &t->paths[k];
    *l = (struct live){.id = k + 1};
    struct path next;
    next_path(t, &next);
    *p = next;
    t->n_prompt[k] = p->n - (uint32_t)rng_below(&t->rng, MIN(p->n, 40));
    const struct plan_req req = {.prompt = p->seq, .n = t->n_prompt[k]};
    struct err err;
    if (reuse_begin(t->r, l, &req, &err))
        fail_msg("%s", err.msg);
    t->on[k] = true;
    if (!l->fetching)
        check_restored(t, k);
}

static void end(struct run *t, uint32_t k)
{
    struct live *l = &t->lives[k];
    t->paths[k].n = l->pos;
    t->past[rng_below(&t->rng, N_PATHS)] = t->paths[k];
    l->in_prompt = l->pos < t->n_prompt[k];
    reuse_end(t->r, l, t->paths[k].seq);
    t->on[k] = false;
}

static void go_on(struct run *t, uint32_t k)
{
    struct live *l = &t->lives[k];
    const struct path *p = &t->paths[k];
    if (l->fetching) {
        if (reuse_is_reading(t->r, l))
            return;
        struct err err;
        if (reuse_fetched(t->r, l, &err))
            fail_msg("%s", err.msg);
        check_restored(t, k);
        return;
    }
    const struct cut *cut = reuse_next_cut(l);
    const uint32_t to = cut && cut->pos < p->n ? cut->pos : p->n;
    evaluate(t, k, 1 + (uint32_t)rng_below(&t->rng, to - l->pos));
    if (cut && l->pos == cut->pos)
        reuse_keep(t->r, l, p->seq, cut->kind);
    else if (rng_below(&t->rng, 8) == 0) { /* kept at any place of a page */
        const snap_id id = reuse_pin(t->r, l, p->seq);
        if (id)
            cache_pin(reuse_cache(t->r), id, false);
    }
    if (l->pos == p->n || rng_below(&t->rng, 12) == 0)
        end(t, k);
}

static void drop_one(struct run *t)
{
    struct cache_stats st;
    struct cache_entry e;
    cache_stats(reuse_cache(t->r), &st);
    if (st.n_snaps &&
        cache_entry_at(reuse_cache(t->r), (uint32_t)rng_below(&t->rng, st.n_snaps), &e))
        reuse_drop(t->r, e.id);
}

static bool any_on(const struct run *t)
{
    bool on = false;
    for (uint32_t k = 0; k < N_LIVES; k++)
        on |= t->on[k];
    return on;
}

/* With nobody running every page is some entry's, and the cache has booked each once.  Every other time the disk gets
 * all there is: however slow it is, some of what is wanted later is only there. */
static void check_pages(struct run *t)
{
    struct cache_stats st;
    reuse_flush(t->r, t->n_pauses % 2 ? UINT64_MAX : 0);
    reuse_check(t->r);
    cache_stats(reuse_cache(t->r), &st);
    assert_int_equal(kv_n_pages(reuse_kv(t->r)), st.n_pages);
    t->n_pauses++;
}

/* dir: NULL or a directory that is there. */
static void traffic(struct run *t, uint64_t seed, const char *dir, uint32_t n_steps)
{
    *t = (struct run){.rng = {seed}};
    const uint64_t snap = shape_snap_bytes(&shape), page = shape_page_bytes(&shape);
    const struct reuse_opts o = {.shape = shape,
                                 .n_slots = N_LIVES,
                                 .cache_ram_bytes = 14 * snap + 24 * page + 20000,
                                 .cache_dir = dir,
                                 .cache_disk_bytes = dir ? 256 * (snap + 4 * page) : 0,
                                 .disk_read_rate = 1e12,
                                 .kernels = "none",
                                 .cache_step = 32,
                                 .lg = &quiet};
    struct err err;
    if (reuse_new(&o, &t->r, &err))
        fail_msg("%s", err.msg);
    print_message("SEED=%" PRIu64 "\n", seed); /* a broken account aborts */
    for (uint32_t i = 0; i < n_steps || any_on(t); i++) {
        const uint32_t k = (uint32_t)rng_below(&t->rng, N_LIVES);
        const bool pause = i % 200 > 150;
        if (t->on[k])
            go_on(t, k);
        else if (i < n_steps && !pause)
            begin(t, k);
        if (rng_below(&t->rng, 40) == 0)
            drop_one(t);
        reuse_poll(t->r);
        reuse_check(t->r);
        if (!any_on(t))
            check_pages(t);
    }
}

static void entries_hold_what_the_cache_has_booked(void **state)
{
    (void)state;
    const uint64_t seed = seed_of_run();
    uint32_t n_restores = 0;
    for (uint64_t i = 0; i < 8; i++) {
        static struct run t;
        traffic(&t, seed + i, NULL, 1500);
        assert_true(t.n_pauses > 10);
        n_restores += t.n_restores;
        reuse_free(t.r);
    }
    assert_true(n_restores > 200);
}

static void with_a_disk_entries_hold_what_the_cache_has_booked(void **state)
{
    (void)state;
    const uint64_t seed = seed_of_run();
    uint32_t n_from_disk = 0;
    for (uint64_t i = 0; i < 4; i++) {
        static struct run t;
        char dir[256];
        snprintf(dir, sizeof dir, "%s/engine_reuse-%d-%" PRIu64, HOUSE_BINARY_DIR, (int)getpid(),
                 i);
        traffic(&t, seed + i, dir, 1500);
        n_from_disk += t.n_from_disk;
        reuse_free(t.r);
        remove_dir(dir);
    }
    assert_true(n_from_disk > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_hold_what_the_cache_has_booked),
        cmocka_unit_test(with_a_disk_entries_hold_what_the_cache_has_booked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
