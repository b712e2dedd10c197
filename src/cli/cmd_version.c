#include "cli/cmd.h"

#include <stdio.h>

#include "cli/opts.h"

int cmd_version(int argc, char **argv)
{
    const struct opts o = {.command = "version", .intro = "Print the version and the compiler."};
    switch (opts_parse(&o, argc, argv, stderr)) {
    case OPTS_HELP:
        return 0;
    case OPTS_ERROR:
        return 2;
    case OPTS_OK:
        break;
    }
#ifdef __clang__
    printf("holdfast %s (clang %s)\n", HOLDFAST_VERSION, __clang_version__);
#else
    printf("holdfast %s (gcc %s)\n", HOLDFAST_VERSION, __VERSION__);
#endif
    return 0;
}
