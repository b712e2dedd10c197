/* The protocols over real HTTP, with an engine that is told what to do (fake_engine_int.h). */
#include "server/testing_int.h"

#include <pthread.h>

/* ---- routes, keys, origins ---- */

static void facts_have_their_shapes(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "GET", "/health", NULL), 200);
    assert_string_equal(buf_str(&w->reply), "{\"status\":\"ok\"}");
    assert_int_equal(ask(w, "GET", "/v1/models", NULL), 200);
    assert_string_equal(text_at(w, "data.0.id"), "tiny");
    assert_int_equal(int_at(w, "data.0.meta.n_ctx"), FAKE_CTX);
    assert_int_equal(ask(w, "GET", "/v1/models/tiny", NULL), 200);
    assert_string_equal(text_at(w, "object"), "model");
    assert_int_equal(ask(w, "GET", "/v1/models/other", NULL), 404);
    assert_int_equal(ask(w, "GET", "/props", NULL), 200);
    assert_int_equal(int_at(w, "total_slots"), 2);
    assert_string_equal(text_at(w, "model_path"), "/models/tiny.gguf");
    assert_int_equal(int_at(w, "default_generation_settings.params.top_k"), 40);
    assert_int_equal(ask(w, "GET", "/slots", NULL), 200);
    assert_true(json_is_true(at(w, "0.is_processing")));
    assert_int_equal(int_at(w, "1.id_task"), -1);
    assert_int_equal(ask(w, "GET", "/slots?fail_on_no_slot=1", NULL), 200);
    assert_int_equal(ask(w, "GET", "/", NULL), 200);
}

static void the_cache_is_shown_and_entries_can_be_dropped(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "GET", "/cache", NULL), 200);
    assert_string_equal(text_at(w, "policy"), "hold");
    assert_int_equal(int_at(w, "budget_bytes"), 1000);
    assert_int_equal(int_at(w, "lost_tokens.evicted"), 5);
    assert_int_equal(int_at(w, "entries.0.id"), 7);
    assert_int_equal(int_at(w, "entries.0.gap"), 60);
    assert_int_equal(int_at(w, "entries.1.position"), 100);
    assert_int_equal(int_at(w, "entries.1.gap"), 40);
    assert_int_equal(int_at(w, "entries.1.hits"), 3);
    assert_string_equal(text_at(w, "entries.1.kind"), cut_kind_name(CUT_BRANCH));
    assert_true(json_number_value(at(w, "entries.1.idle_s")) >= 2);
    assert_int_equal(ask(w, "DELETE", "/cache/8", NULL), 404);
    assert_int_equal(ask(w, "DELETE", "/cache/x", NULL), 404);
    assert_int_equal(ask(w, "DELETE", "/cache/7", NULL), 200);
    assert_int_equal(w->engine.dropped, 7);
}

static void entries_are_pinned_and_prefixes_warmed(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/cache/pin", "{\"id\":7}"), 200);
    assert_int_equal(w->engine.pin, 1);
    assert_true(json_is_true(at(w, "pinned")));
    assert_int_equal(ask(w, "POST", "/cache/unpin", "{\"id\":7}"), 200);
    assert_int_equal(w->engine.pin, -1);
    expect_error(w, "/cache/pin", "{\"id\":8}", 404, "not_found_error", NULL, "no entry");
    expect_error(w, "/cache/pin", "{}", 400, "invalid_request_error", "id", "missing");
    expect_error(w, "/cache/pin", "{\"id\":-1}", 400, "invalid_request_error", "id", "");
    /* a raw prompt but for its last token */
    w->engine.pinned = 12;
    assert_int_equal(ask(w, "POST", "/cache/warm", "{\"prompt\":[1,2,3,4]}"), 200);
    assert_int_equal(int_at(w, "id"), 12);
    assert_int_equal(int_at(w, "position"), 3);
    assert_int_equal(w->engine.last.n_prompt, 3);
    assert_int_equal(w->engine.last.n_predict, 0);
    assert_true(w->engine.last.pin);
    /* a conversation but for the generation prompt */
    static const char chat[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"be kind\"},"
                               "{\"role\":\"user\",\"content\":\"why?\"}]}";
    assert_int_equal(ask(w, "POST", "/v1/chat/completions", chat), 200);
    const uint32_t n_chat = w->engine.last.n_prompt;
    assert_int_equal(w->engine.last_hints, 'g');
    assert_int_equal(ask(w, "POST", "/cache/warm", chat), 200);
    assert_true(w->engine.last.n_prompt < n_chat);
    assert_int_equal(w->engine.last_hints, 'u');
    const uint32_t n_warm = w->engine.last.n_prompt;
    /* a system prompt alone, which the template would refuse */
    assert_int_equal(ask(w, "POST", "/cache/warm",
                         "{\"messages\":[{\"role\":\"system\",\"content\":\"be kind\"}]}"),
                     200);
    assert_in_range(w->engine.last.n_prompt, 2, n_warm - 1);
    assert_int_equal(w->engine.last_hints, 's');
    /* without a pin the policy decides */
    assert_int_equal(ask(w, "POST", "/cache/warm", "{\"prompt\":[1,2,3,4],\"pin\":false}"), 200);
    assert_true(json_is_null(at(w, "id")));
    assert_false(w->engine.last.pin);
    w->engine.pinned = 0;
    expect_error(w, "/cache/warm", "{\"prompt\":[1,2,3,4]}", 507, "unavailable_error", NULL,
                 "--cache-ram");
    expect_error(w, "/cache/warm", "{}", 400, "invalid_request_error", "prompt", "missing");
    expect_error(w, "/cache/warm", "{\"prompt\":[\"a\",\"b\"]}", 400, "invalid_request_error",
                 "prompt", "one");
    expect_error(w, "/cache/warm", "{\"prompt\":\"a\",\"messages\":[]}", 400,
                 "invalid_request_error", "prompt", "exclude");
}

static void a_client_may_tell_where_messages_begin(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/completion",
                         "{\"prompt\":[1,2,3,4],\"cache_hints\":[[0,\"s\"],[2,\"u\"],[3,\"g\"]]}"),
                     200);
    assert_int_equal(w->engine.last.n_hints, 3);
    assert_int_equal(w->engine.last_hints, 'g');
    static const char *const wrong[] = {
        "{}",          "[[0]]",        "[[0,\"x\"]]",           "[[0,\"su\"]]",
        "[[4,\"u\"]]", "[[-1,\"u\"]]", "[[2,\"u\"],[1,\"a\"]]", "[[0.5,\"u\"]]",
        "[1,1,1,1,1]"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"prompt\":[1,2,3,4],\"cache_hints\":%s}", wrong[i]);
        assert_int_equal(ask(w, "POST", "/completion", body), 400);
        assert_non_null(strstr(text_at(w, "error.param"), "cache_hints"));
    }
}

static void slots_are_saved_restored_and_erased(void **state)
{
    struct world *w = *state;
    stop(w);
    const struct server_opts o = {.slot_save_path = "/saved"};
    start(w, &o, true);
    assert_int_equal(ask(w, "POST", "/slots/0?action=save", "{\"filename\":\"a b.bin\"}"), 200);
    assert_string_equal(w->engine.slot_path, "/saved/a b.bin");
    assert_int_equal(int_at(w, "id_slot"), 0);
    assert_string_equal(text_at(w, "filename"), "a b.bin");
    assert_int_equal(int_at(w, "n_saved"), 84);
    assert_int_equal(int_at(w, "n_written"), 14309796);
    assert_true(json_is_number(at(w, "timings.save_ms")));
    assert_int_equal(ask(w, "POST", "/slots/0?action=restore", "{\"filename\":\"x\"}"), 200);
    assert_int_equal(int_at(w, "n_restored"), 84);
    assert_int_equal(int_at(w, "n_read"), 14309796);
    assert_true(json_is_number(at(w, "timings.restore_ms")));
    assert_int_equal(ask(w, "POST", "/slots/0?action=erase", NULL), 200);
    assert_int_equal(int_at(w, "n_erased"), 84);
    static const char *const names[] = {"",       ".",       "..",    "../x", "a/b",       "/etc/x",
                                        "a\\\\b", ".hidden", "x.tmp", "a\\n", "a\\u0000b", "c:x"};
    w->engine.slot_path[0] = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char body[64];
        snprintf(body, sizeof body, "{\"filename\":\"%s\"}", names[i]);
        expect_error(w, "/slots/0?action=save", body, 400, "invalid_request_error", "filename", "");
        expect_error(w, "/slots/0?action=restore", body, 400, "invalid_request_error", "filename",
                     "");
    }
    assert_string_equal(w->engine.slot_path, "");
    assert_int_equal(ask(w, "POST", "/slots/0?action=save", "{}"), 400);
    assert_int_equal(ask(w, "POST", "/slots/0?action=save", "["), 400);
    assert_int_equal(ask(w, "POST", "/slots/1?action=save", "{\"filename\":\"x\"}"), 400);
    assert_int_equal(ask(w, "POST", "/slots/2?action=erase", NULL), 400);
    assert_int_equal(ask(w, "POST", "/slots/x?action=erase", NULL), 400);
    assert_int_equal(ask(w, "POST", "/slots/0?action=dance", "{}"), 400);
    assert_int_equal(ask(w, "POST", "/slots/0", "{}"), 400);
}

static void metrics_are_prometheus_text(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "GET", "/metrics", NULL), 200);
    assert_non_null(strstr(buf_str(&w->reply), "\nllamacpp:prompt_tokens_total 100\n"));
    assert_non_null(strstr(buf_str(&w->reply), "# TYPE llamacpp:requests_deferred gauge\n"
                                               "llamacpp:requests_deferred 1\n"));
    assert_non_null(strstr(buf_str(&w->reply), "\nllamacpp:prompt_tokens_seconds 50\n"));
    assert_non_null(
        strstr(buf_str(&w->reply), "\nholdfast_lost_tokens_total{why=\"evicted\"} 5\n"));
    assert_non_null(strstr(buf_str(&w->reply), "\nholdfast_reused_tokens_total 40\n"));
    assert_non_null(strstr(buf_str(&w->reply), "\nholdfast_avoidable_tokens_total 50\n"));
    assert_non_null(strstr(buf_str(&w->reply), "\nholdfast_cache_dropped_total{why=\"user\"} 4\n"));
    assert_non_null(strstr(buf_str(&w->reply), "\nholdfast_restores_total{kind=\"branch\"} 6\n"));
    assert_non_null(strstr(buf_str(&w->reply), "\nholdfast_restore_seconds_total 0.5\n"));
    assert_non_null(
        strstr(buf_str(&w->reply), "\nholdfast_audits_total{result=\"different\"} 0\n"));
}

static void unknown_paths_and_wrong_methods_are_told_apart(void **state)
{
    struct world *w = *state;
    expect_error(w, "/v2/completions", "{}", 404, "not_found_error", NULL, "no such path");
    expect_error(w, "/health", "{}", 405, "invalid_request_error", NULL, "method");
    assert_string_equal(client_header(w->client, "allow"), "GET");
    assert_int_equal(ask(w, "GET", "/completion", NULL), 405);
    assert_int_equal(ask(w, "DELETE", "/cache/", NULL), 404);
    expect_error(w, "/infill", "{}", 501, "not_supported_error", NULL, "/infill");
    expect_error(w, "/v1/embeddings", "{}", 501, "not_supported_error", NULL, "embeddings");
    expect_error(w, "/slots/0?action=save", "{}", 501, "not_supported_error", NULL,
                 "--slot-save-path");
}

static void a_key_opens_and_nothing_else_does(void **state)
{
    struct world *w = *state;
    static const char *const keys[] = {"sesame", "other"};
    const struct server_opts o = {.api_keys = keys, .n_api_keys = 2};
    static const char body[] = "{\"prompt\":\"a\"}";
    stop(w);
    start(w, &o, true);
    expect_error(w, "/completion", body, 401, "authentication_error", NULL, "API Key");
    static const char *const wrong[] = {"Bearer sesam", "Bearer sesame2", "Bearer ", "sesame",
                                        "Basic sesame"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        client_set_header(w->client, "Authorization", wrong[i]);
        assert_int_equal(ask(w, "POST", "/completion", body), 401);
    }
    assert_int_equal(ask(w, "GET", "/cache", NULL), 401);
    assert_int_equal(ask(w, "GET", "/nowhere", NULL), 401); /* nor do paths show */
    assert_int_equal(ask(w, "GET", "/health", NULL), 200);
    assert_int_equal(ask(w, "GET", "/v1/models", NULL), 200);
    client_set_header(w->client, "Authorization", "bearer other");
    assert_int_equal(ask(w, "POST", "/completion", body), 200);
    client_set_header(w->client, "Authorization", NULL);
    client_set_header(w->client, "x-api-key", "sesame");
    assert_int_equal(ask(w, "POST", "/completion", body), 200);
}

static void pages_may_ask_from_where_they_are_allowed(void **state)
{
    struct world *w = *state;
    client_set_header(w->client, "Origin", "http://page.example");
    assert_int_equal(ask(w, "GET", "/health", NULL), 200);
    assert_string_equal(client_header(w->client, "access-control-allow-origin"), "*");
    client_set_header(w->client, "Access-Control-Request-Headers", "authorization, x");
    assert_int_equal(ask(w, "OPTIONS", "/v1/completions", NULL), 204);
    assert_string_equal(client_header(w->client, "access-control-allow-headers"),
                        "authorization, x");
    stop(w);
    const struct server_opts o = {.cors_origins = "localhost, https://a.example"};
    start(w, &o, true);
    static const struct {
        const char *origin;
        bool allowed;
    } cases[] = {{"http://localhost", true},
                 {"https://127.0.0.1:3000", true},
                 {"http://localhost.evil.example", false},
                 {"https://a.example", true},
                 {"https://a.example.evil", false},
                 {"ftp://localhost", false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        client_set_header(w->client, "Origin", cases[i].origin);
        assert_int_equal(ask(w, "GET", "/health", NULL), 200);
        const char *got = client_header(w->client, "access-control-allow-origin");
        if (cases[i].allowed)
            assert_string_equal(got, cases[i].origin);
        else
            assert_null(got);
    }
}

static void before_the_model_is_there_only_health_answers(void **state)
{
    struct world *w = *state;
    const struct server_opts o = {0};
    stop(w);
    start(w, &o, false);
    assert_int_equal(ask(w, "GET", "/health", NULL), 503);
    assert_string_equal(text_at(w, "error.message"), "Loading model");
    assert_string_equal(text_at(w, "error.type"), "unavailable_error");
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"a\"}"), 503);
    assert_int_equal(ask(w, "GET", "/v1/models", NULL), 503);
}

static void a_compressed_body_is_415(void **state)
{
    struct world *w = *state;
    client_set_header(w->client, "Content-Encoding", "gzip");
    expect_error(w, "/completion", "\x1f\x8b", 415, "invalid_request_error", NULL,
                 "Content-Encoding is not supported");
    assert_string_equal(client_header(w->client, "accept-encoding"), "identity");
    client_set_header(w->client, "Content-Encoding", "identity");
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"a\"}"), 200);
    client_set_header(w->client, "Content-Encoding", NULL);
}

static void a_body_above_the_limit_is_413(void **state)
{
    struct world *w = *state;
    const struct server_opts o = {.max_body = 100};
    stop(w);
    start(w, &o, true);
    char body[256];
    memset(body, ' ', sizeof body);
    body[sizeof body - 1] = 0;
    expect_error(w, "/completion", body, 413, "invalid_request_error", NULL, "larger");
}

/* ---- requests that are wrong ---- */

static void wrong_requests_name_the_field(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *body, *param, *message;
    } cases[] = {
        {"", NULL, "empty"},
        {"{", NULL, "line 1"},
        {"[1]", NULL, "not an object"},
        {"{\"prompt\":\"a\",\"prompt\":\"b\"}", NULL, "duplicate"},
        {"{}", "prompt", "prompt is missing"},
        {"{\"prompt\":null}", "prompt", "missing"},
        {"{\"prompt\":\"\"}", "prompt", "prompt is empty"},
        {"{\"prompt\":[]}", "prompt", "prompt is empty"},
        {"{\"prompt\":5}", "prompt", "text or token ids"},
        {"{\"prompt\":[1,-1]}", "prompt", "token -1"},
        {"{\"prompt\":[1,99999999]}", "prompt", "token 99999999"},
        {"{\"prompt\":[1,true]}", "prompt[1]", "neither"},
        {"{\"prompt\":[\"a\",[true]]}", "prompt[0]", "neither"},
        {"{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature", "number"},
        {"{\"prompt\":\"a\",\"top_p\":2}", "top_p", "0 to 1"},
        {"{\"prompt\":\"a\",\"top_k\":1.5}", "top_k", "integer"},
        {"{\"prompt\":\"a\",\"n_predict\":-2}", "n_predict", "-2"},
        {"{\"prompt\":\"a\",\"n\":0}", "n", "1 to"},
        {"{\"prompt\":\"a\",\"n\":65}", "n", "64"},
        {"{\"prompt\":\"a\",\"stream\":1}", "stream", "true or false"},
        {"{\"prompt\":\"a\",\"stop\":5}", "stop", "string"},
        {"{\"prompt\":\"a\",\"stop\":[\"x\",5]}", "stop[1]", "string"},
        {"{\"prompt\":\"a\",\"seed\":\"x\"}", "seed", "integer"},
        {"{\"prompt\":\"a\",\"logit_bias\":5}", "logit_bias", "object"},
        {"{\"prompt\":\"a\",\"logit_bias\":[[1]]}", "logit_bias[0]", "pair"},
        {"{\"prompt\":\"a\",\"logit_bias\":[[99999999,1]]}", "logit_bias[0]", "no such token"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"1\":\"x\"}}", "logit_bias", "number or false"},
        {"{\"prompt\":\"a\",\"n_probs\":-1}", "n_probs", "-1"},
        {"{\"prompt\":\"a\",\"mirostat\":2}", "mirostat", "not supported"},
        {"{\"prompt\":\"a\",\"t_max_predict_ms\":1}", "t_max_predict_ms", "not supported"},
        {"{\"prompt\":\"a\",\"grammar\":\"root ::= x\"}", "grammar", "rule 'x'"},
        {"{\"prompt\":\"a\",\"lora\":[{\"id\":0}]}", "lora", "not supported"},
        {"{\"prompt\":\"a\",\"stream_options\":5}", "stream_options", "object"},
        {"{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":5}}", "stream_options", "true"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect_error(w, "/completion", cases[i].body, 400, "invalid_request_error", cases[i].param,
                     cases[i].message);
        expect_error(w, "/v1/completions", cases[i].body, 400, "invalid_request_error",
                     cases[i].param, cases[i].message);
    }
    static const char stops[] = "{\"prompt\":\"a\",\"stop\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                                "1,1,1,1,1,1,1,1,1,1,1,1,1,1]}";
    expect_error(w, "/completion", stops, 400, "invalid_request_error", "stop", "33");
    expect_error(w, "/completion", "{\"prompt\":\"a\",\"response_fields\":[5]}", 400,
                 "invalid_request_error", "response_fields[0]", "string");
    expect_error(w, "/tokenize", "{}", 400, "invalid_request_error", "content", "missing");
    expect_error(w, "/tokenize", "{\"content\":{}}", 400, "invalid_request_error", "content",
                 "text");
    expect_error(w, "/detokenize", "{}", 400, "invalid_request_error", "tokens", "missing");
    expect_error(w, "/detokenize", "{\"tokens\":\"a\"}", 400, "invalid_request_error", "tokens",
                 "array");
    expect_error(w, "/detokenize", "{\"tokens\":[1,\"a\"]}", 400, "invalid_request_error",
                 "tokens[1]", "token id");
    assert_int_equal(atomic_load(&w->engine.n_alive), 0);
}

static void what_asks_for_nothing_is_no_error(void **state)
{
    struct world *w = *state;
    assert_int_equal(
        ask(w, "POST", "/completion",
            "{\"prompt\":\"a\",\"mirostat\":0,\"typical_p\":1.0,\"grammar\":\"\",\"lora\":[],"
            "\"dry_multiplier\":0,\"top_n_sigma\":-1,\"t_max_predict_ms\":-1,\"temperature\":null,"
            "\"stop\":[],"
            "\"id_slot\":-1,\"samplers\":[\"top_k\"],\"whatever\":{}}"),
        200);
}

static void a_prompt_that_does_not_fit_gives_both_numbers(void **state)
{
    struct world *w = *state;
    struct buf b = BUF_INIT;
    buf_adds(&b, "{\"prompt\":[1");
    for (int i = 0; i < FAKE_CTX; i++)
        buf_adds(&b, ",1");
    buf_adds(&b, "]}");
    expect_error(w, "/v1/completions", buf_str(&b), 400, "exceed_context_size_error", "prompt",
                 "2001 tokens, the context 2000");
    assert_int_equal(int_at(w, "error.n_prompt_tokens"), FAKE_CTX + 1);
    assert_int_equal(int_at(w, "error.n_ctx"), FAKE_CTX);
    buf_release(&b);
}

static void errors_of_the_engine_get_their_status(void **state)
{
    struct world *w = *state;
    expect_error(w, "/completion", "{\"prompt\":\"a\",\"seed\":9003}", 503, "unavailable_error",
                 NULL, "no memory");
    assert_string_equal(client_header(w->client, "retry-after"), "1");
    expect_error(w, "/completion", "{\"prompt\":\"abc\",\"seed\":9004}", 503, "unavailable_error",
                 NULL, "no memory");
    /* a stream that has not begun has a status too */
    expect_error(w, "/completion", "{\"prompt\":\"abc\",\"seed\":9004,\"stream\":true}", 503,
                 "unavailable_error", NULL, "no memory");
    expect_error(w, "/v1/completions", "{\"prompt\":\"abc\",\"seed\":9001}", 503,
                 "unavailable_error", NULL, "no memory");
}

/* ---- tokens ---- */

static void text_becomes_tokens_and_text_again(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/tokenize", "{\"content\":\"hi \\u00e4\\ud83d\\ude00\"}"),
                     200);
    char *tokens = json_dumps(at(w, "tokens"), JSON_COMPACT);
    char body[1024];
    snprintf(body, sizeof body, "{\"tokens\":%s}", tokens);
    free(tokens);
    assert_int_equal(ask(w, "POST", "/detokenize", body), 200);
    assert_string_equal(text_at(w, "content"), "hi \xC3\xA4\xF0\x9F\x98\x80");
    assert_int_equal(ask(w, "POST", "/tokenize", "{\"content\":\"\"}"), 200);
    assert_int_equal(json_array_size(at(w, "tokens")), 0);
}

static void pieces_that_are_no_text_are_bytes(void **state)
{
    struct world *w = *state;
    assert_int_equal(
        ask(w, "POST", "/tokenize", "{\"content\":\"\\ud83d\\ude00\",\"with_pieces\":true}"), 200);
    size_t n_bytes = 0;
    for (size_t i = 0; i < json_array_size(at(w, "tokens")); i++) {
        const json_t *piece = json_object_get(json_array_get(at(w, "tokens"), i), "piece");
        n_bytes += json_is_array(piece) ? json_array_size(piece) : json_string_length(piece);
    }
    assert_int_equal(n_bytes, 4);
}

static void control_tokens_are_seen_unless_told_otherwise(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/tokenize", "{\"content\":\"<|im_start|>\"}"), 200);
    assert_int_equal(json_array_size(at(w, "tokens")), 1);
    assert_int_equal(
        ask(w, "POST", "/tokenize", "{\"content\":\"<|im_start|>\",\"parse_special\":false}"), 200);
    assert_true(json_array_size(at(w, "tokens")) > 1);
}

/* ---- completion ---- */

static void a_completion_has_llama_servers_shape(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/completion",
                         "{\"prompt\":\"hello\\nworld\",\"return_tokens\":true,\"seed\":5}"),
                     200);
    assert_string_equal(text_at(w, "content"), "hello\nworld");
    assert_string_equal(text_at(w, "prompt"), "hello\nworld");
    assert_string_equal(text_at(w, "model"), "tiny");
    assert_string_equal(text_at(w, "stop_type"), "eos");
    assert_string_equal(text_at(w, "stopping_word"), "");
    assert_true(json_is_true(at(w, "stop")));
    assert_true(json_is_true(at(w, "has_new_line")));
    assert_true(json_is_false(at(w, "truncated")));
    const int64_t n = int_at(w, "tokens_predicted");
    assert_int_equal(json_array_size(at(w, "tokens")), n);
    assert_int_equal(int_at(w, "tokens_evaluated"), n);
    assert_int_equal(int_at(w, "tokens_cached"), 2 * n - 1);
    assert_int_equal(int_at(w, "timings.cache_n"), 2);
    assert_int_equal(int_at(w, "timings.prompt_n"), n - 2);
    assert_int_equal(int_at(w, "timings.predicted_n"), n);
    assert_true(json_number_value(at(w, "timings.prompt_ms")) == 10);
    assert_int_equal(int_at(w, "generation_settings.seed"), 5);
    assert_null(at(w, "completion_probabilities"));
}

static void settings_reach_the_engine(void **state)
{
    struct world *w = *state;
    assert_int_equal(
        ask(w, "POST", "/completion",
            "{\"prompt\":\"a\",\"n_predict\":7,\"temperature\":0.25,\"top_k\":3,\"top_p\":0.5,"
            "\"min_p\":0.125,\"repeat_penalty\":1.5,\"repeat_last_n\":-1,\"presence_penalty\":0.5,"
            "\"frequency_penalty\":0.25,\"seed\":77,\"stop\":\"END\",\"cache_prompt\":false,"
            "\"ignore_eos\":true,\"n_probs\":2,\"logit_bias\":[[5,false]],"
            "\"prompt_cache_key\":\"k\"}"),
        200);
    const struct job_desc *d = &w->engine.last;
    assert_int_equal(d->n_predict, 7);
    assert_true(d->sampling.temperature == 0.25F && d->sampling.top_k == 3);
    assert_true(d->sampling.top_p == 0.5F && d->sampling.min_p == 0.125F);
    assert_true(d->sampling.repeat_penalty == 1.5F && d->sampling.repeat_last_n == -1);
    assert_true(d->sampling.presence_penalty == 0.5F && d->sampling.frequency_penalty == 0.25F);
    assert_true(d->sampling.has_seed && d->sampling.seed == 77 && d->sampling.ignore_eos);
    assert_true(d->no_cache && d->n_probs == 2 && d->n_stop == 1 && d->family);
    assert_string_equal(w->engine.last_stop, "END");
    assert_int_equal(d->n_bias, 1);
    assert_true(w->engine.last_bias.id == 5 && isinf(w->engine.last_bias.bias));
    assert_int_equal(ask(w, "POST", "/v1/completions",
                         "{\"prompt\":\"a\",\"max_tokens\":3,\"seed\":-1,"
                         "\"logit_bias\":{\"6\":-100}}"),
                     200);
    assert_int_equal(d->n_predict, 3);
    const uint64_t drawn = d->sampling.seed;
    assert_true(d->sampling.has_seed && drawn < UINT32_MAX);
    assert_int_equal(ask(w, "POST", "/v1/completions", "{\"prompt\":\"a\"}"), 200);
    assert_true(d->sampling.seed != drawn);
    assert_true(w->engine.last_bias.id == 6 && w->engine.last_bias.bias == -100);
    assert_false(d->no_cache);
}

static void every_shape_of_prompt_is_understood(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/tokenize", "{\"content\":\"ab\"}"), 200);
    char *ab = json_dumps(at(w, "tokens"), JSON_COMPACT);
    ab[strlen(ab) - 1] = 0; /* "[1,2" */
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":%s]}", ab);
    assert_int_equal(ask(w, "POST", "/completion", body), 200);
    assert_string_equal(text_at(w, "content"), "ab");
    snprintf(body, sizeof body, "{\"prompt\":%s,\"cd\"]}", ab);
    assert_int_equal(ask(w, "POST", "/completion", body), 200);
    assert_string_equal(text_at(w, "content"), "abcd");
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":{\"prompt_string\":\"ab\"}}"), 200);
    assert_string_equal(text_at(w, "content"), "ab");
    snprintf(body, sizeof body, "{\"prompt\":[\"x\",%s],{\"prompt_string\":\"z\"}]}", ab);
    assert_int_equal(ask(w, "POST", "/completion", body), 200);
    assert_int_equal(json_array_size(w->json), 3);
    assert_string_equal(text_at(w, "0.content"), "x");
    assert_string_equal(text_at(w, "1.content"), "ab");
    assert_string_equal(text_at(w, "2.content"), "z");
    assert_int_equal(int_at(w, "2.index"), 2);
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":[\"x\"]}"), 200);
    assert_int_equal(json_array_size(w->json), 1);
    free(ab);
}

static void ends_are_named(void **state)
{
    struct world *w = *state;
    assert_int_equal(
        ask(w, "POST", "/completion", "{\"prompt\":\"a b c\",\"seed\":9006,\"stop\":[\"xyz\"]}"),
        200);
    assert_string_equal(text_at(w, "stop_type"), "word");
    assert_string_equal(text_at(w, "stopping_word"), "xyz");
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"a b c\",\"seed\":9007}"), 200);
    assert_string_equal(text_at(w, "stop_type"), "limit");
    assert_true(json_is_true(at(w, "truncated")));
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"a b c\",\"n_predict\":1}"), 200);
    assert_string_equal(text_at(w, "stop_type"), "limit");
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"a b c\",\"n_predict\":0}"), 200);
    assert_string_equal(text_at(w, "content"), "");
    assert_int_equal(ask(w, "POST", "/v1/completions", "{\"prompt\":\"a b c\",\"max_tokens\":1}"),
                     200);
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "length");
}

static void probabilities_come_with_each_token(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/completion", "{\"prompt\":\"ab\",\"n_probs\":2}"), 200);
    assert_int_equal(json_array_size(at(w, "completion_probabilities")),
                     int_at(w, "tokens_predicted"));
    assert_int_equal(json_array_size(at(w, "completion_probabilities.0.top_logprobs")), 2);
    assert_true(json_number_value(at(w, "completion_probabilities.0.logprob")) == -0.5);
    assert_true(json_is_number(at(w, "completion_probabilities.0.top_logprobs.1.logprob")));
    assert_true(json_is_array(at(w, "completion_probabilities.0.bytes")));
}

static void only_the_fields_asked_for_come_back(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/completion",
                         "{\"prompt\":\"ab\",\"response_fields\":[\"content\",\"timings/cache_n\","
                         "\"nothing\"]}"),
                     200);
    assert_int_equal(json_object_size(w->json), 2);
    assert_string_equal(text_at(w, "content"), "ab");
    assert_int_equal(int_at(w, "cache_n"), 2);
}

static void a_streamed_completion_adds_up(void **state)
{
    struct world *w = *state;
    struct buf text = BUF_INIT;
    size_t n_tokens = 0;
    open_stream(w, "/completion", "{\"prompt\":\"one two\\nthree\",\"stream\":true}");
    while (next(w) && json_is_false(at(w, "stop"))) {
        buf_adds(&text, text_at(w, "content"));
        n_tokens += json_array_size(at(w, "tokens"));
    }
    assert_string_equal(buf_str(&text), "one two\nthree");
    assert_string_equal(text_at(w, "content"), "");
    assert_true(json_is_true(at(w, "has_new_line")));
    assert_int_equal(int_at(w, "tokens_predicted"), n_tokens);
    assert_int_equal(int_at(w, "timings.cache_n"), 2);
    assert_false(next(w));
    buf_release(&text);
}

static void progress_is_told_when_asked_for(void **state)
{
    struct world *w = *state;
    open_stream(w, "/completion",
                "{\"prompt\":\"abc\",\"stream\":true,\"seed\":9005,\"return_progress\":true}");
    for (int i = 0; i < 2; i++) {
        assert_true(next(w));
        assert_int_equal(int_at(w, "prompt_progress.cache"), 2);
        assert_int_equal(int_at(w, "prompt_progress.processed"),
                         int_at(w, "prompt_progress.total"));
    }
    while (next(w))
        assert_null(at(w, "prompt_progress"));
    open_stream(w, "/completion", "{\"prompt\":\"abc\",\"stream\":true,\"seed\":9005}");
    while (next(w))
        assert_null(at(w, "prompt_progress"));
}

static void an_error_after_the_first_byte_is_an_event(void **state)
{
    struct world *w = *state;
    open_stream(w, "/completion", "{\"prompt\":\"a b c\",\"stream\":true,\"seed\":9001}");
    assert_true(next(w));
    assert_true(next(w));
    assert_int_equal(int_at(w, "error.code"), 503);
    assert_string_equal(text_at(w, "error.type"), "unavailable_error");
    assert_false(next(w));
    open_stream(w, "/v1/completions", "{\"prompt\":\"a b c\",\"stream\":true,\"seed\":9001}");
    assert_true(next(w));
    assert_true(next(w));
    assert_int_equal(int_at(w, "error.code"), 503);
    assert_false(next(w)); /* and no [DONE] that would make it look whole */
}

/* ---- OpenAI's completions ---- */

static void an_openai_completion_has_openais_shape(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/v1/completions", "{\"prompt\":\"hello\",\"model\":\"x\"}"),
                     200);
    assert_string_equal(text_at(w, "object"), "text_completion");
    assert_string_equal(text_at(w, "model"), "tiny");
    assert_memory_equal(text_at(w, "id"), "cmpl-", 5);
    assert_string_equal(text_at(w, "choices.0.text"), "hello");
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "stop");
    assert_true(json_is_null(at(w, "choices.0.logprobs")));
    const int64_t n = int_at(w, "usage.completion_tokens");
    assert_int_equal(int_at(w, "usage.prompt_tokens"), n);
    assert_int_equal(int_at(w, "usage.total_tokens"), 2 * n);
    assert_int_equal(int_at(w, "usage.prompt_tokens_details.cached_tokens"), 2);
    assert_int_equal(int_at(w, "timings.cache_n"), 2);
}

static void several_choices_count_their_prompt_once(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/v1/completions",
                         "{\"prompt\":[\"ab\",\"cd\"],\"n\":2,\"best_of\":2,\"seed\":1}"),
                     200);
    assert_int_equal(json_array_size(at(w, "choices")), 4);
    assert_string_equal(text_at(w, "choices.1.text"), "ab");
    assert_string_equal(text_at(w, "choices.2.text"), "cd");
    assert_int_equal(int_at(w, "choices.3.index"), 3);
    assert_int_equal(int_at(w, "usage.completion_tokens"), 2 * int_at(w, "usage.prompt_tokens"));
    assert_int_equal(w->engine.last.sampling.seed, 2); /* each its own */
    expect_error(w, "/v1/completions", "{\"prompt\":\"a\",\"n\":2,\"best_of\":4}", 400,
                 "invalid_request_error", "best_of", "not supported");
    expect_error(w, "/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400,
                 "invalid_request_error", "suffix", "not supported");
}

static void an_echo_comes_before_the_answer(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/v1/completions", "{\"prompt\":\"ab\",\"echo\":true}"), 200);
    assert_string_equal(text_at(w, "choices.0.text"), "abab");
    expect_error(w, "/v1/completions", "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", 400,
                 "invalid_request_error", "logprobs", "echo");
    struct buf text = BUF_INIT;
    open_stream(w, "/v1/completions", "{\"prompt\":\"ab\",\"echo\":true,\"stream\":true}");
    while (next(w))
        if (w->json)
            buf_adds(&text, text_at(w, "choices.0.text"));
    assert_string_equal(buf_str(&text), "abab");
    buf_release(&text);
}

static void logprobs_are_four_lists_side_by_side(void **state)
{
    struct world *w = *state;
    assert_int_equal(ask(w, "POST", "/v1/completions", "{\"prompt\":\"a b\",\"logprobs\":1}"), 200);
    const size_t n = (size_t)int_at(w, "usage.completion_tokens");
    assert_true(n >= 2);
    assert_int_equal(json_array_size(at(w, "choices.0.logprobs.tokens")), n);
    assert_int_equal(json_array_size(at(w, "choices.0.logprobs.token_logprobs")), n);
    assert_int_equal(json_array_size(at(w, "choices.0.logprobs.top_logprobs")), n);
    assert_int_equal(json_object_size(at(w, "choices.0.logprobs.top_logprobs.0")), 1);
    assert_int_equal(int_at(w, "choices.0.logprobs.text_offset.0"), 0);
    assert_int_equal(int_at(w, "choices.0.logprobs.text_offset.1"), 1);
    assert_int_equal(ask(w, "POST", "/v1/completions", "{\"prompt\":\"a b\",\"logprobs\":0}"), 200);
    assert_int_equal(json_object_size(at(w, "choices.0.logprobs.top_logprobs.0")), 0);
    expect_error(w, "/v1/completions", "{\"prompt\":\"a\",\"logprobs\":true}", 400,
                 "invalid_request_error", "logprobs", "number");
}

static void an_openai_stream_ends_with_usage_and_done(void **state)
{
    struct world *w = *state;
    struct buf text = BUF_INIT;
    char id[64];
    open_stream(w, "/v1/completions",
                "{\"prompt\":\"one two\",\"stream\":true,\"stream_options\":"
                "{\"include_usage\":true}}");
    assert_true(next(w));
    snprintf(id, sizeof id, "%s", text_at(w, "id"));
    while (json_is_null(at(w, "choices.0.finish_reason"))) {
        assert_string_equal(text_at(w, "id"), id);
        assert_true(json_is_null(at(w, "usage")));
        buf_adds(&text, text_at(w, "choices.0.text"));
        assert_true(next(w));
    }
    assert_string_equal(buf_str(&text), "one two");
    assert_string_equal(text_at(w, "choices.0.finish_reason"), "stop");
    assert_true(next(w));
    assert_int_equal(json_array_size(at(w, "choices")), 0);
    assert_int_equal(int_at(w, "usage.prompt_tokens_details.cached_tokens"), 2);
    assert_true(next(w));
    assert_string_equal(buf_str(&w->reply), "[DONE]");
    assert_false(next(w));
    buf_release(&text);
}

static void streams_of_several_choices_are_told_apart(void **state)
{
    struct world *w = *state;
    struct buf text[3] = {BUF_INIT, BUF_INIT, BUF_INIT};
    unsigned n_finished = 0;
    open_stream(w, "/v1/completions", "{\"prompt\":[\"a b\",\"c d\",\"e f\"],\"stream\":true}");
    while (next(w)) {
        if (!w->json)
            continue;
        const int64_t i = int_at(w, "choices.0.index");
        assert_in_range(i, 0, 2);
        buf_adds(&text[i], text_at(w, "choices.0.text"));
        n_finished += json_is_string(at(w, "choices.0.finish_reason"));
    }
    assert_int_equal(n_finished, 3);
    assert_string_equal(buf_str(&text[0]), "a b");
    assert_string_equal(buf_str(&text[1]), "c d");
    assert_string_equal(buf_str(&text[2]), "e f");
    for (int i = 0; i < 3; i++)
        buf_release(&text[i]);
}

/* ---- clients that go, servers that stop ---- */

static void a_client_that_hangs_up_cancels_its_job(void **state)
{
    struct world *w = *state;
    static const char *const bodies[] = {
        "{\"prompt\":\"a\",\"seed\":9002}", "{\"prompt\":\"a\",\"seed\":9002,\"stream\":true}",
        "{\"prompt\":[\"a\",\"b\"],\"seed\":9002,\"stream\":true}"};
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        const unsigned jobs = i == 2 ? 2 : 1, before = atomic_load(&w->engine.n_cancelled);
        const int fd = send_only(w, bodies[i]);
        EVENTUALLY(atomic_load(&w->engine.n_alive) == jobs);
        assert_int_equal(atomic_load(&w->engine.n_cancelled), before);
        close(fd);
        EVENTUALLY(atomic_load(&w->engine.n_alive) == 0);
        assert_int_equal(atomic_load(&w->engine.n_cancelled), before + jobs);
    }
}

static void a_silent_stream_is_kept_alive_with_comments(void **state)
{
    struct world *w = *state;
    char text[1024] = "";
    size_t n = 0;
    const int fd = send_only(w, "{\"prompt\":\"a\",\"seed\":9002,\"stream\":true,"
                                "\"sse_ping_interval\":0}");
    while (n < sizeof text - 1 && !strstr(text, ": ping\n\n")) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        const ssize_t m = read(fd, text + n, sizeof text - 1 - n);
        assert_true(m > 0);
        n += (size_t)m;
        text[n] = 0;
    }
    assert_non_null(strstr(text, ": ping\n\n"));
    close(fd);
    EVENTUALLY(atomic_load(&w->engine.n_alive) == 0);
}

static void *stop_main(void *arg)
{
    server_stop(arg, UINT64_C(20000000000));
    return NULL;
}

static void health_says_that_the_server_is_stopping(void **state)
{
    struct world *w = *state;
    pthread_t stopper;
    assert_int_equal(ask(w, "GET", "/health", NULL), 200); /* a connection that stays */
    const int fd = send_only(w, "{\"prompt\":\"a\",\"seed\":9002}");
    EVENTUALLY(atomic_load(&w->engine.n_alive) == 1);
    assert_int_equal(pthread_create(&stopper, NULL, stop_main, w->server), 0);
    while (ask(w, "GET", "/health", NULL) == 200)
        poll(NULL, 0, 1);
    assert_int_equal(client_status(w->client), 503); /* and the connection is closed now */
    assert_non_null(strstr(text_at(w, "error.message"), "stopping"));
    close(fd); /* ends the request that kept it up */
    assert_int_equal(pthread_join(stopper, NULL), 0);
    w->server = NULL;
    client_free(w->client);
    w->client = NULL;
}

static void a_stopping_server_cancels_what_does_not_end(void **state)
{
    struct world *w = *state;
    char text[1024] = "";
    assert_int_equal(ask(w, "GET", "/health", NULL), 200); /* a connection that stays */
    const int fd = send_only(w, "{\"prompt\":\"a\",\"seed\":9002}");
    EVENTUALLY(atomic_load(&w->engine.n_alive) == 1);
    const uint64_t begun = clock_mono_ns();
    server_stop(w->server, 200000000);
    w->server = NULL;
    const uint64_t took = clock_mono_ns() - begun;
    assert_true(took >= 200000000 && took < 10000000000);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    assert_memory_equal(text, "HTTP/1.1 503", 12);
    assert_non_null(strstr(text, "stopping"));
    close(fd);
    client_free(w->client);
    w->client = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(facts_have_their_shapes),
        T(the_cache_is_shown_and_entries_can_be_dropped),
        T(entries_are_pinned_and_prefixes_warmed),
        T(a_client_may_tell_where_messages_begin),
        T(slots_are_saved_restored_and_erased),
        T(metrics_are_prometheus_text),
        T(unknown_paths_and_wrong_methods_are_told_apart),
        T(a_key_opens_and_nothing_else_does),
        T(pages_may_ask_from_where_they_are_allowed),
        T(before_the_model_is_there_only_health_answers),
        T(a_compressed_body_is_415),
        T(a_body_above_the_limit_is_413),
        T(wrong_requests_name_the_field),
        T(what_asks_for_nothing_is_no_error),
        T(a_prompt_that_does_not_fit_gives_both_numbers),
        T(errors_of_the_engine_get_their_status),
        T(text_becomes_tokens_and_text_again),
        T(pieces_that_are_no_text_are_bytes),
        T(control_tokens_are_seen_unless_told_otherwise),
        T(a_completion_has_llama_servers_shape),
        T(settings_reach_the_engine),
        T(every_shape_of_prompt_is_understood),
        T(ends_are_named),
        T(probabilities_come_with_each_token),
        T(only_the_fields_asked_for_come_back),
        T(a_streamed_completion_adds_up),
        T(progress_is_told_when_asked_for),
        T(an_error_after_the_first_byte_is_an_event),
        T(an_openai_completion_has_openais_shape),
        T(several_choices_count_their_prompt_once),
        T(an_echo_comes_before_the_answer),
        T(logprobs_are_four_lists_side_by_side),
        T(an_openai_stream_ends_with_usage_and_done),
        T(streams_of_several_choices_are_told_apart),
        T(a_client_that_hangs_up_cancels_its_job),
        T(a_silent_stream_is_kept_alive_with_comments),
        T(health_says_that_the_server_is_stopping),
        T(a_stopping_server_cancels_what_does_not_end),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
