/* soak_bench [MIB [REQUESTS]] - does the process take what --cache-ram says, and no more?
 *
 * Random traffic over a tiny model: conversations that grow, branches, one-off prompts, several at once, some cancelled.  First
 * without a cache, which shows what model, activations and running sequences take; then with one.  The difference
 * in resident memory is held against the budget, at its highest and at the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "model/maker.h"

enum { N_TALKS = 400, MAX_TOKENS = 1500, AT_ONCE = 4, N_SAID = 12 };

struct bench {
    struct pool *pool;
    struct gguf *g;
    struct vocab *vocab;
    struct model *model;
    struct logger lg;
};

/* A conversation: its prompt so far. */
struct talk {
    token tokens[MAX_TOKENS];
    uint32_t n;
};

static uint64_t resident(void)
{
    char text[128] = "";
    uint64_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fgets(text, sizeof text, f))
        pages = strtoull(strchr(text, ' ') ? strchr(text, ' ') : "0", NULL, 10);
    if (f)
        fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static enum rc open_model(struct bench *b, struct err *err)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/soak_bench-%d.gguf", (int)getpid());
    const struct maker_opts mo = {.preset = "tiny", .type = DT_F16, .seed = 5};
    const struct pool_opts po = {.n_threads = 1};
    enum rc rc = maker_write(path, &mo, NULL, err);
    if (!rc)
        rc = gguf_open(path, &b->g, err);
    unlink(path); /* it stays mapped */
    if (!rc)
        rc = vocab_open(b->g, &b->vocab, err);
    if (!rc)
        rc = pool_new(&po, &b->pool, err);
    const struct model_opts o = {.pool = b->pool, .kv_type = KV_DEFAULT, .max_batch = 256};
    return rc ? rc : model_open(b->g, &o, &b->model, err);
}

static void add(const struct bench *b, struct talk *t, uint32_t n, struct rng *rng)
{
    while (n && t->n < MAX_TOKENS) {
        const token x = (token)rng_below(rng, vocab_size(b->vocab));
        if (vocab_type(b->vocab, x) != TOKEN_NORMAL)
            continue;
        t->tokens[t->n++] = x;
        n--;
    }
}

/* The next prompt: mostly a conversation that goes on, sometimes one that is edited, or begins anew. */
static struct talk *next_talk(const struct bench *b, struct talk *talks, struct rng *rng)
{
    struct talk *t = &talks[rng_below(rng, N_TALKS)];
    const uint32_t what = rng_below(rng, 10);
    if (!t->n || what == 0 || t->n + 200 > MAX_TOKENS - N_SAID) {
        const struct talk *other = &talks[rng_below(rng, N_TALKS)];
        t->n = MIN(other->n, rng_below(rng, 300));
        memmove(t->tokens, other->tokens, t->n * sizeof *t->tokens);
    } else if (what == 1) {
        t->n = 1 + rng_below(rng, t->n);
    }
    add(b, t, 20 + rng_below(rng, 180), rng);
    return t;
}

struct figures {
    uint64_t highest, last, booked, budget;
    uint64_t reused, prompt, evictions, entries;
    uint64_t kv, snaps, tree; /* bytes */
};

static enum rc traffic(const struct bench *b, const struct engine_opts *o, uint32_t n_requests,
                       struct figures *out, struct err *err)
{
    struct engine *e;
    struct rng rng = {7};
    struct job *jobs[AT_ONCE] = {NULL};
    struct talk *talks = mem_try_array(N_TALKS, sizeof *talks);
    enum rc rc = talks ? engine_start(o, &e, err) : err_set(err, RC_NOMEM, "no memory");
    *out = (struct figures){0};
    if (talks) /* 2.3 MiB that are nobody's but this program's: resident from the start, with a cache and without */
        memset(talks, 0, N_TALKS * sizeof *talks);
    for (uint32_t i = 0; i < n_requests && !rc; i++) {
        const struct talk *t = next_talk(b, talks, &rng);
        struct job_desc d = {.prompt = t->tokens, .n_prompt = t->n, .n_predict = N_SAID};
        sampling_defaults(&d.sampling);
        d.sampling.temperature = 0;
        d.sampling.ignore_eos = true;
        struct job **j = &jobs[i % AT_ONCE];
        bool last = !*j || rng_below(&rng, 20) == 0; /* now and then at whatever point it is */
        while (!last) {
            struct piece *p = job_next(*j, UINT64_MAX);
            last = p->last;
            out->reused += last ? p->timings.n_reused : 0;
            out->prompt += last ? p->timings.n_prompt : 0;
            piece_free(p);
        }
        job_free(*j);
        *j = NULL;
        rc = engine_submit(e, &d, j, err);
        if (i % 16 == 0)
            out->highest = MAX(out->highest, resident());
    }
    for (uint32_t i = 0; i < AT_ONCE; i++)
        job_free(jobs[i]);
    mem_free(talks);
    struct engine_view v;
    if (!rc)
        rc = engine_view(e, false, &v, err);
    if (rc)
        return rc;
    out->last = resident();
    out->booked = v.cache.bytes;
    out->budget = v.cache.budget;
    out->evictions = v.cache.evictions;
    out->entries = v.cache.n_snaps;
    out->kv = v.kv_bytes;
    out->snaps = v.snap_bytes;
    out->tree = v.cache.tree_bytes;
    engine_view_release(&v);
    engine_stop(e, 0);
    return RC_OK;
}

int main(int argc, char **argv)
{
    struct bench b = {.lg = {.level = LOG_ERROR, .out = stderr}};
    const uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 128;
    const uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 6000;
    struct err err;
    struct figures without, with;
    struct engine_opts o = {.n_parallel = AT_ONCE, .n_ctx = 2048, .cache_policy = "none"};
    mem_map_large(); /* as the program does */
    enum rc rc = open_model(&b, &err);
    o.model = b.model;
    o.vocab = b.vocab;
    o.lg = &b.lg;
    if (!rc)
        rc = traffic(&b, &o, 200, &without, &err);
    o.cache_policy = NULL;
    o.cache_ram_bytes = mib * MIB;
    if (!rc)
        rc = traffic(&b, &o, n, &with, &err);
    if (rc) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const double budget = (double)with.budget, base = (double)without.highest;
    printf("%u requests, %.1f M prompt tokens, %.0f %% reused, %" PRIu64 " entries, %" PRIu64
           " evictions\n",
           n, (double)with.prompt * 1e-6, 100.0 * (double)with.reused / (double)with.prompt,
           with.entries, with.evictions);
    printf("budget %.1f MiB, booked %.1f MiB; without a cache the process takes %.1f MiB\n",
           budget / MIB, (double)with.booked / MIB, base / MIB);
    printf("with it at most %.1f MiB more (%.1f %% of the budget), at the end %.1f MiB (%.1f %%)\n",
           ((double)with.highest - base) / MIB, 100 * ((double)with.highest - base) / budget,
           ((double)with.last - base) / MIB, 100 * ((double)with.last - base) / budget);
    printf("at the end: snapshots %.1f MiB, KV taken from the system %.1f MiB, tree %.1f MiB\n",
           (double)with.snaps / MIB, (double)with.kv / MIB, (double)with.tree / MIB);
    model_close(b.model);
    pool_free(b.pool);
    vocab_close(b.vocab);
    gguf_close(b.g);
    return 0;
}
