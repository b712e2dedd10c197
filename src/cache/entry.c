/* entry.c - entries on the token tree.
 *
 * Each node keeps two lists of the entries that end in its edge, live ones and ghosts, deepest first.  Live
 * entries stand in layers: all of them in LAYER_ANY, those with a copy in memory in LAYER_RAM, those with one
 * on disk in LAYER_DISK (without a disk the first is the second as well: c->ram).  For each layer a node
 * counts n_own live entries in the edge, n_live in the edge and below.  From these follow
 *
 *   kv      n_live == 0: nothing;  n_live > n_own: the whole edge;  else: up to its deepest live entry
 *   pages   of a node: those whose end lies in the edge's resident part, and the partial one at the end of a
 *           path that nobody continues.  The sum over nodes is each page of the union of all paths, once.
 *   tip     deepest of its node's list and nothing live below the node (any layer)
 *   gap     distance to the nearest live entry above (any layer)
 *
 * gap, tip and pages of an entry depend on its nearest neighbours only, and are brought up to date when one of
 * those comes or goes (refresh_around).
 */
#include "cache/cache_int.h"

#include <string.h>

#include "base/mem.h"

static struct radix_node *node_at(const struct cache *c, uint32_t id)
{
    return radix_at(&c->tree, id);
}

/* -- tables ---------------------------------------------------------------------------------- */

bool entries_init(struct cache *c)
{
    c->entries_used = 1;
    if (!mem_grow(&c->entries, &c->entries_cap, 64, sizeof *c->entries))
        return false;
    c->entries[0] = (struct entry){0};
    return true;
}

void entries_release(struct cache *c)
{
    mem_free(c->entries);
    ranks_release(&c->ranks[TIER_RAM]);
    ranks_release(&c->ranks[TIER_DISK]);
}

/* Deeper first. */
static void list_add(struct cache *c, uint32_t *head, snap_id id)
{
    const uint32_t pos = entry_at(c, id)->pos;
    while (*head && entry_at(c, *head)->pos > pos)
        head = &entry_at(c, *head)->next;
    entry_at(c, id)->next = *head;
    *head = id;
}

static void list_drop(struct cache *c, uint32_t *head, snap_id id)
{
    while (*head != id)
        head = &entry_at(c, *head)->next;
    *head = entry_at(c, id)->next;
}

static void ghosts_add(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    e->older = c->ghost_newest;
    e->newer = 0;
    if (e->older)
        entry_at(c, e->older)->newer = id;
    else
        c->ghost_oldest = id;
    c->ghost_newest = id;
    c->n_ghosts++;
    list_add(c, &node_at(c, e->node)->ghost, id);
}

static void ghosts_drop(struct cache *c, snap_id id)
{
    const struct entry *e = entry_at(c, id);
    if (e->older)
        entry_at(c, e->older)->newer = e->newer;
    else
        c->ghost_oldest = e->newer;
    if (e->newer)
        entry_at(c, e->newer)->older = e->older;
    else
        c->ghost_newest = e->older;
    c->n_ghosts--;
    list_drop(c, &node_at(c, e->node)->ghost, id);
}

void entry_forget(struct cache *c, snap_id id)
{
    ghosts_drop(c, id);
    if (c->policy->gone)
        c->policy->gone(c, id);
    *entry_at(c, id) = (struct entry){.next = c->entries_free};
    c->entries_free = id;
}

snap_id entry_find(const struct cache *c, uint32_t pos)
{
    const uint32_t at = radix_path_at(&c->tree, &c->path, pos);
    const struct radix_node *x = node_at(c, c->path.nodes[at]);
    const uint32_t heads[2] = {x->live, x->ghost};
    for (int i = 0; i < 2; i++)
        for (snap_id id = heads[i]; id && entry_at(c, id)->pos >= pos; id = entry_at(c, id)->next)
            if (entry_at(c, id)->pos == pos)
                return id;
    return 0;
}

snap_id entry_new_ghost(struct cache *c, uint32_t pos, enum cut_kind kind, uint64_t family,
                        enum ghost_why why)
{
    snap_id id = c->entries_free;
    if (id)
        c->entries_free = entry_at(c, id)->next;
    else if (mem_grow(&c->entries, &c->entries_cap, (size_t)c->entries_used + 1,
                      sizeof *c->entries))
        id = c->entries_used++;
    else
        return 0;
    *entry_at(c, id) = (struct entry){
        .node = c->path.nodes[radix_path_at(&c->tree, &c->path, pos)],
        .pos = pos,
        .family = family,
        .last = c->now,
        .booked = c->now,
        .state = ENTRY_GHOST,
        .kind = (uint8_t)kind,
        .why = (uint8_t)why,
        .tip = true,
    };
    ghosts_add(c, id);
    if (c->policy->born)
        c->policy->born(c, id);
    return id;
}

/* -- neighbours ------------------------------------------------------------------------------ */

static enum layer layer_of(const struct cache *c, enum tier tier)
{
    return tier == TIER_RAM ? c->ram : LAYER_DISK;
}

static bool in_layer(const struct entry *e, enum layer l)
{
    return l == LAYER_ANY || e->tiers & 1u << l;
}

/* First of a list of live entries that is in the layer. */
static snap_id first_in(const struct cache *c, snap_id id, enum layer l)
{
    while (id && !in_layer(entry_at(c, id), l))
        id = entry_at(c, id)->next;
    return id;
}

static snap_id above_in(const struct cache *c, uint32_t node, uint32_t pos, enum layer l)
{
    for (snap_id id = first_in(c, node_at(c, node)->live, l); id;
         id = first_in(c, entry_at(c, id)->next, l))
        if (entry_at(c, id)->pos < pos)
            return id;
    while ((node = node_at(c, node)->parent) != 0)
        if (node_at(c, node)->at[l].n_own)
            return first_in(c, node_at(c, node)->live, l);
    return 0;
}

snap_id entry_above(const struct cache *c, uint32_t node, uint32_t pos)
{
    return above_in(c, node, pos, LAYER_ANY);
}

static bool tip_in(const struct cache *c, snap_id id, enum layer l)
{
    const struct radix_node *x = node_at(c, entry_at(c, id)->node);
    return first_in(c, x->live, l) == id && x->at[l].n_live == x->at[l].n_own;
}

/* Pages freed in the layer if the entry went.  A tip's path is dropped back to the nearest entry above or to where
 * another live path goes on, whichever is deeper. */
static uint32_t pages_in(const struct cache *c, snap_id id, enum layer l)
{
    const struct entry *e = entry_at(c, id);
    const uint32_t page = c->o.page_tokens, up_to = (uint32_t)ceil_div(e->pos, page);
    if (!tip_in(c, id, l))
        return 0;
    uint32_t node = e->node, back = 0;
    bool continued = false; /* someone keeps the page that back lies in */
    const snap_id above = first_in(c, e->next, l);
    if (above) {
        back = entry_at(c, above)->pos;
    } else {
        while ((node = node_at(c, node)->parent) != 0) {
            const struct radix_node *x = node_at(c, node);
            if (x->at[l].n_live == 1)
                continue;
            continued = x->at[l].n_live > 1 + x->at[l].n_own;
            back = continued ? x->end : entry_at(c, first_in(c, x->live, l))->pos;
            break;
        }
    }
    return up_to - (uint32_t)(continued ? back / page : ceil_div(back, page));
}

static void refresh(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    const bool tip = tip_in(c, id, LAYER_ANY);
    if (tip != e->tip) {
        if (c->policy->tip)
            c->policy->tip(c, id, tip);
        e->tip = tip;
    }
    const snap_id above = entry_above(c, e->node, e->pos);
    e->gap = e->pos - (above ? entry_at(c, above)->pos : 0);
    for (enum tier t = TIER_RAM; t < N_TIERS; t++)
        if (entry_has(e, t))
            e->pages[t] = pages_in(c, id, layer_of(c, t));
    entry_reweigh(c, id);
}

static snap_id shallowest(const struct cache *c, const struct radix_node *x, enum layer l)
{
    snap_id last = 0;
    for (snap_id id = first_in(c, x->live, l); id; id = first_in(c, entry_at(c, id)->next, l))
        last = id;
    return last;
}

/* The layer's entries right below (node, pos): none stands between. */
static void refresh_below(struct cache *c, uint32_t node, uint32_t pos, enum layer l)
{
    const struct radix_node *top = node_at(c, node);
    snap_id deeper = 0;
    for (snap_id id = first_in(c, top->live, l); id && entry_at(c, id)->pos > pos;
         id = first_in(c, entry_at(c, id)->next, l))
        deeper = id;
    if (deeper) {
        refresh(c, deeper);
        return;
    }
    uint32_t left = top->at[l].n_live - top->at[l].n_own; /* live entries not yet passed */
    for (uint32_t n = top->child; left;) {
        const struct radix_node *x = node_at(c, n);
        if (x->at[l].n_live && !x->at[l].n_own) {
            n = x->child;
            continue;
        }
        if (x->at[l].n_own) {
            refresh(c, shallowest(c, x, l));
            left -= x->at[l].n_live;
        }
        while (left && !node_at(c, n)->next)
            n = node_at(c, n)->parent;
        n = node_at(c, n)->next;
    }
}

/* The layer's one entry below x's edge, not counting the child but. */
static snap_id lone_below(const struct cache *c, const struct radix_node *x, uint32_t but,
                          enum layer l)
{
    for (;;) {
        uint32_t n = x->child;
        while (n == but || !node_at(c, n)->at[l].n_live)
            n = node_at(c, n)->next;
        x = node_at(c, n);
        if (x->at[l].n_own)
            return first_in(c, x->live, l);
    }
}

/* An entry at (node, pos) has come into the layer, or gone: here = 1 or 0.  Whose gap, pages or tip may have
 * changed: the entry above; those right below; and where its path meets others', a single path that lost or won
 * a companion. */
static void refresh_around(struct cache *c, uint32_t node, uint32_t pos, enum layer l,
                           uint32_t here)
{
    const snap_id above = above_in(c, node, pos, l);
    if (above)
        refresh(c, above);
    refresh_below(c, node, pos, l);
    uint32_t meet = node, from = 0;
    while (meet && node_at(c, meet)->at[l].n_live == here) {
        from = meet;
        meet = node_at(c, meet)->parent;
    }
    if (!meet || meet == node || meet == RADIX_ROOT)
        return;
    const struct radix_node *x = node_at(c, meet);
    if (x->at[l].n_live - x->at[l].n_own == here + 1)
        refresh(c, lone_below(c, x, from, l));
}

static bool has_payload(const struct entry *e)
{
    return e->state == ENTRY_LIVE && entry_has(e, TIER_RAM) && !e->fetching && !e->broken;
}

snap_id entry_above_in_memory(const struct cache *c, snap_id id)
{
    do
        id = above_in(c, entry_at(c, id)->node, entry_at(c, id)->pos, c->ram);
    while (id && !has_payload(entry_at(c, id)));
    return id;
}

snap_id entry_any_below(const struct cache *c, uint32_t node, uint32_t but)
{
    const enum layer l = c->ram;
    for (uint32_t n = node_at(c, node)->child; n;) {
        const struct radix_node *x = node_at(c, n);
        for (snap_id id = n == but ? 0 : x->live; id; id = entry_at(c, id)->next)
            if (has_payload(entry_at(c, id)))
                return id;
        if (n != but && x->at[l].n_live > x->at[l].n_own) {
            n = x->child;
            continue;
        }
        while (n != node && !node_at(c, n)->next)
            n = node_at(c, n)->parent;
        n = n == node ? 0 : node_at(c, n)->next;
    }
    return 0;
}

snap_id entry_donor(const struct cache *c, snap_id id, uint32_t *shared)
{
    const struct entry *e = entry_at(c, id);
    const enum layer l = c->ram;
    /* The deepest node of the path with another one in or below it. */
    uint32_t from = 0;
    for (uint32_t n = e->node; n; from = n, n = node_at(c, n)->parent) {
        const struct radix_node *x = node_at(c, n);
        const uint32_t own_branch = from ? node_at(c, from)->at[l].n_live : 0;
        const snap_id below =
            x->at[l].n_live > x->at[l].n_own + own_branch ? entry_any_below(c, n, from) : 0;
        if (below) {
            *shared = MIN(x->end, e->pos);
            return *shared ? below : 0;
        }
        for (snap_id o = x->live; o; o = entry_at(c, o)->next)
            if (o != id && has_payload(entry_at(c, o))) {
                *shared = MIN(entry_at(c, o)->pos, e->pos);
                return o;
            }
    }
    *shared = 0;
    return 0;
}

/* -- live ------------------------------------------------------------------------------------ */

static uint64_t node_pages(const struct cache *c, const struct radix_node *x, enum layer l)
{
    const uint32_t page = c->o.page_tokens;
    const struct radix_layer *y = &x->at[l];
    if (!y->n_live)
        return 0;
    return y->kv / page - x->start / page + (y->n_live == y->n_own && y->kv % page != 0);
}

static void node_set(struct cache *c, struct radix_node *x, enum layer l)
{
    struct radix_layer *y = &x->at[l];
    if (!y->n_live)
        y->kv = x->start;
    else if (y->n_live > y->n_own)
        y->kv = x->end;
    else
        y->kv = entry_at(c, first_in(c, x->live, l))->pos;
}

/* by = +1 or -1 entries of the layer in node's edge; lists and tiers say so already. */
static void count(struct cache *c, uint32_t node, enum layer l, int by)
{
    for (uint32_t n = node; n; n = node_at(c, n)->parent) {
        struct radix_node *x = node_at(c, n);
        c->n_pages[l] -= node_pages(c, x, l);
        x->at[l].n_own += n == node ? (uint32_t)by : 0;
        x->at[l].n_live += (uint32_t)by;
        node_set(c, x, l);
        c->n_pages[l] += node_pages(c, x, l);
    }
}

void entry_join(struct cache *c, snap_id id, enum tier t)
{
    struct entry *e = entry_at(c, id);
    e->tiers |= (uint8_t)(1u << layer_bit(t));
    e->slot[t] = ranks_add(&c->ranks[t], id);
    ranks_at(c, e, t)->cell = e->cell;
    ranks_at(c, e, t)->barred = e->pins > 0;
    const enum layer l = layer_of(c, t);
    if (l == LAYER_ANY)
        return;
    count(c, e->node, l, 1);
    refresh(c, id);
    refresh_around(c, e->node, e->pos, l, 1);
}

void entry_part(struct cache *c, snap_id id, enum tier t)
{
    struct entry *e = entry_at(c, id);
    e->tiers &= (uint8_t) ~(1u << layer_bit(t));
    const snap_id moved = ranks_drop(&c->ranks[t], e->slot[t]);
    entry_at(c, moved)->slot[t] = e->slot[t];
    const enum layer l = layer_of(c, t);
    if (l == LAYER_ANY)
        return;
    count(c, e->node, l, -1);
    if (e->tiers)
        refresh(c, id);
    refresh_around(c, e->node, e->pos, l, 0);
}

void entry_enter(struct cache *c, snap_id id, enum tier t)
{
    struct entry *e = entry_at(c, id);
    ghosts_drop(c, id);
    e->state = t == TIER_RAM ? ENTRY_PLANNED : ENTRY_LIVE;
    e->tiers = 0;
    c->n_live++;
    list_add(c, &node_at(c, e->node)->live, id);
    count(c, e->node, LAYER_ANY, 1);
    if (c->policy->enter)
        c->policy->enter(c, id);
    entry_join(c, id, t);
    refresh(c, id);
    refresh_around(c, e->node, e->pos, LAYER_ANY, 1);
}

void entry_leave(struct cache *c, snap_id id, enum ghost_why why, uint64_t now_ns)
{
    struct entry *e = entry_at(c, id);
    if (c->policy->leave)
        c->policy->leave(c, id);
    for (enum tier t = TIER_RAM; t < N_TIERS; t++)
        if (entry_has(e, t))
            entry_part(c, id, t);
    c->n_live--;
    c->n_pins -= e->pins > 0;
    e->pins = 0;
    e->user_pin = e->fetching = e->writing = e->broken = false;
    e->state = ENTRY_GHOST;
    e->why = (uint8_t)why;
    e->gone_ns = now_ns;
    list_drop(c, &node_at(c, e->node)->live, id);
    count(c, e->node, LAYER_ANY, -1);
    ghosts_add(c, id);
    refresh_around(c, e->node, e->pos, LAYER_ANY, 0);
}

void entry_pin(struct cache *c, snap_id id, int by)
{
    struct entry *e = entry_at(c, id);
    c->n_pins -= e->pins > 0;
    e->pins += (uint32_t)by;
    c->n_pins += e->pins > 0;
    for (enum tier t = TIER_RAM; t < N_TIERS; t++)
        if (entry_has(e, t))
            ranks_at(c, e, t)->barred = e->pins > 0;
    entry_revalue(c, id);
}

uint32_t entry_resident(const struct cache *c, uint32_t node, uint32_t pos, enum tier t,
                        uint64_t *missing)
{
    const enum layer l = layer_of(c, t);
    const uint32_t page = c->o.page_tokens;
    while (node && !node_at(c, node)->at[l].n_live)
        node = node_at(c, node)->parent;
    if (!node) {
        *missing = ceil_div(pos, page);
        return 0;
    }
    const struct radix_layer *y = &node_at(c, node)->at[l];
    *missing = 0;
    if (y->kv < pos)
        *missing =
            ceil_div(pos, page) - (y->n_live == y->n_own ? ceil_div(y->kv, page) : y->kv / page);
    return MIN(y->kv, pos);
}

uint64_t entry_cost(const struct cache *c, uint32_t node, uint32_t pos, enum tier t)
{
    uint64_t missing;
    entry_resident(c, node, pos, t, &missing);
    return entry_own_bytes(c, t) + missing * c->page_bytes;
}

uint64_t entry_bytes(const struct cache *c, const struct entry *e, enum tier t)
{
    return entry_own_bytes(c, t) + e->pages[t] * c->page_bytes;
}

/* -- value ----------------------------------------------------------------------------------- */

static void renew(struct cache *c, enum tier t)
{
    ranks_renew(&c->ranks[t], c->now, c->policy->rate, c);
}

double entry_value(struct cache *c, snap_id id, enum tier t)
{
    renew(c, t);
    return ranks_at(c, entry_at(c, id), t)->value;
}

/* Before the first question of a request nothing needs to be up to date: chances are not read while they are still
 * being booked. */
void entry_revalue(struct cache *c, snap_id id)
{
    const struct entry *e = entry_at(c, id);
    for (enum tier t = TIER_RAM; t < N_TIERS; t++)
        if (entry_has(e, t) && c->ranks[t].epoch == c->now)
            ranks_update(&c->ranks[t], e->slot[t], c->policy->rate, c);
}

void entry_reweigh(struct cache *c, snap_id id)
{
    const struct entry *e = entry_at(c, id);
    for (enum tier t = TIER_RAM; t < N_TIERS; t++)
        if (entry_has(e, t))
            ranks_at(c, e, t)->weight = c->policy->weight ? c->policy->weight(c, e, t) : 1;
    entry_revalue(c, id);
}

void entry_set_cell(struct cache *c, snap_id id, uint32_t cell)
{
    struct entry *e = entry_at(c, id);
    e->cell = cell;
    for (enum tier t = TIER_RAM; t < N_TIERS; t++)
        if (entry_has(e, t))
            ranks_at(c, e, t)->cell = cell;
    entry_revalue(c, id);
}

snap_id entry_least(struct cache *c, enum tier t, snap_id but)
{
    renew(c, t);
    const uint32_t slot = ranks_least(&c->ranks[t]);
    const snap_id least = slot == UINT32_MAX ? 0 : c->ranks[t].list[slot].id;
    if (!but || entry_at(c, but)->pins != 1 || !entry_has(entry_at(c, but), t))
        return least;
    const struct rank *b = ranks_at(c, entry_at(c, but), t);
    if (!least || b->value < c->ranks[t].list[slot].value ||
        (b->value == c->ranks[t].list[slot].value && but < least))
        return but;
    return least;
}

double entry_loss(struct cache *c, enum tier t, uint64_t need, snap_id but)
{
    double loss = 0;
    snap_id hidden = 0; /* a list by newer, which only ghosts use otherwise */
    for (uint64_t freed = 0; freed < need;) {
        const snap_id id = entry_least(c, t, but);
        if (!id)
            break;
        struct entry *e = entry_at(c, id);
        loss += ranks_at(c, e, t)->value * (double)entry_bytes(c, e, t);
        freed += entry_bytes(c, e, t);
        if (id == but) {
            but = 0;
            continue;
        }
        ranks_hide(&c->ranks[t], e->slot[t]);
        e->newer = hidden;
        hidden = id;
    }
    for (snap_id next; hidden; hidden = next) {
        next = entry_at(c, hidden)->newer;
        ranks_show(&c->ranks[t], entry_at(c, hidden)->slot[t]);
    }
    return loss;
}

uint64_t entry_pinned_bytes(struct cache *c, snap_id but)
{
    const uint32_t page = c->o.page_tokens, mark = ++c->mark;
    const struct ranks *r = &c->ranks[TIER_RAM];
    uint64_t bytes = 0;
    for (uint32_t i = 0, left = c->n_pins; i < r->n && left; i++) {
        const struct entry *e = entry_at(c, r->list[i].id);
        if (!e->pins)
            continue;
        left--;
        if (e->pins <= (r->list[i].id == but))
            continue;
        /* what earlier ones share with this path; two that end in one edge are both counted from its start,
         * so the sum is an upper bound */
        uint32_t n = e->node, back = 0;
        for (uint32_t y = node_at(c, n)->parent; y; y = node_at(c, y)->parent) {
            if (node_at(c, y)->mark == mark) {
                back = node_at(c, y)->end;
                break;
            }
            node_at(c, y)->mark = mark;
        }
        bytes += c->o.snap_bytes + (ceil_div(e->pos, page) - back / page) * c->page_bytes;
    }
    return bytes;
}

/* -- the tree's hooks ------------------------------------------------------------------------ */

/* What ends at or before upper's end moves there; the lists run from deep to shallow. */
static void split_list(struct cache *c, uint32_t *lower_head, uint32_t *upper_head, uint32_t at,
                       uint32_t upper)
{
    while (*lower_head && entry_at(c, *lower_head)->pos > at)
        lower_head = &entry_at(c, *lower_head)->next;
    *upper_head = *lower_head;
    *lower_head = 0;
    for (snap_id id = *upper_head; id; id = entry_at(c, id)->next)
        entry_at(c, id)->node = upper;
}

static void on_split(void *ctx, uint32_t upper, uint32_t lower)
{
    struct cache *c = ctx;
    struct radix_node *u = node_at(c, upper), *x = node_at(c, lower);
    split_list(c, &x->ghost, &u->ghost, u->end, upper);
    split_list(c, &x->live, &u->live, u->end, upper);
    u->done = MIN(x->done, u->end);
    x->done = MAX(x->done, x->start);
    for (enum layer l = LAYER_ANY; l < N_LAYERS; l++) {
        uint32_t moved = 0;
        for (snap_id id = u->live; id; id = entry_at(c, id)->next)
            moved += in_layer(entry_at(c, id), l);
        u->at[l].n_own = moved;
        u->at[l].n_live = x->at[l].n_live;
        x->at[l].n_own -= moved;
        x->at[l].n_live -= moved;
        node_set(c, u, l);
        node_set(c, x, l);
    }
}

static void join_list(struct cache *c, uint32_t *lower_head, uint32_t upper_head, uint32_t lower)
{
    while (*lower_head)
        lower_head = &entry_at(c, *lower_head)->next;
    *lower_head = upper_head;
    for (snap_id id = upper_head; id; id = entry_at(c, id)->next)
        entry_at(c, id)->node = lower;
}

static void on_merge(void *ctx, uint32_t upper, uint32_t lower)
{
    struct cache *c = ctx;
    const struct radix_node *u = node_at(c, upper);
    struct radix_node *x = node_at(c, lower);
    join_list(c, &x->ghost, u->ghost, lower);
    join_list(c, &x->live, u->live, lower);
    for (enum layer l = LAYER_ANY; l < N_LAYERS; l++) {
        if (!x->at[l].n_live)
            x->at[l].kv = u->at[l].kv;
        x->at[l].n_own += u->at[l].n_own;
        x->at[l].n_live = u->at[l].n_live;
    }
    if (x->done == x->start)
        x->done = u->done;
}

static void on_remove(void *ctx, uint32_t leaf)
{
    struct cache *c = ctx;
    while (node_at(c, leaf)->ghost)
        entry_forget(c, node_at(c, leaf)->ghost);
}

const struct radix_hooks entry_hooks = {.split = on_split, .merge = on_merge, .remove = on_remove};
