/* bpe.c - special tokens are cut out, the rest is pre-tokenised, each piece merged.
 *
 * Merging one piece: its symbols are a linked list in an array; a heap holds (rank, left index) of
 * every adjacent pair that merges.  The smallest is taken out, lowest rank first and leftmost among
 * equals.  Entries are never removed when a pair changes: pair_rank of the left symbol says whether
 * an entry is still true.  n log n in the piece, whatever is in it.
 */
#include "text/bpe.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include "text/vocab_int.h"

#define NO_INDEX UINT32_MAX
#define NO_RANK UINT32_MAX

void tokens_release(struct tokens *t)
{
    mem_free(t->v);
    *t = (struct tokens){0};
}

bool tokens_add(struct tokens *t, token x)
{
    if (t->n == t->cap && !mem_grow(&t->v, &t->cap, t->n + 1, sizeof *t->v))
        return false;
    t->v[t->n++] = x;
    return true;
}

bool tokens_append(struct tokens *t, const token *v, size_t n)
{
    if (n > t->cap - t->n && !mem_grow(&t->v, &t->cap, t->n + n, sizeof *t->v))
        return false;
    if (n)
        memcpy(t->v + t->n, v, n * sizeof *v);
    t->n += n;
    return true;
}

struct link {
    uint32_t symbol;
    uint32_t prev, next;        /* indices or NO_INDEX */
    uint32_t pair_rank, result; /* of the merge with next; NO_RANK when there is none */
};

struct work {
    const struct vocab *v;
    struct link *links;
    size_t links_cap;
    uint64_t *heap; /* rank << 32 | left index */
    size_t n_heap, heap_cap;
    struct buf clean, mapped;
    struct tokens *out;
};

/* ---- the heap ---- */

static bool heap_push(struct work *w, uint64_t x)
{
    if (w->n_heap == w->heap_cap &&
        !mem_grow(&w->heap, &w->heap_cap, w->n_heap + 1, sizeof *w->heap))
        return false;
    size_t i = w->n_heap++;
    while (i > 0 && w->heap[(i - 1) / 2] > x) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = x;
    return true;
}

static uint64_t heap_pop(struct work *w)
{
    const uint64_t top = w->heap[0], x = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap)
            break;
        if (c + 1 < w->n_heap && w->heap[c + 1] < w->heap[c])
            c++;
        if (w->heap[c] >= x)
            break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = x;
    return top;
}

/* ---- one piece ---- */

/* Looks the pair (i, its next) up and puts it on the heap when it merges. */
static bool pair_changed(struct work *w, uint32_t i)
{
    struct link *const l = &w->links[i];
    l->pair_rank = l->next == NO_INDEX
                       ? NO_RANK
                       : vocab_merge(w->v, l->symbol, w->links[l->next].symbol, &l->result);
    return l->pair_rank == NO_RANK || heap_push(w, (uint64_t)l->pair_rank << 32 | i);
}

/* A ghost is no token: its bytes are. */
static bool emit(struct work *w, uint32_t symbol)
{
    if (symbol < w->v->n_tokens)
        return tokens_add(w->out, (token)symbol);
    const struct str s = w->v->ghost[symbol - w->v->n_tokens];
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        i += utf8_decode(s.p + i, s.n - i, &cp);
        if (!tokens_add(w->out, w->v->byte_token[alphabet_byte(cp)]))
            return false;
    }
    return true;
}

/* For vocabularies that take a piece whole when it is a token.  -1: it is none. */
static token whole_piece(struct work *w, struct str piece)
{
    buf_clear(&w->mapped);
    for (size_t i = 0; i < piece.n; i++) {
        char c[4];
        buf_add(&w->mapped, c, utf8_encode(alphabet_char((uint8_t)piece.p[i]), c));
    }
    return w->mapped.failed ? -1 : vocab_find(w->v, (struct str){w->mapped.p, w->mapped.n});
}

static bool encode_piece(struct work *w, struct str piece)
{
    if (w->v->pretok->ignore_merges) {
        const token t = whole_piece(w, piece);
        if (w->mapped.failed)
            return false;
        if (t >= 0)
            return tokens_add(w->out, t);
    }
    if (piece.n > w->links_cap && !mem_grow(&w->links, &w->links_cap, piece.n, sizeof *w->links))
        return false;
    const uint32_t n = (uint32_t)piece.n;
    for (uint32_t i = 0; i < n; i++)
        w->links[i] = (struct link){.symbol = w->v->byte_symbol[(uint8_t)piece.p[i]],
                                    .prev = i ? i - 1 : NO_INDEX,
                                    .next = i + 1 < n ? i + 1 : NO_INDEX};
    w->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!pair_changed(w, i))
            return false;

    while (w->n_heap) {
        const uint64_t top = heap_pop(w);
        const uint32_t i = (uint32_t)top;
        struct link *const l = &w->links[i];
        if (l->pair_rank != top >> 32)
            continue; /* the pair has changed since */
        struct link *const r = &w->links[l->next];
        r->pair_rank = NO_RANK;
        l->symbol = l->result;
        l->next = r->next;
        if (l->next != NO_INDEX)
            w->links[l->next].prev = i;
        if (!pair_changed(w, i) || (l->prev != NO_INDEX && !pair_changed(w, l->prev)))
            return false;
    }
    for (uint32_t i = n ? 0 : NO_INDEX; i != NO_INDEX; i = w->links[i].next)
        if (!emit(w, w->links[i].symbol))
            return false;
    return true;
}

/* Text between two special tokens. */
static bool encode_fragment(struct work *w, struct str text)
{
    if (!unicode_is_clean(text)) {
        buf_clear(&w->clean);
        unicode_clean(text, &w->clean);
        if (w->clean.failed)
            return false;
        text = (struct str){w->clean.p, w->clean.n};
    }
    for (size_t at = 0; at < text.n;) {
        const size_t end = pretok_next(w->v->pretok, text, at);
        if (!encode_piece(w, (struct str){text.p + at, end - at}))
            return false;
        at = end;
    }
    return true;
}

/* ---- special tokens ---- */

/* An occurrence of a special token's text. */
struct hit {
    uint32_t pos;
    uint32_t node; /* in vocab.special */
    bool taken;
};

static bool find_hits(const struct vocab *v, struct str text, bool parse_special, struct hit **hits,
                      size_t *n)
{
    size_t cap = 0;
    for (size_t i = 0; i < text.n; i++) {
        uint32_t node = v->special_root[(uint8_t)text.p[i]];
        for (size_t k = i + 1; node; k++) {
            const token id = v->special[node].id;
            if (id >= 0 && (parse_special || v->type[id] == TOKEN_USER)) {
                if (!mem_grow(hits, &cap, *n + 1, sizeof **hits))
                    return false;
                (*hits)[(*n)++] = (struct hit){(uint32_t)i, node, false};
            }
            if (k == text.n)
                break;
            node = v->special[node].child;
            while (node && v->special[node].byte != (uint8_t)text.p[k])
                node = v->special[node].sibling;
        }
    }
    return true;
}

/* The rule is: for each special token, longest text first, cut out its occurrences in what is still
 * uncut, leftmost first.  So: hits in that order (a counting sort, they are ordered by position
 * already), each taken if it overlaps none taken before.  Those before are at least as long, so an
 * overlap always covers this one's first or last byte. */
static bool choose_hits(const struct vocab *v, size_t text_n, struct hit *hits, size_t n)
{
    uint8_t *const covered = mem_try_zalloc(text_n / 8 + 1);
    size_t *const start = mem_try_array((size_t)v->n_specials + 1, sizeof *start);
    uint32_t *const order = mem_try_array(n, sizeof *order);
    const bool ok = covered && start && order;
    if (ok) {
        for (size_t i = 0; i < n; i++)
            start[v->special[hits[i].node].order + 1]++;
        for (size_t i = 1; i <= v->n_specials; i++)
            start[i] += start[i - 1];
        for (size_t i = 0; i < n; i++)
            order[start[v->special[hits[i].node].order]++] = (uint32_t)i;
        for (size_t i = 0; i < n; i++) {
            struct hit *const h = &hits[order[i]];
            const size_t last = h->pos + v->text[v->special[h->node].id].n - 1;
            if (covered[h->pos / 8] >> h->pos % 8 & 1 || covered[last / 8] >> last % 8 & 1)
                continue;
            h->taken = true;
            for (size_t k = h->pos; k <= last; k++)
                covered[k / 8] |= (uint8_t)(1u << k % 8);
        }
    }
    mem_free(covered);
    mem_free(start);
    mem_free(order);
    return ok;
}

static bool encode(struct work *w, struct str text, const struct bpe_opts *o)
{
    const struct vocab *const v = w->v;
    struct hit *hits = NULL;
    size_t n_hits = 0;
    bool ok = find_hits(v, text, o->parse_special, &hits, &n_hits) &&
              (n_hits == 0 || choose_hits(v, text.n, hits, n_hits));
    size_t at = 0;
    for (size_t i = 0; ok && i < n_hits; i++) {
        if (!hits[i].taken)
            continue;
        const token id = v->special[hits[i].node].id;
        ok = encode_fragment(w, (struct str){text.p + at, hits[i].pos - at}) &&
             tokens_add(w->out, id);
        at = hits[i].pos + v->text[id].n;
    }
    ok = ok && encode_fragment(w, (struct str){text.p + at, text.n - at});
    mem_free(hits);
    return ok;
}

enum rc bpe_encode(const struct vocab *v, struct str text, const struct bpe_opts *o,
                   struct tokens *out, struct err *err)
{
    if (text.n > UINT32_MAX / 4)
        return err_set(err, RC_LIMIT, "%zu bytes of text are more than the tokenizer takes (%u)",
                       text.n, UINT32_MAX / 4);
    const size_t before = out->n;
    struct work w = {.v = v, .out = out};
    bool ok = !(o->add_special && v->add_bos && v->bos >= 0) || tokens_add(out, v->bos);
    ok = ok && encode(&w, text, o);
    mem_free(w.links);
    mem_free(w.heap);
    buf_release(&w.clean);
    buf_release(&w.mapped);
    if (ok)
        return RC_OK;
    out->n = before;
    return err_set(err, RC_NOMEM, "no memory to tokenise %zu bytes", text.n);
}
