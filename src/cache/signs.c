#include "cache/signs.h"

#include <string.h>

#include "base/mem.h"

enum { INDEX_CAP = 2 * SIGNS_MAX };

struct sign {
    uint64_t key;
    uint64_t confirmed; /* serial number of the latest confirmation */
    uint32_t older, newer;
    uint32_t bit; /* in the filter */
};

struct signs {
    struct sign list[SIGNS_MAX + 1]; /* [0] unused */
    uint32_t n, oldest, newest;
    uint64_t serial;
    uint32_t replaced; /* since the filter was made */
    uint32_t index[INDEX_CAP];
    uint64_t filter[SIGN_FILTER_BITS / 64]; /* may a window be a sign of either side? */
};

/* Rolling: h(p + 1) = (h(p) - t[p] M^7) M + t[p + 8]. */
static const uint64_t roll = UINT64_C(0xd1342543de82ef95);

static uint64_t roll_out(void)
{
    uint64_t m = 1;
    for (int i = 1; i < SIGN_TOKENS; i++)
        m *= roll;
    return m;
}

static uint64_t window_hash(const token *w)
{
    uint64_t h = 0;
    for (int i = 0; i < SIGN_TOKENS; i++)
        h = h * roll + (uint32_t)w[i];
    return h;
}

static uint64_t mixed(uint64_t h)
{
    return h * UINT64_C(0x9e3779b97f4a7c15);
}

/* Never 0: bit 1 is always set. */
static uint64_t key_of(uint64_t h, enum sign_side side)
{
    h ^= h >> 31;
    return (mixed(h) & ~UINT64_C(3)) | 2 | (uint64_t)side;
}

static uint32_t filter_bit(uint64_t h)
{
    return (uint32_t)(mixed(h) >> 47); /* the top 17 bits */
}

static_assert(SIGN_FILTER_BITS == 1 << (64 - 47), "filter_bit");

struct signs *signs_new(void)
{
    return mem_try_zalloc(sizeof(struct signs));
}

void signs_free(struct signs *s)
{
    mem_free(s);
}

uint64_t signs_bytes(const struct signs *s)
{
    return sizeof *s;
}

uint32_t signs_count(const struct signs *s)
{
    return s->n;
}

static uint32_t slot_of(const struct signs *s, uint64_t key)
{
    uint32_t i = (uint32_t)(key >> 40) % INDEX_CAP;
    while (s->index[i] && s->list[s->index[i]].key != key)
        i = (i + 1) % INDEX_CAP;
    return i;
}

static void index_drop(struct signs *s, uint32_t hole)
{
    for (uint32_t i = (hole + 1) % INDEX_CAP; s->index[i]; i = (i + 1) % INDEX_CAP) {
        const uint32_t home = (uint32_t)(s->list[s->index[i]].key >> 40) % INDEX_CAP;
        if ((i + INDEX_CAP - home) % INDEX_CAP >= (i + INDEX_CAP - hole) % INDEX_CAP) {
            s->index[hole] = s->index[i];
            hole = i;
        }
    }
    s->index[hole] = 0;
}

static void list_drop(struct signs *s, uint32_t id)
{
    const struct sign *x = &s->list[id];
    if (x->older)
        s->list[x->older].newer = x->newer;
    else
        s->oldest = x->newer;
    if (x->newer)
        s->list[x->newer].older = x->older;
    else
        s->newest = x->older;
}

static void list_add(struct signs *s, uint32_t id)
{
    s->list[id].older = s->newest;
    s->list[id].newer = 0;
    if (s->newest)
        s->list[s->newest].newer = id;
    else
        s->oldest = id;
    s->newest = id;
    s->list[id].confirmed = ++s->serial;
}

static void filter_add(struct signs *s, uint32_t bit)
{
    s->filter[bit / 64] |= UINT64_C(1) << bit % 64;
}

/* The bits of those that went stay until then; each costs a look-up now and then. */
static void filter_renew(struct signs *s)
{
    memset(s->filter, 0, sizeof s->filter);
    for (uint32_t id = 1; id <= s->n; id++)
        filter_add(s, s->list[id].bit);
    s->replaced = 0;
}

static void learn(struct signs *s, uint64_t key, uint32_t bit)
{
    uint32_t id = s->index[slot_of(s, key)];
    if (id) {
        list_drop(s, id);
    } else if (s->n < SIGNS_MAX) {
        id = ++s->n;
    } else {
        id = s->oldest;
        index_drop(s, slot_of(s, s->list[id].key));
        list_drop(s, id);
        s->replaced++;
    }
    s->list[id].key = key;
    s->list[id].bit = bit;
    s->index[slot_of(s, key)] = id;
    list_add(s, id);
    filter_add(s, s->list[id].bit);
    if (s->replaced >= SIGNS_MAX)
        filter_renew(s);
}

void signs_learn(struct signs *s, const token *window, enum sign_side side)
{
    const uint64_t h = window_hash(window);
    learn(s, key_of(h, side), filter_bit(h));
}

void signs_save(const struct signs *s, struct buf *b)
{
    pack_u32(b, s->n);
    for (uint32_t id = s->oldest; id; id = s->list[id].newer) {
        pack_u64(b, s->list[id].key);
        pack_u32(b, s->list[id].bit);
    }
}

bool signs_load(struct signs *s, struct unpack *u)
{
    const uint32_t n = unpack_u32(u);
    if (n > SIGNS_MAX || !unpack_fits(u, n, 12))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t key = unpack_u64(u);
        const uint32_t bit = unpack_u32(u);
        if (!key || bit >= SIGN_FILTER_BITS)
            return false;
        learn(s, key, bit);
    }
    return true;
}

/* Keeps the latest confirmed ones of more than max. */
static uint32_t add_match(const struct signs *s, struct sign_match *out, uint32_t n, uint32_t max,
                          uint32_t id, uint32_t pos)
{
    uint32_t worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (out[i].sign == id) {
            out[i].pos = pos;
            return n;
        }
        if (s->list[out[i].sign].confirmed < s->list[out[worst].sign].confirmed)
            worst = i;
    }
    if (n < max)
        worst = n++;
    else if (s->list[out[worst].sign].confirmed > s->list[id].confirmed)
        return n;
    out[worst] = (struct sign_match){.pos = pos, .sign = id, .key = s->list[id].key};
    return n;
}

uint32_t signs_find(const struct signs *s, const token *seq, uint32_t n, uint32_t from, uint32_t to,
                    struct sign_match *out, uint32_t max)
{
    if (!s->n || !max || n < SIGN_TOKENS || to <= from)
        return 0;
    const uint64_t out_of_window = roll_out();
    const uint32_t last = MIN(to, n - SIGN_TOKENS);
    uint32_t p = from >= SIGN_TOKENS ? from - SIGN_TOKENS + 1 : 0;
    if (p > last)
        return 0;
    uint32_t n_out = 0;
    uint64_t h = window_hash(seq + p);
    for (;; p++) {
        const uint32_t bit = filter_bit(h);
        if (s->filter[bit / 64] >> bit % 64 & 1) {
            const uint32_t before = s->index[slot_of(s, key_of(h, SIGN_BEFORE))];
            if (before && p + SIGN_TOKENS > from && p + SIGN_TOKENS <= to)
                n_out = add_match(s, out, n_out, max, before, p + SIGN_TOKENS);
            const uint32_t after = s->index[slot_of(s, key_of(h, SIGN_AFTER))];
            if (after && p > from)
                n_out = add_match(s, out, n_out, max, after, p);
        }
        if (p == last)
            return n_out;
        h = (h - (uint32_t)seq[p] * out_of_window) * roll + (uint32_t)seq[p + SIGN_TOKENS];
    }
}
