/* The model in the box: found without -m, answers what it was taught, calls its tools, and carries the
 * demo, which checks its own promises. */
#include "program_int.h"

#define TOOL(name, field)                                                                          \
    "{\"type\": \"function\", \"function\": {\"name\": \"" name "\", \"description\": \"\", "      \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"" field                             \
    "\": {\"type\": \"string\", \"description\": \"\"}}, \"required\": [\"" field "\"]}}}"

static void the_demo_keeps_its_promises(void **state)
{
    (void)state;
    struct scene s;
    char *said;
    scene_open(&s);
    const int status = RUN(&s, &said, "demo");
    if (status)
        fail_msg("%s", said);
    assert_non_null(strstr(said, "C' reuses exactly the 2531 tokens in common: 2531"));
    mem_free(said);
    scene_close(&s);
}

static void chat_answers_from_the_box(void **state)
{
    (void)state;
    struct scene s;
    char *said;
    scene_open(&s);
    assert_int_equal(RUN(&s, &said, "chat", "--temp", "0", "-p", "What is a snapshot?"), 0);
    assert_non_null(strstr(said, "models/demo.gguf"));
    if (!strstr(said, "state"))
        fail_msg("%s", said);
    mem_free(said);
    scene_close(&s);
}

static int chat(struct program *p, const char *question, const char *more)
{
    char body[1024];
    snprintf(body, sizeof body,
             "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}], \"temperature\": 0, "
             "\"max_tokens\": 120, \"chat_template_kwargs\": {\"enable_thinking\": false}%s}",
             question, more);
    return ask(p, "POST", "/v1/chat/completions", body);
}

static void serve_without_a_model_serves_the_box(void **state)
{
    (void)state;
    struct scene s;
    struct program p;
    scene_open(&s);
    program_serve(&p, &s, "box", (const char *const[]){NULL});
    assert_int_equal(chat(&p, "What is prefill?", ""), 200);
    assert_non_null(strstr(text_at(p.json, "choices.0.message.content"), "prompt"));
    assert_string_equal(text_at(p.json, "choices.0.finish_reason"), "stop");
    assert_int_equal(chat(&p, "Who painted the Mona Lisa?", ""), 200);
    assert_non_null(strstr(text_at(p.json, "choices.0.message.content"), "do not know"));
    assert_int_equal(
        chat(&p, "What is the weather in Oslo?", ", \"tools\": [" TOOL("get_weather", "city") "]"),
        200);
    assert_string_equal(text_at(p.json, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(text_at(p.json, "choices.0.message.tool_calls.0.function.name"),
                        "get_weather");
    json_t *args =
        parse(str_of(text_at(p.json, "choices.0.message.tool_calls.0.function.arguments")));
    assert_string_equal(text_at(args, "city"), "Oslo");
    json_decref(args);
    assert_int_equal(program_stop(&p), 0);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_keeps_its_promises),
        cmocka_unit_test(chat_answers_from_the_box),
        cmocka_unit_test(serve_without_a_model_serves_the_box),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
