#include "cli/cmd.h"

#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/str.h"
#include "cli/opts.h"
#include "model/maker.h"

static const char epilog[] =
    "presets: tiny tiny-moe        8 layers, under a million weights; rows of 64\n"
    "         mini mini-moe        8 layers; every row a multiple of 256, so all types apply\n"
    "         0.8b 35b-a3b         the published shapes, full vocabulary\n"
    "types:   f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4;\n"
    "         q4_k_m: q4_k with some matrices as q5_k and q6_k\n";

/* A signal handler can be handed nothing: the one place where it must reach. */
static atomic_bool interrupted;

static void on_signal(int sig)
{
    (void)sig;
    atomic_store_explicit(&interrupted, true, memory_order_relaxed);
}

int cmd_make_model(int argc, char **argv)
{
    const char *type = "f32", *out = NULL;
    const struct logger lg = {.level = LOG_INFO, .out = stderr};
    struct maker_opts m = {.lg = &lg, .stop = &interrupted};
    uint32_t seed = 1;
    const struct opt table[] = {
        {"--preset", OPT_STR, &m.preset, .arg = "NAME", .help = "shape of the model, see below"},
        {"--type", OPT_STR, &type, .arg = "TYPE", .help = "type of the matrices (f32)"},
        {"--seed", OPT_U32, &seed, .arg = "N", .help = "of the random weights (1)"},
        {"-o --out", OPT_STR, &out, .arg = "FILE", .help = "file to write"},
        {"--layers", OPT_U32, &m.n_layers, .arg = "N",
         .help = "other number of layers, a multiple of 4"},
        {"--vocab", OPT_U32, &m.n_vocab, .arg = "N", .help = "other size of the vocabulary"},
        {"--ctx", OPT_U32, &m.n_ctx, .arg = "N", .help = "other trained context length"},
        {"--mtp", OPT_FLAG, &m.mtp, .help = "append a multi-token-prediction block"},
    };
    const struct opts o = {
        .command = "make-model",
        .intro = "Write a model with random weights: for tests, demos and measurements.\n"
                 "It says nothing sensible, but costs what a trained model of its shape costs.",
        .table = table,
        .n = COUNT_OF(table),
        .epilog = epilog};
    const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    m.medium = !strcasecmp(type, "q4_k_m");
    const struct dtype_info *di = m.medium ? dtype_info(DT_Q4_K) : dtype_by_name(type);
    if (!m.preset || !out || !di) {
        if (m.preset && out)
            fprintf(stderr, "holdfast make-model: --type: no type '%s'\n", type);
        else
            fprintf(stderr, "holdfast make-model: wants --preset and --out\n");
        fprintf(stderr, "(holdfast make-model --help)\n");
        return 2;
    }
    m.type = di->type;
    m.seed = seed;

    struct maker_info info;
    struct err err = {0};
    const struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    const enum rc rc = maker_write(out, &m, &info, &err);
    if (rc) {
        fprintf(stderr, "holdfast make-model: %s\n", err.msg);
        return rc == RC_ARG ? 2 : 1;
    }
    struct stat st;
    char size[16] = "";
    if (!stat(out, &st))
        str_from_bytes((uint64_t)st.st_size, size);
    printf("%s: %s %s, %" PRIu32 " tensors, %" PRIu64 " weights, %s\n", out, m.preset,
           m.medium ? "q4_K_M" : di->name, info.n_tensors, info.n_params, size);
    return 0;
}
