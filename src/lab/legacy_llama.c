/* legacy_llama.c - llama.cpp's server from October 2025 to September 2026, by the date of the build.
 *
 * The checkpoint is taken before a batch is decoded: at the batch's start.  None is made while generating.
 */
#include "lab/legacy_int.h"

#include <stdlib.h>

enum { MAX_CUTS = 512 };

/* What changed when. */
struct rules {
    int32_t date;
    bool pos_zero;    /* a checkpoint at position 0 always passes */
    bool pass_next;   /* must also lie at or below the re-entry */
    bool gate_equal;  /* the divergence test holds at equality too */
    bool gate_append; /* ... and for a pure append */
    bool every_8192;
    bool near_end;
    bool user_last, user_all;
    bool near_exempt; /* near-end ones need no distance */
    bool thin;        /* drops those of other tasks that lie close together */
    bool thin_full;   /* ... only when the ring is about to overflow */
};

static struct rules rules_of(int32_t d)
{
    return (struct rules){.date = d,
                          .pos_zero = d >= 20260407,
                          .pass_next = d >= 20260611,
                          .gate_equal = d >= 20260320,
                          .gate_append = d >= 20260525,
                          .every_8192 = d >= 20260306 && d < 20260525,
                          .near_end = d >= 20260310,
                          .user_last = d >= 20260525,
                          .user_all = d >= 20260623,
                          .near_exempt = d >= 20260712,
                          .thin = d >= 20260712,
                          .thin_full = d >= 20260904};
}

/* How far below the common prefix the threshold lies. */
static uint32_t offset(const struct rules *r, uint32_t n_past, uint32_t n_prompt)
{
    if (r->date < 20260320)
        return 1;
    if (r->date < 20260525)
        return 0;
    if (r->date < 20260604)
        return 1;
    return n_past == n_prompt;
}

static uint32_t apply(struct legacy *l, const struct rules *r, struct slot *s, uint32_t n_prompt)
{
    uint32_t n_past = l->out->lcp;
    const int64_t have = s->n, t = (int64_t)n_past - offset(r, n_past, n_prompt);
    uint32_t next = n_past;
    bool gate = n_past > 0 && (r->gate_append ? n_past <= have : n_past < have);
    if (gate && !r->gate_append)
        gate = r->gate_equal ? have - 1 >= t : have - 1 > t;
    if (gate && r->gate_append && n_past == have)
        gate = have - 1 >= t; /* the state stands behind the last token */
    l->out->verdict = !n_past ? VERDICT_COLD : VERDICT_APPEND;
    if (gate) {
        const struct mark *best = NULL;
        for (uint32_t i = 0; i < s->n_ring; i++) {
            const struct mark *m = &s->ring[i];
            if (((int64_t)m->pos < t || (r->pos_zero && m->pos == 0)) &&
                (!r->pass_next || m->pos <= next) && (!best || m->pos > best->pos))
                best = m;
        }
        if (best) {
            n_past = next = MIN(n_past, best->pos + 1);
            l->out->verdict = VERDICT_RESTORED;
            l->out->restored = best->pos;
        } else {
            n_past = next = 0;
            l->out->verdict = VERDICT_FORCED;
        }
    }
    /* March 2026 moved the limit from the threshold to the re-entry */
    ring_erase_above(l, s, r->date >= 20260317 ? (int64_t)next : MAX(t, 0));
    return n_past;
}

static int by_size(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Where batches must end, ascending. */
static uint32_t cut_list(const struct legacy *l, const struct rules *r, const struct slot *s,
                         uint32_t n, const struct cache_hint *hints, uint32_t n_hints,
                         uint32_t *cuts, int64_t *last_user)
{
    const struct legacy_opts *o = &l->o;
    uint32_t k = 0;
    uint32_t from_end[2];
    uint32_t n_end = 0;
    if (r->date >= 20260310) {
        from_end[n_end++] = 4 + o->ubatch;
        from_end[n_end++] = 4;
    } else {
        from_end[n_end++] = r->date >= 20260208 ? MIN(o->batch, 512u) : 64;
    }
    for (uint32_t i = 0; i < n_end; i++)
        if (n > from_end[i])
            cuts[k++] = n - from_end[i];
    *last_user = -1;
    for (uint32_t i = 0; i < n_hints && r->user_last; i++)
        if (hints[i].role == 'u' && hints[i].pos > 0 && hints[i].pos < n)
            *last_user = hints[i].pos;
    int64_t back = s->n_ring ? (int64_t)s->ring[s->n_ring - 1].pos + 1 : -1;
    for (uint32_t i = 0; i < n_hints && r->user_last && k < MAX_CUTS; i++) {
        const uint32_t p = hints[i].pos;
        if (hints[i].role != 'u' || !p || p >= n)
            continue;
        const bool last = p == *last_user;
        const bool far = back < 0 || p > back + o->min_step;
        if (!last && (!r->user_all || (r->date >= 20260709 && !far)))
            continue;
        cuts[k++] = p;
        if (!last && r->date >= 20260709)
            back = p;
    }
    qsort(cuts, k, sizeof *cuts, by_size);
    return k;
}

/* Is the state at start, before the batch [start, end), worth a checkpoint? */
static bool wanted(const struct legacy *l, const struct rules *r, const struct slot *s,
                   uint32_t start, uint32_t end, uint32_t n, const struct cache_hint *hints,
                   uint32_t n_hints, int64_t last_user)
{
    const struct legacy_opts *o = &l->o;
    const bool last = end == n, near = r->near_end && n < end + o->ubatch;
    const int64_t back = s->n_ring ? (int64_t)s->ring[s->n_ring - 1].pos + 1 : -1;
    if (!start)
        return false;
    if (r->date < 20260320 ? start - 1 < 64 : end < 64)
        return false;
    if (r->date < 20260525) {
        const bool every = r->every_8192 && (int64_t)start - MAX(back, 0) >= 8192;
        return (last || near || every) && (back < 0 || (int64_t)start > back + 64);
    }
    bool user = false;
    for (uint32_t i = 0; i < n_hints; i++)
        user |= hints[i].role == 'u' && hints[i].pos == start;
    const bool at_last_user = (int64_t)start == last_user;
    bool want;
    if (r->user_all)
        want = last || near || user;
    else if (last_user < 0)
        want = last || near;
    else
        want = at_last_user || ((int64_t)start > last_user && near);
    if (!want || back < 0)
        return want;
    if ((r->user_all && at_last_user) || (r->near_exempt && (near || last)))
        return (int64_t)start > back;
    return (int64_t)start > back + o->min_step;
}

static enum rc make(struct legacy *l, const struct rules *r, struct slot *s, uint32_t start,
                    struct err *err)
{
    const uint32_t step = l->o.min_step;
    if (r->thin_full) {
        for (uint32_t i = 0; i < s->n_ring; i++)
            if (s->ring[i].pos + 1 == start) {
                slot_remove_mark(s, i);
                l->out->n_thinned++;
                break;
            }
    }
    if (r->thin && (!r->thin_full || s->n_ring >= l->o.ring)) {
        int64_t survivor = -1;
        for (uint32_t i = 0; i < s->n_ring;) {
            const struct mark *m = &s->ring[i];
            if (m->request != l->request && survivor >= 0 && (int64_t)m->pos - survivor < step) {
                slot_remove_mark(s, i);
                l->out->n_thinned++;
                continue;
            }
            survivor = m->pos;
            i++;
        }
    }
    while (s->n_ring >= l->o.ring) {
        slot_remove_mark(s, 0);
        l->out->n_evicted++;
    }
    return ring_append(l, s, start - 1, err);
}

enum rc serve_llama(struct legacy *l, struct slot *s, const token *seq, uint32_t n_prompt,
                    uint32_t n_gen, const struct cache_hint *hints, uint32_t n_hints,
                    struct err *err)
{
    const struct rules r = rules_of(l->o.date);
    uint32_t at = apply(l, &r, s, n_prompt);
    if (at == n_prompt) {
        /* one token must be evaluated, but the recurrent state cannot go back by one: all is cleared */
        at = 0;
        l->out->verdict = VERDICT_FORCED;
        ring_erase_above(l, s, -1);
    }
    l->out->reused = at;
    uint32_t cuts[MAX_CUTS + 4];
    int64_t last_user;
    const uint32_t n_cuts = cut_list(l, &r, s, n_prompt, hints, n_hints, cuts, &last_user);
    uint32_t next = 0;
    while (at < n_prompt) {
        uint32_t end = MIN(at + l->o.batch, n_prompt);
        while (next < n_cuts && cuts[next] <= at)
            next++;
        if (next < n_cuts && cuts[next] < end)
            end = cuts[next];
        if (wanted(l, &r, s, at, end, n_prompt, hints, n_hints, last_user)) {
            const enum rc rc = make(l, &r, s, at, err);
            if (rc)
                return rc;
        }
        at = end;
    }
    return slot_set(s, seq, n_prompt + (n_gen ? n_gen - 1 : 0), err);
}

/* Saves a slot's prompt; since July 2026 room is made first and what exceeds the limit is left. */
static enum rc save(struct legacy *l, struct slot *s, struct err *err)
{
    const uint64_t limit = (uint64_t)l->o.cram_mib * MIB, need = slot_bytes(l, s);
    if (l->o.date >= 20260707) {
        if (need > limit)
            return RC_OK;
        uint64_t total = need;
        for (size_t i = 0; i < l->n_parked; i++)
            total += slot_bytes(l, &l->parked[i]);
        while (l->n_parked && total > limit) {
            total -= slot_bytes(l, &l->parked[0]);
            parked_remove(l, 0);
        }
    }
    return park(l, s, err);
}

enum rc choose_llama(struct legacy *l, const token *seq, uint32_t n, struct slot **out,
                     struct err *err)
{
    struct slot *best = NULL, *idle = &l->slots[0];
    double best_sim = 0.1;
    enum rc rc = RC_OK;
    for (uint32_t i = 0; i < l->o.n_slots; i++) {
        struct slot *s = &l->slots[i];
        const double sim = s->n ? (double)common_prefix(s->seq, s->n, seq, n) / n : 0;
        if (sim > best_sim) {
            best = s;
            best_sim = sim;
        }
        if (s->used <= idle->used)
            idle = s;
    }
    struct slot *s = *out = best ? best : idle;
    if (!l->o.cram_mib)
        return RC_OK;
    const uint32_t lcp = common_prefix(s->seq, s->n, seq, n);
    double keep = s->n ? (double)lcp / s->n : 0, sim = (double)lcp / n;
    if (!best || keep < 0.5) {
        if (s->n)
            rc = save(l, s, err);
        size_t take = SIZE_MAX;
        for (size_t i = 0; i < l->n_parked && !rc; i++) {
            const struct slot *p = &l->parked[i];
            const uint32_t k = common_prefix(p->seq, p->n, seq, n);
            const double f = (double)k / p->n, m = (double)k / n;
            if (f < 0.25 || f <= keep || m <= sim)
                continue;
            keep = f;
            sim = m;
            take = i;
        }
        if (take != SIZE_MAX)
            parked_take(l, take, s);
        parked_trim(l);
    }
    /* since April 2026 a launch puts every other idle slot aside */
    for (uint32_t i = 0; i < l->o.n_slots && l->o.date >= 20260403 && !rc; i++) {
        struct slot *other = &l->slots[i];
        if (other == s || !other->n)
            continue;
        rc = save(l, other, err);
        slot_clear(other);
    }
    parked_trim(l);
    return rc;
}
