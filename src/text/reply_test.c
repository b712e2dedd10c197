#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "text/reply_testing_int.h"
#include "text/testing_int.h"
#include "text/tools.h"

#include <cmocka.h>

static json_t *tools;

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"metric\":{\"type\":\"boolean\"},\"at\":{\"type\":[\"string\",\"null\"]},"
    "\"near\":{\"type\":\"object\",\"properties\":{\"lat\":{\"type\":\"number\"}}},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"unit\":{\"enum\":[\"c\",\"f\"]},\"any\":{}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}]";

static bool nowhere(void *ctx, size_t i)
{
    (void)ctx;
    (void)i;
    return false;
}

static bool everywhere(void *ctx, size_t i)
{
    (void)ctx;
    (void)i;
    return true;
}

static bool at_one(void *ctx, size_t i)
{
    return i == *(size_t *)ctx;
}

static bool at_random(void *ctx, size_t i)
{
    (void)i;
    return rng_below(ctx, 4) == 0;
}

/* Whole, byte by byte and cut in two at every place: all give the same. */
static void expect_with(struct reply_opts o, const char *text, const char *want)
{
    const struct str s = str_of(text);
    for (size_t cut = 0; cut <= s.n; cut++) {
        struct gathered g = {0};
        feed(&g, &o, s, cut == 0 ? nowhere : cut == s.n ? everywhere : at_one, &cut);
        if (strcmp(buf_str(&g.b), want) != 0)
            fail_msg("\n%s\ncut at %zu gives\n%s\nwant\n%s", text, cut, buf_str(&g.b), want);
        gather_release(&g);
    }
}

static void expect(const char *text, const char *want)
{
    expect_with((struct reply_opts){.family = REPLY_QWEN_XML, .tools = tools}, text, want);
}

/* The text is cut off at its end. */
static void expect_cut(struct reply_opts o, const char *text, const char *want)
{
    const struct str s = str_of(text);
    for (size_t cut = 0; cut <= s.n; cut++) {
        struct gathered g = {.cut = true};
        feed(&g, &o, s, cut == 0 ? nowhere : cut == s.n ? everywhere : at_one, &cut);
        if (strcmp(buf_str(&g.b), want) != 0)
            fail_msg("\n%s\ncut at %zu gives\n%s\nwant\n%s", text, cut, buf_str(&g.b), want);
        gather_release(&g);
    }
}

static void thinking_is_told_from_content(void **state)
{
    (void)state;
    const struct reply_opts open = {.thinking_open = true}, none = {0},
                            raw = {.thinking_open = true, .keep_thinking = true};
    expect_with(none, "hello\n world \n", "C[hello\n world \n]");
    expect_with(none, "\n\nhello", "C[\n\nhello]");
    expect_with(none, "", "");
    expect_with(none, "<think>\nwhy\n</think>\n\nso\n", "R[why]C[so\n]");
    expect_with(none, " \n<think>\n\n</think>\n\nso", "C[so]");
    expect_with(none, "a <think>b</think>", "C[a <think>b</think>]");
    expect_with(none, "<think>never closed \n", "R[never closed]");
    expect_with(open, "\nwhy\n\nwhat\n</think>\n\n  so", "R[why\n\nwhat]C[  so]");
    expect_with(open, "why</think>", "R[why]");
    expect_with(open, "why</thin", "R[why</thin]");
    expect_with(open, "a < b </ </t </think>c</think>", "R[a < b </ </t]C[c</think>]");
    expect_with(open, "one</think><think>two</think>three", "R[onetwo]C[three]");
    expect_with(raw, "why</think>\n\nso", "C[why</think>\n\nso]");
    expect_with(none, "no </think> tag", "C[no </think> tag]");
}

static void xml_calls_are_read(void **state)
{
    (void)state;
    expect("<tool_call>\n<function=weather>\n<parameter=city>\nK\u00f6ln\n</parameter>\n"
           "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
           "(0 weather {\"city\":\"K\u00f6ln\",\"days\":3})");
    expect("Let me see. \n\n<tool_call>\n<function=ping>\n</function>\n</tool_call>\n",
           "C[Let me see.](0 ping {})");
    expect("<tool_call>\n<function=ping>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n"
           "</function>\n</tool_call> \n done ",
           "(0 ping {})(1 ping {})C[ \n done ]");
    /* a value keeps its own lines and may look like a tag */
    expect("<tool_call><function=weather><parameter=city>\n\n a\n<b>\n</param>\n\"q\"\\\t\n\n"
           "</parameter></function></tool_call>",
           "(0 weather {\"city\":\"\\n a\\n<b>\\n</param>\\n\\\"q\\\"\\\\\\t\\n\"})");
    expect("<tool_call><function=weather><parameter=city></parameter></function></tool_call>",
           "(0 weather {\"city\":\"\"})");
}

static void values_follow_the_schema(void **state)
{
    (void)state;
#define ONE(key, value)                                                                            \
    "<tool_call>\n<function=weather>\n<parameter=" key ">\n" value                                 \
    "\n</parameter>\n</function>\n</tool_call>"
    expect(ONE("days", "7"), "(0 weather {\"days\":7})");
    expect(ONE("days", "7.0"), "(0 weather {\"days\":7})");
    expect(ONE("days", "seven"), "(0 weather {\"days\":\"seven\"})");
    expect(ONE("city", "7"), "(0 weather {\"city\":\"7\"})");
    expect(ONE("city", "null"), "(0 weather {\"city\":\"null\"})");
    expect(ONE("at", "null"), "(0 weather {\"at\":null})");
    expect(ONE("at", "noon"), "(0 weather {\"at\":\"noon\"})");
    expect(ONE("metric", "True"), "(0 weather {\"metric\":true})");
    expect(ONE("metric", "false"), "(0 weather {\"metric\":false})");
    expect(ONE("near", "{\"lat\": \"1.5\", \"x\": [1]}"),
           "(0 weather {\"near\":{\"lat\":1.5,\"x\":[1]}})");
    expect(ONE("tags", "[\"a\", 1]"), "(0 weather {\"tags\":[\"a\",\"1\"]})");
    expect(ONE("unit", "c"), "(0 weather {\"unit\":\"c\"})");
    expect(ONE("any", "12"), "(0 weather {\"any\":\"12\"})");
    expect(ONE("any", "[1]"), "(0 weather {\"any\":[1]})");
    expect(ONE("unknown", "x"), "(0 weather {\"unknown\":\"x\"})");
    expect(ONE("near", "{'bad'"), "(0 weather {\"near\":\"{'bad'\"})");
}

static void what_was_forgotten_is_supplied(void **state)
{
    (void)state;
    static const char want[] = "(0 weather {\"city\":\"Bonn\",\"days\":2})";
    expect("<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n<parameter=days>\n2\n"
           "</function>\n</tool_call>",
           want);
    expect("<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n"
           "<parameter=days>\n2\n</parameter>\n</tool_call>",
           want);
    expect("<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n"
           "<parameter=days>\n2",
           want);
    expect("<function=weather>\n<parameter=city>\nBonn\n</parameter>\n<parameter=days>\n2\n"
           "</parameter>\n</function>\n</tool_call>",
           want);
    expect("<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n"
           "<parameter=days>\n2\n</parameter>\n</function>\n</tool_c", /* cut off inside a tag */
           want);
    expect("<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n"
           "<parameter=days>\n2\n</parameter>\n<tool_call>\n<function=ping>",
           "(0 weather {\"city\":\"Bonn\",\"days\":2})(1 ping {})");
    expect("<tool_call><function=\"weather\"><parameter='city'>Bonn</parameter>stray"
           "<parameter=city>twice</parameter><parameter=days>2</parameter></function></tool_call>",
           want);
    expect("<tool_call><function=weather>{\"city\": \"Bonn\", \"days\": \"2\"}</function>"
           "</tool_call>",
           want);
    expect("<tool_call><function=weather>{\"city\": \"Bonn\", \"days\": 2</function></tool_call>",
           want);
}

static void json_calls_are_read(void **state)
{
    (void)state;
    expect(
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\", \"days\": 2}}\n"
        "</tool_call>",
        "(0 weather {\"city\":\"Bonn\",\"days\":2})");
    expect("ok\n<tool_call>{\"name\":\"weather\",\"parameters\":{\"days\":\"2\",\"city\":5}}"
           "</tool_call>\nthen",
           "C[ok](0 weather {\"days\":2,\"city\":\"5\"})C[then]");
    expect("<tool_call>{\"name\":\"ping\",\"arguments\":\"{}\"}</tool_call>", "(0 ping {})");
    expect("<tool_call>{\"name\":\"ping\"}</tool_call>", "(0 ping {})");
    expect("<tool_call>[{\"name\":\"ping\"},{\"function\":{\"name\":\"ping\"}}]</tool_call>",
           "(0 ping {})(1 ping {})");
    expect("<tool_call>{\"name\":\"ping\"}\n{\"name\":\"ping\"}\n{\"name\":\"ping\"}</tool_call>",
           "(0 ping {})(1 ping {})(2 ping {})");
    /* brackets in strings, newlines in strings, brackets that are missing */
    expect("<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"a}\\\"{]\n</tool_call>\"}}",
           "(0 weather {\"city\":\"a}\\\"{]\\n</tool_call>\"})");
    expect("<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"x\"}</tool_call>!",
           "(0 weather {\"city\":\"x\"})C[!]");
    expect("<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"x", /* the text ends */
           "(0 weather {\"city\":\"x\"})");
    expect("<tool_call>{\"name\":\"nobody\",\"arguments\":{\"a\":1}}</tool_call>",
           "(0 nobody {\"a\":1})");
}

static void a_call_that_is_cut_off_stays_open(void **state)
{
    (void)state;
    const struct reply_opts xml = {.family = REPLY_QWEN_XML, .tools = tools};
    const struct reply_opts generic = {.family = REPLY_GENERIC, .tools = tools};
    const struct reply_opts one = {.family = REPLY_QWEN_XML, .tools = tools, .max_calls = 1};
#define CITY "<tool_call>\n<function=weather>\n<parameter=city>\nBonn"
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"<tool_call>\n<function=weather>", "(0 weather {"},
        {"<tool_call>\n<function=weather>\n<parameter=ci", "(0 weather {"},
        {"<tool_call>\n<function=weather>\n<parameter=city>", "(0 weather {\"city\":\""},
        {CITY, "(0 weather {\"city\":\"Bonn"},
        {CITY "\n", "(0 weather {\"city\":\"Bonn"},
        {CITY "\n</", "(0 weather {\"city\":\"Bonn"},
        {CITY "\n</parameter", "(0 weather {\"city\":\"Bonn"},
        {CITY "\n</parameter>", "(0 weather {\"city\":\"Bonn\""},
        {CITY "\n</parameter>\n<para", "(0 weather {\"city\":\"Bonn\""},
        {CITY "\n</parameter>\n<parameter=days>\n1", "(0 weather {\"city\":\"Bonn\",\"days\":"},
        {CITY "\n</parameter>\n</functio", "(0 weather {\"city\":\"Bonn\""},
        {CITY "\n</parameter>\n</function>", "(0 weather {\"city\":\"Bonn\"})"},
        {CITY "\n</parameter>\n</function>\n</tool", "(0 weather {\"city\":\"Bonn\"})"},
        {"<tool_call>\n<function=weather>{\"city\": \"Bo", "(0 weather {\"city\":\"Bo\""},
        {"<tool_call>\n<function=weather>{", "(0 weather {"},
        {"<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"Bo",
         "(0 weather {\"city\":\"Bo\""},
        {"<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"Bonn\"}",
         "(0 weather {\"city\":\"Bonn\""},
        {"<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"Bonn\"}}",
         "(0 weather {\"city\":\"Bonn\"})"},
        {"<tool_call>{\"name\":\"wea", "C[<tool_call>{\"name\":\"wea]"},
        {"<tool_call>[{\"name\":\"ping\"},{\"name\":\"weather\",\"arguments\":{\"days\":1",
         "(0 ping {})(1 weather {\"days\":1"},
        {"<tool_call>[{\"name\":\"ping\",\"arguments\":{}},{\"name\":\"wea", "(0 ping {})"},
        {"so <tool_c", "C[so <tool_c]"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect_cut(xml, cases[i].text, cases[i].want);
        expect_cut(generic, cases[i].text, cases[i].want);
    }
    expect_cut(generic, "{\"name\":\"weather\",\"arguments\":{\"city\":\"Bo",
               "(0 weather {\"city\":\"Bo\"");
    expect_cut(one, "<tool_call><function=ping></function></tool_call>" CITY, "(0 ping {})");
    struct gathered g = {.cut = true};
    struct reply *r;
    struct err err;
    assert_int_equal(reply_new(&xml, gather, &g, &r, &err), RC_OK);
    assert_int_equal(reply_add(r, str_of(CITY), &err), RC_OK);
    assert_int_equal(reply_cut(r, &err), RC_OK);
    assert_int_equal(reply_n_calls(r), 0);
    reply_free(r);
    gather_release(&g);
    /* the model's own end closes the call, without pieces of a tag */
    expect(CITY "\n</", "(0 weather {\"city\":\"Bonn\"})");
    expect(CITY "\n</parameter", "(0 weather {\"city\":\"Bonn\"})");
    expect(CITY " </b", "(0 weather {\"city\":\"Bonn </b\"})");
#undef CITY
}

static void what_is_no_call_is_content(void **state)
{
    (void)state;
    expect("<tool_call> is how it begins", "C[<tool_call> is how it begins]");
    expect("<tool_call>{\"x\": 1}</tool_call>", "C[<tool_call>{\"x\": 1}</tool_call>]");
    expect("<tool_call>{not json}</tool_call>", "C[<tool_call>{not json}</tool_call>]");
    expect("<tool_call>\n<functional=x>", "C[<tool_call>\n<functional=x>]");
    expect("<tool_call>\n<function=", "C[<tool_call>\n<function=]");
    expect("a <tool_cal", "C[a <tool_cal]");
    expect("<function=nobody>x</function>", "C[<function=nobody>x</function>]");
    expect("<tool_call>\n\n", "C[<tool_call>\n\n]");
    expect("a < b, c <t <tool> d <tool_call", "C[a < b, c <t <tool> d <tool_call]");
    expect("{\"name\":\"ping\"}", "C[{\"name\":\"ping\"}]");
    expect("[TOOL_CALLS] x", "C[[TOOL_CALLS] x]");
    /* a name inside another call that is not one */
    expect("<tool_call>{\"name\":\"ping\",\"arguments\":[1]}</tool_call> <tool_call>"
           "{\"name\":\"ping\"}</tool_call>",
           "C[<tool_call>{\"name\":\"ping\",\"arguments\":[1]}</tool_call>](0 ping {})");
    const struct reply_opts no_tools = {.family = REPLY_QWEN_XML};
    expect_with(no_tools, "x <tool_call>\n<function=ping>\n</function>\n</tool_call>",
                "C[x <tool_call>\n<function=ping>\n</function>\n</tool_call>]");
}

static void a_call_may_stand_inside_thinking(void **state)
{
    (void)state;
    const struct reply_opts o = {.tools = tools, .thinking_open = true};
    expect_with(o,
                "I call it.\n<tool_call>\n<function=ping>\n</function>\n</tool_call>\n</think>\n\n"
                "done",
                "R[I call it.](0 ping {})C[done]");
    expect_with(o, "I call it.\n<tool_call>\n{\"name\":\"ping\"}\n</tool_call>",
                "R[I call it.](0 ping {})");
    expect_with(o, "why\n</think>\n\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
                "R[why](0 ping {})");
    /* but not where it is talked about */
    expect_with(o, "I could write <tool_call>\n<function=ping>... </think>\n\nno",
                "R[I could write <tool_call>\n<function=ping>...]C[no]");
    expect_with(o, "so:\n<tool_call>\n<function=nobody>\n</think>\n\nno",
                "R[so:\n<tool_call>\n<function=nobody>]C[no]");
}

static void the_generic_family_knows_other_marks(void **state)
{
    (void)state;
    const struct reply_opts o = {.family = REPLY_GENERIC, .tools = tools};
    expect_with(o, "[TOOL_CALLS] [{\"name\":\"ping\",\"arguments\":{}},{\"name\":\"ping\"}]",
                "(0 ping {})(1 ping {})");
    expect_with(o, "<|python_tag|>{\"name\":\"weather\",\"parameters\":{\"city\":\"Bonn\"}}",
                "(0 weather {\"city\":\"Bonn\"})");
    expect_with(o, "{\"name\":\"weather\",\"parameters\":{\"city\":\"Bonn\"}}",
                "(0 weather {\"city\":\"Bonn\"})");
    expect_with(o, "\n {\"name\":\"nobody\",\"parameters\":{}}",
                "C[\n {\"name\":\"nobody\",\"parameters\":{}}]");
    expect_with(o, "{\"answer\": [1, 2]} and more", "C[{\"answer\": [1, 2]} and more]");
    expect_with(o, "[1] says so", "C[[1] says so]");
    expect_with(o, "[TOOL", "C[[TOOL]");
    expect_with(o, "  ", "C[  ]");
    expect_with(o, "<tool_call><function=ping></function></tool_call>", "(0 ping {})");
}

static void further_calls_are_dropped_on_request(void **state)
{
    (void)state;
    const struct reply_opts o = {.tools = tools, .max_calls = 1};
    expect_with(o,
                "<tool_call><function=ping></function></tool_call>"
                "<tool_call><function=weather><parameter=city>x</parameter></function></tool_call>"
                "end",
                "(0 ping {})C[end]");
    struct gathered g = {0};
    struct reply *r;
    struct err err;
    assert_int_equal(reply_new(&o, gather, &g, &r, &err), RC_OK);
    assert_int_equal(reply_add(r, str_of("<tool_call><function=ping>"), &err), RC_OK);
    assert_int_equal(reply_n_calls(r), 0);
    assert_int_equal(reply_add(r, str_of("</function>"), &err), RC_OK);
    assert_int_equal(reply_n_calls(r), 1);
    reply_free(r);
    gather_release(&g);
}

static void text_comes_out_as_early_as_it_can(void **state)
{
    (void)state;
    const struct reply_opts o = {.tools = tools};
    struct gathered g = {0};
    struct reply *r;
    struct err err;
    assert_int_equal(reply_new(&o, gather, &g, &r, &err), RC_OK);
    static const char *const steps[][2] = {
        {"Hel", "C[Hel"},
        {"lo wor", "C[Hello wor"},
        {"ld <", "C[Hello world"},
        {"b> \n", "C[Hello world <b>"},
        {"<tool_call><function=weather>", "C[Hello world <b>](0 weather "},
        {"<parameter=city>\nKo", "C[Hello world <b>](0 weather {\"city\":\"Ko"},
        {"ln\n", "C[Hello world <b>](0 weather {\"city\":\"Koln"},
        {"x</p", "C[Hello world <b>](0 weather {\"city\":\"Koln\\nx"},
        {"arameter>", "C[Hello world <b>](0 weather {\"city\":\"Koln\\nx\""},
    };
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        assert_int_equal(reply_add(r, str_of(steps[i][0]), &err), RC_OK);
        assert_string_equal(buf_str(&g.b), steps[i][1]);
    }
    reply_free(r);
    gather_release(&g);
}

static void no_cut_changes_what_a_reply_says(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "weather",
        "ping>",
        ">",
        "</function>",
        "<parameter=",
        "city",
        "days>",
        "</parameter>",
        "\n",
        "\n",
        " ",
        "text",
        "7",
        "{\"name\":\"ping\",\"arguments\":{}}",
        "{\"name\":\"weather\",\"arguments\":{\"city\":",
        "\"x\"",
        "}",
        "}}",
        "{",
        "[",
        "]",
        "[TOOL_CALLS]",
        "<",
        "</",
        "\"",
        "\\",
        "<|python_tag|>",
        "<tool_call>\n<function=weather>\n<parameter=city>\n",
        "<function=ping>",
        "<tool_call>\n{\"name\": \"ping\"}\n</tool_call>",
        "\u00e9",
        "\U0001f600",
    };
    struct rng rng = {test_seed()};
    struct buf text = BUF_INIT;
    for (int round = 0; round < 20000; round++) {
        buf_clear(&text);
        for (uint32_t n = rng_below(&rng, 16); n--;)
            buf_adds(&text, parts[rng_below(&rng, COUNT_OF(parts))]);
        const struct reply_opts o = {.family = (enum reply_family)rng_below(&rng, 3),
                                     .tools = rng_below(&rng, 8) ? tools : NULL,
                                     .thinking_open = rng_below(&rng, 3) == 0,
                                     .keep_thinking = rng_below(&rng, 6) == 0,
                                     .max_calls = rng_below(&rng, 4) == 0};
        struct gathered whole = {.cut = rng_below(&rng, 2) == 0}, cut = {.cut = whole.cut};
        const struct str s = {buf_str(&text), text.n};
        feed(&whole, &o, s, nowhere, NULL);
        for (int kind = 0; kind < 2; kind++) {
            feed(&cut, &o, s, kind ? at_random : everywhere, &rng);
            if (strcmp(buf_str(&whole.b), buf_str(&cut.b)) != 0)
                fail_msg("SEED=%llu round %d: %s\nwhole: %s\ncut:   %s",
                         (unsigned long long)test_seed(), round, buf_str(&text), buf_str(&whole.b),
                         buf_str(&cut.b));
            gather_release(&cut);
        }
        if (whole.in_call && json_loadb(buf_str(&whole.args), whole.args.n, 0, NULL))
            fail_msg("SEED=%llu round %d: %s\nis cut off and looks whole: %s",
                     (unsigned long long)test_seed(), round, buf_str(&text), buf_str(&whole.b));
        gather_release(&whole);
    }
    buf_release(&text);
}

static void the_family_is_read_off_the_template(void **state)
{
    (void)state;
    assert_int_equal(reply_family_of(str_of("..<tool_call>\\n<function=' + n + '><parameter=..")),
                     REPLY_QWEN_XML);
    assert_int_equal(reply_family_of(str_of("..<tool_call>\\n{\"name\": ..")), REPLY_HERMES);
    assert_int_equal(reply_family_of(str_of("[INST]")), REPLY_GENERIC);
}

static void kinds_come_from_every_part_of_a_schema(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        unsigned kinds;
    } cases[] = {
        {"{}", KIND_ANY},
        {"{\"type\":\"number\"}", KIND_NUMBER | KIND_INTEGER},
        {"{\"type\":[\"string\",\"null\"]}", KIND_STRING | KIND_NULL},
        {"{\"enum\":[1,\"a\",null]}", KIND_INTEGER | KIND_STRING | KIND_NULL},
        {"{\"const\":true}", KIND_BOOLEAN},
        {"{\"anyOf\":[{\"type\":\"array\"},{\"type\":\"null\"}]}", KIND_ARRAY | KIND_NULL},
        {"{\"allOf\":[{\"type\":[\"string\",\"null\"]},{\"type\":\"string\"}]}", KIND_STRING},
        {"{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"type\":\"boolean\"}}}", KIND_BOOLEAN},
        {"{\"$ref\":\"#\"}", KIND_ANY},
        {"{\"anyOf\":[{\"$ref\":\"#\"}]}", KIND_ANY},
        {"{\"properties\":{}}", KIND_OBJECT},
        {"{\"type\":\"nonsense\"}", KIND_ANY},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *const s = json_loads(cases[i].schema, 0, NULL);
        if (schema_kinds(s, s) != cases[i].kinds)
            fail_msg("%s: %u", cases[i].schema, schema_kinds(s, s));
        json_decref(s);
    }
    assert_int_equal(schema_kinds(NULL, NULL), KIND_ANY);
}

static void out_of_memory_is_an_error(void **state)
{
    (void)state;
    const struct reply_opts o = {.tools = tools};
    enum rc rc = RC_NOMEM;
    uint64_t n = 1;
    for (; rc == RC_NOMEM; n++) {
        struct gathered g = {0};
        struct reply *r;
        struct err err;
        assert_int_equal(reply_new(&o, gather, &g, &r, &err), RC_OK);
        buf_add(&g.b, "x", 1); /* the sink's own memory does not count */
        mem_fail_after(n);
        struct str s = str_of("<tool_call><function=weather><parameter=city>\na\"b</parameter>");
        rc = RC_OK;
        for (size_t i = 0; !rc && i < s.n; i++)
            rc = reply_add(r, (struct str){s.p + i, 1}, &err);
        if (!rc)
            rc = reply_finish(r, &err);
        mem_fail_after(0);
        reply_free(r);
        gather_release(&g);
    }
    assert_int_equal(rc, RC_OK);
    assert_true(n > 3);
}

int main(void)
{
    tools = json_loads(tools_json, 0, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_is_told_from_content),
        cmocka_unit_test(xml_calls_are_read),
        cmocka_unit_test(values_follow_the_schema),
        cmocka_unit_test(what_was_forgotten_is_supplied),
        cmocka_unit_test(json_calls_are_read),
        cmocka_unit_test(a_call_that_is_cut_off_stays_open),
        cmocka_unit_test(what_is_no_call_is_content),
        cmocka_unit_test(a_call_may_stand_inside_thinking),
        cmocka_unit_test(the_generic_family_knows_other_marks),
        cmocka_unit_test(further_calls_are_dropped_on_request),
        cmocka_unit_test(text_comes_out_as_early_as_it_can),
        cmocka_unit_test(no_cut_changes_what_a_reply_says),
        cmocka_unit_test(the_family_is_read_off_the_template),
        cmocka_unit_test(kinds_come_from_every_part_of_a_schema),
        cmocka_unit_test(out_of_memory_is_an_error),
    };
    const int bad = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(tools);
    return bad;
}
