/* What masks cost at the size of a real vocabulary (248,320 tokens).
 *
 *   text_grammar_bench
 *
 * For each grammar an output is followed token by token: mask, then accept, as sampling does.  "cold" is the
 * first output of a grammar, "warm" the same one again, "noise" what wander() says.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/rng.h"
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

/* Outputs of a model that says anything: each token is drawn from the mask, so that many more places are
 * met than by text that means something. */
static bool wander(struct grammar *g, uint32_t n_vocab, const char *name)
{
    struct rng rng = {1};
    struct err err;
    double worst = 0, all = 0;
    uint32_t n = 0;
    for (int round = 0; round < 20; round++) {
        struct grammar_state *s;
        if (grammar_state_new(g, NULL, &s, &err))
            return false;
        for (int i = 0; i < 100 && !grammar_must_end(s); i++, n++) {
            const uint64_t *bits;
            uint64_t t0 = clock_mono_ns();
            if (grammar_mask(s, &bits, &err)) {
                fprintf(stderr, "%s: %s\n", name, err.msg);
                grammar_state_free(s);
                return false;
            }
            double ms = ms_since(t0);
            token t = (token)rng_below(&rng, n_vocab);
            while (!(bits[t / 64] >> t % 64 & 1))
                t = (t + 1) % (token)n_vocab;
            t0 = clock_mono_ns();
            const bool taken = !grammar_accept(s, t, &err);
            ms += ms_since(t0);
            all += ms;
            worst = MAX(worst, ms);
            if (!taken)
                break;
        }
        grammar_state_free(s);
    }
    printf("%-22s noise %4u tokens  %8.3f ms in all  %7.4f ms a token  %7.3f ms the worst\n", name,
           n, all, all / n, worst);
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

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"note\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":400},\"text\":{\"type\":"
    "\"string\"},"
    "\"stars\":{\"type\":\"integer\"}},\"required\":[\"title\",\"text\"]}}}]";
static const char call_text[] = "<tool_call>\n<function=note>\n<parameter=title>\nThe first "
                                "program\n</parameter>\n<parameter=text>\nShe "
                                "wrote it in a note that is three times as long as the "
                                "article.\n</parameter>\n<parameter=stars>\n5\n"
                                "</parameter>\n</function>\n</tool_call>";

enum kind { OBJECT, ANY, LINES, CALL, CALL_IN_TEXT, N_KINDS };

static enum rc make(enum kind kind, struct token_trie *t, struct grammar **out, struct err *err)
{
    json_t *const schema = json_loads(person, 0, NULL), *const list = json_loads(tools, 0, NULL);
    const struct tools_grammar o = {.family = REPLY_QWEN_XML,
                                    .tools = list,
                                    .parallel = kind == CALL_IN_TEXT,
                                    .in_text = kind == CALL_IN_TEXT};
    const enum rc rc = kind == OBJECT  ? grammar_from_schema(t, schema, out, err)
                       : kind == ANY   ? grammar_json_object(t, out, err)
                       : kind == LINES ? grammar_from_gbnf(t, str_of(list_gbnf), out, err)
                                       : grammar_from_tools(t, &o, out, err);
    json_decref(schema);
    json_decref(list);
    return rc;
}

int main(void)
{
    static const char *const names[] = {"schema of an object", "any JSON object", "GBNF lines",
                                        "XML call", "XML calls in text"};
    static const char *const texts[] = {person_text, person_text, list_text, call_text, call_text};
    struct test_vocab v;
    struct token_trie *t;
    struct err err;
    test_vocab_big(&v, 248320, "qwen35");
    uint64_t t0 = clock_mono_ns();
    if (token_trie_new(v.v, &t, &err))
        return 1;
    printf("trie of 248320 tokens: %.1f ms\n", ms_since(t0));
    for (int kind = 0; kind < N_KINDS; kind++) {
        struct grammar *g;
        struct tokens ids = {0};
        t0 = clock_mono_ns();
        if (make((enum kind)kind, t, &g, &err) ||
            bpe_encode(v.v, str_of(texts[kind]), &(struct bpe_opts){0}, &ids, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        printf("%-22s compiled in %.2f ms\n", names[kind], ms_since(t0));
        if (!follow(g, &ids, names[kind], "cold") || !follow(g, &ids, names[kind], "warm"))
            return 1;
        tokens_release(&ids);
        grammar_free(g); /* once more from nothing */
        if (make((enum kind)kind, t, &g, &err) || !wander(g, 248320, names[kind]))
            return 1;
        printf("%-22s holds %.1f MB\n", names[kind], (double)grammar_bytes(g) * 1e-6);
        grammar_free(g);
    }
    token_trie_free(t);
    test_vocab_close(&v);
    return 0;
}
