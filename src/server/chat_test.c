/* Chat completions over real HTTP, with an engine that says what it is told. */
#include "server/testing_int.h"

static const char weather_tools[] =
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"days\":{\"type\":\"integer\"}}}}}]";
static const char weather_call[] =
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";

/* A request with more fields. */
static const char *chat(const char *more)
{
    static char body[4096];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
             *more ? "," : "", more);
    return body;
}

static void a_reply_has_openais_shape(void **state)
{
    struct world *w = *state;
    w->engine.script = "all is well\n";
    assert_int_equal(ask(w, "POST", "/v1/chat/completions",
                         chat("\"chat_template_kwargs\":{\"enable_thinking\":false}")),
                     200);
    assert_string_equal(text_at(w, "object"), "chat.completion");
    assert_memory_equal(text_at(w, "id"), "chatcmpl-", 9);
    assert_string_equal(text_at(w, "model"), "tiny");
    assert_string_equal(text_at(w, "choices.0.message.role"), "assistant");
    assert_non_null(strstr(text_at(w, "choices.0.message.content"), "all is well"));
    assert_null(at(w, "choices.0.message.reasoning_content"));
    assert_null(at(w, "choices.0.message.tool_calls"));
    assert_true(json_is_null(at(w, "choices.0.logprobs")));
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "stop");
    assert_int_equal(int_at(w, "usage.prompt_tokens_details.cached_tokens"), 2);
    assert_int_equal(int_at(w, "timings.cache_n"), 2);
    assert_int_equal(w->engine.last_hints, 'g'); /* the cache is told where the answer begins */
    assert_true(w->engine.last.n_hints >= 2);
}

static void reasoning_is_told_apart(void **state)
{
    struct world *w = *state;
    w->engine.script = "let me see\n</think>\n\nfour";
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat("")), 200);
    assert_string_equal(text_at(w, "choices.0.message.reasoning_content"), "let me see");
    assert_string_equal(text_at(w, "choices.0.message.content"), "four");
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat("\"reasoning_format\":\"none\"")),
                     200);
    assert_null(at(w, "choices.0.message.reasoning_content"));
    assert_non_null(strstr(text_at(w, "choices.0.message.content"), "let me see"));
    assert_non_null(strstr(text_at(w, "choices.0.message.content"), "</think>"));
}

static void a_tool_call_comes_parsed_and_coerced(void **state)
{
    struct world *w = *state;
    struct buf script = BUF_INIT;
    buf_addf(&script, "hm\n</think>\n\nI will look.\n\n%s", weather_call);
    w->engine.script = buf_str(&script);
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(weather_tools)), 200);
    assert_string_equal(text_at(w, "choices.0.message.content"), "I will look.");
    assert_memory_equal(text_at(w, "choices.0.message.tool_calls.0.id"), "call_", 5);
    assert_string_equal(text_at(w, "choices.0.message.tool_calls.0.type"), "function");
    assert_string_equal(text_at(w, "choices.0.message.tool_calls.0.function.name"), "weather");
    json_t *args;
    const char *text = text_at(w, "choices.0.message.tool_calls.0.function.arguments");
    assert_int_equal(jread_parse(text, strlen(text), &args, NULL), RC_OK);
    assert_string_equal(json_string_value(json_object_get(args, "city")), "Oslo");
    assert_int_equal(json_integer_value(json_object_get(args, "days")), 3);
    json_decref(args);
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "tool_calls");
    assert_int_equal(w->engine.last.n_bias, 0);
    buf_release(&script);
}

static void with_tool_choice_none_no_call_is_begun(void **state)
{
    struct world *w = *state;
    struct buf script = BUF_INIT;
    buf_addf(&script, "hm\n</think>\n\nI will look.\n\n%s", weather_call);
    w->engine.script = buf_str(&script);
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(weather_tools)), 200);
    /* the prompt keeps the tools, the mark is not generated */
    char more[1024];
    snprintf(more, sizeof more, "%s,\"tool_choice\":\"none\"", weather_tools);
    const uint32_t n_prompt = w->engine.last.n_prompt;
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(more)), 200);
    assert_null(at(w, "choices.0.message.tool_calls"));
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "stop");
    assert_int_equal(w->engine.last.n_prompt, n_prompt);
    assert_int_equal(w->engine.last.n_bias, 1);
    assert_int_equal(w->engine.last_bias.id, vocab_find(w->vocab, str_of("<tool_call>")));
    assert_true(w->engine.last_bias.bias == -INFINITY);
    /* a model that writes one all the same wrote text */
    assert_non_null(strstr(text_at(w, "choices.0.message.content"), weather_call));
    buf_release(&script);
}

static void a_call_cut_short_ends_with_length(void **state)
{
    struct world *w = *state;
    struct buf script = BUF_INIT;
    char more[1024];
    buf_addf(&script, "</think>\n\n%s", weather_call);
    w->engine.script = buf_str(&script);
    snprintf(more, sizeof more, "%s,\"max_tokens\":12", weather_tools);
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(more)), 200);
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "length");
    buf_release(&script);
}

static void one_call_is_enough_when_only_one_is_wanted(void **state)
{
    struct world *w = *state;
    struct buf script = BUF_INIT;
    char more[1024];
    buf_addf(&script, "</think>\n\n%s\n%s\n%s", weather_call, weather_call, weather_call);
    w->engine.script = buf_str(&script);
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(weather_tools)), 200);
    assert_int_equal(json_array_size(at(w, "choices.0.message.tool_calls")), 3);
    const int64_t all = int_at(w, "usage.completion_tokens");
    snprintf(more, sizeof more, "%s,\"parallel_tool_calls\":false", weather_tools);
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(more)), 200);
    assert_int_equal(json_array_size(at(w, "choices.0.message.tool_calls")), 1);
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "tool_calls");
    assert_true(int_at(w, "usage.completion_tokens") < all); /* the rest is not generated */
    buf_release(&script);
}

/* What a streamed chat adds up to. */
struct heard {
    struct buf reasoning, content, name, args;
    char id[64], finish[32];
    unsigned n_roles, n_chunks, n_usage, n_done, n_logprobs;
};

static void listen(struct world *w, const char *body, struct heard *h)
{
    memset(h, 0, sizeof *h);
    open_stream(w, "/v1/chat/completions", body);
    while (next(w)) {
        assert_int_equal(h->n_done, 0);
        if (!w->json) {
            h->n_done++;
            continue;
        }
        assert_string_equal(text_at(w, "object"), "chat.completion.chunk");
        h->n_usage += json_is_object(at(w, "usage"));
        json_t *delta = at(w, "choices.0.delta");
        if (!delta)
            continue;
        assert_string_equal(h->finish, ""); /* nothing comes after the end */
        h->n_chunks++;
        h->n_roles += json_is_string(json_object_get(delta, "role"));
        assert_int_equal(h->n_roles, 1); /* and it comes first */
        const char *s = json_string_value(json_object_get(delta, "reasoning_content"));
        buf_adds(&h->reasoning, s ? s : "");
        s = json_string_value(json_object_get(delta, "content"));
        buf_adds(&h->content, s ? s : "");
        json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
        if (json_object_get(call, "id"))
            snprintf(h->id, sizeof h->id, "%s", json_string_value(json_object_get(call, "id")));
        json_t *fn = json_object_get(call, "function");
        s = json_string_value(json_object_get(fn, "name"));
        buf_adds(&h->name, s ? s : "");
        s = json_string_value(json_object_get(fn, "arguments"));
        buf_adds(&h->args, s ? s : "");
        h->n_logprobs += (unsigned)json_array_size(at(w, "choices.0.logprobs.content"));
        if (at(w, "choices.0.delta.role")) /* it says nothing yet */
            assert_true(json_is_null(at(w, "choices.0.logprobs")));
        s = json_string_value(at(w, "choices.0.finish_reason"));
        snprintf(h->finish, sizeof h->finish, "%s", s ? s : "");
    }
}

static void heard_release(struct heard *h)
{
    buf_release(&h->reasoning);
    buf_release(&h->content);
    buf_release(&h->name);
    buf_release(&h->args);
}

#define HALF_CALL "</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nPra"

static void half_a_call_never_looks_whole(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *script, *more, *finish;
    } cases[] = {
        {HALF_CALL, ",\"stop\":\"gue\",\"seed\":9006", "stop"},
        {HALF_CALL "\n</param", ",\"seed\":9007", "length"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char more[1024];
        struct heard h;
        w->engine.script = cases[i].script;
        snprintf(more, sizeof more, "%s%s", weather_tools, cases[i].more);
        assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(more)), 200);
        assert_string_equal(text_at(w, "choices.0.finish_reason"), cases[i].finish);
        assert_string_equal(text_at(w, "choices.0.message.tool_calls.0.function.arguments"),
                            "{\"city\":\"Pra");
        snprintf(more, sizeof more, "%s%s,\"stream\":true", weather_tools, cases[i].more);
        listen(w, chat(more), &h);
        assert_string_equal(h.finish, cases[i].finish);
        assert_string_equal(buf_str(&h.args), "{\"city\":\"Pra");
        assert_string_equal(buf_str(&h.content), "");
        heard_release(&h);
    }
    /* behind a whole call a stop string is an end like any */
    struct buf script = BUF_INIT;
    char more[1024];
    buf_addf(&script, "</think>\n\n%s", weather_call);
    w->engine.script = buf_str(&script);
    snprintf(more, sizeof more, "%s,\"stop\":\"x\",\"seed\":9006", weather_tools);
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat(more)), 200);
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "tool_calls");
    buf_release(&script);
}

static void a_stream_adds_up_to_the_whole_reply(void **state)
{
    struct world *w = *state;
    struct heard h;
    struct buf script = BUF_INIT;
    char more[1024];
    buf_addf(&script, "so \xC3\xA4 \xF0\x9F\x98\x80\n</think>\n\nLook:\n\n%s", weather_call);
    w->engine.script = buf_str(&script);
    snprintf(more, sizeof more, "%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}",
             weather_tools);
    listen(w, chat(more), &h);
    assert_string_equal(buf_str(&h.reasoning), "so \xC3\xA4 \xF0\x9F\x98\x80");
    assert_string_equal(buf_str(&h.content), "Look:");
    assert_string_equal(buf_str(&h.name), "weather");
    assert_memory_equal(h.id, "call_", 5);
    json_t *args;
    assert_int_equal(jread_parse(buf_str(&h.args), h.args.n, &args, NULL), RC_OK);
    assert_int_equal(json_integer_value(json_object_get(args, "days")), 3);
    json_decref(args);
    assert_string_equal(h.finish, "tool_calls");
    assert_int_equal(h.n_usage, 1);
    assert_int_equal(h.n_done, 1);
    heard_release(&h);
    buf_release(&script);
}

static void log_probabilities_come_with_every_token(void **state)
{
    struct world *w = *state;
    struct heard h;
    w->engine.script = "</think>\n\nfour";
    assert_int_equal(
        ask(w, "POST", "/v1/chat/completions", chat("\"logprobs\":true,\"top_logprobs\":2")), 200);
    const int64_t n = int_at(w, "usage.completion_tokens");
    assert_int_equal(json_array_size(at(w, "choices.0.logprobs.content")), n);
    assert_int_equal(json_array_size(at(w, "choices.0.logprobs.content.0.top_logprobs")), 2);
    listen(w, chat("\"logprobs\":true,\"stream\":true"), &h);
    assert_int_equal(h.n_logprobs, n);
    heard_release(&h);
}

static void several_choices_have_one_prompt(void **state)
{
    struct world *w = *state;
    w->engine.script = "</think>\n\nfour";
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat("\"n\":3")), 200);
    assert_int_equal(json_array_size(at(w, "choices")), 3);
    assert_string_equal(text_at(w, "choices.2.message.content"), "four");
    assert_int_equal(int_at(w, "usage.prompt_tokens"), w->engine.last.n_prompt);
}

static void an_error_after_the_first_byte_ends_the_stream(void **state)
{
    struct world *w = *state;
    w->engine.script = "thinking it over\n</think>\n\na b c";
    open_stream(w, "/v1/chat/completions", chat("\"stream\":true,\"seed\":9001"));
    bool error = false;
    while (next(w)) {
        assert_false(error);
        error = at(w, "error") != NULL;
    }
    assert_true(error);
    expect_error(w, "/v1/chat/completions", chat("\"stream\":true,\"seed\":9004"), 503,
                 "unavailable_error", NULL, "no memory");
}

static void the_prompt_can_be_seen(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/apply-template", chat("")), 200);
    assert_non_null(strstr(text_at(w, "prompt"), "<|im_start|>user\nhi<|im_end|>\n"));
    assert_int_equal(ask(w, "POST", "/apply-template",
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                         "{\"role\":\"assistant\",\"content\":\"Well, \"}]}"),
                     200);
    const char *prompt = text_at(w, "prompt");
    const size_t n = strlen(prompt);
    assert_true(n > 5 && !strncmp(prompt + n - 5, "Well,", 5)); /* goes on in it */
}

static void wrong_conversations_name_the_place(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *body, *param, *message;
    } cases[] = {
        {"{}", "messages", "missing"},
        {"{\"messages\":[]}", "messages", "something in it"},
        {"{\"messages\":5}", "messages", "array"},
        {"{\"messages\":[5]}", "messages[0]", "not an object"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", "role"},
        {"{\"messages\":[{\"role\":\"alien\",\"content\":\"x\"}]}", "messages[0].role",
         "must be system"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content", "string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]", "image_url"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages[0].content[0].text", "string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", "messages[0].content[0]", "type"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_error(w, "/v1/chat/completions", cases[i].body, 400, "invalid_request_error",
                     cases[i].param, cases[i].message);
    static const struct {
        const char *more, *param, *message;
    } fields[] = {
        {"\"tools\":5", "tools", "array"},
        {"\"tools\":[{\"type\":\"retrieval\"}]", "tools[0].type", "function"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0].function.name", "string"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]",
         "tools[0].function.name", "1 to 64"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a>b\"}}]",
         "tools[0].function.name", "letters"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\\u0000b\"}}]",
         "tools[0].function.name", "letters"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
         "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}}]",
         "tools[0].function.name", "1 to 64"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a.b:c-d_1\"}},{\"type\":"
         "\"function\",\"function\":{\"name\":\"f\",\"parameters\":5}}]",
         "tools[1].function.parameters", "object"},
        {"\"tool_choice\":\"required\"", "tool_choice", "no tools"},
        {"\"functions\":[]", "functions", "use tools"},
        {"\"store\":true", "store", "not supported"},
        {"\"modalities\":[\"audio\"]", "modalities[0]", "not supported"},
        {"\"audio\":{}", "audio", "not supported"},
        {"\"top_logprobs\":5", "top_logprobs", "logprobs"},
        {"\"logprobs\":5", "logprobs", "true or false"},
        {"\"chat_template_kwargs\":5", "chat_template_kwargs", "object"},
        {"\"enable_thinking\":5", "enable_thinking", "true or false"},
        {"\"reasoning_effort\":5", "reasoning_effort", "string"},
        {"\"reasoning_format\":\"xml\"", "reasoning_format", "deepseek"},
        {"\"parallel_tool_calls\":5", "parallel_tool_calls", "true or false"},
        {"\"temperature\":\"x\"", "temperature", "number"},
    };
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        expect_error(w, "/v1/chat/completions", chat(fields[i].more), 400, "invalid_request_error",
                     fields[i].param, fields[i].message);
    assert_int_equal(ask(w, "POST", "/v1/chat/completions",
                         chat("\"store\":false,\"user\":\"u\",\"metadata\":{},\"modalities\":"
                              "[\"text\"],\"service_tier\":\"auto\",\"tool_choice\":\"auto\"")),
                     200);
}

static void tools_that_the_template_does_not_show_are_refused(void **state)
{
    struct world *w = *state;
    const struct server_opts o = {0};
    stop(w);
    use_template(w, "chatml");
    start(w, &o, true);
    expect_error(w, "/v1/chat/completions", chat(weather_tools), 400, "invalid_request_error",
                 "tools", "does not show them");
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat("\"tools\":[]")), 200);
    stop(w);
    use_template(w, "qwen35_xml");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_reply_has_openais_shape),
        T(reasoning_is_told_apart),
        T(a_tool_call_comes_parsed_and_coerced),
        T(with_tool_choice_none_no_call_is_begun),
        T(a_call_cut_short_ends_with_length),
        T(half_a_call_never_looks_whole),
        T(one_call_is_enough_when_only_one_is_wanted),
        T(a_stream_adds_up_to_the_whole_reply),
        T(log_probabilities_come_with_every_token),
        T(several_choices_have_one_prompt),
        T(an_error_after_the_first_byte_ends_the_stream),
        T(the_prompt_can_be_seen),
        T(wrong_conversations_name_the_place),
        T(tools_that_the_template_does_not_show_are_refused),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
