#include "lab/turn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum {
    N_PROCS = 4096,      /* names; the last one stands for all that come after */
    N_SLOTS = 1024,      /* of all processes at the same time */
    N_WAITING = 4096,    /* finished turns held back so that they come in launch order */
    ECHO_LINES = 200,    /* prompt text is at most that many lines */
    TIMING_LINES = 12,   /* from print_timing to the last unprefixed timing */
    SETTLE_LINES = 8,    /* after its release and timing a turn may get more lines */
    ORPHAN_LINES = 2000, /* after its release a turn may still get its timing */
};

struct proc {
    char name[PROCESS_NAME_MAX];
    uint32_t index, restart; /* how many of the name came before */
    bool fresh;              /* its slots are known to have been empty at first */
    bool active;             /* slots have been used: the next start is another process */
    bool retired;            /* another one took its name */
    uint32_t *slots;         /* [n_slots] indices into turns.slots */
    size_t n_slots, slots_cap;
    int64_t max_task;
    double clock;
    /* timings without a prefix belong to */
    int32_t owner_slot;
    int64_t owner_task;
    uint32_t owner_left;
    /* said before the launch, without a slot */
    int64_t offer_held;
    bool swap;
    bool verbose; /* prints checkpoint lines */
    uint32_t echo_left;
    uint64_t n_own; /* numbers turns of engines that number none */
};

struct slot {
    struct slot_state s;
    int64_t last_task; /* of the turn handed out last */
    bool reentered;    /* the turn's first re-entry line was seen */
    double prog_t;     /* last progress line, of engines without timings */
    int64_t prog_n;
};

struct turns {
    struct turn_sink sink;
    struct proc *procs[N_PROCS];
    uint32_t n_procs;
    struct slot *slots[N_SLOTS]; /* NULL: free */
    uint64_t next_seq, next_out, n_lines, n_echo;
    struct turn *waiting;
    size_t n_waiting, waiting_cap;
    uint32_t last_proc;
};

static const char *const outcome_names[OUT_N] = {
    [OUT_UNKNOWN] = "unknown",        [OUT_COLD] = "cold",
    [OUT_APPEND] = "append",          [OUT_TRIMMED] = "trimmed",
    [OUT_RESTORED] = "restored",      [OUT_FORCED] = "forced",
    [OUT_CLEARED] = "cleared",        [OUT_ZERO_OVERLAP] = "zero_overlap",
    [OUT_SILENT_FULL] = "silent_full"};

const char *outcome_name(enum outcome o)
{
    return (unsigned)o < OUT_N ? outcome_names[o] : "?";
}

const char *lcp_from_name(enum lcp_from f)
{
    static const char *const names[] = {"unknown", "cache", "n_past", "against",
                                        "sim",     "rule",  "rounded"};
    return (unsigned)f < COUNT_OF(names) ? names[f] : "?";
}

enum rc turns_new(const struct turn_sink *sink, struct turns **out, struct err *err)
{
    struct turns *t = mem_try_zalloc(sizeof *t);
    if (!t)
        return err_set(err, RC_NOMEM, "no memory to follow a log");
    t->sink = *sink;
    *out = t;
    return RC_OK;
}

void turns_free(struct turns *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_procs; i++) {
        mem_free(t->procs[i]->slots);
        mem_free(t->procs[i]);
    }
    for (uint32_t i = 0; i < N_SLOTS; i++)
        if (t->slots[i]) {
            mem_free(t->slots[i]->s.ring);
            mem_free(t->slots[i]);
        }
    mem_free(t->waiting);
    mem_free(t);
}

uint32_t turns_n_processes(const struct turns *t)
{
    return t->n_procs;
}

const char *turns_process_name(const struct turns *t, uint32_t process)
{
    return process < t->n_procs ? t->procs[process]->name : "?";
}

uint64_t turns_n_echo(const struct turns *t)
{
    return t->n_echo;
}

/* ---- processes and slots --------------------------------------------------------------------- */

static struct proc *proc_add(struct turns *t, struct str name, uint32_t restart)
{
    struct proc *p;
    if (t->n_procs == N_PROCS) {
        p = t->procs[N_PROCS - 1];
        p->retired = false;
        return p;
    }
    p = mem_try_zalloc(sizeof *p);
    if (!p)
        return NULL;
    const int n = (int)MIN(name.n, sizeof p->name - 16);
    if (restart)
        snprintf(p->name, sizeof p->name, "%.*s#%u", n, name.p ? name.p : "", restart + 1);
    else
        snprintf(p->name, sizeof p->name, "%.*s", n, name.p ? name.p : "");
    p->max_task = p->offer_held = p->owner_task = -1;
    p->owner_slot = -1;
    p->clock = NAN;
    p->index = t->n_procs;
    p->restart = restart;
    t->procs[t->n_procs++] = p;
    return p;
}

/* Names compare up to a restart's "#2". */
static bool proc_is(const struct proc *p, struct str name)
{
    const size_t n = MIN(name.n, sizeof p->name - 16);
    return !strncmp(p->name, name.p ? name.p : "", n) && (p->name[n] == 0 || p->name[n] == '#');
}

static struct proc *proc_of(struct turns *t, struct str name)
{
    if (t->last_proc < t->n_procs && !t->procs[t->last_proc]->retired &&
        proc_is(t->procs[t->last_proc], name))
        return t->procs[t->last_proc];
    for (uint32_t i = t->n_procs; i-- > 0;)
        if (!t->procs[i]->retired && proc_is(t->procs[i], name)) {
            t->last_proc = i;
            return t->procs[i];
        }
    uint32_t restart = 0;
    for (uint32_t i = t->n_procs; i-- > 0 && !restart;)
        if (proc_is(t->procs[i], name))
            restart = t->procs[i]->restart + 1;
    struct proc *p = proc_add(t, name, restart);
    t->last_proc = t->n_procs - 1;
    return p;
}

static struct slot *slot_find(struct turns *t, const struct proc *p, int64_t id)
{
    for (uint32_t i = 0; i < p->n_slots; i++)
        if (t->slots[p->slots[i]]->s.id == id)
            return t->slots[p->slots[i]];
    return NULL;
}

static struct slot *slot_get(struct turns *t, struct proc *p, int64_t id)
{
    struct slot *s = slot_find(t, p, id);
    uint32_t at = 0;
    if (s || id < 0)
        return s;
    while (at < N_SLOTS && t->slots[at])
        at++;
    if (at == N_SLOTS || !mem_grow(&p->slots, &p->slots_cap, p->n_slots + 1, sizeof *p->slots))
        return NULL;
    s = mem_try_zalloc(sizeof *s);
    struct ckpt *ring = mem_try_array((size_t)3 * RING_MAX, sizeof *ring);
    if (!s || !ring) {
        mem_free(s);
        mem_free(ring);
        return NULL;
    }
    s->s = (struct slot_state){.id = (uint32_t)id,
                               .held = p->fresh ? 0 : -1,
                               .lineage_whole = p->fresh,
                               .ring = ring,
                               .ring0 = ring + RING_MAX,
                               .ghost = ring + (size_t)2 * RING_MAX,
                               .pick_sim = NAN,
                               .pick_keep = NAN,
                               .t_last = NAN,
                               .sim_lcp = -1,
                               .sim_prompt = -1};
    s->last_task = -1;
    s->prog_t = NAN;
    p->slots[p->n_slots++] = at;
    t->slots[at] = s;
    return s;
}

/* ---- where a line stands --------------------------------------------------------------------- */

struct at {
    struct turns *t;
    struct proc *p;
    uint32_t process, file;
    uint64_t line;
    const struct unwrapped *u;
    const struct line *l;
};

static void note(struct turn *t, const struct at *a, const char *what)
{
    if (t->n_evidence == TURN_MAX_EVIDENCE)
        return;
    for (uint32_t i = 0; i < t->n_evidence; i++)
        if (t->evidence[i].what == what)
            return;
    t->evidence[t->n_evidence++] = (struct evidence){a->file, a->line, what};
}

static void report(const struct at *a, const struct slot *s, enum turn_event e, double bytes,
                   double ms, int64_t pos)
{
    if (a->t->sink.event)
        a->t->sink.event(a->t->sink.ctx, e, a->file, a->process, s ? s->s.id : 0, a->u, bytes, ms,
                         pos);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void ckpt_gone(const struct at *a, struct slot *s, struct ckpt *c, enum gone how)
{
    c->gone = how;
    c->gone_task = a->l ? a->l->task : -1;
    c->gone_file = a->file;
    c->gone_line = a->line;
    c->gone_seq = s->s.open ? s->s.turn.seq : a->t->next_seq;
    c->gone_t = a->u && a->u->time != TIME_NONE ? a->u->t : NAN;
    if (a->t->sink.ckpt)
        a->t->sink.ckpt(a->t->sink.ctx, a->process, s->s.id, c);
}

static void ring_remove(struct slot *s, uint32_t i)
{
    memmove(s->s.ring + i, s->s.ring + i + 1, (s->s.n_ring - i - 1) * sizeof *s->s.ring);
    s->s.n_ring--;
}

static void ghost_add(struct slot *s, const struct ckpt *c)
{
    if (s->s.n_ghost == RING_MAX) {
        memmove(s->s.ghost, s->s.ghost + 1, (RING_MAX - 1) * sizeof *s->s.ghost);
        s->s.n_ghost--;
    }
    s->s.ghost[s->s.n_ghost++] = *c;
}

/* Everything in the ring goes with what the slot held. */
static void ring_reset(const struct at *a, struct slot *s)
{
    for (uint32_t i = 0; i < s->s.n_ring; i++)
        ckpt_gone(a, s, &s->s.ring[i], GONE_RESET);
    s->s.n_ring = s->s.n_ghost = 0;
}

static void ring_create(const struct at *a, struct slot *s)
{
    const struct line *l = a->l;
    const int64_t pos = l->pos_max >= 0 ? l->pos_max : l->n_tokens > 0 ? l->n_tokens - 1 : -1;
    if (pos < 0) {
        s->s.lineage_whole = false; /* the line is cut: one more, somewhere */
        return;
    }
    for (uint32_t i = 0; i < s->s.n_ring; i++)
        if (s->s.ring[i].pos == pos && l->engines != ENG_HOLDFAST) {
            ckpt_gone(a, s, &s->s.ring[i], GONE_THINNED);
            ring_remove(s, i);
            break;
        }
    if (s->s.n_ring == RING_MAX) {
        ckpt_gone(a, s, &s->s.ring[0], GONE_RESET);
        ring_remove(s, 0);
        s->s.lineage_whole = false;
    }
    s->s.ring[s->s.n_ring++] =
        (struct ckpt){.pos = pos,
                      .id = l->engines == ENG_HOLDFAST ? l->max : -1,
                      .bytes = l->mib * (l->engines == ENG_HOLDFAST ? 1 : (double)MIB),
                      .made_task = l->task,
                      .made_file = a->file,
                      .made_line = a->line,
                      .made_seq = s->s.open ? s->s.turn.seq : a->t->next_seq,
                      .made_t = a->u->time != TIME_NONE ? a->u->t : NAN,
                      .gone_task = -1,
                      .gone_t = NAN};
    /* "created 3 of 32": lines may have been lost on the way */
    if (l->n > (int64_t)s->s.n_ring) {
        s->s.lineage_whole = false;
    } else if (l->n > 0) {
        while (l->n < (int64_t)s->s.n_ring) {
            ckpt_gone(a, s, &s->s.ring[0], GONE_RESET);
            ring_remove(s, 0);
            s->s.lineage_whole = false;
        }
    }
}

static void ring_drop(const struct at *a, struct slot *s, enum gone how)
{
    const struct line *l = a->l;
    const int64_t pos = l->pos_max >= 0 ? l->pos_max : l->n_tokens > 0 ? l->n_tokens - 1 : -1;
    for (uint32_t i = 0; i < s->s.n_ring; i++) {
        struct ckpt *c = &s->s.ring[i];
        if (l->engines == ENG_HOLDFAST ? c->id != l->max : c->pos != pos)
            continue;
        ckpt_gone(a, s, c, how);
        ghost_add(s, c);
        ring_remove(s, i);
        return;
    }
    s->s.lineage_whole = false; /* older than the log */
}

/* The turn is over: what lies above its common prefix belonged to the sequence it replaced. */
static void lineage_turn(struct slot *s, const struct turn *t)
{
    struct slot_state *st = &s->s;
    const int64_t keep = t->lcp >= 0 ? t->lcp : t->start >= 0 ? t->start : 0;
    struct lineage old = {.held = t->held,
                          .deepest = -1,
                          .by_task = t->task,
                          .by_file = t->file,
                          .by_line = t->line,
                          .seq = t->seq};
    uint32_t n = 0;
    for (uint32_t i = 0; i < st->n_ghost; i++) {
        const struct ckpt *g = &st->ghost[i];
        if (g->pos + 1 <= keep) {
            st->ghost[n++] = *g;
            continue;
        }
        old.n_ckpts++;
        old.deepest = MAX(old.deepest, g->pos);
        if (g->gone_seq == t->seq && old.by_line == t->line) {
            old.by_file = g->gone_file;
            old.by_line = g->gone_line;
        }
    }
    st->n_ghost = n;
    if (old.n_ckpts && t->held > keep) {
        if (st->n_old == N_LINEAGES) {
            memmove(st->old, st->old + 1, (N_LINEAGES - 1) * sizeof *st->old);
            st->n_old--;
        }
        st->old[st->n_old++] = old;
    }
    /* from the first token on within the log */
    if (t->start == 0 && keep < 64)
        st->lineage_whole |= t->created || !st->n_ring;
}

/* ---- turns ----------------------------------------------------------------------------------- */

int64_t turn_reused(const struct turn *t)
{
    if (t->timed && t->n_prompt >= t->evaluated)
        return t->n_prompt - t->evaluated;
    return t->start;
}

int64_t turn_reach(const struct turn *t)
{
    return t->n_prompt > 0 ? MIN(t->lcp, t->n_prompt - 1) : t->lcp;
}

int64_t turn_lost(const struct turn *t)
{
    const int64_t reused = turn_reused(t);
    if (t->lcp < 0 || reused < 0)
        return -1;
    return MAX(0, turn_reach(t) - reused);
}

/* The common prefix from two shares with three decimals: the middle of what both allow. */
static int64_t rounded_lcp(const struct turn *t)
{
    if (isnan(t->pick_sim) || t->pick_sim < 0 || t->n_prompt <= 0)
        return -1;
    const double n = (double)t->n_prompt, h = (double)t->held;
    double lo = (t->pick_sim - 0.0005) * n, hi = (t->pick_sim + 0.0005) * n;
    if (!isnan(t->pick_keep) && t->held > 0) {
        const double lo2 = (t->pick_keep - 0.0005) * h, hi2 = (t->pick_keep + 0.0005) * h;
        if (MAX(lo, lo2) <= MIN(hi, hi2)) {
            lo = MAX(lo, lo2);
            hi = MIN(hi, hi2);
        }
    }
    return (int64_t)fmax(0, fmin(round((lo + hi) / 2), n));
}

/* The prompt's length from what the slot holds afterwards: the last sampled token never enters it. */
static int64_t length_by_release(const struct turn *t)
{
    if (t->held_after < 0 || t->generated <= 0 || t->evaluated < 0)
        return -1;
    const int64_t n = t->held_after - t->generated + 1;
    return n >= t->evaluated ? n : -1;
}

/* Prompt length and re-entry, where the lines give them only together. */
static void settle_lengths(struct turn *t)
{
    const int64_t by_release = length_by_release(t);
    /* the first re-entry line may be lost: a later batch's then looks like it */
    if (t->timed && t->start >= 0 && !t->complete) {
        const int64_t n = t->n_prompt >= 0 ? t->n_prompt : by_release;
        if (n >= 0 && t->start + t->evaluated > n + 64)
            t->start = -1;
    }
    if (t->start < 0 && t->restored && t->restored_pos >= 0)
        t->start = t->restored_pos + 1;
    if (t->start < 0 && (t->forced || t->cleared))
        t->start = 0;
    if (t->n_prompt < 0 && t->start >= 0 && t->evaluated >= 0) {
        t->n_prompt = t->start + t->evaluated;
        t->n_prompt_inferred = true;
    }
    if (t->n_prompt < 0 && by_release >= 0) {
        t->n_prompt = by_release;
        t->n_prompt_inferred = true;
    }
    if (t->start < 0 && t->n_prompt >= 0 && t->evaluated >= 0 && t->n_prompt >= t->evaluated) {
        t->start = t->n_prompt - t->evaluated;
        t->start_inferred = true;
    }
    t->mismatch =
        t->n_prompt >= 0 && t->start >= 0 && t->timed && t->start + t->evaluated != t->n_prompt;
}

/* The common prefix, where no line gives it. */
static void settle_lcp(struct turn *t)
{
    const bool slots = (t->engines & ENG_SLOTS) != 0, full = t->forced || t->cleared;
    const int64_t near = t->swapped ? -1 : rounded_lcp(t);
    int64_t lcp = -1;
    enum lcp_from from = LCP_RULE;
    if (t->lcp_from != LCP_UNKNOWN)
        return;
    if (t->sim_lcp >= 0 && !t->swapped && (t->n_prompt < 0 || t->sim_prompt == t->n_prompt)) {
        lcp = t->sim_lcp;
        from = LCP_SIM;
    } else if (t->held == 0) {
        lcp = 0;
    } else if (t->swapped && t->held < 0 && t->verbose && t->start > 0 && !t->restored) {
        lcp = t->held =
            t->start; /* no divergence was said: all that came out of the store was kept */
    } else if (t->held > 0 && t->start == t->held) {
        lcp = t->held;
    } else if (near >= 0) {
        if (near < t->start)
            return; /* it came out of the RAM cache, unsaid */
        lcp = near;
        from = LCP_ROUNDED;
    } else if (slots && t->start == 0 && t->held > 0 && !full && (t->erased || t->verbose)) {
        lcp = 0; /* any shared token would have brought the divergence or the forcing line */
    } else if (slots && t->start > 0 && t->held > t->start && !t->restored && !t->picked_lru) {
        lcp = t->start; /* cut back to the common prefix: no recurrent state in the way */
    }
    if (lcp < 0)
        return;
    t->lcp = lcp;
    t->lcp_from = from;
}

static enum outcome settle_outcome(const struct turn *t)
{
    if (t->cleared)
        return OUT_CLEARED;
    if (t->forced)
        return OUT_FORCED;
    if (t->restored)
        return OUT_RESTORED;
    if (t->start == 0) {
        if (t->held == 0 || (t->held < 0 && t->lcp == 0))
            return OUT_COLD;
        if (t->lcp == 0 || (t->held < 0 && t->erased))
            return OUT_ZERO_OVERLAP;
        return t->lcp > 0 ? OUT_SILENT_FULL : OUT_UNKNOWN;
    }
    if (t->start < 0)
        return OUT_UNKNOWN;
    if (t->engines == ENG_HOLDFAST)
        return OUT_RESTORED;
    if (t->start == t->held || (t->lcp >= 0 && t->lcp == t->held && t->start >= t->lcp - 1))
        return OUT_APPEND;
    if (t->lcp >= 0 && t->start >= MIN(t->lcp, t->n_prompt - 1))
        return OUT_TRIMMED;
    return OUT_RESTORED; /* below the common prefix, or out of another store */
}

static void hand_on(struct turns *t)
{
    for (bool again = true; again && t->n_waiting;) {
        again = false;
        for (size_t i = 0; i < t->n_waiting; i++)
            if (t->waiting[i].seq <= t->next_out) {
                const struct turn out = t->waiting[i];
                t->waiting[i] = t->waiting[--t->n_waiting];
                if (out.seq == t->next_out)
                    t->next_out++;
                if (t->sink.turn)
                    t->sink.turn(t->sink.ctx, &out);
                again = true;
                break;
            }
    }
}

static void turn_finish(struct turns *t, struct slot *s)
{
    if (!s->s.open)
        return;
    struct turn *u = &s->s.turn;
    u->verbose = t->procs[u->process]->verbose;
    settle_lengths(u);
    settle_lcp(u);
    u->outcome = settle_outcome(u);
    cause_find(&s->s, u);
    lineage_turn(s, u);
    s->s.open = false;
    s->last_task = u->task;
    if (!u->released) {
        /* the slot holds what the turn left, if that is known at all */
        s->s.held = u->n_prompt >= 0 && u->generated > 0 ? u->n_prompt + u->generated - 1 : -1;
    }
    if (t->n_waiting == N_WAITING) {
        /* one turn never ends; the others go on without it */
        size_t low = 0;
        for (size_t i = 1; i < t->n_waiting; i++)
            if (t->waiting[i].seq < t->waiting[low].seq)
                low = i;
        t->next_out = t->waiting[low].seq;
        hand_on(t);
    }
    if (u->seq == t->next_out && !t->n_waiting) {
        t->next_out++;
        if (t->sink.turn)
            t->sink.turn(t->sink.ctx, u);
        return;
    }
    if (!mem_grow(&t->waiting, &t->waiting_cap, t->n_waiting + 1, sizeof *t->waiting)) {
        if (t->sink.turn) /* out of order rather than lost */
            t->sink.turn(t->sink.ctx, u);
        return;
    }
    t->waiting[t->n_waiting++] = *u;
    hand_on(t);
}

static struct turn *turn_begin(const struct at *a, struct slot *s, bool launched)
{
    struct turns *t = a->t;
    turn_finish(t, s);
    struct slot_state *st = &s->s;
    st->open = true;
    st->lineage_whole0 = st->lineage_whole;
    s->reentered = false;
    s->prog_t = NAN;
    struct turn *u = &st->turn;
    *u = (struct turn){.seq = t->next_seq++,
                       .file = a->file,
                       .process = a->process,
                       .slot = st->id,
                       .task = a->l->task,
                       .engines = a->l->engines,
                       .line = a->line,
                       .time = a->u->time,
                       .t = a->u->t,
                       .t_end = a->u->t,
                       .launched = launched,
                       .n_prompt = -1,
                       .held = st->held,
                       .lcp = -1,
                       .start = -1,
                       .evaluated = -1,
                       .generated = -1,
                       .held_after = -1,
                       .prefill_ms = NAN,
                       .decode_ms = NAN,
                       .restored_pos = -1,
                       .restore_ms = NAN,
                       .pick_sim = st->pick_sim,
                       .pick_keep = st->pick_keep,
                       .picked_lru = st->picked_lru,
                       .sim_lcp = st->sim_lcp,
                       .sim_prompt = st->sim_prompt,
                       .lost = -1,
                       .cause_task = -1,
                       .cause_pos = -1};
    if (launched) {
        if (st->t_last < 0) { /* "t_last = -1": never used */
            u->held = 0;
            st->lineage_whole = st->lineage_whole0 = true;
        } else if (u->held < 0 && a->p->offer_held >= 0 && (a->l->engines & ENG_KV)) {
            u->held = a->p->offer_held;
        }
        if (a->p->swap) {
            u->swapped = true;
            u->held = -1;
            ring_reset(a, s);
            st->lineage_whole = st->lineage_whole0 = false;
        }
        a->p->swap = false;
        a->p->offer_held = -1;
    }
    st->pick_sim = st->pick_keep = st->t_last = NAN;
    st->picked_lru = false;
    st->sim_lcp = st->sim_prompt = -1;
    memcpy(st->ring0, st->ring, st->n_ring * sizeof *st->ring);
    st->n_ring0 = st->n_ring;
    a->p->active = true;
    if (u->task > a->p->max_task)
        a->p->max_task = u->task;
    return u;
}

/* The turn a line of this slot and task belongs to; a new one where the launch line is missing.  NULL
 * where the line comes after its turn. */
static struct turn *turn_of(const struct at *a, struct slot *s, bool may_begin)
{
    if (!s)
        return NULL;
    const int64_t task = a->l->task;
    if (s->s.open && (task < 0 || task == s->s.turn.task))
        return &s->s.turn;
    if (!may_begin || task < 0 || task == s->last_task || (s->s.open && task < s->s.turn.task))
        return NULL;
    return turn_begin(a, s, false);
}

/* The process is gone: its turns end, its slots with them. */
static void proc_retire(const struct at *a)
{
    struct proc *p = a->p;
    for (uint32_t i = 0; i < p->n_slots; i++) {
        struct slot *s = a->t->slots[p->slots[i]];
        turn_finish(a->t, s);
        ring_reset(a, s);
        a->t->slots[p->slots[i]] = NULL;
        mem_free(s->s.ring);
        mem_free(s);
    }
    mem_free(p->slots);
    p->slots = NULL;
    p->n_slots = p->slots_cap = 0;
    p->retired = true;
    p->active = false;
    p->max_task = -1;
}

/* A server starts: whoever wrote under this name before is gone. */
static void proc_begins(struct at *a)
{
    if (a->p->active) {
        proc_retire(a);
        struct proc *p = proc_of(a->t, a->u->process);
        if (!p)
            return;
        a->p = p;
        a->process = p->index;
    }
    a->p->fresh = true;
}

static void launch(struct at *a, struct slot **s)
{
    const int64_t task = a->l->task;
    /* ids count upwards as long as a process lives */
    if (a->p->active && a->p->max_task > 0 && task >= 0 && !(a->l->engines & ENG_HOLDFAST) &&
        (task == 0 || task + 100000 < a->p->max_task)) {
        const int64_t id = (*s)->s.id;
        const double t_last = (*s)->s.t_last;
        proc_begins(a);
        *s = slot_get(a->t, a->p, id);
        if (!*s)
            return;
        (*s)->s.t_last = t_last;
    }
    if (task == 0)
        a->p->fresh = true;
    if (a->p->fresh && (*s)->last_task < 0 && !(*s)->s.open && (*s)->s.held < 0) {
        (*s)->s.held = 0;
        (*s)->s.lineage_whole = true;
    }
    turn_begin(a, *s, true);
}

/* From a line that is about something else. */
static void imply_lcp(struct turn *t, int64_t lcp)
{
    if (lcp < 0 || t->lcp_from != LCP_UNKNOWN)
        return;
    t->lcp = lcp;
    t->lcp_from = LCP_RULE;
}

static void set_lcp(const struct at *a, struct turn *t, int64_t lcp, enum lcp_from from)
{
    if (lcp < 0 || (t->lcp_from != LCP_UNKNOWN && t->lcp_from <= from))
        return;
    t->lcp = lcp;
    t->lcp_from = from;
    if (a->t->sink.lcp)
        a->t->sink.lcp(a->t->sink.ctx, t->slot, t->task, lcp, t->held, from);
}

/* "======== Cache" names no slot.  It comes when a launched slot's turn starts, lowest slot first. */
static struct slot *cache_line_slot(const struct at *a)
{
    struct slot *best = NULL;
    bool best_fits = false;
    for (uint32_t i = 0; i < a->p->n_slots; i++) {
        struct slot *s = a->t->slots[a->p->slots[i]];
        if (!s->s.open || !s->s.turn.launched || s->s.turn.lcp_from == LCP_CACHE || s->reentered)
            continue;
        const bool fits = s->s.held == a->l->held;
        if (!best || (fits && !best_fits) || (fits == best_fits && s->s.id < best->s.id)) {
            best = s;
            best_fits = fits;
        }
    }
    return best;
}

/* The only turn that is still without its timing, or NULL. */
static struct slot *only_untimed(const struct at *a)
{
    struct slot *one = NULL;
    for (uint32_t i = 0; i < a->p->n_slots; i++) {
        struct slot *s = a->t->slots[a->p->slots[i]];
        if (!s->s.open || s->s.turn.timed || s->s.turn.cancelled)
            continue;
        if (one)
            return NULL;
        one = s;
    }
    return one;
}

static void evaluated(const struct at *a, struct slot *s)
{
    const struct line *l = a->l;
    struct turn *t = turn_of(a, s, false);
    if (t && t->launched && !t->timed && !t->cancelled) {
        t->timed = true;
        t->evaluated = l->n_tokens;
        t->prefill_ms = l->ms;
        note(t, a, "timing");
        s->s.released_at = a->t->n_lines;
        return;
    }
    if (t && t->timed)
        return; /* printed twice */
    if (t)
        t->evaluated = l->n_tokens;
    if (a->t->sink.orphan)
        a->t->sink.orphan(a->t->sink.ctx, a->file, a->line, l->slot, l->task, l->ms, l->n_tokens);
}

/* holdfast has no slots: a request takes the lowest free number. */
static struct slot *free_place(const struct at *a)
{
    for (int64_t id = 0; id < 64; id++) {
        struct slot *s = slot_get(a->t, a->p, id);
        if (!s || !s->s.open || s->s.turn.released)
            return s;
    }
    return NULL;
}

static struct slot *slot_of_task(const struct at *a, int64_t task)
{
    for (uint32_t i = 0; i < a->p->n_slots; i++) {
        struct slot *s = a->t->slots[a->p->slots[i]];
        if (s->s.open && s->s.turn.task == task)
            return s;
    }
    return NULL;
}

static void whole_turn(struct at *a)
{
    const struct line *l = a->l;
    struct line own = *l;
    struct slot *s;
    if (l->engines != ENG_HOLDFAST) {
        /* the front end's own runner: its slots are not those of a server whose lines stand beside */
        char name[PROCESS_NAME_MAX];
        const int n =
            snprintf(name, sizeof name, "%.*s:runner", (int)MIN(a->u->process.n, (size_t)64),
                     a->u->process.n ? a->u->process.p : "");
        a->p = proc_of(a->t, (struct str){name, (size_t)n});
        if (!a->p)
            return;
        a->process = a->p->index;
    }
    if (l->engines == ENG_HOLDFAST) {
        s = slot_of_task(a, l->task);
        for (uint32_t i = 0; !s && i < a->p->n_slots; i++)
            if (a->t->slots[a->p->slots[i]]->last_task == l->task)
                return; /* its event came first */
        if (s && s->s.turn.complete)
            return;
        if (!s)
            s = free_place(a);
    } else {
        s = slot_get(a->t, a->p, MAX(l->slot, 0));
        own.task = (int64_t)a->p->n_own++;
    }
    if (!s)
        return;
    a->l = &own;
    if (!s->s.open || s->s.turn.task != own.task || l->engines != ENG_HOLDFAST)
        turn_begin(a, s, true);
    struct turn *t = &s->s.turn;
    t->complete = t->released = true;
    if (t->engines != ENG_HOLDFAST)
        t->held = -1;
    if (l->held >= 0)
        t->held = l->held;
    if (l->n_past >= 0)
        t->start = l->n_past;
    t->n_prompt = l->n_prompt >= 0                     ? l->n_prompt
                  : l->n_past >= 0 && l->n_tokens >= 0 ? l->n_past + l->n_tokens
                                                       : l->n_tokens;
    t->evaluated = l->n_tokens >= 0 ? l->n_tokens : t->n_prompt - MAX(t->start, 0);
    if (l->n_past < 0 && t->start < 0)
        t->start = t->n_prompt - t->evaluated;
    if (t->start >= t->n_prompt &&
        t->n_prompt > 0) /* all of it was there: the last token is evaluated */
        t->start = t->n_prompt - 1;
    t->evaluated = MAX(t->evaluated, t->n_prompt - t->start);
    t->generated = l->n;
    t->prefill_ms = l->ms;
    t->decode_ms = l->ms2;
    t->timed = t->evaluated >= 0 && !t->cancelled;
    if (l->lcp0 >= 0)
        set_lcp(a, t, l->lcp0, LCP_CACHE);
    else if (l->engines == ENG_HOLDFAST && t->lcp < 0) {
        t->lcp = t->start; /* the line would have said what was lost */
        t->lcp_from = LCP_RULE;
    } else if (l->engines == ENG_OLLAMA && l->held >= 0 && t->start > 0) {
        t->lcp = t->start;
        t->lcp_from = LCP_RULE;
    }
    if (l->why.n && l->why.n < sizeof t->why) {
        memcpy(t->why, l->why.p, l->why.n);
        t->why[l->why.n] = 0;
    }
    t->t_end = a->u->t;
    note(t, a, "turn");
    s->s.released_at = a->t->n_lines;
    a->l = l;
}

/* The turn begun last whose own line said everything; NULL when all of them are over. */
static struct slot *last_whole_turn(const struct turns *t)
{
    struct slot *last = NULL;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        struct slot *s = t->slots[i];
        if (s && s->s.open && s->s.turn.complete && s->s.turn.engines != ENG_HOLDFAST &&
            (!last || s->s.turn.seq > last->s.turn.seq))
            last = s;
    }
    return last;
}

static void progress(const struct at *a)
{
    /* only where no timing will come: the rate is between two of these lines */
    if (!(a->l->engines & (ENG_OLLAMA | ENG_LMSTUDIO)) || a->u->time == TIME_NONE ||
        a->l->n_tokens < 0)
        return;
    struct slot *s = last_whole_turn(a->t); /* the line names none */
    if (!s)
        return;
    if (!isnan(s->prog_t) && a->l->n_tokens > s->prog_n && a->u->t > s->prog_t) {
        s->s.turn.rate_tokens += a->l->n_tokens - s->prog_n;
        s->s.turn.rate_s += a->u->t - s->prog_t;
    }
    s->prog_t = a->u->t;
    s->prog_n = a->l->n_tokens;
    s->s.released_at = a->t->n_lines;
}

static void cancel(const struct at *a)
{
    struct slot *s = NULL;
    if (a->l->task >= 0)
        s = slot_of_task(a, a->l->task);
    else if (a->l->engines & ENG_LMSTUDIO)
        s = last_whole_turn(a->t);
    else /* no id: the one that was launched last */
        for (uint32_t i = 0; i < a->p->n_slots; i++) {
            struct slot *o = a->t->slots[a->p->slots[i]];
            if (o->s.open && !o->s.turn.timed && (!s || o->s.turn.seq > s->s.turn.seq))
                s = o;
        }
    if (!s || (s->s.turn.timed && !s->s.turn.complete))
        return;
    s->s.turn.cancelled = true;
    s->s.turn.timed = false; /* how far it came is not said */
    note(&s->s.turn, a, "cancelled");
}

static void checkpoint_line(const struct at *a, struct slot *s)
{
    const struct line *l = a->l;
    const double bytes = l->mib * (l->engines == ENG_HOLDFAST ? 1 : (double)MIB);
    struct turn *t;
    if (l->engines == ENG_HOLDFAST) { /* s is where all snapshots are, not the request's place */
        struct slot *own = l->task >= 0 ? slot_of_task(a, l->task) : NULL;
        t = own ? &own->s.turn : NULL;
    } else {
        t = turn_of(a, s, true);
    }
    switch (l->kind) {
    case LINE_CREATE:
        report(a, s, EV_CREATED, bytes, l->ms, l->pos_max);
        if (s)
            ring_create(a, s);
        if (t) {
            t->created++;
            if (!isnan(l->ms)) {
                t->create_ms += l->ms;
                t->n_create_ms++;
            }
        }
        break;
    case LINE_ERASE:
        report(a, s, EV_ERASED, bytes, NAN, l->pos_max);
        if (s)
            ring_drop(a, s, GONE_ERASED);
        if (t) {
            t->erased++;
            note(t, a, "erased");
        }
        break;
    case LINE_EVICT:
        if (l->engines == ENG_HOLDFAST && str_is(l->why, "shutdown")) {
            if (s)
                ring_drop(a, s, GONE_RESET);
            break;
        }
        report(a, s, EV_EVICTED, bytes, NAN, l->pos_max);
        if (s)
            ring_drop(a, s, GONE_EVICTED);
        if (t)
            t->evicted++;
        break;
    case LINE_THIN:
        report(a, s, EV_THINNED, bytes, NAN, l->pos_max);
        if (s)
            ring_drop(a, s, GONE_THINNED);
        if (t)
            t->thinned++;
        break;
    default:
        break;
    }
}

static void restore_line(const struct at *a, struct slot *s)
{
    const struct line *l = a->l;
    const int64_t pos = l->engines == ENG_HOLDFAST ? l->pos_max - 1
                        : l->pos_max >= 0          ? l->pos_max
                                                   : l->n_tokens - 1;
    report(a, s, EV_RESTORED, l->mib * (l->engines == ENG_HOLDFAST ? 1 : (double)MIB), l->ms, pos);
    for (uint32_t i = 0; s && i < s->s.n_ring; i++)
        if (s->s.ring[i].pos == pos)
            s->s.ring[i].hits++;
    struct turn *t = turn_of(a, s, true);
    if (!t)
        return;
    t->restored = true;
    t->restored_pos = pos;
    t->restore_ms = l->ms;
    if (l->n_past >= 0 && t->start < 0)
        t->start = l->n_past;
    note(t, a, "restored");
}

static void slot_line(struct at *a, struct slot *s)
{
    const struct line *l = a->l;
    struct turn *t;
    switch (l->kind) {
    case LINE_LAUNCH:
        if (l->engines == ENG_HOLDFAST)
            s = free_place(a);
        if (s)
            launch(a, &s);
        if (!s)
            return;
        t = &s->s.turn;
        note(t, a, "launch");
        if (l->engines == ENG_HOLDFAST) {
            t->held = -1;
            t->n_prompt = l->n_prompt;
            t->start = l->n_past;
            set_lcp(a, t, l->lcp0, LCP_CACHE);
            if (l->why.n < sizeof t->why && l->why.n) {
                memcpy(t->why, l->why.p, l->why.n);
                t->why[l->why.n] = 0;
            }
        }
        return;
    case LINE_PROMPT:
        t = turn_of(a, s, true);
        if (t && t->n_prompt < 0)
            t->n_prompt = l->n_prompt;
        return;
    case LINE_DIVERGE:
        t = turn_of(a, s, true);
        if (!t)
            return;
        if (l->held >= 0)
            t->held = l->held;
        set_lcp(a, t, l->n_past, LCP_NPAST);
        note(t, a, "divergence");
        return;
    case LINE_CHECK:
        t = turn_of(a, s, true);
        if (!t)
            return;
        set_lcp(a, t, l->n_past, LCP_AGAINST);
        note(t, a, "checkpoint search");
        return;
    case LINE_FORCE:
        report(a, s, EV_FORCED, NAN, NAN, -1);
        t = turn_of(a, s, true);
        if (!t)
            return;
        t->forced = true;
        imply_lcp(t, l->n_past);
        if (l->held >= 0)
            t->held = l->held;
        note(t, a, "forced");
        return;
    case LINE_CLEAR:
        report(a, s, EV_CLEARED, NAN, NAN, -1);
        t = turn_of(a, s, true);
        if (!t)
            return;
        t->cleared = true;
        imply_lcp(t, l->n_past);
        note(t, a, "cleared");
        return;
    case LINE_RESTORE:
        restore_line(a, s);
        return;
    case LINE_REFUSED:
        t = turn_of(a, s, true);
        if (t) {
            t->refused = true;
            note(t, a, "restore refused");
        }
        return;
    case LINE_CREATE:
    case LINE_ERASE:
    case LINE_EVICT:
    case LINE_THIN:
        checkpoint_line(a, s);
        return;
    case LINE_REENTRY:
        t = turn_of(a, s, true);
        if (!t || s->reentered)
            return;
        s->reentered = true;
        t->start = l->n_past;
        note(t, a, "re-entry");
        return;
    case LINE_REWIND:
        t = turn_of(a, s, true);
        if (t) {
            t->rewound = true;
            note(t, a, "one token must be evaluated");
        }
        return;
    case LINE_TIMING:
        a->p->owner_slot = l->slot;
        a->p->owner_task = l->task >= 0 ? l->task : s && s->s.open ? s->s.turn.task : -1;
        a->p->owner_left = TIMING_LINES;
        return;
    case LINE_EVAL:
        evaluated(a, s);
        return;
    case LINE_DECODE:
        t = turn_of(a, s, false);
        if (t) {
            t->generated = l->n_tokens;
            t->decode_ms = l->ms;
        }
        return;
    case LINE_RELEASE: {
        const int64_t held = l->held >= 0 ? l->held : l->n_past;
        t = turn_of(a, s, false);
        if (t) {
            t->released = true;
            t->held_after = held;
            t->t_end = a->u->t;
        }
        if (s) {
            s->s.held = held;
            s->s.released_at = a->t->n_lines;
        }
        return;
    }
    case LINE_PICK_LCP:
    case LINE_PICK_LRU:
    case LINE_PICK:
    case LINE_PICK_SIM:
        if (!s)
            return;
        if (l->kind == LINE_PICK_SIM) {
            s->s.sim_lcp = l->n_past;
            s->s.sim_prompt = l->n_prompt;
            return;
        }
        s->s.pick_sim = l->sim;
        s->s.pick_keep = l->keep;
        s->s.picked_lru = l->kind == LINE_PICK_LRU;
        s->s.t_last = l->t_last;
        return;
    case LINE_FREED:
        if (!s || (s->s.open && !s->s.turn.released))
            return;
        turn_finish(a->t, s);
        ring_reset(a, s);
        s->s.held = 0;
        s->s.lineage_whole = true;
        return;
    default:
        return;
    }
}

static void tidy(struct turns *t, const struct proc *p)
{
    for (uint32_t i = 0; i < p->n_slots; i++) {
        struct slot *s = t->slots[p->slots[i]];
        const struct turn *u = &s->s.turn;
        const uint64_t age = t->n_lines - s->s.released_at;
        if (s->s.open && u->released &&
            (age > ORPHAN_LINES ||
             (age > SETTLE_LINES && !u->complete && (u->timed || u->cancelled))))
            turn_finish(t, s);
    }
}

bool turns_line(struct turns *t, uint32_t file, uint64_t line_no, const struct unwrapped *u,
                const struct line *l)
{
    t->n_lines++;
    if (!l || l->kind == LINE_UNKNOWN || l->kind == LINE_NOISE || l->kind == LINE_HTTP) {
        if (t->last_proc < t->n_procs && t->procs[t->last_proc]->echo_left)
            t->procs[t->last_proc]->echo_left--;
        return true;
    }
    struct at a = {.t = t, .file = file, .line = line_no, .u = u, .l = l};
    a.p = proc_of(t, u->process);
    if (!a.p)
        return true;
    a.process = a.p->index;

    /* prompt text may quote a log: until the server speaks of a running turn again, nothing else counts */
    if (a.p->echo_left) {
        a.p->echo_left--;
        const struct slot *s = l->slot >= 0 ? slot_find(t, a.p, l->slot) : NULL;
        if (!s || !s->s.open || s->s.turn.task != l->task) {
            t->n_echo++;
            return false;
        }
        a.p->echo_left = 0;
    }
    /* a server's own clock that jumps back is another server's */
    if (!isnan(u->clock)) {
        if (u->clock + 5 < a.p->clock && a.p->active && l->kind != LINE_BEGIN) {
            proc_begins(&a);
            a.p->fresh = false;
        }
        a.p->clock = u->clock;
    }
    struct line owned;
    if ((l->kind == LINE_EVAL || l->kind == LINE_DECODE) && l->slot < 0) {
        owned = *l;
        a.l = &owned;
        if (a.p->owner_left) {
            a.p->owner_left--;
            owned.slot = a.p->owner_slot;
            owned.task = a.p->owner_task;
        } else {
            const struct slot *s = only_untimed(&a);
            if (!s && l->kind == LINE_EVAL && t->sink.orphan)
                t->sink.orphan(t->sink.ctx, file, line_no, -1, -1, l->ms, l->n_tokens);
            if (!s)
                return true;
            owned.slot = (int32_t)s->s.id;
            owned.task = s->s.turn.task;
        }
    }

    a.p->verbose |= l->kind == LINE_CREATE || l->kind == LINE_ERASE || l->kind == LINE_FORCE ||
                    l->kind == LINE_RESTORE || l->kind == LINE_REENTRY;
    switch (l->kind) {
    case LINE_BEGIN:
        proc_begins(&a);
        break;
    case LINE_ECHO:
        a.p->echo_left = ECHO_LINES;
        break;
    case LINE_OFFER:
        if (l->held >= 0)
            a.p->offer_held = l->held;
        break;
    case LINE_SWAP:
        a.p->swap = true;
        break;
    case LINE_CACHE: {
        struct slot *s = cache_line_slot(&a);
        if (s) {
            s->s.turn.held = l->held;
            set_lcp(&a, &s->s.turn, l->n_past, LCP_CACHE);
            note(&s->s.turn, &a, "common prefix");
        }
        break;
    }
    case LINE_CANCEL:
        cancel(&a);
        break;
    case LINE_TURN:
        whole_turn(&a);
        break;
    case LINE_PROGRESS:
        progress(&a);
        break;
    case LINE_PARK:
        break;
    default: {
        struct slot *s = NULL;
        if (a.l->slot >= 0)
            s = slot_get(t, a.p, a.l->slot);
        else if (l->engines == ENG_HOLDFAST && l->task >= 0)
            s = slot_of_task(&a, l->task);
        else if (l->kind == LINE_FORCE || l->kind == LINE_CLEAR)
            s = only_untimed(&a); /* printed without a slot */
        if (l->engines == ENG_HOLDFAST && (l->kind == LINE_CREATE || l->kind == LINE_EVICT))
            s = slot_get(t, a.p, 0); /* snapshots belong to no request: all in one place */
        slot_line(&a, s);
    }
    }
    tidy(t, a.p);
    return true;
}

void turns_file_ends(struct turns *t, bool joined)
{
    if (joined)
        return;
    for (uint32_t i = 0; i < t->n_procs; i++) {
        const struct at a = {.t = t, .p = t->procs[i], .process = i};
        if (!a.p->retired)
            proc_retire(&a);
    }
}

void turns_finish(struct turns *t)
{
    for (uint32_t i = 0; i < N_SLOTS; i++)
        if (t->slots[i])
            turn_finish(t, t->slots[i]);
    while (t->n_waiting) {
        size_t low = 0;
        for (size_t i = 1; i < t->n_waiting; i++)
            if (t->waiting[i].seq < t->waiting[low].seq)
                low = i;
        t->next_out = t->waiting[low].seq;
        hand_on(t);
    }
    for (uint32_t i = 0; i < t->n_procs; i++) {
        const struct proc *p = t->procs[i];
        for (uint32_t k = 0; k < p->n_slots; k++) {
            struct slot *s = t->slots[p->slots[k]];
            for (uint32_t c = 0; c < s->s.n_ring && t->sink.ckpt; c++)
                t->sink.ckpt(t->sink.ctx, i, s->s.id, &s->s.ring[c]);
        }
    }
}
