/* legacy_pxa.c - PXA and ik_llama.cpp over counted state: cache/pxa has the rules, this counts, and adds the
 * RAM store of whole prompts.
 */
#include "lab/legacy_int.h"

static bool on_created(void *ctx, struct mark *m)
{
    note_made(ctx, m->pos);
    return true;
}

static void on_erased(void *ctx, const struct mark *m)
{
    (void)m;
    ((struct legacy *)ctx)->out->n_erased++;
}

static void on_evicted(void *ctx, const struct mark *m)
{
    (void)m;
    ((struct legacy *)ctx)->out->n_evicted++;
}

static void on_restored(void *ctx, const struct mark *m)
{
    (void)ctx;
    (void)m;
}

static void on_forced(void *ctx)
{
    (void)ctx;
}

static struct pxa_rules rules_of(const struct legacy_opts *o)
{
    return (struct pxa_rules){.ik = o->family == LEGACY_IK,
                              .batch = o->batch,
                              .ubatch = o->ubatch,
                              .ring = o->ring,
                              .interval = o->interval,
                              .tolerance = o->tolerance,
                              .evict = o->evict,
                              .prompt_policy = o->prompt_policy,
                              .prompt_end = o->prompt_end,
                              .victim_cheap = o->victim_cheap};
}

enum rc serve_pxa(struct legacy *l, struct slot *s, const token *seq, uint32_t n_prompt,
                  uint32_t n_gen, struct err *err)
{
    const struct pxa_rules rules = rules_of(&l->o);
    const struct pxa_ops ops = {.ctx = l,
                                .created = on_created,
                                .restored = on_restored,
                                .forced = on_forced,
                                .erased = on_erased,
                                .evicted = on_evicted};
    struct pxa_run r = {.rules = &rules, .ops = &ops, .slot = s, .request = l->request};
    pxa_begin(&r, n_prompt, l->out->lcp);
    l->out->verdict = r.verdict;
    l->out->restored = r.restored;
    l->out->reused = r.n_past;
    enum rc rc = RC_OK;
    while (r.n_past < n_prompt && !rc)
        rc = pxa_evaluated(&r, pxa_batch_end(&r), err);
    for (uint32_t k = 1; k <= n_gen && !rc; k++)
        rc = pxa_sampled(&r, k, err);
    if (!rc)
        rc = pxa_end(&r, err);
    return rc ? rc : slot_set(s, seq, n_prompt + (n_gen ? n_gen - 1 : 0), err);
}

/* An entry of a hybrid model is of use only if the prompt goes on with it, or a checkpoint of its own lies
 * below the divergence. */
static bool usable(const struct slot *p, uint32_t lcp)
{
    if (lcp == p->n)
        return true;
    for (uint32_t i = 0; i < p->n_ring; i++)
        if ((int64_t)p->ring[i].pos < (int64_t)lcp - 1)
            return true;
    return false;
}

enum rc choose_pxa(struct legacy *l, const token *seq, uint32_t n, struct slot **out,
                   struct err *err)
{
    const struct pxa_rules rules = rules_of(&l->o);
    struct slot *s = *out = pxa_pick(&rules, l->slots, l->o.n_slots, seq, n);
    if (!l->o.cram_mib)
        return RC_OK;
    const uint32_t lcp = common_prefix(s->seq, s->n, seq, n);
    if (s->n && 2.0 * lcp < s->n) {
        const enum rc rc = park(l, s, err);
        if (rc)
            return rc;
    }
    double top = s->n ? pxa_similarity(s->n, lcp, n) : 0;
    size_t take = SIZE_MAX;
    for (size_t i = 0; i < l->n_parked; i++) {
        const struct slot *p = &l->parked[i];
        const uint32_t k = common_prefix(p->seq, p->n, seq, n);
        if (2.0 * k < p->n || pxa_similarity(p->n, k, n) <= top ||
            (l->o.hybrid_usable && !usable(p, k)))
            continue;
        top = pxa_similarity(p->n, k, n);
        take = i;
    }
    if (take != SIZE_MAX)
        parked_take(l, take, s);
    parked_trim(l);
    return RC_OK;
}
