#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "text/chat.h"
#include "text/json_int.h"
#include "text/testing_int.h"

#include <cmocka.h>

#define TEMPLATES HOUSE_SOURCE_DIR "/tests/templates/"

static json_t *talks;
static struct test_vocab vocab;

static struct chat_template *load(const char *name)
{
    char path[512], *s;
    size_t n;
    struct err err;
    struct chat_template *t = NULL;
    snprintf(path, sizeof path, "%s%s", TEMPLATES, name);
    if (file_read_all(path, 1 << 20, &s, &n, &err) ||
        chat_template_new((struct str){s, n}, vocab.v, &t, &err))
        fail_msg("%s: %s", name, err.msg);
    mem_free(s);
    return t;
}

static json_t *parse(const char *json)
{
    json_error_t e;
    json_t *const j = json_loads(json, 0, &e);
    if (!j)
        fail_msg("%s: %s", json, e.text);
    return j;
}

/* Spans as "part message [text]" lines. */
static void list_spans(const struct chat_prompt *p, struct buf *b)
{
    static const char *const names[] = {"message", "content", "thinking",
                                        "calls",   "tools",   "prompt"};
    buf_clear(b);
    for (size_t i = 0; i < p->n_spans; i++)
        buf_addf(b, "%s %d [%.*s]\n", names[p->spans[i].part], p->spans[i].message,
                 (int)(p->spans[i].end - p->spans[i].begin), p->text.p + p->spans[i].begin);
}

static void check_spans(const char *name, const char *messages, const char *tools, bool generation,
                        const char *want)
{
    struct chat_template *const t = load(name);
    json_t *const m = parse(messages), *const tl = tools ? parse(tools) : NULL;
    struct chat_prompt p = {0};
    struct err err;
    struct buf b = BUF_INIT;
    const struct chat_input in = {
        .messages = m, .tools = tl, .add_generation_prompt = generation, .now = 1721984703};
    if (chat_render(t, &in, &p, &err))
        fail_msg("%s: %s", name, err.msg);
    list_spans(&p, &b);
    assert_string_equal(buf_str(&b), want);
    buf_release(&b);
    chat_prompt_release(&p);
    json_decref(m);
    json_decref(tl);
    chat_template_free(t);
}

static void spans_name_each_message_and_its_parts(void **state)
{
    (void)state;
    check_spans("chatml.jinja",
                "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"U\"},"
                "{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"V\"}]",
                NULL, true,
                "message 0 [<|im_start|>system\nS<|im_end|>\n]\n"
                "content 0 [S]\n"
                "message 1 [<|im_start|>user\nU<|im_end|>\n]\n"
                "content 1 [U]\n"
                "message 2 [<|im_start|>assistant\n<|im_end|>\n]\n"
                "message 3 [<|im_start|>user\nV<|im_end|>\n]\n"
                "content 3 [V]\n"
                "prompt -1 [<|im_start|>assistant\n]\n");
}

static void a_system_message_taken_out_first_spans_its_header(void **state)
{
    (void)state;
    check_spans(
        "qwen35_xml.jinja",
        "[{\"role\":\"system\",\"content\":\" S \"},{\"role\":\"user\",\"content\":\"U\"},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"R\",\"content\":\"C\","
        "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"T\"}]",
        NULL, true,
        "message 0 [<|im_start|>system\nS<|im_end|>\n]\n"
        "content 0 [S]\n"
        "message 1 [<|im_start|>user\nU<|im_end|>\n]\n"
        "content 1 [U]\n"
        "message 2 [<|im_start|>assistant\n<think>\nR\n</think>\n\nC\n\n<tool_call>\n"
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "]\n"
        "thinking 2 [R]\n"
        "content 2 [C]\n"
        "calls 2 [\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"
        "</function>\n</tool_call>]\n"
        "message 3 [<|im_start|>user\n<tool_response>\nT\n</tool_response><|im_end|>\n]\n"
        "content 3 [T]\n"
        "prompt -1 [<|im_start|>assistant\n<think>\n]\n");
}

static void tools_have_a_span_of_their_own(void **state)
{
    (void)state;
    check_spans("chatml_tools.jinja", "[{\"role\":\"user\",\"content\":\"U\"}]",
                "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", false,
                "tools -1 [\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]\n"
                "message 0 [<|im_start|>user\nU<|im_end|>\n]\n"
                "content 0 [U]\n");
}

/* Where the first k messages alone render to a prefix of all of them, message k begins at its end.
 * (deepseek_bars is left out: what closes a run of tool results it writes with the next message.) */
static void messages_end_where_a_shorter_conversation_does(void **state)
{
    (void)state;
    static const char *const names[] = {
        "chatml.jinja",        "chatml_tools.jinja",    "thinking_dropped.jinja",
        "thinking_kept.jinja", "qwen35_xml.jinja",      "llama3_headers.jinja",
        "mistral_inst.jinja",  "granite_roles.jinja",   "typescript_tools.jinja",
        "gemma_turns.jinja",   "command_sections.jinja"};
    size_t compared = 0;
    for (size_t t = 0; t < COUNT_OF(names); t++) {
        struct chat_template *const tmpl = load(names[t]);
        const char *talk;
        json_t *vars;
        json_object_foreach(talks, talk, vars)
        {
            const json_t *const messages = json_object_get(vars, "messages");
            const json_t *const tools = json_object_get(vars, "tools");
            struct chat_prompt all = {0};
            struct chat_input in = {.messages = messages,
                                    .tools = json_is_array(tools) ? tools : NULL,
                                    .now = 1721984703};
            struct err err;
            if (chat_render(tmpl, &in, &all, &err))
                continue; /* the template refuses this conversation */
            size_t before = 0;
            for (size_t i = 0; i < all.n_spans; i++) {
                assert_true(all.spans[i].begin < all.spans[i].end);
                assert_true(all.spans[i].end <= all.text.n);
                assert_true(all.spans[i].begin >= before);
                before = all.spans[i].begin;
            }
            for (size_t k = 1; k < json_array_size(messages); k++) {
                json_t *const head = json_copy(json_unconst(messages));
                while (json_array_size(head) > k)
                    json_array_remove(head, k);
                struct chat_prompt part = {0};
                in.messages = head;
                const enum rc rc = chat_render(tmpl, &in, &part, &err);
                if (!rc && part.text.n && part.text.n < all.text.n &&
                    !memcmp(part.text.p, all.text.p, part.text.n))
                    for (size_t i = 0; i < all.n_spans; i++)
                        if (all.spans[i].part == CHAT_MESSAGE &&
                            all.spans[i].message == (int32_t)k - 1) {
                            if (all.spans[i].end != part.text.n)
                                fail_msg("%s, %s: message %zu ends at %zu, not %zu", names[t], talk,
                                         k - 1, all.spans[i].end, part.text.n);
                            compared++;
                        }
                chat_prompt_release(&part);
                json_decref(head);
            }
            chat_prompt_release(&all);
        }
        chat_template_free(tmpl);
    }
    if (compared < 200)
        fail_msg("only %zu compared", compared);
}

static void positions_count_the_tokens_before(void **state)
{
    (void)state;
    struct chat_template *const t = load("qwen35_xml.jinja");
    const char *talk;
    json_t *vars;
    size_t checked = 0;
    json_object_foreach(talks, talk, vars)
    {
        struct chat_prompt p = {0};
        struct tokens all = {0}, head = {0};
        struct err err;
        const json_t *const tools = json_object_get(vars, "tools");
        const struct chat_input in = {.messages = json_object_get(vars, "messages"),
                                      .tools = json_is_array(tools) ? tools : NULL,
                                      .add_generation_prompt = true};
        if (chat_render(t, &in, &p, &err))
            continue;
        assert_true(tokens_add(&all, 1)); /* what is there already does not count */
        assert_int_equal(chat_tokenize(vocab.v, &p, true, &all, &err), RC_OK);
        for (size_t i = 0; i < p.n_spans; i++) {
            const struct chat_span s = p.spans[i];
            size_t bytes = 0;
            for (uint32_t k = 0; k < s.pos_end; k++) {
                if (k == s.pos)
                    assert_true(bytes <= s.begin);
                bytes += vocab_bytes(vocab.v, all.v[1 + k], true).n;
            }
            assert_true(bytes <= s.end);
            assert_true(s.pos_end == all.n - 1 ||
                        bytes + vocab_bytes(vocab.v, all.v[1 + s.pos_end], true).n > s.end);
            if (s.part != CHAT_MESSAGE)
                continue;
            /* a message ends with a special token, so its tokens are those of its text alone */
            head.n = 0;
            assert_int_equal(bpe_encode(vocab.v, (struct str){p.text.p, s.begin},
                                        &(struct bpe_opts){.parse_special = true}, &head, &err),
                             RC_OK);
            assert_int_equal(head.n, s.pos);
            checked++;
        }
        tokens_release(&all);
        tokens_release(&head);
        chat_prompt_release(&p);
    }
    assert_true(checked > 50);
    chat_template_free(t);
}

/* Tokens that no text is cut into, in the place of a message's content. */
static void spliced_tokens_come_as_they_are_and_positions_with_them(void **state)
{
    (void)state;
    struct chat_template *const t = load("chatml.jinja");
    json_t *const m =
        parse("[{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\","
              "\"content\":\"two words\"},{\"role\":\"user\",\"content\":\"three\"}]");
    const struct chat_input in = {.messages = m, .add_generation_prompt = true};
    struct chat_prompt p = {0};
    struct tokens fine = {0}, all = {0};
    struct err err;
    for (const char *c = "three  words"; *c; c++) /* cut into bytes */
        assert_int_equal(
            bpe_encode(vocab.v, (struct str){c, 1}, &(struct bpe_opts){0}, &fine, &err), RC_OK);
    assert_int_equal(chat_render(t, &in, &p, &err), RC_OK);
    size_t i = 0;
    while (p.spans[i].part != CHAT_CONTENT || p.spans[i].message != 1)
        i++;
    assert_true(p.spans[i].end - p.spans[i].begin == 9);
    for (uint64_t n = 1;; n++) { /* without memory nothing happens */
        const size_t was = p.text.n;
        mem_fail_after(n);
        const enum rc rc = chat_splice(vocab.v, &p, p.spans[i].begin, p.spans[i].end, str_of("> "),
                                       fine.v, fine.n, &err);
        mem_fail_after(0);
        if (rc == RC_OK)
            break;
        assert_int_equal(rc, RC_NOMEM);
        assert_int_equal(p.text.n, was);
        assert_int_equal(p.n_verbatims, 0);
    }
    assert_non_null(
        strstr(buf_str(&p.text), "assistant\n> three  words<|im_end|>\n<|im_start|>user"));
    assert_int_equal(chat_tokenize(vocab.v, &p, false, &all, &err), RC_OK);
    for (i = 0; i < p.n_spans; i++) {
        const struct chat_span s = p.spans[i];
        const char *const text = p.text.p + s.begin;
        struct buf b = BUF_INIT;
        for (uint32_t k = s.pos; k < s.pos_end; k++) {
            const struct str piece = vocab_bytes(vocab.v, all.v[k], true);
            buf_add(&b, piece.p, piece.n);
        }
        if (s.part == CHAT_MESSAGE)
            assert_true(
                str_eq((struct str){buf_str(&b), b.n}, (struct str){text, s.end - s.begin}));
        buf_release(&b);
    }
    const struct chat_verbatim vb = p.verbatims[0];
    assert_true(str_is((struct str){p.text.p + vb.begin, vb.end - vb.begin}, "three  words"));
    bool found = false;
    for (i = 0; i + fine.n <= all.n; i++)
        found = found || memcmp(all.v + i, fine.v, fine.n * sizeof *fine.v) == 0;
    assert_true(found);
    tokens_release(&fine);
    tokens_release(&all);
    chat_prompt_release(&p);
    json_decref(m);
    chat_template_free(t);
}

static void probing_finds_what_a_template_does(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct chat_caps caps;
    } want[] = {
        {"chatml.jinja",
         {.system = 1, .late_system = 1, .developer = 1, .string_content = 1, .tool_results = 1}},
        {"chatml_tools.jinja",
         {.system = 1,
          .late_system = 1,
          .string_content = 1,
          .tools = 1,
          .tool_calls = 1,
          .tool_results = 1}},
        {"thinking_dropped.jinja",
         {.system = 1,
          .late_system = 1,
          .developer = 1,
          .string_content = 1,
          .tool_calls = 1,
          .tool_results = 1,
          .reasoning = 1,
          .thinks = 1}},
        {"qwen35_xml.jinja",
         {.system = 1,
          .parts = 1,
          .string_content = 1,
          .tools = 1,
          .tool_calls = 1,
          .tool_results = 1,
          .reasoning = 1,
          .thinks = 1}},
        {"gemma_turns.jinja",
         {.system = 1,
          .late_system = 1,
          .developer = 1,
          .parts = 1,
          .string_content = 1,
          .tool_results = 1}},
    };
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        struct chat_template *const t = load(want[i].name);
        if (memcmp(chat_template_caps(t), &want[i].caps, sizeof want[i].caps) != 0) {
            const struct chat_caps *const c = chat_template_caps(t);
            fail_msg("%s: system %d late %d developer %d parts %d string %d tools %d calls %d "
                     "results %d "
                     "reasoning %d thinks %d",
                     want[i].name, c->system, c->late_system, c->developer, c->parts,
                     c->string_content, c->tools, c->tool_calls, c->tool_results, c->reasoning,
                     c->thinks);
        }
        chat_template_free(t);
    }
}

static void expect_text(struct chat_template *t, const char *messages, const char *kwargs,
                        bool continue_last, bool thinking, const char *want)
{
    json_t *const m = parse(messages), *const kw = kwargs ? parse(kwargs) : NULL;
    struct chat_prompt p = {0};
    struct err err;
    const struct chat_input in = {
        .messages = m, .kwargs = kw, .add_generation_prompt = true, .continue_last = continue_last};
    if (chat_render(t, &in, &p, &err))
        fail_msg("%s", err.msg);
    assert_string_equal(buf_str(&p.text), want);
    assert_int_equal(p.thinking, thinking);
    chat_prompt_release(&p);
    json_decref(m);
    json_decref(kw);
}

static void content_is_bent_to_what_the_template_takes(void **state)
{
    (void)state;
    struct chat_template *t = load("chatml.jinja");
    /* parts to text, null to nothing, developer as it is */
    expect_text(t,
                "[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null}]",
                NULL, false, false,
                "<|im_start|>developer\na\nb<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
                "<|im_start|>assistant\n");
    chat_template_free(t);
    t = load("qwen35_xml.jinja"); /* raises for the role developer */
    expect_text(
        t, "[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]",
        "{\"enable_thinking\": false}", false, false,
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    chat_template_free(t);
    struct err err;
    static const char no_system[] =
        "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
        "{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    assert_int_equal(chat_template_new(str_of(no_system), NULL, &t, &err), RC_OK);
    expect_text(t,
                "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"U\"}]",
                NULL, false, false, "[user]S\n\nU");
    chat_template_free(t);
    static const char only_parts[] =
        "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}"
        "{% endfor %}";
    assert_int_equal(chat_template_new(str_of(only_parts), NULL, &t, &err), RC_OK);
    expect_text(t, "[{\"role\":\"user\",\"content\":\"U\"}]", NULL, false, false, "[user]U");
    chat_template_free(t);
}

static void system_messages_between_others_go_where_the_template_takes_them(void **state)
{
    (void)state;
    static const char talk[] =
        "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":\"b\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},"
        "{\"role\":\"system\",\"content\":\"c\"},"
        "{\"role\":\"assistant\",\"content\":\"r\"},{\"role\":\"system\",\"content\":\"d\"}]";
    struct chat_template *t = load("qwen35_xml.jinja"); /* raises for such a message */
    expect_text(t, talk, "{\"enable_thinking\": false}", false, false,
                "<|im_start|>system\na\n\nb<|im_end|>\n"
                "<|im_start|>user\nq\n\n<system-reminder>\nc\n</system-reminder><|im_end|>\n"
                "<|im_start|>assistant\nr<|im_end|>\n"
                "<|im_start|>user\n<system-reminder>\nd\n</system-reminder><|im_end|>\n"
                "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    /* behind a tool's result: a message of the user there would be the last question */
    expect_text(t,
                "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\","
                "\"reasoning_content\":\"so\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":"
                "\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"x\"},"
                "{\"role\":\"system\",\"content\":\"c\"}]",
                NULL, false, true,
                "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nso\n</think>\n\n"
                "<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n"
                "<|im_start|>user\n<tool_response>\nx\n\n<system-reminder>\nc\n</system-reminder>\n"
                "</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n");
    chat_template_free(t);
    t = load("chatml.jinja");
    expect_text(t,
                "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"system\",\"content\":\"c\"}]",
                NULL, false, false,
                "<|im_start|>user\nq<|im_end|>\n<|im_start|>system\nc<|im_end|>\n"
                "<|im_start|>assistant\n");
    chat_template_free(t);
}

static void a_last_assistant_message_can_be_continued(void **state)
{
    (void)state;
    struct chat_template *t = load("chatml.jinja");
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"Haiku?\"},"
                               "{\"role\":\"assistant\",\"content\":\"Old pond\"}]";
    expect_text(t, talk, NULL, true, false,
                "<|im_start|>user\nHaiku?<|im_end|>\n<|im_start|>assistant\nOld pond");
    json_t *const user = parse("[{\"role\":\"user\",\"content\":\"x\"}]");
    struct chat_prompt p = {0};
    struct err err;
    assert_int_equal(
        chat_render(t, &(struct chat_input){.messages = user, .continue_last = true}, &p, &err),
        RC_ARG);
    json_decref(user);
    chat_template_free(t);
    t = load("qwen35_xml.jinja");
    expect_text(t, talk, NULL, true, false,
                "<|im_start|>user\nHaiku?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
                "Old pond");
    expect_text(t, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, false, true,
                "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n");
    chat_template_free(t);
}

static void a_malformed_message_is_named(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"[]", "messages is empty"},
        {"{}", "messages is empty or not a list"},
        {"[1]", "messages[0] is not an object"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"content\":\"a\"}]", "messages[1].role"},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content"},
        {"[{\"role\":\"assistant\",\"tool_calls\":5}]", "messages[0].tool_calls is not a list"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0] has no"},
        {"[{\"role\":\"system\",\"content\":\"a\"}]",
         "chat template: line 68, column 24: No user query"},
    };
    struct chat_template *const t = load("qwen35_xml.jinja");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *const m = parse(cases[i][0]);
        struct chat_prompt p = {0};
        struct err err = {0};
        assert_int_equal(chat_render(t, &(struct chat_input){.messages = m}, &p, &err), RC_ARG);
        if (!strstr(err.msg, cases[i][1]))
            fail_msg("\"%s\" does not say \"%s\"", err.msg, cases[i][1]);
        json_decref(m);
    }
    chat_template_free(t);
}

static void the_built_in_template_is_chatml(void **state)
{
    (void)state;
    struct chat_template *t;
    struct err err;
    assert_int_equal(chat_template_new(str_of(chat_template_chatml), vocab.v, &t, &err), RC_OK);
    expect_text(t, "[{\"role\":\"user\",\"content\":\"hi\"}]", NULL, false, false,
                "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    chat_template_free(t);
}

static void out_of_memory_leaks_nothing(void **state)
{
    (void)state;
    struct chat_template *const t = load("chatml_tools.jinja");
    json_t *const m =
        parse("[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":"
              "[{\"type\":\"text\",\"text\":\"a\"}]}]");
    enum rc rc = RC_NOMEM;
    uint64_t n = 1;
    for (; rc != RC_OK; n++) {
        struct chat_prompt p = {0};
        struct tokens out = {0};
        struct err err;
        mem_fail_after(n);
        rc = chat_render(t, &(struct chat_input){.messages = m}, &p, &err);
        if (!rc)
            rc = chat_tokenize(vocab.v, &p, true, &out, &err);
        mem_fail_after(0);
        chat_prompt_release(&p);
        tokens_release(&out);
        assert_true(n < 1000);
    }
    assert_true(n > 8);
    json_decref(m);
    chat_template_free(t);
}

int main(void)
{
    talks = test_json(TEMPLATES "conversations.json");
    json_t *const small = test_json(HOUSE_SOURCE_DIR "/tests/golden/tokenizer/small.json");
    test_vocab_from(&vocab, small, "qwen35");
    json_decref(small);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_name_each_message_and_its_parts),
        cmocka_unit_test(a_system_message_taken_out_first_spans_its_header),
        cmocka_unit_test(tools_have_a_span_of_their_own),
        cmocka_unit_test(messages_end_where_a_shorter_conversation_does),
        cmocka_unit_test(positions_count_the_tokens_before),
        cmocka_unit_test(spliced_tokens_come_as_they_are_and_positions_with_them),
        cmocka_unit_test(probing_finds_what_a_template_does),
        cmocka_unit_test(content_is_bent_to_what_the_template_takes),
        cmocka_unit_test(system_messages_between_others_go_where_the_template_takes_them),
        cmocka_unit_test(a_last_assistant_message_can_be_continued),
        cmocka_unit_test(a_malformed_message_is_named),
        cmocka_unit_test(the_built_in_template_is_chatml),
        cmocka_unit_test(out_of_memory_leaks_nothing),
    };
    const int bad = cmocka_run_group_tests(tests, NULL, NULL);
    test_vocab_close(&vocab);
    json_decref(talks);
    return bad;
}
