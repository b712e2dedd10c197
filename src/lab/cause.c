/* cause.c - why shared tokens were evaluated again, by stated rules.
 *
 * D is the common prefix, start the re-entry, N the prompt, a checkpoint "covers" pos + 1 tokens.
 *
 *  1. Nothing shared (D = 0), or less than any of these engines makes a checkpoint for (D < 64): baseline.
 *     If the slot held a sequence of about this length before, whose checkpoints an interloper erased,
 *     the prompt may be its continuation: retention, inferred, since the log does not show prefixes with
 *     anything but the slot's present content.
 *  2. All of min(D, N - 1) was reused: no cause to look for.
 *  3. A checkpoint that covers exactly D (or D = N with one token to evaluate) was there and was not taken:
 *     rewind.
 *  4. A checkpoint in (start, D) was there and was not taken: unknown.
 *  5. One in (start, D] had been there, on the same sequence, and was erased, evicted or thinned: retention.
 *  6. start > 0: granularity.
 *  7. start = 0 and every checkpoint of the sequence was seen being made: placement; also where the build
 *     keeps none.
 *  8. Else unknown: the log begins too late, or prints no checkpoint lines.
 *
 * holdfast states its reason; it is taken over.
 */
#include "lab/turn.h"

#include <stdlib.h>
#include <string.h>

enum {
    SMALLEST = 64 /* tokens: no engine of the family makes a checkpoint for fewer */
};

const char *cause_name(enum cause c)
{
    static const char *const names[CAUSE_N] = {"none",        "baseline", "placement", "retention",
                                               "granularity", "rewind",   "unknown"};
    return (unsigned)c < CAUSE_N ? names[c] : "?";
}

static void put(struct turn *t, enum cause c, bool inferred, const char *why)
{
    t->cause = c;
    t->cause_inferred = inferred;
    t->cause_why = why;
}

static void witness(struct turn *t, uint32_t file, uint64_t line, const char *what)
{
    if (t->n_evidence == TURN_MAX_EVIDENCE)
        t->n_evidence--; /* the last of the turn's own lines is worth less */
    t->evidence[t->n_evidence++] = (struct evidence){file, line, what};
}

/* The deepest entry that covers more than lo and at most hi tokens, or NULL. */
static const struct ckpt *deepest(const struct ckpt *c, uint32_t n, int64_t lo, int64_t hi)
{
    const struct ckpt *best = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (c[i].pos + 1 > lo && c[i].pos + 1 <= hi && (!best || c[i].pos > best->pos))
            best = &c[i];
    return best;
}

/* Rule 1's exception: the sequence this prompt is likely to go on with. */
static const struct lineage *likely_past(const struct slot_state *s, const struct turn *t)
{
    for (uint32_t i = s->n_old; i-- > 0;) {
        const struct lineage *l = &s->old[i];
        const int64_t lo = MIN(l->held, t->n_prompt), hi = MAX(l->held, t->n_prompt);
        if (l->deepest >= SMALLEST && l->by_task != t->task && lo * 5 >= hi * 4)
            return l;
    }
    return NULL;
}

static void shared_nothing(const struct slot_state *s, struct turn *t)
{
    const struct lineage *l = t->n_prompt >= SMALLEST ? likely_past(s, t) : NULL;
    if (!l) {
        put(t, CAUSE_BASELINE, false,
            t->held == 0 ? "the slot was empty"
                         : "fewer than 64 tokens in common with what the slot held");
        return;
    }
    put(t, CAUSE_RETENTION, true,
        "the slot held a prompt of about this length before; its checkpoints were erased by "
        "another turn");
    t->cause_task = l->by_task;
    t->cause_pos = l->deepest;
    witness(t, l->by_file, l->by_line, "erased before");
}

static void holdfast_says(struct turn *t)
{
    static const struct {
        const char *word, *line; /* of the event, of the line for people */
        enum cause cause;
        const char *why;
    } reasons[] = {
        {"placement", "no snapshot placed", CAUSE_PLACEMENT, "no snapshot had been placed there"},
        {"rejected", "not admitted", CAUSE_RETENTION,
         "the snapshot was not worth its bytes when offered"},
        {"evicted", "evicted", CAUSE_RETENTION, "the snapshot had been evicted"},
        {"minimum", "too few to keep", CAUSE_BASELINE, "too few tokens to keep a snapshot for"},
        {"last", "last token", CAUSE_NONE, "the last token is always evaluated"}};
    long most = -1;
    put(t, t->start > 0 ? CAUSE_GRANULARITY : CAUSE_UNKNOWN, false, "no reason given");
    for (size_t i = 0; i < COUNT_OF(reasons); i++) {
        const char *p = strstr(t->why, reasons[i].line); /* followed by its number of tokens */
        const long n =
            p ? strtol(p + strlen(reasons[i].line), NULL, 10) : -!strstr(t->why, reasons[i].word);
        if (n > most) {
            most = n;
            put(t, reasons[i].cause, false, reasons[i].why);
        }
    }
}

void cause_find(const struct slot_state *s, struct turn *t)
{
    t->lost = turn_lost(t);
    const int64_t start = turn_reused(t);
    const int64_t reach = turn_reach(t);
    if (t->cancelled && start < 0) {
        put(t, CAUSE_NONE, false, "cancelled before it began");
        return;
    }
    if (t->outcome == OUT_COLD || (t->lcp >= 0 && t->lcp < SMALLEST && start == 0)) { /* (1) */
        shared_nothing(s, t);
        return;
    }
    if (t->lost == 0) { /* (2) */
        put(t, CAUSE_NONE, false, "everything shared was reused");
        return;
    }
    if (t->engines == ENG_HOLDFAST && t->lost > 0) {
        holdfast_says(t);
        return;
    }
    if (t->lost < 0) { /* (8) */
        put(t, CAUSE_UNKNOWN, false,
            t->verbose || t->complete
                ? "the log does not give the common prefix"
                : "this build prints its checkpoint lines only at the trace level");
        return;
    }
    const struct ckpt *there = deepest(s->ring0, s->n_ring0, start, reach);
    if (there && (there->pos + 1 == t->lcp || there->pos + 1 == reach)) { /* (3) */
        put(t, CAUSE_REWIND, false,
            "a checkpoint covers exactly the common prefix; this engine's rule takes only those "
            "below it");
        t->cause_pos = there->pos;
        t->cause_task = there->made_task;
        witness(t, there->made_file, there->made_line, "refused checkpoint made");
        return;
    }
    if (t->rewound || (t->lcp == t->n_prompt && t->lcp == t->held)) { /* (3) */
        put(t, CAUSE_REWIND, !t->rewound,
            "the whole prompt was there; going back one token to have something to evaluate cost "
            "it");
        return;
    }
    if (there) { /* (4) */
        put(t, CAUSE_UNKNOWN, false,
            t->refused ? "restoring the checkpoint failed"
                       : "a checkpoint below the divergence was there and was not taken");
        t->cause_pos = there->pos;
        witness(t, there->made_file, there->made_line, "checkpoint made");
        return;
    }
    const struct ckpt *gone = deepest(s->ghost, s->n_ghost, start, reach);
    if (gone && gone->gone_seq != t->seq) { /* (5) */
        put(t, CAUSE_RETENTION, false,
            gone->gone == GONE_EVICTED
                ? "a checkpoint below the divergence was evicted: the ring was full"
            : gone->gone == GONE_THINNED
                ? "a checkpoint below the divergence was dropped: too close to another"
                : "a checkpoint below the divergence had been erased");
        t->cause_pos = gone->pos;
        t->cause_task = gone->gone_task;
        witness(t, gone->gone_file, gone->gone_line, "checkpoint gone");
        return;
    }
    if (start > 0) { /* (6) */
        put(t, CAUSE_GRANULARITY, !t->restored,
            "restored from the nearest checkpoint below the divergence; the tokens between were "
            "evaluated again");
        t->cause_pos = t->restored_pos;
        return;
    }
    if (t->cleared) { /* (7) */
        put(t, CAUSE_PLACEMENT, false,
            "this build could not cut its state back and keeps no checkpoint for it");
        return;
    }
    if (s->lineage_whole0 && t->verbose) { /* (7) */
        put(t, CAUSE_PLACEMENT, false, "no checkpoint had been made at or below the divergence");
        return;
    }
    put(t, CAUSE_UNKNOWN, false,
        t->verbose ? "placement or retention: the log begins after the slot's prompt was computed"
                   : "placement or retention: this build prints its checkpoint lines only at the "
                     "trace level");
}
