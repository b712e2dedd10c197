/* The experiment against a server of our own that keeps its cache by PXA's rules, replies as llama-server
 * does and logs in that dialect: this program itself, started with --engine. */
#include "lab/matrix.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "lab/legacy.h"
#include "lab/prompts.h"
#include "lab/runner.h"
#include "net/http.h"

#include <cmocka.h>

/* ---- the engine ------------------------------------------------------------------------------ */

static volatile sig_atomic_t engine_ended;

static void end_engine(int sig)
{
    (void)sig;
    engine_ended = 1;
}

struct engine {
    struct legacy *cache;
    uint32_t task;
};

static void tokenize(struct http_req *r)
{
    char text[4096];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"tokens\":[");
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", i ? "," : "", 1000 + 7 * i);
    n += (size_t)snprintf(text + n, sizeof text - n, "]}");
    http_reply(r, 200, "application/json", text, n);
}

static void log_turn(struct engine *e, const struct legacy_turn *t)
{
    const uint32_t task = e->task;
    printf("INFO [   launch_slot_with_task] slot is processing task | tid=\"1\" timestamp=1 "
           "id_slot=0 id_task=%u\n",
           task);
    printf("======== Cache: cache_size = %u, n_past0 =  %u, n_past1 =  %u, n_past_prompt1 = %u\n",
           t->held, t->lcp, t->lcp, t->lcp);
    if (t->verdict == VERDICT_FORCED)
        printf("slot apply_checkp: id  0 | task %u | forcing full prompt re-processing due to lack "
               "of cache data (likely due "
               "to SWA, see x)\n",
               task);
    if (t->verdict == VERDICT_RESTORED)
        printf("slot apply_checkp: id  0 | task %u | restored HYBRID context checkpoint took 14.20 "
               "ms (state_pos %u -> %lld, "
               "n_past = %u, size = 62.9 MiB)\n",
               task, t->held, (long long)t->restored, t->reused);
    for (uint32_t i = 0; i < t->n_erased; i++)
        printf("slot apply_checkp: id  0 | task %u | erased invalidated context checkpoint "
               "(pos_min = %u, pos_max = %u, size "
               "= 62.9 MiB)\n",
               task, i, i);
    printf("INFO [ f] kv cache rm [p0, end) | tid=\"1\" timestamp=1 id_slot=0 id_task=%u p0=%u\n",
           task, t->reused);
    for (uint32_t i = 0; i < t->n_made; i++)
        printf("slot create_check: id  0 | task %u | created context checkpoint %u of 32 (pos_min "
               "= %u, pos_max = %u, n_tokens "
               "= %u, size = 62.9 MiB, took 60.00 ms)\n",
               task, i + 1, t->made[i], t->made[i], t->made[i] + 1);
    printf("slot print_timing: id  0 | task %u | \nprompt eval time =     100.00 ms /  %u tokens "
           "(x)\n",
           task, t->processed);
    fflush(stdout);
}

static void complete(struct engine *e, struct http_req *r)
{
    const struct str body = http_body(r);
    json_t *o, *v;
    struct err err;
    size_t i;
    if (jread_parse(body.p, body.n, &o, &err)) {
        http_reply(r, 400, "text/plain", err.msg, strlen(err.msg));
        return;
    }
    const json_t *prompt = json_object_get(o, "prompt");
    const uint32_t n = (uint32_t)json_array_size(prompt),
                   gen = (uint32_t)json_integer_value(json_object_get(o, "n_predict"));
    token *seq = calloc(n + gen, sizeof *seq);
    uint64_t hash = 14695981039346656037u;
    json_array_foreach(prompt, i, v)
    {
        seq[i] = (token)json_integer_value(v);
        hash = (hash ^ (uint64_t)seq[i]) * 1099511628211u;
    }
    for (uint32_t k = 0; k < gen; k++)
        seq[n + k] = (token)(1000 + (hash >> (k % 40)) % 90);
    struct legacy_turn t;
    assert_int_equal(legacy_request(e->cache, seq, n, gen, NULL, 0, &t, &err), 0);
    e->task += 40;
    log_turn(e, &t);
    struct buf b = BUF_INIT;
    struct jwrite w;
    char content[32];
    snprintf(content, sizeof content, "%llx", (unsigned long long)hash);
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "content", content);
    jwrite_arr(&w, "tokens");
    for (uint32_t k = 0; k < gen; k++)
        jwrite_i64(&w, NULL, seq[n + k]);
    jwrite_end_arr(&w);
    jwrite_obj(&w, "timings");
    jwrite_u64(&w, "prompt_n", t.processed);
    jwrite_fixed(&w, "prompt_ms", 100, 1);
    jwrite_fixed(&w, "predicted_ms", 10, 1);
    jwrite_end_obj(&w);
    jwrite_end_obj(&w);
    http_reply(r, 200, "application/json", b.p, b.n);
    buf_release(&b);
    free(seq);
    json_decref(o);
}

static void serve(void *ctx, struct http_req *r)
{
    if (!strcmp(http_path(r), "/health"))
        http_reply(r, 200, "application/json", "{}", 2);
    else if (!strcmp(http_path(r), "/tokenize"))
        tokenize(r);
    else if (!strcmp(http_path(r), "/completion"))
        complete(ctx, r);
    else
        http_reply(r, 404, "text/plain", "no", 2);
}

static int engine_main(const char *port)
{
    struct legacy_opts o;
    struct engine e = {0};
    struct http_server *s;
    struct err err;
    const char *policy = getenv("PXA_CKPT_PROMPT_POLICY"), *end = getenv("PXA_CKPT_PROMPT_END");
    legacy_defaults(&o, LEGACY_PXA, 0);
    o.prompt_policy = !policy || strcmp(policy, "0") != 0;
    o.prompt_end = end && !strcmp(end, "1");
    const struct sigaction sa = {.sa_handler = end_engine};
    sigaction(SIGTERM, &sa, NULL);
    if (legacy_new(&o, &e.cache, &err) ||
        http_start(
            &(struct http_opts){.port = (uint16_t)strtoul(port, NULL, 10), .max_body = 16 * MIB},
            serve, &e, &s, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    while (!engine_ended)
        usleep(20000);
    http_stop(s);
    legacy_free(e.cache);
    return 0;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static char self[4096], dir[64];

static void remove_dir(const char *path)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", path);
    assert_int_equal(system(command), 0);
}

static json_t *run(struct experiment_opts *o, const char *configs)
{
    char path[128];
    struct err err;
    json_t *s;
    snprintf(path, sizeof path, "%s/configs.json", dir);
    assert_int_equal(file_write_atomically(path, configs, strlen(configs), &err), 0);
    o->config_path = path;
    o->out_dir = dir;
    o->start_s = 30;
    if (experiment_run(o, &s, &err))
        fail_msg("%s", err.msg);
    return s;
}

static const json_t *turn_of(const json_t *s, const char *sequence, const char *config, size_t turn)
{
    size_t i;
    const json_t *c;
    json_array_foreach(json_object_get(s, "cells"), i, c)
    {
        if (strcmp(json_string_value(json_object_get(c, "sequence")), sequence) != 0 ||
            strcmp(json_string_value(json_object_get(c, "config")), config) != 0)
            continue;
        if (!json_is_true(json_object_get(c, "ok")))
            fail_msg("%s.%s: %s", sequence, config, json_string_value(json_object_get(c, "error")));
        return json_array_get(json_object_get(c, "turns"), turn);
    }
    fail_msg("no cell %s.%s", sequence, config);
    return NULL;
}

static int64_t number(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void four_levers(char *out, size_t n)
{
    static const char *const names[] = {"pxa", "pxa-policy0", "pxa-end", "pxa-both"};
    size_t k = (size_t)snprintf(out, n, "{\"configs\":[");
    for (int i = 0; i < 4; i++)
        k += (size_t)snprintf(out + k, n - k,
                              "%s{\"name\":\"%s\",\"predict\":\"%s\",\"cmd\":[\"%s\",\"--engine\","
                              "\"{port}\"],\"env\":{"
                              "\"PXA_CKPT_PROMPT_POLICY\":\"%d\",\"PXA_CKPT_PROMPT_END\":\"%d\"}}",
                              i ? "," : "", names[i], names[i], self, !(i & 1), i >> 1);
    snprintf(out + k, n - k, "]}");
}

static void the_matrix_is_reproduced_live(void **state)
{
    (void)state;
    char configs[8192];
    four_levers(configs, sizeof configs);
    struct experiment_opts o = {
        .scale = 1, .n_predict = 32, .seed = 1, .sequences = "ac,abc,first,probe,aa,c"};
    json_t *s = run(&o, configs);
    static const struct {
        const char *sequence, *config;
        size_t turn;
        int64_t reused, prompt, erased, restored;
        const char *outcome;
    } want[] = {
        {"ac", "pxa", 1, 0, 4947, 3, -1, "forced"},
        {"ac", "pxa-policy0", 1, 2048, 4947, 3, 2047, "restored"},
        {"ac", "pxa-end", 1, 0, 4947, 4, -1, "forced"},
        {"ac", "pxa-both", 1, 2048, 4947, 4, 2047, "restored"},
        {"abc", "pxa", 1, 0, 99, 3, -1, "zero_overlap"},
        {"abc", "pxa", 2, 0, 4947, 2, -1, "zero_overlap"},
        {"abc", "pxa-policy0", 1, 0, 99, 4, -1, "zero_overlap"},
        {"abc", "pxa-policy0", 2, 0, 4947, 2, -1, "zero_overlap"},
        {"abc", "pxa-both", 2, 0, 4947, 3, -1, "zero_overlap"},
        {"first", "pxa-policy0", 1, 0, 4947, 3, -1, "forced"},
        {"probe", "pxa", 1, 6144, 6350, 3, 6143, "restored"},
        {"aa", "pxa", 1, 4555, 4560, 1, 4554, "restored"},
        {"c", "pxa", 0, 0, 4947, 0, -1, "cold"},
    };
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const json_t *t = turn_of(s, want[i].sequence, want[i].config, want[i].turn),
                     *log = json_object_get(t, "log");
        if (number(t, "reused") != want[i].reused || number(t, "prompt") != want[i].prompt ||
            number(json_object_get(t, "predicted"), "reused") != want[i].reused ||
            number(log, "restored_at") != want[i].restored ||
            strcmp(json_string_value(json_object_get(log, "outcome")), want[i].outcome) != 0) {
            char *text = json_dumps(t, JSON_COMPACT);
            fail_msg("%s.%s turn %zu: %s", want[i].sequence, want[i].config, want[i].turn, text);
        }
        if (want[i].sequence[0] == 'a')
            assert_int_equal(number(log, "erased"), want[i].erased);
    }
    /* C's completion is the same in every cell */
    assert_int_equal(json_object_size(json_object_get(json_object_get(s, "completions"), "C")), 1);
    json_decref(s);
    static const char *const files[] = {"report.json", "report.md", "report.html",
                                        "ac.pxa/meta.json", "ac.pxa/server.log"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        if (access(path, R_OK))
            fail_msg("no %s", path);
    }
}

static void interlopers_erase_whatever_they_share(void **state)
{
    (void)state;
    char configs[8192];
    snprintf(configs, sizeof configs,
             "{\"configs\":[{\"name\":\"pxa\",\"predict\":\"pxa\",\"cmd\":[\"%s\",\"--engine\",\"{"
             "port}\"]}]}",
             self);
    struct experiment_opts o = {.scale = 1,
                                .n_predict = 8,
                                .seed = 3,
                                .cascade = true,
                                .overlaps = {0, 3, 500},
                                .n_overlaps = 3,
                                .rounds = 2};
    json_t *s = run(&o, configs);
    static const struct {
        const char *sequence;
        int64_t overlap;
    } want[] = {{"cascade-0", 0}, {"cascade-3", 3}, {"cascade-500", 500}};
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const json_t *interloper = turn_of(s, want[i].sequence, "pxa", 1),
                     *again = turn_of(s, want[i].sequence, "pxa", 2);
        assert_int_equal(number(interloper, "shared"), want[i].overlap);
        assert_int_equal(number(again, "shared"), want[i].overlap);
        assert_int_equal(number(again, "shared_with_any"), 4560 + 8 - 1);
        assert_int_equal(number(again, "reused"), 0); /* the whole conversation again */
    }
    json_decref(s);
}

static void an_engine_that_fails_is_a_result(void **state)
{
    (void)state;
    char configs[8192];
    snprintf(configs, sizeof configs,
             "{\"configs\":[{\"name\":\"gone\",\"cmd\":[\"/nonexistent/engine\",\"{port}\"]},"
             "{\"name\":\"quits\",\"cmd\":[\"sh\",\"-c\",\"echo no model >&2; exit 3\"]},"
             "{\"name\":\"works\",\"cmd\":[\"%s\",\"--engine\",\"{port}\"]}]}",
             self);
    struct experiment_opts o = {.scale = 0.05, .n_predict = 4, .seed = 1, .sequences = "c"};
    json_t *s = run(&o, configs);
    const json_t *cells = json_object_get(s, "cells");
    assert_int_equal(json_array_size(cells), 3);
    assert_non_null(strstr(json_string_value(json_object_get(json_array_get(cells, 0), "error")),
                           "status 127"));
    assert_non_null(strstr(json_string_value(json_object_get(json_array_get(cells, 1), "error")),
                           "(status 3): no model"));
    assert_true(json_is_true(json_object_get(json_array_get(cells, 2), "ok")));
    json_decref(s);
}

static void the_only_engine_that_does_not_start_ends_it_at_once(void **state)
{
    (void)state;
    char out[128];
    struct err err;
    json_t *s;
    snprintf(out, sizeof out, "%s/alone", dir);
    const struct experiment_opts commands = {.out_dir = out,
                                             .engine_cmd =
                                                 "sh -c 'echo no model >&2; exit 3' {port}",
                                             .scale = 0.05,
                                             .n_predict = 4};
    assert_int_equal(experiment_run(&commands, &s, &err), RC_IO);
    assert_non_null(strstr(err.msg, "(status 3): no model"));
    assert_null(s);
    const struct experiment_opts model = {.out_dir = out,
                                          .binary = "/nonexistent/engine",
                                          .model = "nope",
                                          .scale = 0.05,
                                          .n_predict = 4};
    assert_int_equal(experiment_run(&model, &s, &err), RC_IO);
    assert_non_null(strstr(err.msg, "status 127"));
    const char *const tried[] = {"ac.engine", "ac.none"}; /* a log each, and nothing else */
    for (size_t i = 0; i < COUNT_OF(tried); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s/server.log", out, tried[i]);
        assert_int_equal(unlink(path), 0);
        snprintf(path, sizeof path, "%s/%s", out, tried[i]);
        assert_int_equal(rmdir(path), 0);
    }
    assert_int_equal(rmdir(out), 0);
}

static void wrong_options_are_named(void **state)
{
    (void)state;
    char path[128];
    struct err err;
    json_t *s;
    snprintf(path, sizeof path, "%s/bad.json", dir);
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{", "bad.json"},
        {"{\"configs\":[]}", "configs must be a list"},
        {"{\"configs\":[{\"name\":\"x\"}]}", "configs[0] needs"},
        {"{\"configs\":[{\"name\":\"x\",\"cmd\":[\"a\"],\"predict\":\"magic\"}]}", "magic"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(file_write_atomically(path, cases[i].text, strlen(cases[i].text), &err),
                         0);
        const struct experiment_opts o = {.out_dir = dir, .config_path = path, .scale = 1};
        assert_int_equal(experiment_run(&o, &s, &err), RC_FORMAT);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("%s", err.msg);
    }
    const struct experiment_opts no_port = {
        .out_dir = dir, .engine_cmd = "llama-server", .scale = 1};
    assert_int_equal(experiment_run(&no_port, &s, &err), RC_ARG);
    const struct experiment_opts no_sequence = {
        .out_dir = dir, .engine_cmd = "x {port}", .scale = 1, .sequences = "zz"};
    assert_int_equal(experiment_run(&no_sequence, &s, &err), RC_ARG);
    assert_non_null(strstr(err.msg, "zz"));
}

static void commands_are_split_as_a_shell_would(void **state)
{
    (void)state;
    char **w;
    struct err err;
    assert_int_equal(runner_words("  a 'b c'\"d\" '' --x=\"y z\"  ", &w, &err), 0);
    static const char *const want[] = {"a", "b cd", "", "--x=y z"};
    for (size_t i = 0; i < COUNT_OF(want); i++)
        assert_string_equal(w[i], want[i]);
    assert_null(w[4]);
    runner_words_free(w);
    assert_int_equal(runner_words("a 'b", &w, &err), RC_ARG);
    assert_int_equal(runner_words("   ", &w, &err), RC_ARG);
}

static void streams_differ_at_every_index(void **state)
{
    (void)state;
    token ids[PROMPTS_MAX_STREAMS + 5];
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        ids[i] = (token)(i * 3 + 5);
    const struct prompt_pool p = {.ids = ids, .n = COUNT_OF(ids), .seed = 9};
    for (uint32_t i = 0; i < 3000; i++)
        for (uint32_t a = 0; a < 6; a++)
            for (uint32_t b = 0; b < a; b++)
                assert_int_not_equal(prompt_token(&p, a, i), prompt_token(&p, b, i));
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/holdfast-matrix-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    remove_dir(dir);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--engine"))
        return engine_main(argv[2]);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return 1;
    self[n] = 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_matrix_is_reproduced_live),
        cmocka_unit_test(interlopers_erase_whatever_they_share),
        cmocka_unit_test(an_engine_that_fails_is_a_result),
        cmocka_unit_test(the_only_engine_that_does_not_start_ends_it_at_once),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(commands_are_split_as_a_shell_would),
        cmocka_unit_test(streams_differ_at_every_index),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
