#include "cache/radix.h"

#include <string.h>

#include "base/mem.h"

enum { ALLOC_OVERHEAD = 16 }; /* what malloc adds to a label, about */

static uint64_t hash_edge(uint32_t parent, token first)
{
    uint64_t x = ((uint64_t)parent << 32 | (uint32_t)first) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 32;
}

bool radix_init(struct radix *r, const struct radix_hooks *hooks)
{
    *r = (struct radix){.hooks = *hooks, .used = RADIX_ROOT + 1, .index_cap = 64};
    r->index = mem_try_array(r->index_cap, sizeof *r->index);
    if (!r->index || !mem_grow(&r->nodes, &r->nodes_cap, 16, sizeof *r->nodes)) {
        mem_free(r->index);
        r->index = NULL;
        return false;
    }
    memset(r->nodes, 0, 2 * sizeof *r->nodes);
    return true;
}

void radix_release(struct radix *r)
{
    for (uint32_t i = RADIX_ROOT + 1; r->nodes && i < r->used; i++)
        mem_free(r->nodes[i].label);
    mem_free(r->nodes);
    mem_free(r->index);
    *r = (struct radix){0};
}

void radix_path_release(struct radix_path *p)
{
    mem_free(p->nodes);
    *p = (struct radix_path){0};
}

uint64_t radix_bytes(const struct radix *r)
{
    return r->nodes_cap * sizeof *r->nodes + r->index_cap * sizeof *r->index + r->label_bytes;
}

uint32_t radix_mismatch(const token *a, const token *b, uint32_t n)
{
    enum { BLOCK = 128 }; /* memcmp is vectorised but does not say where */
    uint32_t i = 0;
    while (n - i >= BLOCK && !memcmp(a + i, b + i, BLOCK * sizeof *a))
        i += BLOCK;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* -- the index ------------------------------------------------------------------------------- */

static uint32_t index_slot(const struct radix *r, uint32_t parent, token first)
{
    const uint32_t mask = r->index_cap - 1;
    uint32_t s = (uint32_t)hash_edge(parent, first) & mask;
    for (;; s = (s + 1) & mask) {
        const uint32_t id = r->index[s];
        if (!id || (r->nodes[id].parent == parent && r->nodes[id].label[0] == first))
            return s;
    }
}

uint32_t radix_child(const struct radix *r, uint32_t node, token t)
{
    return r->index[index_slot(r, node, t)];
}

static void index_put(struct radix *r, uint32_t id)
{
    r->index[index_slot(r, r->nodes[id].parent, r->nodes[id].label[0])] = id;
}

/* Linear probing without tombstones: what stands after the hole moves up when it may. */
static void index_drop(struct radix *r, uint32_t id)
{
    const uint32_t mask = r->index_cap - 1;
    uint32_t hole = index_slot(r, r->nodes[id].parent, r->nodes[id].label[0]);
    for (uint32_t s = (hole + 1) & mask; r->index[s]; s = (s + 1) & mask) {
        const struct radix_node *x = &r->nodes[r->index[s]];
        const uint32_t home = (uint32_t)hash_edge(x->parent, x->label[0]) & mask;
        if (((s - home) & mask) >= ((s - hole) & mask)) {
            r->index[hole] = r->index[s];
            hole = s;
        }
    }
    r->index[hole] = 0;
}

static bool index_reserve(struct radix *r, uint32_t more)
{
    if (((uint64_t)r->n_nodes + more) * 2 <= r->index_cap)
        return true;
    if (r->index_cap > UINT32_MAX / 2)
        return false;
    uint32_t *bigger = mem_try_array((size_t)r->index_cap * 2, sizeof *bigger);
    if (!bigger)
        return false;
    uint32_t *old = r->index;
    const uint32_t n = r->index_cap;
    r->index = bigger;
    r->index_cap = n * 2;
    for (uint32_t i = 0; i < n; i++)
        if (old[i])
            index_put(r, old[i]);
    mem_free(old);
    return true;
}

/* -- lists ----------------------------------------------------------------------------------- */

static void siblings_add(struct radix *r, uint32_t id)
{
    struct radix_node *x = &r->nodes[id], *p = &r->nodes[x->parent];
    x->prev = 0;
    x->next = p->child;
    if (p->child)
        r->nodes[p->child].prev = id;
    p->child = id;
}

static void siblings_drop(struct radix *r, uint32_t id)
{
    const struct radix_node *x = &r->nodes[id];
    if (x->prev)
        r->nodes[x->prev].next = x->next;
    else
        r->nodes[x->parent].child = x->next;
    if (x->next)
        r->nodes[x->next].prev = x->prev;
}

void radix_to_front(struct radix *r, uint32_t node)
{
    if (!r->nodes[node].prev)
        return;
    siblings_drop(r, node);
    siblings_add(r, node);
}

/* Puts id after prev in the list by last walk; prev 0: at the old end. */
static void walked_add(struct radix *r, uint32_t id, uint32_t prev)
{
    struct radix_node *x = &r->nodes[id];
    x->older = prev;
    x->newer = prev ? r->nodes[prev].newer : r->oldest;
    if (prev)
        r->nodes[prev].newer = id;
    else
        r->oldest = id;
    if (x->newer)
        r->nodes[x->newer].older = id;
    else
        r->newest = id;
}

static void walked_drop(struct radix *r, uint32_t id)
{
    const struct radix_node *x = &r->nodes[id];
    if (x->older)
        r->nodes[x->older].newer = x->newer;
    else
        r->oldest = x->newer;
    if (x->newer)
        r->nodes[x->newer].older = x->older;
    else
        r->newest = x->older;
}

void radix_touch(struct radix *r, const struct radix_path *path)
{
    for (uint32_t i = path->n; i-- > 0;) {
        walked_drop(r, path->nodes[i]);
        walked_add(r, path->nodes[i], r->newest);
    }
}

/* -- nodes ----------------------------------------------------------------------------------- */

static bool nodes_reserve(struct radix *r, uint32_t more)
{
    if (r->used > UINT32_MAX - 8)
        return false;
    return mem_grow(&r->nodes, &r->nodes_cap, (size_t)r->used + more, sizeof *r->nodes);
}

/* Room was reserved. */
static uint32_t node_new(struct radix *r)
{
    uint32_t id = r->free;
    if (id)
        r->free = r->nodes[id].parent;
    else
        id = r->used++;
    r->nodes[id] = (struct radix_node){0};
    r->n_nodes++;
    return id;
}

static void node_free(struct radix *r, uint32_t id)
{
    r->nodes[id] = (struct radix_node){.parent = r->free};
    r->free = id;
    r->n_nodes--;
}

/* The first k tokens of id's edge become a node of their own above it, named at once.  Room for a node was
 * reserved; 0 when the label could not be copied. */
static uint32_t node_split(struct radix *r, uint32_t id, uint32_t k)
{
    token *label = mem_try((size_t)k * sizeof *label);
    if (!label)
        return 0;
    const uint32_t up = node_new(r);
    struct radix_node *u = &r->nodes[up], *x = &r->nodes[id];
    const uint32_t rest = x->end - x->start - k;
    memcpy(label, x->label, (size_t)k * sizeof *label);
    index_drop(r, id);
    siblings_drop(r, id);
    u->label = label;
    u->start = x->start;
    u->end = x->start + k;
    u->parent = x->parent;
    siblings_add(r, up);
    index_put(r, up);
    memmove(x->label, x->label + k, (size_t)rest * sizeof *x->label);
    token *shrunk = mem_try_realloc(x->label, (size_t)rest * sizeof *x->label);
    if (shrunk) /* else the longer piece serves as well */
        x->label = shrunk;
    x->start += k;
    x->parent = up;
    siblings_add(r, id);
    index_put(r, id);
    walked_add(r, up, id);
    r->label_bytes += ALLOC_OVERHEAD;
    r->hooks.split(r->hooks.ctx, up, id);
    return up;
}

void radix_remove_leaf(struct radix *r, uint32_t id)
{
    struct radix_node *x = &r->nodes[id];
    r->hooks.remove(r->hooks.ctx, id);
    index_drop(r, id);
    siblings_drop(r, id);
    walked_drop(r, id);
    r->n_tokens -= x->end - x->start;
    r->label_bytes -= (uint64_t)(x->end - x->start) * sizeof *x->label + ALLOC_OVERHEAD;
    mem_free(x->label);
    node_free(r, id);
}

/* A node with one child becomes part of it; nothing happens when memory is out. */
static void node_merge(struct radix *r, uint32_t up)
{
    const uint32_t id = r->nodes[up].child;
    struct radix_node *u = &r->nodes[up], *x = &r->nodes[id];
    const uint32_t k = u->end - u->start, rest = x->end - x->start;
    token *label = mem_try_realloc(u->label, ((size_t)k + rest) * sizeof *label);
    if (!label)
        return;
    u->label = label;
    index_drop(r, id);
    index_drop(r, up);
    siblings_drop(r, id);
    siblings_drop(r, up);
    memcpy(label + k, x->label, (size_t)rest * sizeof *label);
    mem_free(x->label);
    x->label = label;
    r->hooks.merge(r->hooks.ctx, up, id);
    x->start = u->start;
    x->parent = u->parent;
    siblings_add(r, id);
    index_put(r, id);
    /* it was last walked when the upper part was */
    walked_drop(r, id);
    walked_add(r, id, u->older);
    walked_drop(r, up);
    r->label_bytes -= ALLOC_OVERHEAD;
    node_free(r, up);
}

/* One pass from the old end; whether anything went. */
static bool trim_pass(struct radix *r, uint64_t bytes)
{
    bool removed = false;
    for (uint32_t id = r->oldest, next; id && radix_bytes(r) > bytes; id = next) {
        const struct radix_node *x = &r->nodes[id];
        next = x->newer;
        if (x->child || x->at[0].n_live)
            continue;
        const uint32_t up = x->parent;
        radix_remove_leaf(r, id);
        removed = true;
        const uint32_t only = r->nodes[up].child;
        /* a made-up leaf (its tokens are negative) goes away whole, so it stays apart */
        if (up == RADIX_ROOT || !only || r->nodes[only].next || r->nodes[only].label[0] < 0)
            continue;
        if (next == only) /* merging moves it on and takes up out of the list */
            next = r->nodes[only].newer;
        if (next == up)
            next = r->nodes[up].newer;
        node_merge(r, up);
    }
    return removed;
}

void radix_trim(struct radix *r, uint64_t bytes)
{
    while (radix_bytes(r) > bytes && trim_pass(r, bytes))
        ;
}

/* -- paths ----------------------------------------------------------------------------------- */

bool radix_walk(const struct radix *r, const token *seq, uint32_t n, struct radix_path *path,
                uint32_t *len)
{
    uint32_t node = RADIX_ROOT, pos = 0, depth = 0;
    while (pos < n) {
        node = radix_child(r, node, seq[pos]);
        if (!node)
            break;
        if (path) {
            if (!mem_grow(&path->nodes, &path->cap, (size_t)depth + 1, sizeof *path->nodes))
                return false;
            path->nodes[depth++] = node;
        }
        const struct radix_node *x = &r->nodes[node];
        const uint32_t m = MIN(x->end - x->start, n - pos);
        const uint32_t same = radix_mismatch(x->label, seq + pos, m);
        pos += same;
        if (pos < x->end)
            break;
    }
    if (path) {
        path->n = depth;
        path->len = pos;
    }
    *len = pos;
    return true;
}

bool radix_extend(struct radix *r, const token *tokens, uint32_t n, struct radix_path *path)
{
    if (!mem_grow(&path->nodes, &path->cap, (size_t)path->n + 1, sizeof *path->nodes) ||
        !nodes_reserve(r, 2) || !index_reserve(r, 2))
        return false;
    token *label = mem_try((size_t)n * sizeof *label);
    if (!label)
        return false;
    const uint32_t len = path->len;
    uint32_t at = path->n ? path->nodes[path->n - 1] : RADIX_ROOT;
    if (len < r->nodes[at].end) {
        at = node_split(r, at, len - r->nodes[at].start);
        if (!at) {
            mem_free(label);
            return false;
        }
        path->nodes[path->n - 1] = at;
    }
    memcpy(label, tokens, (size_t)n * sizeof *label);
    const uint32_t leaf = node_new(r);
    r->nodes[leaf] = (struct radix_node){
        .label = label, .start = len, .end = len + n, .parent = at, .done = len};
    for (int i = 0; i < RADIX_LAYERS; i++)
        r->nodes[leaf].at[i].kv = len;
    siblings_add(r, leaf);
    index_put(r, leaf);
    walked_add(r, leaf, 0);
    r->n_tokens += n;
    r->label_bytes += (uint64_t)n * sizeof *label + ALLOC_OVERHEAD;
    path->nodes[path->n++] = leaf;
    path->len += n;
    return true;
}

bool radix_insert(struct radix *r, const token *seq, uint32_t n, struct radix_path *path)
{
    uint32_t len;
    if (!radix_walk(r, seq, n, path, &len))
        return false;
    return len == n || radix_extend(r, seq + len, n - len, path);
}

uint32_t radix_path_at(const struct radix *r, const struct radix_path *path, uint32_t pos)
{
    uint32_t lo = 0, hi = path->n - 1;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (r->nodes[path->nodes[mid]].end < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* -- check ----------------------------------------------------------------------------------- */

void radix_check(const struct radix *r)
{
    uint64_t tokens = 0, labels = 0;
    uint32_t n = 0, kids = 0;
    uint32_t *rank = mem_alloc(((size_t)r->used + 1) * sizeof *rank);
    for (uint32_t id = r->oldest; id; id = r->nodes[id].newer)
        rank[id] = ++n;
    rank[RADIX_ROOT] = ++n;
    n = 0;
    for (uint32_t id = r->oldest, prev = 0; id; prev = id, id = r->nodes[id].newer, n++) {
        const struct radix_node *x = &r->nodes[id], *p = &r->nodes[x->parent];
        CHECK(x->older == prev && n < r->n_nodes);
        CHECK(x->label && x->start < x->end && p->end == x->start && rank[id] < rank[x->parent]);
        CHECK(radix_child(r, x->parent, x->label[0]) == id);
        tokens += x->end - x->start;
        labels += (uint64_t)(x->end - x->start) * sizeof *x->label + ALLOC_OVERHEAD;
        for (uint32_t c = x->child, before = 0; c; before = c, c = r->nodes[c].next, kids++)
            CHECK(r->nodes[c].parent == id && r->nodes[c].prev == before && kids < r->n_nodes);
        if (!x->newer)
            CHECK(r->newest == id);
    }
    for (uint32_t c = r->nodes[RADIX_ROOT].child; c; c = r->nodes[c].next, kids++)
        CHECK(r->nodes[c].parent == RADIX_ROOT && kids < r->n_nodes);
    CHECK(n == r->n_nodes && kids == n && tokens == r->n_tokens && labels == r->label_bytes);
    mem_free(rank);
    uint32_t indexed = 0;
    for (uint32_t i = 0; i < r->index_cap; i++)
        indexed += r->index[i] != 0;
    CHECK(indexed == n);
}
