/* /cache/explain over real HTTP: every protocol's responses are found, and the causes are told apart. */
#include "server/testing_int.h"

#include "server/explain.h"

static void explain(struct world *w, const char *id)
{
    char path[128];
    snprintf(path, sizeof path, "/cache/explain?id=%s", id);
    if (ask(w, "GET", path, NULL) != 200)
        fail_msg("%s: %s", id, buf_str(&w->reply));
}

static void a_response_of_every_protocol_is_explained_by_its_id(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *path, *body, *prefix;
    } cases[] = {
        {"/completion", "{\"prompt\":\"abcdefgh\",\"n_predict\":2}", "cmpl-"},
        {"/v1/completions", "{\"prompt\":\"abcdefgh\",\"max_tokens\":2}", "cmpl-"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2}", "chatcmpl-"},
        {"/v1/responses", "{\"input\":\"hi\",\"max_output_tokens\":2}", "resp_"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2}",
         "msg_"},
    };
    w->engine.plan = (struct plan){.lcp = 3, .start = 2, .restore = 5, .restore_kind = CUT_BRANCH};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char id[64];
        assert_int_equal(ask(w, "POST", cases[i].path, cases[i].body), 200);
        snprintf(id, sizeof id, "%s", text_at(w, "id"));
        assert_memory_equal(id, cases[i].prefix, strlen(cases[i].prefix));
        explain(w, id);
        assert_string_equal(text_at(w, "id"), id);
        assert_int_equal(int_at(w, "budget_bytes"), 1000);
        assert_int_equal(int_at(w, "prompts.0.prompt_tokens"), w->engine.last.n_prompt);
        assert_int_equal(int_at(w, "prompts.0.common_tokens"), 3);
        assert_int_equal(int_at(w, "prompts.0.restored_at"), 2);
        assert_string_equal(text_at(w, "prompts.0.restored_kind"), cut_kind_name(CUT_BRANCH));
        assert_int_equal(int_at(w, "prompts.0.reused_tokens"), 2);
        assert_int_equal(int_at(w, "prompts.0.snapshot_distance"), 1);
        assert_int_equal(int_at(w, "prompts.0.divergence.position"), 3);
    }
    /* every choice of a response has its own */
    char id[64];
    assert_int_equal(
        ask(w, "POST", "/v1/completions", "{\"prompt\":\"abcdefgh\",\"max_tokens\":2,\"n\":3}"),
        200);
    snprintf(id, sizeof id, "%s", text_at(w, "id"));
    explain(w, id);
    assert_int_equal(json_array_size(at(w, "prompts")), 3);
}

static void a_divergence_is_told_by_message_and_offset(void **state)
{
    struct world *w = *state;
    char id[64];
    assert_int_equal(ask(w, "POST", "/v1/chat/completions",
                         "{\"messages\":[{\"role\":\"system\",\"content\":\"be kind\"},"
                         "{\"role\":\"user\",\"content\":\"a long question, this one\"}],"
                         "\"max_tokens\":1}"),
                     200);
    const uint32_t n = w->engine.last.n_prompt;
    /* the second message goes from somewhere to the generation prompt; a place within it */
    w->engine.plan = (struct plan){.lcp = n / 2 + 5, .forks = true};
    assert_int_equal(ask(w, "POST", "/v1/chat/completions",
                         "{\"messages\":[{\"role\":\"system\",\"content\":\"be kind\"},"
                         "{\"role\":\"user\",\"content\":\"a long question, this one\"}],"
                         "\"max_tokens\":1}"),
                     200);
    snprintf(id, sizeof id, "%s", text_at(w, "id"));
    explain(w, id);
    assert_int_equal(int_at(w, "prompts.0.divergence.message"), 1);
    assert_string_equal(text_at(w, "prompts.0.divergence.role"), "user");
    const int64_t offset = int_at(w, "prompts.0.divergence.offset");
    assert_in_range(offset, 1, n / 2 + 5);
    /* one token on is one token further in the same message */
    w->engine.plan.lcp++;
    assert_int_equal(ask(w, "POST", "/v1/chat/completions",
                         "{\"messages\":[{\"role\":\"system\",\"content\":\"be kind\"},"
                         "{\"role\":\"user\",\"content\":\"a long question, this one\"}],"
                         "\"max_tokens\":1}"),
                     200);
    snprintf(id, sizeof id, "%s", text_at(w, "id"));
    explain(w, id);
    assert_int_equal(int_at(w, "prompts.0.divergence.offset"), offset + 1);
}

static void causes_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        struct explained e;
        const char *cause;
    } cases[] = {
        {{.t.n_prompt = 100}, "cold"},
        {{.off = true, .lcp = 50, .t.n_prompt = 100}, "off"},
        {{.lcp = 60, .start = 60, .t = {.n_prompt = 100, .n_reused = 60}}, "append"},
        {{.lcp = 60, .start = 60, .forks = true, .t = {.n_prompt = 100, .n_reused = 60}}, "branch"},
        {{.lcp = 100, .start = 99, .lost_last = 1, .t = {.n_prompt = 100, .n_reused = 99}},
         "repeat"},
        /* the same prompt as one that is about to evaluate its last token */
        {{.lcp = 99, .asked = 100, .start = 99, .t = {.n_prompt = 100, .n_reused = 99}}, "repeat"},
        {{.lcp = 99, .asked = 99, .start = 99, .t = {.n_prompt = 100, .n_reused = 99}}, "append"},
        {{.lcp = 60, .asked = 100, .start = 60, .t = {.n_prompt = 100, .n_reused = 60}}, "append"},
        {{.lcp = 20, .lost_minimum = 20, .t.n_prompt = 100}, "minimum"},
        /* only the state of all of it is there, and one token must be evaluated */
        {{.lcp = 100, .lost_last = 100, .t.n_prompt = 100}, "last"},
        {{.lcp = 100, .start = 40, .lost_last = 60, .t = {.n_prompt = 100, .n_reused = 40}},
         "last"},
        {{.lcp = 1, .lost_last = 1, .t.n_prompt = 1}, "last"},
        {{.lcp = 20, .lost_last = 1, .lost_minimum = 19, .t.n_prompt = 20}, "minimum"},
        {{.lcp = 80,
          .start = 30,
          .lost_evicted = 40,
          .lost_placement = 10,
          .t = {.n_prompt = 100, .n_reused = 30}},
         "evicted"},
        {{.lcp = 2007, .lost_evicted = 1999, .lost_minimum = 8, .t.n_prompt = 2100}, "evicted"},
        {{.lcp = 80, .lost_rejected = 80, .t.n_prompt = 100}, "rejected"},
        {{.foreign.pos = 80, .t.n_prompt = 100}, "fingerprint"},
        {{.lcp = 10, .start = 10, .foreign.pos = 80, .t = {.n_prompt = 100, .n_reused = 10}},
         "fingerprint"},
        {{.lcp = 60, .lost_evicted = 60, .foreign.pos = 80, .t.n_prompt = 100}, "evicted"},
        {{.foreign.pos = 80, .t = {.n_prompt = 100, .n_reused = 90, .n_shared = 90}}, "append"},
        {{.lcp = 80, .lost_placement = 80, .t.n_prompt = 100}, "placement"},
        /* what a request in flight had, was not lost */
        {{.lcp = 80, .lost_placement = 80, .t = {.n_prompt = 100, .n_reused = 80, .n_shared = 80}},
         "append"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (strcmp(explained_cause(&cases[i].e), cases[i].cause) != 0)
            fail_msg("case %zu: %s, not %s", i, explained_cause(&cases[i].e), cases[i].cause);
}

static void a_file_that_cannot_be_read_is_told(void **state)
{
    struct world *w = *state;
    w->engine.plan = (struct plan){.lcp = 6, .lost_evicted = 6, .evicted_ns = 1};
    for (int i = 0; i < 2; i++) {
        char id[64];
        w->engine.plan.unreadable = i;
        assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"abcdefgh\",\"n_predict\":2}"),
                         200);
        snprintf(id, sizeof id, "%s", text_at(w, "id"));
        explain(w, id);
        assert_string_equal(text_at(w, "prompts.0.cause"), "evicted");
        assert_int_equal(!!strstr(text_at(w, "prompts.0.text"), "its file could not be read"), i);
    }
}

static void a_state_of_another_make_is_told_with_its_maker_and_ours(void **state)
{
    struct world *w = *state;
    char id[64];
    w->engine.plan = (struct plan){0};
    w->engine.foreign = (struct foreign_state){
        .pos = 7, .id = 0xab, .by = {.fingerprint = 0x12, .kernels = "sse9", .kv_type = "f32"}};
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"abcdefgh\",\"n_predict\":2}"),
                     200);
    snprintf(id, sizeof id, "%s", text_at(w, "id"));
    explain(w, id);
    w->engine.foreign = (struct foreign_state){0};
    assert_string_equal(text_at(w, "prompts.0.cause"), "fingerprint");
    assert_string_equal(text_at(w, "prompts.0.text"),
                        "7 tokens are on disk in 00000000000000ab.seg, but with KV in f32; here it "
                        "is f16.");
    assert_int_equal(int_at(w, "prompts.0.foreign.position"), 7);
    assert_string_equal(text_at(w, "prompts.0.foreign.file"), "00000000000000ab.seg");
    assert_string_equal(text_at(w, "prompts.0.foreign.made_by.fingerprint"), "0000000000000012");
    assert_string_equal(text_at(w, "prompts.0.foreign.made_by.kernels"), "sse9");
    assert_string_equal(text_at(w, "prompts.0.foreign.here.kernels"), "ref");
}

static void the_oldest_are_forgotten_and_no_more_is_kept(void **state)
{
    (void)state;
    struct explain *x = explain_new();
    struct explained e = {0}, got[4];
    for (uint32_t i = 0; i < 3 * EXPLAIN_KEPT; i++) {
        snprintf(e.id, sizeof e.id, "r%u", i);
        e.lcp = i;
        explain_note(x, &e);
    }
    char id[48];
    for (uint32_t i = 0; i < 3 * EXPLAIN_KEPT; i++) {
        snprintf(id, sizeof id, "r%u", i);
        const uint32_t n = explain_find(x, id, got, 4);
        assert_int_equal(n, i >= 2 * EXPLAIN_KEPT);
        if (n)
            assert_int_equal(got[0].lcp, i);
    }
    explain_free(x);
}

static void what_is_not_known_is_said(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "GET", "/cache/explain?id=resp_nobody", NULL), 404);
    assert_int_equal(ask(w, "GET", "/cache/explain", NULL), 400);
    assert_non_null(strstr(text_at(w, "error.message"), "id is missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_response_of_every_protocol_is_explained_by_its_id),
        T(a_divergence_is_told_by_message_and_offset),
        T(causes_are_told_apart),
        T(a_file_that_cannot_be_read_is_told),
        T(a_state_of_another_make_is_told_with_its_maker_and_ours),
        T(the_oldest_are_forgotten_and_no_more_is_kept),
        T(what_is_not_known_is_said),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
