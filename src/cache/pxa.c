#include "cache/pxa.h"

#include <string.h>

/* ---- levers ---------------------------------------------------------------------------------- */

static const char *const lever_names[2][2] = {{"pxa", "pxa-end"}, {"pxa-policy0", "pxa-both"}};

bool pxa_rules_by_name(const char *name, struct pxa_rules *out)
{
    for (unsigned off = 0; off < 2; off++)
        for (unsigned end = 0; end < 2; end++)
            if (!strcmp(name, lever_names[off][end])) {
                *out = (struct pxa_rules){.batch = 2048,
                                          .ubatch = 512,
                                          .ring = 32,
                                          .interval = 512,
                                          .tolerance = 5,
                                          .prompt_policy = !off,
                                          .prompt_end = end};
                return true;
            }
    return false;
}

const char *pxa_name_of_levers(const char *prompt_policy, const char *prompt_end)
{
    const bool off = prompt_policy && !strcmp(prompt_policy, "0");
    const bool end = prompt_end && *prompt_end && strcmp(prompt_end, "0") != 0;
    return lever_names[off][end];
}

/* ---- slots ----------------------------------------------------------------------------------- */

double pxa_similarity(uint32_t held, uint32_t lcp, uint32_t n)
{
    return 2.0 * lcp / ((double)n + held);
}

struct slot *pxa_pick(const struct pxa_rules *o, struct slot *slots, uint32_t n_slots,
                      const token *prompt, uint32_t n)
{
    struct slot *best = NULL, *idle = NULL;
    double best_sim = 0.1;
    for (uint32_t i = 0; i < n_slots; i++) {
        struct slot *s = &slots[i];
        if (s->busy)
            continue;
        const double sim =
            s->n ? pxa_similarity(s->n, common_prefix(s->seq, s->n, prompt, n), n) : 0;
        if (sim > best_sim) {
            best = s;
            best_sim = sim;
        }
        if (!idle || (o->victim_cheap ? s->n < idle->n : s->used < idle->used))
            idle = s;
    }
    return best ? best : idle;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void erase_above(struct pxa_run *r, int64_t limit)
{
    struct slot *s = r->slot;
    for (uint32_t i = 0; i < s->n_ring;) {
        if ((int64_t)s->ring[i].pos <= limit) {
            i++;
            continue;
        }
        r->ops->erased(r->ops->ctx, &s->ring[i]);
        slot_remove_mark(s, i);
    }
}

static void apply(struct pxa_run *r)
{
    struct slot *s = r->slot;
    const int64_t t = r->n_past > 0 ? (int64_t)r->n_past - 1 : 0;
    if (r->n_past > 0 && r->n_past < r->have && (int64_t)r->have - 1 > t) {
        struct mark *best = NULL;
        for (uint32_t i = 0; i < s->n_ring; i++)
            if ((int64_t)s->ring[i].pos < t && (!best || s->ring[i].pos > best->pos))
                best = &s->ring[i];
        if (best) {
            best->hits++;
            r->ops->restored(r->ops->ctx, best);
            r->n_past = MIN(r->n_past, best->pos + 1);
            r->boundary = true;
            r->verdict = VERDICT_RESTORED;
            r->restored = best->pos;
            if (r->rules->ik)
                r->cpos = best->pos;
        } else {
            r->ops->forced(r->ops->ctx);
            r->n_past = r->have = 0;
            r->verdict = VERDICT_FORCED;
            r->restored = -1;
        }
    }
    erase_above(r, t);
}

/* The interior entry whose loss leaves the smallest gap; first and last stay. */
static uint32_t victim(const struct pxa_rules *o, const struct slot *s)
{
    if (o->evict == EVICT_FIFO || s->n_ring <= 2)
        return 0;
    if (s->n_ring == 3)
        return 1;
    uint32_t at = 1;
    double least = -1;
    for (uint32_t i = 1; i + 1 < s->n_ring; i++) {
        const struct mark *p = s->ring;
        double v = ((double)p[i].pos - p[i - 1].pos) * ((double)p[i + 1].pos - p[i].pos) /
                   (double)MAX(p[s->n_ring - 1].pos, 1u);
        if (o->evict == EVICT_VALUE) {
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
static enum rc create(struct pxa_run *r, enum mark_kind kind, bool *made, struct err *err)
{
    struct slot *s = r->slot;
    *made = false;
    if (!r->rules->ring || r->have < 64 || (s->n_ring && r->have <= s->ring[s->n_ring - 1].pos + 1))
        return RC_OK;
    while (s->n_ring >= r->rules->ring) {
        const uint32_t i = victim(r->rules, s);
        r->ops->evicted(r->ops->ctx, &s->ring[i]);
        slot_remove_mark(s, i);
    }
    struct mark *m = slot_add_mark(s, r->have - 1, r->request);
    if (!m)
        return err_set(err, RC_NOMEM, "no memory for a checkpoint");
    m->kind = kind;
    m->boundary = r->boundary;
    if (!r->ops->created(r->ops->ctx, m)) {
        slot_remove_mark(s, s->n_ring - 1);
        return RC_OK;
    }
    r->boundary = false;
    *made = true;
    return RC_OK;
}

static enum rc at_interval(struct pxa_run *r, bool loading, struct err *err)
{
    const struct pxa_rules *o = r->rules;
    const uint32_t tail = o->ubatch + (uint32_t)MAX(o->tolerance, 0);
    if (loading && o->prompt_policy && r->n_prompt - r->n_past > tail)
        return RC_OK;
    const int64_t pos = (int64_t)r->have - 1;
    if (r->cpos + o->interval > (o->ik ? pos : pos + 1))
        return RC_OK;
    bool made;
    const enum rc rc = create(r, MARK_INTERVAL, &made, err);
    if (made)
        r->cpos = pos;
    return rc;
}

/* ---- one request ----------------------------------------------------------------------------- */

void pxa_begin(struct pxa_run *r, uint32_t n_prompt, uint32_t lcp)
{
    const bool ik = r->rules->ik;
    r->n_prompt = n_prompt;
    r->have = r->slot->n;
    r->n_past = lcp;
    r->cpos = ik ? -1 : 0;
    r->restored = -1;
    r->verdict = lcp ? VERDICT_APPEND : VERDICT_COLD;
    if (ik && r->n_past == n_prompt) {
        r->n_past--;
        r->one_more = true;
    }
    apply(r);
    if (r->n_past == n_prompt) {
        r->n_past--;
        r->one_more = true;
        apply(r);
    }
    r->have = r->n_past;
}

static uint32_t tolerance(const struct pxa_run *r)
{
    return (uint32_t)MAX(r->rules->tolerance, 0);
}

uint32_t pxa_batch_end(const struct pxa_run *r)
{
    const uint32_t tol = tolerance(r), left = r->n_prompt - r->n_past;
    const uint32_t take = MIN(r->rules->batch, left);
    return r->n_past + (left > tol ? MIN(take, left - tol) : take);
}

enum rc pxa_evaluated(struct pxa_run *r, uint32_t pos, struct err *err)
{
    bool made;
    r->n_past = r->have = pos;
    if (pos == r->n_prompt)
        return RC_OK;
    r->armed |= r->n_prompt - pos == tolerance(r);
    return r->armed ? create(r, MARK_TAIL, &made, err) : at_interval(r, true, err);
}

enum rc pxa_sampled(struct pxa_run *r, uint32_t k, struct err *err)
{
    bool made;
    r->have = r->n_prompt + k - 1;
    if (k > 1)
        return at_interval(r, false, err);
    return r->rules->tolerance <= 0 || r->rules->prompt_end ? create(r, MARK_PROMPT_END, &made, err)
                                                            : RC_OK;
}

enum rc pxa_end(struct pxa_run *r, struct err *err)
{
    bool made;
    return create(r, MARK_FINAL, &made, err);
}
