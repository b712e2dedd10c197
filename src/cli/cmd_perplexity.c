/* holdfast perplexity: how well a model foretells a text; by it two types of one model are compared. */
#include "cli/cmd.h"

#include <math.h>
#include <stdio.h>
#include <strings.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/opts.h"
#include "cli/ppl.h"
#include "text/bpe.h"

struct perplexity {
    const char *model, *file, *isa, *kv_name;
    uint32_t n_threads, n_ubatch;
    bool no_repack;
    struct ppl_opts o;
    /* made from them */
    enum kv_type kv_type;
    struct logger lg;
    struct gguf *g;
    struct vocab *vocab;
    struct pool *pool;
    struct model *m;
    struct tokens tokens;
};

static enum opts_result parse(struct perplexity *p, int argc, char **argv)
{
    const struct opt table[] = {
        {"-m --model", OPT_STR, &p->model, .arg = "FILE", .help = "GGUF file"},
        {"-f --file", OPT_STR, &p->file, .arg = "FILE", .help = "text to foretell"},
        {"-c --ctx-size", OPT_U32, &p->o.n_ctx, .arg = "N", .help = "tokens of a window (512)",
         .min = 4, .max = 1 << 20},
        {"--chunks", OPT_U32, &p->o.n_windows, .arg = "N", .help = "windows at most (0 = all)"},
        {"--ppl-stride --stride", OPT_U32, &p->o.stride, .arg = "N",
         .help =
             "begin a window every N tokens and score its last N (0: windows\n"
             "                                  follow one another, the second half is scored)"},
        {"-t --threads", OPT_U32, &p->n_threads, .arg = "N", .help = "threads (one a CPU)",
         .max = POOL_MAX_THREADS},
        {"-ub --ubatch-size", OPT_U32, &p->n_ubatch, .arg = "N", .help = "rows of a forward (512)",
         .min = 1, .max = 1 << 16},
        {"-ctk --cache-type-k", OPT_STR, &p->kv_name, .arg = "TYPE",
         .help = "KV type: i16, f16, f32, q8_0 (i16)"},
        {"--isa", OPT_STR, &p->isa, .arg = "NAME", .help = "kernel table (the best there is)",
         .env = "HOLDFAST_ISA"},
        {"--no-repack -nr", OPT_FLAG, &p->no_repack, .help = "use the file's layout of weights"},
    };
    const struct opts o = {
        .command = "perplexity",
        .intro = "Perplexity of a model on a text, with its standard error: exp of the mean of\n"
                 "-ln p over the scored tokens, measured in windows as llama-perplexity does.",
        .table = table,
        .n = COUNT_OF(table)};
    const enum opts_result r = opts_parse(&o, argc, argv, stderr);
    if (r)
        return r;
    if (!p->model || !p->file) {
        fprintf(stderr, "holdfast perplexity: wants --model and --file\n"
                        "(holdfast perplexity --help)\n");
        return OPTS_ERROR;
    }
    if (kv_type_parse(p->kv_name, &p->kv_type))
        return OPTS_OK;
    fprintf(stderr, "holdfast perplexity: -ctk is one of i16, f16, f32, q8_0\n");
    return OPTS_ERROR;
}

static enum rc read_text(struct perplexity *p, struct err *err)
{
    char *text;
    size_t n;
    enum rc rc = file_read_all(p->file, GIB, &text, &n, err);
    if (rc)
        return rc;
    if (n && text[n - 1] == '\n') /* the file's, not the text's */
        n--;
    const struct bpe_opts bo = {.add_special = true};
    rc = bpe_encode(p->vocab, (struct str){text, n}, &bo, &p->tokens, err);
    mem_free(text);
    p->o.tokens = p->tokens.v;
    p->o.n = p->tokens.n;
    p->o.bos = vocab_add_bos(p->vocab) ? vocab_bos(p->vocab) : -1;
    return rc;
}

static enum rc open_all(struct perplexity *p, struct err *err)
{
    enum rc rc;
    if ((rc = gguf_open(p->model, &p->g, err)) || (rc = vocab_open(p->g, &p->vocab, err)) ||
        (rc = read_text(p, err)) ||
        (rc = pool_new(&(struct pool_opts){.n_threads = p->n_threads}, &p->pool, err)))
        return rc;
    const struct model_opts mo = {.pool = p->pool,
                                  .lg = &p->lg,
                                  .isa = p->isa,
                                  .kv_type = p->kv_type,
                                  .max_batch = p->n_ubatch,
                                  .no_repack = p->no_repack};
    return model_open(p->g, &mo, &p->m, err);
}

static void close_all(struct perplexity *p)
{
    model_close(p->m);
    pool_free(p->pool);
    tokens_release(&p->tokens);
    vocab_close(p->vocab);
    gguf_close(p->g);
}

static void show(void *ctx, const struct ppl *so_far)
{
    (void)ctx;
    printf("[%u]%.4f,", so_far->n_windows, ppl_value(so_far));
    fflush(stdout);
}

static enum rc run(struct perplexity *p, struct err *err)
{
    fprintf(stderr, "%zu tokens, %u windows of %u\n", p->tokens.n, ppl_windows(&p->o), p->o.n_ctx);
    const uint64_t begun = clock_mono_ns();
    struct ppl r;
    const enum rc rc = ppl_run(p->m, p->pool, &p->o, show, NULL, &r, err);
    if (r.n_windows)
        printf("\n");
    if (rc)
        return rc;
    printf("Final estimate: PPL = %.4f +/- %.5f\n", ppl_value(&r), ppl_error(&r));
    fprintf(stderr, "%" PRIu64 " tokens scored in %u windows, %.1f s\n", r.n_scored, r.n_windows,
            (double)(clock_mono_ns() - begun) * 1e-9);
    return RC_OK;
}

int cmd_perplexity(int argc, char **argv)
{
    struct perplexity p = {.kv_name = kv_type_name(KV_DEFAULT),
                           .n_ubatch = 512,
                           .o = {.n_ctx = 512, .bos = -1},
                           .lg = {.level = LOG_INFO, .out = stderr}};
    const enum opts_result parsed = parse(&p, argc, argv);
    if (parsed)
        return opts_status(parsed);
    struct err err;
    enum rc rc = open_all(&p, &err);
    if (!rc)
        rc = run(&p, &err);
    if (rc)
        fprintf(stderr, "holdfast perplexity: %s\n", err.msg);
    close_all(&p);
    return rc ? 1 : 0;
}
