/* cmd_forensics.c - holdfast forensics LOG...: why does it re-prefill, what does that cost, what would help? */
#include "cli/cmd.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/opts.h"
#include "lab/forensics.h"
#include "lab/levers.h"
#include "lab/report.h"

static volatile sig_atomic_t interrupted; /* set by the handler alone */

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static bool go_on(void *ctx)
{
    (void)ctx;
    return !interrupted;
}

/* --follow: a line per turn, as it is complete. */
static bool show_turn(void *ctx, const struct turn *t)
{
    FILE *out = ctx;
    if (!t->launched)
        return !interrupted;
    fprintf(out, "task %lld, slot %u: %s", (long long)t->task, t->slot, outcome_name(t->outcome));
    if (t->n_prompt >= 0)
        fprintf(out, ", prompt %lld", (long long)t->n_prompt);
    if (turn_reused(t) >= 0)
        fprintf(out, ", reused %lld", (long long)turn_reused(t));
    if (t->timed)
        fprintf(out, ", evaluated %lld in %.2f s", (long long)t->evaluated, t->prefill_ms / 1e3);
    if (t->lost > 0)
        fprintf(out, "; %lld again: %s%s (%s)", (long long)t->lost, cause_name(t->cause),
                t->cause_inferred ? ", inferred" : "", t->cause_why);
    fputc('\n', out);
    fflush(out);
    return !interrupted;
}

static enum rc write_document(const char *path, const json_t *summary, bool html, struct err *err)
{
    struct buf b = BUF_INIT;
    report_document(summary, &b, html);
    const enum rc rc = b.failed ? err_set(err, RC_NOMEM, "no memory for %s", path)
                                : file_write_atomically(path, b.p, b.n, err);
    buf_release(&b);
    return rc;
}

struct outputs {
    bool json, simulate;
    const char *html, *md;
};

static enum rc report(struct forensics *f, const struct outputs *o, const char *trace,
                      struct err *err)
{
    json_t *summary = NULL, *sim = NULL;
    enum rc rc = RC_OK;
    if (o->simulate) {
        struct forensics_engine e;
        forensics_engine(f, &e);
        rc = levers_predict(trace, &e, &sim, err);
    }
    if (!rc)
        rc = forensics_summary(f, sim, &summary, err);
    if (!rc && o->html)
        rc = write_document(o->html, summary, true, err);
    if (!rc && o->md)
        rc = write_document(o->md, summary, false, err);
    if (!rc && o->json)
        rc = forensics_write(f, summary, stdout, err);
    if (!rc && !o->json) {
        struct buf b = BUF_INIT;
        report_text(summary, &b);
        fputs(buf_str(&b), stdout);
        buf_release(&b);
    }
    const json_t *turns = json_object_get(json_object_get(summary, "totals"), "turns");
    if (!rc && json_integer_value(turns) == 0)
        fprintf(stderr,
                "holdfast forensics: no turn was found: is it a server's log, at a level that "
                "shows requests?  docs/using/forensics.md tells how to collect one\n");
    json_decref(summary);
    return rc;
}

int cmd_forensics(int argc, char **argv)
{
    const char *paths[256], *trace = NULL;
    bool joined[COUNT_OF(paths)], follow = false, no_simulate = false;
    size_t n = 0;
    struct outputs o = {.simulate = true};
    const struct opt table[] = {
        {"--json", OPT_FLAG, &o.json, .help = "everything as JSON on stdout, every turn included"},
        {"--html", OPT_STR, &o.html, .arg = "FILE", .help = "a page with plots, self-contained"},
        {"--md", OPT_STR, &o.md, .arg = "FILE", .help = "the same as Markdown"},
        {"--trace", OPT_STR, &trace, .arg = "FILE",
         .help = "the turns as a trace, for holdfast replay"},
        {"--follow", OPT_FLAG, &follow, .help = "read on as the log grows; Ctrl-C reports"},
        {"--no-simulate", OPT_FLAG, &no_simulate, .help = "leave out what the levers would do"},
    };
    const struct opts opts = {
        .command = "forensics",
        .operands_help = "LOG...",
        .intro = "Read server logs of llama.cpp, ik_llama.cpp, PXA, LM Studio, Ollama or holdfast "
                 "and tell why\n"
                 "prompts are evaluated again, what that costs, and what would help.  LOG may be "
                 "packed with\n"
                 "gzip or zstd; - is standard input.  Rotated files of one log are put in order.",
        .table = table,
        .n = COUNT_OF(table),
        .operands = paths,
        .min_operands = 1,
        .max_operands = COUNT_OF(paths),
        .n_operands = &n,
        .epilog =
            "Nothing leaves the machine; prompt text that a log quotes is skipped, not stored."};
    const enum opts_result parsed = opts_parse(&opts, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    o.simulate = !no_simulate;
    struct err err = {0};
    char temp[] = "/tmp/holdfast-turns-XXXXXX";
    if (!trace && o.simulate) {
        const int fd = mkstemp(temp);
        if (fd < 0) {
            fprintf(stderr, "holdfast forensics: no temporary file; --no-simulate does without\n");
            return 1;
        }
        close(fd);
    }
    const char *used = trace ? trace : o.simulate ? temp : NULL;
    struct forensics *f = NULL;
    enum rc rc = forensics_new(&(struct forensics_opts){.now = (double)clock_wall_ns() * 1e-9,
                                                        .keep_turns = o.json,
                                                        .trace_path = used,
                                                        .follow = follow,
                                                        .turn = follow ? show_turn : NULL,
                                                        .idle = go_on,
                                                        .ctx = o.json ? stderr : stdout},
                               &f, &err);
    if (follow) {
        const struct sigaction sa = {.sa_handler = on_interrupt};
        sigaction(SIGINT, &sa, NULL);
        sigaction(SIGTERM, &sa, NULL);
    }
    forensics_order(paths, joined, n);
    int status = 0;
    for (size_t i = 0; i < n && !rc && !interrupted; i++) {
        struct err e;
        if (!forensics_file(f, paths[i], joined[i], &e))
            continue;
        fprintf(stderr, "holdfast forensics: %s\n", e.msg);
        status = 1;
    }
    if (!rc)
        rc = forensics_end(f, &err);
    /* a file that breaks off is reported as far as it went; without any there is nothing to report */
    if (!rc && forensics_n_files(f))
        rc = report(f, &o, used, &err);
    if (rc) {
        fprintf(stderr, "holdfast forensics: %s\n", err.msg);
        status = 1;
    }
    forensics_free(f);
    if (used == temp)
        unlink(temp);
    return status;
}
