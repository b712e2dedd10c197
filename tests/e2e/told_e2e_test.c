/* What a model may say and what of it a client gets: thinking cut by its budget, tool calls, emoji, stop
 * strings, over the real engine and real HTTP. */
#include "told_int.h"

static int group_set_up(void **state)
{
    inproc_set_up(state);
    told_open("qwen35_xml", &(struct server_opts){0});
    return 0;
}

static int group_tear_down(void **state)
{
    inproc_close();
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
    static char text[2100];
    memset(text, 'x', sizeof text - 1);
    tell(text);
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"low\""), 2048);
    text[600] = 0;
    tell(text);
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"minimal\""), 512);
    assert_int_equal(thought_of("/v1/chat/completions", "\"reasoning_effort\":\"high\""), 600);
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
    inproc_close();
    told_open("qwen35_xml", &(struct server_opts){.think_budget = 4});
    tell(thought);
    assert_int_equal(thought_of("/v1/chat/completions", ""), 4);
    assert_int_equal(thought_of("/v1/chat/completions", "\"thinking_budget_tokens\":9"), 9);
    assert_int_equal(thought_of("/v1/chat/completions", "\"thinking_budget_tokens\":-1"), 26);
    inproc_close();
    told_open("qwen35_xml", &(struct server_opts){.no_thinking = true});
    assert_int_equal(thought_of("/v1/chat/completions", ""), 0);
    inproc_close();
    /* where the model opens the tag itself */
    told_open("thinking_dropped", &(struct server_opts){.think_budget = 4});
    tell("<think>abcdefghijklmnopqrstuvwxyz0123456789");
    assert_int_equal(thought_of("/v1/chat/completions", ""), 4);
    inproc_close();
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

/* ---- calls, characters, stop strings: whole and streamed ---- */

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{"        \
    "\"type\":"                                                                                    \
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}" \
    "}]"
#define CALL(city)                                                                                 \
    "<tool_call>\n<function=weather>\n<parameter=city>\n" city                                     \
    "\n</parameter>\n<parameter=days>\n3\n"                                                        \
    "</parameter>\n</function>\n</tool_call>"

/* What a chat says, put together. */
struct heard {
    struct buf reasoning, content, calls; /* calls: "name(arguments);" */
    char finish[32];
    unsigned n_chunks;
};

static void heard_release(struct heard *h)
{
    buf_release(&h->reasoning);
    buf_release(&h->content);
    buf_release(&h->calls);
}

static void add_text(struct buf *b, const json_t *v)
{
    buf_add(b, json_string_value(v), json_string_length(v));
    assert_null(strstr(buf_str(b), "\xEF\xBF\xBD")); /* what half a character would become */
}

static void add_message(struct heard *h, json_t *m)
{
    add_text(&h->reasoning, json_object_get(m, "reasoning_content"));
    add_text(&h->content, json_object_get(m, "content"));
    const json_t *calls = json_object_get(m, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        if (json_object_get(call, "id"))
            buf_addf(&h->calls, "\n%s ", text_at(call, "function.name"));
        add_text(&h->calls, at(call, "function.arguments"));
    }
}

static void hear_whole(const char *body, struct heard *h)
{
    memset(h, 0, sizeof *h);
    post("/v1/chat/completions", body);
    add_message(h, at(server.json, "choices.0.message"));
    snprintf(h->finish, sizeof h->finish, "%s", text_at(server.json, "choices.0.finish_reason"));
}

static void hear_stream(const char *body, struct heard *h)
{
    struct sse_event e;
    bool end;
    memset(h, 0, sizeof *h);
    assert_int_equal(
        client_begin(server.client, "POST", "/v1/chat/completions", str_of(body), NULL), RC_OK);
    assert_int_equal(client_status(server.client), 200);
    while (!client_event(server.client, &e, &end, NULL) && !end) {
        if (str_is(e.data, "[DONE]"))
            continue;
        json_t *v = parse(e.data);
        add_message(h, at(v, "choices.0.delta"));
        const char *finish = json_string_value(at(v, "choices.0.finish_reason"));
        if (finish)
            snprintf(h->finish, sizeof h->finish, "%s", finish);
        h->n_chunks++;
        json_decref(v);
    }
}

static void expect_heard(const char *more, const char *reasoning, const char *content,
                         const char *calls, const char *finish)
{
    char body[2048];
    struct heard h[2];
    snprintf(body, sizeof body, "{" HI ",\"temperature\":0%s%s}", *more ? "," : "", more);
    hear_whole(body, &h[0]);
    snprintf(body, sizeof body, "{" HI ",\"temperature\":0,\"stream\":true%s%s}", *more ? "," : "",
             more);
    hear_stream(body, &h[1]);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(buf_str(&h[i].reasoning), reasoning);
        assert_string_equal(buf_str(&h[i].content), content);
        assert_string_equal(buf_str(&h[i].calls), calls);
        assert_string_equal(h[i].finish, finish);
        heard_release(&h[i]);
    }
}

static void calls_come_parsed_whatever_is_round_them(void **state)
{
    (void)state;
    static const char oslo[] = "\nweather {\"city\":\"Oslo\",\"days\":3}";
    tell("so\n</think>\n\nI look.\n\n" CALL("Oslo"));
    expect_heard(TOOLS, "so", "I look.", oslo, "tool_calls");
    tell("so\n</think>\n\n" CALL("Oslo") "\n" CALL("Bod\xC3\xB8 \xF0\x9F\x8C\xA7"));
    expect_heard(TOOLS, "so", "",
                 "\nweather {\"city\":\"Oslo\",\"days\":3}"
                 "\nweather {\"city\":\"Bod\xC3\xB8 \xF0\x9F\x8C\xA7\",\"days\":3}",
                 "tool_calls");
    expect_heard(TOOLS ",\"parallel_tool_calls\":false", "so", "", oslo, "tool_calls");
    /* inside the reasoning, and with its end missing */
    tell("so\n" CALL("Oslo"));
    expect_heard(TOOLS, "so", "", oslo, "tool_calls");
    tell("</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo");
    expect_heard(TOOLS, "", "", "\nweather {\"city\":\"Oslo\"}", "tool_calls");
    /* no calls at all */
    tell("</think>\n\n<tool_call> is a tag, <function=x> too");
    expect_heard(TOOLS, "", "<tool_call> is a tag, <function=x> too", "", "stop");
    tell("</think>\n\n" CALL("Oslo"));
    expect_heard(TOOLS ",\"tool_choice\":\"none\"", "", CALL("Oslo"), "", "stop");
}

static void one_call_wanted_is_one_call_generated(void **state)
{
    (void)state;
    static char text[4096] = "</think>\n\n";
    for (int i = 0; i < 20; i++)
        strcat(text, CALL("Oslo") "\n");
    tell(text);
    post("/v1/chat/completions", "{" HI "," TOOLS "}");
    const int64_t all = int_at(server.json, "usage.completion_tokens");
    assert_int_equal(json_array_size(at(server.json, "choices.0.message.tool_calls")), 20);
    post("/v1/chat/completions", "{" HI "," TOOLS ",\"parallel_tool_calls\":false}");
    assert_int_equal(json_array_size(at(server.json, "choices.0.message.tool_calls")), 1);
    assert_true(int_at(server.json, "usage.completion_tokens") < all);
}

static void characters_are_never_cut(void **state)
{
    (void)state;
    static const char text[] = "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80 \xC3\xA9\xE4\xBD\xA0!";
    char said[128], body[256];
    snprintf(said, sizeof said, "%s\n</think>\n\n%s", text, text);
    tell(said); /* byte by byte: a token for every byte */
    assert_true(script.n >= strlen(said) - 10);
    expect_heard("", text, text, "", "stop");
    /* cut off in the middle of a character by the limit: the half is not sent */
    for (int n = 1; n < 12; n++) {
        struct heard h;
        snprintf(body, sizeof body, "{" HI ",\"stream\":true,\"max_tokens\":%d}", n);
        hear_stream(body, &h);
        assert_int_equal(strncmp(buf_str(&h.reasoning), text, h.reasoning.n), 0);
        heard_release(&h);
    }
}

static void no_part_of_a_stop_string_is_sent(void **state)
{
    (void)state;
    static const struct {
        const char *text, *stop, *want;
    } cases[] = {
        {"one STOP two", "[\"STOP\"]", "one "},
        {"one STO STOP", "[\"STOP\"]", "one STO "},
        {"one STO", "[\"STOP\"]", "one STO"},
        {"aababac", "[\"abac\"]", "aab"},
        {"abcdef", "[\"def\",\"cde\"]", "ab"},
        {"x\xF0\x9F\x98\x80y", "[\"\xF0\x9F\x98\x80\"]", "x"},
        {"x\xF0\x9F\x98\x81y", "[\"\xF0\x9F\x98\x80\"]", "x\xF0\x9F\x98\x81y"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char said[128], more[128];
        snprintf(said, sizeof said, "</think>\n\n%s", cases[i].text);
        tell(said);
        snprintf(more, sizeof more, "\"stop\":%s", cases[i].stop);
        expect_heard(more, "", cases[i].want, "", "stop");
    }
}

/* ---- what is said about the work ---- */

static int64_t evaluated_so_far(void)
{
    static const char name[] = "\nllamacpp:prompt_tokens_total ";
    assert_int_equal(ask(&server, "GET", "/metrics", NULL), 200);
    const char *line = strstr(buf_str(&server.reply), name);
    assert_non_null(line);
    return strtoll(line + sizeof name - 1, NULL, 10);
}

static void several_choices_evaluate_a_chat_once(void **state)
{
    (void)state;
    tell("four");
    const int64_t before = evaluated_so_far();
    char body[2048] = "{\"n\":4,\"temperature\":1,\"messages\":[{\"role\":\"user\",\"content\":\"";
    for (int i = 0; i < 200; i++)
        sprintf(body + strlen(body), "%d ", i * i);
    strcat(body, "\"}]}");
    post("/v1/chat/completions", body);
    assert_int_equal(json_array_size(at(server.json, "choices")), 4);
    const int64_t n_prompt = int_at(server.json, "usage.prompt_tokens");
    const int64_t evaluated = evaluated_so_far() - before;
    /* each choice evaluates the last token for its logits, and the first the rest */
    assert_in_range(evaluated, 1, n_prompt + 3);
}

static void progress_counts_up_to_the_prompt(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct sse_event e;
    bool end;
    int64_t last = 0, total = 0;
    unsigned n = 0;
    tell("four");
    buf_adds(&b, "{\"stream\":true,\"return_progress\":true,\"messages\":[{\"role\":\"user\","
                 "\"content\":\"");
    for (int i = 0; i < 1000; i++)
        buf_addf(&b, "%c%d ", 'a' + i % 26, i);
    buf_adds(&b, "\"}]}");
    assert_int_equal(
        client_begin(server.client, "POST", "/v1/chat/completions", (struct str){b.p, b.n}, NULL),
        RC_OK);
    if (client_status(server.client) == 400) /* too long for the context */
        fail_msg("the prompt does not fit");
    while (!client_event(server.client, &e, &end, NULL) && !end) {
        if (str_is(e.data, "[DONE]"))
            continue;
        json_t *v = parse(e.data), *p = at(v, "prompt_progress");
        if (p) {
            assert_true(int_at(p, "processed") >= last);
            last = int_at(p, "processed");
            total = int_at(p, "total");
            n++;
        }
        json_decref(v);
    }
    assert_true(n >= 2);
    assert_true(last <= total && last > 0);
    buf_release(&b);
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
        cmocka_unit_test(calls_come_parsed_whatever_is_round_them),
        cmocka_unit_test(one_call_wanted_is_one_call_generated),
        cmocka_unit_test(characters_are_never_cut),
        cmocka_unit_test(no_part_of_a_stop_string_is_sent),
        cmocka_unit_test(several_choices_evaluate_a_chat_once),
        cmocka_unit_test(progress_counts_up_to_the_prompt),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
