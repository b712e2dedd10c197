/* forensics.h - logs in, findings out: what `holdfast forensics` does.
 *
 *     forensics_new(&opts, &f, err);
 *     forensics_file(f, "server.log", false, err);    one after the other
 *     forensics_end(f);
 *     forensics_json(f, stdout, err);                 or report_* from forensics_summary()
 *     forensics_free(f);
 *
 * One pass, streaming: lines (lines.h) lose their wrapping (unwrap.h), are read by a dialect (line.h) and
 * become turns (turn.h), which are counted, explained (cause.c) and put aside as JSON.  Memory does not
 * grow with the log but for some bytes a turn (the common prefixes, for their percentiles).
 * Source of the state machines and the grammar: docs/using/forensics.md.
 */
#ifndef HOLDFAST_LAB_FORENSICS_H
#define HOLDFAST_LAB_FORENSICS_H

#include "base/json.h"
#include "lab/turns_trace.h"

struct forensics;

struct forensics_opts {
    double now;             /* seconds since 1970, for dates without a year */
    bool keep_turns;        /* the turn list is wanted (--json) */
    const char *trace_path; /* NULL: none */
    bool follow;
    /* Called for each turn as it is complete, and (follow) when there is nothing new; return false to
     * stop reading.  May be NULL. */
    bool (*turn)(void *ctx, const struct turn *t);
    bool (*idle)(void *ctx);
    void *ctx;
};

NODISCARD enum rc forensics_new(const struct forensics_opts *o, struct forensics **out,
                                struct err *err);
void forensics_free(struct forensics *f);

/* joined: this file continues the one before (rotation).  An error stops this file only; what it held
 * before the error counts. */
NODISCARD enum rc forensics_file(struct forensics *f, const char *path, bool joined,
                                 struct err *err);
/* The same over bytes in memory. */
NODISCARD enum rc forensics_mem(struct forensics *f, const char *name, const void *p, size_t n,
                                struct err *err);
/* Of them, those that could be opened. */
size_t forensics_n_files(const struct forensics *f);
NODISCARD enum rc forensics_end(struct forensics *f, struct err *err);

/* After forensics_end: the findings without the list of turns, as one JSON value (owned by the caller).
 * extra, taken over, is put under "simulated"; may be NULL. */
NODISCARD enum rc forensics_summary(struct forensics *f, json_t *extra, json_t **out,
                                    struct err *err);
/* The summary's text and the lists behind it, streamed as one JSON object. */
NODISCARD enum rc forensics_write(struct forensics *f, const json_t *summary, FILE *out,
                                  struct err *err);

/* What the log is of, for the simulator: 0 when unknown. */
struct forensics_engine {
    uint32_t engines;     /* of most lines */
    int32_t since, until; /* yyyymmdd of the last stretch, 0 open */
    double ckpt_bytes;    /* of one checkpoint; NaN */
    uint32_t n_slots;     /* that were used */
    uint32_t ring;        /* checkpoints a slot may hold; 0 = not printed */
    double rate;          /* tokens per second; NaN */
    double reused_share;  /* of the prompt tokens; NaN */
};
void forensics_engine(struct forensics *f, struct forensics_engine *out);

/* Sorts names so that rotated files of one log come oldest first ("a.log.2.gz", "a.log.1", "a.log"), and
 * tells which continue the one before. */
void forensics_order(const char **paths, bool *joined, size_t n);

#endif
