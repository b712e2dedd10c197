/* cmd_demo.c - what the cache does, on this machine, in under a minute.
 *
 *     A    4,560 tokens
 *     B       99 tokens, nothing in common with A: the interloper
 *     C    4,947 tokens, the first 2,531 of them A's
 *     C'   4,947 tokens, leaves A at the same place as C, and C there too
 *
 * go over HTTP to a server of our own, first with --cache-policy none, then with hold.  Each is pages of a
 * log with a question at its end.  What is shown is what the replies say; what is promised is checked, and
 * a broken promise is a failure:
 *
 *   (1) none reuses nothing;
 *   (2) with hold, C after A and B evaluates at most its own tokens and one step of the grid;
 *   (3) C' then reuses exactly the 2,531 tokens it has in common: the state at the place where C left A
 *       was kept;
 *   (4) every answer has the same bytes either way;
 *   (5) the demo model's answers are right: a state that was restored is the one that was left.
 */
#include "cli/cmd.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/box.h"
#include "cli/host.h"
#include "cli/opts.h"
#include "gguf/gguf.h"
#include "net/client.h"
#include "text/bpe.h"
#include "text/vocab.h"

enum {
    N_A = 4560,
    N_B = 99,
    N_COMMON = 2531,
    N_C = 4947,
    N_PREDICT = 64,
    STEP = 512,
    N_PROMPTS = 4
};

/* What is asked at the end of each prompt, and what the demo model's answer has to hold. */
static const struct {
    const char *name;
    uint32_t n_tokens;
    const char *lead; /* before its own pages: what makes C leave A, and C' both of them */
    const char *question, *key;
} asked[N_PROMPTS] = {
    {"A", N_A, "", "What is a KV cache?", "keys and values"},
    {"B", N_B, "", "What is a token?", "token"},
    {"C", N_C, "Another log:\n", "What is a snapshot?", "state"},
    {"C'", N_C, "The third one:\n", "What does prefill mean?", "prompt"},
};

struct outcome {
    uint32_t n_prompt, n_reused, n_evaluated;
    double prefill_s; /* as the server measured it */
    double total_s;   /* from request to reply, at the client */
    struct buf text;
};

struct demo {
    const char *model;
    bool box; /* model is ours: what it says is known */
    uint32_t n_threads;
    struct logger lg;
    struct tokens prompts[N_PROMPTS];
    struct outcome none[N_PROMPTS], hold[N_PROMPTS];
};

/* ---- prompts ---- */

/* Appends the tokens of text; with room > 0 only so many. */
static enum rc add_text(struct tokens *t, const struct vocab *v, const struct buf *text,
                        bool special, size_t room, struct err *err)
{
    const struct bpe_opts o = {.parse_special = special};
    const size_t before = t->n;
    const enum rc rc = bpe_encode(v, (struct str){text->p, text->n}, &o, t, err);
    if (!rc && room)
        t->n = MIN(t->n, before + room);
    return rc;
}

static enum rc append(struct tokens *t, const token *v, size_t n, struct err *err)
{
    return tokens_append(t, v, n) ? RC_OK : err_set(err, RC_NOMEM, "no memory for a prompt");
}

/* Pages of a server's log, other ones for another seed. */
static void write_pages(struct buf *b, size_t n_lines, uint64_t seed)
{
    static const char *const words[] = {"done", "request", "batch", "restore", "cut", "idle"};
    struct rng rng = {seed};
    for (size_t i = 0; i < n_lines; i++)
        buf_addf(b, "%02u:%02u:%02u I slot %u: %s %u ms\n", rng_below(&rng, 24),
                 rng_below(&rng, 60), rng_below(&rng, 60), rng_below(&rng, 8),
                 words[rng_below(&rng, COUNT_OF(words))], rng_below(&rng, 9999));
}

/* A system message of log lines and a question behind it; the first N_COMMON tokens are those of like, if
 * that is given. */
static enum rc make_prompt(const struct vocab *v, uint32_t i, const struct tokens *like,
                           struct tokens *out, struct err *err)
{
    struct buf head = BUF_INIT, pages = BUF_INIT, tail = BUF_INIT;
    struct tokens end = {0};
    buf_adds(&head, "<|im_start|>system\n");
    buf_addf(&tail,
             "\n<|im_end|>\n<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
             "think>\n\n",
             asked[i].question);
    buf_adds(&pages, asked[i].lead);
    write_pages(&pages, asked[i].n_tokens, i); /* a line has more than one token */
    enum rc rc = add_text(&end, v, &tail, true, 0, err);
    if (!rc && like)
        rc = append(out, like->v, N_COMMON, err);
    else if (!rc)
        rc = add_text(out, v, &head, true, 0, err);
    if (!rc && out->n + end.n >= asked[i].n_tokens)
        rc = err_set(err, RC_ARG, "its vocabulary makes a prompt of the question alone");
    if (!rc)
        rc = add_text(out, v, &pages, false, asked[i].n_tokens - end.n - out->n, err);
    if (!rc)
        rc = append(out, end.v, end.n, err);
    buf_release(&head);
    buf_release(&pages);
    buf_release(&tail);
    tokens_release(&end);
    return rc;
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
            printf("  %-6s %8u %8u %10u %8.2f s %8.2f s\n", asked[i].name, out[i].n_prompt,
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
    bool nothing = true, same = true, right = true;
    const struct outcome *c = &d->hold[2], *c2 = &d->hold[3];
    for (size_t i = 0; i < N_PROMPTS; i++) {
        nothing = nothing && d->none[i].n_reused == 0;
        same = same && d->none[i].text.n == d->hold[i].text.n && d->none[i].text.n &&
               !memcmp(d->none[i].text.p, d->hold[i].text.p, d->none[i].text.n);
        right = right && strstr(buf_str(&d->hold[i].text), asked[i].key);
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
    if (d->box)
        ok &= promise(right, "every answer is right");
    return ok;
}

static void say_answers(const struct demo *d)
{
    printf("\nanswers, each with pages of a log before the question\n");
    for (size_t i = 0; i < N_PROMPTS; i++)
        printf("  %-6s %s\n         %s\n", asked[i].name, asked[i].question,
               buf_str(&d->hold[i].text));
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

static enum rc make_prompts(struct demo *d, struct err *err)
{
    struct gguf *g = NULL;
    struct vocab *v = NULL;
    enum rc rc = gguf_open(d->model, &g, err);
    if (!rc)
        rc = vocab_open(g, &v, err);
    for (uint32_t i = 0; i < N_PROMPTS && !rc; i++)
        rc = make_prompt(v, i, i < 2 ? NULL : &d->prompts[0], &d->prompts[i], err);
    vocab_close(v);
    gguf_close(g);
    return rc;
}

static enum rc run(struct demo *d, bool *kept, struct err *err)
{
    enum rc rc = make_prompts(d, err);
    if (!rc)
        rc = round_with(d, "none", d->none, err);
    if (!rc)
        rc = round_with(d, "hold", d->hold, err);
    if (rc)
        return rc;
    say_answers(d);
    *kept = check_promises(d);
    say_savings(d);
    return RC_OK;
}

int cmd_demo(int argc, char **argv)
{
    struct demo d = {.lg = {.level = LOG_WARN, .out = stderr}};
    bool verbose = false;
    const struct opt table[] = {
        {"-m --model", OPT_STR, &d.model, .arg = "FILE",
         .help = "another model than the one in the box"},
        {"-t --threads", OPT_U32, &d.n_threads, .arg = "N", .help = "threads (one a CPU)",
         .max = 4096},
        {"-v --verbose", OPT_FLAG, &verbose, .help = "show the server's log"},
    };
    const struct opts o = {.command = "demo",
                           .intro = "Show what the cache keeps when an unrelated request comes in "
                                    "between, and check it.",
                           .table = table,
                           .n = COUNT_OF(table)};
    const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    if (verbose)
        d.lg.level = LOG_INFO;
    d.box = !d.model;
    if (d.box && !box_default("demo", &d.model))
        return 2;
    struct err err;
    bool kept = false;
    const enum rc rc = run(&d, &kept, &err);
    if (rc)
        fprintf(stderr, "holdfast demo: %s\n", err.msg);
    for (size_t i = 0; i < N_PROMPTS; i++) {
        tokens_release(&d.prompts[i]);
        buf_release(&d.none[i].text);
        buf_release(&d.hold[i].text);
    }
    return !rc && kept ? 0 : 1;
}
