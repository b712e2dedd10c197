/* What a model may say and what of it a client gets: thinking cut by its budget, tool calls, emoji, stop
 * strings, over the real engine and real HTTP. */
#include "told_int.h"

static int group_set_up(void **state)
{
    told_set_up(state);
    told_open("qwen35_xml", &(struct server_opts){0});
    return 0;
}

static int group_tear_down(void **state)
{
    told_close();
    return told_tear_down(state);
}

static void post(const char *path, const char *body)
{
    if (ask(&server, "POST", path, body) != 200)
        fail_msg("%s: %s", body, buf_str(&server.reply));
}

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* ---- thinking ---- */

static const char thought[] = "abcdefghijklmnopqrstuvwxyz";

static void expect_thought(const char *reasoning, const char *content)
{
    const char *got = json_string_value(at(server.json, "choices.0.message.reasoning_content"));
    assert_string_equal(got ? got : "", reasoning);
    assert_string_equal(text_at(server.json, "choices.0.message.content"), content);
}

static void a_thinking_budget_is_kept_to_the_token(void **state)
{
    (void)state;
    char body[512], want[32];
    tell(thought);
    for (int n = 1; n < 20; n += 6) {
        snprintf(body, sizeof body, "{" HI ",\"thinking_budget_tokens\":%d}", n);
        post("/v1/chat/completions", body);
        snprintf(want, sizeof want, "%.*s", n, thought);
        /* what was told goes on behind the forced end, which took the place of as much of it */
        const char *content = text_at(server.json, "choices.0.message.content");
        assert_true(strlen(content) < 26 - (size_t)n && strlen(content) > 0);
        assert_string_equal(content, thought + 26 - strlen(content));
        expect_thought(want, content);
        assert_int_equal(int_at(server.json, "usage.completion_tokens"), 27);
    }
    post("/v1/chat/completions", "{" HI ",\"thinking_budget_tokens\":-1}");
    expect_thought(thought, "");
    post("/v1/chat/completions", "{" HI "}");
    expect_thought(thought, "");
    tell("abc\n</think>\n\nwhatever comes now has no limit");
    post("/v1/chat/completions", "{" HI ",\"thinking_budget_tokens\":6}");
    expect_thought("abc", "whatever comes now has no limit");
}

static void a_budget_of_nothing_turns_thinking_off(void **state)
{
    (void)state;
    tell("four");
    post("/v1/chat/completions", "{" HI ",\"thinking_budget_tokens\":0}");
    expect_thought("", "four"); /* the template has closed it */
    post("/v1/chat/completions", "{" HI ",\"thinking_budget_tokens\":0,\"enable_thinking\":true}");
    expect_thought("", "r"); /* forced: </think> and its newlines took the place of the rest */
}

static void every_protocol_has_its_budget(void **state)
{
    (void)state;
    tell(thought);
    post("/v1/messages", "{" HI ",\"max_tokens\":100,\"thinking\":{\"type\":\"enabled\","
                         "\"budget_tokens\":5}}");
    assert_string_equal(text_at(server.json, "content.0.thinking"), "abcde");
    assert_string_equal(text_at(server.json, "content.1.type"), "text");
    post("/v1/responses", "{\"input\":\"hi\",\"thinking_budget_tokens\":5}");
    assert_string_equal(text_at(server.json, "output.0.content.0.text"), "abcde");
    assert_int_equal(ask(&server, "POST", "/v1/messages",
                         "{" HI ",\"max_tokens\":9,\"thinking\":{\"type\":\"enabled\","
                         "\"budget_tokens\":0}}"),
                     400);
    assert_int_equal(
        ask(&server, "POST", "/v1/chat/completions", "{" HI ",\"thinking_budget_tokens\":-2}"),
        400);
    assert_string_equal(text_at(server.json, "error.param"), "thinking_budget_tokens");
}

/* A long thought, and how much of it came back. */
static size_t thought_of(const char *path, const char *more)
{
    char body[512];
    snprintf(body, sizeof body, "{%s%s%s}", strcmp(path, "/v1/responses") ? HI : "\"input\":\"hi\"",
             *more ? "," : "", more);
    post(path, body);
    const char *text = json_string_value(at(server.json, "choices.0.message.reasoning_content"));
    if (!text)
        text = json_string_value(at(server.json, "output.0.content.0.text"));
    return text ? strlen(text) : 0;
}

static void an_effort_is_a_budget(void **state)
{
    (void)state;
    static char text[3000];
    memset(text, 'x', sizeof text - 1);
    tell(text);
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"minimal\""), 512);
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"low\""), 2048);
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"high\""), 2999);
    assert_int_equal(thought_of("/v1/responses", "\"reasoning\":{\"effort\":\"minimal\"}"), 512);
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"minimal\","
                                                        "\"thinking_budget_tokens\":7"),
                     7);
    tell("four");
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"none\""), 0);
}

static void the_servers_own_budget_serves_who_does_not_say(void **state)
{
    (void)state;
    told_close();
    told_open("qwen35_xml", &(struct server_opts){.think_budget = 4});
    tell(thought);
    assert_int_equal(thought_of("/v1/chat/completions", ""), 4);
    assert_int_equal(thought_of("/v1/chat/completions", "\"thinking_budget_tokens\":9"), 9);
    assert_int_equal(thought_of("/v1/chat/completions", "\"thinking_budget_tokens\":-1"), 26);
    told_close();
    told_open("qwen35_xml", &(struct server_opts){.no_thinking = true});
    assert_int_equal(thought_of("/v1/chat/completions", ""), 0);
    told_close();
    /* where the model opens the tag itself */
    told_open("thinking_dropped", &(struct server_opts){.think_budget = 4});
    tell("<think>abcdefghijklmnopqrstuvwxyz0123456789");
    assert_int_equal(thought_of("/v1/chat/completions", ""), 4);
    told_close();
    told_open("qwen35_xml", &(struct server_opts){0});
}

static void the_prompt_that_is_shown_is_the_one_that_is_evaluated(void **state)
{
    (void)state;
    tell("x");
    post("/v1/chat/completions", "{" HI "}");
    const int64_t n = int_at(server.json, "usage.prompt_tokens");
    post("/apply-template", "{" HI "}");
    char *text = json_dumps(at(server.json, "prompt"), JSON_ENCODE_ANY), body[1024];
    snprintf(body, sizeof body, "{\"content\":%s,\"parse_special\":true}", text);
    free(text);
    post("/tokenize", body);
    assert_int_equal(json_array_size(at(server.json, "tokens")), n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thinking_budget_is_kept_to_the_token),
        cmocka_unit_test(a_budget_of_nothing_turns_thinking_off),
        cmocka_unit_test(every_protocol_has_its_budget),
        cmocka_unit_test(an_effort_is_a_budget),
        cmocka_unit_test(the_servers_own_budget_serves_who_does_not_say),
        cmocka_unit_test(the_prompt_that_is_shown_is_the_one_that_is_evaluated),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
