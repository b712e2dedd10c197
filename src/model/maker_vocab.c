/* A byte-level BPE vocabulary, trained here.
 *
 * Training is the plain greedy kind: count adjacent pairs inside words, join the most frequent one,
 * repeat.  The corpus is some kilobytes, so recounting everything for each merge costs nothing.
 * Words are cut as the pre-tokenizer qwen35 cuts them, else merges would be learned that no text can
 * ever use.
 */
#include "model/maker_int.h"

#include <stdio.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

enum {
    MAX_MERGES = 1200, /* what the corpus has to offer */
    MAX_SYMBOLS = 256 + MAX_MERGES,
    REAL_VOCAB = 248320, /* of the published models: the normal tokens, then the specials */
    REAL_NORMAL = 248044,
    MAX_WORDS = 4096,
    MAX_CORPUS = 8192
};

/* The file's token types. */
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

/* In the order of the real vocabulary; those without bars are user-defined. */
static const char *const specials[] = {
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
};
enum { ENDOFTEXT = 0, IM_END = 2 };
static_assert(COUNT_OF(specials) == MAKER_MIN_VOCAB - 256, "specials and MAKER_MIN_VOCAB");

/* ---- bytes as printable characters ---- */

static bool is_shown(int b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* The code point that stands for byte b: itself when printable, else the next of 256, 257 ... */
static uint32_t shown_as(int b)
{
    uint32_t n = 256;
    if (is_shown(b))
        return (uint32_t)b;
    for (int i = 0; i < b; i++)
        n += !is_shown(i);
    return n;
}

/* ---- words ---- */

enum class { LETTER, DIGIT, SPACE, NEWLINE, OTHER };

/* Enough of Unicode for maker_corpus. */
static enum class class_of(uint32_t c) {
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return LETTER;
    if (c >= '0' && c <= '9') return DIGIT;
    if (c == '\n' || c == '\r') return NEWLINE;
    if (c == ' ' || c == '\t') return SPACE;
    return c < 0xc0 || (c >= 0x3000 && c <= 0x303f) ? OTHER : LETTER;
}

struct text {
    const char *p;
    size_t n;
};

static enum class class_at(const struct text *t, size_t i, size_t *len) {
    uint32_t c; *len = utf8_decode(t->p + i, t->n - i, &c); return class_of(c);
}

/* End of the run of characters of class k (newlines count as white space when k is SPACE) from i. */
static size_t run_end(const struct text *t, size_t i, enum class k)
{
    size_t len;
    while (i < t->n) {
        const enum class c = class_at(t, i, &len);
        if (c != k && !(k == SPACE && c == NEWLINE))
            break;
        i += len;
    }
    return i;
}

static size_t contraction(const struct text *t, size_t i)
{
    static const char *const ends[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t e = 0; e < COUNT_OF(ends); e++)
        if (str_starts((struct str){t->p + i, t->n - i}, str_of(ends[e])))
            return strlen(ends[e]);
    return 0;
}

/* Bytes of the word at i: the rules of the pre-tokenizer, in its order. */
static size_t word_len(const struct text *t, size_t i)
{
    size_t len, next_len;
    const size_t n_contr = contraction(t, i);
    if (n_contr)
        return n_contr;
    const enum class c = class_at(t, i, &len);
    const size_t next = i + len;
    const enum class d = next < t->n ? class_at(t, next, &next_len) : NEWLINE;
    if (c == LETTER || ((c == SPACE || c == OTHER) && d == LETTER))
        return run_end(t, next, LETTER) - i;
    if (c == DIGIT)
        return len;
    if (c == OTHER || (t->p[i] == ' ' && d == OTHER))
        return run_end(t, run_end(t, c == OTHER ? i : next, OTHER), NEWLINE) - i;
    const size_t end = run_end(t, i, SPACE);
    for (size_t j = end; j > i; j--) /* up to the last newline in the white space */
        if (t->p[j - 1] == '\n')
            return j - i;
    return end < t->n && end - i > 1 ? end - 1 - i : end - i;
}

/* ---- training ---- */

struct word {
    uint16_t *sym; /* in trainer.sym */
    uint32_t n, count;
};

struct trainer {
    uint16_t sym[MAX_CORPUS];
    struct word words[MAX_WORDS];
    uint32_t n_words;
    struct str texts[MAX_SYMBOLS]; /* of the symbols, printable */
    uint32_t n_symbols;
    uint32_t counts[MAX_SYMBOLS][MAX_SYMBOLS]; /* of pairs; zero between rounds */
};

static void add_word(struct trainer *t, const char *p, size_t n, uint32_t *used)
{
    uint16_t *const sym = t->sym + *used;
    for (size_t i = 0; i < n; i++)
        sym[i] = (uint8_t)p[i];
    for (uint32_t w = 0; w < t->n_words; w++) {
        if (t->words[w].n == n && !memcmp(t->words[w].sym, sym, n * sizeof *sym)) {
            t->words[w].count++;
            return;
        }
    }
    CHECK(t->n_words < MAX_WORDS);
    t->words[t->n_words++] = (struct word){sym, (uint32_t)n, 1};
    *used += (uint32_t)n;
}

static void split_corpus(struct trainer *t)
{
    const struct text text = {maker_corpus, strlen(maker_corpus)};
    uint32_t used = 0;
    CHECK(text.n <= MAX_CORPUS);
    for (size_t i = 0; i < text.n;) {
        const size_t n = word_len(&text, i);
        add_word(t, text.p + i, n, &used);
        i += n;
    }
}

struct pair {
    uint16_t a, b;
};

static int compare_texts(struct str a, struct str b)
{
    const int c = memcmp(a.p, b.p, MIN(a.n, b.n));
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static bool comes_before(const struct trainer *t, struct pair x, struct pair y)
{
    const uint32_t cx = t->counts[x.a][x.b], cy = t->counts[y.a][y.b];
    if (cx != cy)
        return cx > cy;
    const int c = compare_texts(t->texts[x.a], t->texts[y.a]);
    return c ? c < 0 : compare_texts(t->texts[x.b], t->texts[y.b]) < 0;
}

/* The most frequent pair; of equal ones the first in the alphabet.  False when no pair is left. */
static bool best_pair(struct trainer *t, struct pair *best)
{
    bool any = false;
    for (uint32_t w = 0; w < t->n_words; w++)
        for (uint32_t i = 1; i < t->words[w].n; i++)
            t->counts[t->words[w].sym[i - 1]][t->words[w].sym[i]] += t->words[w].count;
    for (uint32_t w = 0; w < t->n_words; w++) {
        for (uint32_t i = 1; i < t->words[w].n; i++) {
            const struct pair p = {t->words[w].sym[i - 1], t->words[w].sym[i]};
            if (!any || comes_before(t, p, *best))
                *best = p;
            any = true;
        }
    }
    for (uint32_t w = 0; w < t->n_words; w++)
        for (uint32_t i = 1; i < t->words[w].n; i++)
            t->counts[t->words[w].sym[i - 1]][t->words[w].sym[i]] = 0;
    return any;
}

static void join_pair(struct trainer *t, struct pair p, uint16_t joined)
{
    for (uint32_t w = 0; w < t->n_words; w++) {
        struct word *const x = &t->words[w];
        uint32_t n = 0;
        for (uint32_t i = 0; i < x->n; i++) {
            const bool hit = x->sym[i] == p.a && i + 1 < x->n && x->sym[i + 1] == p.b;
            x->sym[n++] = hit ? joined : x->sym[i];
            i += hit;
        }
        x->n = n;
    }
}

/* ---- the vocabulary ---- */

/* Texts so far, by hash: slots hold id + 1.  At most half full. */
struct known {
    uint32_t *slots, mask;
};

struct builder {
    struct maker_vocab *v;
    struct known known;
    uint32_t n_tokens; /* so far */
};

static uint32_t *known_slot(const struct builder *b, struct str text)
{
    uint32_t h = (uint32_t)XXH3_64bits(text.p, text.n) & b->known.mask;
    while (b->known.slots[h] && !str_eq(b->v->tokens[b->known.slots[h] - 1], text))
        h = (h + 1) & b->known.mask;
    return &b->known.slots[h];
}

/* a, a space if asked for, b: in the vocabulary's arena.  p is NULL without memory. */
static struct str join(struct maker_vocab *v, struct str a, bool space, struct str b)
{
    char *p = arena_try(&v->text, a.n + b.n + 1);
    if (!p)
        return (struct str){0};
    memcpy(p, a.p, a.n);
    p[a.n] = ' ';
    memcpy(p + a.n + space, b.p, b.n);
    return (struct str){p, a.n + b.n + space};
}

static void add_token(struct builder *b, uint32_t *slot, struct str text, int32_t type)
{
    b->v->tokens[b->n_tokens] = text;
    b->v->types[b->n_tokens++] = type;
    *slot = b->n_tokens;
}

/* The 256 bytes as tokens: the printable ones first, as in the published vocabularies. */
static bool add_bytes(struct builder *b, struct trainer *t)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int byte = 0; byte < 256; byte++) {
            char c[4];
            if (is_shown(byte) == pass)
                continue;
            const size_t n = utf8_encode(shown_as(byte), c);
            const char *p = arena_strndup(&b->v->text, c, n);
            if (!p)
                return false;
            t->texts[byte] = (struct str){p, n};
            add_token(b, known_slot(b, t->texts[byte]), t->texts[byte], NORMAL);
        }
    }
    t->n_symbols = 256;
    return true;
}

/* Up to n merges; each adds a token, unless another pair gave the same text before. */
static bool add_trained(struct builder *b, struct trainer *t, uint32_t n)
{
    struct maker_vocab *const v = b->v;
    struct pair p = {0};
    while (v->n_merges < n && best_pair(t, &p)) {
        const struct str left = t->texts[p.a], right = t->texts[p.b];
        const struct str merge = join(v, left, true, right), text = join(v, left, false, right);
        if (!merge.p || !text.p)
            return false;
        v->merges[v->n_merges++] = merge;
        uint32_t *const slot = known_slot(b, text);
        if (!*slot)
            add_token(b, slot, text, NORMAL);
        t->texts[t->n_symbols] = text;
        join_pair(t, p, (uint16_t)t->n_symbols++);
    }
    return true;
}

/* A word or the start of one (behind the printable space, C4 A0) of ASCII letters only: *n_letters. */
static bool is_wordlike(struct str s, bool *has_space, size_t *n_letters)
{
    *has_space = s.n > 2 && !memcmp(s.p, "\xc4\xa0", 2);
    *n_letters = s.n - (*has_space ? 2 : 0);
    for (size_t i = s.n - *n_letters; i < s.n; i++)
        if ((s.p[i] | 0x20) < 'a' || (s.p[i] | 0x20) > 'z')
            return false;
    return true;
}

/* Made-up words, each a join of two tokens that exist, until there are n tokens. */
static enum rc add_joins(struct builder *b, uint32_t n, uint64_t seed, struct err *err)
{
    struct maker_vocab *const v = b->v;
    struct rng rng = {seed * 2 + 1};
    enum rc rc = RC_NOMEM;
    uint32_t n_left = 0, n_right = 0;
    uint32_t *const left = mem_try_array(n, sizeof *left), *const right =
                                                               mem_try_array(n, sizeof *right);
    if (!left || !right)
        goto out;
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        bool space;
        size_t letters;
        if (!is_wordlike(v->tokens[i], &space, &letters))
            continue;
        if (letters <= 8)
            left[n_left++] = i;
        if (letters <= 6 && !space)
            right[n_right++] = i;
    }
    CHECK(n_left && n_right);
    while (b->n_tokens < n) {
        const struct str l = v->tokens[left[rng_below(&rng, n_left)]];
        const struct str r = v->tokens[right[rng_below(&rng, n_right)]];
        char text[32];
        if (l.n + r.n > 16)
            continue;
        memcpy(text, l.p, l.n);
        memcpy(text + l.n, r.p, r.n);
        uint32_t *const slot = known_slot(b, (struct str){text, l.n + r.n});
        if (*slot)
            continue;
        const struct str merge = join(v, l, true, r), joined = join(v, l, false, r);
        if (!merge.p || !joined.p)
            goto out;
        v->merges[v->n_merges++] = merge;
        if (joined.n <= 10)
            left[n_left++] = b->n_tokens;
        add_token(b, slot, joined, NORMAL);
    }
    rc = RC_OK;
out:
    mem_free(left);
    mem_free(right);
    return rc ? err_set(err, rc, "no memory for a vocabulary of %" PRIu32 " tokens", v->n) : RC_OK;
}

static bool add_specials(struct builder *b)
{
    struct maker_vocab *const v = b->v;
    v->endoftext = b->n_tokens + ENDOFTEXT;
    v->im_end = b->n_tokens + IM_END;
    for (size_t i = 0; i < COUNT_OF(specials); i++) {
        const struct str s = str_of(specials[i]);
        add_token(b, known_slot(b, s), s, s.p[1] == '|' ? CONTROL : USER_DEFINED);
    }
    while (b->n_tokens < v->n) {
        char name[24];
        const int n = snprintf(name, sizeof name, "[PAD%" PRIu32 "]", b->n_tokens);
        const char *p = arena_strndup(&v->text, name, (size_t)n);
        if (!p)
            return false;
        const struct str s = {p, (size_t)n};
        add_token(b, known_slot(b, s), s, UNUSED);
    }
    return true;
}

enum rc maker_vocab_init(struct maker_vocab *v, uint32_t n_tokens, uint64_t seed, struct err *err)
{
    *v = (struct maker_vocab){.n = n_tokens};
    arena_init(&v->text, 0);
    if (n_tokens < MAKER_MIN_VOCAB || n_tokens > MAKER_MAX_VOCAB)
        return err_set(err, RC_ARG, "a vocabulary of %" PRIu32 " tokens (%d to %d)", n_tokens,
                       MAKER_MIN_VOCAB, MAKER_MAX_VOCAB);
    const uint32_t n_normal =
        n_tokens >= REAL_VOCAB ? (uint32_t)REAL_NORMAL : n_tokens - (uint32_t)COUNT_OF(specials);
    struct builder b = {.v = v};
    uint32_t cap = 1;
    while (cap < 2 * n_tokens)
        cap *= 2;
    b.known.slots = mem_try_array(cap, sizeof *b.known.slots);
    b.known.mask = cap - 1;
    v->tokens = mem_try_array(n_tokens, sizeof *v->tokens);
    v->types = mem_try_array(n_tokens, sizeof *v->types);
    /* a merge whose text exists already adds no token, so there may be more merges than tokens */
    v->merges = mem_try_array(n_tokens + MAX_MERGES, sizeof *v->merges);
    struct trainer *const t = mem_try_zalloc(sizeof *t);
    enum rc rc = RC_OK;
    bool ok = b.known.slots && v->tokens && v->types && v->merges && t;
    if (ok) {
        split_corpus(t);
        ok = add_bytes(&b, t) && add_trained(&b, t, MIN(n_normal - 256, (uint32_t)MAX_MERGES));
    }
    if (ok && b.n_tokens < n_normal)
        rc = add_joins(&b, n_normal, seed, err);
    if (ok && !rc)
        ok = add_specials(&b);
    if (!ok)
        rc = err_set(err, RC_NOMEM, "no memory for a vocabulary of %" PRIu32 " tokens", n_tokens);
    mem_free(t);
    mem_free(b.known.slots);
    if (rc)
        maker_vocab_release(v);
    return rc;
}

void maker_vocab_release(struct maker_vocab *v)
{
    mem_free(v->tokens);
    mem_free(v->types);
    mem_free(v->merges);
    arena_release(&v->text);
    *v = (struct maker_vocab){0};
}
