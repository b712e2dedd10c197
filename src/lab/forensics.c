#include "lab/forensics.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "lab/avoid.h"
#include "lab/lcp.h"
#include "lab/lines.h"
#include "lab/spool.h"

enum {
    N_STRETCHES = 64, /* of one file */
    N_HOURS = 20000,
    N_PROCESSES = 256, /* reported apart */
    N_LIVES = 400,     /* checkpoints drawn: the last ones */
    N_BINS = 240,      /* of cost over time */
    N_WORST = 20
};

/* ---- counts ---------------------------------------------------------------------------------- */

struct block {
    uint64_t ev[EV_N], ev_ms_n[EV_N];
    double ev_bytes[EV_N], ev_ms[EV_N];
    uint64_t turns, timed, cancelled, unpaired, orphans;
    uint64_t outcomes[OUT_N], causes[CAUSE_N], cause_inferred[CAUSE_N], cause_tokens[CAUSE_N];
    uint64_t full, full_unlogged, lcp_unknown, lcp_rounded, mismatched;
    /* over turns with launch and timing in the log */
    int64_t prompt, evaluated, reused, common, avoidable;
    double prefill_ms;
};

struct keyed {
    int64_t key;
    char *name;
    struct block b;
};

struct keyed_list {
    struct keyed *v;
    size_t n, cap;
    size_t last;
};

static struct block *block_at(struct keyed_list *l, int64_t key, const char *name, size_t max)
{
    if (l->last < l->n && l->v[l->last].key == key)
        return &l->v[l->last].b;
    for (size_t i = l->n; i-- > 0;)
        if (l->v[i].key == key) {
            l->last = i;
            return &l->v[i].b;
        }
    if (l->n == max || !mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v))
        return NULL;
    l->v[l->n] = (struct keyed){.key = key, .name = mem_strdup(name)};
    l->last = l->n;
    return &l->v[l->n++].b;
}

static void list_release(struct keyed_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->v[i].name);
    mem_free(l->v);
}

static int by_key(const void *a, const void *b)
{
    const int64_t x = ((const struct keyed *)a)->key, y = ((const struct keyed *)b)->key;
    return (x > y) - (x < y);
}

/* ---- the analysis ---------------------------------------------------------------------------- */

/* A run of lines by the same kind of engine of the same time. */
struct stretch {
    uint64_t from, to, n;
    uint32_t engines, wraps;
    int32_t since, until;
};

struct file_info {
    char *path;
    uint64_t lines, bytes, unknown, cut, blobs, echo;
    struct stretch s[N_STRETCHES];
    size_t n_stretches;
    bool joined;
    char *error;
};

struct life {
    uint32_t process, slot;
    struct ckpt c;
};

struct cost_bin {
    uint64_t turns;
    double t, prefill_s;
    int64_t evaluated, avoidable, common;
};

struct top {
    struct turn v[N_WORST];
    int64_t cost[N_WORST];
    size_t n;
};

struct forensics {
    struct forensics_opts o;
    struct unwrap *unwrap;
    struct turns *turns;
    struct turns_trace *trace;
    bool stop;

    struct file_info *files;
    size_t n_files, files_cap;
    struct file_info *file; /* being read */
    double last_t;          /* of lines that carry no time of their own */
    enum time_kind last_time;

    struct block total;
    struct keyed_list by_file, by_slot, by_process, by_hour;
    struct lcp_stats lcp, printed, prompts;
    struct rate rate;
    struct hist ckpt_mib, restore_ms, create_ms;
    struct spool turn_list, lcp_list, lcp_detail, restored, orphans;

    struct life *lives; /* [N_LIVES], a ring */
    size_t n_lives, life_at;
    uint64_t n_lives_all;
    struct cost_bin bins[N_BINS];
    size_t n_bins;
    uint64_t per_bin;
    struct top worst, suspected; /* by tokens again; by prompt, of inferred retention */
    uint32_t ring;               /* "created 3 of 32" */
};

static void on_event(void *ctx, enum turn_event e, uint32_t file, uint32_t process, uint32_t slot,
                     const struct unwrapped *at, double bytes, double ms, int64_t pos);
static void on_turn(void *ctx, const struct turn *t);
static void on_lcp(void *ctx, uint32_t slot, int64_t task, int64_t lcp, int64_t held,
                   enum lcp_from from);
static void on_ckpt(void *ctx, uint32_t process, uint32_t slot, const struct ckpt *c);
static void on_orphan(void *ctx, uint32_t file, uint64_t line, int64_t slot, int64_t task,
                      double ms, int64_t n_tokens);

enum rc forensics_new(const struct forensics_opts *o, struct forensics **out, struct err *err)
{
    struct forensics *f = mem_try_zalloc(sizeof *f);
    if (!f)
        return err_set(err, RC_NOMEM, "no memory to read logs");
    f->o = *o;
    f->per_bin = 1;
    lcp_init(&f->lcp);
    lcp_init(&f->printed);
    lcp_init(&f->prompts);
    rate_init(&f->rate);
    hist_init(&f->ckpt_mib);
    hist_init(&f->restore_ms);
    hist_init(&f->create_ms);
    struct spool *const spools[] = {&f->turn_list, &f->lcp_list, &f->lcp_detail, &f->restored,
                                    &f->orphans};
    for (size_t i = 0; i < COUNT_OF(spools); i++)
        spool_init(spools[i]);
    const struct turn_sink sink = {f, on_turn, on_event, on_lcp, on_ckpt, on_orphan};
    enum rc rc = unwrap_new(o->now, &f->unwrap, err);
    if (!rc)
        rc = turns_new(&sink, &f->turns, err);
    f->lives = mem_try_array(N_LIVES, sizeof *f->lives);
    if (!rc && !f->lives)
        rc = err_set(err, RC_NOMEM, "no memory to read logs");
    if (!rc && o->trace_path)
        rc = turns_trace_new(o->trace_path, "log", &f->trace, err);
    if (rc) {
        forensics_free(f);
        return rc;
    }
    *out = f;
    return RC_OK;
}

void forensics_free(struct forensics *f)
{
    if (!f)
        return;
    unwrap_free(f->unwrap);
    turns_free(f->turns);
    turns_trace_free(f->trace);
    for (size_t i = 0; i < f->n_files; i++) {
        mem_free(f->files[i].path);
        mem_free(f->files[i].error);
    }
    mem_free(f->files);
    list_release(&f->by_file);
    list_release(&f->by_slot);
    list_release(&f->by_process);
    list_release(&f->by_hour);
    lcp_release(&f->lcp);
    lcp_release(&f->printed);
    lcp_release(&f->prompts);
    rate_release(&f->rate);
    hist_release(&f->ckpt_mib);
    hist_release(&f->restore_ms);
    hist_release(&f->create_ms);
    struct spool *const spools[] = {&f->turn_list, &f->lcp_list, &f->lcp_detail, &f->restored,
                                    &f->orphans};
    for (size_t i = 0; i < COUNT_OF(spools); i++)
        spool_release(spools[i]);
    mem_free(f->lives);
    mem_free(f);
}

static struct block *hour_block(struct forensics *f, enum time_kind time, double t)
{
    if (time == TIME_NONE || !(fabs(t) < 4e11))
        return NULL;
    char name[32];
    const int64_t hour = (int64_t)floor(t / 3600);
    if (f->by_hour.last < f->by_hour.n && f->by_hour.v[f->by_hour.last].key == hour)
        return &f->by_hour.v[f->by_hour.last].b;
    if (time == TIME_WALL)
        time_hour_name(t, name);
    else
        snprintf(name, sizeof name, "+%" PRId64 "h", hour);
    return block_at(&f->by_hour, hour, name, N_HOURS);
}

static size_t blocks_of(struct forensics *f, uint32_t file, uint32_t process, uint32_t slot,
                        enum time_kind time, double t, struct block *out[5])
{
    size_t n = 0;
    char name[16];
    snprintf(name, sizeof name, "%" PRIu32, slot);
    struct block *b[] = {
        &f->total,
        block_at(&f->by_file, file, file < f->n_files ? f->files[file].path : "", SIZE_MAX),
        block_at(&f->by_slot, slot, name, 4096),
        process < N_PROCESSES
            ? block_at(&f->by_process, process, turns_process_name(f->turns, process), SIZE_MAX)
            : block_at(&f->by_process, N_PROCESSES, "(others)", SIZE_MAX),
        hour_block(f, time, t)};
    for (size_t i = 0; i < COUNT_OF(b); i++)
        if (b[i])
            out[n++] = b[i];
    return n;
}

static void on_event(void *ctx, enum turn_event e, uint32_t file, uint32_t process, uint32_t slot,
                     const struct unwrapped *at, double bytes, double ms, int64_t pos)
{
    struct forensics *f = ctx;
    struct block *b[5];
    const size_t n = blocks_of(f, file, process, slot, at->time, at->t, b);
    for (size_t i = 0; i < n; i++) {
        b[i]->ev[e]++;
        if (!isnan(bytes))
            b[i]->ev_bytes[e] += bytes;
        if (!isnan(ms)) {
            b[i]->ev_ms[e] += ms;
            b[i]->ev_ms_n[e]++;
        }
    }
    if (e == EV_CREATED && !isnan(bytes))
        hist_add(&f->ckpt_mib, bytes / (double)MIB);
    if (e == EV_CREATED && !isnan(ms))
        hist_add(&f->create_ms, ms);
    if (e == EV_RESTORED && !isnan(ms))
        hist_add(&f->restore_ms, ms);
    if (e == EV_RESTORED && f->o.keep_turns && pos >= 0) {
        buf_addf(&f->restored.b, "%s%" PRId64, f->restored.n_items ? "," : "", pos);
        spool_turn_over(&f->restored);
    }
}

static void on_lcp(void *ctx, uint32_t slot, int64_t task, int64_t lcp, int64_t held,
                   enum lcp_from from)
{
    struct forensics *f = ctx;
    lcp_add(&f->printed, lcp);
    if (!f->o.keep_turns)
        return;
    buf_addf(&f->lcp_list.b, "%s%" PRId64, f->lcp_list.n_items ? "," : "", lcp);
    spool_turn_over(&f->lcp_list);
    struct jwrite w;
    if (f->lcp_detail.n_items)
        buf_addc(&f->lcp_detail.b, ',');
    jwrite_init(&w, &f->lcp_detail.b);
    jwrite_obj(&w, NULL);
    jwrite_u64(&w, "slot", slot);
    jwrite_i64(&w, "task", task);
    jwrite_i64(&w, "lcp", lcp);
    if (held >= 0)
        jwrite_i64(&w, "cached", held);
    else
        jwrite_null(&w, "cached");
    jwrite_str(&w, "source", lcp_from_name(from));
    jwrite_end_obj(&w);
    spool_turn_over(&f->lcp_detail);
}

static void on_ckpt(void *ctx, uint32_t process, uint32_t slot, const struct ckpt *c)
{
    struct forensics *f = ctx;
    f->lives[f->life_at] = (struct life){process, slot, *c};
    f->life_at = (f->life_at + 1) % N_LIVES;
    f->n_lives = MIN(f->n_lives + 1, (size_t)N_LIVES);
    f->n_lives_all++;
}

static void i64_or_null(struct jwrite *w, const char *key, int64_t v)
{
    if (v < 0)
        jwrite_null(w, key);
    else
        jwrite_i64(w, key, v);
}

static void fixed_or_null(struct jwrite *w, const char *key, double v, int decimals)
{
    if (isnan(v) || isinf(v))
        jwrite_null(w, key);
    else
        jwrite_fixed(w, key, v, decimals);
}

static void on_orphan(void *ctx, uint32_t file, uint64_t line, int64_t slot, int64_t task,
                      double ms, int64_t n_tokens)
{
    struct forensics *f = ctx;
    f->total.orphans++;
    struct block *b = block_at(&f->by_file, file, f->files[file].path, SIZE_MAX);
    if (b)
        b->orphans++;
    if (!f->o.keep_turns)
        return;
    struct jwrite w;
    if (f->orphans.n_items)
        buf_addc(&f->orphans.b, ',');
    jwrite_init(&w, &f->orphans.b);
    jwrite_obj(&w, NULL);
    jwrite_u64(&w, "line", line);
    i64_or_null(&w, "slot", slot);
    i64_or_null(&w, "task", task);
    jwrite_i64(&w, "evaluated", n_tokens);
    jwrite_fixed(&w, "prefill_ms", ms, 2);
    jwrite_end_obj(&w);
    spool_turn_over(&f->orphans);
}

static void outcome_text(const struct turn *t, char out[48])
{
    snprintf(out, 48, "%s%s", t->cancelled ? "cancelled:" : "", outcome_name(t->outcome));
}

static void write_turn(struct jwrite *w, const struct turn *t, const char *file)
{
    char outcome[48];
    outcome_text(t, outcome);
    jwrite_obj(w, NULL);
    jwrite_u64(w, "slot", t->slot);
    jwrite_i64(w, "task", t->task);
    jwrite_u64(w, "process", t->process);
    if (file)
        jwrite_str(w, "file", file);
    jwrite_u64(w, "line", t->line);
    if (t->time == TIME_NONE)
        jwrite_null(w, "t");
    else
        jwrite_fixed(w, "t", t->t, 3);
    i64_or_null(w, "prompt_tokens", t->n_prompt);
    i64_or_null(w, "cached_before", t->held);
    i64_or_null(w, "lcp", t->lcp);
    jwrite_str(w, "lcp_source", lcp_from_name(t->lcp_from));
    jwrite_str(w, "outcome", outcome);
    i64_or_null(w, "restored_at", t->restored ? t->restored_pos : -1);
    i64_or_null(w, "reused", turn_reused(t));
    i64_or_null(w, "evaluated", t->timed ? t->evaluated : -1);
    fixed_or_null(w, "prefill_ms", t->timed ? t->prefill_ms : NAN, 2);
    i64_or_null(w, "generated", t->generated);
    fixed_or_null(w, "decode_ms", t->decode_ms, 2);
    jwrite_u64(w, "erased", t->erased);
    jwrite_u64(w, "created", t->created);
    jwrite_u64(w, "evicted", t->evicted);
    i64_or_null(w, "again", t->lost);
    jwrite_str(w, "cause", cause_name(t->cause));
    jwrite_bool(w, "cause_inferred", t->cause_inferred);
    jwrite_str(w, "why", t->cause_why);
    if (t->cause_task >= 0)
        jwrite_i64(w, "by_task", t->cause_task);
    if (t->cause_pos >= 0)
        jwrite_i64(w, "checkpoint", t->cause_pos);
    if (t->swapped)
        jwrite_bool(w, "from_ram_cache", true);
    if (!t->launched)
        jwrite_bool(w, "launch_missing", true);
    if (t->mismatch)
        jwrite_bool(w, "does_not_add_up", true);
    jwrite_arr(w, "evidence");
    for (uint32_t i = 0; i < t->n_evidence; i++) {
        jwrite_obj(w, NULL);
        jwrite_u64(w, "line", t->evidence[i].line);
        if (t->evidence[i].file != t->file)
            jwrite_u64(w, "file", t->evidence[i].file);
        jwrite_str(w, "what", t->evidence[i].what);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
    jwrite_end_obj(w);
}

static void count_turn(struct block *b, const struct turn *t)
{
    const bool said = t->forced || t->cleared;
    b->unpaired += !t->launched || (!t->timed && !t->cancelled);
    if (!t->launched)
        return;
    b->turns++;
    b->timed += t->timed;
    b->cancelled += t->cancelled;
    b->outcomes[t->outcome]++;
    b->mismatched += t->mismatch;
    const int64_t reused = turn_reused(t);
    if (reused == 0 && (t->held > 0 || said)) {
        b->full++;
        b->full_unlogged += !said;
    }
    b->causes[t->cause]++;
    b->cause_inferred[t->cause] += t->cause_inferred;
    if (!t->timed)
        return;
    if (t->lost > 0)
        b->cause_tokens[t->cause] += (uint64_t)t->lost;
    b->evaluated += t->evaluated;
    if (!isnan(t->prefill_ms))
        b->prefill_ms += t->prefill_ms;
    if (t->n_prompt >= 0) {
        b->prompt += t->n_prompt;
        b->reused += MAX(reused, 0);
    }
    if (t->lcp >= 0) {
        b->common += t->lcp;
        b->avoidable += MAX(t->lost, 0);
        b->lcp_rounded += t->lcp_from == LCP_ROUNDED;
    } else {
        b->lcp_unknown++;
    }
}

static void add_cost(struct forensics *f, const struct turn *t)
{
    if (!t->launched || !t->timed)
        return;
    if (f->n_bins && f->bins[f->n_bins - 1].turns == f->per_bin && f->n_bins == N_BINS) {
        for (size_t i = 0; i < N_BINS / 2; i++) {
            struct cost_bin *a = &f->bins[2 * i], *b = a + 1;
            f->bins[i] = (struct cost_bin){a->turns + b->turns,         a->t,
                                           a->prefill_s + b->prefill_s, a->evaluated + b->evaluated,
                                           a->avoidable + b->avoidable, a->common + b->common};
        }
        f->n_bins = N_BINS / 2;
        f->per_bin *= 2;
    }
    if (!f->n_bins || f->bins[f->n_bins - 1].turns == f->per_bin)
        f->bins[f->n_bins++] = (struct cost_bin){.t = t->time == TIME_NONE ? NAN : t->t};
    struct cost_bin *b = &f->bins[f->n_bins - 1];
    b->turns++;
    b->prefill_s += isnan(t->prefill_ms) ? 0 : t->prefill_ms / 1e3;
    b->evaluated += t->evaluated;
    b->avoidable += MAX(t->lost, 0);
    b->common += MAX(t->lcp, 0);
}

/* Keeps the N_WORST of largest cost, largest first. */
static void add_top(struct top *top, const struct turn *t, int64_t cost)
{
    size_t at = top->n;
    while (at && top->cost[at - 1] < cost)
        at--;
    if (at == N_WORST)
        return;
    top->n = MIN(top->n + 1, (size_t)N_WORST);
    memmove(top->v + at + 1, top->v + at, (top->n - at - 1) * sizeof *top->v);
    memmove(top->cost + at + 1, top->cost + at, (top->n - at - 1) * sizeof *top->cost);
    top->v[at] = *t;
    top->cost[at] = cost;
}

static void on_turn(void *ctx, const struct turn *t)
{
    struct forensics *f = ctx;
    struct block *b[5];
    const size_t n = blocks_of(f, t->file, t->process, t->slot, t->time, t->t, b);
    for (size_t i = 0; i < n; i++)
        count_turn(b[i], t);
    rate_add(&f->rate, t);
    if (t->launched && t->lcp_from != LCP_UNKNOWN && t->held != 0)
        lcp_add(&f->lcp, t->lcp);
    if (t->launched)
        lcp_add(&f->prompts, t->n_prompt);
    add_cost(f, t);
    if (t->launched && t->lost > 0)
        add_top(&f->worst, t, t->lost);
    else if (t->launched && t->cause == CAUSE_RETENTION && t->cause_inferred)
        add_top(&f->suspected, t, t->n_prompt);
    if (f->trace && t->launched)
        turns_trace_add(f->trace, t);
    if (f->o.keep_turns && t->launched) {
        struct jwrite w;
        if (f->turn_list.n_items)
            buf_addc(&f->turn_list.b, ',');
        buf_addc(&f->turn_list.b, '\n');
        jwrite_init(&w, &f->turn_list.b);
        write_turn(&w, t, f->n_files > 1 ? f->files[t->file].path : NULL);
        spool_turn_over(&f->turn_list);
    }
    if (f->o.turn && !f->o.turn(f->o.ctx, t))
        f->stop = true;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void narrow(struct file_info *fi, uint64_t line_no, const struct unwrapped *u,
                   const struct line *l)
{
    struct stretch *s = fi->n_stretches ? &fi->s[fi->n_stretches - 1] : NULL;
    const int32_t until = l->until ? l->until : INT32_MAX;
    bool fits = s != NULL;
    if (s) {
        const uint32_t engines = s->engines & l->engines;
        fits = engines && MAX(s->since, l->since) <= MIN(s->until, until);
        if (fits) {
            s->engines = engines;
            s->since = MAX(s->since, l->since);
            s->until = MIN(s->until, until);
        }
    }
    if (!fits) {
        if (fi->n_stretches < N_STRETCHES)
            fi->s[fi->n_stretches++] = (struct stretch){.from = line_no};
        s = &fi->s[fi->n_stretches - 1];
        s->engines = l->engines;
        s->since = l->since;
        s->until = until;
    }
    s->to = line_no;
    s->n++;
    s->wraps |= u->wraps;
}

static void read_body(struct forensics *f, struct unwrapped *u, uint64_t no)
{
    struct line l;
    if (!u->body.n)
        return;
    const bool known = line_read(u->body, &l);
    if (u->time == TIME_NONE) {
        /* some print the time on their own lines only; others follow them */
        if (known && !isnan(l.unix_s) && l.unix_s >= 0) {
            f->last_time = l.engines == ENG_HOLDFAST ? TIME_CLOCK : TIME_WALL;
            f->last_t = l.unix_s;
        }
        u->time = f->last_time;
        u->t = f->last_t;
    }
    f->file->unknown += !known;
    if (known && l.kind == LINE_CREATE && l.engines != ENG_HOLDFAST && l.max > 0 && l.max < 4096)
        f->ring = (uint32_t)l.max;
    if (!turns_line(f->turns, (uint32_t)(f->file - f->files), no, u, known ? &l : NULL)) {
        f->file->echo++;
        return;
    }
    if (known && l.engines && l.kind != LINE_HTTP)
        narrow(f->file, no, u, &l);
}

static void read_line(struct forensics *f, struct str text, uint64_t no)
{
    struct unwrapped u;
    if (!unwrap_line(f->unwrap, text, &u))
        return;
    f->file->blobs += u.blob;
    for (int pieces = 0; pieces < 4; pieces++) {
        const struct str body = u.body;
        const size_t cut = second_head(body);
        if (!cut)
            break;
        u.body.n = cut;
        read_body(f, &u, no);
        u.body = (struct str){body.p + cut, body.n - cut};
    }
    read_body(f, &u, no);
}

static enum rc read_lines(struct forensics *f, const char *name, struct lines *in, bool joined,
                          struct err *err)
{
    if (!mem_grow(&f->files, &f->files_cap, f->n_files + 1, sizeof *f->files))
        return err_set(err, RC_NOMEM, "no memory for %s", name);
    if (f->n_files)
        turns_file_ends(f->turns, joined);
    f->file = &f->files[f->n_files++];
    *f->file = (struct file_info){.path = mem_strdup(name), .joined = joined};
    (void)block_at(&f->by_file, (int64_t)f->n_files - 1, name, SIZE_MAX);
    if (!joined) {
        f->last_time = TIME_NONE;
        f->last_t = 0;
    }
    enum rc rc = RC_OK;
    for (bool more = true; more && !f->stop;) {
        struct str text;
        struct err e;
        switch (lines_next(in, &text, &e)) {
        case LINES_LINE:
            read_line(f, text, lines_n(in));
            break;
        case LINES_IDLE:
            if (f->o.idle && !f->o.idle(f->o.ctx))
                f->stop = true;
            break;
        case LINES_ERROR:
            f->file->error = mem_strdup(e.msg);
            if (err)
                *err = e;
            rc = e.rc;
            more = false;
            break;
        case LINES_END:
            more = false;
            break;
        }
    }
    f->file->lines = lines_n(in);
    f->file->bytes = lines_bytes(in);
    f->file->cut = lines_n_cut(in);
    return rc;
}

enum rc forensics_file(struct forensics *f, const char *path, bool joined, struct err *err)
{
    struct lines *in;
    enum rc rc = lines_open(path, f->o.follow, &in, err);
    if (rc)
        return rc;
    rc = read_lines(f, path, in, joined, err);
    lines_close(in);
    return rc;
}

enum rc forensics_mem(struct forensics *f, const char *name, const void *p, size_t n,
                      struct err *err)
{
    struct lines *in;
    enum rc rc = lines_open_mem(p, n, &in, err);
    if (rc)
        return rc;
    rc = read_lines(f, name, in, false, err);
    lines_close(in);
    return rc;
}

size_t forensics_n_files(const struct forensics *f)
{
    return f->n_files;
}

enum rc forensics_end(struct forensics *f, struct err *err)
{
    turns_finish(f->turns);
    return f->trace ? turns_trace_end(f->trace, err) : RC_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void date_or_null(struct jwrite *w, const char *key, int32_t d)
{
    char text[16];
    if (!d || d == INT32_MAX) {
        jwrite_null(w, key);
        return;
    }
    snprintf(text, sizeof text, "%04d-%02d-%02d", d / 10000, d / 100 % 100, d % 100);
    jwrite_str(w, key, text);
}

static void write_block(struct jwrite *w, const char *key, const struct block *b, double rate)
{
    static const char *const ev_name[EV_N] = {"forced",  "restored", "created", "erased",
                                              "evicted", "thinned",  "cleared"};
    jwrite_obj(w, key);
    for (size_t e = 0; e < EV_N; e++)
        jwrite_u64(w, ev_name[e], b->ev[e]);
    jwrite_u64(w, "turns", b->turns);
    jwrite_u64(w, "turns_timed", b->timed);
    jwrite_u64(w, "cancelled", b->cancelled);
    jwrite_u64(w, "unpaired", b->unpaired);
    jwrite_u64(w, "orphan_timings", b->orphans);
    jwrite_i64(w, "prompt_tokens", b->prompt);
    jwrite_i64(w, "evaluated_tokens", b->evaluated);
    jwrite_i64(w, "reused_tokens", b->reused);
    jwrite_i64(w, "common_prefix_tokens", b->common);
    jwrite_i64(w, "avoidable_tokens", b->avoidable);
    fixed_or_null(w, "avoidable_seconds", (double)b->avoidable / rate, 2);
    jwrite_fixed(w, "prefill_seconds", b->prefill_ms / 1e3, 5);
    jwrite_u64(w, "full_reprefill_turns", b->full);
    jwrite_u64(w, "full_reprefill_turns_unlogged", b->full_unlogged);
    jwrite_u64(w, "turns_without_common_prefix", b->lcp_unknown);
    jwrite_u64(w, "turns_with_rounded_common_prefix", b->lcp_rounded);
    jwrite_u64(w, "turns_that_do_not_add_up", b->mismatched);
    jwrite_obj(w, "outcomes");
    for (size_t i = 0; i < OUT_N; i++)
        if (b->outcomes[i])
            jwrite_u64(w, outcome_name((enum outcome)i), b->outcomes[i]);
    jwrite_end_obj(w);
    jwrite_obj(w, "causes");
    for (size_t i = 0; i < CAUSE_N; i++) {
        if (!b->causes[i])
            continue;
        jwrite_obj(w, cause_name((enum cause)i));
        jwrite_u64(w, "turns", b->causes[i]);
        jwrite_u64(w, "inferred", b->cause_inferred[i]);
        jwrite_u64(w, "tokens", b->cause_tokens[i]);
        fixed_or_null(w, "seconds", (double)b->cause_tokens[i] / rate, 2);
        jwrite_end_obj(w);
    }
    jwrite_end_obj(w);
    jwrite_obj(w, "bytes");
    for (size_t e = EV_RESTORED; e <= EV_THINNED; e++)
        jwrite_fixed(w, ev_name[e], b->ev_bytes[e], 0);
    jwrite_end_obj(w);
    jwrite_obj(w, "ms");
    fixed_or_null(w, "created", b->ev_ms_n[EV_CREATED] ? b->ev_ms[EV_CREATED] : NAN, 2);
    fixed_or_null(w, "restored", b->ev_ms_n[EV_RESTORED] ? b->ev_ms[EV_RESTORED] : NAN, 2);
    jwrite_end_obj(w);
    jwrite_end_obj(w);
}

static void write_blocks(struct jwrite *w, const char *key, struct keyed_list *l, double rate)
{
    if (l->n)
        qsort(l->v, l->n, sizeof *l->v, by_key);
    l->last = 0;
    jwrite_obj(w, key);
    for (size_t i = 0; i < l->n; i++)
        write_block(w, l->v[i].name[0] ? l->v[i].name : "(unnamed)", &l->v[i].b, rate);
    jwrite_end_obj(w);
}

static void write_files(struct forensics *f, struct jwrite *w, double rate)
{
    char text[160];
    jwrite_arr(w, "files");
    for (size_t i = 0; i < f->n_files; i++) {
        const struct file_info *fi = &f->files[i];
        jwrite_obj(w, NULL);
        jwrite_str(w, "path", fi->path);
        jwrite_u64(w, "lines", fi->lines);
        jwrite_u64(w, "bytes", fi->bytes);
        jwrite_u64(w, "unknown_lines", fi->unknown);
        jwrite_u64(w, "cut_lines", fi->cut);
        jwrite_u64(w, "hidden_lines", fi->blobs);
        jwrite_u64(w, "quoted_lines", fi->echo);
        jwrite_bool(w, "continues_the_one_before", fi->joined);
        if (fi->error)
            jwrite_str(w, "error", fi->error);
        jwrite_arr(w, "stretches");
        for (size_t k = 0; k < fi->n_stretches; k++) {
            const struct stretch *s = &fi->s[k];
            jwrite_obj(w, NULL);
            jwrite_u64(w, "from_line", s->from);
            jwrite_u64(w, "to_line", s->to);
            jwrite_u64(w, "lines", s->n);
            engine_names(s->engines, text);
            jwrite_str(w, "engine", text);
            date_or_null(w, "since", s->since);
            date_or_null(w, "until", s->until);
            wrap_names(s->wraps, text);
            jwrite_str(w, "wrapping", text);
            jwrite_end_obj(w);
        }
        jwrite_end_arr(w);
        struct block *b = block_at(&f->by_file, (int64_t)i, fi->path, SIZE_MAX);
        if (b)
            write_block(w, "totals", b, rate);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
}

static void write_hist(struct jwrite *w, const char *key, struct hist *h, int decimals)
{
    jwrite_obj(w, key);
    jwrite_u64(w, "n", h->n);
    fixed_or_null(w, "min", hist_quantile(h, 0), decimals);
    fixed_or_null(w, "median", hist_quantile(h, 0.5), decimals);
    fixed_or_null(w, "max", hist_quantile(h, 1), decimals);
    jwrite_end_obj(w);
}

static void write_plots(const struct forensics *f, struct jwrite *w)
{
    static const char *const gone[] = {"kept", "erased", "evicted", "thinned", "reset"};
    jwrite_obj(w, "plots");
    jwrite_arr(w, "cost");
    for (size_t i = 0; i < f->n_bins; i++) {
        const struct cost_bin *b = &f->bins[i];
        jwrite_obj(w, NULL);
        jwrite_u64(w, "turns", b->turns);
        fixed_or_null(w, "t", b->t, 1);
        jwrite_fixed(w, "prefill_seconds", b->prefill_s, 3);
        jwrite_i64(w, "evaluated", b->evaluated);
        jwrite_i64(w, "avoidable", b->avoidable);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
    jwrite_u64(w, "checkpoints_in_all", f->n_lives_all);
    jwrite_arr(w, "checkpoints");
    for (size_t i = 0; i < f->n_lives; i++) {
        const struct life *l = &f->lives[(f->life_at + N_LIVES - f->n_lives + i) % N_LIVES];
        jwrite_obj(w, NULL);
        jwrite_u64(w, "process", l->process);
        jwrite_u64(w, "slot", l->slot);
        jwrite_i64(w, "pos", l->c.pos);
        jwrite_u64(w, "made_turn", l->c.made_seq);
        jwrite_i64(w, "made_task", l->c.made_task);
        jwrite_str(w, "end", gone[l->c.gone]);
        if (l->c.gone) {
            jwrite_u64(w, "gone_turn", l->c.gone_seq);
            jwrite_i64(w, "gone_task", l->c.gone_task);
            jwrite_u64(w, "gone_line", l->c.gone_line);
        }
        jwrite_u64(w, "hits", l->c.hits);
        jwrite_u64(w, "made_line", l->c.made_line);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
    jwrite_end_obj(w);
}

void forensics_engine(struct forensics *f, struct forensics_engine *out)
{
    uint64_t best = 0;
    const char *how;
    *out = (struct forensics_engine){
        .ckpt_bytes = hist_quantile(&f->ckpt_mib, 0.5) * (double)MIB,
        .n_slots = (uint32_t)f->by_slot.n,
        .ring = f->ring,
        .rate = rate_of(&f->rate, &how),
        .reused_share =
            f->total.prompt > 0 ? (double)f->total.reused / (double)f->total.prompt : NAN};
    for (size_t i = 0; i < f->n_files; i++)
        for (size_t k = 0; k < f->files[i].n_stretches; k++) {
            const struct stretch *s = &f->files[i].s[k];
            if (s->n < best)
                continue;
            best = s->n;
            out->engines = s->engines;
            out->since = s->since;
            out->until = s->until == INT32_MAX ? 0 : s->until;
        }
}

enum rc forensics_summary(struct forensics *f, json_t *extra, json_t **out, struct err *err)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    const char *how;
    char name[96];
    const double rate = rate_of(&f->rate, &how);
    struct forensics_engine e;
    forensics_engine(f, &e);
    engine_names(e.engines, name);
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "schema", "holdfast-forensics/1");
    jwrite_str(&w, "engine", name);
    date_or_null(&w, "since", e.since);
    date_or_null(&w, "until", e.until);
    write_block(&w, "totals", &f->total, rate);
    write_files(f, &w, rate);
    write_blocks(&w, "slots", &f->by_slot, rate);
    write_blocks(&w, "processes", &f->by_process, rate);
    write_blocks(&w, "hours", &f->by_hour, rate);
    lcp_json(&f->lcp, &w, "common_prefix");
    lcp_json(&f->printed, &w, "common_prefix_printed");
    lcp_json(&f->prompts, &w, "prompts");
    rate_json(&f->rate, &w, "rate");
    avoid_json(&f->rate, (uint64_t)f->total.avoidable, f->total.lcp_unknown, f->total.lcp_rounded,
               &w, "avoidable");
    jwrite_obj(&w, "checkpoints");
    write_hist(&w, "mib", &f->ckpt_mib, 3);
    write_hist(&w, "create_ms", &f->create_ms, 2);
    write_hist(&w, "restore_ms", &f->restore_ms, 2);
    jwrite_end_obj(&w);
    const struct {
        const char *key;
        const struct top *top;
    } tops[] = {{"worst", &f->worst}, {"suspected", &f->suspected}};
    for (size_t k = 0; k < COUNT_OF(tops); k++) {
        jwrite_arr(&w, tops[k].key);
        for (size_t i = 0; i < tops[k].top->n; i++) {
            const struct turn *t = &tops[k].top->v[i];
            write_turn(&w, t, f->files[t->file].path);
        }
        jwrite_end_arr(&w);
    }
    if (f->trace) {
        jwrite_obj(&w, "trace");
        jwrite_u64(&w, "requests", turns_trace_n(f->trace));
        jwrite_u64(&w, "left_out", turns_trace_left_out(f->trace));
        jwrite_end_obj(&w);
    }
    write_plots(f, &w);
    jwrite_end_obj(&w);
    enum rc rc = b.failed ? err_set(err, RC_NOMEM, "no memory for the report")
                          : jread_parse(b.p, b.n, out, err);
    buf_release(&b);
    if (!rc && extra && json_object_set_new(*out, "simulated", extra))
        rc = err_set(err, RC_NOMEM, "no memory for the report");
    else if (rc)
        json_decref(extra);
    return rc;
}

enum rc forensics_write(struct forensics *f, const json_t *summary, FILE *out, struct err *err)
{
    char *text =
        json_dumps(summary, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    if (!text)
        return err_set(err, RC_NOMEM, "no memory for the report");
    /* the lists go in before the closing brace */
    size_t n = strlen(text);
    while (n && text[n - 1] != '}')
        n--;
    const bool ok = n && fwrite(text, 1, n - 1, out) == n - 1;
    free(text);
    if (!ok)
        return err_sys(err, "writing the report");
    struct {
        const char *key;
        struct spool *s;
    } lists[] = {{"lcp_printed", &f->lcp_list},
                 {"lcp_printed_detail", &f->lcp_detail},
                 {"restored_positions", &f->restored},
                 {"orphan_timings", &f->orphans},
                 {"turn_list", &f->turn_list}};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        if (fprintf(out, ",\n \"%s\": [", lists[i].key) < 0)
            return err_sys(err, "writing the report");
        const enum rc rc = spool_copy(lists[i].s, out, err);
        if (rc)
            return rc;
        fputc(']', out);
    }
    if (fputs("\n}\n", out) < 0 || fflush(out))
        return err_sys(err, "writing the report");
    return RC_OK;
}

/* ---- rotation -------------------------------------------------------------------------------- */

/* The name without ".gz", ".zst" and a rotation's ".3" or "-20260501"; *age larger for older files. */
static size_t rotation_stem(const char *p, int64_t *age)
{
    size_t n = strlen(p);
    *age = 0;
    if (n > 3 && !strcmp(p + n - 3, ".gz"))
        n -= 3;
    else if (n > 4 && !strcmp(p + n - 4, ".zst"))
        n -= 4;
    size_t d = n;
    while (d && p[d - 1] >= '0' && p[d - 1] <= '9' && n - d < 10)
        d--;
    if (d < n && d > 1 && (p[d - 1] == '.' || p[d - 1] == '-')) {
        const int64_t v = strtoll(p + d, NULL, 10);
        if (n - d == 8)
            *age = INT64_MAX - v; /* a date: the later, the younger; yet older than the live file */
        else if (p[d - 1] == '.' && n - d <= 4)
            *age = v;
        else
            return n;
        return d - 1;
    }
    return n;
}

void forensics_order(const char **paths, bool *joined, size_t n)
{
    /* a few names: insertion sort inside each group of one stem, groups stay where they begin */
    for (size_t i = 0; i < n; i++)
        joined[i] = false;
    for (size_t i = 1; i < n; i++) {
        int64_t age;
        const char *p = paths[i];
        const size_t stem = rotation_stem(p, &age);
        size_t at = i, last = SIZE_MAX;
        for (size_t k = i; k-- > 0;) {
            int64_t other;
            const size_t s = rotation_stem(paths[k], &other);
            if (s != stem || memcmp(p, paths[k], s) != 0)
                continue;
            if (last == SIZE_MAX)
                last = k + 1;
            if (other < age)
                at = k;
            else
                break;
        }
        if (last == SIZE_MAX)
            continue;
        at = MIN(at, last);
        memmove(paths + at + 1, paths + at, (i - at) * sizeof *paths);
        paths[at] = p;
    }
    for (size_t i = 1; i < n; i++) {
        int64_t a, b;
        const size_t sa = rotation_stem(paths[i - 1], &a), sb = rotation_stem(paths[i], &b);
        joined[i] = sa == sb && !memcmp(paths[i - 1], paths[i], sa) && a > b;
    }
}
