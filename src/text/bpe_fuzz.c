/* Any bytes: encoding and decoding gives back what unicode_clean makes of the fragments, and never
 * a token outside the vocabulary.  The first byte chooses vocabulary and options. */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/bpe.h"
#include "text/detok.h"
#include "text/testing_int.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct test_vocab vocabs[4];

static void set_up(void)
{
    static const char *const pres[] = {"qwen35", "qwen2", "llama-bpe", "gpt-2"};
    json_t *const small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    for (size_t i = 0; i < COUNT_OF(pres); i++)
        test_vocab_from(&vocabs[i], small, pres[i]);
    json_decref(small);
}

static void release(void)
{
    for (size_t i = 0; i < COUNT_OF(vocabs); i++)
        test_vocab_close(&vocabs[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!vocabs[0].v) {
        set_up();
        (void)atexit(release);
    }
    if (!n)
        return 0;
    const struct vocab *const v = vocabs[data[0] & 3].v;
    const struct bpe_opts o = {.parse_special = data[0] & 4};
    const struct str text = {(const char *)data + 1, n - 1};
    struct tokens ids = {0};
    struct buf want = BUF_INIT, raw = BUF_INIT, shown = BUF_INIT;
    struct detok d;
    struct err err;
    CHECK(bpe_encode(v, text, &o, &ids, &err) == RC_OK);
    unicode_clean(text, &want);
    detok_init(&d, true);
    for (size_t i = 0; i < ids.n; i++) {
        CHECK(ids.v[i] >= 0 && (uint32_t)ids.v[i] < vocab_size(v));
        const struct str s = vocab_bytes(v, ids.v[i], true);
        buf_add(&raw, s.p, s.n);
        detok_add(&d, v, ids.v[i], &shown);
        CHECK(utf8_valid(buf_str(&shown), shown.n));
    }
    /* Specials are ASCII, so cutting them out splits no valid character and cleaning the fragments
     * is cleaning the whole. */
    CHECK(raw.n == want.n && (raw.n == 0 || !memcmp(raw.p, want.p, raw.n)));
    tokens_release(&ids);
    buf_release(&want);
    buf_release(&raw);
    buf_release(&shown);
    return 0;
}
