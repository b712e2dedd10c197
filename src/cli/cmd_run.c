/* holdfast run: a completion with text, model and state alone.  No engine, no cache, no server: the first
 * thing to step through.
 */
#include "cli/cmd.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/box.h"
#include "cli/opts.h"
#include "model/model.h"
#include "text/bpe.h"
#include "text/detok.h"

struct run_opts {
    const char *model, *prompt, *isa;
    uint32_t n_predict, n_threads;
    double temperature;
    int64_t seed;
    bool ignore_eos;
};

struct completion {
    struct gguf *g;
    struct vocab *vocab;
    struct pool *pool;
    struct model *m;
    struct kv *kv;
    struct rec *rec;
    struct kv_table t;
    rec_slot slot;
    struct tokens prompt;
    float *logits;
};

/* The likeliest token, or at a temperature one drawn: the greatest of logit / temperature + noise, where
 * Gumbel noise makes that a draw from the softmax. */
static token sample(const float *logits, uint32_t n, double temperature, struct rng *rng)
{
    uint32_t best = 0;
    double top = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        double x = (double)logits[i];
        if (temperature > 0)
            x = x / temperature - log(-log(rng_f64(rng) + 0x1p-54));
        if (x > top) {
            top = x;
            best = i;
        }
    }
    return (token)best;
}

static enum rc forward(struct completion *c, const token *t, uint32_t n, bool logits,
                       struct err *err)
{
    const enum rc rc = kv_table_extend(c->kv, &c->t, n, err);
    if (rc)
        return rc;
    const struct run run = {t, n, c->t.len, &c->t, c->slot, logits, c->logits};
    model_forward(c->m, c->kv, c->rec, &run, 1);
    kv_table_advance(&c->t, n);
    return RC_OK;
}

static enum rc prefill(struct completion *c, const struct logger *lg, struct err *err)
{
    struct progress progress;
    progress_begin(&progress, lg, "prompt");
    enum rc rc = RC_OK;
    const uint32_t step = model_info(c->m)->max_batch, total = (uint32_t)c->prompt.n;
    for (uint32_t at = 0; at < total && !rc;) {
        const uint32_t n = MIN(step, total - at);
        rc = forward(c, c->prompt.v + at, n, at + n == total, err);
        at += n;
        progress_at(&progress, at, total);
    }
    progress_end(&progress);
    return rc;
}

static enum rc generate(struct completion *c, const struct run_opts *o, uint32_t *n,
                        struct err *err)
{
    struct rng rng = {(uint64_t)o->seed};
    struct detok detok;
    struct buf text;
    detok_init(&detok, false);
    buf_init(&text);
    enum rc rc = RC_OK;
    for (*n = 0; *n < o->n_predict && !rc;) {
        const token next = sample(c->logits, model_info(c->m)->n_vocab, o->temperature, &rng);
        if (vocab_is_eog(c->vocab, next) && !o->ignore_eos)
            break;
        detok_add(&detok, c->vocab, next, &text);
        if (fputs(buf_str(&text), stdout) < 0 || fflush(stdout))
            rc = err_sys(err, "cannot write the text");
        buf_clear(&text);
        if (++*n < o->n_predict && !rc)
            rc = forward(c, &next, 1, true, err);
    }
    detok_finish(&detok, &text);
    if ((puts(buf_str(&text)) < 0 || fflush(stdout)) && !rc)
        rc = err_sys(err, "cannot write the text");
    buf_release(&text);
    return rc;
}

static enum rc open_all(struct completion *c, const struct run_opts *o, const struct logger *lg,
                        struct err *err)
{
    enum rc rc;
    if ((rc = gguf_open(o->model, &c->g, err)) || (rc = vocab_open(c->g, &c->vocab, err)) ||
        (rc = pool_new(&(struct pool_opts){.n_threads = o->n_threads}, &c->pool, err)))
        return rc;
    const struct model_opts mo = {.pool = c->pool, .lg = lg, .isa = o->isa};
    if ((rc = model_open(c->g, &mo, &c->m, err)))
        return rc;
    const struct model_info *info = model_info(c->m);
    if ((rc = kv_new(&info->shape, 0, &c->kv, err)) ||
        (rc = rec_new(&info->shape, 1, &c->rec, err)))
        return rc;
    c->slot = rec_take(c->rec);
    c->logits = mem_try_array(info->n_vocab, sizeof *c->logits);
    if (!c->logits)
        return err_set(err, RC_NOMEM, "no memory for logits");
    const struct bpe_opts bo = {.add_special = true, .parse_special = true};
    if ((rc = bpe_encode(c->vocab, str_of(o->prompt), &bo, &c->prompt, err)))
        return rc;
    if (c->prompt.n == 0)
        return err_set(err, RC_ARG, "the prompt is empty");
    if (c->prompt.n + (uint64_t)o->n_predict > info->n_ctx_train)
        return err_set(err, RC_LIMIT, "%zu tokens of prompt and %u more do not fit a context of %u",
                       c->prompt.n, o->n_predict, info->n_ctx_train);
    return RC_OK;
}

static void close_all(struct completion *c)
{
    if (c->kv)
        kv_table_release(c->kv, &c->t);
    tokens_release(&c->prompt);
    mem_free(c->logits);
    rec_free(c->rec);
    kv_free(c->kv);
    model_close(c->m);
    pool_free(c->pool);
    vocab_close(c->vocab);
    gguf_close(c->g);
}

static void tell(const char *what, uint64_t n, uint64_t ns)
{
    fprintf(stderr, "%s %" PRIu64 " tokens in %.2f s, %.1f tok/s\n", what, n, (double)ns * 1e-9,
            (double)n / MAX((double)ns * 1e-9, 1e-9));
}

int cmd_run(int argc, char **argv)
{
    struct run_opts r = {.n_predict = 128, .seed = 1};
    const struct opt table[] = {
        {"-m --model", OPT_STR, &r.model, .arg = "FILE", .help = "model to load (the demo model)"},
        {"-p --prompt", OPT_STR, &r.prompt, .arg = "TEXT", .help = "text to continue"},
        {"-n --predict --n-predict", OPT_U32, &r.n_predict, .arg = "N",
         .help = "tokens to generate at most (128)"},
        {"-t --threads", OPT_U32, &r.n_threads, .arg = "N", .help = "threads (one a CPU)",
         .max = POOL_MAX_THREADS},
        {"--temp --temperature", OPT_F64, &r.temperature, .arg = "X", .min = 0, .max = 100,
         .help = "0 takes the likeliest token, more draws (0)"},
        {"-s --seed", OPT_I64, &r.seed, .arg = "N", .help = "of the draws (1)"},
        {"--ignore-eos", OPT_FLAG, &r.ignore_eos, .help = "go on after an end of text"},
        {"--isa", OPT_STR, &r.isa, .arg = "NAME",
         .help = "kernels: ref, avx2, ... (the best this machine has)"},
    };
    const struct opts o = {.command = "run",
                           .intro = "Continue a text and print it as it comes.",
                           .table = table,
                           .n = COUNT_OF(table)};
    const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    if (!r.prompt) {
        fprintf(stderr,
                "holdfast run: wants --prompt (holdfast run --help); holdfast chat talks\n");
        return 2;
    }
    if (!r.model && !box_default("run", &r.model))
        return 2;
    const struct logger lg = {.level = LOG_INFO, .out = stderr};
    struct completion c = {0};
    struct err err = {0};
    uint32_t n = 0;
    enum rc rc = open_all(&c, &r, &lg, &err);
    const uint64_t begin = clock_mono_ns();
    if (!rc)
        rc = prefill(&c, &lg, &err);
    const uint64_t filled = clock_mono_ns();
    if (!rc)
        rc = generate(&c, &r, &n, &err);
    if (rc)
        fprintf(stderr, "holdfast run: %s\n", err.msg);
    else {
        tell("prompt:   ", c.prompt.n, filled - begin);
        tell("generated:", n, clock_mono_ns() - filled);
    }
    close_all(&c);
    return rc ? 1 : 0;
}
