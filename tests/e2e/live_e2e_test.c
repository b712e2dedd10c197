/* replay --live: what the real server reuses is what the simulator said, to the token, and no completion is another one
 * than without reuse. */
#include "program_int.h"

static struct scene scene;
static char trace_file[128];

/* Conversations of a few users that grow, are edited, come in turns, and one-off prompts in between: cid 1 is everyone's
 * system prompt, 10 + u a user's own; every answer is part of the next prompt. */
static void write_trace(const char *path)
{
    struct buf b = BUF_INIT;
    enum { USERS = 4, ROUNDS = 6 };
    unsigned n = 0, cid = 100, said[USERS][ROUNDS], asked[USERS][ROUNDS];
    buf_adds(&b, "{\"holdfast_trace\":1,\"name\":\"small\"}\n");
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned u = 0; u < USERS; u++) {
            asked[u][round] = cid++;
            said[u][round] = cid++;
            buf_addf(&b, "{\"i\":%u,\"t\":%u,\"p\":[[1,150,\"s\"],[%u,70]", n, n, 10 + u);
            n++;
            /* user 1 sends only the last two rounds: a window */
            for (unsigned k = u == 1 && round > 2 ? round - 2 : 0; k < round; k++)
                buf_addf(&b, ",[%u,60,\"u\"],[3,2,\"a\"],[%u,30]", asked[u][k], said[u][k]);
            buf_addf(&b, ",[%u,60,\"u\"],[3,2,\"g\"]],\"g\":[%u,30]}\n", asked[u][round],
                     said[u][round]);
            buf_addf(&b, "{\"i\":%u,\"t\":%u,\"p\":[[1,%u,\"s\"],[%u,90,\"u\"]]}\n", n, n,
                     20 * round, cid);
            n++;
            cid++;
        }
    assert_false(b.failed);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    assert_int_equal(fclose(f), 0);
    buf_release(&b);
}

static int group_set_up(void **state)
{
    (void)state;
    scene_open(&scene);
    scene_make_model(&scene, "tiny", "f16");
    snprintf(trace_file, sizeof trace_file, "%s/small.jsonl", scene.dir);
    write_trace(trace_file);
    return 0;
}

static int group_tear_down(void **state)
{
    (void)state;
    unlink(trace_file);
    scene_close(&scene);
    return 0;
}

static json_t *replay(const struct program *p, const char *against, int want)
{
    char url[64], *said;
    snprintf(url, sizeof url, "http://127.0.0.1:%u", p->port);
    const char *const argv[] = {"replay", trace_file,  "--live", url,
                                "--json", "--against", against,  NULL};
    const int status = run(&scene, &said, argv);
    if (status != want)
        fail_msg("status %d: %s", status, said);
    char *brace = strchr(said, '{');
    json_t *v = brace ? parse(str_of(brace)) : NULL;
    mem_free(said);
    return v;
}

static void a_server_reuses_what_the_simulator_predicts_and_says_what_it_says_without(void **state)
{
    (void)state;
    /* more than everything, less than half, next to nothing */
    static const char *const budgets[] = {"64", "3", "1"};
    struct program none = {0};
    char against[64];
    program_serve(&none, &scene, "none",
                  (const char *const[]){"-c", "2048", "-np", "1", "--cache-policy", "none", NULL});
    snprintf(against, sizeof against, "http://127.0.0.1:%u", none.port);
    int64_t before = INT64_MAX;
    for (size_t i = 0; i < COUNT_OF(budgets); i++) {
        struct program p = {0};
        program_serve(
            &p, &scene, "live",
            (const char *const[]){"-c", "2048", "-np", "1", "--cache-ram", budgets[i], NULL});
        json_t *v = replay(&p, against, 0);
        assert_int_equal(int_at(v, "requests"), 48);
        assert_int_equal(int_at(v, "reported_tokens"), int_at(v, "predicted_tokens"));
        assert_int_equal(int_at(v, "differing_requests"), 0);
        assert_true(int_at(v, "reported_tokens") > 0);
        assert_true(int_at(v, "reported_tokens") <= before);
        assert_int_equal(int_at(v, "checked"), 48);
        assert_int_equal(int_at(v, "unequal"), 0);
        before = int_at(v, "reported_tokens");
        json_decref(v);
        /* the server's own count says the same */
        assert_int_equal(ask(&p, "GET", "/cache", NULL), 200);
        assert_int_equal(int_at(p.json, "reused_tokens"), before);
        assert_int_equal(program_stop(&p), 0);
    }
    assert_int_equal(program_stop(&none), 0);
}

static void a_server_that_has_been_used_is_refused(void **state)
{
    (void)state;
    struct program p = {0};
    program_serve(&p, &scene, "used", (const char *const[]){"-c", "2048", NULL});
    assert_int_equal(ask(&p, "POST", "/completion", "{\"prompt\":\"a\",\"n_predict\":1}"), 200);
    assert_null(replay(&p, "http://127.0.0.1:1", 1));
    assert_int_equal(program_stop(&p), 0);
}

static void a_wrong_policy_or_budget_is_said_before_anything_runs(void **state)
{
    (void)state;
    char *said, trace[128];
    snprintf(trace, sizeof trace, "%s/wrong.jsonl", scene.dir);
    write_trace(trace);
    static const struct {
        const char *option, *value, *why;
    } cases[] = {
        {"--policy", ",", "--policy: an empty name in ','"},
        {"--policy", "", "--policy: an empty name in ''"},
        {"--policy", "hold,,lru", "--policy: an empty name in 'hold,,lru'"},
        {"--policy", "hold,best", "'best' is none; there are hold, none, lru, pxa, pxa-policy0"},
        {"--budget", "1G,", "--budget: an empty name in '1G,'"},
        {"--budget", "1G,much", "'much' is no number of bytes"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(RUN(&scene, &said, "replay", trace, cases[i].option, cases[i].value), 2);
        assert_non_null(strstr(said, cases[i].why));
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
        mem_free(said);
    }
}

static void a_trace_without_requests_is_no_workload(void **state)
{
    (void)state;
    static const char header[] = "{\"holdfast_trace\":1}\n";
    char *said, trace[128];
    snprintf(trace, sizeof trace, "%s/bare.jsonl", scene.dir);
    assert_int_equal(file_write_atomically(trace, header, sizeof header - 1, NULL), RC_OK);
    assert_int_equal(RUN(&scene, &said, "replay", trace), 1);
    assert_non_null(strstr(said, "bare.jsonl: a header and no request"));
    mem_free(said);
}

static void a_trace_comes_from_a_pipe_too(void **state)
{
    (void)state;
    const char *named = getenv("HOLDFAST_BIN");
    char trace[128], command[1024], *from[2];
    snprintf(trace, sizeof trace, "%s/piped.jsonl", scene.dir);
    write_trace(trace);
    for (int piped = 0; piped < 2; piped++) {
        char out[128];
        snprintf(out, sizeof out, "%s/piped.out", scene.dir);
        snprintf(command, sizeof command,
                 "cat '%s' | '%s' replay %s --policy none,pxa --budget 1G > '%s'", trace,
                 named ? named : HOUSE_BINARY_DIR "/holdfast", piped ? "-" : trace, out);
        assert_int_equal(system(command), 0);
        from[piped] = whole_file(out);
    }
    assert_string_equal(from[0], from[1]);
    assert_true(strlen(from[0]) > 200);
    mem_free(from[0]);
    mem_free(from[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_reuses_what_the_simulator_predicts_and_says_what_it_says_without),
        cmocka_unit_test(a_server_that_has_been_used_is_refused),
        cmocka_unit_test(a_wrong_policy_or_budget_is_said_before_anything_runs),
        cmocka_unit_test(a_trace_without_requests_is_no_workload),
        cmocka_unit_test(a_trace_comes_from_a_pipe_too),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
