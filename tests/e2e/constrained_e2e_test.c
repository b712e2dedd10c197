/* Constrained answers through HTTP, with a model of random weights: it would say noise, so whatever is right
 * about an answer is the grammar's doing.  A hook only closes its thinking, which noise never would. */
#include "inproc_int.h"

#include "text/schema_check_int.h"

/* What the hook says: token n of every answer; where it says nothing, the model does. */
static struct {
    uint32_t n;
    const char *token;
} said[2];

static token say(void *ctx, const struct job_desc *d, uint32_t n)
{
    (void)ctx;
    (void)d;
    for (size_t i = 0; i < COUNT_OF(said); i++)
        if (said[i].token && said[i].n == n)
            return vocab_find(vocab, str_of(said[i].token));
    return -1;
}

static void open_server(const char *template)
{
    const struct host_opts o = {.n_threads = 2, .n_ctx = 4096, .cache_ram_mib = 256, .say = say};
    memset(said, 0, sizeof said);
    inproc_open(template, &o);
}

static void close_thinking_at(uint32_t n)
{
    said[0].n = n;
    said[0].token = "</think>";
}

/* ---- asking ---- */

PRINTF_LIKE(2, 3) static void post(const char *path, const char *fmt, ...)
{
    char body[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(body, sizeof body, fmt, ap);
    va_end(ap);
    const int status = ask(&server, "POST", path, body);
    if (status != 200)
        fail_msg("%s %s: %d %s", path, body, status, buf_str(&server.reply));
}

static void assert_fits(const char *schema, const char *text, size_t n, const char *what)
{
    json_t *const s = js(schema);
    json_error_t e;
    json_t *const v = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (!v)
        fail_msg("%s: %s: %.*s", what, e.text, (int)n, text);
    if (!fits_schema(s, v))
        fail_msg("%s: %.*s does not fit %s", what, (int)n, text, schema);
    json_decref(v);
    json_decref(s);
}

static void assert_text_fits(const char *schema, const char *path, const char *what)
{
    text_at(server.json, path);
    const json_t *const v = at(server.json, path);
    assert_fits(schema, json_string_value(v), json_string_length(v), what);
}

/* A streamed reply's deltas, put together; piece is where one stands in an event. */
static void stream(const char *path, const char *body, const char *piece, struct buf *out)
{
    struct err err = {0};
    bool end = false;
    buf_clear(out);
    if (client_begin(server.client, "POST", path, str_of(body), &err))
        fail_msg("%s", err.msg);
    assert_int_equal(client_status(server.client), 200);
    while (!end) {
        struct sse_event e;
        assert_int_equal(client_event(server.client, &e, &end, NULL), RC_OK);
        if (end || str_is(e.data, "[DONE]"))
            continue;
        json_t *const v = parse(e.data);
        const json_t *const p = at(v, piece);
        assert_null(at(v, "error"));
        if (json_is_string(p))
            buf_add(out, json_string_value(p), json_string_length(p));
        json_decref(v);
    }
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me.\"}]"
#define NO_THINKING "\"chat_template_kwargs\":{\"enable_thinking\":false}"

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":10},\"age\":{"
    "\"type\":\"integer\",\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":\"array\",\"items\":{"
    "\"type\":\"string\",\"maxLength\":4},\"maxItems\":3}},\"required\":[\"name\",\"age\",\"tags\"]"
    ","
    "\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"red\",\"green\",null]},\"code\":{"
    "\"type\":\"string\",\"pattern\":\"^[a-z]{2,4}-[0-9]{1,3}$\"},\"inner\":{\"anyOf\":[{\"type\":"
    "\"boolean\"},{\"type\":\"object\",\"properties\":{\"x\":{\"type\":[\"integer\",\"null\"]}},"
    "\"required\":[\"x\"],\"additionalProperties\":false}]}},\"required\":[\"kind\",\"code\","
    "\"inner\"],\"additionalProperties\":false}",
    "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"minItems\":1,\"maxItems\":4}",
};

/* ---- formats ---- */

static void every_reply_under_a_schema_fits_it(void **state)
{
    (void)state;
    struct buf out = BUF_INIT;
    open_server("qwen35_xml");
    for (unsigned i = 0; i < 24; i++) {
        const char *const schema = schemas[i % COUNT_OF(schemas)];
        const double temperature = i % 4 ? 1.3 : 0;
        char body[4096];
        memset(said, 0, sizeof said);
        if (i % 2)
            close_thinking_at(i % 5);
        snprintf(body, sizeof body,
                 "{" MESSAGES ",%s\"seed\":%u,\"temperature\":%g,\"response_format\":{\"type\":"
                 "\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":%s}}",
                 i % 2 ? "" : NO_THINKING ",", i, temperature, schema);
        post("/v1/chat/completions", "%s}", body);
        assert_text_fits(schema, "choices.0.message.content", "chat");
        assert_string_equal(text_at(server.json, "choices.0.finish_reason"), "stop");
        json_t *const whole = keep_text(server.json, "choices.0.message.content");
        /* streamed it is the same */
        strcat(body, ",\"stream\":true}");
        stream("/v1/chat/completions", body, "choices.0.delta.content", &out);
        assert_string_equal(buf_str(&out), json_string_value(whole));
        json_decref(whole);
    }
    inproc_close();
    buf_release(&out);
}

static void every_protocol_keeps_a_schema(void **state)
{
    (void)state;
    open_server("qwen35_xml");
    for (unsigned i = 0; i < 6; i++) {
        const char *const schema = schemas[i % COUNT_OF(schemas)];
        memset(said, 0, sizeof said);
        post("/completion",
             "{\"prompt\":\"say\",\"seed\":%u,\"temperature\":1.2,\"json_schema\":%s}", i, schema);
        assert_text_fits(schema, "content", "completion");
        assert_string_equal(text_at(server.json, "stop_type"), "eos");
        post(
            "/v1/completions",
            "{\"prompt\":\"say\",\"seed\":%u,\"n\":3,\"response_format\":{\"type\":\"json_object\","
            "\"schema\":%s}}",
            i, schema);
        for (unsigned k = 0; k < 3; k++) {
            char path[32];
            snprintf(path, sizeof path, "choices.%u.text", k);
            assert_text_fits(schema, path, "completions");
        }
        close_thinking_at(3);
        post("/v1/responses",
             "{\"input\":\"Tell me.\",\"seed\":%u,\"text\":{\"format\":{\"type\":\"json_schema\","
             "\"name\":\"n\",\"schema\":%s}}}",
             i, schema);
        assert_string_equal(text_at(server.json, "output.0.type"), "reasoning");
        assert_text_fits(schema, "output.1.content.0.text", "responses");
        post("/v1/messages",
             "{" MESSAGES ",\"max_tokens\":2000,\"seed\":%u,\"output_format\":{\"type\":"
             "\"json_schema\",\"schema\":%s}}",
             i, schema);
        assert_string_equal(text_at(server.json, "content.0.type"), "thinking");
        assert_text_fits(schema, "content.1.text", "messages");
        assert_string_equal(text_at(server.json, "stop_reason"), "end_turn");
    }
    inproc_close();
}

static void a_grammar_is_followed_and_the_seed_repeats_it_cold_and_warm(void **state)
{
    (void)state;
    static const char body[] =
        "{\"prompt\":\"A prompt of some length, so that there is something to be kept of it: one, "
        "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, "
        "fifteen, sixteen, and so on and on.\","
        "\"temperature\":1.5,\"top_k\":0,\"seed\":5,\"repeat_penalty\":1.1,\"n_probs\":2,"
        "\"grammar\":"
        "\"root ::= line line line\\nline ::= \\\"- \\\" [a-z]{3,9} \\\"\\\\n\\\"\"%s}";
    open_server("qwen35_xml");
    post("/completion", body, "");
    json_t *const cold = keep_text(server.json, "content");
    assert_true(matches("^- [a-z]{3,9}\n- [a-z]{3,9}\n- [a-z]{3,9}\n$", json_string_value(cold)));
    assert_int_equal(int_at(server.json, "timings.cache_n"), 0);
    post("/completion", body, "");
    assert_true(int_at(server.json, "timings.cache_n") > 0);
    assert_text(server.json, "content", cold);
    post("/completion", body, ",\"cache_prompt\":false");
    assert_text(server.json, "content", cold);
    post("/completion", body,
         ",\"stop\":[\"\\n- \"]"); /* stop strings go before the grammar's end */
    assert_string_equal(text_at(server.json, "stop_type"), "word");
    json_decref(cold);
    inproc_close();
}

/* ---- calls ---- */

#define ARGUMENTS                                                                                  \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"minLength\":1,"          \
    "\"maxLength\":8},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{"     \
    "\"enum\":[\"c\",\"f\"]},\"near\":{\"type\":\"array\",\"items\":{\"type\":\"string\","         \
    "\"maxLength\":5},\"maxItems\":2}},\"required\":[\"city\",\"days\",\"unit\",\"near\"],"        \
    "\"additionalProperties\":false}"
#define FUNCTION "\"name\":\"weather\",\"description\":\"d\",\"parameters\":" ARGUMENTS
#define PING "\"name\":\"ping\",\"parameters\":{\"type\":\"object\",\"properties\":{}}"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{" FUNCTION                                    \
    "}},{\"type\":\"function\",\"function\":{" PING "}}]"

static void assert_call_fits(const char *name, const char *path)
{
    assert_text_fits(!strcmp(name, "weather") ? ARGUMENTS : "{\"type\":\"object\"}", path, name);
}

static void a_call_that_has_to_come_comes_with_arguments_that_fit(void **state)
{
    (void)state;
    static const char *const templates[] = {"qwen35_xml", "chatml_tools", "llama3_headers"};
    struct buf out = BUF_INIT;
    for (size_t t = 0; t < COUNT_OF(templates); t++) {
        open_server(templates[t]);
        for (unsigned i = 0; i < 10; i++) {
            const bool thinks = t == 0 && i % 2; /* the others' prompts do not open it */
            char body[4096];
            memset(said, 0, sizeof said);
            if (thinks)
                close_thinking_at(4);
            snprintf(body, sizeof body,
                     "{" MESSAGES "," TOOLS ",%s\"seed\":%u,\"temperature\":1.3,"
                     "\"parallel_tool_calls\":false,\"tool_choice\":%s",
                     thinks ? "" : NO_THINKING ",", i,
                     i % 3 ? "\"required\""
                           : "{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}");
            post("/v1/chat/completions", "%s}", body);
            const char *const name =
                text_at(server.json, "choices.0.message.tool_calls.0.function.name");
            assert_true(!strcmp(name, "weather") || (i % 3 && !strcmp(name, "ping")));
            assert_call_fits(name, "choices.0.message.tool_calls.0.function.arguments");
            assert_true(json_is_null(at(server.json, "choices.0.message.content")));
            assert_string_equal(text_at(server.json, "choices.0.finish_reason"), "tool_calls");
            json_t *const args =
                keep_text(server.json, "choices.0.message.tool_calls.0.function.arguments");
            strcat(body, ",\"stream\":true}");
            stream("/v1/chat/completions", body, "choices.0.delta.tool_calls.0.function.arguments",
                   &out);
            assert_string_equal(buf_str(&out), json_string_value(args));
            json_decref(args);
        }
        inproc_close();
    }
    buf_release(&out);
}

static void the_other_protocols_calls_fit_too(void **state)
{
    (void)state;
    open_server("qwen35_xml");
    close_thinking_at(4);
    for (unsigned i = 0; i < 6; i++) {
        post("/v1/responses",
             "{\"input\":\"Tell "
             "me.\",\"seed\":%u,\"parallel_tool_calls\":false,\"tools\":[{\"type\":"
             "\"function\"," FUNCTION "}],\"tool_choice\":%s}",
             i, i % 2 ? "\"required\"" : "{\"type\":\"function\",\"name\":\"weather\"}");
        assert_string_equal(text_at(server.json, "output.1.type"), "function_call");
        assert_call_fits("weather", "output.1.arguments");
        post("/v1/messages",
             "{" MESSAGES ",\"max_tokens\":2000,\"seed\":%u,\"tools\":[{\"name\":\"weather\","
             "\"input_schema\":" ARGUMENTS
             "}],\"tool_choice\":{\"disable_parallel_tool_use\":true,%s}}",
             i, i % 2 ? "\"type\":\"any\"" : "\"type\":\"tool\",\"name\":\"weather\"");
        assert_string_equal(text_at(server.json, "content.1.type"), "tool_use");
        json_t *const schema = js(ARGUMENTS);
        assert_true(fits_schema(schema, at(server.json, "content.1.input")));
        json_decref(schema);
        assert_string_equal(text_at(server.json, "stop_reason"), "tool_use");
    }
    inproc_close();
}

static void several_calls_may_come_where_several_are_allowed(void **state)
{
    (void)state;
    unsigned most = 0;
    open_server("chatml_tools");
    for (unsigned i = 0; i < 8; i++) {
        post("/v1/chat/completions",
             "{" MESSAGES "," TOOLS ",\"seed\":%u,\"max_tokens\":400,\"tool_choice\":\"required\","
             "\"logit_bias\":{\"\\n\":3}}",
             i);
        const json_t *const calls = at(server.json, "choices.0.message.tool_calls");
        const unsigned n = (unsigned)json_array_size(calls);
        const bool whole = !strcmp(text_at(server.json, "choices.0.finish_reason"), "tool_calls");
        for (unsigned k = 0; k < n - !whole; k++) {
            char path[96];
            snprintf(path, sizeof path, "choices.0.message.tool_calls.%u.function.name", k);
            const char *const name = text_at(server.json, path);
            snprintf(path, sizeof path, "choices.0.message.tool_calls.%u.function.arguments", k);
            assert_call_fits(name, path);
        }
        most = n > most ? n : most;
    }
    assert_true(most > 1);
    inproc_close();
}

static void a_strict_tools_calls_fit_where_the_model_makes_one_by_itself(void **state)
{
    (void)state;
    open_server("qwen35_xml");
    close_thinking_at(2);
    said[1].n = 9;
    said[1].token = "<tool_call>";
    for (unsigned i = 0; i < 6; i++) {
        post("/v1/chat/completions",
             "{" MESSAGES
             ",\"tools\":[{\"type\":\"function\",\"function\":{\"strict\":true," FUNCTION
             "}}],\"seed\":%u,\"temperature\":1.2,\"parallel_tool_calls\":false}",
             i);
        assert_call_fits("weather", "choices.0.message.tool_calls.0.function.arguments");
    }
    inproc_close();
}

/* ---- the end ---- */

static void an_answer_cut_short_is_no_error_and_one_cancelled_leaves_nothing(void **state)
{
    (void)state;
    open_server("qwen35_xml");
    post("/v1/chat/completions",
         "{" MESSAGES ",\"max_tokens\":3,\"response_format\":{\"type\":\"json_object\"}}");
    assert_string_equal(text_at(server.json, "choices.0.finish_reason"), "length");
    for (int i = 0; i < 4; i++) {
        struct client *const c = program_client(&server);
        struct sse_event e;
        bool end = false;
        assert_int_equal(
            client_begin(
                c, "POST", "/completion",
                str_of("{\"prompt\":\"a\",\"stream\":true,\"grammar\":\"root ::= [a-z] root\"}"),
                NULL),
            RC_OK);
        for (int k = 0; k <= i && !end; k++)
            assert_int_equal(client_event(c, &e, &end, NULL), RC_OK);
        assert_false(end);
        client_free(c);
    }
    size_t n_busy;
    do {
        assert_int_equal(ask(&server, "GET", "/slots", NULL), 200);
        n_busy = 0;
        for (size_t i = 0; i < json_array_size(server.json); i++)
            n_busy +=
                json_is_true(json_object_get(json_array_get(server.json, i), "is_processing"));
    } while (n_busy);
    inproc_close();
}

static void a_grammar_that_leads_nowhere_is_an_error_not_a_hang(void **state)
{
    (void)state;
    open_server("qwen35_xml");
    assert_int_equal(ask(&server, "POST", "/completion",
                         "{\"prompt\":\"a\",\"grammar\":\"root ::= \\\"0\\\"\",\"logit_bias\":"
                         "[[\"0\",false]]}"),
                     400);
    assert_non_null(strstr(text_at(server.json, "error.message"), "grammar"));
    inproc_close();
}

static void a_grammar_found_too_large_while_it_runs_is_named(void **state)
{
    struct buf body = BUF_INIT;
    (void)state;
    open_server("qwen35_xml");
    buf_adds(&body, "{\"prompt\":\"a\",\"n_predict\":4,\"grammar\":\"root ::= \\\"x\\\"");
    for (unsigned i = 1; i < 5000; i++)
        buf_addf(&body, " | \\\"x%u\\\"", i);
    buf_adds(&body, "\"}");
    assert_int_equal(ask(&server, "POST", "/completion", buf_str(&body)), 400);
    assert_string_equal(text_at(server.json, "error.param"), "grammar");
    assert_non_null(strstr(text_at(server.json, "error.message"), "more than 4096 of its places"));
    buf_release(&body);
    inproc_close();
}

static void the_client_libraries_get_what_they_asked_for(void **state)
{
    (void)state;
    char command[1024];
    if (system("node --version >/dev/null 2>&1") ||
        access(HOUSE_SOURCE_DIR "/tests/sdk/node_modules/openai/package.json", R_OK)) {
        print_message("node or tests/sdk/node_modules is missing: npm ci in tests/sdk\n");
        skip();
    }
    open_server("qwen35_xml");
    close_thinking_at(4);
    snprintf(command, sizeof command, "node '%s/tests/sdk/structured.mjs' http://127.0.0.1:%u",
             HOUSE_SOURCE_DIR, server.port);
    assert_int_equal(system(command), 0);
    inproc_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_reply_under_a_schema_fits_it),
        cmocka_unit_test(every_protocol_keeps_a_schema),
        cmocka_unit_test(a_grammar_is_followed_and_the_seed_repeats_it_cold_and_warm),
        cmocka_unit_test(a_call_that_has_to_come_comes_with_arguments_that_fit),
        cmocka_unit_test(the_other_protocols_calls_fit_too),
        cmocka_unit_test(several_calls_may_come_where_several_are_allowed),
        cmocka_unit_test(a_strict_tools_calls_fit_where_the_model_makes_one_by_itself),
        cmocka_unit_test(the_client_libraries_get_what_they_asked_for),
        cmocka_unit_test(an_answer_cut_short_is_no_error_and_one_cancelled_leaves_nothing),
        cmocka_unit_test(a_grammar_that_leads_nowhere_is_an_error_not_a_hang),
        cmocka_unit_test(a_grammar_found_too_large_while_it_runs_is_named),
    };
    return cmocka_run_group_tests(tests, inproc_set_up, inproc_tear_down);
}
