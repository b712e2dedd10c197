/* What masks cost at the size of a real vocabulary (248,320 tokens).
 *
 *   text_grammar_bench
 *
 * For each grammar an output is followed token by token: mask, then accept, as sampling does.  "cold" is the
 * first output of a grammar, "warm" the same one again.
 */
#include <stdio.h>

#include "base/clock.h"
#include "text/bpe.h"
#include "text/grammar.h"
#include "text/testing_int.h"

static double ms_since(uint64_t t0)
{
    return (double)(clock_mono_ns() - t0) * 1e-6;
}

static bool follow(struct grammar *g, const struct tokens *ids, const char *name, const char *how)
{
    struct grammar_state *s;
    struct err err;
    double worst = 0;
    if (grammar_state_new(g, NULL, &s, &err))
        return false;
    const uint64_t t0 = clock_mono_ns();
    for (size_t i = 0; i < ids->n; i++) {
        const uint64_t *bits;
        const uint64_t t = clock_mono_ns();
        if (grammar_mask(s, &bits, &err) || grammar_accept(s, ids->v[i], &err)) {
            fprintf(stderr, "%s: token %zu: %s\n", name, i, err.msg);
            grammar_state_free(s);
            return false;
        }
        worst = MAX(worst, ms_since(t));
    }
    const double all = ms_since(t0);
    printf("%-22s %-5s %4zu tokens  %8.3f ms in all  %7.4f ms a token  %7.3f ms the worst\n", name,
           how, ids->n, all, all / (double)ids->n, worst);
    grammar_state_free(s);
    return true;
}

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
    "\"integer\"},"
    "\"email\":{\"type\":[\"string\",\"null\"]},\"tags\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"string\"}},\"address\":{\"type\":\"object\",\"properties\":{\"street\":{\"type\":\"string\"}"
    ","
    "\"city\":{\"type\":\"string\"},\"zip\":{\"type\":\"string\",\"pattern\":\"^[0-9]{5}$\"}},"
    "\"required\":[\"street\",\"city\"],\"additionalProperties\":false},\"notes\":{\"type\":"
    "\"string\","
    "\"maxLength\":400}},\"required\":[\"name\",\"age\",\"tags\",\"address\"],"
    "\"additionalProperties\":false}";
static const char person_text[] =
    "{\"name\": \"Ada Lovelace\", \"age\": 36, \"email\": null, \"tags\": [\"mathematics\", \"the "
    "analytical engine\", \"notes\"], \"address\": {\"street\": \"St James's Square 12\", "
    "\"city\": "
    "\"London\", \"zip\": \"10115\"}, \"notes\": \"She wrote the first program, in a note that is "
    "three "
    "times as long as the article it was added to.\\nIt computes the Bernoulli numbers.\"}";
static const char list_gbnf[] = "root ::= (\"- \" [^\\n]+ \"\\n\")+";
static const char list_text[] =
    "- one thing and another\n- the second thing\n- a third, \u00e9t\u00e9\n";

int main(void)
{
    struct test_vocab v;
    struct token_trie *t;
    struct err err;
    test_vocab_big(&v, 248320, "qwen35");
    uint64_t t0 = clock_mono_ns();
    if (token_trie_new(v.v, &t, &err))
        return 1;
    printf("trie of 248320 tokens: %.1f ms\n", ms_since(t0));
    for (int kind = 0; kind < 3; kind++) {
        static const char *const names[] = {"schema of an object", "any JSON object", "GBNF lines"};
        const char *const text = kind == 2 ? list_text : person_text;
        json_t *const schema = json_loads(person, 0, NULL);
        struct grammar *g;
        struct tokens ids = {0};
        t0 = clock_mono_ns();
        const enum rc rc = kind == 0   ? grammar_from_schema(t, schema, &g, &err)
                           : kind == 1 ? grammar_json_object(t, &g, &err)
                                       : grammar_from_gbnf(t, str_of(list_gbnf), &g, &err);
        if (rc || bpe_encode(v.v, str_of(text), &(struct bpe_opts){0}, &ids, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        printf("%-22s compiled in %.2f ms\n", names[kind], ms_since(t0));
        if (!follow(g, &ids, names[kind], "cold") || !follow(g, &ids, names[kind], "warm"))
            return 1;
        printf("%-22s holds %.1f MB\n", names[kind], (double)grammar_bytes(g) * 1e-6);
        tokens_release(&ids);
        grammar_free(g);
        json_decref(schema);
    }
    token_trie_free(t);
    test_vocab_close(&v);
    return 0;
}
