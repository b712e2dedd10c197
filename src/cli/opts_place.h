/* opts_place.h - the options that say where threads and memory go, shared by commands. */
#ifndef HOLDFAST_CLI_OPTS_PLACE_H
#define HOLDFAST_CLI_OPTS_PLACE_H

#include "cli/opts.h"

struct place_opts { /* zero-initialise */
    const char *mask, *range, *numa;
    uint32_t strict;
};

/* Rows of a command's table; p is a struct place_opts *. */
#define PLACE_OPTS(p)                                                                              \
    {"-C --cpu-mask", OPT_STR, &(p)->mask, .arg = "HEX", .help = "CPUs to run on, as a mask"},     \
        {"-Cr --cpu-range", OPT_STR, &(p)->range, .arg = "LO-HI",                                  \
         .help = "CPUs to run on, as a range"},                                                    \
        {"--cpu-strict",                                                                           \
         OPT_U32,                                                                                  \
         &(p)->strict,                                                                             \
         .arg = "0|1",                                                                             \
         .help = "bind each computing thread to a CPU of its own (0)",                             \
         .max = 1},                                                                                \
    {                                                                                              \
        "--numa", OPT_STR, &(p)->numa,                                                             \
            .arg = "TYPE",                                                                         \
            .help = "distribute memory over the nodes, isolate to this one, or numactl",           \
            .env = "LLAMA_ARG_NUMA"                                                                \
    }

/* Confines this process; to be called before threads start and memory is filled.  False: said on
 * stderr. */
NODISCARD bool place_apply(const struct place_opts *p, const char *command);

#endif
