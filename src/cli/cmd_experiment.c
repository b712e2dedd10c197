/* cmd_experiment.c - holdfast experiment: the controlled study of prefix reuse, on any engine. */
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "cli/opts.h"
#include "lab/matrix.h"

static void progress(void *ctx, const char *cell, uint32_t done, uint32_t total)
{
    (void)ctx;
    fprintf(stderr, "[%u/%u] %s\n", done + 1, total, cell);
}

/* "0,1,3,32,500" */
static bool read_overlaps(const char *text, struct experiment_opts *o)
{
    char one[16];
    o->n_overlaps = 0;
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, ",");
        uint64_t v;
        if (n >= sizeof one || o->n_overlaps == EXPERIMENT_MAX_OVERLAPS)
            return false;
        memcpy(one, p, n);
        one[n] = 0;
        if (!str_to_u64(one, &v) || v > 100000)
            return false;
        o->overlaps[o->n_overlaps++] = (uint32_t)v;
        p += n + (p[n] == ',');
    }
    return o->n_overlaps > 0;
}

static int wrong(const char *what)
{
    fprintf(stderr, "holdfast experiment: %s\n", what);
    return 2;
}

int cmd_experiment(int argc, char **argv)
{
    struct experiment_opts o = {
        .scale = 1, .n_predict = 32, .seed = 1, .rounds = 4, .progress = progress};
    const char *interlopers = "0,1,3,32,500";
    int64_t seed = 1;
    char epilog[2048];
    size_t k = (size_t)snprintf(epilog, sizeof epilog, "Sequences:\n");
    const char *what, *name;
    for (size_t i = 0; (name = experiment_sequence_at(i, &what)) && k < sizeof epilog; i++)
        k += (size_t)snprintf(epilog + k, sizeof epilog - k, "  %-8s %s\n", name, what);
    const struct opt table[] = {
        {"-m --model", OPT_STR, &o.model, .arg = "FILE",
         .help = "run holdfast itself with this model"},
        {"--engine-cmd", OPT_STR, &o.engine_cmd, .arg = "COMMAND",
         .help = "run this instead; {port} in it becomes the port"},
        {"--config", OPT_STR, &o.config_path, .arg = "FILE",
         .help = "configurations of an engine (docs/formats/experiment.md)"},
        {"-o --out", OPT_STR, &o.out_dir, .arg = "DIR", .help = "where results go"},
        {"--sequences", OPT_STR, &o.sequences, .arg = "NAMES",
         .help = "some of them, by commas (all)"},
        {"--cascade", OPT_FLAG, &o.cascade,
         .help = "a conversation with interlopers between its turns, instead"},
        {"--interlopers", OPT_STR, &interlopers, .arg = "N,...",
         .help = "tokens each shares with it (0,1,3,32,500)"},
        {"--rounds", OPT_U32, &o.rounds, .arg = "N", .help = "turns after the first (4)", .min = 1,
         .max = 30},
        {"--scale", OPT_F64, &o.scale, .arg = "F", .help = "of all prompt lengths (1)",
         .min = 0.001, .max = 100},
        {"-n --predict", OPT_U32, &o.n_predict, .arg = "N", .help = "tokens generated (32)",
         .min = 1, .max = 4096},
        {"-s --seed", OPT_I64, &seed, .arg = "N", .help = "of the prompts (1)"},
        {"--start-timeout", OPT_U32, &o.start_s, .arg = "S", .help = "to load the model (600)",
         .min = 1, .max = 86400},
    };
    const struct opts opts = {.command = "experiment",
                              .intro =
                                  "Stage the controlled experiment on prefix reuse: sequences of "
                                  "prompts with exact token\n"
                                  "overlaps, against a fresh process of the engine for each, and "
                                  "hold what it reuses against\n"
                                  "what its rules predict and against the bytes of its replies.",
                              .table = table,
                              .n = COUNT_OF(table),
                              .epilog = epilog};
    const enum opts_result parsed = opts_parse(&opts, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    if (!o.out_dir)
        return wrong("--out DIR is needed");
    if (!!o.model + !!o.engine_cmd + !!o.config_path != 1)
        return wrong("one of --model, --engine-cmd and --config is needed");
    if (!read_overlaps(interlopers, &o))
        return wrong("--interlopers is a list of numbers: 0,1,3,32,500");
    o.seed = (uint64_t)seed;
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    o.binary = self;

    struct err err;
    json_t *summary;
    if (experiment_run(&o, &summary, &err)) {
        fprintf(stderr, "holdfast experiment: %s\n", err.msg);
        return 1;
    }
    struct buf b = BUF_INIT;
    experiment_document(summary, &b, false);
    fputs(buf_str(&b), stdout);
    size_t failed = 0, i;
    const json_t *cell;
    json_array_foreach(json_object_get(summary, "cells"), i, cell) failed +=
        !json_is_true(json_object_get(cell, "ok"));
    buf_release(&b);
    json_decref(summary);
    if (failed)
        fprintf(stderr,
                "holdfast experiment: %zu cells failed; see their meta.json and server.log\n",
                failed);
    return failed ? 1 : 0;
}
