#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grammar.h"
#include "text/schema_check_int.h"
#include "text/testing_int.h"

#include <cmocka.h>

static struct test_vocab vocab;
static struct token_trie *trie;

static struct grammar *gbnf(const char *text)
{
    struct grammar *g;
    struct err err;
    if (grammar_from_gbnf(trie, str_of(text), &g, &err))
        fail_msg("%s: %s", text, err.msg);
    return g;
}

static struct grammar *schema(const char *json)
{
    struct grammar *g;
    struct err err;
    json_error_t e;
    json_t *const s = json_loads(json, JSON_DECODE_ANY, &e);
    if (!s)
        fail_msg("%s: %s", json, e.text);
    if (grammar_from_schema(trie, s, &g, &err))
        fail_msg("%s: %s", json, err.msg);
    json_decref(s);
    return g;
}

/* Byte by byte; may the text end the output? */
static bool accepts(struct grammar *g, const char *text)
{
    struct grammar_state *s;
    struct err err;
    assert_int_equal(grammar_state_new(g, NULL, &s, &err), RC_OK);
    bool ok = true;
    for (; ok && *text; text++) {
        const enum rc rc = grammar_accept(s, vocab.v->byte_token[(uint8_t)*text], &err);
        assert_true(rc == RC_OK || rc == RC_ARG);
        ok = rc == RC_OK;
    }
    ok = ok && grammar_may_end(s);
    grammar_state_free(s);
    return ok;
}

/* good and bad: texts, each ended by a 0, the last empty. */
static void check(struct grammar *g, const char *what, const char *good, const char *bad)
{
    for (; *good; good += strlen(good) + 1)
        if (!accepts(g, good))
            fail_msg("%s: refuses %s", what, good);
    for (; *bad; bad += strlen(bad) + 1)
        if (accepts(g, bad))
            fail_msg("%s: takes %s", what, bad);
    grammar_free(g);
}

#define GBNF(text, good, bad) check(gbnf(text), text, good "\0", bad "\0")
#define SCHEMA(json, good, bad) check(schema(json), json, good "\0", bad "\0")

static void gbnf_says_what_it_says(void **state)
{
    (void)state;
    GBNF("root ::= \"abc\"", "abc", "ab\0abcd\0xbc");
    GBNF("root ::= \"a\" | \"b\" \"c\"\n  | \"d\"", "a\0bc\0d", "b\0ab\0ad");
    GBNF("root ::= [a-c]+ [^x-z]? # comment\n", "a\0abc\0ab1", "1\0abx\0x");
    GBNF("root ::= a* b?\na ::= \"x\"\nb ::= \"y\"", "x\0xxx\0xy\0y", "yx\0yy");
    GBNF("root ::= \"a\"{2} \"b\"{1,2} \"c\"{,1} \"d\"{2,}", "aabdd\0aabbcdddd",
         "abdd\0aabbbdd\0aabd");
    GBNF("root ::= (\"ab\" | \"c\"){2,3}", "abab\0cab\0ccc", "ab\0cccc\0aba\0a");
    GBNF("root ::= \"\\n\\t\\\"\\\\\\x41\\u00e9\" [\\]\\-]", "\n\t\"\\A\u00e9]\0\n\t\"\\A\u00e9-",
         "\n\t\"\\A\u00e9");
    GBNF("root ::= .", "a\0\u00e9\0\U0001f600\0\n", "ab\0\x80\0\xff\0\xc3");
    GBNF("root ::= [\u00e0-\u00ff] [^\\u0000-\\u07ff]", "\u00e9\u20ac\0\u00ff\U0001f600",
         "e\u20ac\0\u00e9\u00e9");
    GBNF("root ::= list\nlist ::= \"(\" list* \")\"", "()\0(()())\0((((()))))", "(\0())\0)(");
    GBNF("root ::= x | y\nx ::= \"a\" x \"b\" | \"\"\ny ::= \"a\" y | \"a\"", "ab\0aabb\0aaa\0a",
         "b\0aab\0aabbb");
    GBNF("root ::= (\"a\"?)* \"b\"", "b\0aaab", "a\0ba");
    GBNF("root ::=\n (\n \"a\" |\n \"b\"\n )\n", "a\0b", "ab");
    /* a text may be longer than the grammar's own stack would like */
    struct grammar *const g = gbnf("root ::= \"a\" root | \"b\"");
    char text[3000];
    memset(text, 'a', sizeof text);
    text[sizeof text - 2] = 'b';
    text[sizeof text - 1] = 0;
    assert_true(accepts(g, text));
    grammar_free(g);
}

static void expect_gbnf_error(const char *text, enum rc want, const char *says)
{
    struct grammar *g = NULL;
    struct err err = {0};
    const enum rc rc = grammar_from_gbnf(trie, str_of(text), &g, &err);
    if (rc != want || !strstr(err.msg, says))
        fail_msg("%s: %s \"%s\"", text, rc_name(rc), err.msg);
}

static void a_broken_gbnf_names_the_line(void **state)
{
    (void)state;
    expect_gbnf_error("root ::= \"a\"\nb := \"c\"", RC_ARG, "grammar line 2: expected ::=");
    expect_gbnf_error("\n\nroot ::= x", RC_ARG, "grammar line 3: rule 'x' is not defined");
    expect_gbnf_error("root ::= \"a", RC_ARG, "line 1: unexpected end of the line");
    expect_gbnf_error("root ::= [a", RC_ARG, "line 1: unexpected end");
    expect_gbnf_error("root ::= [z-a]", RC_ARG, "a range that ends before");
    expect_gbnf_error("root ::= (\"a\"", RC_ARG, "expected )");
    expect_gbnf_error("root ::= \"a\"{3,2}", RC_ARG, "a repetition that ends before");
    expect_gbnf_error("root ::= \"a\"{999999}", RC_ARG, "more than 100000");
    expect_gbnf_error("root ::= \"a\" )", RC_ARG, "unexpected character");
    expect_gbnf_error("root ::= \"\\q\"", RC_ARG, "unknown escape");
    expect_gbnf_error("root ::= \"\\ud800\"", RC_ARG, "not a character");
    expect_gbnf_error("root ::= \"a\"\nroot ::= \"b\"", RC_ARG, "line 2: a rule is defined twice");
    expect_gbnf_error("x ::= \"a\"", RC_ARG, "no rule 'root'");
    expect_gbnf_error("", RC_ARG, "no rule 'root'");
    expect_gbnf_error("root ::= \"a\"****************", RC_ARG, "too many repetitions");
    expect_gbnf_error("root ::= root \"a\" | \"b\"", RC_UNSUPPORTED, "'root' is left-recursive");
    expect_gbnf_error("root ::= x \"a\"\nx ::= y? root\ny ::= \"b\"", RC_UNSUPPORTED,
                      "left-recursive");
    expect_gbnf_error("root ::= (((\"a\"{1000}){1000}){1000}){1000} [^b]{100000} [^a]{100000}",
                      RC_LIMIT, "states");
    expect_gbnf_error("root ::= (\"a\"?){100000}", RC_LIMIT, "too ambiguous");
    char deep[400] = "root ::= ";
    memset(deep + 9, '(', 300);
    expect_gbnf_error(deep, RC_ARG, "nested too deeply");
}

static void schemas_allow_the_json_they_describe(void **state)
{
    (void)state;
    SCHEMA(
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},"
        "\"b\":{\"type\":\"string\"},\"c\":{\"type\":\"boolean\"}},\"required\":[\"b\"]}",
        "{\"b\":\"\"}\0{\"a\":1,\"b\":\"x\",\"c\":true}\0{ \"b\": \"x\", \"c\": false }\0"
        "{\n  \"a\": -5,\n  \"b\": \"\\u00e9\\n\"\n}",
        "{}\0{\"a\":1}\0{\"b\":\"x\",\"a\":1}\0{\"b\":1}\0{\"b\":\"x\",}\0{\"b\":\"x\",\"d\":1}\0"
        "{\"a\":01,\"b\":\"\"}\0{\"b\":\"\n\"}\0{,\"b\":\"\"}\0{\"b\":\"x\"");
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"required\":[]}",
           "{}\0{\"a\":1}\0{\"b\":null}\0{\"a\":[],\"b\":{\"x\":1}}",
           "{\"b\":1,\"a\":1}\0{\"c\":1}");
    SCHEMA("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"},\"a\\\"\":{\"type\":"
           "\"null\"}},\"additionalProperties\":{\"type\":\"integer\"}}",
           "{}\0{\"ab\":null,\"x\":1,\"abc\":2,\"a\":3,\"\":4}\0{\"a\\\"\":null,\"a\\n\":1}",
           "{\"ab\":1}\0{\"x\":null}\0{\"x\":1,\"ab\":null}");
    SCHEMA("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}",
           "{}\0{\"k\":\"v\"}\0{\"k\":\"v\",\"l\":\"w\"}", "{\"k\":1}\0[]");
    SCHEMA("{\"type\":\"object\"}", "{}\0{\"a\":{\"b\":[1,2.5e3,\"x\",null]}}", "[]\0{a:1}");
    SCHEMA("{\"type\":\"object\",\"required\":[\"k\"]}", "{\"k\":5}", "{}\0{\"x\":1}");
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[]\0[1]\0[1, 2,\n3]",
           "[1,]\0[\"a\"]\0[1 2]");
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
           "[1,2]\0[1,2,3]", "[]\0[1]\0[1,2,3,4]");
    SCHEMA("{\"type\":\"array\",\"minItems\":2}", "[1,\"a\"]\0[1,2,3,4]", "[1]");
    SCHEMA("{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":1}",
           "[1]\0[1,\"a\"]", "[]\0[\"a\"]\0[1,\"a\",2]");
    SCHEMA("{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"}}",
           "[]\0[1]\0[1,null,null]", "[null]\0[1,1]");
    SCHEMA("{\"enum\":[\"a\",1,null,[\"x\"]]}",
           "\"a\"\0"
           "1\0null\0[\"x\"]",
           "\"b\"\0"
           "2");
    SCHEMA("{\"type\":\"string\",\"enum\":[\"a\",1,\"b\"]}", "\"a\"\0\"b\"", "1");
    SCHEMA("{\"type\":[\"integer\",\"null\"],\"enum\":[\"a\",1,2.0,2.5,null]}",
           "1\0"
           "2.0\0null",
           "\"a\"\0"
           "2.5");
    SCHEMA("{\"type\":\"number\",\"const\":5}", "5", "6");
    SCHEMA("{\"const\":{\"a\":1}}", "{\"a\":1}", "{\"a\":2}");
    SCHEMA(
        "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"title\":\"T\",\"default\":null}",
        "1\0null", "\"a\"");
    SCHEMA("{\"type\":[\"string\",\"integer\"],\"anyOf\":[{\"type\":[\"number\",\"null\"]},"
           "{\"required\":[\"a\"]},{\"type\":\"array\"},{\"enum\":[true,7]}]}",
           "1\0-2\0\"x\"", "1.5\0null\0[]\0true\0{\"a\":1}");
    SCHEMA("{\"type\":\"object\",\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
           "{\"a\":1}\0{\"b\":1}", "{}\0[]");
    SCHEMA("{\"type\":\"string\",\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"anyOf\":["
           "{\"$ref\":\"#/$defs/y\"},{\"$ref\":\"#/$defs/y\"}]},\"y\":{\"enum\":[\"u\",5]}}}",
           "\"u\"", "5\0\"v\"");
    SCHEMA("{\"type\":\"array\",\"$ref\":\"#/$defs/"
           "x\",\"$defs\":{\"x\":{\"anyOf\":[{\"type\":\"null\"},"
           "{\"items\":{\"$ref\":\"#/$defs/x\"}}]}}}",
           "[]\0[null,[[]]]", "null\0[1]");
    SCHEMA("{\"type\":[\"string\",\"null\"],\"minLength\":1}", "\"a\"\0null",
           "\"\"\0"
           "1");
    SCHEMA("{\"allOf\":[{\"$ref\":\"#/$defs/p\"},{\"properties\":{\"b\":{\"type\":\"null\"}}}],"
           "\"$defs\":{\"p\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},"
           "\"required\":[\"a\"]}}}",
           "{\"a\":null}\0{\"a\":null,\"b\":null}", "{}\0{\"b\":null}");
    SCHEMA("{\"$ref\":\"#/$defs/tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":"
           "{\"v\":{\"type\":\"integer\"},\"kids\":{\"type\":\"array\",\"items\":"
           "{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"v\"]}}}",
           "{\"v\":1}\0{\"v\":1,\"kids\":[{\"v\":2},{\"v\":3,\"kids\":[]}]}",
           "{\"kids\":[]}\0{\"v\":1,\"kids\":[{}]}");
    SCHEMA("{}", "1\0\"a\"\0[{}]\0null\0-1.5e-10",
           "nul\0"
           "01\0'a'\0+1\0.5\0"
           "1.");
    SCHEMA("true", "[true]", "tru");
}

static void strings_keep_their_limits(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
           "\"ab\"\0\"\u00e9\U0001f600x\"\0\"\\n\\u00e9\"", "\"a\"\0\"abcd\"\0\"\"");
    SCHEMA("{\"type\":\"string\",\"maxLength\":200}", "\"\"\0\"abc\"", "abc");
    SCHEMA("{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}", "\"abc\"", "\"\"\0\"aB\"");
    SCHEMA("{\"pattern\":\"b+\"}", "\"b\"\0\"abba\"\0\"\\nb\"", "\"a\"\0\"\"");
    SCHEMA("{\"pattern\":\"^(a|bc){2}$|^x\"}", "\"abc\"\0\"aa\"\0\"xyz\"", "\"a\"\0\"yx\"");
    SCHEMA("{\"pattern\":\"^\\\\d{3}-\\\\w*\\\\s?[^\\\\d\\\"]$\"}",
           "\"123-ab_ .\"\0\"000-\\n\\\\\"", "\"12-a\"\0\"123-a9\"\0\"123-a\\\"\"");
    SCHEMA("{\"pattern\":\"^\\\"\\\\\\\\\\\\.\\\\u00e9$\"}", "\"\\\"\\\\.\u00e9\"", "\"x\"");
    SCHEMA("{\"pattern\":\"^(?:a|(?<n>b))+?$\"}", "\"ab\"", "\"c\"");
    SCHEMA("{\"pattern\":\"^a{x}$\"}", "\"a{x}\"", "\"a\"");
    SCHEMA("{\"type\":\"string\",\"format\":\"date\"}", "\"2024-07-26\"", "\"2024-13-01\"\0\"x\"");
    SCHEMA("{\"type\":\"string\",\"format\":\"date-time\"}",
           "\"2024-07-26T09:05:03Z\"\0\"2024-07-26T09:05:03.5+02:00\"", "\"2024-07-26\"");
    SCHEMA("{\"type\":\"string\",\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"",
           "\"123\"");
    SCHEMA("{\"type\":\"string\",\"format\":\"ipv4\"}", "\"127.0.0.1\"\0\"255.255.255.255\"",
           "\"256.1.1.1\"\0\"1.1.1\"");
    SCHEMA("{\"type\":\"string\",\"format\":\"email\"}", "\"a.b@c.org\"", "\"a@b\"\0\"@c.org\"");
}

static void numbers_keep_their_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        double lo, hi;
        bool whole, lo_open, hi_open;
    } cases[] = {
        {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}", -12, 105, true, false, false},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":7,\"exclusiveMaximum\":23}", 7, 23, true, true,
         true},
        {"{\"type\":\"integer\",\"maximum\":-99}", -1e9, -99, true, false, false},
        {"{\"type\":\"integer\",\"minimum\":98}", 98, 1e9, true, false, false},
        {"{\"type\":\"number\",\"minimum\":0}", 0, 1e9, false, false, false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":10}", 0, 10, false, true, false},
        {"{\"type\":\"number\",\"minimum\":-3,\"exclusiveMaximum\":12}", -3, 12, false, false,
         true},
        {"{\"type\":\"number\",\"minimum\":-30,\"maximum\":-2}", -30, -2, false, false, false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":-30,\"exclusiveMaximum\":-2}", -30, -2, false,
         true, true},
    };
    static const char *const fractions[] = {"", ".0", ".5", ".00", ".01", ".99"};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct grammar *const g = schema(cases[c].schema);
        for (int i = -150; i <= 150; i++)
            for (size_t f = 0; f < (cases[c].whole ? 1 : COUNT_OF(fractions)); f++) {
                char text[32];
                snprintf(text, sizeof text, "%d%s", i, fractions[f]);
                const double v = strtod(text, NULL);
                const bool want = (cases[c].lo_open ? v > cases[c].lo : v >= cases[c].lo) &&
                                  (cases[c].hi_open ? v < cases[c].hi : v <= cases[c].hi);
                if (accepts(g, text) != want)
                    fail_msg("%s: %s", cases[c].schema, text);
            }
        assert_false(accepts(g, "-0"));
        assert_false(accepts(g, "007"));
        grammar_free(g);
    }
    SCHEMA("{\"type\":\"number\",\"minimum\":-1}", "-0.5\0-1\0-1.0", "-1.5\0-2");
}

static void expect_schema_error(const char *json, enum rc want, const char *says)
{
    json_t *const s = json_loads(json, JSON_DECODE_ANY, NULL);
    struct grammar *g = NULL;
    struct err err = {0};
    assert_non_null(s);
    const enum rc rc = grammar_from_schema(trie, s, &g, &err);
    if (rc != want || !strstr(err.msg, says))
        fail_msg("%s: %s \"%s\"", json, rc_name(rc), err.msg);
    json_decref(s);
}

/* {"enum": ["v0 of the list", ...]}.  Owned by the caller. */
static char *long_enum(unsigned n, unsigned width)
{
    json_t *const list = json_array(), *const s = json_pack("{s:o}", "enum", list);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(json_array_append_new(list, json_sprintf("v%0*u of the list", width, i)),
                         0);
    char *const text = json_dumps(s, 0);
    assert_non_null(text);
    json_decref(s);
    return text;
}

static void a_long_enum_is_one_place_not_thousands(void **state)
{
    (void)state;
    char *text = long_enum(20000, 1);
    check(schema(text), "20000 values",
          "\"v0 of the list\"\0\"v19999 of the list\"\0\"v12345 of the list\"\0",
          "\"v20000 of the list\"\0\"v of the list\"\0\"v1\"\0");
    free(text);
    /* values that begin others, and the same again */
    SCHEMA("{\"enum\":[\"ab\",\"a\",\"\",\"ab\",\"abc\",1,12,1,-1]}",
           "\"\"\0\"a\"\0\"ab\"\0\"abc\"\0001\00012\0-1", "\"b\"\0\"abcd\"\0002\0-12\0-");
    text = long_enum(3000, 200);
    expect_schema_error(text, RC_LIMIT, "schema.enum: 645000 bytes of values are more than 524288");
    free(text);
}

static void what_is_not_supported_is_named(void **state)
{
    (void)state;
    static const char *const keywords[] = {"not",
                                           "if",
                                           "patternProperties",
                                           "propertyNames",
                                           "dependentRequired",
                                           "uniqueItems",
                                           "contains",
                                           "multipleOf",
                                           "minProperties",
                                           "unevaluatedProperties",
                                           "contentEncoding",
                                           "nonsense"};
    for (size_t i = 0; i < COUNT_OF(keywords); i++) {
        char json[256], says[128];
        snprintf(json, sizeof json,
                 "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\",\"%s\":{}}}}",
                 keywords[i]);
        snprintf(says, sizeof says, "schema.properties.k: the keyword \"%s\" is not supported",
                 keywords[i]);
        expect_schema_error(json, RC_UNSUPPORTED, says);
    }
    expect_schema_error("{\"type\":\"string\",\"format\":\"color\"}", RC_UNSUPPORTED,
                        "schema: the format \"color\"");
    expect_schema_error("{\"type\":\"string\",\"format\":\"date\",\"maxLength\":3}", RC_UNSUPPORTED,
                        "\"maxLength\" next to \"format\"");
    expect_schema_error("{\"type\":\"number\",\"minimum\":0.5}", RC_UNSUPPORTED, "\"minimum\"");
    expect_schema_error("{\"$ref\":\"http://x/y\"}", RC_UNSUPPORTED, "outside of the schema");
    expect_schema_error("{\"$ref\":\"#/$defs/x\"}", RC_ARG, "leads nowhere");
    expect_schema_error("{\"$ref\":\"#/$defs/x\",\"maxLength\":1,\"$defs\":{\"x\":{}}}",
                        RC_UNSUPPORTED, "\"maxLength\" next to \"$ref\" is not");
    expect_schema_error("{\"properties\":{},\"anyOf\":[{\"required\":[\"a\"]}]}", RC_UNSUPPORTED,
                        "\"properties\" next to \"anyOf\" is not");
    expect_schema_error(
        "{\"$ref\":\"#/$defs/x\",\"type\":\"null\",\"$defs\":{\"x\":{\"const\":1}}}", RC_ARG,
        "schema.$ref leads to nothing that its type allows");
    expect_schema_error("{\"type\":\"null\",\"anyOf\":[{\"type\":\"string\"},{\"enum\":[1]}]}",
                        RC_ARG, "schema.anyOf holds nothing that its type allows");
    expect_schema_error("{\"$ref\":\"#\"}", RC_UNSUPPORTED, "left-recursive");
    expect_schema_error("{\"type\":\"thing\"}", RC_ARG, "schema.type \"thing\" is unknown");
    expect_schema_error("{\"enum\":[]}", RC_ARG, "schema.enum");
    expect_schema_error("{\"items\":{\"type\":\"string\",\"const\":5}}", RC_ARG,
                        "schema.items.const holds nothing that its type allows");
    expect_schema_error("{\"type\":\"object\",\"enum\":[5,\"a\"]}", RC_ARG,
                        "schema.enum holds nothing");
    expect_schema_error("{\"type\":\"thing\",\"enum\":[5]}", RC_ARG,
                        "schema.type \"thing\" is unknown");
    expect_schema_error("{\"type\":5,\"const\":5}", RC_ARG, "schema.type is neither");
    expect_schema_error("{\"properties\":{\"a\":{}},\"required\":[\"a\",\"b\"],"
                        "\"additionalProperties\":false}",
                        RC_ARG, "schema.required names \"b\"");
    expect_schema_error("{\"anyOf\":[{\"type\":\"null\"},{\"anyOf\":5}]}", RC_ARG,
                        "schema.anyOf.1.anyOf");
    expect_schema_error("{\"items\":{\"type\":5}}", RC_ARG, "schema.items.type");
    expect_schema_error("{\"minItems\":3,\"maxItems\":2}", RC_ARG, "maxItems is less");
    expect_schema_error("{\"minLength\":-1}", RC_ARG, "schema.minLength");
    expect_schema_error("{\"maxLength\":1e9}", RC_ARG, "schema.maxLength");
    expect_schema_error("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", RC_ARG, "no number");
    expect_schema_error("false", RC_ARG, "schema is not a schema");
    expect_schema_error("{\"properties\":[]}", RC_ARG, "schema.properties");
    static const char *const patterns[][2] = {
        {"(?=a)", "looking ahead"},   {"\\\\bx", "\\b is"},   {"(a)\\\\1", "back references"},
        {"a^b", "^ and $"},           {"\\\\p{L}", "\\p{"},   {"(a", "not closed"},
        {"[a", "not closed"},         {"a)", "unexpected )"}, {"*a", "nothing to repeat"},
        {"a**", "nothing to repeat"}, {"[z-a]", "a range"},   {"a{2,1}", "a repetition"},
    };
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        char json[128];
        snprintf(json, sizeof json, "{\"pattern\":\"%s\"}", patterns[i][0]);
        const bool broken = i > 4;
        expect_schema_error(json, broken ? RC_ARG : RC_UNSUPPORTED, patterns[i][1]);
    }
}

static const char *const grammars[] = {
    "root ::= \"The \" [a-z]+ \".\"",
    "root ::= (\"a\" | \"an\" | \"and\")+ [ ]?",
    "root ::= x\nx ::= \"(\" (x \",\")* \")\" | [0-9]+",
    "root ::= .{3,9}",
    "root ::= [^\\n]* \"\\n\"",
    "root ::= \"\u00e9\"* [\u0400-\u04ff]* \"\U0001f600\"?",
    "root ::= a b c\na ::= [a-m]*\nb ::= \" \" a?\nc ::= a \"!\" | \"\"",
};
static const char *const schemas[] = {
    "{}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"n\":{\"type\":"
    "\"integer\"},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"get_weather\",\"city\"]}}},"
    "\"required\":[\"name\"],\"additionalProperties\":false}",
    "{\"type\":\"string\",\"minLength\":1,\"maxLength\":60}",
    "{\"type\":\"string\",\"pattern\":\"^(The|an?) [a-z ]*$\"}",
    "{\"type\":\"object\",\"properties\":{\"city\":{}},\"additionalProperties\":{\"type\":"
    "\"number\"}}",
    "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"minItems\":2},"
    "{\"type\":\"string\",\"format\":\"date\"}]}",
};

/* Random outputs: at each step the mask is what grammar_accept says of every token. */
static void check_masks(struct grammar *g, const char *what, const char *after, uint64_t seed)
{
    struct rng rng = {seed};
    struct err err;
    struct buf out = BUF_INIT;
    const uint32_t n = vocab_size(vocab.v);
    for (int round = 0; round < 12; round++) {
        buf_clear(&out);
        struct grammar_state *s;
        assert_int_equal(grammar_state_new(g, after, &s, &err), RC_OK);
        for (int step = 0; step < 40; step++) {
            const uint64_t *bits;
            uint32_t allowed = 0, taken = 0;
            assert_int_equal(grammar_mask(s, &bits, &err), RC_OK);
            assert_non_null(bits);
            for (token t = 0; t < (token)n; t++) {
                struct grammar_state *copy;
                const bool in = bits[t / 64] >> t % 64 & 1;
                assert_int_equal(grammar_state_copy(s, &copy, &err), RC_OK);
                const enum rc rc = grammar_accept(copy, t, &err);
                assert_true(rc == RC_OK || rc == RC_ARG);
                /* before `after` a token may be taken that the mask would not have let through */
                if (after ? in && rc : (rc == RC_OK) != in)
                    fail_msg("SEED=%llu %s: behind %s: token %d (%.*s) %s",
                             (unsigned long long)seed, what, buf_str(&out), t,
                             (int)vocab_text(vocab.v, t).n, vocab_text(vocab.v, t).p,
                             in ? "is in the mask, but refused" : "is taken, but not in the mask");
                grammar_state_free(copy);
                allowed += in && !vocab_is_eog(vocab.v, t);
                assert_int_equal(grammar_mask(s, &bits, &err), RC_OK); /* borrowed until then */
            }
            assert_int_equal(grammar_must_end(s), allowed == 0);
            if (!allowed)
                break;
            /* go on by one of them, the rarer longer ones preferred */
            token next = -1;
            for (token t = 0; t < (token)n; t++) {
                if (!(bits[t / 64] >> t % 64 & 1) || vocab_is_eog(vocab.v, t))
                    continue;
                const uint32_t weight = (uint32_t)vocab_bytes(vocab.v, t, true).n;
                taken += weight * weight;
                if (rng_below(&rng, taken) < weight * weight)
                    next = t;
            }
            assert_int_equal(grammar_accept(s, next, &err), RC_OK);
            const struct str b = vocab_bytes(vocab.v, next, true);
            buf_add(&out, b.p, b.n);
        }
        grammar_state_free(s);
    }
    buf_release(&out);
}

static void a_mask_is_what_accepting_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(grammars); i++) {
        struct grammar *const g = gbnf(grammars[i]);
        check_masks(g, grammars[i], NULL, test_seed() + i);
        grammar_free(g);
    }
    for (size_t i = 0; i < COUNT_OF(schemas); i++) {
        struct grammar *const g = schema(schemas[i]);
        check_masks(g, schemas[i], NULL, test_seed() + i);
        check_masks(g, schemas[i], "e", test_seed() + i);
        grammar_free(g);
    }
    /* strings with limits of all sizes, quoted and bare, and text around calls */
    for (int i = 0; i < 12; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
                 "\"string\",\"minLength\":%d,\"maxLength\":%d},\"t\":{\"type\":\"string\"}},"
                 "\"required\":[\"s\",\"t\"]}}}]",
                 i % 3, 3 + 2 * i);
        json_t *const tools = json_loads(text, 0, NULL);
        const struct tools_grammar o = {
            .family = i % 2 ? REPLY_QWEN_XML : REPLY_HERMES, .tools = tools, .in_text = i % 4 == 3};
        struct grammar *g;
        assert_int_equal(grammar_from_tools(trie, &o, &g, NULL), RC_OK);
        check_masks(g, text, NULL, test_seed() + (uint64_t)i);
        grammar_free(g);
        json_decref(tools);
    }
}

static void what_comes_out_is_json(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (size_t i = 0; i < COUNT_OF(schemas); i++) {
        struct grammar *const g = schema(schemas[i]);
        for (int round = 0; round < 40; round++) {
            struct grammar_state *s;
            struct buf out = BUF_INIT;
            struct err err;
            assert_int_equal(grammar_state_new(g, NULL, &s, &err), RC_OK);
            for (int step = 0; step < 4000 && !grammar_must_end(s); step++) {
                const uint64_t *bits;
                assert_int_equal(grammar_mask(s, &bits, &err), RC_OK);
                if (grammar_may_end(s) && rng_below(&rng, 4) == 0)
                    break;
                /* quotes and brackets often, so that it comes to an end */
                token t;
                do
                    t = rng_below(&rng, 3)
                            ? (token)rng_below(&rng, vocab_size(vocab.v))
                            : vocab.v->byte_token[(uint8_t) "\"}],0 "[rng_below(&rng, 6)]];
                while (!(bits[t / 64] >> t % 64 & 1) || vocab_is_eog(vocab.v, t));
                assert_int_equal(grammar_accept(s, t, &err), RC_OK);
                const struct str b = vocab_bytes(vocab.v, t, true);
                buf_add(&out, b.p, b.n);
            }
            if (grammar_may_end(s)) {
                json_error_t e;
                json_t *const j = json_loadb(out.p, out.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
                /* surrogates that stand alone are the one thing JSON's grammar lets through */
                if (!j && !strstr(e.text, "Unicode") && !strstr(e.text, "real number overflow"))
                    fail_msg("SEED=%llu %s: %s: %s", (unsigned long long)test_seed(), schemas[i],
                             buf_str(&out), e.text);
                json_decref(j);
            }
            buf_release(&out);
            grammar_state_free(s);
        }
        grammar_free(g);
    }
}

static void feed(struct grammar_state *s, const char *text, enum rc want)
{
    struct err err;
    for (; text[1]; text++)
        assert_int_equal(grammar_accept(s, vocab.v->byte_token[(uint8_t)*text], &err), RC_OK);
    assert_int_equal(grammar_accept(s, vocab.v->byte_token[(uint8_t)*text], &err), want);
}

static void a_grammar_can_begin_behind_thinking(void **state)
{
    (void)state;
    struct grammar *const g = schema("{\"type\":\"integer\"}");
    struct grammar_state *s, *copy;
    struct err err;
    const uint64_t *bits;
    assert_int_equal(grammar_state_new(g, "</think>", &s, &err), RC_OK);
    assert_int_equal(grammar_mask(s, &bits, &err), RC_OK);
    for (token t = 0; t < (token)vocab_size(vocab.v); t++)
        assert_int_equal(bits[t / 64] >> t % 64 & 1, !vocab_is_eog(vocab.v, t));
    assert_false(grammar_may_end(s));
    assert_false(grammar_must_end(s));
    feed(s, "any </thin </<</thin", RC_OK);
    assert_int_equal(grammar_state_copy(s, &copy, &err), RC_OK);
    feed(copy, "x k> 12", RC_OK); /* not yet */
    assert_false(grammar_may_end(copy));
    grammar_state_free(copy);
    feed(s, "k>", RC_OK);
    assert_false(grammar_may_end(s));
    feed(s, "\n\n\n", RC_ARG);
    feed(s, "12", RC_OK);
    assert_true(grammar_may_end(s));
    feed(s, "x", RC_ARG);
    assert_int_equal(grammar_accept(s, vocab_eos(vocab.v), &err), RC_OK);
    assert_true(grammar_must_end(s));
    feed(s, "1", RC_ARG);
    grammar_state_free(s);
    /* the tag as one token */
    assert_int_equal(grammar_state_new(g, "</think>", &s, &err), RC_OK);
    assert_int_equal(grammar_accept(s, vocab_find(vocab.v, str_of("</think>")), &err), RC_OK);
    feed(s, "7", RC_OK);
    grammar_state_free(s);
    grammar_free(g);
}

static bool masked_in(struct grammar_state *s, const char *text)
{
    const uint64_t *bits;
    const token t = vocab_find(vocab.v, str_of(text));
    if (t < 0)
        fail_msg("no token %s", text);
    assert_int_equal(grammar_mask(s, &bits, NULL), RC_OK);
    return bits[t / 64] >> t % 64 & 1;
}

static void a_token_that_runs_past_the_trigger_must_fit(void **state)
{
    (void)state;
    struct grammar *const g = gbnf("root ::= \"t\" [0-9]+");
    struct grammar_state *s;
    struct err err;
    assert_int_equal(grammar_state_new(g, "go", &s, &err), RC_OK);
    assert_true(masked_in(s, "got")); /* goes on as the grammar begins */
    assert_false(masked_in(s, "goto"));
    assert_true(masked_in(s, "ots"));
    feed(s, "g", RC_OK);
    assert_false(masked_in(s, "ots"));
    assert_true(masked_in(s, "goto")); /* not from here */
    grammar_state_free(s);
    grammar_free(g);
}

static void control_tokens_are_in_no_mask(void **state)
{
    (void)state;
    struct grammar *const g = gbnf("root ::= .*");
    struct grammar_state *s;
    struct err err;
    const uint64_t *bits;
    assert_int_equal(grammar_state_new(g, NULL, &s, &err), RC_OK);
    assert_int_equal(grammar_mask(s, &bits, &err), RC_OK);
    for (token t = 0; t < (token)vocab_size(vocab.v); t++) {
        const enum token_type type = vocab_type(vocab.v, t);
        const bool in = bits[t / 64] >> t % 64 & 1;
        if (vocab_is_eog(vocab.v, t))
            assert_true(in); /* the empty text is in the language */
        else if (type == TOKEN_CONTROL || type == TOKEN_UNUSED || type == TOKEN_UNKNOWN)
            assert_false(in);
        else if (type == TOKEN_USER)
            assert_true(in);
    }
    assert_int_equal(grammar_accept(s, -1, &err), RC_ARG);
    assert_int_equal(grammar_accept(s, (token)vocab_size(vocab.v), &err), RC_ARG);
    grammar_state_free(s);
    grammar_free(g);
}

static void a_grammar_that_costs_too_much_is_refused(void **state)
{
    (void)state;
    /* each character may be any of 1,500 places, each with characters of its own */
    struct buf b = BUF_INIT;
    buf_adds(&b, "root ::= ");
    for (int i = 0; i < 1500; i++)
        buf_addf(&b, "%s([^%c] | \"%d\")* \"%d\"", i ? " | " : "", 'a' + i % 26, i, i);
    struct grammar *g;
    struct grammar_state *s;
    struct err err = {0};
    const uint64_t *bits;
    assert_int_equal(grammar_from_gbnf(trie, str_of(b.p), &g, &err), RC_OK);
    assert_int_equal(grammar_state_new(g, NULL, &s, &err), RC_OK);
    enum rc rc = grammar_mask(s, &bits, &err);
    for (int i = 0; i < 20 && !rc; i++) {
        rc = grammar_accept(s, vocab.v->byte_token['0' + i % 10], &err);
        if (!rc)
            rc = grammar_mask(s, &bits, &err);
    }
    if (rc) /* or it was cheap enough after all; what counts is that it ends */
        assert_int_equal(rc, RC_LIMIT);
    grammar_state_free(s);
    grammar_free(g);
    buf_release(&b);
}

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"unit\":{\"enum\":[\"c\",\"f\"]}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}]";

static struct grammar *tools_grammar(enum reply_family family, const char *name, bool parallel)
{
    json_t *const tools = json_loads(tools_json, 0, NULL);
    struct grammar *g;
    struct err err;
    if (grammar_from_tools(
            trie,
            &(struct tools_grammar){
                .family = family, .tools = tools, .name = name, .parallel = parallel},
            &g, &err))
        fail_msg("%s", err.msg);
    json_decref(tools);
    return g;
}

static void a_required_call_is_written_as_the_family_does(void **state)
{
    (void)state;
#define PING "<tool_call>\n<function=ping>\n</function>\n</tool_call>"
#define BONN "<tool_call>\n<function=weather>\n<parameter=city>\nBo<nn\n\n</para\n</parameter>\n"
    check(tools_grammar(REPLY_QWEN_XML, NULL, false), "xml",
          PING "\0" BONN "</function>\n</tool_call>\0" BONN
               "<parameter=days>\n3\n</parameter>\n<parameter=unit>\nf\n</parameter>\n</function>\n"
               "</tool_call>\0\0",
          "hello\0" PING "\n" PING "\0" BONN "<parameter=days>\nx\n</parameter>\n</function>\n"
          "</tool_call>\0" BONN "<parameter=unit>\nk\n</parameter>\n</function>\n</tool_call>\0"
          "<tool_call>\n<function=weather>\n</function>\n</tool_call>\0"
          "<tool_call>\n<function=pong>\n</function>\n</tool_call>\0\0");
    check(tools_grammar(REPLY_QWEN_XML, "weather", true), "named",
          BONN "</function>\n</tool_call>\0" BONN "</function>\n</tool_call>\n" BONN
               "</function>\n</tool_call>\0\0",
          PING "\0\0");
    check(
        tools_grammar(REPLY_HERMES, NULL, false), "json",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>\0"
        "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>\0\0",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>\0\0");
    check(tools_grammar(REPLY_GENERIC, "weather", true), "generic",
          "{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\", \"days\": 2}}\0\0",
          "{\"name\": \"ping\", \"arguments\": {}}\0\0");
    struct grammar *g = NULL;
    struct err err = {0};
    json_t *const tools = json_loads(tools_json, 0, NULL);
    assert_int_equal(
        grammar_from_tools(
            trie, &(struct tools_grammar){.family = REPLY_HERMES, .tools = tools, .name = "nobody"},
            &g, &err),
        RC_ARG);
    assert_non_null(strstr(err.msg, "\"nobody\""));
    json_decref(tools);
}

/* Every kind of argument, all of them bounded. */
static const char picky_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"all\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"short\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":6},"
    "\"code\":{\"type\":\"string\",\"pattern\":\"^[a-c]{1,3}-[0-9]+x$\"},"
    "\"maybe\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"null\"}]},"
    "\"either\":{\"type\":[\"string\",\"integer\"],\"maxLength\":4},"
    "\"name\":{\"type\":\"string\",\"anyOf\":[{\"maxLength\":3},{\"enum\":[\"anyone\",5]}]},"
    "\"which\":{\"type\":\"string\",\"enum\":[\"this\",5,\"that\"]},"
    "\"unit\":{\"enum\":[\"celsius\",\"kelvin\"]},\"days\":{\"type\":\"integer\",\"minimum\":1,"
    "\"maximum\":14},\"on\":{\"type\":\"boolean\"},\"list\":{\"type\":\"array\",\"maxItems\":3,"
    "\"items\":{\"type\":\"string\",\"maxLength\":3}},\"deep\":{\"type\":\"object\",\"properties\":"
    "{"
    "\"x\":{\"type\":\"string\",\"maxLength\":5}},\"required\":[\"x\"],\"additionalProperties\":"
    "false}},"
    "\"required\":[\"short\",\"code\",\"name\",\"which\",\"either\",\"unit\",\"days\",\"list\","
    "\"deep\"],"
    "\"additionalProperties\":false}}}]";

struct parsed {
    struct buf content, args;
    uint32_t n_calls;
};

static void note_event(void *ctx, const struct reply_event *e)
{
    struct parsed *const p = ctx;
    p->n_calls += e->kind == REPLY_CALL_END;
    if (e->kind == REPLY_ARGS)
        buf_add(&p->args, e->text.p, e->text.n);
    else if (e->kind == REPLY_CONTENT)
        buf_add(&p->content, e->text.p, e->text.n);
}

/* Tokens drawn from the mask until the end, special ones too. */
static void babble(struct grammar *g, struct rng *rng, struct buf *out)
{
    struct grammar_state *s;
    struct err err;
    const uint32_t n = vocab_size(vocab.v);
    assert_int_equal(grammar_state_new(g, NULL, &s, &err), RC_OK);
    for (int steps = 0; !grammar_must_end(s) && steps < 4000; steps++) {
        const uint64_t *bits;
        if (grammar_mask(s, &bits, &err))
            fail_msg("%s", err.msg);
        token t = (token)rng_below(rng, n);
        while (!(bits[t / 64] >> t % 64 & 1))
            t = (t + 1) % (token)n;
        assert_int_equal(grammar_accept(s, t, &err), RC_OK);
        if (vocab_is_eog(vocab.v, t))
            break;
        const struct str bytes = vocab_bytes(vocab.v, t, true);
        buf_add(out, bytes.p, bytes.n);
    }
    assert_true(grammar_may_end(s));
    grammar_state_free(s);
}

static void what_is_called_comes_back_from_the_parser_and_fits_the_schema(void **state)
{
    (void)state;
    json_t *const tools = json_loads(picky_tools, 0, NULL);
    const json_t *const schema =
        json_object_get(json_object_get(json_array_get(tools, 0), "function"), "parameters");
    struct rng rng = {test_seed()};
    struct err err;
    for (int family = 0; family < 3; family++) {
        const struct tools_grammar o = {.family = (enum reply_family)family, .tools = tools};
        struct grammar *g;
        if (grammar_from_tools(trie, &o, &g, &err))
            fail_msg("%s", err.msg);
        for (int round = 0; round < 200; round++) {
            struct buf out = BUF_INIT;
            struct parsed p = {.content = BUF_INIT, .args = BUF_INIT};
            const struct reply_opts ro = {.family = o.family, .tools = tools};
            struct reply *r;
            babble(g, &rng, &out);
            assert_int_equal(reply_new(&ro, note_event, &p, &r, &err), RC_OK);
            assert_int_equal(reply_add(r, (struct str){out.p, out.n}, &err), RC_OK);
            assert_int_equal(reply_finish(r, &err), RC_OK);
            reply_free(r);
            json_t *const args =
                json_loadb(p.args.p ? p.args.p : "", p.args.n, JSON_ALLOW_NUL, NULL);
            if (p.n_calls != 1 || p.content.n || !args || !fits_schema(schema, args))
                fail_msg("SEED=%llu: %u calls, content '%s', arguments %s of: %s",
                         (unsigned long long)test_seed(), p.n_calls, buf_str(&p.content),
                         buf_str(&p.args), buf_str(&out));
            json_decref(args);
            buf_release(&p.content);
            buf_release(&p.args);
            buf_release(&out);
        }
        grammar_free(g);
    }
    json_decref(tools);
}

static void bare_strings_keep_their_limits(void **state)
{
    (void)state;
    json_t *const tools = json_loads(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\","
        "\"minLength\":2,\"maxLength\":4}},\"required\":[\"s\"]}}}]",
        0, NULL);
    const struct tools_grammar o = {.family = REPLY_QWEN_XML, .tools = tools};
    struct grammar *g;
    assert_int_equal(grammar_from_tools(trie, &o, &g, NULL), RC_OK);
#define CALL(text)                                                                                 \
    "<tool_call>\n<function=f>\n<parameter=s>\n" text "\n</parameter>\n</function>\n</tool_call>"
    check(
        g, "limits",
        CALL("ab") "\0" CALL("\u00e9\u20ac\U0001f600x") "\0" CALL("\n\n\n") "\0" CALL("</pa") "\0",
        CALL("a") "\0" CALL("abcde") "\0" CALL("a\x01") "\0" CALL("") "\0" CALL("\xff\xff") "\0");
    json_decref(tools);
    /* what would end the value early for the parser is not let through */
    json_t *const open =
        json_loads("[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":"
                   "{\"type\":\"string\"}},\"required\":[\"s\"]}}}]",
                   0, NULL);
    const struct tools_grammar p = {.family = REPLY_QWEN_XML, .tools = open};
    assert_int_equal(grammar_from_tools(trie, &p, &g, NULL), RC_OK);
    check(g, "marks", CALL("") "\0" CALL("<parameter=x>") "\0" CALL("a</tool_call>") "\0",
          CALL("a</parameter>b") "\0" CALL("a\n<parameter=x>") "\0" CALL("a\n</tool_call>") "\0");
    json_decref(open);
}

static void calls_may_stand_in_text_and_beside_json(void **state)
{
    (void)state;
    json_t *const tools = json_loads(tools_json, 0, NULL), *const content = json_loads(
                                                               "{\"type\":\"integer\"}", 0, NULL);
    struct tools_grammar o = {
        .family = REPLY_QWEN_XML, .tools = tools, .parallel = true, .in_text = true};
    struct grammar *g;
    assert_int_equal(grammar_from_tools(trie, &o, &g, NULL), RC_OK);
    check(g, "in text",
          "hello, <b>\0" PING "\0well\n" PING "\n" PING " so\0" BONN
          "</function>\n</tool_call>\0<tool\0",
          "<tool_call>\0well <tool_call>\n{}\0<function=ping>\n</function>\0" PING "<tool_call>\0");
    o.parallel = false;
    assert_int_equal(grammar_from_tools(trie, &o, &g, NULL), RC_OK);
    check(g, "one in text", "hello\0well\n" PING "\0", PING PING "\0");
    o.in_text = false;
    o.content = content;
    assert_int_equal(grammar_from_tools(trie, &o, &g, NULL), RC_OK);
    check(g, "or JSON", "12\0" PING "\0", "hello\0" PING "12\0");
    o = (struct tools_grammar){.family = REPLY_GENERIC, .tools = tools, .in_text = true};
    assert_int_equal(grammar_from_tools(trie, &o, &g, NULL), RC_UNSUPPORTED);
    json_decref(tools);
    json_decref(content);
}

static void json_object_is_an_object(void **state)
{
    (void)state;
    struct grammar *g;
    struct err err;
    assert_int_equal(grammar_json_object(trie, &g, &err), RC_OK);
    assert_true(grammar_bytes(g) > 1000);
    check(g, "json_object", "{}\0{\"a\": [1, {\"b\": null}]}\0\0",
          "[]\0"
          "1\0{\0\0");
}

static void out_of_memory_is_an_error_and_passes(void **state)
{
    (void)state;
    json_t *const s = json_loads(schemas[1], 0, NULL);
    enum rc rc = RC_NOMEM;
    uint64_t n = 1;
    for (; rc == RC_NOMEM; n++) {
        struct grammar *g = NULL;
        struct err err;
        mem_fail_after(n);
        rc = grammar_from_schema(trie, s, &g, &err);
        mem_fail_after(0);
        if (!rc)
            grammar_free(g);
    }
    assert_int_equal(rc, RC_OK);
    json_decref(s);
    struct grammar *const g = schema(schemas[1]);
    struct grammar_state *st;
    struct err err;
    const uint64_t *bits;
    assert_int_equal(grammar_state_new(g, NULL, &st, &err), RC_OK);
    for (n = 1, rc = RC_NOMEM; rc == RC_NOMEM; n++) {
        struct grammar_state *copy;
        assert_int_equal(grammar_state_copy(st, &copy, &err), RC_OK);
        mem_fail_after(n);
        rc = grammar_mask(copy, &bits, &err);
        if (!rc)
            rc = grammar_accept(copy, vocab.v->byte_token['{'], &err);
        if (!rc)
            rc = grammar_mask(copy, &bits, &err);
        mem_fail_after(0);
        grammar_state_free(copy);
    }
    assert_int_equal(rc, RC_OK);
    assert_true(n > 2);
    grammar_state_free(st);
    grammar_free(g);
    struct token_trie *t = NULL;
    for (n = 1, rc = RC_NOMEM; rc == RC_NOMEM; n++) {
        mem_fail_after(n);
        rc = token_trie_new(vocab.v, &t, &err);
        mem_fail_after(0);
    }
    assert_int_equal(rc, RC_OK);
    token_trie_free(t);
}

int main(void)
{
    json_t *const small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    struct err err;
    test_vocab_from(&vocab, small, "qwen35");
    json_decref(small);
    if (token_trie_new(vocab.v, &trie, &err))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gbnf_says_what_it_says),
        cmocka_unit_test(a_broken_gbnf_names_the_line),
        cmocka_unit_test(schemas_allow_the_json_they_describe),
        cmocka_unit_test(strings_keep_their_limits),
        cmocka_unit_test(numbers_keep_their_bounds),
        cmocka_unit_test(a_long_enum_is_one_place_not_thousands),
        cmocka_unit_test(what_is_not_supported_is_named),
        cmocka_unit_test(a_mask_is_what_accepting_says),
        cmocka_unit_test(what_comes_out_is_json),
        cmocka_unit_test(a_grammar_can_begin_behind_thinking),
        cmocka_unit_test(a_token_that_runs_past_the_trigger_must_fit),
        cmocka_unit_test(control_tokens_are_in_no_mask),
        cmocka_unit_test(a_grammar_that_costs_too_much_is_refused),
        cmocka_unit_test(a_required_call_is_written_as_the_family_does),
        cmocka_unit_test(what_is_called_comes_back_from_the_parser_and_fits_the_schema),
        cmocka_unit_test(bare_strings_keep_their_limits),
        cmocka_unit_test(calls_may_stand_in_text_and_beside_json),
        cmocka_unit_test(json_object_is_an_object),
        cmocka_unit_test(out_of_memory_is_an_error_and_passes),
    };
    const int bad = cmocka_run_group_tests(tests, NULL, NULL);
    token_trie_free(trie);
    test_vocab_close(&vocab);
    return bad;
}
