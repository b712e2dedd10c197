/* entry.c - entries on the token tree.
 *
 * Each node keeps two lists of the entries that end in its edge, live ones and ghosts, deepest first, and
 * counts: n_own live entries in the edge, n_live in the edge and below.  From these follow
 *
 *   kv      n_live == 0: nothing;  n_live > n_own: the whole edge;  else: up to its deepest live entry
 *   pages   of a node: those whose end lies in the edge's resident part, and the partial one at the end of a
 *           path that nobody continues.  The sum over nodes is each page of the union of all paths, once.
 *   tip     deepest of its node's list and nothing live below the node
 *   gap     distance to the nearest live entry above
 *
 * gap, pages and tip of an entry depend on its nearest neighbours only, and are brought up to date when one of
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
    ranks_release(&c->ranks);
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

snap_id entry_above(const struct cache *c, uint32_t node, uint32_t pos)
{
    for (snap_id id = node_at(c, node)->live; id; id = entry_at(c, id)->next)
        if (entry_at(c, id)->pos < pos)
            return id;
    while ((node = node_at(c, node)->parent) != 0)
        if (node_at(c, node)->live)
            return node_at(c, node)->live;
    return 0;
}

/* Pages freed if the tip e went: its path is dropped back to the nearest entry above or to where another live
 * path goes on, whichever is deeper. */
static uint32_t pages_of_tip(const struct cache *c, const struct entry *e)
{
    const uint32_t page = c->o.page_tokens, up_to = (uint32_t)ceil_div(e->pos, page);
    uint32_t node = e->node, back = 0;
    bool continued = false; /* someone keeps the page that back lies in */
    if (e->next) {
        back = entry_at(c, e->next)->pos;
    } else {
        while ((node = node_at(c, node)->parent) != 0) {
            const struct radix_node *x = node_at(c, node);
            if (x->n_live == 1)
                continue;
            continued = x->n_live > 1 + x->n_own;
            back = continued ? x->end : entry_at(c, x->live)->pos;
            break;
        }
    }
    return up_to - (uint32_t)(continued ? back / page : ceil_div(back, page));
}

static void refresh(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    const struct radix_node *x = node_at(c, e->node);
    const bool tip = x->live == id && x->n_live == x->n_own;
    if (tip != e->tip) {
        if (c->policy->tip)
            c->policy->tip(c, id, tip);
        e->tip = tip;
    }
    const snap_id above = entry_above(c, e->node, e->pos);
    e->gap = e->pos - (above ? entry_at(c, above)->pos : 0);
    e->pages = tip ? pages_of_tip(c, e) : 0;
    entry_rank(c, e)->weight = c->policy->weight ? c->policy->weight(c, e) : 1;
    entry_revalue(c, id);
}

static snap_id shallowest(const struct cache *c, const struct radix_node *x)
{
    snap_id id = x->live;
    while (entry_at(c, id)->next)
        id = entry_at(c, id)->next;
    return id;
}

/* The live entries right below (node, pos): nothing live stands between. */
static void refresh_below(struct cache *c, uint32_t node, uint32_t pos)
{
    const struct radix_node *top = node_at(c, node);
    snap_id deeper = 0;
    for (snap_id id = top->live; id && entry_at(c, id)->pos > pos; id = entry_at(c, id)->next)
        deeper = id;
    if (deeper) {
        refresh(c, deeper);
        return;
    }
    uint32_t left = top->n_live - top->n_own; /* live entries not yet passed */
    for (uint32_t n = top->child; left;) {
        const struct radix_node *x = node_at(c, n);
        if (x->n_live && !x->n_own) {
            n = x->child;
            continue;
        }
        if (x->n_own) {
            refresh(c, shallowest(c, x));
            left -= x->n_live;
        }
        while (left && !node_at(c, n)->next)
            n = node_at(c, n)->parent;
        n = node_at(c, n)->next;
    }
}

/* The one live entry below x's edge, not counting the child but. */
static snap_id lone_below(const struct cache *c, const struct radix_node *x, uint32_t but)
{
    for (;;) {
        uint32_t n = x->child;
        while (n == but || !node_at(c, n)->n_live)
            n = node_at(c, n)->next;
        x = node_at(c, n);
        if (x->n_own)
            return x->live;
    }
}

snap_id entry_any_below(const struct cache *c, uint32_t node, uint32_t but)
{
    for (uint32_t n = node_at(c, node)->child; n;) {
        const struct radix_node *x = node_at(c, n);
        for (snap_id id = n == but ? 0 : x->live; id; id = entry_at(c, id)->next)
            if (entry_at(c, id)->state == ENTRY_LIVE)
                return id;
        if (n != but && x->n_live > x->n_own) {
            n = x->child;
            continue;
        }
        while (n != node && !node_at(c, n)->next)
            n = node_at(c, n)->parent;
        n = n == node ? 0 : node_at(c, n)->next;
    }
    return 0;
}

/* An entry at (node, pos) has come, or gone: here = 1 or 0.  Whose gap, pages or tip may have changed:
 * the entry above; those right below; and where its path meets others', a single path that lost or won a
 * companion. */
static void refresh_around(struct cache *c, uint32_t node, uint32_t pos, uint32_t here)
{
    const snap_id above = entry_above(c, node, pos);
    if (above)
        refresh(c, above);
    refresh_below(c, node, pos);
    uint32_t meet = node, from = 0;
    while (meet && node_at(c, meet)->n_live == here) {
        from = meet;
        meet = node_at(c, meet)->parent;
    }
    if (!meet || meet == node || meet == RADIX_ROOT)
        return;
    const struct radix_node *x = node_at(c, meet);
    if (x->n_live - x->n_own == here + 1)
        refresh(c, lone_below(c, x, from));
}

/* -- live ------------------------------------------------------------------------------------ */

static uint64_t node_pages(const struct cache *c, const struct radix_node *x)
{
    const uint32_t page = c->o.page_tokens;
    if (!x->n_live)
        return 0;
    return x->kv / page - x->start / page + (x->n_live == x->n_own && x->kv % page != 0);
}

static void node_set(struct cache *c, struct radix_node *x)
{
    if (!x->n_live)
        x->kv = x->start;
    else if (x->n_live > x->n_own)
        x->kv = x->end;
    else
        x->kv = entry_at(c, x->live)->pos;
}

/* by = +1 or -1 live entries in node's edge, already in or out of its list. */
static void count(struct cache *c, uint32_t node, int by)
{
    for (uint32_t n = node; n; n = node_at(c, n)->parent) {
        struct radix_node *x = node_at(c, n);
        c->n_pages -= node_pages(c, x);
        x->n_own += n == node ? (uint32_t)by : 0;
        x->n_live += (uint32_t)by;
        node_set(c, x);
        c->n_pages += node_pages(c, x);
    }
}

void entry_enter(struct cache *c, snap_id id)
{
    struct entry *e = entry_at(c, id);
    ghosts_drop(c, id);
    e->state = ENTRY_PLANNED;
    e->slot = ranks_add(&c->ranks, id);
    list_add(c, &node_at(c, e->node)->live, id);
    count(c, e->node, 1);
    if (c->policy->enter)
        c->policy->enter(c, id);
    refresh(c, id);
    refresh_around(c, e->node, e->pos, 1);
}

void entry_leave(struct cache *c, snap_id id, enum ghost_why why, uint64_t now_ns)
{
    struct entry *e = entry_at(c, id);
    if (c->policy->leave)
        c->policy->leave(c, id);
    list_drop(c, &node_at(c, e->node)->live, id);
    count(c, e->node, -1);
    const snap_id moved = ranks_drop(&c->ranks, e->slot);
    entry_at(c, moved)->slot = e->slot;
    c->n_pins -= e->pins > 0;
    e->pins = 0;
    e->user_pin = false;
    e->state = ENTRY_GHOST;
    e->why = (uint8_t)why;
    e->gone_ns = now_ns;
    ghosts_add(c, id);
    refresh_around(c, e->node, e->pos, 0);
}

void entry_pin(struct cache *c, snap_id id, int by)
{
    struct entry *e = entry_at(c, id);
    c->n_pins -= e->pins > 0;
    e->pins += (uint32_t)by;
    c->n_pins += e->pins > 0;
    entry_rank(c, e)->barred = e->pins > 0;
    entry_revalue(c, id);
}

uint64_t entry_cost(const struct cache *c, uint32_t node, uint32_t pos)
{
    const uint32_t page = c->o.page_tokens;
    uint32_t n = node;
    while (n && !node_at(c, n)->n_live)
        n = node_at(c, n)->parent;
    const struct radix_node *x = node_at(c, n);
    uint64_t pages = 0;
    if (!n)
        pages = ceil_div(pos, page);
    else if (x->kv < pos)
        pages =
            ceil_div(pos, page) - (x->n_live == x->n_own ? ceil_div(x->kv, page) : x->kv / page);
    return c->o.snap_bytes + pages * c->page_bytes;
}

uint64_t entry_bytes(const struct cache *c, const struct entry *e)
{
    return c->o.snap_bytes + e->pages * c->page_bytes;
}

static void renew(struct cache *c)
{
    ranks_renew(&c->ranks, c->now, c->policy->rate, c);
}

double entry_value(struct cache *c, snap_id id)
{
    renew(c);
    return entry_rank(c, entry_at(c, id))->value;
}

void entry_revalue(struct cache *c, snap_id id)
{
    ranks_update(&c->ranks, entry_at(c, id)->slot, c->policy->rate, c);
}

snap_id entry_least(struct cache *c, snap_id but)
{
    renew(c);
    const uint32_t slot = ranks_least(&c->ranks);
    const snap_id least = slot == UINT32_MAX ? 0 : c->ranks.list[slot].id;
    if (!but || entry_at(c, but)->pins != 1)
        return least;
    const struct rank *b = entry_rank(c, entry_at(c, but));
    if (!least || b->value < c->ranks.list[slot].value ||
        (b->value == c->ranks.list[slot].value && but < least))
        return but;
    return least;
}

double entry_loss(struct cache *c, uint64_t need, snap_id but)
{
    double loss = 0;
    snap_id hidden = 0; /* a list by newer, which only ghosts use otherwise */
    for (uint64_t freed = 0; freed < need;) {
        const snap_id id = entry_least(c, but);
        if (!id)
            break;
        struct entry *e = entry_at(c, id);
        loss += entry_rank(c, e)->value * (double)entry_bytes(c, e);
        freed += entry_bytes(c, e);
        if (id == but) {
            but = 0;
            continue;
        }
        ranks_hide(&c->ranks, e->slot);
        e->newer = hidden;
        hidden = id;
    }
    for (snap_id next; hidden; hidden = next) {
        next = entry_at(c, hidden)->newer;
        ranks_show(&c->ranks, entry_at(c, hidden)->slot);
    }
    return loss;
}

uint64_t entry_pinned_bytes(struct cache *c, snap_id but)
{
    const uint32_t page = c->o.page_tokens, mark = ++c->mark;
    uint64_t bytes = 0;
    for (uint32_t i = 0, left = c->n_pins; i < c->ranks.n && left; i++) {
        const struct entry *e = entry_at(c, c->ranks.list[i].id);
        if (!e->pins)
            continue;
        left--;
        if (e->pins <= (c->ranks.list[i].id == but))
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
static uint32_t split_list(struct cache *c, uint32_t *lower_head, uint32_t *upper_head, uint32_t at,
                           uint32_t upper)
{
    uint32_t n = 0;
    while (*lower_head && entry_at(c, *lower_head)->pos > at)
        lower_head = &entry_at(c, *lower_head)->next;
    *upper_head = *lower_head;
    *lower_head = 0;
    for (snap_id id = *upper_head; id; id = entry_at(c, id)->next, n++)
        entry_at(c, id)->node = upper;
    return n;
}

static void on_split(void *ctx, uint32_t upper, uint32_t lower)
{
    struct cache *c = ctx;
    struct radix_node *u = node_at(c, upper), *x = node_at(c, lower);
    split_list(c, &x->ghost, &u->ghost, u->end, upper);
    u->n_own = split_list(c, &x->live, &u->live, u->end, upper);
    u->n_live = x->n_live;
    x->n_own -= u->n_own;
    x->n_live -= u->n_own;
    u->done = MIN(x->done, u->end);
    x->done = MAX(x->done, x->start);
    node_set(c, u);
    node_set(c, x);
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
    if (!x->n_live)
        x->kv = u->kv;
    x->n_own += u->n_own;
    x->n_live = u->n_live;
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
