/* What was generated is found again in the cache when its parsed form comes back: the real engine, told
 * what to say, behind real HTTP. */
#include "told_int.h"

static void open_host(const char *template, bool keep_thinking, uint64_t bytes)
{
    told_open(template,
              &(struct server_opts){.replay_bytes = bytes, .replay_thinking = keep_thinking});
}

/* ---- what a client does with what it got ---- */

enum { DROP_REASONING = 1, REORDER = 2, SPACES = 4, STREAM = 8, IN_CONTENT = 16, ONE_CALL = 32 };

/* The same arguments, written otherwise. */
static char *rewrite(const char *args, unsigned how)
{
    json_t *v = js(args);
    if (how & REORDER) {
        json_t *turned = json_object(), *keys = json_array();
        const char *k;
        json_t *x;
        json_object_foreach(v, k, x) json_array_insert_new(keys, 0, json_string(k));
        for (size_t i = 0; i < json_array_size(keys); i++) {
            k = json_string_value(json_array_get(keys, i));
            json_object_set(turned, k, json_object_get(v, k));
        }
        json_decref(keys);
        json_decref(v);
        v = turned;
    }
    char *text = json_dumps(v, how & SPACES ? JSON_INDENT(3) : JSON_COMPACT);
    json_decref(v);
    return text;
}

/* ---- tokens ---- */

/* n_prompt and n_reused of the request before, n_next: what the cache can have for the next one. */
struct turn {
    int64_t n_prompt, n_reused, n_next;
};

/* Every token but those that are new, and some glue, was reused. */
static void check_turn(struct turn *t, int64_t n_prompt, int64_t n_reused, int64_t n_generated,
                       int step)
{
    const int64_t n_new = n_prompt - t->n_next, evaluated = n_prompt - n_reused;
    if (step && (n_new < 0 || evaluated > n_new + 16))
        fail_msg("step %d: %d evaluated of %d, but %d are new", step, (int)evaluated, (int)n_prompt,
                 (int)n_new);
    *t = (struct turn){n_prompt, n_reused, n_prompt + n_generated};
}

/* ---- chat completions ---- */

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"scale\":{\"type\":\"number\"}}}}}]";

/* Not as the template would write it: blank lines, the white space in values. */
static void script_call(int step)
{
    char text[512];
    snprintf(text, sizeof text,
             "  step %d,\n\nso\n</think>\n\n\nI look.\n\n\n<tool_call>\n<function=weather>\n"
             "<parameter=days>\n%d\n</parameter>\n<parameter=scale>\n3.0\n</parameter>\n"
             "<parameter=city>\nOs\xC3\xB8 %d\n</parameter>\n</function>\n\n</tool_call>\n",
             step, step, step);
    tell(text);
}

/* Collects a stream into the message it makes; timings go to *timings. */
static json_t *listen(const char *body, json_t **timings)
{
    struct err err = {0};
    struct buf reasoning = BUF_INIT, content = BUF_INIT, args = BUF_INIT;
    char id[64] = "", name[64] = "";
    *timings = NULL;
    if (client_begin(server.client, "POST", "/v1/chat/completions", str_of(body), &err))
        fail_msg("%s", err.msg);
    assert_int_equal(client_status(server.client), 200);
    for (;;) {
        struct sse_event e;
        bool end;
        assert_int_equal(client_event(server.client, &e, &end, NULL), RC_OK);
        if (end)
            break;
        if (str_is(e.data, "[DONE]"))
            continue;
        json_t *v = parse(e.data), *delta = at(v, "choices.0.delta");
        const char *s = json_string_value(json_object_get(delta, "reasoning_content"));
        buf_adds(&reasoning, s ? s : "");
        s = json_string_value(json_object_get(delta, "content"));
        buf_adds(&content, s ? s : "");
        s = json_string_value(at(delta, "tool_calls.0.id"));
        if (s)
            snprintf(id, sizeof id, "%s", s);
        s = json_string_value(at(delta, "tool_calls.0.function.name"));
        if (s)
            snprintf(name, sizeof name, "%s", s);
        s = json_string_value(at(delta, "tool_calls.0.function.arguments"));
        buf_adds(&args, s ? s : "");
        if (json_object_get(v, "timings")) {
            json_decref(*timings);
            *timings = json_incref(json_object_get(v, "timings"));
        }
        json_decref(v);
    }
    json_t *m =
        json_pack("{s:s,s:s,s:s,s:[{s:s,s:s,s:{s:s,s:s}}]}", "role", "assistant", "content",
                  buf_str(&content), "reasoning_content", buf_str(&reasoning), "tool_calls", "id",
                  id, "type", "function", "function", "name", name, "arguments", buf_str(&args));
    buf_release(&reasoning);
    buf_release(&content);
    buf_release(&args);
    return m;
}

/* Asks for the next answer: the message, and what was reused. */
static json_t *chat_step(json_t *messages, unsigned how, int step, struct turn *t)
{
    json_t *body = json_pack("{s:O,s:o,s:b,s:b,s:i}", "messages", messages, "tools", js(tools),
                             "parallel_tool_calls", !(how & ONE_CALL), "stream",
                             (how & STREAM) != 0, "temperature", 0);
    char *text = json_dumps(body, JSON_COMPACT);
    json_t *message, *timings;
    if (how & STREAM) {
        message = listen(text, &timings);
    } else {
        if (ask(&server, "POST", "/v1/chat/completions", text) != 200)
            fail_msg("%s", buf_str(&server.reply));
        message = json_deep_copy(at(server.json, "choices.0.message"));
        timings = json_incref(at(server.json, "timings"));
    }
    const int64_t reused = int_at(timings, "cache_n");
    check_turn(t, reused + int_at(timings, "prompt_n"), reused, int_at(timings, "predicted_n"),
               step);
    json_decref(timings);
    json_decref(body);
    free(text);
    return message;
}

/* The answer as this client remembers it, and the tool's result. */
static void chat_append(json_t *messages, json_t *message, unsigned how, int step)
{
    json_t *fn = at(message, "tool_calls.0.function");
    char *args = rewrite(text_at(fn, "arguments"), how), result[64];
    json_object_set_new(fn, "arguments", json_string(args));
    if (how & IN_CONTENT) {
        struct buf b = BUF_INIT;
        buf_addf(&b, "<think>\n%s\n</think>\n%s", text_at(message, "reasoning_content"),
                 text_at(message, "content"));
        json_object_set_new(message, "content", json_string(buf_str(&b)));
        buf_release(&b);
    }
    if (how & (DROP_REASONING | IN_CONTENT))
        json_object_del(message, "reasoning_content");
    json_array_append(messages, message);
    snprintf(result, sizeof result, "%d degrees", step);
    json_array_append_new(messages, json_pack("{s:s,s:O,s:s}", "role", "tool", "tool_call_id",
                                              at(message, "tool_calls.0.id"), "content", result));
    json_decref(message);
    free(args);
}

static json_t *chat_loop(unsigned how, int n_steps)
{
    json_t *messages = js("[{\"role\":\"system\",\"content\":\"You are brief.\"},"
                          "{\"role\":\"user\",\"content\":\"Weather?\"}]");
    char mark[64];
    snprintf(mark, sizeof mark, "Weather in way %u?", how); /* so that no loop helps another */
    json_object_set_new(json_array_get(messages, 1), "content", json_string(mark));
    struct turn t = {0};
    for (int step = 0; step < n_steps; step++) {
        script_call(step);
        json_t *m = chat_step(messages, how, step, &t);
        assert_string_equal(text_at(m, "tool_calls.0.function.name"), "weather");
        chat_append(messages, m, how, step);
    }
    return messages;
}

static void a_tool_loop_evaluates_what_is_new(void **state)
{
    (void)state;
    static const struct {
        unsigned how;
        int n_steps;
    } ways[] = {{0, 20},
                {DROP_REASONING, 5},
                {REORDER, 5},
                {SPACES | STREAM, 5},
                {IN_CONTENT, 5},
                {ONE_CALL | REORDER, 5},
                {DROP_REASONING | REORDER | SPACES | STREAM, 20}};
    open_host("qwen35_xml", false, MIB);
    for (size_t i = 0; i < COUNT_OF(ways); i++)
        json_decref(chat_loop(ways[i].how, ways[i].n_steps));
    inproc_close();
}

/* The prompt a conversation makes. */
static const char *prompt_of(json_t *messages)
{
    json_t *body = json_pack("{s:O,s:o}", "messages", messages, "tools", js(tools));
    char *text = json_dumps(body, JSON_COMPACT);
    if (ask(&server, "POST", "/apply-template", text) != 200)
        fail_msg("%s", buf_str(&server.reply));
    json_decref(body);
    free(text);
    return text_at(server.json, "prompt");
}

static void what_the_client_changed_is_not_put_back(void **state)
{
    (void)state;
    static const char own[] = "</think>\n\n\nI look.\n\n\n<tool_call>";
    open_host("qwen35_xml", false, MIB);
    json_t *messages = chat_loop(0, 1);
    json_t *answer = json_array_get(messages, 2);
    assert_non_null(strstr(prompt_of(messages), own));

    json_t *was = json_deep_copy(answer);
    json_object_set_new(answer, "content", json_string("I look!"));
    const char *p = prompt_of(messages);
    assert_null(strstr(p, "I look."));
    assert_non_null(strstr(p, "I look!"));
    json_object_update(answer, was);

    json_object_set_new(answer, "reasoning_content", json_string("no step"));
    p = prompt_of(messages);
    assert_null(strstr(p, own));
    assert_null(strstr(p, "step 0"));
    assert_non_null(strstr(p, "no step"));
    json_object_update(answer, was);

    json_object_set_new(at(answer, "tool_calls.0.function"), "arguments",
                        json_string("{\"days\":1,\"scale\":3,\"city\":\"Os\xC3\xB8 0\"}"));
    p = prompt_of(messages);
    assert_null(strstr(p, own));
    assert_non_null(strstr(p, "<parameter=days>\n1\n"));
    json_decref(was);
    json_decref(messages);

    /* the same answer after something else: not that conversation's */
    messages = chat_loop(DROP_REASONING, 1);
    assert_non_null(strstr(prompt_of(messages), "step 0"));
    json_object_set_new(json_array_get(messages, 1), "content", json_string("Another question"));
    p = prompt_of(messages);
    assert_null(strstr(p, "step 0"));
    assert_null(strstr(p, own));
    json_decref(messages);
    inproc_close();
}

/* Answers of turns before the last question: the template drops their reasoning. */
static void expect_dropped(bool keep)
{
    open_host("qwen35_xml", keep, MIB);
    json_t *messages = chat_loop(DROP_REASONING, 3);
    json_array_append_new(messages, js("{\"role\":\"user\",\"content\":\"And now?\"}"));
    const char *p = prompt_of(messages);
    assert_true(!strstr(p, "step 0") == !keep);
    assert_true(!strstr(p, "step 2") == !keep);
    script_call(3);
    struct turn t = {0};
    json_t *m = chat_step(messages, 0, 0, &t);
    if (keep)
        assert_true(t.n_prompt - t.n_reused < 60);
    else
        assert_true(t.n_prompt - t.n_reused > 200); /* by design: all answers have changed */
    /* what comes from here on is reused in both cases */
    for (int step = 4; step < 8; step++) {
        chat_append(messages, m, REORDER, step);
        script_call(step);
        m = chat_step(messages, 0, step, &t);
    }
    json_decref(m);
    json_decref(messages);
    inproc_close();
}

static void reasoning_that_the_template_drops_stays_dropped_unless_asked_for(void **state)
{
    (void)state;
    expect_dropped(false);
    expect_dropped(true);
}

static void memory_for_answers_is_bounded(void **state)
{
    (void)state;
    open_host("qwen35_xml", false, 3000); /* two answers or so */
    json_t *messages = js("[{\"role\":\"user\",\"content\":\"Weather?\"}]");
    struct turn t = {0};
    for (int step = 0; step < 6; step++) {
        script_call(step);
        chat_append(messages, chat_step(messages, DROP_REASONING, 0, &t), DROP_REASONING, step);
    }
    const char *p = prompt_of(messages);
    assert_null(strstr(p, "step 0")); /* the first are forgotten */
    assert_non_null(strstr(p, "step 5"));
    json_decref(messages);
    inproc_close();
}

static void a_prompt_without_the_store_is_the_templates_own(void **state)
{
    (void)state;
    open_host("qwen35_xml", false, 0);
    json_t *messages = js("[{\"role\":\"user\",\"content\":\"Weather?\"}]");
    struct turn t = {0};
    script_call(0);
    chat_append(messages, chat_step(messages, 0, 0, &t), DROP_REASONING, 0);
    assert_non_null(strstr(prompt_of(messages), "<think>\n\n</think>\n\nI look.\n\n<tool_call>"));
    json_decref(messages);
    inproc_close();
}

/* ---- responses, messages ---- */

static void a_tool_loop_through_responses_does_too(void **state)
{
    (void)state;
    open_host("qwen35_xml", false, MIB);
    json_t *input = js("[{\"role\":\"user\",\"content\":\"Weather?\"}]");
    json_t *all = js(tools);
    struct turn t = {0};
    for (int step = 0; step < 8; step++) {
        script_call(step);
        json_t *body = json_pack("{s:O,s:[o]}", "input", input, "tools",
                                 json_pack("{s:s,s:s,s:O}", "type", "function", "name", "weather",
                                           "parameters", at(all, "0.function.parameters")));
        char *text = json_dumps(body, 0);
        if (ask(&server, "POST", "/v1/responses", text) != 200)
            fail_msg("%s", buf_str(&server.reply));
        json_decref(body);
        free(text);
        check_turn(&t, int_at(server.json, "usage.input_tokens"),
                   int_at(server.json, "usage.input_tokens_details.cached_tokens"),
                   int_at(server.json, "usage.output_tokens"), step);
        json_t *output = json_deep_copy(at(server.json, "output"));
        for (size_t i = 0; i < json_array_size(output); i++) {
            json_t *item = json_array_get(output, i);
            if (!strcmp(text_at(item, "type"), "reasoning")) {
                json_object_set_new(item, "content", json_null()); /* as Codex sends it */
            } else if (!strcmp(text_at(item, "type"), "function_call")) {
                char *args = rewrite(text_at(item, "arguments"), SPACES | REORDER);
                json_object_set_new(item, "arguments", json_string(args));
                free(args);
            }
            json_array_append(input, item);
        }
        json_t *call = json_array_get(output, json_array_size(output) - 1);
        json_array_append_new(input,
                              json_pack("{s:s,s:O,s:s}", "type", "function_call_output", "call_id",
                                        json_object_get(call, "call_id"), "output", "cold"));
        json_decref(output);
    }
    json_decref(input);
    json_decref(all);
    inproc_close();
}

static void a_tool_loop_through_messages_does_too(void **state)
{
    (void)state;
    open_host("qwen35_xml", false, MIB);
    json_t *messages = js("[{\"role\":\"user\",\"content\":\"Weather?\"}]");
    json_t *all = js(tools);
    struct turn t = {0};
    for (int step = 0; step < 8; step++) {
        script_call(step);
        json_t *body =
            json_pack("{s:O,s:i,s:[{s:s,s:O}]}", "messages", messages, "max_tokens", 1000, "tools",
                      "name", "weather", "input_schema", at(all, "0.function.parameters"));
        char *text = json_dumps(body, 0);
        if (ask(&server, "POST", "/v1/messages", text) != 200)
            fail_msg("%s", buf_str(&server.reply));
        json_decref(body);
        free(text);
        const int64_t reused = int_at(server.json, "usage.cache_read_input_tokens");
        check_turn(&t, reused + int_at(server.json, "usage.input_tokens"), reused,
                   int_at(server.json, "usage.output_tokens"), step);
        json_t *content = json_deep_copy(at(server.json, "content"));
        assert_string_equal(text_at(content, "0.type"), "thinking");
        if (step % 2)
            json_array_remove(content, 0);
        json_t *use = json_array_get(content, json_array_size(content) - 1);
        json_t *result =
            json_pack("{s:s,s:[{s:s,s:O,s:s}]}", "role", "user", "content", "type", "tool_result",
                      "tool_use_id", json_object_get(use, "id"), "content", "cold");
        json_array_append_new(messages,
                              json_pack("{s:s,s:o}", "role", "assistant", "content", content));
        json_array_append_new(messages, result);
    }
    json_decref(messages);
    json_decref(all);
    inproc_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tool_loop_evaluates_what_is_new),
        cmocka_unit_test(what_the_client_changed_is_not_put_back),
        cmocka_unit_test(reasoning_that_the_template_drops_stays_dropped_unless_asked_for),
        cmocka_unit_test(memory_for_answers_is_bounded),
        cmocka_unit_test(a_prompt_without_the_store_is_the_templates_own),
        cmocka_unit_test(a_tool_loop_through_responses_does_too),
        cmocka_unit_test(a_tool_loop_through_messages_does_too),
    };
    return cmocka_run_group_tests(tests, inproc_set_up, told_tear_down);
}
