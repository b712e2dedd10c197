/* holdfast bench: prefill and decode speed, snapshots, and what the machine could do at best.
 *
 * Options, tests and the fields of JSON and CSV follow llama-bench where it has the same.  (A file named
 * ..._bench.c would be a bench of its own.) */
#include "cli/cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/hist.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/opts.h"
#include "cli/opts_place.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "nn/mat_error.h"

enum { MAX_LIST = 32, MAX_TEST_TOKENS = 1 << 20 };

struct list {
    uint32_t v[MAX_LIST];
    size_t n;
};

enum format { FORMAT_MD, FORMAT_JSON, FORMAT_CSV };

struct bench {
    const char *path, *prompts, *gens, *threads, *depths, *output, *kv_name;
    uint32_t n_samples, n_ubatch;
    const char *isa;
    bool no_repack, mlock, mmap, profile, errors, quiet;
    struct place_opts place;
    /* made from them */
    struct list n_prompt, n_gen, n_threads, n_depth;
    enum format format;
    enum kv_type kv_type;
    struct logger lg;
    struct gguf *g;
    bool any; /* a record is out already */
};

/* ---- options --------------------------------------------------------------------------------- */

/* "512,2048"; 0 leaves a test out. */
static bool parse_list(const char *option, const char *s, uint32_t max, struct list *out)
{
    out->n = 0;
    while (true) {
        char *end;
        const unsigned long v = strtoul(s, &end, 10);
        if (end == s || *s == '-' || v > max || out->n == MAX_LIST || (*end && *end != ',')) {
            fprintf(stderr, "holdfast bench: %s takes up to %d numbers from 0 to %u, as in 1,2\n",
                    option, MAX_LIST, max);
            return false;
        }
        out->v[out->n++] = (uint32_t)v;
        if (!*end)
            return true;
        s = end + 1;
    }
}

static bool parse_name(const char *option, const char *s, const char *const *names, size_t n,
                       size_t *out)
{
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(s, names[i])) {
            *out = i;
            return true;
        }
    fprintf(stderr, "holdfast bench: %s is one of", option);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, " %s", names[i]);
    fprintf(stderr, "\n");
    return false;
}

static const char *const formats[] = {
    [FORMAT_MD] = "md", [FORMAT_JSON] = "json", [FORMAT_CSV] = "csv"};

static enum opts_result parse(struct bench *b, int argc, char **argv)
{
    const struct opt table[] = {
        {"-m --model", OPT_STR, &b->path, .arg = "FILE", .help = "GGUF file"},
        {"-p --n-prompt", OPT_STR, &b->prompts, .arg = "N,...",
         .help = "tokens of prefill to time (512; 0 = none)"},
        {"-n --n-gen", OPT_STR, &b->gens, .arg = "N,...",
         .help = "tokens of decode to time (128; 0 = none)"},
        {"-d --n-depth", OPT_STR, &b->depths, .arg = "N,...",
         .help = "tokens that come before (0)"},
        {"-t --threads", OPT_STR, &b->threads, .arg = "N,...", .help = "threads (one a CPU)"},
        {"-r --repetitions", OPT_U32, &b->n_samples, .arg = "N", .help = "samples of each (5)",
         .min = 1, .max = 1000},
        {"-ub --ubatch-size", OPT_U32, &b->n_ubatch, .arg = "N", .help = "rows of a forward (512)",
         .min = 1, .max = 1 << 16},
        {"-ctk --cache-type-k", OPT_STR, &b->kv_name, .arg = "TYPE",
         .help = "KV type: i16, f16, f32, q8_0 (i16)"},
        {"-o --output", OPT_STR, &b->output, .arg = "FORMAT", .help = "md, json or csv (md)"},
        {"--profile", OPT_FLAG, &b->profile, .help = "share of time per operator"},
        {"--errors", OPT_FLAG, &b->errors,
         .help = "instead: the error of a product against f32, for every tensor type"},
        {"--isa", OPT_STR, &b->isa, .arg = "NAME", .help = "kernel table (the best there is)",
         .env = "HOLDFAST_ISA"},
        {"--no-repack -nr", OPT_FLAG, &b->no_repack, .help = "use the file's layout of weights"},
        {"--mmap !--no-mmap", OPT_FLAG, &b->mmap,
         .help = "map the file; else it is read into memory first (on)"},
        {"--mlock", OPT_FLAG, &b->mlock, .help = "keep the weights in RAM"},
        PLACE_OPTS(&b->place),
        {"-q --quiet", OPT_FLAG, &b->quiet, .help = "no progress on stderr"},
    };
    const struct opts o = {
        .command = "bench",
        .intro = "Time a model: prefill, decode and snapshots, with the spread of the samples and\n"
                 "the share of what this machine could do at best (measured around every sample).",
        .table = table,
        .n = COUNT_OF(table)};
    const enum opts_result r = opts_parse(&o, argc, argv, stderr);
    if (r)
        return r;
    if (!b->path && !b->errors) {
        fprintf(stderr, "holdfast bench: which model? (-m FILE)\n");
        return OPTS_ERROR;
    }
    size_t format;
    if (!parse_list("-p", b->prompts, MAX_TEST_TOKENS, &b->n_prompt) ||
        !parse_list("-n", b->gens, MAX_TEST_TOKENS, &b->n_gen) ||
        !parse_list("-d", b->depths, MAX_TEST_TOKENS, &b->n_depth) ||
        !parse_list("-t", b->threads, POOL_MAX_THREADS, &b->n_threads) ||
        !parse_name("-o", b->output, formats, COUNT_OF(formats), &format))
        return OPTS_ERROR;
    if (!kv_type_parse(b->kv_name, &b->kv_type)) {
        fprintf(stderr, "holdfast bench: -ctk is one of i16 f16 f32 q8_0\n");
        return OPTS_ERROR;
    }
    b->format = (enum format)format;
    b->lg = (struct logger){.level = b->quiet ? LOG_WARN : LOG_INFO, .out = stderr};
    return OPTS_OK;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Of samples in seconds; rates when n_tokens > 0, else milliseconds. */
struct spread {
    double median, min, max, mean, stddev;
};

static struct spread spread_of(const double *s, uint32_t n, uint32_t n_tokens)
{
    struct hist h;
    hist_init(&h);
    for (uint32_t i = 0; i < n; i++)
        hist_add(&h, n_tokens ? n_tokens / s[i] : s[i] * 1e3);
    struct spread o = {.median = hist_quantile(&h, 0.5),
                       .min = hist_quantile(&h, 0),
                       .max = hist_quantile(&h, 1),
                       .mean = hist_mean(&h)};
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double d = (n_tokens ? n_tokens / s[i] : s[i] * 1e3) - o.mean;
        sum += d * d;
    }
    o.stddev = n > 1 ? sqrt(sum / (n - 1)) : 0;
    hist_release(&h);
    return o;
}

static void test_name(const struct bench_result *r, char out[48])
{
    static const char *const names[] = {
        [BENCH_PREFILL] = "pp", [BENCH_DECODE] = "tg", [BENCH_SNAPSHOT] = "snapshot"};
    int n = snprintf(out, 48, "%s", names[r->kind]);
    if (r->n_tokens)
        n += snprintf(out + n, 48 - (size_t)n, "%u", r->n_tokens);
    if (r->n_depth)
        snprintf(out + n, 48 - (size_t)n, " @ d%u", r->n_depth);
}

/* Share of a sample's time that the rooflines around it allow, the median. */
static double fraction(const struct bench_result *r)
{
    struct hist h;
    hist_init(&h);
    for (uint32_t i = 0; i < r->n_samples; i++)
        hist_add(&h, r->least_s[i] / r->s[i]);
    const double f = hist_quantile(&h, 0.5);
    hist_release(&h);
    return f;
}

/* The same for attention alone (with norms, rotation and what is written to pages); 0 without a
 * profile. */
static double attn_fraction(const struct bench_result *r)
{
    const double s = (double)r->profile.ns[MODEL_ATTN] * 1e-9;
    return s > 0 ? r->attn_least_s / s : 0;
}

/* ---- md -------------------------------------------------------------------------------------- */

static void md_head(const struct bench *b, const struct model_info *m)
{
    char weights[16];
    str_from_bytes(m->weight_bytes, weights);
    printf("%s: %s, %s, %.2f G parameters; kernels %s, KV %s, %u rows a forward\n\n", b->path,
           m->arch, weights, (double)m->n_params * 1e-9, m->isa, b->kv_name, m->max_batch);
    printf("| threads | test                 |   median tok/s |      min |      max | of roofline "
           "|\n");
    printf("|--------:|----------------------|---------------:|---------:|---------:|------------:|"
           "\n");
}

static void md_row(const struct bench *b, const struct bench_result *r)
{
    char name[48];
    test_name(r, name);
    if (r->kind == BENCH_SNAPSHOT) {
        char bytes[16];
        str_from_bytes(r->bytes, bytes);
        const struct spread c = spread_of(r->s, r->n_samples, 0),
                            o = spread_of(r->restore_s, r->n_samples, 0),
                            m = spread_of(r->copy_s, r->n_samples, 0);
        printf(
            "\n%u threads: snapshot of %s created in %.2f ms (%.2f .. %.2f), restored in %.2f ms "
            "(%.2f .. %.2f); memcpy of as much %.2f ms\n",
            r->n_threads, bytes, c.median, c.min, c.max, o.median, o.min, o.max, m.median);
        printf(
            "rooflines: int8 %.0f GOPS, f32 %.0f GFLOPS, memory read %.1f GB/s (%.1f .. %.1f)\n\n",
            r->roof.median.int8_ops * 1e-9, r->roof.median.f32_ops * 1e-9,
            r->roof.median.read_bytes * 1e-9, r->roof.read_min * 1e-9, r->roof.read_max * 1e-9);
        return;
    }
    const struct spread s = spread_of(r->s, r->n_samples, r->n_tokens);
    printf("| %7u | %-20s | %14.2f | %8.2f | %8.2f | %9.1f %% |\n", r->n_threads, name, s.median,
           s.min, s.max, 100 * fraction(r));
    double total = 0;
    for (int i = 0; i < MODEL_N_OPS; i++)
        total += (double)r->profile.ns[i];
    if (!b->profile || total <= 0)
        return;
    printf("|         |  ");
    for (int i = 0; i < MODEL_N_OPS; i++)
        printf(" %s %.1f %%", model_op_name((enum model_op)i),
               100 * (double)r->profile.ns[i] / total);
    printf("; attn reaches %.1f %% of the f32 roofline\n", 100 * attn_fraction(r));
}

/* ---- json and csv ---------------------------------------------------------------------------- */

static void write_samples(struct jwrite *w, const char *key, const double *s, uint32_t n)
{
    jwrite_arr(w, key);
    for (uint32_t i = 0; i < n; i++)
        jwrite_u64(w, NULL, (uint64_t)llround(s[i] * 1e9));
    jwrite_end_arr(w);
}

static void write_spread(struct jwrite *w, const char *what, const struct spread *s)
{
    const struct {
        const char *name;
        double v;
    } f[] = {{"median", s->median},
             {"min", s->min},
             {"max", s->max},
             {"avg", s->mean},
             {"stddev", s->stddev}};
    for (size_t i = 0; i < COUNT_OF(f); i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_%s", f[i].name, what);
        jwrite_fixed(w, key, f[i].v, 4);
    }
}

static void json_row(const struct bench *b, const struct model_info *m,
                     const struct bench_result *r)
{
    struct buf out = BUF_INIT;
    struct jwrite w;
    char name[48];
    test_name(r, name);
    jwrite_init(&w, &out);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "build_version", HOLDFAST_VERSION);
    jwrite_str(&w, "model_filename", b->path);
    jwrite_str(&w, "model_type", m->arch);
    jwrite_u64(&w, "model_size", m->weight_bytes);
    jwrite_u64(&w, "model_n_params", m->n_params);
    jwrite_str(&w, "kernels", m->isa);
    jwrite_u64(&w, "n_ubatch", m->max_batch);
    jwrite_u64(&w, "n_threads", r->n_threads);
    jwrite_str(&w, "type_k", b->kv_name);
    jwrite_str(&w, "test", name);
    jwrite_u64(&w, "n_prompt", r->kind == BENCH_PREFILL ? r->n_tokens : 0);
    jwrite_u64(&w, "n_gen", r->kind == BENCH_DECODE ? r->n_tokens : 0);
    jwrite_u64(&w, "n_depth", r->n_depth);
    write_samples(&w, "samples_ns", r->s, r->n_samples);
    if (r->kind == BENCH_SNAPSHOT) {
        jwrite_u64(&w, "snapshot_bytes", r->bytes);
        const struct spread c = spread_of(r->s, r->n_samples, 0),
                            o = spread_of(r->restore_s, r->n_samples, 0),
                            y = spread_of(r->copy_s, r->n_samples, 0);
        write_spread(&w, "create_ms", &c);
        write_spread(&w, "restore_ms", &o);
        write_spread(&w, "memcpy_ms", &y);
    } else {
        const struct spread s = spread_of(r->s, r->n_samples, r->n_tokens);
        write_spread(&w, "ts", &s);
        jwrite_fixed(&w, "roofline_fraction", fraction(r), 4);
    }
    jwrite_fixed(&w, "roof_int8_gops", r->roof.median.int8_ops * 1e-9, 1);
    jwrite_fixed(&w, "roof_f32_gflops", r->roof.median.f32_ops * 1e-9, 1);
    jwrite_fixed(&w, "roof_read_gbs", r->roof.median.read_bytes * 1e-9, 2);
    jwrite_fixed(&w, "roof_read_gbs_min", r->roof.read_min * 1e-9, 2);
    jwrite_fixed(&w, "roof_read_gbs_max", r->roof.read_max * 1e-9, 2);
    if (b->profile && r->kind != BENCH_SNAPSHOT) {
        jwrite_obj(&w, "profile_ns");
        for (int i = 0; i < MODEL_N_OPS; i++)
            jwrite_u64(&w, model_op_name((enum model_op)i), r->profile.ns[i]);
        jwrite_end_obj(&w);
        jwrite_fixed(&w, "attn_roofline_fraction", attn_fraction(r), 4);
    }
    jwrite_end_obj(&w);
    printf("%s%s", b->any ? ",\n  " : "[\n  ", buf_str(&out));
    buf_release(&out);
}

static void csv_row(const struct bench *b, const struct model_info *m, const struct bench_result *r)
{
    if (!b->any) {
        printf("model_filename,model_type,model_size,model_n_params,kernels,n_ubatch,n_threads,"
               "type_k,test,n_prompt,n_gen,n_depth,n_samples,median_ts,min_ts,max_ts,avg_ts,"
               "stddev_ts,roofline_fraction,create_ms,restore_ms,memcpy_ms,snapshot_bytes,"
               "roof_int8_gops,roof_f32_gflops,roof_read_gbs");
        for (int i = 0; b->profile && i < MODEL_N_OPS; i++)
            printf(",%s_ns", model_op_name((enum model_op)i));
        printf("\n");
    }
    char name[48];
    test_name(r, name);
    printf("\"");
    for (const char *c = b->path; *c; c++)
        printf(*c == '"' ? "\"\"" : "%c", *c);
    printf("\",%s,%" PRIu64 ",%" PRIu64 ",%s,%u,%u,%s,%s,%u,%u,%u,%u", m->arch, m->weight_bytes,
           m->n_params, m->isa, m->max_batch, r->n_threads, b->kv_name, name,
           r->kind == BENCH_PREFILL ? r->n_tokens : 0, r->kind == BENCH_DECODE ? r->n_tokens : 0,
           r->n_depth, r->n_samples);
    if (r->kind == BENCH_SNAPSHOT) {
        printf(",,,,,,,%.4f,%.4f,%.4f,%" PRIu64, spread_of(r->s, r->n_samples, 0).median,
               spread_of(r->restore_s, r->n_samples, 0).median,
               spread_of(r->copy_s, r->n_samples, 0).median, r->bytes);
    } else {
        const struct spread s = spread_of(r->s, r->n_samples, r->n_tokens);
        printf(",%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,,,,", s.median, s.min, s.max, s.mean, s.stddev,
               fraction(r));
    }
    printf(",%.1f,%.1f,%.2f", r->roof.median.int8_ops * 1e-9, r->roof.median.f32_ops * 1e-9,
           r->roof.median.read_bytes * 1e-9);
    for (int i = 0; b->profile && i < MODEL_N_OPS; i++)
        printf(",%" PRIu64, r->profile.ns[i]);
    printf("\n");
}

/* ---- errors ---------------------------------------------------------------------------------- */

enum { N_TYPE_IDS = 64 }; /* the file format's numbers are below */

static void error_row(const struct bench *b, const char *isa, const char *type,
                      const struct mat_error *e)
{
    if (b->format == FORMAT_MD)
        printf("| %-6s | %15.2e | %17.2e |\n", type, e->rms, e->ggml_rms);
    else if (b->format == FORMAT_CSV)
        printf("%s,%s,%.6g,%.6g\n", isa, type, e->rms, e->ggml_rms);
    else
        printf("%s{\"kernels\":\"%s\",\"type\":\"%s\",\"error\":%.6g,\"ggml_error\":%.6g}",
               b->any ? ",\n  " : "[\n  ", isa, type, e->rms, e->ggml_rms);
}

static enum rc run_errors(struct bench *b, struct err *err)
{
    const struct kern *k;
    struct pool *pool;
    const struct pool_opts po = {.n_threads = b->n_threads.v[0]};
    enum rc rc = kern_pick(b->isa, &k, err);
    if (!rc)
        rc = pool_new(&po, &pool, err);
    if (rc)
        return rc;
    if (b->format == FORMAT_MD)
        printf("kernels %s; rms of y = W x against f64, relative to y: what rounding x costs\n\n"
               "| type   | error           | as ggml rounds x  |\n"
               "|--------|----------------:|------------------:|\n",
               k->name);
    if (b->format == FORMAT_CSV)
        printf("kernels,type,error,ggml_error\n");
    for (uint32_t id = 0; id < N_TYPE_IDS && !rc; id++) {
        const struct dtype_info *info = dtype_info(id);
        struct mat_error e;
        if (!info || (rc = mat_error(k, pool, info->type, &e, err)))
            continue;
        error_row(b, k->name, info->name, &e);
        b->any = true;
    }
    pool_free(pool);
    return rc;
}

/* ---- run ------------------------------------------------------------------------------------- */

static void report(struct bench *b, const struct model_info *m, struct bench_result *r)
{
    if (b->format == FORMAT_JSON)
        json_row(b, m, r);
    else if (b->format == FORMAT_CSV)
        csv_row(b, m, r);
    else {
        if (!b->any)
            md_head(b, m);
        md_row(b, r);
    }
    fflush(stdout);
    b->any = true;
    bench_result_release(r);
}

static enum rc run_tests(struct bench *b, struct bench_rig *rig, enum bench_kind kind,
                         const struct list *counts, uint32_t depth, struct err *err)
{
    for (size_t i = 0; i < counts->n; i++) {
        if (!counts->v[i])
            continue;
        struct bench_result r;
        const enum rc rc = bench_run(rig, kind, counts->v[i], depth, b->n_samples, &r, err);
        if (rc)
            return rc;
        report(b, bench_model(rig), &r);
    }
    return RC_OK;
}

static enum rc run_threads(struct bench *b, uint32_t n_threads, struct err *err)
{
    const struct bench_opts o = {.g = b->g,
                                 .n_threads = n_threads,
                                 .n_ubatch = b->n_ubatch,
                                 .isa = b->isa,
                                 .kv_type = b->kv_type,
                                 .no_repack = b->no_repack,
                                 .mlock = b->mlock,
                                 .pin = b->place.strict,
                                 .profile = b->profile,
                                 .lg = &b->lg};
    struct bench_rig *rig;
    enum rc rc = bench_open(&o, &rig, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < b->n_depth.n && !rc; i++) {
        rc = run_tests(b, rig, BENCH_PREFILL, &b->n_prompt, b->n_depth.v[i], err);
        if (!rc)
            rc = run_tests(b, rig, BENCH_DECODE, &b->n_gen, b->n_depth.v[i], err);
    }
    struct bench_result r;
    if (!rc && !(rc = bench_snapshot(rig, b->n_samples, &r, err)))
        report(b, bench_model(rig), &r);
    bench_close(rig);
    return rc;
}

int cmd_bench(int argc, char **argv)
{
    struct bench b = {.mmap = true,
                      .prompts = "512",
                      .gens = "128",
                      .threads = "0",
                      .depths = "0",
                      .output = "md",
                      .kv_name = kv_type_name(KV_DEFAULT),
                      .n_samples = 5,
                      .n_ubatch = 512};
    const enum opts_result parsed = parse(&b, argc, argv);
    if (parsed)
        return opts_status(parsed);
    if (!place_apply(&b.place, "bench"))
        return 2;
    struct err err;
    enum rc rc =
        b.errors ? run_errors(&b, &err) : (b.mmap ? gguf_open : gguf_open_copy)(b.path, &b.g, &err);
    for (size_t i = 0; i < b.n_threads.n && !rc && b.g; i++)
        rc = run_threads(&b, b.n_threads.v[i], &err);
    gguf_close(b.g);
    if (b.format == FORMAT_JSON && b.any)
        printf("\n]\n");
    if (rc)
        fprintf(stderr, "holdfast bench: %s\n", err.msg);
    return rc != RC_OK;
}
