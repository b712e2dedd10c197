/* cmd_demo.c - what the cache does, on this machine, in under a minute.
 *
 *     A    4,560 tokens
 *     B       99 tokens, nothing in common with A: the interloper
 *     C    4,947 tokens, the first 2,531 of them A's
 *     C'   4,947 tokens, leaves A at the same place as C, and C there too
 *
 * go over HTTP to a server of our own, first with --cache-policy none, then with hold.  What is shown
 * is what the replies say; what is promised is checked, and a broken promise is a failure:
 *
 *   (1) none reuses nothing;
 *   (2) with hold, C after A and B evaluates at most its own tokens and one step of the grid;
 *   (3) C' then reuses exactly the 2,531 tokens it has in common: the state at the place where C left A
 *       was kept;
 *   (4) every answer has the same bytes either way.
 */
#include "cli/cmd.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/host.h"
#include "cli/opts.h"
#include "gguf/gguf.h"
#include "model/maker.h"
#include "net/client.h"
#include "text/bpe.h"
#include "text/vocab.h"

enum {
    N_A = 4560,
    N_B = 99,
    N_COMMON = 2531,
    N_C = 4947,
    N_PREDICT = 8,
    STEP = 512,
    N_PROMPTS = 4,
    N_LAYERS = 24
};

static const char *const prompt_names[N_PROMPTS] = {"A", "B", "C", "C'"};

struct outcome {
    uint32_t n_prompt, n_reused, n_evaluated;
    double prefill_s; /* as the server measured it */
    double total_s;   /* from request to reply, at the client */
    struct buf text;
};

struct demo {
    const char *model;
    uint32_t n_threads;
    struct logger lg;
    struct tokens prompts[N_PROMPTS];
    struct outcome none[N_PROMPTS], hold[N_PROMPTS];
};

/* ---- prompts ---- */

/* Random tokens that stand for text, the first of them none of unlike [n_unlike]. */
static bool add_random(struct tokens *t, const struct vocab *v, size_t n, const token *unlike,
                       size_t n_unlike, struct rng *rng)
{
    while (n) {
        const token x = (token)rng_below(rng, vocab_size(v));
        bool ok = vocab_type(v, x) == TOKEN_NORMAL;
        for (size_t i = 0; i < n_unlike; i++)
            ok = ok && x != unlike[i];
        if (!ok)
            continue;
        if (!tokens_add(t, x))
            return false;
        n_unlike = 0;
        n--;
    }
    return true;
}

static bool add_common(struct tokens *t, const struct tokens *from)
{
    for (size_t i = 0; i < N_COMMON; i++)
        if (!tokens_add(t, from->v[i]))
            return false;
    return true;
}

static bool make_prompts(struct demo *d, const struct vocab *v)
{
    struct rng rng = {20};
    struct tokens *p = d->prompts;
    if (!add_random(&p[0], v, N_A, NULL, 0, &rng) || !add_random(&p[1], v, N_B, p[0].v, 1, &rng))
        return false;
    token taken[2] = {p[0].v[N_COMMON]}; /* what followed the common part before */
    for (size_t i = 0; i < 2; i++) {
        struct tokens *t = &p[2 + i];
        if (!add_common(t, &p[0]) || !add_random(t, v, N_C - N_COMMON, taken, i + 1, &rng))
            return false;
        taken[1] = t->v[N_COMMON];
    }
    return true;
}

/* ---- one request ---- */

static void write_request(struct buf *b, const struct tokens *t)
{
    struct jwrite w;
    jwrite_init(&w, b);
    jwrite_obj(&w, NULL);
    jwrite_arr(&w, "prompt");
    for (size_t i = 0; i < t->n; i++)
        jwrite_i64(&w, NULL, t->v[i]);
    jwrite_end_arr(&w);
    jwrite_i64(&w, "n_predict", N_PREDICT);
    jwrite_f64(&w, "temperature", 0);
    jwrite_bool(&w, "ignore_eos", true);
    jwrite_end_obj(&w);
}

static enum rc read_reply(const struct buf *b, struct outcome *out, struct err *err)
{
    json_t *o;
    enum rc rc = jread_parse(buf_str(b), b->n, &o, err);
    if (rc)
        return rc;
    const json_t *t = json_object_get(o, "timings");
    const json_t *text = json_object_get(o, "content");
    if (json_is_object(t) && json_is_string(text)) {
        out->n_reused = (uint32_t)json_integer_value(json_object_get(t, "cache_n"));
        out->n_evaluated = (uint32_t)json_integer_value(json_object_get(t, "prompt_n"));
        out->prefill_s = json_number_value(json_object_get(t, "prompt_ms")) * 1e-3;
        buf_add(&out->text, json_string_value(text), json_string_length(text));
    } else {
        rc = err_set(err, RC_FORMAT, "the server said: %.200s", buf_str(b));
    }
    json_decref(o);
    return rc;
}

static enum rc ask(struct client *c, const struct tokens *t, struct outcome *out, struct err *err)
{
    struct buf request = BUF_INIT, reply = BUF_INIT;
    write_request(&request, t);
    const uint64_t begun = clock_mono_ns();
    enum rc rc =
        client_call(c, "POST", "/completion", (struct str){request.p, request.n}, &reply, err);
    out->n_prompt = (uint32_t)t->n;
    out->total_s = (double)(clock_mono_ns() - begun) * 1e-9;
    if (!rc)
        rc = read_reply(&reply, out, err);
    buf_release(&request);
    buf_release(&reply);
    return rc;
}

/* ---- one round ---- */

static enum rc round_with(struct demo *d, const char *policy, struct outcome *out, struct err *err)
{
    struct host_opts o = {.server = {.n_predict = N_PREDICT, .lg = &d->lg},
                          .model_path = d->model,
                          .n_threads = d->n_threads,
                          .n_parallel = 1,
                          .n_ctx = 8192,
                          .cache_ram_mib = HOST_CACHE_AUTO,
                          .cache_step = STEP,
                          .cache_policy = policy,
                          .lg = &d->lg};
    struct host *h;
    struct client *c = NULL;
    char url[64];
    sampling_defaults(&o.server.sampling);
    enum rc rc = host_open(&o, &h, err);
    if (rc)
        return rc;
    snprintf(url, sizeof url, "http://127.0.0.1:%u", host_port(h));
    rc = client_new(url, NULL, &c, err);
    printf("\n--cache-policy %s\n", policy);
    printf("  prompt   tokens   reused  evaluated    prefill      total\n");
    for (size_t i = 0; i < N_PROMPTS && !rc; i++) {
        rc = ask(c, &d->prompts[i], &out[i], err);
        if (!rc)
            printf("  %-6s %8u %8u %10u %8.2f s %8.2f s\n", prompt_names[i], out[i].n_prompt,
                   out[i].n_reused, out[i].n_evaluated, out[i].prefill_s, out[i].total_s);
        fflush(stdout);
    }
    client_free(c);
    host_close(h, 0);
    return rc;
}

/* ---- promises ---- */

static bool promise(bool kept, const char *what)
{
    printf("  %s  %s\n", kept ? "ok    " : "BROKEN", what);
    return kept;
}

static bool check_promises(const struct demo *d)
{
    bool nothing = true, same = true;
    const struct outcome *c = &d->hold[2], *c2 = &d->hold[3];
    for (size_t i = 0; i < N_PROMPTS; i++) {
        nothing = nothing && d->none[i].n_reused == 0;
        same = same && d->none[i].text.n == d->hold[i].text.n && d->none[i].text.n &&
               !memcmp(d->none[i].text.p, d->hold[i].text.p, d->none[i].text.n);
    }
    char text[128];
    printf("\npromises\n");
    bool ok = promise(nothing, "none reuses nothing");
    snprintf(text, sizeof text, "C after A and B evaluates at most %u + %u tokens: %u",
             N_C - N_COMMON, STEP, c->n_evaluated);
    ok &= promise(c->n_reused + c->n_evaluated == N_C && c->n_evaluated <= N_C - N_COMMON + STEP,
                  text);
    snprintf(text, sizeof text, "C' reuses exactly the %u tokens in common: %u", N_COMMON,
             c2->n_reused);
    ok &= promise(c2->n_reused == N_COMMON && c2->n_evaluated == N_C - N_COMMON, text);
    ok &= promise(same, "every answer has the same bytes with and without the cache");
    return ok;
}

static void say_savings(const struct demo *d)
{
    uint64_t prompt = 0, reused = 0;
    double cold = 0, warm = 0;
    for (size_t i = 0; i < N_PROMPTS; i++) {
        prompt += d->hold[i].n_prompt;
        reused += d->hold[i].n_reused;
        cold += d->none[i].prefill_s;
        warm += d->hold[i].prefill_s;
    }
    printf("\nsaved: %" PRIu64 " of %" PRIu64
           " prompt tokens, %.1f s of %.1f s of prefill; C' alone took "
           "%.2f s instead of %.2f s\n",
           reused, prompt, cold - warm, cold, d->hold[3].prefill_s, d->none[3].prefill_s);
}

/* ---- the command ---- */

static enum rc read_vocab(struct demo *d, struct err *err)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    enum rc rc = gguf_open(d->model, &g, err);
    if (!rc)
        rc = vocab_open(g, &v, err);
    if (!rc && !make_prompts(d, v))
        rc = err_set(err, RC_NOMEM, "out of memory for the prompts");
    vocab_close(v);
    gguf_close(g);
    return rc;
}

static enum rc make_model(const char *path, const struct logger *lg, struct err *err)
{
    /* deep enough that a prompt takes visible time on two cores */
    const struct maker_opts m = {
        .preset = "mini", .type = DT_Q8_0, .seed = 1, .n_layers = N_LAYERS, .lg = lg};
    struct maker_info info;
    const uint64_t begun = clock_mono_ns();
    const enum rc rc = maker_write(path, &m, &info, err);
    if (!rc)
        printf("made a model with random weights: %.1f M parameters, q8_0, %.1f s\n",
               (double)info.n_params * 1e-6, (double)(clock_mono_ns() - begun) * 1e-9);
    return rc;
}

static enum rc run(struct demo *d, bool make, bool *kept, struct err *err)
{
    enum rc rc = make ? make_model(d->model, &d->lg, err) : RC_OK;
    if (!rc)
        rc = read_vocab(d, err);
    if (!rc)
        rc = round_with(d, "none", d->none, err);
    if (!rc)
        rc = round_with(d, "hold", d->hold, err);
    if (rc)
        return rc;
    *kept = check_promises(d);
    say_savings(d);
    return RC_OK;
}

/* A signal handler can be handed nothing: what is to be removed when the user has seen enough. */
static char model_dir[512], model_file[sizeof model_dir + 16];

static void on_signal(int sig)
{
    unlink(model_file);
    rmdir(model_dir);
    _exit(128 + sig);
}

static bool make_place(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(model_dir, sizeof model_dir, "%s/holdfast-demo-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(model_dir)) {
        perror(model_dir);
        return false;
    }
    snprintf(model_file, sizeof model_file, "%s/mini.gguf", model_dir);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    return true;
}

int cmd_demo(int argc, char **argv)
{
    struct demo d = {.lg = {.level = LOG_WARN, .out = stderr}};
    bool verbose = false;
    const struct opt table[] = {
        {"-m --model", OPT_STR, &d.model, .arg = "FILE",
         .help = "a model to use instead of one made for the purpose"},
        {"-t --threads", OPT_U32, &d.n_threads, .arg = "N", .help = "threads (one a CPU)",
         .max = 4096},
        {"-v --verbose", OPT_FLAG, &verbose, .help = "show the server's log"},
    };
    const struct opts o = {.command = "demo",
                           .intro = "Show what the cache keeps when an unrelated request comes in "
                                    "between, and check it.",
                           .table = table,
                           .n = COUNT_OF(table)};
    switch (opts_parse(&o, argc, argv, stderr)) {
    case OPTS_HELP:
        return 0;
    case OPTS_ERROR:
        return 2;
    case OPTS_OK:
        break;
    }
    if (verbose)
        d.lg.level = LOG_INFO;
    const bool make = !d.model;
    if (make && !make_place())
        return 1;
    if (make)
        d.model = model_file;
    struct err err;
    bool kept = false;
    const enum rc rc = run(&d, make, &kept, &err);
    if (rc)
        fprintf(stderr, "holdfast demo: %s\n", err.msg);
    if (make) {
        unlink(model_file);
        rmdir(model_dir);
    }
    for (size_t i = 0; i < N_PROMPTS; i++) {
        tokens_release(&d.prompts[i]);
        buf_release(&d.none[i].text);
        buf_release(&d.hold[i].text);
    }
    return !rc && kept ? 0 : 1;
}
