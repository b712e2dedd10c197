/* opts.h - command line options from a table: parsing, environment, --help.
 *
 * A command builds its table on the stack, each row pointing at the variable it sets (which already
 * holds the default):
 *
 *     const struct opt table[] = {
 *         {"-m --model", OPT_STR, &model, .arg = "FILE", .help = "model to load"},
 *         {"-np --parallel", OPT_U32, &np, .arg = "N", .min = 1, .max = 256, .help = "..."},
 *     };
 *     const struct opts o = {.command = "inspect", .operands_help = "FILE",
 *                            .intro = "Print what a model file holds.", .table = table,
 *                            .n = COUNT_OF(table), .operands = &path, .min_operands = 1,
 *                            .max_operands = 1};
 *     const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
 *     if (parsed)
 *         return opts_status(parsed);
 *
 * Names follow llama-server where it has the same thing.  "--ctx_size" is "--ctx-size", and
 * "--port=80" is "--port 80".  The command line wins over the environment.
 */
#ifndef HOLDFAST_CLI_OPTS_H
#define HOLDFAST_CLI_OPTS_H

#include "base/err.h"

#include <stdio.h>

enum opt_kind {
    OPT_GROUP,   /* no option: .help is a heading in --help */
    OPT_FLAG,    /* bool */
    OPT_I32,     /* int32_t */
    OPT_U32,     /* uint32_t */
    OPT_I64,     /* int64_t */
    OPT_F32,     /* float */
    OPT_F64,     /* double */
    OPT_STR,     /* const char *, borrowed from argv or the environment */
    OPT_BYTES,   /* uint64_t from "512M", "1.5G" */
    OPT_IGNORED, /* accepted; a note says that it decides nothing here (.help: why) */
    OPT_REFUSED  /* an error (.help: why) */
};

struct opt {
    /* Separated by blanks; the last one is the chief name.  A flag's name after '!' sets false:
     * "--warmup !--no-warmup". */
    const char *names;
    enum opt_kind kind;
    void *to;
    /* The value's name in --help; NULL for a flag.  In brackets ("[on|off]", OPT_IGNORED and
     * OPT_REFUSED only): a value is taken when the next word does not begin with '-'.  An OPT_IGNORED
     * "N" must be a whole number, an "X" a number: a slip is one, whether it decides anything or not. */
    const char *arg;
    const char *help; /* one phrase; the default in it is the caller's to mention */
    const char *env;  /* environment variable, or NULL */
    double min, max;  /* of numbers; both 0: what the type holds */
    bool *given;      /* set when it came up (command line or environment); may be NULL */
};

struct opts {
    const char *command;       /* "serve" */
    const char *operands_help; /* "FILE..." after the options in the usage line, or NULL */
    const char *intro;         /* a sentence or two under the usage line */
    const struct opt *table;
    size_t n;
    const struct opt *more; /* further rows; may be NULL */
    size_t n_more;
    const char **operands; /* [max_operands]: the words that are no options */
    size_t min_operands, max_operands;
    size_t *n_operands; /* how many came; may be NULL */
    const char *epilog; /* printed at the end of --help; may be NULL */
};

enum opts_result {
    OPTS_OK = 0,
    OPTS_HELP, /* -h or --help: printed to stdout */
    OPTS_ERROR /* said on out */
};

/* argv[0] is the command's name.  Notes and errors go to out.  "--" ends the options. */
NODISCARD enum opts_result opts_parse(const struct opts *o, int argc, char *const *argv, FILE *out);
/* The exit status of a command that ends here: 0 after --help, 2 after an error. */
static inline int opts_status(enum opts_result parsed)
{
    return parsed == OPTS_ERROR ? 2 : 0;
}

/* The one of names[n] nearest to word by edit distance, or NULL when none is near. */
const char *opts_nearest(const char *word, const char *const *names, size_t n);

#endif
