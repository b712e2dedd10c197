/* OpenAI's responses over real HTTP, with an engine that says what it is told. */
#include "server/testing_int.h"

static const char weather_tools[] =
    "\"tools\":[{\"type\":\"function\",\"name\":\"weather\",\"description\":\"d\",\"strict\":false,"
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"days\":{\"type\":\"integer\"}}}},"
    "{\"type\":\"web_search\"}]";
static const char thought_and_call[] =
    "hm\n</think>\n\nI will look.\n\n<tool_call>\n<function=weather>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>";

static const char *request(const char *input, const char *more)
{
    static char body[8192];
    snprintf(body, sizeof body, "{\"model\":\"m\",\"input\":%s%s%s}", input, *more ? "," : "",
             more);
    return body;
}

static void a_response_has_openais_shape(void **state)
{
    struct world *w = *state;
    w->engine.script = thought_and_call;
    assert_int_equal(ask(w, "POST", "/v1/responses", request("\"hi\"", weather_tools)), 200);
    assert_string_equal(text_at(w, "object"), "response");
    assert_memory_equal(text_at(w, "id"), "resp_", 5);
    assert_string_equal(text_at(w, "status"), "completed");
    assert_int_equal(json_array_size(at(w, "output")), 3);
    assert_string_equal(text_at(w, "output.0.type"), "reasoning");
    assert_string_equal(text_at(w, "output.0.content.0.text"), "hm");
    assert_string_equal(text_at(w, "output.1.type"), "message");
    assert_string_equal(text_at(w, "output.1.content.0.type"), "output_text");
    assert_string_equal(text_at(w, "output.1.content.0.text"), "I will look.");
    assert_string_equal(text_at(w, "output.2.type"), "function_call");
    assert_string_equal(text_at(w, "output.2.name"), "weather");
    assert_memory_equal(text_at(w, "output.2.call_id"), "call_", 5);
    assert_non_null(strstr(text_at(w, "output.2.arguments"), "3"));
    assert_int_equal(int_at(w, "usage.input_tokens_details.cached_tokens"), 2);
    assert_true(int_at(w, "usage.output_tokens_details.reasoning_tokens") >= 1);
    assert_int_equal(int_at(w, "usage.total_tokens"),
                     int_at(w, "usage.input_tokens") + int_at(w, "usage.output_tokens"));
    assert_int_equal(ask(w, "POST", "/v1/responses", request("\"hi\"", "\"max_output_tokens\":2")),
                     200);
    assert_string_equal(text_at(w, "status"), "incomplete");
    assert_string_equal(text_at(w, "incomplete_details.reason"), "max_output_tokens");
}

static int64_t prompt_tokens(struct world *w, const char *path, const char *body, const char *field)
{
    if (ask(w, "POST", path, body) != 200)
        fail_msg("%s", buf_str(&w->reply));
    return int_at(w, field);
}

static void items_make_the_prompt_that_messages_make(void **state)
{
    struct world *w = *state;
    w->engine.script = "x";
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
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"days\":{\"type\":\"integer\"}}},"
        "\"strict\":false}}]}";
    static const char items[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"Weather?\"}]},"
        "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":"
        "\"reasoning_text\",\"text\":\"hm\"}]},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\","
        "\"text\":"
        "\"I look.\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"t1\",\"name\":\"weather\",\"arguments\":"
        "\"{\\\"days\\\":3}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"t1\",\"output\":\"rain\"},"
        "{\"type\":\"message\",\"role\":\"user\",\"content\":\"And then?\"}]";
    char more[1024];
    snprintf(more, sizeof more, "%s,\"instructions\":\"Be kind.\"", weather_tools);
    const int64_t n = prompt_tokens(w, "/v1/chat/completions", openai, "usage.prompt_tokens");
    assert_int_equal(prompt_tokens(w, "/v1/responses", request(items, more), "usage.input_tokens"),
                     n);
}

static void a_stream_has_openais_events_in_order(void **state)
{
    struct world *w = *state;
    struct buf text = BUF_INIT, args = BUF_INIT, thought = BUF_INIT;
    char more[1024], log[4096] = "";
    w->engine.script = thought_and_call;
    snprintf(more, sizeof more, "%s,\"stream\":true", weather_tools);
    open_stream(w, "/v1/responses", request("\"hi\"", more));
    int64_t sequence = 0;
    while (next(w)) {
        const char *type = text_at(w, "type");
        assert_int_equal(int_at(w, "sequence_number"), sequence++);
        const char *delta = json_string_value(at(w, "delta"));
        if (!strcmp(type, "response.output_text.delta"))
            buf_adds(&text, delta);
        else if (!strcmp(type, "response.function_call_arguments.delta"))
            buf_adds(&args, delta);
        else if (!strcmp(type, "response.reasoning_text.delta"))
            buf_adds(&thought, delta);
        else
            snprintf(log + strlen(log), sizeof log - strlen(log), "%s ",
                     type + strlen("response."));
        if (!strcmp(type, "response.output_text.done"))
            assert_string_equal(text_at(w, "text"), buf_str(&text));
        if (!strcmp(type, "response.function_call_arguments.done"))
            assert_string_equal(text_at(w, "arguments"), buf_str(&args));
    }
    assert_string_equal(
        log, "created in_progress "
             "output_item.added content_part.added reasoning_text.done content_part.done "
             "output_item.done "
             "output_item.added content_part.added output_text.done content_part.done "
             "output_item.done "
             "output_item.added function_call_arguments.done output_item.done "
             "completed ");
    assert_string_equal(buf_str(&thought), "hm");
    assert_string_equal(buf_str(&text), "I will look.");
    buf_release(&text);
    buf_release(&args);
    buf_release(&thought);
}

static void an_answer_cut_off_has_an_incomplete_item(void **state)
{
    struct world *w = *state;
    static const char half_call[] =
        "hm\n</think>\n\nI will look.\n\n<tool_call>\n<function=weather>\n<parameter=days>\n3\n";
    static const struct {
        const char *script, *more, *event, *reason;
        const char *last; /* item's status */
        size_t n;
    } cases[] = {
        {half_call, "\"stop\":\"x\",\"seed\":9006", "response.incomplete", "stop", "incomplete", 3},
        {half_call, "\"seed\":9007", "response.incomplete", "max_output_tokens", "incomplete", 3},
        {"hm</think>\n\nfo", "\"seed\":9007", "response.incomplete", "max_output_tokens",
         "incomplete", 2},
        {thought_and_call, "\"seed\":9007", "response.incomplete", "max_output_tokens", "completed",
         3},
        {"hm</think>\n\nfo", "\"stop\":\"x\",\"seed\":9006", "response.completed", NULL,
         "completed", 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char more[1024], path[64];
        w->engine.script = cases[i].script;
        snprintf(more, sizeof more, "%s,%s", weather_tools, cases[i].more);
        assert_int_equal(ask(w, "POST", "/v1/responses", request("\"hi\"", more)), 200);
        assert_string_equal(text_at(w, "status"), cases[i].event + strlen("response."));
        if (cases[i].reason)
            assert_string_equal(text_at(w, "incomplete_details.reason"), cases[i].reason);
        assert_int_equal(json_array_size(at(w, "output")), cases[i].n);
        for (size_t k = 0; k < cases[i].n; k++) {
            snprintf(path, sizeof path, "output.%zu.status", k);
            assert_string_equal(text_at(w, path), k + 1 < cases[i].n ? "completed" : cases[i].last);
        }
        if (cases[i].script == half_call)
            assert_string_equal(text_at(w, "output.2.arguments"), "{\"days\":");
        snprintf(more, sizeof more, "%s,%s,\"stream\":true", weather_tools, cases[i].more);
        open_stream(w, "/v1/responses", request("\"hi\"", more));
        char event[64] = "";
        for (size_t k = 0; next(w);) {
            snprintf(event, sizeof event, "%s", text_at(w, "type"));
            if (strcmp(event, "response.output_item.done") != 0)
                continue;
            k++;
            assert_string_equal(text_at(w, "item.status"),
                                k < cases[i].n ? "completed" : cases[i].last);
        }
        assert_string_equal(event, cases[i].event);
    }
}

static void wrong_requests_name_the_place(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *input, *more, *param, *message;
    } cases[] = {
        {"null", "", "input", "missing"},
        {"[]", "", "input", "something in it"},
        {"[5]", "", "input[0]", "object"},
        {"[{\"role\":\"robot\",\"content\":\"x\"}]", "", "input[0].role", "user"},
        {"[{\"role\":\"user\",\"content\":5}]", "", "input[0].content", "array"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]", "",
         "input[0].content[0]", "input_image"},
        {"[{\"type\":\"item_reference\",\"id\":\"x\"}]", "", "input[0]", "item_reference"},
        {"[{\"type\":\"function_call\"}]", "", "input[0]", "call_id"},
        {"[{\"type\":\"function_call_output\"}]", "", "input[0].call_id", "string"},
        {"\"hi\"", "\"previous_response_id\":\"resp_1\"", "previous_response_id",
         "send the whole conversation"},
        {"\"hi\"", "\"background\":true", "background", "not supported"},
        {"\"hi\"", "\"tools\":[{\"type\":\"custom\",\"name\":\"x\"}]", "tools[0].type", "custom"},
        {"\"hi\"", "\"tools\":[{\"type\":\"function\"}]", "tools[0].name", "string"},
        {"\"hi\"", "\"tools\":[{\"type\":\"function\",\"name\":\"\"}]", "tools[0].name", "1 to 64"},
        {"\"hi\"", "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":\"x\"}]",
         "tools[0].parameters", "object"},
        {"\"hi\"", "\"tool_choice\":\"required\"", "tool_choice", "no tools"},
        {"\"hi\"", "\"text\":{\"format\":{\"type\":\"json_schema\"}}", "text.format.schema",
         "missing"},
        {"\"hi\"", "\"max_output_tokens\":0", "max_output_tokens", "1 to"},
        {"\"hi\"", "\"reasoning\":5", "reasoning", "object"},
        {"\"hi\"", "\"instructions\":5", "instructions", "string"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_error(w, "/v1/responses", request(cases[i].input, cases[i].more), 400,
                     "invalid_request_error", cases[i].param, cases[i].message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_response_has_openais_shape),         T(items_make_the_prompt_that_messages_make),
        T(a_stream_has_openais_events_in_order), T(an_answer_cut_off_has_an_incomplete_item),
        T(wrong_requests_name_the_place),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
