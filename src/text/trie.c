/* trie.c - the vocabulary in the order its bytes sort. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/automaton_int.h"

struct entry {
    struct str bytes;
    token id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *const x = a, *const y = b;
    const int c = memcmp(x->bytes.p, y->bytes.p, MIN(x->bytes.n, y->bytes.n));
    if (c)
        return c;
    if (x->bytes.n != y->bytes.n)
        return x->bytes.n < y->bytes.n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static bool belongs(const struct vocab *v, token t)
{
    const enum token_type type = vocab_type(v, t);
    return (type == TOKEN_NORMAL || type == TOKEN_USER || type == TOKEN_BYTE) &&
           vocab_bytes(v, t, true).n && !vocab_is_eog(v, t);
}

static size_t common(struct str a, struct str b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n])
        n++;
    return n;
}

static bool fill(struct token_trie *t, const struct entry *e, size_t n)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += e[i].bytes.n - (i ? common(e[i - 1].bytes, e[i].bytes) : 0);
    if (bytes >= UINT32_MAX)
        return false;
    t->byte = mem_try(bytes + 1);
    t->next = mem_try_array(bytes + 1, sizeof *t->next);
    t->at = mem_try_array(bytes + 1, sizeof *t->at);
    t->reach = mem_try_zalloc(bytes + 1);
    uint32_t *const path = mem_try_array((size_t)t->max_depth + 1, sizeof *path); /* open nodes */
    const bool ok = t->byte && t->next && t->at && t->reach && path;
    size_t depth = 0;
    for (size_t i = 0; ok && i < n; i++) {
        const struct str s = e[i].bytes;
        const size_t shared = i ? common(e[i - 1].bytes, s) : 0;
        while (depth > shared)
            t->next[path[--depth]] = t->n_nodes;
        while (depth < s.n) {
            const uint32_t node = t->n_nodes++;
            t->byte[node] = (uint8_t)s.p[depth];
            t->at[node] = -1;
            path[depth++] = node;
        }
        for (size_t k = 0; k < depth; k++)
            t->reach[path[k]] = (uint8_t)MAX(t->reach[path[k]], MIN(s.n, 255));
        t->same[e[i].id] = t->at[path[depth - 1]];
        t->at[path[depth - 1]] = e[i].id;
    }
    while (ok && depth)
        t->next[path[--depth]] = t->n_nodes;
    mem_free(path);
    return ok;
}

enum rc token_trie_new(const struct vocab *v, struct token_trie **out, struct err *err)
{
    struct token_trie *t = mem_zalloc(sizeof *t);
    const uint32_t n = vocab_size(v);
    t->vocab = v;
    atomic_init(&t->refs, 1);
    t->n_tokens = n;
    t->n_words = (n + 63) / 64;
    t->same = mem_try_array(n, sizeof *t->same);
    struct entry *const e = mem_try_array(n, sizeof *e);
    bool ok = t->same && e;
    size_t n_entries = 0;
    for (token i = 0; ok && i < (token)n; i++) {
        t->same[i] = -1;
        if (vocab_is_eog(v, i)) {
            ok = mem_grow(&t->eog, &t->eog_cap, t->n_eog + 1, sizeof *t->eog);
            if (ok)
                t->eog[t->n_eog++] = i;
        } else if (belongs(v, i)) {
            e[n_entries] = (struct entry){vocab_bytes(v, i, true), i};
            t->max_depth = MAX(t->max_depth, (uint32_t)e[n_entries].bytes.n);
            n_entries++;
        }
    }
    if (ok) {
        qsort(e, n_entries, sizeof *e, by_bytes);
        ok = fill(t, e, n_entries);
    }
    mem_free(e);
    if (ok) {
        *out = t;
        return RC_OK;
    }
    token_trie_free(t);
    return err_set(err, RC_NOMEM, "no memory for the vocabulary's trie");
}

void token_trie_free(struct token_trie *t)
{
    /* release: what this holder read is done; acquire: the one who frees comes after all of them */
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    mem_free(t->byte);
    mem_free(t->next);
    mem_free(t->at);
    mem_free(t->reach);
    mem_free(t->same);
    mem_free(t->eog);
    mem_free(t);
}
