/* Which grammar a request gets, from when on, and what is refused; what a grammar then does to an answer
 * is constrained_e2e_test's and the engine's to show. */
#include "server/testing_int.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{"        \
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}]"
#define STRICT                                                                                     \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"strict\":true,"        \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}]"
#define SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"
#define FORMAT                                                                                     \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" SCHEMA "}}"
#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define QUIET "\"chat_template_kwargs\":{\"enable_thinking\":false}"

static void a_request_gets_the_grammar_it_asks_for_behind_its_thinking(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *path, *body;
        bool grammar, after;
    } cases[] = {
        {"/completion", "{\"prompt\":\"a\"}", false, false},
        {"/completion", "{\"prompt\":\"a\",\"grammar\":\"root ::= [a-z]+\"}", true, false},
        {"/completion", "{\"prompt\":\"a\",\"json_schema\":" SCHEMA "}", true, false},
        {"/completion", "{\"prompt\":\"a\",\"json_schema\":{}}", true, false},
        {"/completion", "{\"prompt\":\"a\",\"grammar\":\"\",\"json_schema\":null}", false, false},
        {"/v1/completions", "{\"prompt\":\"a\"," FORMAT "}", true, false},
        {"/v1/chat/completions", "{" CHAT "}", false, false},
        {"/v1/chat/completions", "{" CHAT ",\"response_format\":{\"type\":\"text\"}}", false,
         false},
        {"/v1/chat/completions", "{" CHAT ",\"response_format\":{\"type\":\"json_object\"}}", true,
         true},
        {"/v1/chat/completions", "{" CHAT "," FORMAT "}", true, true},
        {"/v1/chat/completions", "{" CHAT "," FORMAT "," QUIET "}", true, false},
        {"/v1/chat/completions", "{" CHAT ",\"grammar\":\"root ::= [a-z]+\"," QUIET "}", true,
         false},
        {"/v1/chat/completions", "{" CHAT "," TOOLS "}", false, false},
        {"/v1/chat/completions", "{" CHAT "," STRICT "}", true, true},
        {"/v1/chat/completions", "{" CHAT "," STRICT ",\"tool_choice\":\"none\"}", false, false},
        {"/v1/chat/completions", "{" CHAT "," TOOLS "," FORMAT "}", true, true},
        {"/v1/chat/completions", "{" CHAT "," TOOLS ",\"tool_choice\":\"required\"}", true, true},
        {"/v1/chat/completions",
         "{" CHAT "," TOOLS "," FORMAT ",\"tool_choice\":{\"type\":\"function\",\"function\":{"
         "\"name\":\"weather\"}}}",
         true, true},
        {"/v1/responses", "{\"input\":\"hi\"}", false, false},
        {"/v1/responses",
         "{\"input\":\"hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA
         "}}}",
         true, true},
        {"/v1/responses",
         "{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":"
         "{\"type\":\"function\",\"name\":\"f\"}}",
         true, true},
        {"/v1/messages",
         "{" CHAT ",\"max_tokens\":9,\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],"
         "\"tool_choice\":{\"type\":\"any\"}}",
         true, true},
        {"/v1/messages",
         "{" CHAT ",\"max_tokens\":9,\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],"
         "\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"},\"thinking\":{\"type\":\"disabled\"}}",
         true, false},
        {"/v1/messages",
         "{" CHAT ",\"max_tokens\":9,\"output_format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA
         "}}",
         true, true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const int status = ask(w, "POST", cases[i].path, cases[i].body);
        if (status != 200)
            fail_msg("%s %s: %d %s", cases[i].path, cases[i].body, status, buf_str(&w->reply));
        if ((w->engine.last.grammar != NULL) != cases[i].grammar ||
            (w->engine.last_after[0] != 0) != cases[i].after)
            fail_msg("%s %s: grammar %p after '%s'", cases[i].path, cases[i].body,
                     (void *)w->engine.last.grammar, w->engine.last_after);
    }
}

static void what_cannot_be_kept_is_refused_by_name(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *path, *body, *param, *message;
    } cases[] = {
        {"/completion", "{\"prompt\":\"a\",\"grammar\":5}", "grammar", "string"},
        {"/completion", "{\"prompt\":\"a\",\"grammar\":\"root ::= \\\"a\"}", "grammar", "line 1"},
        {"/completion", "{\"prompt\":\"a\",\"grammar\":\"a ::= a\"}", "grammar", "no rule 'root'"},
        {"/completion", "{\"prompt\":\"a\",\"grammar\":\"root ::= root\"}", "grammar",
         "'root' is left-recursive"},
        {"/completion",
         "{\"prompt\":\"a\",\"grammar\":\"root ::= (((\\\"a\\\"{1000}){1000}){1000}){1000} "
         "[^b]{100000} [^a]{100000}\"}",
         "grammar", "more than 1048576 states"},
        {"/completion", "{\"prompt\":\"a\",\"json_schema\":5}", "json_schema", "JSON schema"},
        {"/completion", "{\"prompt\":\"a\",\"json_schema\":{\"not\":{}}}", "json_schema",
         "\"not\" is not supported"},
        {"/completion", "{\"prompt\":\"a\",\"json_schema\":{},\"grammar\":\"root ::= \\\"a\\\"\"}",
         "json_schema", "exclude"},
        {"/v1/chat/completions", "{" CHAT ",\"response_format\":5}", "response_format", "type"},
        {"/v1/chat/completions", "{" CHAT ",\"response_format\":{\"type\":\"xml\"}}",
         "response_format", "xml is not supported"},
        {"/v1/chat/completions", "{" CHAT ",\"response_format\":{\"type\":\"json_schema\"}}",
         "response_format.schema", "missing"},
        {"/v1/chat/completions",
         "{" CHAT ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
         "{\"type\":\"object\",\"properties\":{\"a\":{\"if\":{}}}}}}}",
         "response_format", "properties.a: the keyword \"if\""},
        {"/v1/chat/completions",
         "{" CHAT "," TOOLS
         ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"x\"}}}",
         "tool_choice", "not among the tools"},
        {"/v1/chat/completions", "{" CHAT "," TOOLS ",\"tool_choice\":{\"type\":\"function\"}}",
         "tool_choice.function.name", "string"},
        {"/v1/chat/completions", "{" CHAT "," TOOLS ",\"tool_choice\":\"maybe\"}", "tool_choice",
         "not supported"},
        {"/v1/chat/completions", "{" CHAT "," TOOLS ",\"grammar\":\"root ::= [a-z]\"}", "grammar",
         "together with tools"},
        {"/v1/chat/completions",
         "{" CHAT ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
         "{\"properties\":{\"a\":{\"not\":{}}}}}}],\"tool_choice\":\"required\"}",
         "tools[0].function.parameters.properties.a", "\"not\""},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
         "\"content\":\"{\"}]," FORMAT "}",
         "response_format", "last message"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_error(w, cases[i].path, cases[i].body, 400, "invalid_request_error", cases[i].param,
                     cases[i].message);
}

static void json_and_calls_that_are_json_are_not_mixed(void **state)
{
    struct world *w = *state;
    use_template(w, "llama3_headers");
    stop(w);
    const struct server_opts o = {0};
    start(w, &o, true);
    expect_error(w, "/v1/chat/completions", "{" CHAT "," TOOLS "," FORMAT "}", 400,
                 "invalid_request_error", "response_format", "calls are JSON too");
    assert_int_equal(
        ask(w, "POST", "/v1/chat/completions", "{" CHAT "," TOOLS ",\"tool_choice\":\"required\"}"),
        200);
    assert_non_null(w->engine.last.grammar);
    use_template(w, "qwen35_xml");
}

static void the_same_schema_is_the_same_grammar(void **state)
{
    struct world *w = *state;
    static const char body[] = "{\"prompt\":\"a\",\"json_schema\":" SCHEMA "}";
    assert_int_equal(ask(w, "POST", "/completion", body), 200);
    const struct grammar *const first = w->engine.last.grammar;
    assert_int_equal(ask(w, "POST", "/completion", body), 200);
    assert_ptr_equal(w->engine.last.grammar, first);
}

static void the_responses_object_shows_what_was_asked(void **state)
{
    struct world *w = *state;
    assert_int_equal(
        ask(w, "POST", "/v1/responses",
            "{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],"
            "\"tool_choice\":\"required\",\"text\":{\"format\":{\"type\":\"json_object\"}}}"),
        200);
    assert_string_equal(text_at(w, "tool_choice"), "required");
    assert_string_equal(text_at(w, "text.format.type"), "json_object");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_request_gets_the_grammar_it_asks_for_behind_its_thinking),
        T(what_cannot_be_kept_is_refused_by_name),
        T(json_and_calls_that_are_json_are_not_mixed),
        T(the_same_schema_is_the_same_grammar),
        T(the_responses_object_shows_what_was_asked),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
