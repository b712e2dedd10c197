/* holdfast replay TRACE: what each policy would reuse of a workload, in how many bytes. */
#include "cli/cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/opts.h"
#include "gguf/gguf.h"
#include "lab/legacy.h"
#include "lab/live.h"
#include "lab/sim.h"
#include "model/model.h"

enum { MAX_LIST = 32 };

struct replay {
    const char *trace_path, *policies, *budgets, *model;
    const char *live, *against, *api_key;
    double scale, speed;
    uint32_t n_requests;
    double rate; /* prefill, tokens a second */
    uint64_t disk_bytes, disk_rate;
    uint32_t step, page_tokens;
    bool json, no_hints, charge_tree;
    uint64_t tree_bytes;
    uint64_t snap_bytes, token_bytes;
    struct logger lg;
    struct trace *t;
    uint32_t *oracle;
    uint64_t oracle_tokens;
};

struct list {
    char *own; /* mem_free */
    char *parts[MAX_LIST];
    uint32_t n;
};

/* Splits s, the value of an option, at commas. */
static enum rc split_list(const char *option, const char *s, struct list *l, struct err *err)
{
    *l = (struct list){.own = mem_strdup(s)};
    char *rest = l->own;
    for (char *w; (w = strsep(&rest, ",")) != NULL;) {
        if (!*w)
            return err_set(err, RC_ARG, "%s: an empty name in '%s'", option, s);
        if (l->n == MAX_LIST)
            return err_set(err, RC_ARG, "%s: more than %d of them", option, MAX_LIST);
        l->parts[l->n++] = w;
    }
    return RC_OK;
}

static enum rc check_policy(const char *name, struct err *err)
{
    struct legacy_opts legacy;
    struct buf all = BUF_INIT;
    bool known = legacy_by_name(name, &legacy);
    for (size_t i = 0; cache_policy_at(i) && !known; i++) {
        known = !strcmp(cache_policy_at(i), name);
        buf_addf(&all, "%s, ", cache_policy_at(i));
    }
    for (size_t i = 0; legacy_name_at(i) && !known; i++)
        buf_addf(&all, "%s%s", i ? ", " : "", legacy_name_at(i));
    if (!known)
        err_set(err, RC_ARG, "--policy: '%.40s' is none; there are %s", name, buf_str(&all));
    buf_release(&all);
    return known ? RC_OK : RC_ARG;
}

/* All that is asked for is looked at before the first is run. */
static enum rc read_lists(const struct replay *r, struct list *policies, struct list *budgets,
                          struct err *err)
{
    *budgets = (struct list){0};
    enum rc rc = split_list("--policy", r->policies, policies, err);
    if (!rc)
        rc = split_list("--budget", r->budgets, budgets, err);
    for (uint32_t i = 0; !rc && i < policies->n; i++)
        rc = check_policy(policies->parts[i], err);
    uint64_t bytes;
    for (uint32_t i = 0; !rc && i < budgets->n; i++)
        if (!str_to_bytes(budgets->parts[i], &bytes))
            rc = err_set(err, RC_ARG, "--budget: '%s' is no number of bytes", budgets->parts[i]);
    return rc;
}

/* Bytes of a snapshot and of a token's KV: of a published shape, or of a file. */
static enum rc model_sizes(struct replay *r, struct err *err)
{
    static const struct {
        const char *name;
        uint64_t snap_bytes, token_bytes;
    } known[] = {
        /* delta layers x (value heads x 128 x 128 + 3 x channels) f32; attention layers x K and V of 2 heads of
         * 256 f16 */
        {"35b", 30ull * (32 * 128 * 128 + 3 * 8192) * 4, 10ull * 2 * 2 * 256 * 2},
        {"0.8b", 18ull * (16 * 128 * 128 + 3 * 6144) * 4, 6ull * 2 * 2 * 256 * 2},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (!strcmp(r->model, known[i].name)) {
            r->snap_bytes = known[i].snap_bytes;
            r->token_bytes = known[i].token_bytes;
            return RC_OK;
        }
    struct gguf *g;
    struct model_info info;
    enum rc rc = gguf_open(r->model, &g, err);
    if (rc)
        return err_wrap(err, rc, "--model: neither 35b nor 0.8b nor a model file");
    rc = model_describe(g, KV_DEFAULT, &info, err);
    if (!rc) {
        r->snap_bytes = shape_snap_bytes(&info.shape);
        r->token_bytes = shape_token_bytes(&info.shape);
    }
    gguf_close(g);
    return rc;
}

/* -- rows ------------------------------------------------------------------------------------ */

struct row {
    const char *policy;
    uint64_t ram_bytes;
    bool legacy; /* counts slots, not a cache: no causes */
    uint64_t reused, snaps, evictions;
    struct sim_result sim;
    double seconds;
};

static double share(const struct replay *r, uint64_t tokens)
{
    return r->oracle_tokens ? (double)tokens / (double)r->oracle_tokens : 0;
}

static void print_head(const struct replay *r)
{
    char snap[16];
    str_from_bytes(r->snap_bytes, snap);
    printf("%s: %" PRIu32 " requests, %" PRIu64 " prompt tokens, %.1f %% reusable\n", r->t->name,
           r->t->n, r->t->prompt_tokens,
           r->t->prompt_tokens ? 100.0 * (double)r->oracle_tokens / (double)r->t->prompt_tokens
                               : 0);
    printf("%s: %s a snapshot, %" PRIu64 " B of KV a token\n\n", r->model, snap, r->token_bytes);
    printf("%-18s %9s %7s %12s %9s %9s %10s %9s %6s %6s %6s %6s\n", "", "", "of the", "tokens",
           "seconds", "snapshots", "", "", "lost", "lost", "lost", "lost");
    printf("%-18s %9s %7s %12s %9s %9s %10s %9s %6s %6s %6s %6s\n", "policy", "budget", "oracle",
           "reused", "saved", "/request", "written", "evicted", "placed", "gone", "refused",
           "other");
}

static void print_row(const struct replay *r, const struct row *x)
{
    char budget[16], written[16], saved[32] = "-", lost[4][16];
    str_from_bytes(x->ram_bytes, budget);
    str_from_bytes(x->snaps * r->snap_bytes, written);
    if (r->rate > 0)
        snprintf(saved, sizeof saved, "%.0f", (double)x->reused / r->rate);
    const struct cache_stats *s = &x->sim.cache;
    const uint64_t causes[4] = {s->lost_placement, s->lost_evicted, s->lost_rejected,
                                s->lost_minimum + s->lost_last};
    for (int i = 0; i < 4; i++)
        if (x->legacy)
            snprintf(lost[i], sizeof lost[i], "-");
        else
            snprintf(lost[i], sizeof lost[i], "%.1f%%", 100 * share(r, causes[i]));
    printf("%-18s %9s %6.1f%% %12" PRIu64 " %9s %9.2f %10s %9" PRIu64 " %6s %6s %6s %6s\n",
           x->policy, x->legacy && !x->ram_bytes ? "-" : budget, 100 * share(r, x->reused),
           x->reused, saved, (double)x->snaps / r->t->n, written, x->evictions, lost[0], lost[1],
           lost[2], lost[3]);
    if (r->disk_bytes && !x->legacy) {
        char out[16], in[16];
        str_from_bytes(s->spill_bytes, out);
        str_from_bytes(s->fetch_bytes, in);
        printf("%28s disk: %s written in %" PRIu64 " entries, %s read in %" PRIu64
               ", %.0f s reading\n",
               "", out, s->spills, in, s->fetches, x->sim.read_seconds);
    }
    fflush(stdout);
}

static void write_row(const struct replay *r, const struct row *x, struct jwrite *w)
{
    const struct cache_stats *s = &x->sim.cache;
    jwrite_obj(w, NULL);
    jwrite_str(w, "policy", x->policy);
    jwrite_u64(w, "budget_bytes", x->ram_bytes);
    jwrite_fixed(w, "fraction", share(r, x->reused), 5);
    jwrite_u64(w, "reused_tokens", x->reused);
    if (r->rate > 0)
        jwrite_fixed(w, "seconds_saved", (double)x->reused / r->rate, 1);
    jwrite_u64(w, "snapshots", x->snaps);
    jwrite_u64(w, "snapshot_bytes_written", x->snaps * r->snap_bytes);
    jwrite_u64(w, "evictions", x->evictions);
    if (!x->legacy) {
        jwrite_u64(w, "hits", x->sim.hits);
        jwrite_u64(w, "offers", s->offers);
        jwrite_u64(w, "rejected", s->rejected);
        jwrite_obj(w, "lost_tokens");
        jwrite_u64(w, "placement", s->lost_placement);
        jwrite_u64(w, "evicted", s->lost_evicted);
        jwrite_u64(w, "rejected", s->lost_rejected);
        jwrite_u64(w, "minimum", s->lost_minimum);
        jwrite_u64(w, "last", s->lost_last);
        jwrite_end_obj(w);
        if (r->disk_bytes) {
            jwrite_u64(w, "disk_bytes", r->disk_bytes);
            jwrite_u64(w, "disk_bytes_at_end", s->disk_bytes);
            jwrite_u64(w, "spills", s->spills);
            jwrite_u64(w, "spill_bytes", s->spill_bytes);
            jwrite_u64(w, "fetches", s->fetches);
            jwrite_u64(w, "fetch_bytes", s->fetch_bytes);
            jwrite_u64(w, "disk_evictions", s->disk_evictions);
            jwrite_fixed(w, "read_seconds", x->sim.read_seconds, 1);
        }
        jwrite_u64(w, "bytes_at_end", s->bytes);
        jwrite_u64(w, "tree_bytes", s->tree_bytes);
        jwrite_fixed(w, "decide_ms_mean", x->sim.decide_ms_mean, 4);
        jwrite_fixed(w, "decide_ms_max", x->sim.decide_ms_max, 3);
    }
    jwrite_fixed(w, "seconds", x->seconds, 3);
    jwrite_end_obj(w);
}

/* -- runs ------------------------------------------------------------------------------------ */

static void show_progress(void *ctx, uint32_t done, uint32_t total)
{
    progress_at(ctx, done, total);
}

static enum rc run_legacy(const struct replay *r, const struct legacy_opts *o, struct row *x,
                          struct err *err)
{
    struct legacy_result res;
    const enum rc rc = legacy_run(r->t, o, NULL, &res, err);
    x->legacy = true;
    x->reused = res.reused_tokens;
    x->snaps = res.made;
    x->evictions = res.erased + res.evicted + res.thinned;
    x->seconds = res.seconds;
    x->ram_bytes = 0;
    return rc;
}

static enum rc run_hold(const struct replay *r, struct row *x, struct err *err)
{
    struct progress bar;
    char what[64];
    snprintf(what, sizeof what, "%s at %" PRIu64 " MiB", x->policy, x->ram_bytes / MIB);
    progress_begin(&bar, &r->lg, what);
    const struct sim_opts o = {
        .policy = x->policy,
        .ram_bytes = x->ram_bytes,
        .snap_bytes = r->snap_bytes,
        .token_bytes = r->token_bytes,
        .page_tokens = r->page_tokens,
        .step = r->step,
        .tree_bytes = r->tree_bytes,
        .charge_tree = r->charge_tree,
        .disk_bytes = r->disk_bytes,
        .rates = {r->rate, (double)r->disk_rate, (double)r->disk_rate},
        .no_hints = r->no_hints,
        .progress = show_progress,
        .progress_ctx = &bar,
    };
    const enum rc rc = sim_run(r->t, &o, r->oracle, NULL, &x->sim, err);
    progress_end(&bar);
    x->reused = x->sim.saved_tokens;
    x->snaps = x->sim.cache.commits;
    x->evictions = x->sim.cache.evictions;
    x->seconds = x->sim.seconds;
    return rc;
}

static void emit(const struct replay *r, const struct row *x, struct jwrite *w)
{
    if (r->json)
        write_row(r, x, w);
    else
        print_row(r, x);
}

static enum rc run_policy(struct replay *r, const char *policy, const struct list *budgets,
                          struct jwrite *w, struct err *err)
{
    struct row x = {.policy = policy};
    struct legacy_opts legacy;
    if (legacy_by_name(policy, &legacy)) { /* its memory is its slots', whatever the budget */
        legacy.snap_bytes = r->snap_bytes;
        legacy.token_bytes = r->token_bytes;
        const enum rc rc = run_legacy(r, &legacy, &x, err);
        if (!rc)
            emit(r, &x, w);
        return rc;
    }
    for (uint32_t i = 0; i < budgets->n; i++) {
        CHECK(str_to_bytes(budgets->parts[i], &x.ram_bytes));
        const enum rc rc = run_hold(r, &x, err);
        if (rc)
            return rc;
        emit(r, &x, w);
        if (!strcmp(policy, "none")) /* whatever the budget */
            break;
    }
    return RC_OK;
}

static enum rc run_all(struct replay *r, const struct list *policies, const struct list *budgets,
                       struct err *err)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    jwrite_init(&w, &b);
    enum rc rc = RC_OK;
    if (r->json) {
        jwrite_obj(&w, NULL);
        jwrite_str(&w, "trace", r->t->name);
        jwrite_u64(&w, "requests", r->t->n);
        jwrite_u64(&w, "prompt_tokens", r->t->prompt_tokens);
        jwrite_u64(&w, "oracle_tokens", r->oracle_tokens);
        jwrite_u64(&w, "snapshot_bytes", r->snap_bytes);
        jwrite_u64(&w, "token_bytes", r->token_bytes);
        jwrite_arr(&w, "runs");
    } else {
        print_head(r);
    }
    for (uint32_t i = 0; i < policies->n && !rc; i++)
        rc = run_policy(r, policies->parts[i], budgets, &w, err);
    if (r->json && !rc) {
        jwrite_end_arr(&w);
        jwrite_end_obj(&w);
        if (b.failed)
            rc = err_set(err, RC_NOMEM, "no memory for the result");
        else
            puts(buf_str(&b));
    }
    buf_release(&b);
    return rc;
}

/* -- live ------------------------------------------------------------------------------------ */

static double off_by(const struct live_result *x)
{
    return x->predicted ? ((double)x->reported / (double)x->predicted - 1) * 100 : 0;
}

static void print_live(const struct replay *r, const struct live_result *x)
{
    char budget[16], snap[16];
    str_from_bytes(x->budget_bytes, budget);
    str_from_bytes(x->snap_bytes, snap);
    const struct live_one *w = &x->all[x->worst];
    printf("%s: %" PRIu32 " requests, %" PRIu64 " prompt tokens, %" PRIu64 " reusable\n",
           r->t->name, x->n, x->prompt_tokens, r->oracle_tokens);
    printf("%s: policy %s, budget %s, %s a snapshot, %" PRIu64 " B of KV a token\n\n", r->live,
           x->policy, budget, snap, x->token_bytes);
    printf("predicted  %12" PRIu64 " tokens reused\n", x->predicted);
    printf("reported   %12" PRIu64 " tokens reused (%+.3f %%)\n", x->reported, off_by(x));
    printf("requests   %12" PRIu32 " differ", x->n_differ);
    if (x->n_differ)
        printf("; most: request %" PRIu32 " of %" PRIu32 " tokens, predicted %" PRIu32
               ", reported %" PRIu32,
               x->worst, w->n_prompt, w->predicted, w->reported);
    printf("\nprefill    %12.1f s of %.1f s\n", x->prompt_seconds, x->seconds);
    if (x->n_checked)
        printf("evaluated whole at %s: %" PRIu32 " of %" PRIu32 " completions are equal\n",
               r->against, x->n_checked - x->n_unequal, x->n_checked);
    if (x->n_unequal)
        printf("the first that is not: request %" PRIu32 "\n", x->first_unequal);
}

static enum rc print_live_json(const struct replay *r, const struct live_result *x, struct err *err)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "trace", r->t->name);
    jwrite_str(&w, "url", r->live);
    jwrite_str(&w, "policy", x->policy);
    jwrite_u64(&w, "budget_bytes", x->budget_bytes);
    jwrite_u64(&w, "snapshot_bytes", x->snap_bytes);
    jwrite_u64(&w, "token_bytes", x->token_bytes);
    jwrite_u64(&w, "requests", x->n);
    jwrite_u64(&w, "prompt_tokens", x->prompt_tokens);
    jwrite_u64(&w, "oracle_tokens", r->oracle_tokens);
    jwrite_u64(&w, "predicted_tokens", x->predicted);
    jwrite_u64(&w, "reported_tokens", x->reported);
    jwrite_fixed(&w, "off_by_percent", off_by(x), 4);
    jwrite_u64(&w, "differing_requests", x->n_differ);
    jwrite_u64(&w, "checked", x->n_checked);
    jwrite_u64(&w, "unequal", x->n_unequal);
    jwrite_fixed(&w, "seconds", x->seconds, 3);
    jwrite_fixed(&w, "prompt_seconds", x->prompt_seconds, 3);
    jwrite_arr(&w, "per_request");
    for (uint32_t i = 0; i < x->n; i++) {
        const struct live_one *one = &x->all[i];
        jwrite_obj(&w, NULL);
        jwrite_u64(&w, "prompt_tokens", one->n_prompt);
        jwrite_u64(&w, "predicted", one->predicted);
        jwrite_u64(&w, "reported", one->reported);
        jwrite_fixed(&w, "prompt_ms", one->prompt_ms, 3);
        jwrite_end_obj(&w);
    }
    jwrite_end_arr(&w);
    jwrite_end_obj(&w);
    const bool failed = b.failed;
    if (!failed)
        puts(buf_str(&b));
    buf_release(&b);
    return failed ? err_set(err, RC_NOMEM, "no memory for the result") : RC_OK;
}

/* *unequal: some completion was not what it is without reuse. */
static enum rc run_live(struct replay *r, bool *unequal, struct err *err)
{
    struct progress bar;
    struct live_result x;
    progress_begin(&bar, &r->lg, r->live);
    const struct live_opts o = {.url = r->live,
                                .api_key = r->api_key,
                                .against = r->against,
                                .speed = r->speed,
                                .no_hints = r->no_hints,
                                .progress = show_progress,
                                .progress_ctx = &bar};
    enum rc rc = live_run(r->t, &o, &x, err);
    progress_end(&bar);
    *unequal = x.n_unequal > 0;
    if (!rc && r->json)
        rc = print_live_json(r, &x, err);
    else if (!rc)
        print_live(r, &x);
    live_result_release(&x);
    return rc;
}

int cmd_replay(int argc, char **argv)
{
    struct replay r = {.policies = "hold",
                       .budgets = "1G,4G,16G",
                       .model = "35b",
                       .scale = 1,
                       .disk_rate = 1000000000,
                       .lg = {.level = LOG_INFO, .out = stderr}};
    const struct opt table[] = {
        {"--policy", OPT_STR, &r.policies, .arg = "P,...",
         .help = "policies to compare, see below (hold)"},
        {"--budget", OPT_STR, &r.budgets, .arg = "BYTES,...",
         .help = "memory of the cache (1G,4G,16G)"},
        {"--model", OPT_STR, &r.model, .arg = "35b|0.8b|FILE",
         .help = "whose snapshots and KV are counted (35b)"},
        {"--rate", OPT_F64, &r.rate, .arg = "TOK/S", .min = 0, .max = 1e9,
         .help = "prefill, for the seconds saved"},
        {"--disk", OPT_BYTES, &r.disk_bytes, .arg = "BYTES",
         .help = "a second tier of that size (none); wants --rate"},
        {"--disk-rate", OPT_BYTES, &r.disk_rate, .arg = "BYTES",
         .help = "what it reads in a second (1G)"},
        {"--step", OPT_U32, &r.step, .arg = "N", .help = "grid of snapshots every N tokens (none)"},
        {"--page", OPT_U32, &r.page_tokens, .arg = "N", .max = 65536,
         .help = "count KV in pages of N tokens, as the engine does with 64 (1)"},
        {"--tree", OPT_BYTES, &r.tree_bytes, .arg = "BYTES",
         .help = "cap of the token tree (256M)"},
        {"--charge-tree", OPT_FLAG, &r.charge_tree,
         .help = "count the tree against the budget, as the engine does"},
        {"--no-hints", OPT_FLAG, &r.no_hints, .help = "do not tell where messages begin"},
        {"--requests", OPT_U32, &r.n_requests, .arg = "N", .help = "only the first N (all)"},
        {"--scale", OPT_F64, &r.scale, .arg = "F", .min = 1e-6, .max = 1000,
         .help = "lengths times F, at least a token each (1)"},
        {"--live", OPT_STR, &r.live, .arg = "URL",
         .help = "send the prompts to a holdfast that has just been started, and hold what it "
                 "reuses against the simulator"},
        {"--speed", OPT_F64, &r.speed, .arg = "F", .min = 0, .max = 1e9,
         .help = "with --live: F times as fast as recorded; 0: as fast as it goes (0)"},
        {"--against", OPT_STR, &r.against, .arg = "URL",
         .help = "with --live: afterwards every prompt again, reusing nothing, there; completions "
                 "must be equal"},
        {"--api-key", OPT_STR, &r.api_key, .arg = "KEY", .help = "with --live"},
        {"--json", OPT_FLAG, &r.json, .help = "as JSON, with more numbers"},
    };
    char epilog[1024];
    int n = snprintf(epilog, sizeof epilog,
                     "policies: hold   the server's own\n"
                     "          lru    branch points, ends and a grid of 8192 (--step); least "
                     "recently used goes first\n"
                     "          none   every prompt is evaluated whole\n"
                     "and of the slot caches, whose memory is their slots':");
    for (size_t i = 0; legacy_name_at(i) && n < (int)sizeof epilog; i++)
        n += snprintf(epilog + n, sizeof epilog - (size_t)n, " %s", legacy_name_at(i));
    const struct opts o = {
        .command = "replay",
        .operands_help = "TRACE",
        .intro = "Serve a recorded workload (- is standard input) from a cache that only counts "
                 "bytes, once per policy "
                 "and budget.\n"
                 "The oracle remembers everything and has a snapshot at every token.",
        .table = table,
        .n = COUNT_OF(table),
        .operands = &r.trace_path,
        .min_operands = 1,
        .max_operands = 1,
        .epilog = epilog,
    };
    const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    if (r.disk_bytes && (!r.disk_rate || r.rate <= 0)) {
        fprintf(stderr,
                "holdfast replay: --disk weighs reading against prefill: it wants --rate and "
                "a --disk-rate\n");
        return 2;
    }
    struct err err = {0};
    struct list policies, budgets;
    enum rc rc = read_lists(&r, &policies, &budgets, &err);
    if (!rc)
        rc = model_sizes(&r, &err);
    if (!rc)
        rc = trace_open(r.trace_path, &r.t, &err);
    if (!rc && !r.t->n)
        rc = err_set(&err, RC_FORMAT, "%s: a header and no request", r.trace_path);
    if (!rc)
        rc = trace_shrink(r.t, r.n_requests, r.scale, &err);
    if (!rc)
        rc = sim_oracle(r.t, &r.oracle, &err);
    for (uint32_t i = 0; !rc && i < r.t->n; i++)
        r.oracle_tokens += r.oracle[i];
    bool unequal = false;
    if (!rc)
        rc = r.live ? run_live(&r, &unequal, &err) : run_all(&r, &policies, &budgets, &err);
    if (rc)
        fprintf(stderr, "holdfast replay: %s\n", err.msg);
    mem_free(policies.own);
    mem_free(budgets.own);
    mem_free(r.oracle);
    trace_close(r.t);
    return rc == RC_ARG ? 2 : rc || unequal ? 1 : 0;
}
