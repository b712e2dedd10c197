#include "lab/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "lab/doc.h"
#include "lab/plot.h"
#include "lab/summary_int.h"

struct text {
    char s[64];
};

/* 1234567 -> "1,234,567"; NaN -> "-" */
static struct text count(double v)
{
    struct text t;
    char raw[32];
    if (isnan(v))
        return (struct text){"-"};
    const int n = snprintf(raw, sizeof raw, "%.0f", v);
    int o = 0;
    for (int i = 0; i < n; i++) {
        t.s[o++] = raw[i];
        if (i + 1 < n && raw[i] != '-' && (n - i - 1) % 3 == 0)
            t.s[o++] = ',';
    }
    t.s[o] = 0;
    return t;
}

static struct text fixed(double v, int decimals)
{
    struct text t;
    if (isnan(v))
        return (struct text){"-"};
    snprintf(t.s, sizeof t.s, "%.*f", decimals, v);
    return t;
}

static struct text seconds(double v)
{
    struct text t;
    if (isnan(v))
        return (struct text){"-"};
    if (fabs(v) >= 5400)
        snprintf(t.s, sizeof t.s, "%.1f h", v / 3600);
    else if (fabs(v) >= 90)
        snprintf(t.s, sizeof t.s, "%.1f min", v / 60);
    else
        snprintf(t.s, sizeof t.s, "%.1f s", v);
    return t;
}

static struct text percent(double part, double whole)
{
    struct text t;
    if (!(whole > 0))
        return (struct text){"-"};
    snprintf(t.s, sizeof t.s, "%.1f %%", 100 * part / whole);
    return t;
}

static struct text gib(double bytes)
{
    struct text t;
    char s[16];
    if (!(bytes > 0))
        return (struct text){"-"};
    str_from_bytes((uint64_t)bytes, s);
    snprintf(t.s, sizeof t.s, "%s", s);
    return t;
}

/* A name from a log or a path, fit for a table cell. */
static struct text cell(const char *s)
{
    struct text t;
    const size_t n = strlen(s), keep = sizeof t.s - 1;
    const char *from = n > keep ? s + n - keep : s;
    snprintf(t.s, sizeof t.s, "%s", from);
    for (char *p = t.s; *p; p++)
        if (*p == '|' || *p == '`' || (uint8_t)*p < 0x20)
            *p = '/';
    return t;
}

static const struct {
    const char *key, *what;
} outcomes[] = {{"cold", "cold: the slot was empty"},
                {"append", "append: went on where the slot stood"},
                {"trimmed", "trimmed: cut back without a checkpoint"},
                {"restored", "restored from a checkpoint"},
                {"forced", "forced full re-prefill"},
                {"cleared", "cleared: full re-prefill"},
                {"zero_overlap",
                 "silent full re-prefill: nothing shared, the ring wiped without a word"},
                {"silent_full", "silent full re-prefill of a shared prefix"},
                {"unknown", "not said by the log"}},
  causes[] = {{"placement", "placement: no checkpoint at or below the divergence"},
              {"retention", "retention: there had been one"},
              {"granularity", "granularity: restored, but from further down"},
              {"rewind", "rewind: the right checkpoint was refused by rule"},
              {"baseline", "baseline: nothing worth a checkpoint was shared"},
              {"unknown", "unknown"}};

static void engine_line(const json_t *s, char *out, size_t n)
{
    const char *since = str(s, "since"), *until = str(s, "until");
    if (*since && *until)
        snprintf(out, n, "%s, a build between %s and %s", str(s, "engine"), since, until);
    else if (*since)
        snprintf(out, n, "%s, a build of %s or later", str(s, "engine"), since);
    else if (*until)
        snprintf(out, n, "%s, a build of %s or before", str(s, "engine"), until);
    else
        snprintf(out, n, "%s", str(s, "engine"));
}

/* "erased by task 52 (line 50)" where the turn has it. */
static void turn_reason(const json_t *t, bool brief, char *out, size_t n)
{
    const json_t *by = at(t, "by_task"), *ev = at(t, "evidence");
    size_t k =
        (size_t)snprintf(out, n, "%s%s: %s", str(t, "cause"),
                         json_is_true(at(t, "cause_inferred")) ? " (inferred)" : "", str(t, "why"));
    if (json_is_integer(by) && k < n)
        k += (size_t)snprintf(out + k, n - k, "; task %lld", (long long)json_integer_value(by));
    const size_t lines = json_array_size(ev);
    for (size_t i = 0; i < lines && k < n; i++) {
        const long long line = (long long)json_integer_value(at(json_array_get(ev, i), "line"));
        if (brief)
            k += (size_t)snprintf(out + k, n - k, "%s%lld%s", i ? ", " : " (lines ", line,
                                  i + 1 == lines ? ")" : "");
        else
            k += (size_t)snprintf(out + k, n - k, "%s %lld (%s)", i ? "," : "; line", line,
                                  str(json_array_get(ev, i), "what"));
    }
}

/* ---- a page of text -------------------------------------------------------------------------- */

void report_text(const json_t *s, struct buf *b)
{
    const json_t *t = at(s, "totals"), *files = at(s, "files"), *rate = at(s, "rate"),
                 *avoid = at(s, "avoidable"), *lcp = at(s, "common_prefix"),
                 *bytes = at(t, "bytes");
    char line[1024];
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i);
        buf_addf(b, "%s: %s lines, %s bytes", str(f, "path"), count(num(f, "lines")).s,
                 count(num(f, "bytes")).s);
        if (num(f, "unknown_lines") > 0)
            buf_addf(b, ", %s unknown", count(num(f, "unknown_lines")).s);
        if (num(f, "quoted_lines") > 0)
            buf_addf(b, ", %s of quoted prompt text", count(num(f, "quoted_lines")).s);
        if (num(f, "hidden_lines") > 0)
            buf_addf(b, ", %s hidden by journald (export with journalctl -a)",
                     count(num(f, "hidden_lines")).s);
        if (at(f, "error"))
            buf_addf(b, "; stopped: %s", str(f, "error"));
        buf_addc(b, '\n');
        const json_t *stretches = at(f, "stretches");
        for (size_t k = 0; k < MIN(json_array_size(stretches), (size_t)4); k++) {
            const json_t *x = json_array_get(stretches, k);
            engine_line(x, line, sizeof line);
            buf_addf(b, "  lines %s to %s: %s; wrapping: %s\n", count(num(x, "from_line")).s,
                     count(num(x, "to_line")).s, line, str(x, "wrapping"));
        }
        if (json_array_size(stretches) > 4)
            buf_addf(b, "  and %zu more stretches (--json)\n", json_array_size(stretches) - 4);
    }
    buf_addf(b, "\nturns      %s: %s timed, %s cancelled, %s unpaired\n", count(num(t, "turns")).s,
             count(num(t, "turns_timed")).s, count(num(t, "cancelled")).s,
             count(num(t, "unpaired")).s);
    for (size_t i = 0; i < COUNT_OF(outcomes); i++)
        if (num(at(t, "outcomes"), outcomes[i].key) > 0)
            buf_addf(b, "  %7s  %s\n", count(num(at(t, "outcomes"), outcomes[i].key)).s,
                     outcomes[i].what);
    buf_addf(b, "prompts    %s tokens; %s reused (%s), %s evaluated in %s\n",
             count(num(t, "prompt_tokens")).s, count(num(t, "reused_tokens")).s,
             percent(num(t, "reused_tokens"), num(t, "prompt_tokens")).s,
             count(num(t, "evaluated_tokens")).s, seconds(num(t, "prefill_seconds")).s);
    buf_addf(b, "rate       %s tokens/s: %s\n", fixed(num(rate, "tokens_per_second"), 0).s,
             str(rate, "how"));
    buf_addf(b,
             "common prefix with what the slot held, %s turns\n           min %s, p10 %s, p25 %s, "
             "median %s, "
             "p75 %s, p90 %s, "
             "max %s\n           under 512 tokens: %s, from 4,096 on: %s%s\n",
             count(num(lcp, "n")).s, count(num(lcp, "min")).s, count(num(lcp, "p10")).s,
             count(num(lcp, "p25")).s, count(num(lcp, "median")).s, count(num(lcp, "p75")).s,
             count(num(lcp, "p90")).s, count(num(lcp, "max")).s,
             percent(num(lcp, "share_under_512"), 1).s, percent(num(lcp, "share_from_4096"), 1).s,
             json_is_true(at(lcp, "two_groups")) ? "; two groups" : "");
    buf_addf(b, "checkpoints  %s made (%s), %s restored, %s erased (%s), %s evicted\n",
             count(num(t, "created")).s, gib(num(bytes, "created")).s, count(num(t, "restored")).s,
             count(num(t, "erased")).s, gib(num(bytes, "erased")).s, count(num(t, "evicted")).s);
    buf_addf(b, "\navoidable  %s tokens evaluated again that the slot had held",
             count(num(avoid, "tokens")).s);
    if (!isnan(num(avoid, "seconds")))
        buf_addf(b, ": %s (%s to %s)", seconds(num(avoid, "seconds")).s,
                 seconds(num(avoid, "seconds_low")).s, seconds(num(avoid, "seconds_high")).s);
    buf_adds(b, "\n           a bound: a state at every divergence; nothing shared beyond the "
                "slot's own content\n");
    if (num(avoid, "turns_without_common_prefix") > 0)
        buf_addf(b, "           %s turns do not show their common prefix and count nothing\n",
                 count(num(avoid, "turns_without_common_prefix")).s);
    buf_adds(b,
             "\ncause of what was evaluated again         turns  inferred      tokens   seconds\n");
    for (size_t i = 0; i < COUNT_OF(causes); i++) {
        const json_t *c = at(at(t, "causes"), causes[i].key);
        if (c)
            buf_addf(b, "  %-56s %6s  %8s  %10s  %8s\n", causes[i].what, count(num(c, "turns")).s,
                     count(num(c, "inferred")).s, count(num(c, "tokens")).s,
                     fixed(num(c, "seconds"), 1).s);
    }
    const json_t *worst = at(s, "worst");
    if (json_array_size(worst))
        buf_adds(b, "\nthe dearest turns\n");
    for (size_t i = 0; i < MIN(json_array_size(worst), (size_t)5); i++) {
        const json_t *w = json_array_get(worst, i);
        turn_reason(w, true, line, sizeof line);
        buf_addf(b, "  task %s, slot %s: %s of %s tokens again\n    %s\n", count(num(w, "task")).s,
                 count(num(w, "slot")).s, count(num(w, "again")).s,
                 count(num(w, "prompt_tokens")).s, line);
    }
    const json_t *sim = at(s, "simulated"), *policies = at(sim, "policies");
    if (json_array_size(policies)) {
        buf_addf(b, "\nwhat would be reused of these %s turns, simulated (the log: %s)\n",
                 count(num(sim, "turns")).s, percent(num(sim, "share_in_log"), 1).s);
        for (size_t i = 0; i < json_array_size(policies); i++) {
            const json_t *p = json_array_get(policies, i);
            buf_addf(b, " %c%-20s %8s %10s  %s\n", strcmp(str(p, "is"), "as it is") ? ' ' : '*',
                     str(p, "name"), percent(num(p, "share"), 1).s,
                     seconds(num(p, "seconds_saved")).s, str(p, "what"));
        }
        buf_adds(b, *str(sim, "as_it_is") ? "  * comes nearest to what the log shows\n"
                                          : "  none of them comes near what the log shows\n");
        buf_adds(
            b,
            "  seconds: prefill saved against the log, at its rate.  The log shows only what a "
            "prompt shares with\n"
            "  its slot; what a cache for all requests would find beyond that is not counted.\n");
    }
}

/* ---- Markdown and HTML ----------------------------------------------------------------------- */

static void plot_lcp(struct doc *d, const json_t *lcp)
{
    struct plot_bar bars[32];
    char labels[32][24];
    const json_t *bins = at(lcp, "bins");
    double last = 0;
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(bins); i++)
        last = MAX(last, num(json_array_get(bins, i), "from"));
    for (double from = 0; from <= last && n<COUNT_OF(bars); from = from> 0 ? from * 2 : 1) {
        double v = 0;
        for (size_t i = 0; i < json_array_size(bins); i++)
            if (num(json_array_get(bins, i), "from") == from)
                v = num(json_array_get(bins, i), "n");
        if (from >= 1024)
            snprintf(labels[n], sizeof labels[n], "%.0fk", from / 1024);
        else
            snprintf(labels[n], sizeof labels[n], "%.0f", from);
        bars[n] = (struct plot_bar){labels[n], v, from <= 0 ? 5 : from < 512 ? 2 : 1, NULL};
        n++;
    }
    if (!n ||
        !doc_plot(d, "Common prefix of each turn with what its slot held, in tokens; each column "
                     "reaches to twice its number. Grey: nothing; orange: under 512."))
        return;
    plot_columns(d->out, "Histogram of common prefixes", "tokens in common (log scale)", "turns",
                 bars, n);
    doc_plot_end(d);
}

struct titled {
    char s[200];
};

/* The checkpoints of one slot. */
static void plot_slot(struct doc *d, const json_t *list, double last, const json_t *of)
{
    static const struct {
        const char *name;
        int series;
    } ends[] = {{"kept", 3}, {"erased", 4}, {"evicted", 2}, {"thinned", 2}, {"reset", 5}};
    static const struct plot_key keys[] = {
        {3, "still there"}, {4, "erased"}, {2, "evicted or thinned"}, {5, "gone with its slot"}};
    const size_t all = json_array_size(list);
    struct plot_life *lives = mem_try_array(all, sizeof *lives);
    struct titled *titles = mem_try_array(all, sizeof *titles);
    size_t n = 0;
    for (size_t i = 0; i < all && lives && titles; i++) {
        const json_t *c = json_array_get(list, i);
        if (num(c, "process") != num(of, "process") || num(c, "slot") != num(of, "slot"))
            continue;
        size_t end = 0;
        while (end + 1 < COUNT_OF(ends) && strcmp(ends[end].name, str(c, "end")) != 0)
            end++;
        const double gone = num(c, "gone_turn");
        snprintf(titles[n].s, sizeof titles[n].s,
                 "checkpoint at %.0f, made by task %.0f (line %.0f), %s", num(c, "pos"),
                 num(c, "made_task"), num(c, "made_line"), ends[end].name);
        const size_t k = strlen(titles[n].s);
        if (!isnan(gone))
            snprintf(titles[n].s + k, sizeof titles[n].s - k, " by task %.0f (line %.0f)",
                     num(c, "gone_task"), num(c, "gone_line"));
        lives[n] = (struct plot_life){.from = num(c, "made_turn"),
                                      .to = isnan(gone) ? last + 1 : gone,
                                      .y = num(c, "pos"),
                                      .series = ends[end].series,
                                      .hits = (uint32_t)fmax(num(c, "hits"), 0),
                                      .title = titles[n].s};
        n++;
    }
    char text[200];
    snprintf(text, sizeof text,
             "Slot %.0f: life of its checkpoints, from the turn that made one to the turn that "
             "ended it. "
             "A ring: restored from. (The last %zu of the log.)",
             num(of, "slot"), all);
    if (n && doc_plot(d, text)) {
        snprintf(text, sizeof text, "Checkpoint lives of slot %.0f", num(of, "slot"));
        plot_lives(d->out, text, "turn", "position (tokens)", lives, n, keys, COUNT_OF(keys));
        doc_plot_end(d);
    }
    mem_free(lives);
    mem_free(titles);
}

static void plot_slots(struct doc *d, const json_t *plots)
{
    const json_t *list = at(plots, "checkpoints"), *seen[8];
    double last = 0;
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        last = fmax(last, fmax(num(c, "made_turn"), num(c, "gone_turn")));
        size_t k = 0;
        while (k < n && (num(seen[k], "process") != num(c, "process") ||
                         num(seen[k], "slot") != num(c, "slot")))
            k++;
        if (k == n && n < COUNT_OF(seen))
            seen[n++] = c;
    }
    for (size_t k = 0; k < n; k++)
        plot_slot(d, list, last, seen[k]);
}

static void plot_cost(struct doc *d, const json_t *plots, double rate)
{
    const json_t *cost = at(plots, "cost");
    const size_t all = json_array_size(cost);
    struct plot_stack *v = mem_try_array(all, sizeof *v);
    struct titled *titles = mem_try_array(all, sizeof *titles);
    double turn = 0;
    for (size_t i = 0; i < all && v && titles; i++) {
        const json_t *c = json_array_get(cost, i);
        const double s = num(c, "prefill_seconds"), n = num(c, "turns"),
                     lost = isnan(rate) ? 0 : fmin(num(c, "avoidable") / rate, s);
        snprintf(titles[i].s, sizeof titles[i].s,
                 "turns %.0f to %.0f: %.1f s of prefill, %.1f s avoidable", turn, turn + n - 1, s,
                 lost);
        v[i] = (struct plot_stack){turn, n, fmax(s - lost, 0), lost, titles[i].s};
        turn += n;
    }
    if (all && v && titles && doc_plot(d, "Prefill time, turn after turn.")) {
        plot_stacks(d->out, "Prefill cost over time", "turn", "seconds", "needed", "avoidable", v,
                    all);
        doc_plot_end(d);
    }
    mem_free(v);
    mem_free(titles);
}

static void plot_policies(struct doc *d, const json_t *policies)
{
    struct plot_bar bars[20];
    char titles[20][256];
    char labels[20][64];
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(policies) && n < COUNT_OF(bars); i++) {
        const json_t *p = json_array_get(policies, i);
        const char *is = str(p, "is");
        snprintf(labels[n], sizeof labels[n], "%s (%s)", str(p, "name"), is);
        snprintf(titles[n], sizeof titles[n], "%s: %s", str(p, "name"), str(p, "what"));
        bars[n] = (struct plot_bar){labels[n], 100 * num(p, "share"),
                                    !strcmp(is, "holdfast")   ? 3
                                    : !strcmp(is, "as it is") ? 4
                                    : !strcmp(is, "bound")    ? 5
                                                              : 1,
                                    titles[n]};
        n++;
    }
    if (!n || !doc_plot(d, "Share of the prompt tokens that each would reuse."))
        return;
    plot_bars(d->out, "Prefill saved by policy", " %", bars, n);
    doc_plot_end(d);
}

static void block_table(struct doc *d, const json_t *blocks, const char *what)
{
    const char *name;
    json_t *b;
    size_t n = 0;
    char head[160];
    snprintf(head, sizeof head,
             "%s|>turns|>forced|>silent|>restored|>prompt tokens|>reused|>prefill|>avoidable "
             "tokens|>avoidable",
             what);
    doc_table(d, head);
    json_object_foreach((json_t *)(uintptr_t)blocks, name, b)
    {
        if (n++ >= 60)
            break;
        doc_row(d, "%s|%s|%s|%s|%s|%s|%s|%s|%s|%s", cell(name).s, count(num(b, "turns")).s,
                count(num(b, "forced")).s, count(num(b, "full_reprefill_turns_unlogged")).s,
                count(num(b, "restored")).s, count(num(b, "prompt_tokens")).s,
                percent(num(b, "reused_tokens"), num(b, "prompt_tokens")).s,
                seconds(num(b, "prefill_seconds")).s, count(num(b, "avoidable_tokens")).s,
                seconds(num(b, "avoidable_seconds")).s);
    }
    if (json_object_size(blocks) > 60)
        doc_row(d, "and %zu more (JSON)", json_object_size(blocks) - 60);
}

static void file_sections(struct doc *d, const json_t *files)
{
    char line[300];
    doc_section(d, "The logs", MARK_MEASURED);
    doc_table(d, "file|>lines|>bytes|>unknown|lines|engine and era|wrapping");
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i), *st = at(f, "stretches");
        if (!json_array_size(st))
            doc_row(d, "%s|%s|%s|%s|-|nothing recognised|-", cell(str(f, "path")).s,
                    count(num(f, "lines")).s, count(num(f, "bytes")).s,
                    count(num(f, "unknown_lines")).s);
        for (size_t k = 0; k < json_array_size(st); k++) {
            const json_t *x = json_array_get(st, k);
            engine_line(x, line, sizeof line);
            doc_row(d, "%s|%s|%s|%s|%s to %s|%s|%s", k ? "" : cell(str(f, "path")).s,
                    k ? "" : count(num(f, "lines")).s, k ? "" : count(num(f, "bytes")).s,
                    k ? "" : count(num(f, "unknown_lines")).s, count(num(x, "from_line")).s,
                    count(num(x, "to_line")).s, line, str(x, "wrapping"));
        }
    }
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i);
        if (at(f, "error"))
            doc_item(d, "%s stopped early: %s", cell(str(f, "path")).s, str(f, "error"));
        if (num(f, "hidden_lines") > 0)
            doc_item(d, "%s: journald hid %s lines; export with `journalctl -a`",
                     cell(str(f, "path")).s, count(num(f, "hidden_lines")).s);
    }
}

static void turn_sections(struct doc *d, const json_t *s)
{
    const json_t *t = at(s, "totals");
    doc_section(d, "Turns", MARK_MEASURED);
    doc_table(d, "outcome|>turns");
    for (size_t i = 0; i < COUNT_OF(outcomes); i++)
        if (num(at(t, "outcomes"), outcomes[i].key) > 0)
            doc_row(d, "%s|%s", outcomes[i].what, count(num(at(t, "outcomes"), outcomes[i].key)).s);
    doc_row(d, "cancelled by the client (of these)|%s", count(num(t, "cancelled")).s);
    doc_row(d, "unpaired: launch or timing not in the log|%s", count(num(t, "unpaired")).s);
    const json_t *p = at(s, "prompts"), *l = at(s, "common_prefix");
    doc_table(d, "tokens|>min|>p10|>p25|>median|>p75|>p90|>max");
    const json_t *const rows[] = {p, l};
    for (size_t i = 0; i < 2; i++)
        doc_row(d, "%s|%s|%s|%s|%s|%s|%s|%s", i ? "common prefix" : "prompt",
                count(num(rows[i], "min")).s, count(num(rows[i], "p10")).s,
                count(num(rows[i], "p25")).s, count(num(rows[i], "median")).s,
                count(num(rows[i], "p75")).s, count(num(rows[i], "p90")).s,
                count(num(rows[i], "max")).s);
    doc_text(
        d,
        "Of %s common prefixes %s are under 512 tokens and %s are 4,096 or more; bimodality %s%s.",
        count(num(l, "n")).s, percent(num(l, "share_under_512"), 1).s,
        percent(num(l, "share_from_4096"), 1).s, fixed(num(l, "bimodality"), 2).s,
        json_is_true(at(l, "two_groups")) ? " (above 5/9: likely two groups)" : "");
    plot_lcp(d, l);
    plot_cost(d, at(s, "plots"), num(at(s, "rate"), "tokens_per_second"));
    doc_section(d, "By slot", MARK_MEASURED);
    block_table(d, at(s, "slots"), "slot");
    if (json_object_size(at(s, "processes")) > 1) {
        doc_section(d, "By process", MARK_MEASURED);
        block_table(d, at(s, "processes"), "process");
    }
    if (json_object_size(at(s, "hours")) > 0) {
        doc_section(d, "By hour", MARK_MEASURED);
        block_table(d, at(s, "hours"), "hour");
    }
}

static void checkpoint_section(struct doc *d, const json_t *s)
{
    const json_t *t = at(s, "totals"), *bytes = at(t, "bytes"), *c = at(s, "checkpoints");
    doc_section(d, "Checkpoints", MARK_MEASURED);
    doc_table(d, "what|>number|>bytes|>milliseconds each (median)");
    doc_row(d, "made|%s|%s|%s", count(num(t, "created")).s, gib(num(bytes, "created")).s,
            fixed(num(at(c, "create_ms"), "median"), 1).s);
    doc_row(d, "restored|%s|%s|%s", count(num(t, "restored")).s, gib(num(bytes, "restored")).s,
            fixed(num(at(c, "restore_ms"), "median"), 1).s);
    doc_row(d, "erased: above a divergence|%s|%s|", count(num(t, "erased")).s,
            gib(num(bytes, "erased")).s);
    doc_row(d, "evicted: the ring was full|%s|%s|", count(num(t, "evicted")).s,
            gib(num(bytes, "evicted")).s);
    if (num(t, "thinned") > 0)
        doc_row(d, "thinned: too close to another|%s|%s|", count(num(t, "thinned")).s,
                gib(num(bytes, "thinned")).s);
    if (num(t, "created") == 0)
        doc_text(d, "No checkpoint line is in the log. llama.cpp prints them since June 2026 at "
                    "the trace level only: "
                    "start it with `-lv 4`.");
    plot_slots(d, at(s, "plots"));
}

static void cause_sections(struct doc *d, const json_t *s)
{
    const json_t *t = at(s, "totals"), *avoid = at(s, "avoidable");
    char line[1200];
    doc_section(d, "Causes", MARK_MECHANISM);
    doc_table(d, "cause|>turns|>of them inferred|>tokens again|>seconds");
    for (size_t i = 0; i < COUNT_OF(causes); i++) {
        const json_t *c = at(at(t, "causes"), causes[i].key);
        if (c)
            doc_row(d, "%s|%s|%s|%s|%s", causes[i].what, count(num(c, "turns")).s,
                    count(num(c, "inferred")).s, count(num(c, "tokens")).s,
                    fixed(num(c, "seconds"), 1).s);
    }
    const struct {
        const char *key, *text;
    } lists[] = {
        {"worst", "The dearest turns, with the lines that show it:"},
        {"suspected",
         "Turns that had nothing in common with their slot, but are about as long as what another "
         "turn had driven out of it: likely the same conversation, which the log cannot show. They "
         "count nothing as avoidable."}};
    for (size_t k = 0; k < COUNT_OF(lists); k++) {
        const json_t *turns = at(s, lists[k].key);
        if (!json_array_size(turns))
            continue;
        doc_text(d, "%s", lists[k].text);
        doc_table(d, ">task|>slot|>prompt|>shared|>again|outcome|why");
        for (size_t i = 0; i < json_array_size(turns); i++) {
            const json_t *w = json_array_get(turns, i);
            turn_reason(w, false, line, sizeof line);
            doc_row(d, "%s|%s|%s|%s|%s|%s|%s", count(num(w, "task")).s, count(num(w, "slot")).s,
                    count(num(w, "prompt_tokens")).s, count(num(w, "lcp")).s,
                    count(num(w, "again")).s, str(w, "outcome"), line);
        }
    }
    const json_t *unknown = at(at(t, "causes"), "unknown");
    if (unknown) {
        doc_section(d, "What the log leaves open", MARK_UNRESOLVED);
        doc_text(d,
                 "Of %s turns the cause is not known (%s tokens). A log that begins with the "
                 "server's start and holds "
                 "its checkpoint lines answers that.",
                 count(num(unknown, "turns")).s, count(num(unknown, "tokens")).s);
    }
    doc_section(d, "Avoidable prefill", MARK_MECHANISM);
    doc_text(d, "%s tokens, %s (%s to %s).", count(num(avoid, "tokens")).s,
             seconds(num(avoid, "seconds")).s, seconds(num(avoid, "seconds_low")).s,
             seconds(num(avoid, "seconds_high")).s);
    const json_t *assume = at(avoid, "assumptions");
    for (size_t i = 0; i < json_array_size(assume); i++)
        doc_item(d, "%s", json_string_value(json_array_get(assume, i)));
}

static void lever_section(struct doc *d, const json_t *sim)
{
    const json_t *policies = at(sim, "policies"), *assume = at(sim, "assumptions");
    if (!json_array_size(policies))
        return;
    doc_section(d, "What would help", MARK_EXPERIMENT);
    doc_text(d,
             "The %s turns found, replayed through the rules of the engine, with its levers, and "
             "through holdfast's "
             "cache; the same code decides in the server.",
             count(num(sim, "turns")).s);
    doc_table(d, "policy|what it is|>reused tokens|>share|>prefill saved");
    for (size_t i = 0; i < json_array_size(policies); i++) {
        const json_t *p = json_array_get(policies, i);
        doc_row(d, "`%s`|%s|%s|%s|%s", str(p, "name"), str(p, "what"),
                count(num(p, "reused_tokens")).s, percent(num(p, "share"), 1).s,
                seconds(num(p, "seconds_saved")).s);
    }
    plot_policies(d, policies);
    for (size_t i = 0; i < json_array_size(assume); i++)
        doc_item(d, "%s", json_string_value(json_array_get(assume, i)));
}

void report_document(const json_t *s, struct buf *out, bool html)
{
    const json_t *t = at(s, "totals"), *avoid = at(s, "avoidable"), *rate = at(s, "rate");
    struct doc d;
    char engine[300];
    engine_line(s, engine, sizeof engine);
    doc_begin(&d, out, html, "Prefill forensics");
    doc_text(&d, "%s. %s turns, %s prompt tokens: %s reused, %s evaluated in %s.", engine,
             count(num(t, "turns")).s, count(num(t, "prompt_tokens")).s,
             percent(num(t, "reused_tokens"), num(t, "prompt_tokens")).s,
             count(num(t, "evaluated_tokens")).s, seconds(num(t, "prefill_seconds")).s);
    doc_text(&d,
             "%s tokens (%s) were evaluated again although the slot had held them. This is a "
             "bound: it supposes a state "
             "kept at every divergence, and counts nothing that a prompt shared with anything but "
             "its own slot's content.",
             count(num(avoid, "tokens")).s, seconds(num(avoid, "seconds")).s);
    doc_section(&d, "Method", MARK_NONE);
    doc_text(&d, "Each line loses its wrapping and is matched against the wordings of each engine "
                 "and time; lines become turns "
                 "per slot, and each slot's checkpoints are followed from line to line. A figure "
                 "is marked by what it is: "
                 "measured (printed in the log), mechanism (follows from the engine's rules), "
                 "experiment (replayed), "
                 "unresolved. Prompt text is neither stored nor shown.");
    doc_text(&d, "Rate: %s tokens/s (%s).", fixed(num(rate, "tokens_per_second"), 0).s,
             str(rate, "how"));
    file_sections(&d, at(s, "files"));
    turn_sections(&d, s);
    checkpoint_section(&d, s);
    cause_sections(&d, s);
    lever_section(&d, at(s, "simulated"));
    doc_end(&d);
}
