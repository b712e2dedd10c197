#include "cli/cmd.h"

#include <stdio.h>

#include "cli/opts.h"

int cmd_version(int argc, char **argv)
{
    const struct opts o = {.command = "version", .intro = "Print the version and the compiler."};
    const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
#ifdef __clang__
    printf("holdfast %s (clang %s)\n", HOLDFAST_VERSION, __clang_version__);
#else
    printf("holdfast %s (gcc %s)\n", HOLDFAST_VERSION, __VERSION__);
#endif
    return 0;
}
