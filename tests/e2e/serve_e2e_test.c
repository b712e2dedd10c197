/* The real server over a small model: every route, and the promises that need a real engine. */
#include "program_int.h"

#include <pthread.h>
#include <stdatomic.h>

static struct scene scene;
static struct program server;

static const char *const server_options[] = {
    "-c",   "1024",    "-np",  "3", "--cache-step", "64", "--cache-policy",
    "hold", "--alias", "tiny", NULL};

static int group_set_up(void **state)
{
    (void)state;
    scene_open(&scene);
    scene_make_model(&scene, "tiny", "f16");
    program_serve(&server, &scene, "server", server_options);
    return 0;
}

static int group_tear_down(void **state)
{
    (void)state;
    const int status = program_stop(&server);
    scene_close(&scene);
    return status;
}

/* A prompt of n tokens made from a seed, as a JSON array. */
static void write_prompt(struct buf *b, unsigned seed, unsigned n)
{
    buf_addc(b, '[');
    for (unsigned i = 0; i < n; i++) {
        seed = seed * 1103515245U + 12345U;
        buf_addf(b, "%s%u", i ? "," : "", 33 + (seed >> 16) % 200);
    }
    buf_addc(b, ']');
}

/* Completes greedily; the text is in p->json. */
static int complete(struct program *p, unsigned seed, unsigned n, const char *more)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, "{\"temperature\":0,\"ignore_eos\":true,\"prompt\":");
    write_prompt(&b, seed, n);
    buf_addf(&b, "%s}", more);
    const int status = ask(p, "POST", "/completion", buf_str(&b));
    buf_release(&b);
    return status;
}

/* ---- routes ---- */

static void every_fact_can_be_asked_for(void **state)
{
    (void)state;
    static const char *const paths[] = {"/health", "/v1/health", "/v1/models", "/props",
                                        "/slots",  "/metrics",   "/cache",     "/"};
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        assert_int_equal(ask(&server, "GET", paths[i], NULL), 200);
    assert_int_equal(ask(&server, "GET", "/v1/models", NULL), 200);
    assert_string_equal(text_at(server.json, "data.0.id"), "tiny");
    assert_int_equal(int_at(server.json, "data.0.meta.n_ctx"), 1024);
    assert_true(int_at(server.json, "data.0.meta.n_params") > 1000);
    assert_int_equal(ask(&server, "GET", "/slots", NULL), 200);
    assert_int_equal(json_array_size(server.json), 3);
}

static void tokens_and_text_are_inverse(void **state)
{
    (void)state;
    assert_int_equal(
        ask(&server, "POST", "/tokenize", "{\"content\":\"A b\\n\\u00e9 <|im_end|> 12345\"}"), 200);
    char *tokens = json_dumps(at(server.json, "tokens"), JSON_COMPACT);
    struct buf b = BUF_INIT;
    buf_addf(&b, "{\"tokens\":%s}", tokens);
    assert_int_equal(ask(&server, "POST", "/detokenize", buf_str(&b)), 200);
    assert_string_equal(text_at(server.json, "content"), "A b\n\xC3\xA9 <|im_end|> 12345");
    free(tokens);
    buf_release(&b);
}

static void a_prompt_longer_than_the_context_is_refused_with_both_numbers(void **state)
{
    (void)state;
    assert_int_equal(complete(&server, 1, 2000, ""), 400);
    assert_string_equal(text_at(server.json, "error.type"), "exceed_context_size_error");
    assert_int_equal(int_at(server.json, "error.n_prompt_tokens"), 2000);
    assert_int_equal(int_at(server.json, "error.n_ctx"), 1024);
}

static void a_full_context_ends_the_answer(void **state)
{
    (void)state;
    assert_int_equal(complete(&server, 2, 1000, ""), 200);
    assert_true(json_is_true(at(server.json, "truncated")));
    assert_int_equal(int_at(server.json, "tokens_predicted"), 24);
}

/* ---- reuse ---- */

static void a_repeated_prompt_is_reused_and_says_the_same(void **state)
{
    (void)state;
    assert_int_equal(complete(&server, 3, 300, ",\"n_predict\":20"), 200);
    json_t *cold = keep_text(server.json, "content");
    assert_int_equal(int_at(server.json, "timings.cache_n"), 0);
    assert_int_equal(int_at(server.json, "timings.prompt_n"), 300);
    assert_int_equal(complete(&server, 3, 300, ",\"n_predict\":20"), 200);
    assert_text(server.json, "content", cold);
    const int64_t reused = int_at(server.json, "timings.cache_n");
    assert_true(reused >= 256); /* at worst the last step of the grid */
    assert_int_equal(reused + int_at(server.json, "timings.prompt_n"), 300);
    assert_true(int_at(server.json, "timings.prompt_n") >= 1);
    assert_int_equal(complete(&server, 3, 300, ",\"n_predict\":20,\"cache_prompt\":false"), 200);
    assert_int_equal(int_at(server.json, "timings.cache_n"), 0);
    assert_text(server.json, "content", cold);
    json_decref(cold);
}

static void an_interloper_costs_nothing(void **state)
{
    (void)state;
    assert_int_equal(complete(&server, 4, 400, ",\"n_predict\":1"), 200);
    assert_int_equal(complete(&server, 5, 400, ",\"n_predict\":1"), 200); /* nothing in common */
    assert_int_equal(int_at(server.json, "timings.cache_n"), 0);
    assert_int_equal(complete(&server, 4, 410, ",\"n_predict\":1"), 200);
    assert_true(int_at(server.json, "timings.cache_n") >= 384);
}

static void openai_usage_tells_the_cached_tokens(void **state)
{
    (void)state;
    static const char body[] =
        "{\"prompt\":\"The quick brown fox jumps over the lazy dog, and the lazy dog does not mind "
        "at all, because it sleeps; which is what lazy dogs do all day and all night as well.\","
        "\"max_tokens\":4,\"temperature\":0}";
    assert_int_equal(ask(&server, "POST", "/v1/completions", body), 200);
    json_t *cold = keep_text(server.json, "choices.0.text");
    assert_int_equal(ask(&server, "POST", "/v1/completions", body), 200);
    assert_text(server.json, "choices.0.text", cold);
    const int64_t n = int_at(server.json, "usage.prompt_tokens");
    assert_in_range(int_at(server.json, "usage.prompt_tokens_details.cached_tokens"), 1, n - 1);
    json_decref(cold);
}

static void the_cache_shows_what_was_kept(void **state)
{
    (void)state;
    assert_int_equal(ask(&server, "GET", "/cache", NULL), 200);
    assert_string_equal(text_at(server.json, "policy"), "hold");
    assert_int_equal(int_at(server.json, "budget_bytes"), 256 * MIB);
    const size_t n = json_array_size(at(server.json, "entries"));
    assert_true(n > 0);
    assert_int_equal(int_at(server.json, "n_entries"), n);
    assert_true(int_at(server.json, "bytes") <= int_at(server.json, "budget_bytes"));
    char path[64];
    snprintf(path, sizeof path, "/cache/%" PRId64, int_at(server.json, "entries.0.id"));
    assert_int_equal(ask(&server, "DELETE", path, NULL), 200);
    assert_int_equal(ask(&server, "DELETE", path, NULL), 404);
    assert_int_equal(ask(&server, "GET", "/cache", NULL), 200);
    assert_int_equal(json_array_size(at(server.json, "entries")), n - 1);
}

static void metrics_count_what_happened(void **state)
{
    (void)state;
    assert_int_equal(ask(&server, "GET", "/metrics", NULL), 200);
    static const char *const names[] = {"llamacpp:prompt_tokens_total",
                                        "llamacpp:tokens_predicted_total",
                                        "holdfast_reused_tokens_total"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char line[64];
        snprintf(line, sizeof line, "\n%s ", names[i]);
        const char *v = strstr(buf_str(&server.reply), line);
        assert_non_null(v);
        assert_true(strtod(v + strlen(line), NULL) > 0);
    }
}

/* ---- the same text, however it is asked for ---- */

static void a_stream_says_what_the_whole_reply_says(void **state)
{
    (void)state;
    assert_int_equal(complete(&server, 6, 100, ",\"n_predict\":40"), 200);
    json_t *whole = keep_text(server.json, "content");
    struct buf b = BUF_INIT, text = BUF_INIT;
    buf_adds(&b, "{\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"n_predict\":40,"
                 "\"prompt\":");
    write_prompt(&b, 6, 100);
    buf_addc(&b, '}');
    assert_int_equal(
        client_begin(server.client, "POST", "/completion", (struct str){b.p, b.n}, NULL), RC_OK);
    struct sse_event e;
    bool end = false, last = false;
    while (!client_event(server.client, &e, &end, NULL) && !end) {
        json_t *o = parse(e.data);
        const json_t *content = at(o, "content");
        assert_false(last);
        buf_add(&text, json_string_value(content), json_string_length(content));
        last = json_is_true(at(o, "stop"));
        json_decref(o);
    }
    assert_true(end && last);
    assert_int_equal(text.n, json_string_length(whole));
    assert_memory_equal(text.p, json_string_value(whole), text.n);
    json_decref(whole);
    buf_release(&b);
    buf_release(&text);
}

static void a_stop_string_is_never_seen(void **state)
{
    (void)state;
    assert_int_equal(complete(&server, 7, 50, ",\"n_predict\":60"), 200);
    json_t *whole = keep_text(server.json, "content");
    const char *text = json_string_value(whole);
    /* two characters of the answer's second half that need no escapes */
    size_t from = json_string_length(whole) / 2;
    char stop[3] = "";
    for (; !stop[0] && from + 2 < json_string_length(whole); from++) {
        const char x = text[from], y = text[from + 1];
        if (x > ' ' && x < 0x7f && y > ' ' && y < 0x7f && !strchr("\"\\", x) && !strchr("\"\\", y))
            snprintf(stop, sizeof stop, "%c%c", x, y);
    }
    assert_true(stop[0] != 0);
    const char *cut = memmem(text, json_string_length(whole), stop, 2);
    assert_non_null(cut);
    char more[64];
    snprintf(more, sizeof more, ",\"n_predict\":60,\"stop\":[\"%s\"]", stop);
    assert_int_equal(complete(&server, 7, 50, more), 200);
    assert_string_equal(text_at(server.json, "stop_type"), "word");
    assert_string_equal(text_at(server.json, "stopping_word"), stop);
    assert_int_equal(json_string_length(at(server.json, "content")), cut - text);
    assert_memory_equal(text_at(server.json, "content"), text, (size_t)(cut - text));
    json_decref(whole);
}

static void greedy_takes_the_most_probable_token(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_adds(&b, "{\"temperature\":0,\"n_predict\":5,\"n_probs\":3,\"return_tokens\":true,"
                 "\"prompt\":");
    write_prompt(&b, 8, 50);
    buf_addc(&b, '}');
    assert_int_equal(ask(&server, "POST", "/completion", buf_str(&b)), 200);
    const size_t n = json_array_size(at(server.json, "tokens"));
    assert_true(n > 0);
    assert_int_equal(json_array_size(at(server.json, "completion_probabilities")), n);
    for (size_t i = 0; i < n; i++) {
        json_t *p = json_array_get(at(server.json, "completion_probabilities"), i);
        assert_int_equal(int_at(p, "id"),
                         json_integer_value(json_array_get(at(server.json, "tokens"), i)));
        assert_int_equal(int_at(p, "id"), int_at(p, "top_logprobs.0.id"));
        const double first = json_number_value(at(p, "top_logprobs.0.logprob"));
        const double second = json_number_value(at(p, "top_logprobs.1.logprob"));
        assert_true(first <= 0 && second <= first);
    }
    buf_release(&b);
}

static void a_seed_repeats_its_text(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"abc\",\"temperature\":1.5,\"max_tokens\":20,"
                               "\"ignore_eos\":true,\"seed\":%d}";
    char request[256];
    snprintf(request, sizeof request, body, 42);
    assert_int_equal(ask(&server, "POST", "/v1/completions", request), 200);
    json_t *first = keep_text(server.json, "choices.0.text");
    assert_int_equal(ask(&server, "POST", "/v1/completions", request), 200);
    assert_text(server.json, "choices.0.text", first);
    snprintf(request, sizeof request, body, 43);
    assert_int_equal(ask(&server, "POST", "/v1/completions", request), 200);
    assert_false(json_equal(at(server.json, "choices.0.text"), first));
    json_decref(first);
}

static void a_biased_token_is_all_that_comes(void **state)
{
    (void)state;
    assert_int_equal(ask(&server, "POST", "/tokenize", "{\"content\":\"Q\"}"), 200);
    const int64_t q = int_at(server.json, "tokens.0");
    char more[64];
    snprintf(more, sizeof more, ",\"n_predict\":6,\"logit_bias\":[[%" PRId64 ",1000]]", q);
    assert_int_equal(complete(&server, 9, 20, more), 200);
    assert_string_equal(text_at(server.json, "content"), "QQQQQQ");
}

static void several_choices_evaluate_their_prompt_once(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_adds(&b, "{\"n\":3,\"max_tokens\":4,\"temperature\":1,\"seed\":1,\"prompt\":");
    write_prompt(&b, 10, 500);
    buf_addc(&b, '}');
    assert_int_equal(ask(&server, "GET", "/metrics", NULL), 200);
    static const char name[] = "\nllamacpp:prompt_tokens_total ";
    const double before = strtod(strstr(buf_str(&server.reply), name) + sizeof name - 1, NULL);
    assert_int_equal(ask(&server, "POST", "/v1/completions", buf_str(&b)), 200);
    assert_int_equal(json_array_size(at(server.json, "choices")), 3);
    assert_int_equal(ask(&server, "GET", "/metrics", NULL), 200);
    const double after = strtod(strstr(buf_str(&server.reply), name) + sizeof name - 1, NULL);
    if (after - before >= 500 + 2 * 64)
        fail_msg("%g tokens evaluated", after - before);
    buf_release(&b);
}

/* ---- many at once ---- */

enum { N_CLIENTS = 8 };

struct worker {
    pthread_t thread;
    unsigned seed;
    int status;
    json_t *text;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct program p = {.port = server.port};
    p.client = program_client(&p);
    w->status = complete(&p, w->seed, 60 + 7 * w->seed, ",\"n_predict\":24");
    w->text = json_incref(at(p.json, "content"));
    program_release(&p);
    return NULL;
}

static void what_others_ask_does_not_change_an_answer(void **state)
{
    (void)state;
    struct worker w[N_CLIENTS] = {0};
    json_t *alone[N_CLIENTS];
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        char more[] = ",\"n_predict\":24,\"cache_prompt\":false";
        w[i].seed = 20 + i;
        assert_int_equal(complete(&server, w[i].seed, 60 + 7 * w[i].seed, more), 200);
        alone[i] = keep_text(server.json, "content");
    }
    for (unsigned i = 0; i < N_CLIENTS; i++)
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    for (unsigned i = 0; i < N_CLIENTS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].status, 200);
        assert_true(json_equal(w[i].text, alone[i]));
        json_decref(w[i].text);
        json_decref(alone[i]);
    }
}

/* ---- hanging up ---- */

static bool is_idle(void)
{
    assert_int_equal(ask(&server, "GET", "/slots", NULL), 200);
    for (size_t i = 0; i < json_array_size(server.json); i++)
        if (json_is_true(at(json_array_get(server.json, i), "is_processing")))
            return false;
    return true;
}

/* Begins a streamed completion on a client of its own and reads its first event. */
static struct client *begin_stream(const struct program *p, unsigned seed, unsigned n)
{
    struct buf b = BUF_INIT;
    struct client *c = program_client(p);
    struct sse_event e;
    bool end;
    buf_adds(&b, "{\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"prompt\":");
    write_prompt(&b, seed, n);
    buf_addc(&b, '}');
    assert_int_equal(client_begin(c, "POST", "/completion", (struct str){b.p, b.n}, NULL), RC_OK);
    assert_int_equal(client_event(c, &e, &end, NULL), RC_OK);
    assert_false(end);
    buf_release(&b);
    return c;
}

static void hanging_up_cancels_and_keeps_what_was_computed(void **state)
{
    (void)state;
    struct client *c = begin_stream(&server, 40, 200);
    assert_false(is_idle());
    client_free(c);
    EVENTUALLY(is_idle());
    assert_int_equal(complete(&server, 40, 200, ",\"n_predict\":1"), 200);
    assert_true(int_at(server.json, "timings.cache_n") >= 192);
}

/* ---- the log ---- */

static void a_turn_is_one_line_without_its_text(void **state)
{
    (void)state;
    assert_int_equal(ask(&server, "POST", "/completion",
                         "{\"prompt\":\"the zyzzyva walks over the xylophone\",\"n_predict\":3}"),
                     200);
    char *log = whole_file(server.log);
    assert_null(strstr(log, "zyzzyva"));
    assert_null(strstr(log, "xylophone"));
    const char *turn = strstr(log, "prompt 300, reused");
    assert_non_null(turn);
    assert_non_null(strstr(log, "reused 0, evaluated 300 in "));
    mem_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fact_can_be_asked_for),
        cmocka_unit_test(tokens_and_text_are_inverse),
        cmocka_unit_test(a_prompt_longer_than_the_context_is_refused_with_both_numbers),
        cmocka_unit_test(a_full_context_ends_the_answer),
        cmocka_unit_test(a_repeated_prompt_is_reused_and_says_the_same),
        cmocka_unit_test(an_interloper_costs_nothing),
        cmocka_unit_test(openai_usage_tells_the_cached_tokens),
        cmocka_unit_test(the_cache_shows_what_was_kept),
        cmocka_unit_test(metrics_count_what_happened),
        cmocka_unit_test(a_stream_says_what_the_whole_reply_says),
        cmocka_unit_test(a_stop_string_is_never_seen),
        cmocka_unit_test(greedy_takes_the_most_probable_token),
        cmocka_unit_test(a_seed_repeats_its_text),
        cmocka_unit_test(a_biased_token_is_all_that_comes),
        cmocka_unit_test(several_choices_evaluate_their_prompt_once),
        cmocka_unit_test(what_others_ask_does_not_change_an_answer),
        cmocka_unit_test(hanging_up_cancels_and_keeps_what_was_computed),
        cmocka_unit_test(a_turn_is_one_line_without_its_text),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
