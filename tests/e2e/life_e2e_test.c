/* The program's life: start, wrong starts, Ctrl-C, keys, what the commands say of themselves. */
#include "program_int.h"

static struct scene scene;

static int group_set_up(void **state)
{
    (void)state;
    scene_open(&scene);
    scene_make_model(&scene, "tiny", "f16");
    return 0;
}

static int group_tear_down(void **state)
{
    (void)state;
    scene_close(&scene);
    return 0;
}

#define SERVE(p, name, ...)                                                                        \
    program_serve((p), &scene, (name), (const char *const[]){__VA_ARGS__, NULL})

static bool log_has(const struct program *p, const char *text)
{
    char *log = whole_file(p->log);
    const bool has = strstr(log, text) != NULL;
    mem_free(log);
    return has;
}

/* A long streamed answer under way. */
static struct client *begin_stream(const struct program *p)
{
    static const char body[] = "{\"prompt\":\"abc\",\"ignore_eos\":true,\"n_predict\":400,"
                               "\"stream\":true,\"temperature\":0}";
    struct client *c = program_client(p);
    struct sse_event e;
    bool end;
    assert_int_equal(client_begin(c, "POST", "/completion", str_of(body), NULL), RC_OK);
    assert_int_equal(client_event(c, &e, &end, NULL), RC_OK);
    return c;
}

static void ctrl_c_lets_running_requests_finish(void **state)
{
    (void)state;
    struct program p;
    SERVE(&p, "drain", "-c", "1024");
    struct client *c = begin_stream(&p);
    assert_int_equal(kill(p.pid, SIGINT), 0);
    EVENTUALLY(log_has(&p, "stopping"));
    struct sse_event e;
    bool end = false;
    int64_t n = 0;
    while (!client_event(c, &e, &end, NULL) && !end) {
        json_t *o = parse(e.data);
        if (json_is_true(at(o, "stop")))
            n = int_at(o, "tokens_predicted");
        json_decref(o);
    }
    assert_true(end);
    assert_int_equal(n, 400); /* whole */
    client_free(c);
    program_release(&p);
    assert_int_equal(program_wait(&p), 0);
    assert_true(log_has(&p, "stopped"));
}

static void what_does_not_finish_in_time_is_cut_off(void **state)
{
    (void)state;
    struct program p;
    SERVE(&p, "cut", "--drain", "0", "-c", "100000");
    struct client *c = program_client(&p);
    struct sse_event e;
    bool end = false;
    assert_int_equal(
        client_begin(c, "POST", "/completion",
                     str_of("{\"prompt\":\"abc\",\"ignore_eos\":true,\"stream\":true}"), NULL),
        RC_OK);
    assert_int_equal(client_event(c, &e, &end, NULL), RC_OK);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    struct buf last = BUF_INIT;
    while (!client_event(c, &e, &end, NULL) && !end) {
        buf_clear(&last);
        buf_add(&last, e.data.p, e.data.n);
    }
    assert_non_null(strstr(buf_str(&last), "the server is stopping"));
    buf_release(&last);
    client_free(c);
    program_release(&p);
    assert_int_equal(program_wait(&p), 0);
}

static void a_second_ctrl_c_ends_at_once(void **state)
{
    (void)state;
    struct program p;
    SERVE(&p, "twice", "-c", "100000");
    struct client *c = program_client(&p);
    struct sse_event e;
    bool end;
    assert_int_equal(
        client_begin(c, "POST", "/completion",
                     str_of("{\"prompt\":\"abc\",\"ignore_eos\":true,\"stream\":true}"), NULL),
        RC_OK);
    assert_int_equal(client_event(c, &e, &end, NULL), RC_OK);
    assert_int_equal(kill(p.pid, SIGINT), 0);
    EVENTUALLY(log_has(&p, "stopping"));
    assert_int_equal(kill(p.pid, SIGINT), 0);
    assert_int_equal(program_wait(&p), 128 + SIGINT);
    client_free(c);
    program_release(&p);
}

static void a_port_in_use_is_said_before_the_model_is_read(void **state)
{
    (void)state;
    struct program p;
    char port[8], want[64], *said;
    SERVE(&p, "first", "-c", "256");
    snprintf(port, sizeof port, "%u", p.port);
    snprintf(want, sizeof want, "port %s on 127.0.0.1 is in use", port);
    assert_int_equal(RUN(&scene, &said, "serve", "-m", "/nonexistent.gguf", "--port", port), 1);
    assert_non_null(strstr(said, want));
    mem_free(said);
    assert_int_equal(program_stop(&p), 0);
}

static void wrong_starts_say_why(void **state)
{
    (void)state;
    char *said, junk[128];
    assert_int_equal(RUN(&scene, &said, "serve", "-m", "/no/such.gguf", "--port", "0"), 1);
    assert_non_null(strstr(said, "/no/such.gguf"));
    mem_free(said);
    snprintf(junk, sizeof junk, "%s/junk.gguf", scene.dir);
    assert_int_equal(file_write_atomically(junk, "this is no model", 16, NULL), RC_OK);
    assert_int_equal(RUN(&scene, &said, "serve", "-m", junk, "--port", "0"), 1);
    assert_non_null(strstr(said, "junk.gguf"));
    mem_free(said);
    assert_int_equal(RUN(&scene, &said, "serve", "--cache-rma", "5"), 2);
    assert_non_null(strstr(said, "did you mean --cache-ram?"));
    mem_free(said);
    assert_int_equal(
        RUN(&scene, &said, "serve", "-m", "/no/such.gguf", "--port", "0", "--cache-policy", "best"),
        2);
    assert_non_null(strstr(said, "'best' is none; there are hold, none, lru, pxa"));
    mem_free(said);
    const struct {
        const char *dir, *why;
    } places[] = {{"/no/such/place", "/no/such/place: No such file"},
                  {junk, "junk.gguf is no directory"},
                  {"/proc/1", "/proc/1: cannot write there"}};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        assert_int_equal(RUN(&scene, &said, "serve", "-m", scene.model, "--port", "0",
                             "--slot-save-path", places[i].dir),
                         2);
        assert_non_null(strstr(said, places[i].why));
        mem_free(said);
    }
    char same[96];
    snprintf(same, sizeof same, "%s/.", scene.dir);
    assert_int_equal(RUN(&scene, &said, "serve", "-m", scene.model, "--port", "0", "--cache-dir",
                         scene.dir, "--slot-save-path", same),
                     2);
    assert_non_null(strstr(said, "--cache-dir and --slot-save-path must be two directories"));
    mem_free(said);
    assert_int_equal(
        RUN(&scene, &said, "serve", "-m", scene.model, "--host", "no.such.host.invalid"), 1);
    assert_non_null(strstr(said, "no.such.host.invalid"));
    mem_free(said);
}

static void options_of_llama_server_are_taken_with_a_note(void **state)
{
    (void)state;
    struct program p;
    SERVE(&p, "notes", "--ctx-checkpoints", "64", "--kv-unified", "-sps", "0.5", "-fa", "on", "-c",
          "256");
    char *said = whole_file(p.out);
    assert_non_null(strstr(said, "note: --ctx-checkpoints decides nothing here: "));
    assert_non_null(strstr(said, "note: --kv-unified decides nothing here: "));
    assert_non_null(strstr(said, "note: -sps decides nothing here: "));
    mem_free(said);
    assert_int_equal(program_stop(&p), 0);
}

static void keys_come_from_a_file_too(void **state)
{
    (void)state;
    struct program p;
    char path[128];
    static const char keys[] = "# comment\nfirst\nsecond\r\n";
    snprintf(path, sizeof path, "%s/keys", scene.dir);
    assert_int_equal(file_write_atomically(path, keys, sizeof keys - 1, NULL), RC_OK);
    SERVE(&p, "keys", "--api-key-file", path, "-c", "256");
    assert_int_equal(ask(&p, "GET", "/cache", NULL), 401);
    client_set_header(p.client, "Authorization", "Bearer second");
    assert_int_equal(ask(&p, "GET", "/cache", NULL), 200);
    client_set_header(p.client, "Authorization", "Bearer # comment");
    assert_int_equal(ask(&p, "GET", "/cache", NULL), 401);
    assert_int_equal(program_stop(&p), 0);
    char *said;
    assert_int_equal(file_write_atomically(path, "#\n", 2, NULL), RC_OK);
    assert_int_equal(
        RUN(&scene, &said, "serve", "-m", scene.model, "--port", "0", "--api-key-file", path), 2);
    assert_non_null(strstr(said, "no key"));
    mem_free(said);
}

static void every_command_explains_itself(void **state)
{
    (void)state;
    char *all, *said;
    assert_int_equal(RUN(&scene, &all, "--help"), 0);
    unsigned n = 0;
    char *save = NULL;
    for (char *line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char name[32];
        if (strncmp(line, "  ", 2) != 0 || sscanf(line, "%31s", name) != 1)
            continue;
        assert_int_equal(RUN(&scene, &said, name, "--help"), 0);
        assert_non_null(strstr(said, "usage: holdfast "));
        assert_non_null(strstr(said, name));
        mem_free(said);
        assert_int_equal(RUN(&scene, NULL, name, "--no-such-option"), 2);
        n++;
    }
    assert_true(n >= 4);
    mem_free(all);
    assert_int_equal(RUN(&scene, &said, "version"), 0);
    assert_memory_equal(said, "holdfast ", 9);
    mem_free(said);
    assert_int_equal(RUN(&scene, &said, "sevre"), 2);
    assert_non_null(strstr(said, "did you mean holdfast serve?"));
    mem_free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ctrl_c_lets_running_requests_finish),
        cmocka_unit_test(what_does_not_finish_in_time_is_cut_off),
        cmocka_unit_test(a_second_ctrl_c_ends_at_once),
        cmocka_unit_test(a_port_in_use_is_said_before_the_model_is_read),
        cmocka_unit_test(wrong_starts_say_why),
        cmocka_unit_test(options_of_llama_server_are_taken_with_a_note),
        cmocka_unit_test(keys_come_from_a_file_too),
        cmocka_unit_test(every_command_explains_itself),
    };
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
