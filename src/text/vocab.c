/* vocab.c - reads tokenizer.ggml.*.
 *
 * Start-up handles a quarter of a million tokens and as many merges: texts stay in the file's map,
 * and merges are kept by symbol numbers, so that encoding never touches a string.
 */
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab_int.h"

/* Printable characters stand for themselves, the other 68 bytes for U+0100 and up, in order. */
static bool is_printable(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad && b <= 0xff);
}

uint32_t alphabet_char(uint8_t byte)
{
    if (is_printable(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xad ? 0x143 : 0x121u + (byte - 0x7fu);
}

int alphabet_byte(uint32_t cp)
{
    if (cp < 0x100)
        return is_printable(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)cp - 0x100;
    if (cp <= 0x142)
        return (int)cp - 0x121 + 0x7f;
    return cp == 0x143 ? 0xad : -1;
}

/* ---- texts to symbols ---- */

static struct str symbol_text(const struct vocab *v, uint32_t s)
{
    return s < v->n_tokens ? v->text[s] : v->ghost[s - v->n_tokens];
}

/* The place of text in by_text, or the empty place where it belongs. */
static uint32_t *text_place(const struct vocab *v, struct str text)
{
    uint32_t i = (uint32_t)XXH3_64bits(text.p, text.n) & v->by_text_mask;
    while (v->by_text[i] && !str_eq(symbol_text(v, v->by_text[i] - 1), text))
        i = (i + 1) & v->by_text_mask;
    return &v->by_text[i];
}

/* Of two tokens with one text the later is found, as in other engines. */
static void text_put(struct vocab *v, uint32_t symbol)
{
    uint32_t *const place = text_place(v, symbol_text(v, symbol));
    v->n_by_text += *place == 0;
    *place = symbol + 1;
}

static bool text_reserve(struct vocab *v)
{
    if (v->by_text && v->n_by_text < v->by_text_mask / 2)
        return true;
    uint64_t size = 512;
    while (size < ((uint64_t)v->n_tokens + v->n_ghosts + 1) * 2)
        size *= 2;
    uint32_t *const wider = mem_try_array(size, sizeof *wider);
    if (!wider)
        return false;
    mem_free(v->by_text);
    v->by_text = wider;
    v->by_text_mask = (uint32_t)(size - 1);
    v->n_by_text = 0;
    for (uint32_t i = 0; i < v->n_tokens + (uint32_t)v->n_ghosts; i++)
        text_put(v, i);
    return true;
}

/* The symbol of text, a ghost where no token has it.  False when memory is out.  keep: text stays
 * where it is for the vocabulary's life. */
static bool symbol_of(struct vocab *v, struct str text, bool keep, uint32_t *out)
{
    const uint32_t found = *text_place(v, text);
    if (found) {
        *out = found - 1;
        return true;
    }
    if (!keep) {
        text.p = arena_strndup(&v->arena, text.p, text.n);
        if (!text.p)
            return false;
    }
    if (!mem_grow(&v->ghost, &v->ghost_cap, v->n_ghosts + 1, sizeof *v->ghost))
        return false;
    *out = v->n_tokens + (uint32_t)v->n_ghosts;
    v->ghost[v->n_ghosts++] = text;
    if (!text_reserve(v))
        return false;
    text_put(v, *out);
    return true;
}

/* ---- reading the keys ---- */

static enum rc no_memory(struct err *err)
{
    return err_set(err, RC_NOMEM, "no memory for the vocabulary");
}

static const struct gguf_key *need_array(const struct gguf *g, const char *name,
                                         enum gguf_kind elem, struct err *err)
{
    const struct gguf_key *const k = gguf_find_key(g, name);
    if (!k)
        (void)err_set(err, RC_FORMAT, "%s is missing", name);
    else if (k->kind != GGUF_ARR || (elem == GGUF_STR) != (k->elem == GGUF_STR))
        (void)err_set(err, RC_FORMAT, "%s is no array of %s", name,
                      elem == GGUF_STR ? "strings" : "integers");
    else
        return k;
    return NULL;
}

static enum rc read_texts(struct vocab *v, struct err *err)
{
    const struct gguf_key *const k = need_array(v->gguf, "tokenizer.ggml.tokens", GGUF_STR, err);
    if (!k)
        return RC_FORMAT;
    if (k->n == 0 || k->n > INT32_MAX / 2)
        return err_set(err, RC_FORMAT, "tokenizer.ggml.tokens has %" PRIu64 " entries", k->n);
    v->n_tokens = (uint32_t)k->n;
    v->text = mem_try_array(v->n_tokens, sizeof *v->text);
    v->type = mem_try(v->n_tokens);
    if (!v->text || !v->type)
        return no_memory(err);
    uint64_t off = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (!gguf_arr_next_str(k, &off, &v->text[i]))
            return err_set(err, RC_FORMAT, "tokenizer.ggml.tokens ends at entry %u", i);
    return text_reserve(v) ? RC_OK : no_memory(err);
}

static enum rc read_types(struct vocab *v, struct err *err)
{
    memset(v->type, TOKEN_NORMAL, v->n_tokens);
    if (!gguf_find_key(v->gguf, "tokenizer.ggml.token_type"))
        return RC_OK;
    const struct gguf_key *const k =
        need_array(v->gguf, "tokenizer.ggml.token_type", GGUF_I32, err);
    if (!k)
        return RC_FORMAT;
    if (k->n != v->n_tokens)
        return err_set(err, RC_FORMAT,
                       "tokenizer.ggml.token_type has %" PRIu64 " entries for %u tokens", k->n,
                       v->n_tokens);
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        int64_t t;
        if (!gguf_arr_i64(k, i, &t) || t < TOKEN_NORMAL || t > TOKEN_BYTE)
            return err_set(err, RC_FORMAT, "tokenizer.ggml.token_type[%u] is none of 1..6", i);
        v->type[i] = (uint8_t)t;
    }
    return RC_OK;
}

/* "<0x0A>" -> 10, else -1. */
static int byte_name(struct str s)
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
        return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        const char c = s.p[i];
        if (c >= '0' && c <= '9')
            v = v * 16 + (c - '0');
        else if (c >= 'A' && c <= 'F')
            v = v * 16 + (c - 'A' + 10);
        else
            return -1;
    }
    return v;
}

/* Writes what token text of that type stands for; never longer than the text. */
static size_t token_bytes(struct str text, uint8_t type, char *out)
{
    const int named = type == TOKEN_BYTE ? byte_name(text) : -1;
    if (named >= 0) {
        out[0] = (char)named;
        return 1;
    }
    if (type == TOKEN_UNUSED)
        return 0;
    if (type != TOKEN_NORMAL && type != TOKEN_BYTE) {
        memcpy(out, text.p, text.n);
        return text.n;
    }
    size_t n = 0;
    for (size_t i = 0; i < text.n;) {
        uint32_t cp;
        const size_t len = utf8_decode(text.p + i, text.n - i, &cp);
        const int byte = cp == UINT32_MAX ? -1 : alphabet_byte(cp);
        if (byte >= 0)
            out[n++] = (char)byte;
        else
            for (size_t k = 0; k < len; k++) /* outside the alphabet: as it is */
                out[n++] = text.p[i + k];
        i += len;
    }
    return n;
}

static enum rc spell_tokens(struct vocab *v, struct err *err)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        total += v->text[i].n;
    if (total > UINT32_MAX)
        return err_set(err, RC_FORMAT, "tokenizer.ggml.tokens has %" PRIu64 " bytes of text",
                       total);
    v->bytes = mem_try(total);
    v->bytes_end = mem_try_array(v->n_tokens, sizeof *v->bytes_end);
    if (!v->bytes || !v->bytes_end)
        return no_memory(err);
    size_t at = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        at += token_bytes(v->text[i], v->type[i], v->bytes + at);
        v->bytes_end[i] = (uint32_t)at;
    }
    return RC_OK;
}

static enum rc find_bytes(struct vocab *v, struct err *err)
{
    for (unsigned b = 0; b < 256; b++) {
        char c[8];
        const size_t n = utf8_encode(alphabet_char((uint8_t)b), c);
        token id = vocab_find(v, (struct str){c, n});
        if (id < 0) {
            snprintf(c, sizeof c, "<0x%02X>", b);
            id = vocab_find(v, str_of(c));
            (void)utf8_encode(alphabet_char((uint8_t)b), c);
        }
        if (id < 0)
            return err_set(err, RC_FORMAT, "tokenizer.ggml.tokens has no token for byte 0x%02X", b);
        v->byte_token[b] = id;
        if (!symbol_of(v, (struct str){c, n}, false, &v->byte_symbol[b]))
            return no_memory(err);
    }
    return RC_OK;
}

static void merge_put(struct vocab *v, uint32_t left, uint32_t right, uint32_t rank,
                      uint32_t result)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    const uint64_t mask = UINT64_MAX >> v->merge_shift;
    uint64_t i = (pair * UINT64_C(0x9e3779b97f4a7c15)) >> v->merge_shift;
    while (v->merges[i].pair != UINT64_MAX && v->merges[i].pair != pair)
        i = (i + 1) & mask;
    if (v->merges[i].pair == UINT64_MAX) /* of two equal lines the first counts */
        v->merges[i] = (struct merge){pair, rank, result};
}

static enum rc read_merges(struct vocab *v, struct err *err)
{
    const struct gguf_key *const k = need_array(v->gguf, "tokenizer.ggml.merges", GGUF_STR, err);
    if (!k)
        return RC_FORMAT;
    if (k->n > INT32_MAX / 4)
        return err_set(err, RC_FORMAT, "tokenizer.ggml.merges has %" PRIu64 " entries", k->n);
    uint32_t log2 = 4;
    while ((UINT64_C(1) << log2) < k->n * 2)
        log2++;
    v->merge_shift = 64 - log2;
    v->merges = mem_try_array(UINT64_C(1) << log2, sizeof *v->merges);
    if (!v->merges)
        return no_memory(err);
    for (uint64_t i = 0; i < UINT64_C(1) << log2; i++)
        v->merges[i].pair = UINT64_MAX;

    struct buf joined = BUF_INIT;
    enum rc rc = RC_OK;
    uint64_t off = 0;
    for (uint32_t rank = 0; !rc && rank < k->n; rank++) {
        struct str line;
        if (!gguf_arr_next_str(k, &off, &line)) {
            rc = err_set(err, RC_FORMAT, "tokenizer.ggml.merges ends at entry %u", rank);
            break;
        }
        const char *const cut = line.n > 2 ? memchr(line.p + 1, ' ', line.n - 2) : NULL;
        if (!cut) {
            rc = err_set(err, RC_FORMAT, "tokenizer.ggml.merges[%u] is no pair", rank);
            break;
        }
        const struct str left = {line.p, (size_t)(cut - line.p)};
        const struct str right = {cut + 1, line.n - left.n - 1};
        buf_clear(&joined);
        buf_add(&joined, left.p, left.n);
        buf_add(&joined, right.p, right.n);
        uint32_t l, r, result;
        if (joined.failed || !symbol_of(v, left, true, &l) || !symbol_of(v, right, true, &r) ||
            !symbol_of(v, (struct str){joined.p, joined.n}, false, &result))
            rc = no_memory(err);
        else
            merge_put(v, l, r, rank, result);
    }
    buf_release(&joined);
    return rc;
}

/* ---- special tokens ---- */

static bool is_special(uint8_t type)
{
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER;
}

static bool trie_put(struct vocab *v, struct str text, token id)
{
    uint32_t at = 0;
    for (size_t i = 0; i < text.n; i++) {
        const uint8_t b = (uint8_t)text.p[i];
        uint32_t next = v->special[at].child;
        while (next && v->special[next].byte != b)
            next = v->special[next].sibling;
        if (!next) {
            if (!mem_grow(&v->special, &v->special_cap, v->n_special_nodes + 1, sizeof *v->special))
                return false;
            next = (uint32_t)v->n_special_nodes++;
            v->special[next] =
                (struct special_node){.sibling = v->special[at].child, .id = -1, .byte = b};
            v->special[at].child = next;
        }
        at = next;
    }
    if (v->special[at].id < 0)
        v->special[at].id = id;
    return true;
}

struct by_length {
    size_t n;
    uint32_t node;
    token id;
};

static int longer_first(const void *a, const void *b)
{
    const struct by_length *const x = a, *const y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static enum rc collect_specials(struct vocab *v, struct err *err)
{
    if (!mem_grow(&v->special, &v->special_cap, 1, sizeof *v->special))
        return no_memory(err);
    v->special[0] = (struct special_node){.id = -1};
    v->n_special_nodes = 1;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        if (!is_special(v->type[i]) || v->text[i].n == 0)
            continue;
        if (v->n_special_nodes + v->text[i].n > UINT32_MAX || !trie_put(v, v->text[i], (token)i))
            return no_memory(err);
    }
    for (uint32_t c = v->special[0].child; c; c = v->special[c].sibling)
        v->special_root[v->special[c].byte] = c;

    struct by_length *const list = mem_try_array(v->n_special_nodes, sizeof *list);
    if (!list)
        return no_memory(err);
    for (uint32_t i = 0; i < v->n_special_nodes; i++)
        if (v->special[i].id >= 0)
            list[v->n_specials++] =
                (struct by_length){v->text[v->special[i].id].n, i, v->special[i].id};
    qsort(list, v->n_specials, sizeof *list, longer_first);
    for (uint32_t i = 0; i < v->n_specials; i++)
        v->special[list[i].node].order = i;
    mem_free(list);
    return RC_OK;
}

static enum rc get_id(const struct vocab *v, const char *key, token *out, struct err *err)
{
    uint32_t id = UINT32_MAX;
    const enum rc rc = gguf_get_u32(v->gguf, key, false, &id, err);
    if (rc)
        return rc;
    *out = -1;
    if (id == UINT32_MAX)
        return RC_OK;
    if (id >= v->n_tokens)
        return err_set(err, RC_FORMAT, "%s is %u; there are %u tokens", key, id, v->n_tokens);
    *out = (token)id;
    return RC_OK;
}

static bool eog_add(struct vocab *v, token t)
{
    if (t < 0 || vocab_is_eog(v, t))
        return true;
    if (!mem_grow(&v->eog, &v->eog_cap, v->n_eog + 1, sizeof *v->eog))
        return false;
    v->eog[v->n_eog++] = t;
    return true;
}

static enum rc read_ids(struct vocab *v, struct err *err)
{
    /* What ends a turn in the model families that use these pre-tokenisers. */
    static const char *const ends[] = {
        "<|im_end|>",   "<|endoftext|>", "<|fim_pad|>",   "<|repo_name|>",
        "<|file_sep|>", "<|eot_id|>",    "<|eom_id|>",    "<|end_of_text|>",
        "<|end|>",      "<|return|>",    "<end_of_turn>", "<end_of_utterance>",
    };
    token eot, eom;
    enum rc rc = get_id(v, "tokenizer.ggml.bos_token_id", &v->bos, err);
    if (!rc)
        rc = get_id(v, "tokenizer.ggml.eos_token_id", &v->eos, err);
    if (!rc)
        rc = get_id(v, "tokenizer.ggml.eot_token_id", &eot, err);
    if (!rc)
        rc = get_id(v, "tokenizer.ggml.eom_token_id", &eom, err);
    v->add_bos = v->pretok->add_bos;
    if (!rc)
        rc = gguf_get_bool(v->gguf, "tokenizer.ggml.add_bos_token", false, &v->add_bos, err);
    if (!rc)
        rc = gguf_get_str(v->gguf, "tokenizer.chat_template", false, &v->chat_template, err);
    if (rc)
        return rc;
    bool ok = eog_add(v, v->eos) && eog_add(v, eot) && eog_add(v, eom);
    for (size_t i = 0; ok && i < COUNT_OF(ends); i++)
        ok = eog_add(v, vocab_find(v, str_of(ends[i])));
    return ok ? RC_OK : no_memory(err);
}

static enum rc read_kind(struct vocab *v, struct err *err)
{
    struct str model, pre;
    enum rc rc = gguf_get_str(v->gguf, "tokenizer.ggml.model", true, &model, err);
    if (!rc && !str_is(model, "gpt2"))
        rc = err_set(err, RC_UNSUPPORTED, "tokenizer.ggml.model is \"%.*s\", not gpt2",
                     (int)MIN(model.n, 40), model.p);
    if (!rc)
        rc = gguf_get_str(v->gguf, "tokenizer.ggml.pre", true, &pre, err);
    if (rc)
        return rc;
    v->pretok = pretok_find(pre);
    if (!v->pretok)
        return err_set(err, RC_UNSUPPORTED,
                       "tokenizer.ggml.pre is \"%.*s\"; known are " PRETOK_NAMES,
                       (int)MIN(pre.n, 40), pre.p);
    return RC_OK;
}

enum rc vocab_open(const struct gguf *g, struct vocab **out, struct err *err)
{
    struct vocab *v = mem_zalloc(sizeof *v);
    v->gguf = g;
    arena_init(&v->arena, 0);
    enum rc rc = read_kind(v, err);
    if (!rc)
        rc = read_texts(v, err);
    if (!rc)
        rc = read_types(v, err);
    if (!rc)
        rc = spell_tokens(v, err);
    if (!rc)
        rc = find_bytes(v, err);
    if (!rc)
        rc = read_merges(v, err);
    if (!rc)
        rc = collect_specials(v, err);
    if (!rc)
        rc = read_ids(v, err);
    if (rc)
        goto out;
    *out = v;
    v = NULL;
out:
    vocab_close(v);
    return rc;
}

void vocab_close(struct vocab *v)
{
    if (!v)
        return;
    mem_free(v->text);
    mem_free(v->type);
    mem_free(v->bytes);
    mem_free(v->bytes_end);
    mem_free(v->by_text);
    mem_free(v->merges);
    mem_free(v->ghost);
    mem_free(v->special);
    mem_free(v->eog);
    arena_release(&v->arena);
    mem_free(v);
}

uint32_t vocab_size(const struct vocab *v)
{
    return v->n_tokens;
}

struct str vocab_text(const struct vocab *v, token t)
{
    assert(t >= 0 && (uint32_t)t < v->n_tokens);
    return v->text[t];
}

enum token_type vocab_type(const struct vocab *v, token t)
{
    assert(t >= 0 && (uint32_t)t < v->n_tokens);
    return (enum token_type)v->type[t];
}

token vocab_find(const struct vocab *v, struct str text)
{
    const uint32_t found = *text_place(v, text);
    return found && found <= v->n_tokens ? (token)(found - 1) : -1;
}

token vocab_bos(const struct vocab *v)
{
    return v->bos;
}

token vocab_eos(const struct vocab *v)
{
    return v->eos;
}

bool vocab_add_bos(const struct vocab *v)
{
    return v->add_bos;
}

bool vocab_is_eog(const struct vocab *v, token t)
{
    for (size_t i = 0; i < v->n_eog; i++)
        if (v->eog[i] == t)
            return true;
    return false;
}

struct str vocab_bytes(const struct vocab *v, token t, bool special)
{
    assert(t >= 0 && (uint32_t)t < v->n_tokens);
    const uint32_t begin = t ? v->bytes_end[t - 1] : 0;
    struct str s = {v->bytes + begin, v->bytes_end[t] - begin};
    if (!special && (v->type[t] == TOKEN_CONTROL || v->type[t] == TOKEN_UNKNOWN))
        s.n = 0;
    return s;
}

struct str vocab_chat_template(const struct vocab *v)
{
    return v->chat_template;
}
