/* runner.h - an engine under test: a fresh process, its log in a file, gone afterwards. */
#ifndef HOLDFAST_LAB_RUNNER_H
#define HOLDFAST_LAB_RUNNER_H

#include "net/client.h"

struct runner;

struct runner_opts {
    const char *const *argv; /* NULL-terminated; "{port}" and "{dir}" in a word are filled in */
    const char *dir;         /* may be NULL */
    const char *const *env;  /* "NAME=value", NULL-terminated, on top of ours; may be NULL */
    const char *log_path;    /* its stdout and stderr */
    uint32_t start_s;        /* how long it may take to answer /health; 0 = 600 */
    uint32_t idle_s;         /* longest silence of a reply; 0 = 3600 */
};

/* Starts it and waits until GET /health answers 200.  RC_IO when it ends before or does not start in time:
 * the message has the status and the last line of its log. */
NODISCARD enum rc runner_start(const struct runner_opts *o, struct runner **out, struct err *err);
/* Ends it: SIGTERM to its process group, SIGKILL after 20 s. */
void runner_stop(struct runner *r);
struct client *runner_client(struct runner *r);

/* "llama-server -m 'a b.gguf' --port {port}" to words (quotes as in a shell, nothing else of it);
 * words and *words are the caller's (runner_words_free).  RC_ARG: a quote without its mate, no word. */
NODISCARD enum rc runner_words(const char *command, char ***words, struct err *err);
void runner_words_free(char **words);

#endif
