/* Any GBNF, JSON schema or pattern: compiles or is refused with a reason; then some outputs are followed,
 * and what the mask allows is accepted.  The first byte chooses, the rest is the text. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar.h"
#include "text/testing_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct test_vocab vocab;
static struct token_trie *trie;

static void release(void)
{
    token_trie_free(trie);
    test_vocab_close(&vocab);
}

static void set_up(void)
{
    json_t *const small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    struct err err;
    test_vocab_from(&vocab, small, "qwen35");
    json_decref(small);
    CHECK(token_trie_new(vocab.v, &trie, &err) == RC_OK);
    (void)atexit(release);
}

static enum rc compile(uint8_t kind, struct str text, struct grammar **g, struct err *err)
{
    if (kind % 4 == 0)
        return grammar_from_gbnf(trie, text, g, err);
    json_t *s = NULL;
    if (kind % 4 == 2)
        s = json_pack("{s:o}", "pattern", json_stringn(text.p, text.n));
    else
        s = json_loadb(text.p, text.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!s)
        return err_set(err, RC_FORMAT, "not JSON");
    const struct tools_grammar o = {.family = (enum reply_family)(kind / 4 % 3),
                                    .tools = s,
                                    .parallel = kind & 64,
                                    .in_text = kind & 128};
    const enum rc rc =
        kind % 4 == 3 ? grammar_from_tools(trie, &o, g, err) : grammar_from_schema(trie, s, g, err);
    json_decref(s);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!trie)
        set_up();
    if (n < 2)
        return 0;
    struct grammar *g = NULL;
    struct err err = {0};
    const enum rc rc = compile(data[0], (struct str){(const char *)data + 1, n - 1}, &g, &err);
    if (rc) {
        CHECK(err.msg[0]);
        return 0;
    }
    struct rng rng = {data[n - 1] + 256u * data[n / 2]};
    const uint32_t n_tokens = vocab_size(vocab.v);
    for (int round = 0; round < 3; round++) {
        struct grammar_state *s;
        CHECK(grammar_state_new(g, round == 2 ? "a" : NULL, &s, &err) == RC_OK);
        for (int step = 0; step < 24; step++) {
            const uint64_t *bits;
            CHECK(grammar_mask(s, &bits, &err) == RC_OK);
            token t = (token)rng_below(&rng, n_tokens);
            for (uint32_t i = 0; bits && i < n_tokens && !(bits[t / 64] >> t % 64 & 1); i++)
                t = (t + 1) % (token)n_tokens;
            const bool in = !bits || (bits[t / 64] >> t % 64 & 1);
            const bool taken = grammar_accept(s, t, &err) == RC_OK;
            CHECK(round == 2 ? taken || !in : taken == in);
            if (!in || vocab_is_eog(vocab.v, t))
                break;
        }
        grammar_state_free(s);
    }
    grammar_free(g);
    return 0;
}
