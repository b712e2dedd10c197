/* matrix.h - the controlled experiment: sequences of prompts x configurations, a fresh engine for each.
 *
 * Every cell leaves a directory: meta.json (what was asked, what came back, what the rules predict), server.log
 * and, for holdfast, events.jsonl.  The whole leaves report.json, report.md and report.html.
 * Nothing else is written.  docs/formats/experiment.md
 */
#ifndef HOLDFAST_LAB_MATRIX_H
#define HOLDFAST_LAB_MATRIX_H

#include "base/json.h"

enum { EXPERIMENT_MAX_OVERLAPS = 16 };

struct experiment_opts {
    const char *out_dir;
    /* one of: our own binary with a model, one command, a file of configurations */
    const char *binary, *model;
    const char *engine_cmd;
    const char *config_path;
    const char *sequences;                      /* names separated by commas; NULL = all of them */
    bool cascade;                               /* interlopers instead of the sequences */
    uint32_t overlaps[EXPERIMENT_MAX_OVERLAPS]; /* of the interlopers */
    uint32_t n_overlaps;
    uint32_t rounds; /* turns of the conversation in a cascade */
    double scale;    /* of all lengths; 1 = the study's */
    uint32_t n_predict;
    uint64_t seed;
    uint32_t start_s;
    void (*progress)(void *ctx, const char *cell, uint32_t done, uint32_t total);
    void *ctx;
};

/* *summary: report.json's content (owned by the caller).  A cell whose engine fails is recorded and the rest
 * goes on, unless there is one engine alone and it does not even start; RC_ARG, RC_FORMAT, RC_IO when nothing
 * can be run. */
NODISCARD enum rc experiment_run(const struct experiment_opts *o, json_t **summary,
                                 struct err *err);

/* The report from that JSON. */
void experiment_document(const json_t *summary, struct buf *out, bool html);

/* Names of the sequences, for --help; NULL past the end. */
const char *experiment_sequence_at(size_t i, const char **what);

#endif
