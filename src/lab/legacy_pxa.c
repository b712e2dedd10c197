/* legacy_pxa.c - PXA v3.1, and ik_llama.cpp of August 2026, which it derives from.
 *
 * A checkpoint at pos is the state after pos + 1 tokens.  Two rules make the trouble:
 *   - usable is only what lies strictly below t = n_past - 1, so the perfect one, which covers exactly the
 *     shared prefix, is refused;
 *   - everything above t is erased, also when nothing was shared and nothing is printed.
 */
#include "lab/legacy_int.h"

/* The request's view of the slot: how far the live sequence goes, how far it is reused. */
struct run {
    struct legacy *l;
    struct store *s;
    const token *seq;
    uint32_t n_prompt;
    uint32_t have;   /* tokens in the slot */
    uint32_t n_past; /* of them that the prompt keeps */
    int64_t cpos;    /* the last interval checkpoint */
    bool armed;      /* the batch was cut at the tolerance */
    bool boundary;   /* the next checkpoint is the first after a restore */
    bool restored;
};

static void apply(struct run *r)
{
    struct legacy *l = r->l;
    struct store *s = r->s;
    const int64_t t = r->n_past > 0 ? (int64_t)r->n_past - 1 : 0;
    if (r->n_past > 0 && r->n_past < r->have && (int64_t)r->have - 1 > t) {
        struct mark *best = NULL;
        for (uint32_t i = 0; i < s->n_ring; i++)
            if ((int64_t)s->ring[i].pos < t && (!best || s->ring[i].pos > best->pos))
                best = &s->ring[i];
        if (best) {
            best->hits++;
            r->n_past = MIN(r->n_past, best->pos + 1);
            r->boundary = r->restored = true;
            l->out->verdict = VERDICT_RESTORED;
            l->out->restored = best->pos;
            if (l->o.family == LEGACY_IK)
                r->cpos = best->pos;
        } else {
            r->n_past = r->have = 0;
            l->out->verdict = VERDICT_FORCED;
            l->out->restored = -1;
        }
    }
    ring_erase_above(l, s, t);
}

/* The interior entry whose loss leaves the smallest gap; first and last stay. */
static uint32_t victim(const struct legacy *l, const struct store *s)
{
    if (l->o.evict == EVICT_FIFO || s->n_ring <= 2)
        return 0;
    if (s->n_ring == 3)
        return 1;
    uint32_t at = 1;
    double least = -1;
    for (uint32_t i = 1; i + 1 < s->n_ring; i++) {
        const struct mark *p = s->ring;
        double v = ((double)p[i].pos - p[i - 1].pos) * ((double)p[i + 1].pos - p[i].pos) /
                   (double)MAX(p[s->n_ring - 1].pos, 1u);
        if (l->o.evict == EVICT_VALUE) {
            if (p[i].boundary)
                continue;
            v *= 1 + 4.0 * p[i].hits;
        }
        if (least < 0 || v < least) {
            least = v;
            at = i;
        }
    }
    return at;
}

/* A checkpoint of the state after r->have tokens.  *made says whether. */
static enum rc create(struct run *r, bool *made, struct err *err)
{
    struct legacy *l = r->l;
    struct store *s = r->s;
    *made = false;
    if (r->have < 64 || (s->n_ring && r->have <= s->ring[s->n_ring - 1].pos + 1))
        return RC_OK;
    while (s->n_ring >= l->o.ring) {
        ring_remove(s, victim(l, s));
        l->out->n_evicted++;
    }
    const enum rc rc = ring_append(l, s, r->have - 1, err);
    if (!rc) {
        s->ring[s->n_ring - 1].boundary = r->boundary;
        r->boundary = false;
        *made = true;
    }
    return rc;
}

static enum rc at_interval(struct run *r, bool loading, struct err *err)
{
    const struct legacy_opts *o = &r->l->o;
    const uint32_t tail = o->ubatch + (uint32_t)MAX(o->tolerance, 0);
    if (loading && o->prompt_policy && r->n_prompt - r->n_past > tail)
        return RC_OK;
    const int64_t pos = (int64_t)r->have - 1;
    if (r->cpos + o->interval > (o->family == LEGACY_PXA ? pos + 1 : pos))
        return RC_OK;
    bool made;
    const enum rc rc = create(r, &made, err);
    if (made)
        r->cpos = pos;
    return rc;
}

static enum rc prefill(struct run *r, struct err *err)
{
    const struct legacy_opts *o = &r->l->o;
    const uint32_t tol = (uint32_t)MAX(o->tolerance, 0);
    while (r->n_past < r->n_prompt) {
        const uint32_t left = r->n_prompt - r->n_past;
        uint32_t take = MIN(o->batch, left);
        if (tol && left > tol && take >= left - tol) {
            take = left - tol;
            r->armed = true;
        }
        r->n_past += take;
        r->have = r->n_past;
        if (r->n_past == r->n_prompt)
            break;
        bool made;
        const enum rc rc = r->armed ? create(r, &made, err) : at_interval(r, true, err);
        if (rc)
            return rc;
    }
    return RC_OK;
}

static enum rc generate(struct run *r, uint32_t n_gen, struct err *err)
{
    const struct legacy_opts *o = &r->l->o;
    bool made;
    enum rc rc = RC_OK;
    if (n_gen && (o->tolerance <= 0 || o->prompt_end))
        rc = create(r, &made, err);
    for (uint32_t k = 2; k <= n_gen && !rc; k++) {
        r->have = r->n_prompt + k - 1;
        rc = at_interval(r, false, err);
    }
    return rc ? rc : create(r, &made, err); /* at the final response */
}

enum rc pxa_serve(struct legacy *l, struct store *s, const token *seq, uint32_t n_prompt,
                  uint32_t n_gen, struct err *err)
{
    const bool ik = l->o.family == LEGACY_IK;
    struct run r = {.l = l,
                    .s = s,
                    .seq = seq,
                    .n_prompt = n_prompt,
                    .have = s->n,
                    .n_past = l->out->lcp,
                    .cpos = ik ? -1 : 0};
    l->out->verdict = !r.n_past ? VERDICT_COLD : VERDICT_APPEND;
    if (ik && r.n_past == n_prompt)
        r.n_past--;
    apply(&r);
    if (r.n_past == n_prompt) { /* one token must be evaluated */
        r.n_past--;
        apply(&r);
    }
    l->out->reused = r.n_past;
    r.have = r.n_past;
    enum rc rc = prefill(&r, err);
    if (!rc)
        rc = generate(&r, n_gen, err);
    return rc ? rc : store_set(s, seq, n_prompt + (n_gen ? n_gen - 1 : 0), err);
}

static double similarity(const struct store *s, uint32_t lcp, uint32_t n)
{
    return 2.0 * lcp / ((double)n + s->n);
}

/* An entry of a hybrid model is of use only if the prompt goes on with it, or a checkpoint of its own lies
 * below the divergence. */
static bool usable(const struct store *p, uint32_t lcp)
{
    if (lcp == p->n)
        return true;
    for (uint32_t i = 0; i < p->n_ring; i++)
        if ((int64_t)p->ring[i].pos < (int64_t)lcp - 1)
            return true;
    return false;
}

enum rc pxa_choose(struct legacy *l, const token *seq, uint32_t n, struct store **out,
                   struct err *err)
{
    struct store *best = NULL, *idle = &l->slots[0];
    double best_sim = 0.1;
    for (uint32_t i = 0; i < l->o.n_slots; i++) {
        struct store *s = &l->slots[i];
        const double sim = s->n ? similarity(s, common_prefix(s->seq, s->n, seq, n), n) : 0;
        if (s->n && sim > best_sim) {
            best = s;
            best_sim = sim;
        }
        if (l->o.victim_cheap ? s->n < idle->n : s->used < idle->used)
            idle = s;
    }
    struct store *s = *out = best ? best : idle;
    if (!l->o.cram_mib)
        return RC_OK;
    const uint32_t lcp = common_prefix(s->seq, s->n, seq, n);
    if (s->n && 2.0 * lcp < s->n) {
        const enum rc rc = park(l, s, err);
        if (rc)
            return rc;
    }
    double top = s->n ? similarity(s, lcp, n) : 0;
    size_t take = SIZE_MAX;
    for (size_t i = 0; i < l->n_parked; i++) {
        const struct store *p = &l->parked[i];
        const uint32_t k = common_prefix(p->seq, p->n, seq, n);
        if (2.0 * k < p->n || similarity(p, k, n) <= top || (l->o.hybrid_usable && !usable(p, k)))
            continue;
        top = similarity(p, k, n);
        take = i;
    }
    if (take != SIZE_MAX)
        parked_take(l, take, s);
    parked_trim(l);
    return RC_OK;
}
