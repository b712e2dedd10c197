/* testing_int.h - vocabularies for this room's tests, fuzz targets and benches, made in memory. */
#ifndef HOLDFAST_TEXT_TESTING_INT_H
#define HOLDFAST_TEXT_TESTING_INT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/vocab_int.h"

/* A GGUF image under construction: keys only. */
struct test_gguf {
    struct buf b;
    uint64_t n_keys;
};

static inline void test_put(struct buf *b, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_addc(b, (char)(v >> 8 * i));
}

static inline void test_put_str(struct buf *b, const char *s, size_t n)
{
    test_put(b, n, 8);
    buf_add(b, s, n);
}

static inline void test_key(struct test_gguf *t, const char *name, enum gguf_kind kind)
{
    if (t->n_keys++ == 0) {
        buf_adds(&t->b, "GGUF");
        test_put(&t->b, 3, 4);
        test_put(&t->b, 0, 8);
        test_put(&t->b, 0, 8); /* number of keys: test_vocab_from */
    }
    test_put_str(&t->b, name, strlen(name));
    test_put(&t->b, kind, 4);
}

static inline void test_key_str(struct test_gguf *t, const char *name, const char *v)
{
    test_key(t, name, GGUF_STR);
    test_put_str(&t->b, v, strlen(v));
}

static inline void test_key_u32(struct test_gguf *t, const char *name, uint32_t v)
{
    test_key(t, name, GGUF_U32);
    test_put(&t->b, v, 4);
}

static inline void test_key_arr(struct test_gguf *t, const char *name, enum gguf_kind elem,
                                uint64_t n)
{
    test_key(t, name, GGUF_ARR);
    test_put(&t->b, elem, 4);
    test_put(&t->b, n, 8);
}

static inline enum rc test_gguf_open(struct test_gguf *t, struct gguf **g, struct err *err)
{
    for (size_t i = 0; i < 8; i++)
        t->b.p[16 + i] = (char)(t->n_keys >> 8 * i);
    return gguf_open_mem(t->b.p, t->b.n, g, err);
}

/* A vocabulary and what it borrows from. */
struct test_vocab {
    struct test_gguf image;
    struct gguf *g;
    struct vocab *v;
};

static inline void test_vocab_close(struct test_vocab *t)
{
    vocab_close(t->v);
    gguf_close(t->g);
    buf_release(&t->image.b);
}

/* Of a JSON object with tokens, types, merges; aborts when that fails. */
static inline void test_vocab_from(struct test_vocab *t, const json_t *spec, const char *pre)
{
    *t = (struct test_vocab){0};
    const json_t *x;
    size_t i;
    test_key_str(&t->image, "tokenizer.ggml.model", "gpt2");
    test_key_str(&t->image, "tokenizer.ggml.pre", pre);
    const char *const lists[] = {"tokens", "merges"};
    for (size_t k = 0; k < COUNT_OF(lists); k++) {
        char name[64];
        snprintf(name, sizeof name, "tokenizer.ggml.%s", lists[k]);
        const json_t *const a = json_object_get(spec, lists[k]);
        test_key_arr(&t->image, name, GGUF_STR, json_array_size(a));
        json_array_foreach(a, i, x)
            test_put_str(&t->image.b, json_string_value(x), json_string_length(x));
    }
    const json_t *const types = json_object_get(spec, "types");
    test_key_arr(&t->image, "tokenizer.ggml.token_type", GGUF_I32, json_array_size(types));
    json_array_foreach(types, i, x) test_put(&t->image.b, (uint64_t)json_integer_value(x), 4);
    const json_t *const eos = json_object_get(spec, "eos");
    if (eos)
        test_key_u32(&t->image, "tokenizer.ggml.eos_token_id", (uint32_t)json_integer_value(eos));
    struct err err;
    if (test_gguf_open(&t->image, &t->g, &err) || vocab_open(t->g, &t->v, &err)) {
        fprintf(stderr, "test vocabulary: %s\n", err.msg);
        abort();
    }
}

/* A JSON file; NULL when it is not there, aborts when it is broken. */
static inline json_t *test_json(const char *path)
{
    json_error_t e;
    FILE *const f = fopen(path, "rb");
    if (!f)
        return NULL;
    json_t *const j = json_loadf(f, JSON_ALLOW_NUL, &e);
    fclose(f);
    if (!j) {
        fprintf(stderr, "%s:%d: %s\n", path, e.line, e.text);
        abort();
    }
    return j;
}

/* n tokens as a trained vocabulary has them: the bytes, then each the merge of two earlier ones,
 * mostly short and of letters; the last 64 are special. */
static inline void test_vocab_big(struct test_vocab *t, uint32_t n, const char *pre)
{
    static const char seed[] = "etaoinshrdlcumwfgypbvkETAOINS=";
    const uint32_t n_special = 64;
    struct buf *const text = mem_try_array(n, sizeof *text);
    struct buf merges = BUF_INIT, key = BUF_INIT;
    json_t *const seen = json_object();
    struct rng rng = {1};
    uint64_t n_merges = 0;
    uint32_t made = 0;
    if (!text || !seen)
        abort();
    for (unsigned b = 0; b < 256; b++, made++) {
        char c[4];
        buf_add(&text[made], c, utf8_encode(alphabet_char((uint8_t)b), c));
    }
    while (made < n - n_special) {
        /* A word in \u0120 (space) and letters, grown from an earlier one or a single letter. */
        uint32_t a = rng_below(&rng, 4) ? 256 + rng_below(&rng, made - 255) : 0;
        if (a < 256 || a >= made)
            a = rng_below(&rng, 3) ? (uint8_t)seed[rng_below(&rng, sizeof seed - 1)] : ' ';
        uint32_t b = rng_below(&rng, 3) ? 0 : 256 + rng_below(&rng, made - 255);
        if (b < 256 || b >= made)
            b = (uint8_t)seed[rng_below(&rng, sizeof seed - 1)];
        buf_clear(&key);
        buf_add(&key, text[a].p, text[a].n);
        buf_add(&key, text[b].p, text[b].n);
        if (key.n > 24 || json_object_get(seen, key.p))
            continue;
        json_object_set_new(seen, key.p, json_null());
        buf_add(&text[made++], key.p, key.n);
        buf_clear(&key);
        buf_addf(&key, "%s %s", text[a].p, text[b].p);
        test_put_str(&merges, key.p, key.n);
        n_merges++;
    }
    for (uint32_t i = 0; made < n; i++)
        buf_addf(&text[made++], "<|special_%u|>", i);
    json_decref(seen);

    *t = (struct test_vocab){0};
    test_key_str(&t->image, "tokenizer.ggml.model", "gpt2");
    test_key_str(&t->image, "tokenizer.ggml.pre", pre);
    test_key_arr(&t->image, "tokenizer.ggml.tokens", GGUF_STR, n);
    for (uint32_t i = 0; i < n; i++) {
        test_put_str(&t->image.b, text[i].p, text[i].n);
        buf_release(&text[i]);
    }
    mem_free(text);
    test_key_arr(&t->image, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (uint32_t i = 0; i < n; i++)
        test_put(&t->image.b, i < n - n_special ? TOKEN_NORMAL : TOKEN_CONTROL, 4);
    test_key_arr(&t->image, "tokenizer.ggml.merges", GGUF_STR, n_merges);
    buf_add(&t->image.b, merges.p, merges.n);
    buf_release(&merges);
    buf_release(&key);
    test_key_u32(&t->image, "tokenizer.ggml.eos_token_id", n - n_special);
    struct err err;
    if (test_gguf_open(&t->image, &t->g, &err) || vocab_open(t->g, &t->v, &err)) {
        fprintf(stderr, "test vocabulary: %s\n", err.msg);
        abort();
    }
}

/* SEED of the environment, or a fixed one; print it where a random test fails. */
static inline uint64_t test_seed(void)
{
    const char *const s = getenv("SEED");
    return s ? strtoull(s, NULL, 10) : 20240607;
}

#endif
