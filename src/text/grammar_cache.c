#include "text/grammar_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { MAX_ENTRIES = 64 };

struct entry {
    struct buf key;
    struct grammar *g;
    uint64_t used; /* by the cache's own count */
};

struct grammar_cache {
    const struct vocab *vocab;
    size_t budget;
    pthread_mutex_t lock; /* guards what follows; nothing else is locked under it */
    struct token_trie *trie;
    struct entry entries[MAX_ENTRIES];
    size_t n;
    uint64_t count;
};

struct grammar_cache *grammar_cache_new(const struct vocab *v, size_t budget)
{
    struct grammar_cache *const c = mem_zalloc(sizeof *c);
    c->vocab = v;
    c->budget = budget ? budget : 256 * MIB;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

static void drop(struct grammar_cache *c, size_t i)
{
    buf_release(&c->entries[i].key);
    grammar_free(c->entries[i].g);
    c->entries[i] = c->entries[--c->n];
}

void grammar_cache_free(struct grammar_cache *c)
{
    if (!c)
        return;
    while (c->n)
        drop(c, c->n - 1);
    token_trie_free(c->trie);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* ---- what a spec is known by ---- */

static void add_json(struct buf *key, const json_t *v)
{
    char *const text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    key->failed |= v && !text;
    buf_addf(key, "%zu:", text ? strlen(text) : 0);
    if (text)
        buf_adds(key, text);
    free(text);
}

/* Every part with its length, so that no two specs have the same. */
static void make_key(const struct grammar_spec *s, struct buf *key)
{
    buf_addf(key, "%d %d %d %zu:", (int)s->family, s->parallel, s->in_text, s->gbnf.n);
    buf_add(key, s->gbnf.p, s->gbnf.n);
    add_json(key, s->schema);
    add_json(key, s->tools);
    buf_addf(key, "%d", s->tool != NULL);
    if (s->tool)
        buf_adds(key, s->tool);
}

static enum rc compile(struct token_trie *t, const struct grammar_spec *s, struct grammar **out,
                       struct err *err)
{
    if (s->gbnf.n)
        return grammar_from_gbnf(t, s->gbnf, out, err);
    if (s->tools)
        return grammar_from_tools(t,
                                  &(struct tools_grammar){.family = s->family,
                                                          .tools = s->tools,
                                                          .name = s->tool,
                                                          .parallel = s->parallel,
                                                          .content = s->schema,
                                                          .in_text = s->in_text},
                                  out, err);
    return grammar_from_schema(t, s->schema, out, err);
}

/* ---- under the lock ---- */

static struct grammar *find(struct grammar_cache *c, const struct buf *key)
{
    for (size_t i = 0; i < c->n; i++) {
        struct entry *const e = &c->entries[i];
        if (e->key.n != key->n || memcmp(e->key.p, key->p, key->n) != 0)
            continue;
        if (grammar_is_worn(e->g)) {
            drop(c, i);
            return NULL;
        }
        e->used = ++c->count;
        grammar_ref(e->g);
        return e->g;
    }
    return NULL;
}

static size_t oldest(const struct grammar_cache *c)
{
    size_t best = 0;
    for (size_t i = 1; i < c->n; i++)
        if (c->entries[i].used < c->entries[best].used)
            best = i;
    return best;
}

/* Takes the key; g's reference stays the caller's, the cache has one of its own. */
static void keep(struct grammar_cache *c, struct buf *key, struct grammar *g)
{
    if (c->n == MAX_ENTRIES)
        drop(c, oldest(c));
    grammar_ref(g);
    c->entries[c->n++] = (struct entry){*key, g, ++c->count};
    buf_init(key);
    for (;;) { /* what is in use grows, so all are counted anew */
        size_t bytes = 0;
        for (size_t i = 0; i < c->n; i++)
            bytes += grammar_bytes(c->entries[i].g) + c->entries[i].key.n;
        if (bytes <= c->budget || c->n == 1)
            return;
        drop(c, oldest(c));
    }
}

/* ---- */

enum rc grammar_cache_get(struct grammar_cache *c, const struct grammar_spec *spec,
                          struct grammar **out, struct err *err)
{
    struct buf key = BUF_INIT;
    make_key(spec, &key);
    if (key.failed) {
        buf_release(&key);
        return err_set(err, RC_NOMEM, "no memory for the grammar");
    }
    pthread_mutex_lock(&c->lock);
    enum rc rc = c->trie ? RC_OK : token_trie_new(c->vocab, &c->trie, err);
    struct grammar *g = rc ? NULL : find(c, &key);
    pthread_mutex_unlock(&c->lock);
    if (!rc && !g) { /* the trie is there to stay, and only read */
        rc = compile(c->trie, spec, &g, err);
        if (!rc) {
            pthread_mutex_lock(&c->lock);
            struct grammar *const other = find(c, &key);
            if (other) { /* made by someone else meanwhile: one is enough */
                grammar_free(g);
                g = other;
            } else {
                keep(c, &key, g);
            }
            pthread_mutex_unlock(&c->lock);
        }
    }
    buf_release(&key);
    if (!rc)
        *out = g;
    return rc;
}
