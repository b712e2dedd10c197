/* policy_hold.c - the policy of this server: predict where the next prompt will part, keep what is most
 * likely to save most per byte.
 *
 * Placement: signs of earlier divergences, branch points, end of generation, start of the generation
 * prompt, end of the first message, a ladder of doubling distances from the end.
 * Retention: value = hazard * tokens lost without it / bytes freed (hazard.h).
 * README.md has the reasons and the figures.
 */
#include "cache/policy.h"

#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "cache/cache_int.h"
#include "cache/hazard.h"
#include "cache/signs.h"

enum {
    LADDER = 512,    /* first rung's distance from the end */
    MAX_SIGNS = 16,  /* cuts at signs in one plan */
    DUE_OCTAVES = 14 /* entries are booked at ages 1, 2, 4 .. 8192 */
};

struct hold {
    struct hazard hazard;
    struct signs *signs;
    snap_id due[1 << DUE_OCTAVES]; /* [last % size]: entries with that last, younger than 8192 */
};

static struct hold *hold_of(const struct cache *c)
{
    return c->policy_state;
}

static enum rc hold_init(struct cache *c, struct err *err)
{
    struct hold *h = mem_try_zalloc(sizeof *h);
    c->policy_state = h;
    if (!h)
        return err_set(err, RC_NOMEM, "cache policy: out of memory");
    h->signs = signs_new();
    if (!h->signs || !hazard_init(&h->hazard))
        return err_set(err, RC_NOMEM, "cache policy: out of memory");
    return RC_OK;
}

static void hold_release(struct cache *c)
{
    struct hold *h = hold_of(c);
    if (!h)
        return;
    hazard_release(&h->hazard);
    signs_free(h->signs);
    mem_free(h);
}

static uint64_t hold_bytes(const struct cache *c)
{
    const struct hold *h = hold_of(c);
    return sizeof *h + hazard_bytes(&h->hazard) + signs_bytes(h->signs);
}

/* -- booking --------------------------------------------------------------------------------- */

static uint32_t *due_list(struct cache *c, uint32_t last)
{
    return &hold_of(c)->due[last % COUNT_OF(hold_of(c)->due)];
}

static void due_add(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    uint32_t *head = due_list(c, e->last);
    e->due = true;
    e->due_prev = 0;
    e->due_next = *head;
    if (*head)
        entry_at(c, *head)->due_prev = id;
    *head = id;
}

static void due_drop(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    if (!e->due)
        return;
    if (e->due_prev)
        entry_at(c, e->due_prev)->due_next = e->due_next;
    else
        *due_list(c, e->last) = e->due_next;
    if (e->due_next)
        entry_at(c, e->due_next)->due_prev = e->due_prev;
    e->due = false;
}

/* Books the entry's exposure since it was last booked, each octave of its age where it belongs. */
static void account(struct cache *c, struct entry *e)
{
    uint32_t from = e->booked - e->last;
    const uint32_t to = c->now - e->last;
    while (from < to) {
        const uint32_t octave = from ? 31 - (uint32_t)__builtin_clz(from) : 0;
        const uint32_t end = octave < 31 ? MIN(to, UINT32_C(2) << octave) : to;
        hazard_book(&hold_of(c)->hazard, e->family,
                    hazard_situation(e->kind, e->hits, e->tip, MAX(from, 1)), 0, end - from,
                    c->now);
        from = end;
    }
    e->booked = c->now;
}

static uint32_t situation_now(const struct cache *c, const struct entry *e, bool tip)
{
    return hazard_situation(e->kind, e->hits, tip, MAX(c->now - e->last, 1));
}

/* A live entry stands in the cell of its situation. */
static void take_cell(struct cache *c, snap_id id)
{
    const struct entry *e = entry_at(c, id);
    entry_set_cell(c, id,
                   hazard_ref(&hold_of(c)->hazard, e->family, situation_now(c, e, e->tip), c->now));
}

static void give_cell(struct cache *c, const struct entry *e)
{
    hazard_unref(&hold_of(c)->hazard, e->cell);
}

static void hold_born(struct cache *c, snap_id id)
{
    due_add(c, id);
}

static void hold_gone(struct cache *c, snap_id id)
{
    due_drop(c, id);
}

static void hold_enter(struct cache *c, snap_id id)
{
    take_cell(c, id);
}

static void hold_leave(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    account(c, e);
    give_cell(c, e);
}

static void hold_hit(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    account(c, e);
    hazard_book(&hold_of(c)->hazard, e->family, situation_now(c, e, e->tip), 1, 0, c->now);
    if (entry_is_live(e))
        give_cell(c, e);
    due_drop(c, id);
    e->hits++;
    e->last = e->booked = c->now;
    due_add(c, id);
    if (entry_is_live(e))
        take_cell(c, id);
}

static void hold_tip(struct cache *c, snap_id id, bool tip)
{
    struct entry *e = entry_at(c, id);
    account(c, e);
    give_cell(c, e);
    e->tip = tip;
    take_cell(c, id);
}

static void hold_kind(struct cache *c, snap_id id, enum cut_kind kind)
{
    (void)kind;
    account(c, entry_at(c, id));
}

/* Entries whose age becomes a power of two with this request. */
static void hold_tick(struct cache *c)
{
    hazard_begin(&hold_of(c)->hazard);
    for (uint32_t k = 0; k < DUE_OCTAVES && UINT32_C(1) << k < c->now; k++) {
        snap_id next;
        for (snap_id id = *due_list(c, c->now - (UINT32_C(1) << k)); id; id = next) {
            struct entry *e = entry_at(c, id);
            next = e->due_next;
            account(c, e);
            if (entry_is_live(e)) {
                give_cell(c, e);
                take_cell(c, id);
            }
            if (k < DUE_OCTAVES - 1)
                continue;
            if (entry_is_live(e))
                due_drop(c, id);
            else
                entry_forget(c, id);
        }
    }
}

/* -- learning -------------------------------------------------------------------------------- */

/* The next SIGN_TOKENS tokens of the path walked before, after where this prompt left it; follows whoever
 * was there last.  False when it ends before. */
static bool tokens_after(const struct cache *c, const struct lookup *l, token out[SIGN_TOKENS])
{
    const struct radix *r = &c->tree;
    uint32_t node = l->path->n ? l->path->nodes[l->path->n - 1] : RADIX_ROOT, n = 0;
    for (uint32_t pos = l->lcp; n < SIGN_TOKENS;) {
        const struct radix_node *x = radix_at(r, node);
        while (pos < x->end && n < SIGN_TOKENS)
            out[n++] = x->label[pos++ - x->start];
        if (pos == x->end && n < SIGN_TOKENS) {
            node = x->child;
            if (!node)
                return false;
        }
    }
    return true;
}

static uint64_t family_of(const struct plan_req *r)
{
    for (uint32_t i = 0; i < r->n_hints; i++)
        if (r->hints[i].pos && r->hints[i].role != 'g')
            return XXH3_64bits_withSeed(r->prompt, r->hints[i].pos * sizeof *r->prompt, r->family) |
                   1;
    return r->family ? r->family | 1 : 0;
}

static void hold_observe(struct cache *c, struct active *a, const struct plan_req *r,
                         const struct lookup *l)
{
    struct hold *h = hold_of(c);
    a->family = family_of(r);
    if (l->lcp >= MIN_TOKENS && l->lcp < r->n - 1) {
        token after[SIGN_TOKENS];
        signs_learn(h->signs, r->prompt + l->lcp - SIGN_TOKENS, SIGN_BEFORE);
        if (tokens_after(c, l, after))
            signs_learn(h->signs, after, SIGN_AFTER);
    }
}

/* -- placement ------------------------------------------------------------------------------- */

/* Positions at distances 512, 1024, 2048, .. before end: the nearest boundary at or beyond each, or where
 * there are no messages the position itself. */
static void place_ladder(const struct plan_req *r, uint32_t above, uint32_t end,
                         struct candidates *cs)
{
    uint64_t d = LADDER;
    bool boundaries = false;
    for (uint32_t i = r->n_hints; i-- > 0;) {
        const uint32_t pos = r->hints[i].pos;
        if (r->hints[i].role == 'g' || !pos || pos > end)
            continue;
        boundaries = true;
        if (end - pos < d)
            continue;
        candidates_add(cs, above, r->n, pos, CUT_MESSAGE, 0);
        while (d <= end - pos)
            d *= 2;
    }
    if (!boundaries)
        for (; d < r->n; d *= 2)
            candidates_add(cs, above, r->n, r->n - (uint32_t)d, CUT_LADDER, 0);
}

static void place_grid(const struct plan_req *r, uint32_t start, uint64_t step,
                       struct candidates *cs)
{
    const uint32_t room = PLAN_MAX_CUTS - SPARE_CUTS - cs->n;
    while ((r->n - start) / step + 1 > room) /* doubled until the plan holds it */
        step *= 2;
    for (uint64_t pos = (start / step + 1) * step; pos <= r->n; pos += step)
        candidates_add(cs, start, r->n, (uint32_t)pos, CUT_GRID, 0);
}

static void hold_place(struct cache *c, const struct plan_req *r, const struct lookup *l,
                       struct candidates *cs)
{
    const uint32_t above = MAX(l->start, MIN_TOKENS);
    uint32_t end = r->n, first = 0; /* of the prompt without the generation prompt; of message 1 */
    for (uint32_t i = r->n_hints; i-- > 0;) {
        if (r->hints[i].role == 'g')
            end = r->hints[i].pos;
        else if (r->hints[i].pos)
            first = r->hints[i].pos;
    }
    if (l->lcp > l->start)
        candidates_add(cs, above, r->n, l->lcp, CUT_BRANCH, 0);
    struct sign_match signs[MAX_SIGNS];
    const uint32_t n_signs =
        signs_find(hold_of(c)->signs, r->prompt, r->n, l->start, end, signs, MAX_SIGNS);
    for (uint32_t i = 0; i < n_signs; i++)
        candidates_add(cs, above, r->n, signs[i].pos, CUT_SIGNATURE, signs[i].key);
    /* without a generation prompt the last token stays out: the same prompt sent again starts there and needs
     * that one for its logits */
    candidates_add(cs, above, r->n, MIN(end, r->n - 1), CUT_PROMPT, 0);
    candidates_add(cs, above, r->n, first, CUT_SYSTEM, 0);
    place_ladder(r, above, end, cs);
    if (c->o.step)
        place_grid(r, l->start, c->o.step, cs);
    cs->gen_end = true;
}

/* -- retention ------------------------------------------------------------------------------- */

/* What is there has been paid for; chances are estimates.  Changing places at equal worth only costs copies. */
static const double admit_margin = 1.35;

static bool hold_admit(struct cache *c, const struct entry *e, uint32_t gap, double loss)
{
    const double h = hazard_of(&hold_of(c)->hazard, e->family, situation_now(c, e, true));
    return h * gap > admit_margin * loss;
}

static bool faster_read(const struct cache *c, const struct entry *e)
{
    return c->o.disk_bytes &&
           e->gap > cost_read_tokens(&c->cost, c->o.snap_bytes + e->pos * c->o.token_bytes);
}

/* Worth a write: reading it back takes less time than the tokens at risk, and it has been of use or is likely to
 * be. */
static bool hold_spill(const struct cache *c, const struct entry *e)
{
    const double h = hazard_of(&hold_of(c)->hazard, e->family, situation_now(c, e, e->tip));
    return faster_read(c, e) && (e->hits || h * 256 >= .5);
}

/* Tokens at risk per byte.  In memory, what is on disk or would go there risks no more than being read again. */
static double hold_weight(const struct cache *c, const struct entry *e, enum tier t)
{
    const uint64_t bytes = entry_bytes(c, e, t);
    double risk = e->gap;
    if (t == TIER_RAM && (entry_has(e, TIER_DISK) || faster_read(c, e)))
        risk = MIN(risk, cost_read_tokens(&c->cost, bytes));
    return risk / (double)bytes;
}

static double hold_rate(const struct cache *c, uint32_t cell)
{
    return hazard_rate(&hold_of(c)->hazard, cell, c->now);
}

/* -- for the next start ---------------------------------------------------------------------- */

static void hold_save(const struct cache *c, struct buf *b)
{
    hazard_save(&hold_of(c)->hazard, c->now, b);
    signs_save(hold_of(c)->signs, b);
}

static bool hold_load(struct cache *c, uint32_t now, struct unpack *u)
{
    struct hold *h = hold_of(c);
    struct hazard z = {0};
    struct signs *s = signs_new();
    const bool ok = s && hazard_init(&z) && hazard_load(&z, now, u) && signs_load(s, u);
    hazard_release(ok ? &h->hazard : &z);
    signs_free(ok ? h->signs : s);
    if (ok) {
        h->hazard = z;
        h->signs = s;
    }
    return ok;
}

const struct policy policy_hold = {
    .name = "hold",
    .init = hold_init,
    .release = hold_release,
    .bytes = hold_bytes,
    .tick = hold_tick,
    .observe = hold_observe,
    .place = hold_place,
    .admit = hold_admit,
    .born = hold_born,
    .enter = hold_enter,
    .leave = hold_leave,
    .hit = hold_hit,
    .tip = hold_tip,
    .kind = hold_kind,
    .gone = hold_gone,
    .spill = hold_spill,
    .weight = hold_weight,
    .rate = hold_rate,
    .save = hold_save,
    .load = hold_load,
};
