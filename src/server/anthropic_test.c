/* Anthropic's messages over real HTTP, with an engine that says what it is told. */
#include "server/testing_int.h"

static const char weather_tools[] =
    "\"tools\":[{\"name\":\"weather\",\"description\":\"d\",\"cache_control\":{\"type\":"
    "\"ephemeral\"},"
    "\"input_schema\":{\"type\":\"object\",\"properties\":{\"days\":{\"type\":\"integer\"}}}}]";
static const char thought_and_call[] =
    "hm\n</think>\n\nI will look.\n\n<tool_call>\n<function=weather>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>";

static const char *request(const char *messages, const char *more)
{
    static char body[8192];
    snprintf(body, sizeof body, "{\"model\":\"m\",\"max_tokens\":500,\"messages\":%s%s%s}",
             messages, *more ? "," : "", more);
    return body;
}

static const char hi[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";

static void a_message_has_anthropics_shape(void **state)
{
    struct world *w = *state;
    w->engine.script = thought_and_call;
    assert_int_equal(ask(w, "POST", "/v1/messages", request(hi, weather_tools)), 200);
    assert_string_equal(text_at(w, "type"), "message");
    assert_string_equal(text_at(w, "role"), "assistant");
    assert_memory_equal(text_at(w, "id"), "msg_", 4);
    assert_int_equal(json_array_size(at(w, "content")), 3);
    assert_string_equal(text_at(w, "content.0.type"), "thinking");
    assert_string_equal(text_at(w, "content.0.thinking"), "hm");
    assert_string_equal(text_at(w, "content.1.text"), "I will look.");
    assert_string_equal(text_at(w, "content.2.type"), "tool_use");
    assert_memory_equal(text_at(w, "content.2.id"), "toolu_", 6);
    assert_string_equal(text_at(w, "content.2.name"), "weather");
    assert_int_equal(int_at(w, "content.2.input.days"), 3);
    assert_string_equal(text_at(w, "stop_reason"), "tool_use");
    assert_true(json_is_null(at(w, "stop_sequence")));
    assert_int_equal(int_at(w, "usage.cache_read_input_tokens"), 2);
    assert_int_equal(int_at(w, "usage.input_tokens"), w->engine.last.n_prompt - 2);
    assert_int_equal(int_at(w, "usage.cache_creation_input_tokens"), 0);
    assert_true(int_at(w, "usage.output_tokens") > 5);
}

static void ends_have_anthropics_names(void **state)
{
    struct world *w = *state;
    w->engine.script = "</think>\n\nfour";
    assert_int_equal(ask(w, "POST", "/v1/messages", request(hi, "")), 200);
    assert_string_equal(text_at(w, "stop_reason"), "end_turn");
    assert_int_equal(
        ask(w, "POST", "/v1/messages", request(hi, "\"stop_sequences\":[\"STOP\"],\"seed\":9006")),
        200);
    assert_string_equal(text_at(w, "stop_reason"), "stop_sequence");
    assert_string_equal(text_at(w, "stop_sequence"), "STOP");
    assert_int_equal(ask(w, "POST", "/v1/messages", request(hi, "\"seed\":9007")), 200);
    assert_string_equal(text_at(w, "stop_reason"), "max_tokens");
}

static void half_a_call_never_looks_whole(void **state)
{
    struct world *w = *state;
    char more[1024];
    struct buf partial = BUF_INIT;
    w->engine.script = "hm\n</think>\n\nI will look.\n\n<tool_call>\n<function=weather>\n"
                       "<parameter=days>\n3";
    snprintf(more, sizeof more, "%s,\"stop_sequences\":[\"x\"],\"seed\":9006", weather_tools);
    assert_int_equal(ask(w, "POST", "/v1/messages", request(hi, more)), 200);
    assert_string_equal(text_at(w, "stop_reason"), "stop_sequence");
    assert_int_equal(json_array_size(at(w, "content")), 2);
    snprintf(more, sizeof more, "%s,\"seed\":9007,\"stream\":true", weather_tools);
    open_stream(w, "/v1/messages", request(hi, more));
    while (next(w)) {
        const char *json = json_string_value(at(w, "delta.partial_json"));
        buf_adds(&partial, json ? json : "");
        if (at(w, "delta.stop_reason"))
            assert_string_equal(text_at(w, "delta.stop_reason"), "max_tokens");
    }
    assert_string_equal(buf_str(&partial), "{\"days\":");
    buf_release(&partial);
}

/* The prompt that an OpenAI conversation would make. */
static void prompt_of(struct world *w, const char *body, char *out, size_t n)
{
    assert_int_equal(ask(w, "POST", "/apply-template", body), 200);
    snprintf(out, n, "%s", text_at(w, "prompt"));
}

static int64_t count(struct world *w, const char *body)
{
    assert_int_equal(ask(w, "POST", "/v1/messages/count_tokens", body), 200);
    return int_at(w, "input_tokens");
}

static void both_protocols_make_the_same_prompt(void **state)
{
    struct world *w = *state;
    char prompt[8192];
    struct buf b = BUF_INIT;
    static const char openai[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},"
        "{\"role\":\"user\",\"content\":\"Weather?\"},"
        "{\"role\":\"assistant\",\"content\":\"I "
        "look.\",\"reasoning_content\":\"hm\",\"tool_calls\":"
        "[{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"weather\",\"arguments\":"
        "\"{\\\"days\\\":3}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":\"rain\"},"
        "{\"role\":\"user\",\"content\":\"And then?\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":"
        "\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"days\":{\"type\":\"integer\"}}}}}]}";
    static const char anthropic[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Weather?\","
        "\"cache_control\":{\"type\":\"ephemeral\"}}]},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\","
        "\"signature\":\"\"},{\"type\":\"text\",\"text\":\"I look.\"},{\"type\":\"tool_use\","
        "\"id\":\"t1\",\"name\":\"weather\",\"input\":{\"days\":3}}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\","
        "\"content\":"
        "[{\"type\":\"text\",\"text\":\"rain\"}]},{\"type\":\"text\",\"text\":\"And then?\"}]}]";
    char more[1024];
    prompt_of(w, openai, prompt, sizeof prompt);
    struct jwrite j;
    jwrite_init(&j, &b);
    jwrite_obj(&j, NULL);
    jwrite_str(&j, "content", prompt);
    jwrite_end_obj(&j);
    assert_int_equal(ask(w, "POST", "/tokenize", buf_str(&b)), 200);
    const size_t n = json_array_size(at(w, "tokens"));
    snprintf(more, sizeof more, "%s,\"system\":[{\"type\":\"text\",\"text\":\"Be kind.\"}]",
             weather_tools);
    assert_int_equal(count(w, request(anthropic, more)), n);
    buf_release(&b);
}

/* As Claude Code sends them; the template of this test takes a system message in front only. */
static void system_messages_between_others_are_taken(void **state)
{
    struct world *w = *state;
    const int64_t without = count(w, request(hi, ""));
    const int64_t with =
        count(w, request("[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"system\",\"content\":"
                         "[{\"type\":\"text\",\"text\":\"Agents: none\"}]}]",
                         ""));
    assert_true(with > without);
}

static void thinking_can_be_switched_off(void **state)
{
    struct world *w = *state;
    const int64_t with = count(w, request(hi, "\"thinking\":{\"type\":\"enabled\","
                                              "\"budget_tokens\":1024}"));
    const int64_t without = count(w, request(hi, "\"thinking\":{\"type\":\"disabled\"}"));
    assert_int_not_equal(with, without);
    assert_int_equal(count(w, request(hi, "")), with);
}

/* Takes the next event, whose name must be this. */
static void expect_event(struct world *w, const char *type)
{
    assert_true(next(w));
    assert_string_equal(text_at(w, "type"), type);
}

static void a_stream_has_anthropics_events(void **state)
{
    struct world *w = *state;
    struct buf thinking = BUF_INIT, text = BUF_INIT, json = BUF_INIT;
    char more[1024];
    w->engine.script = thought_and_call;
    snprintf(more, sizeof more, "%s,\"stream\":true", weather_tools);
    open_stream(w, "/v1/messages", request(hi, more));
    expect_event(w, "message_start");
    assert_int_equal(int_at(w, "message.usage.cache_read_input_tokens"), 2);
    assert_true(json_is_null(at(w, "message.stop_reason")));
    int64_t block = -1;
    bool open = false;
    while (next(w)) {
        const char *type = text_at(w, "type");
        if (!strcmp(type, "content_block_start")) {
            assert_false(open);
            open = true;
            assert_int_equal(int_at(w, "index"), ++block);
        } else if (!strcmp(type, "content_block_delta")) {
            assert_true(open);
            assert_int_equal(int_at(w, "index"), block);
            const char *kind = text_at(w, "delta.type");
            if (!strcmp(kind, "thinking_delta"))
                buf_adds(&thinking, text_at(w, "delta.thinking"));
            else if (!strcmp(kind, "text_delta"))
                buf_adds(&text, text_at(w, "delta.text"));
            else
                buf_adds(&json, text_at(w, "delta.partial_json"));
        } else if (!strcmp(type, "content_block_stop")) {
            assert_true(open);
            open = false;
        } else {
            break;
        }
    }
    assert_string_equal(text_at(w, "type"), "message_delta");
    assert_string_equal(text_at(w, "delta.stop_reason"), "tool_use");
    assert_true(int_at(w, "usage.output_tokens") > 5);
    expect_event(w, "message_stop");
    assert_false(next(w));
    assert_int_equal(block, 2);
    assert_string_equal(buf_str(&thinking), "hm");
    assert_string_equal(buf_str(&text), "I will look.");
    json_t *args;
    assert_int_equal(jread_parse(buf_str(&json), json.n, &args, NULL), RC_OK);
    assert_int_equal(json_integer_value(json_object_get(args, "days")), 3);
    json_decref(args);
    buf_release(&thinking);
    buf_release(&text);
    buf_release(&json);
}

static void errors_have_anthropics_shape(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *messages, *more, *param, *message;
    } cases[] = {
        {"[]", "", "messages", "something in it"},
        {"[5]", "", "messages[0].role", "user, assistant or system"},
        {"[{\"role\":\"system\",\"content\":5}]", "", "messages[0].content", "text blocks"},
        {"[{\"role\":\"user\",\"content\":5}]", "", "messages[0].content", "array"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]", "", "messages[0].content[0]",
         "image"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\"}]}]", "",
         "messages[0].content[0]", "tool_use"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]", "",
         "messages[0].content[0].tool_use_id", "string"},
        {hi, "\"system\":5", "system", "text blocks"},
        {hi, "\"system\":[{\"type\":\"image\"}]", "system[0]", "image"},
        {hi, "\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"w\"}]", "tools[0].type",
         "web_search"},
        {hi, "\"tools\":[{}]", "tools[0].name", "string"},
        {hi, "\"tools\":[{\"name\":\"a b\"}]", "tools[0].name", "1 to 128"},
        {hi, "\"tools\":[{\"name\":\"a\",\"input_schema\":[]}]", "tools[0].input_schema", "object"},
        {hi, "\"tool_choice\":{\"type\":\"any\"}", "tool_choice", "no tools"},
        {hi, "\"thinking\":{}", "thinking", "type"},
        {hi, "\"mcp_servers\":[{}]", "mcp_servers", "not supported"},
        {hi, "\"stop_sequences\":[5]", "stop_sequences[0]", "string"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect_error(w, "/v1/messages", request(cases[i].messages, cases[i].more), 400,
                     "invalid_request_error", cases[i].param, cases[i].message);
        assert_string_equal(text_at(w, "type"), "error");
    }
    expect_error(w, "/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 400,
                 "invalid_request_error", "max_tokens", "missing");
    expect_error(w, "/v1/messages", request(hi, "\"seed\":9004"), 503, "overloaded_error", NULL,
                 "no memory");
    struct buf b = BUF_INIT;
    buf_adds(&b, "[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < FAKE_CTX; i++)
        buf_adds(&b, "Q ");
    buf_adds(&b, "\"}]");
    expect_error(w, "/v1/messages", request(buf_str(&b), ""), 400, "invalid_request_error",
                 "prompt", "prompt is too long: ");
    assert_non_null(strstr(text_at(w, "error.message"), " tokens > 2000 maximum"));
    buf_release(&b);
    w->engine.script = "thinking it over</think>";
    open_stream(w, "/v1/messages", request(hi, "\"stream\":true,\"seed\":9001"));
    bool error = false;
    while (next(w)) {
        assert_false(error);
        error = !strcmp(text_at(w, "type"), "error");
    }
    assert_true(error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_message_has_anthropics_shape), T(ends_have_anthropics_names),
        T(half_a_call_never_looks_whole),  T(both_protocols_make_the_same_prompt),
        T(thinking_can_be_switched_off),   T(system_messages_between_others_are_taken),
        T(a_stream_has_anthropics_events), T(errors_have_anthropics_shape),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
