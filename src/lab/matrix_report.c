/* matrix_report.c - what an experiment showed, as Markdown or HTML. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lab/doc.h"
#include "lab/matrix.h"
#include "lab/plot.h"
#include "lab/summary_int.h"

static const json_t *last_turn(const json_t *cell)
{
    const json_t *t = at(cell, "turns");
    const size_t n = json_array_size(t);
    return n ? json_array_get(t, n - 1) : NULL;
}

struct text {
    char s[160];
};

/* "restored at 2047" */
static struct text verdict(const json_t *turn)
{
    struct text t;
    const json_t *log = at(turn, "log");
    const double reused = num(turn, "reused"), at_pos = num(log, "restored_at");
    if (isnan(reused)) {
        snprintf(t.s, sizeof t.s, "reuse not reported");
        return t;
    }
    const char *word = *str(log, "outcome") && strcmp(str(log, "outcome"), "unknown") != 0
                           ? str(log, "outcome")
                       : reused > 0 ? "reused"
                                    : "full prefill";
    if (at_pos >= 0)
        snprintf(t.s, sizeof t.s, "%s at %.0f", word, at_pos);
    else
        snprintf(t.s, sizeof t.s, "%s", word);
    return t;
}

static void cell_rows(struct doc *d, const json_t *cells)
{
    size_t i, k;
    const json_t *cell, *turn;
    doc_table(d, "sequence|configuration|turn|>prompt|>shared, turn before|>shared, any|>reused|"
                 ">evaluated|>predicted reuse|outcome|>made|>erased|>prefill ms|completion");
    json_array_foreach(cells, i, cell)
    {
        if (!json_is_true(at(cell, "ok")))
            doc_row(d, "%s|%s|-|-|-|-|-|-|-|failed: %.200s|-|-|-|-", str(cell, "sequence"),
                    str(cell, "config"), str(cell, "error"));
        json_array_foreach(at(cell, "turns"), k, turn)
        {
            const json_t *log = at(turn, "log"), *pred = at(turn, "predicted");
            char predicted[24] = "-", reused[24] = "-", evaluated[24] = "-", made[24] = "-",
                 erased[24] = "-";
            if (pred)
                snprintf(predicted, sizeof predicted, "%.0f", num(pred, "reused"));
            if (!isnan(num(turn, "reused"))) {
                snprintf(reused, sizeof reused, "%.0f", num(turn, "reused"));
                snprintf(evaluated, sizeof evaluated, "%.0f",
                         num(turn, "prompt") - num(turn, "reused"));
            }
            if (log) {
                snprintf(made, sizeof made, "%.0f", num(log, "created"));
                snprintf(erased, sizeof erased, "%.0f", num(log, "erased"));
            }
            doc_row(d, "%s|%s|%s|%.0f|%.0f|%.0f|%s|%s|%s|%s|%s|%s|%.0f|`%s`", str(cell, "sequence"),
                    str(cell, "config"), str(turn, "label"), num(turn, "prompt"),
                    num(turn, "shared"), num(turn, "shared_with_any"), reused, evaluated, predicted,
                    verdict(turn).s, made, erased, num(turn, "prefill_ms"),
                    str(turn, "completion"));
        }
    }
}

/* The last turn of each sequence in each configuration: reused of what any earlier turn shared. */
static void overview(struct doc *d, const json_t *cells)
{
    const char *sequences[64], *configs[16];
    size_t n_sequences = 0, n_configs = 0, i;
    const json_t *cell;
    json_array_foreach(cells, i, cell)
    {
        size_t k = 0;
        while (k < n_sequences && strcmp(sequences[k], str(cell, "sequence")) != 0)
            k++;
        if (k == n_sequences && k < COUNT_OF(sequences))
            sequences[n_sequences++] = str(cell, "sequence");
        for (k = 0; k < n_configs && strcmp(configs[k], str(cell, "config")) != 0;)
            k++;
        if (k == n_configs && k < COUNT_OF(configs))
            configs[n_configs++] = str(cell, "config");
    }
    char line[1600];
    size_t o = (size_t)snprintf(line, sizeof line, "last turn of");
    for (size_t k = 0; k < n_configs && o < sizeof line; k++)
        o += (size_t)snprintf(line + o, sizeof line - o, "|>%s", configs[k]);
    doc_table(d, line);
    for (size_t s = 0; s < n_sequences; s++) {
        o = (size_t)snprintf(line, sizeof line, "%s", sequences[s]);
        for (size_t k = 0; k < n_configs && o < sizeof line; k++) {
            const json_t *turn = NULL;
            bool failed = false;
            json_array_foreach(cells, i, cell)
            {
                if (strcmp(str(cell, "sequence"), sequences[s]) != 0 ||
                    strcmp(str(cell, "config"), configs[k]) != 0)
                    continue;
                turn = last_turn(cell);
                failed = !json_is_true(at(cell, "ok"));
            }
            if (failed || !turn || isnan(num(turn, "reused")))
                o += (size_t)snprintf(line + o, sizeof line - o, "|%s", failed ? "failed" : "-");
            else
                o += (size_t)snprintf(line + o, sizeof line - o, "|%.0f of %.0f",
                                      num(turn, "reused"), num(turn, "shared_with_any"));
        }
        doc_row(d, "%s", line);
    }
}

/* Tokens reused by the last turn of each cell. */
static void plot_reuse(struct doc *d, const json_t *cells)
{
    struct plot_bar bars[96];
    char labels[96][80];
    size_t n = 0, i;
    const json_t *cell;
    json_array_foreach(cells, i, cell)
    {
        const json_t *t = last_turn(cell);
        if (n == COUNT_OF(bars) || !t || isnan(num(t, "reused")) ||
            !strcmp(str(cell, "sequence"), "c"))
            continue;
        snprintf(labels[n], sizeof labels[n], "%.30s, %.40s", str(cell, "sequence"),
                 str(cell, "config"));
        bars[n] = (struct plot_bar){labels[n], num(t, "reused"),
                                    !strncmp(str(cell, "config"), "hold", 4) ? 3
                                    : num(t, "reused") > 0                   ? 1
                                                                             : 4,
                                    NULL};
        n++;
    }
    if (!n || !doc_plot(d, "Tokens that the last turn of each sequence did not evaluate again."))
        return;
    plot_bars(d->out, "Reuse by cell", " tokens", bars, n);
    doc_plot_end(d);
}

/* Everything a configuration was sent, over all its cells. */
static void totals(struct doc *d, const json_t *cells)
{
    const char *seen[64];
    size_t n_seen = 0, i, j, k;
    const json_t *cell, *other, *turn;
    doc_table(d, "configuration|>prompt tokens|>seen before|>reused|>seen before, evaluated "
                 "again|>prefill s|>checkpoints made|>erased or evicted");
    json_array_foreach(cells, i, cell)
    {
        double prompt = 0, shared = 0, reused = 0, ms = 0, made = 0, erased = 0;
        for (k = 0; k < n_seen && strcmp(seen[k], str(cell, "config")) != 0;)
            k++;
        if (k < n_seen || n_seen == COUNT_OF(seen))
            continue;
        seen[n_seen++] = str(cell, "config");
        json_array_foreach(cells, j, other)
        {
            if (strcmp(str(other, "config"), str(cell, "config")) != 0)
                continue;
            json_array_foreach(at(other, "turns"), k, turn)
            {
                if (isnan(num(turn, "reused")))
                    continue;
                prompt += num(turn, "prompt");
                shared += num(turn, "shared_with_any");
                reused += num(turn, "reused");
                ms += fmax(num(turn, "prefill_ms"), 0);
                made += fmax(num(at(turn, "log"), "created"), 0);
                erased += fmax(num(at(turn, "log"), "erased"), 0);
            }
        }
        doc_row(d, "%s|%.0f|%.0f|%.0f|%.0f|%.1f|%.0f|%.0f", str(cell, "config"), prompt, shared,
                reused, shared - reused, ms * 1e-3, made, erased);
    }
}

static void predictions(struct doc *d, const json_t *cells)
{
    size_t i, k, asked = 0, right = 0;
    const json_t *cell, *turn;
    json_array_foreach(cells, i, cell)
    {
        json_array_foreach(at(cell, "turns"), k, turn)
        {
            if (!at(turn, "predicted") || isnan(num(turn, "reused")))
                continue;
            asked++;
            right += num(at(turn, "predicted"), "reused") == num(turn, "reused");
        }
    }
    if (!asked)
        return;
    doc_section(d, "Prediction against measurement", MARK_MECHANISM);
    doc_text(d,
             "The engine's rules, run token for token over the same prompts and replies, gave the "
             "reuse of %zu of %zu turns "
             "exactly.",
             right, asked);
}

static void equality(struct doc *d, const json_t *groups)
{
    const char *label, *hash;
    json_t *g, *n;
    if (!json_object_size(groups))
        return;
    doc_section(d, "Equal completions", MARK_EXPERIMENT);
    doc_text(d, "Greedy completions of the same prompt must be the same bytes however much of it "
                "was restored.");
    doc_table(d, "prompt|>cells|>different completions|verdict");
    json_object_foreach((json_t *)(uintptr_t)groups, label, g)
    {
        double cells = 0;
        json_object_foreach(g, hash, n) cells += json_number_value(n);
        doc_row(d, "%s|%.0f|%zu|%s", label, cells, json_object_size(g),
                json_object_size(g) == 1 ? "equal" : "**they differ**");
    }
}

void experiment_document(const json_t *s, struct buf *out, bool html)
{
    const json_t *cells = at(s, "cells"), *cell;
    struct doc d;
    size_t i, ok = 0;
    json_array_foreach(cells, i, cell) ok += json_is_true(at(cell, "ok"));
    const bool cascade = json_is_true(at(s, "cascade"));
    doc_begin(&d, out, html,
              cascade ? "Erase-cascade experiment" : "Controlled prefix-reuse experiment");
    doc_text(&d,
             "%zu cells, %zu of them complete; a fresh process for each, greedy, %.0f tokens "
             "generated, lengths at %g of the "
             "study's, prompts of token ids with exact overlaps (seed %.0f).",
             json_array_size(cells), ok, num(s, "n_predict"), num(s, "scale"), num(s, "seed"));
    doc_section(&d, "Method", MARK_NONE);
    doc_text(&d, "Reuse is what the engine's reply reports (`timings`); outcome, checkpoints made "
                 "and erased are read from its "
                 "log; shared is the common prefix with the turn before, reply included but for "
                 "its last token, which never "
                 "enters a slot.");
    if (!cascade) {
        const char *what, *name;
        for (i = 0; (name = experiment_sequence_at(i, &what)); i++)
            doc_item(&d, "`%s`: %s", name, what);
    } else {
        doc_text(&d, "A conversation (`T`) grows; between its turns an interloper (`I`) shares so "
                     "many of its first tokens as the "
                     "sequence's name says.");
    }
    doc_section(&d, "Overview", MARK_EXPERIMENT);
    doc_text(&d, "Tokens reused of those that any turn before had in common with it.");
    overview(&d, cells);
    plot_reuse(&d, cells);
    doc_section(&d, "By configuration", MARK_EXPERIMENT);
    doc_text(&d, "All turns together; seen before: what any turn before had in common with it.");
    totals(&d, cells);
    doc_section(&d, "Cells", MARK_EXPERIMENT);
    cell_rows(&d, cells);
    predictions(&d, cells);
    equality(&d, at(s, "completions"));
    doc_section(&d, "Configurations", MARK_NONE);
    doc_table(&d, "configuration|command|environment");
    const char *seen[64];
    size_t n_seen = 0;
    json_array_foreach(cells, i, cell)
    {
        const json_t *engine = at(cell, "engine");
        char cmd[2000] = "", env[600] = "";
        size_t k = 0;
        while (k < n_seen && strcmp(seen[k], str(cell, "config")) != 0)
            k++;
        if (k < n_seen || n_seen == COUNT_OF(seen))
            continue;
        seen[n_seen++] = str(cell, "config");
        const json_t *v;
        size_t w, o = 0;
        json_array_foreach(at(engine, "cmd"), w, v) if (o < sizeof cmd) o +=
            (size_t)snprintf(cmd + o, sizeof cmd - o, "%s%s", w ? " " : "", json_string_value(v));
        o = 0;
        json_array_foreach(at(engine, "env"), w, v) if (o < sizeof env) o +=
            (size_t)snprintf(env + o, sizeof env - o, "%s%s", w ? " " : "", json_string_value(v));
        doc_row(&d, "%s|`%s`|%s%s%s", str(cell, "config"), cmd, *env ? "`" : "-", env,
                *env ? "`" : "");
    }
    doc_end(&d);
}
