/* main.c - holdfast COMMAND [options] */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/opts.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"serve", cmd_serve, "serve a model over HTTP"},
    {"chat", cmd_chat, "talk to a model at the terminal"},
    {"run", cmd_run, "complete a prompt, without a server"},
    {"demo", cmd_demo, "show what the cache does, and check it"},
    {"bench", cmd_bench, "time a model on this machine"},
    {"perplexity", cmd_perplexity, "tell how well a model foretells a text"},
    {"inspect", cmd_inspect, "print what a model file holds"},
    {"forensics", cmd_forensics, "find out from a log what was prefilled again, and why"},
    {"replay", cmd_replay, "find out what each policy would reuse of a recorded workload"},
    {"experiment", cmd_experiment, "stage the controlled experiment on prefix reuse"},
    {"make-model", cmd_make_model, "write a model with random weights"},
    {"version", cmd_version, "print the version"},
};

static void usage(FILE *out)
{
    fprintf(out, "usage: holdfast COMMAND [options]\n\n");
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\nholdfast COMMAND --help tells the rest.\n");
}

/* What reading a mapping beyond its file's end raises: nothing can go on from there. */
static void on_bus_error(int sig)
{
    static const char text[] =
        "holdfast: bus error: the model file was cut short while it was in use\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(128 + sig);
    _exit(1);
}

/* What could not be written was not said: a full disk is a failure. */
static int finish(int status)
{
    if ((fflush(stdout) || ferror(stdout)) && !status) {
        fprintf(stderr, "holdfast: cannot write the output: %s\n", strerror(errno));
        return 1;
    }
    return status;
}

int main(int argc, char **argv)
{
    mem_map_large();
    signal(SIGBUS, on_bus_error);
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    const char *word = argv[1];
    if (!strcmp(word, "-h") || !strcmp(word, "--help") || !strcmp(word, "help")) {
        usage(stdout);
        return 0;
    }
    if (!strcmp(word, "--version"))
        return cmd_version(1, argv + 1);
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (!strcmp(word, commands[i].name))
            return finish(commands[i].run(argc - 1, argv + 1));
    const char *names[COUNT_OF(commands)];
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        names[i] = commands[i].name;
    /* whoever comes from llama-server has no command there */
    const char *near = word[0] == '-' ? "serve" : opts_nearest(word, names, COUNT_OF(names));
    fprintf(stderr, "holdfast: no command '%s'", word);
    if (near)
        fprintf(stderr, "; did you mean holdfast %s%s%s?", near, word[0] == '-' ? " " : "",
                word[0] == '-' ? word : "");
    fprintf(stderr, "\n(holdfast --help lists them)\n");
    return 2;
}
