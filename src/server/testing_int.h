/* testing_int.h - a server over the engine of fake_engine_int.h, and a client to ask it with. */
#ifndef HOLDFAST_SERVER_TESTING_INT_H
#define HOLDFAST_SERVER_TESTING_INT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "net/client.h"
#include "server/fake_engine_int.h"
#include "server/server.h"

#include <cmocka.h>

struct world {
    char dir[64], file[96];
    struct gguf *gguf;
    struct vocab *vocab;
    struct chat_template *chat;
    struct engine engine;
    struct server *server;
    struct client *client;
    struct buf reply;
    json_t *json; /* the last reply, parsed */
};

/* ---- set up ---- */

static inline void start(struct world *w, const struct server_opts *o, bool ready)
{
    char url[64];
    struct server_opts opts = *o;
    const struct client_opts co = {.idle_ms = 20000};
    sampling_defaults(&opts.sampling);
    opts.n_predict = -1;
    assert_int_equal(server_start(&opts, &w->server, NULL), RC_OK);
    const struct served served = {.engine = &w->engine,
                                  .vocab = w->vocab,
                                  .chat = w->chat,
                                  .alias = "tiny",
                                  .path = "/models/tiny.gguf",
                                  .arch = "qwen35",
                                  .cache_policy = "hold",
                                  .n_parallel = 2,
                                  .n_vocab = vocab_size(w->vocab),
                                  .n_ctx_train = 4096};
    if (ready)
        server_ready(w->server, &served);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", server_port(w->server));
    assert_int_equal(client_new(url, &co, &w->client, NULL), RC_OK);
}

static inline void stop(struct world *w)
{
    client_free(w->client);
    server_stop(w->server, 0);
    w->client = NULL;
    w->server = NULL;
}

static inline void use_template(struct world *w, const char *name)
{
    char path[512], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/tests/templates/%s.jinja", HOUSE_SOURCE_DIR, name);
    assert_int_equal(file_read_all(path, MIB, &text, &n, NULL), RC_OK);
    chat_template_free(w->chat);
    assert_int_equal(chat_template_new((struct str){text, n}, w->vocab, &w->chat, NULL), RC_OK);
    mem_free(text);
}

/* By the binary: this room may not use the maker's. */
static inline enum rc make_model(const char *path, struct err *err)
{
    const char *bin = getenv("HOLDFAST_BIN");
    char cmd[512];
    snprintf(cmd, sizeof cmd,
             "'%s' make-model --preset tiny --type f16 --seed 3 --layers 4 -o '%s' 2>/dev/null",
             bin ? bin : HOUSE_BINARY_DIR "/holdfast", path);
    return system(cmd) ? err_set(err, RC_IO, "cannot run %s", cmd) : RC_OK;
}

static inline int group_set_up(void **state)
{
    struct world *w = mem_zalloc(sizeof *w);
    struct err err = {0};
    *state = w;
    snprintf(w->dir, sizeof w->dir, "/tmp/holdfast-server-XXXXXX");
    if (!mkdtemp(w->dir))
        return -1;
    snprintf(w->file, sizeof w->file, "%s/tiny.gguf", w->dir);
    if (make_model(w->file, &err) || gguf_open(w->file, &w->gguf, &err) ||
        vocab_open(w->gguf, &w->vocab, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    w->engine.vocab = w->vocab;
    use_template(w, "qwen35_xml");
    return 0;
}

static inline int group_tear_down(void **state)
{
    struct world *w = *state;
    chat_template_free(w->chat);
    vocab_close(w->vocab);
    gguf_close(w->gguf);
    unlink(w->file);
    rmdir(w->dir);
    mem_free(w);
    return 0;
}

static inline int set_up(void **state)
{
    const struct server_opts o = {0};
    start(*state, &o, true);
    return 0;
}

static inline int tear_down(void **state)
{
    struct world *w = *state;
    if (w->server)
        stop(w);
    json_decref(w->json);
    w->json = NULL;
    w->engine.script = NULL;
    buf_release(&w->reply);
    assert_int_equal(atomic_load(&w->engine.n_alive), 0); /* no job outlives its request */
    return 0;
}

/* ---- asking ---- */

static inline int ask(struct world *w, const char *method, const char *path, const char *body)
{
    struct err err = {0};
    const struct str b = body ? str_of(body) : (struct str){NULL, 0};
    if (client_call(w->client, method, path, b, &w->reply, &err))
        fail_msg("%s", err.msg);
    json_decref(w->json);
    w->json = NULL;
    const char *type = client_header(w->client, "content-type");
    if (type && !strncmp(type, "application/json", 16))
        assert_int_equal(jread_parse(w->reply.p, w->reply.n, &w->json, NULL), RC_OK);
    return client_status(w->client);
}

/* The value at "a.b.0.c" of the last reply. */
static inline json_t *at(const struct world *w, const char *path)
{
    char copy[128], *save = NULL;
    json_t *v = w->json;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *k = strtok_r(copy, ".", &save); k && v; k = strtok_r(NULL, ".", &save))
        v = json_is_array(v) ? json_array_get(v, (size_t)strtoul(k, NULL, 10))
                             : json_object_get(v, k);
    return v;
}

static inline const char *text_at(const struct world *w, const char *path)
{
    json_t *v = at(w, path);
    if (!json_is_string(v))
        fail_msg("%s is no string in %s", path, buf_str(&w->reply));
    return json_string_value(v);
}

static inline int64_t int_at(const struct world *w, const char *path)
{
    json_t *v = at(w, path);
    if (!json_is_integer(v))
        fail_msg("%s is no integer in %s", path, buf_str(&w->reply));
    return json_integer_value(v);
}

static inline void expect_error(struct world *w, const char *path, const char *body, int status,
                                const char *type, const char *param, const char *message)
{
    const int got = ask(w, "POST", path, body);
    if (got != status)
        fail_msg("%s: %d, not %d: %s", body, got, status, buf_str(&w->reply));
    assert_string_equal(text_at(w, "error.type"), type);
    assert_int_equal(int_at(w, "error.code"), status);
    if (param)
        assert_string_equal(text_at(w, "error.param"), param);
    else
        assert_true(json_is_null(at(w, "error.param")));
    if (!strstr(text_at(w, "error.message"), message))
        fail_msg("'%s' is not in: %s", message, text_at(w, "error.message"));
}

/* Opens a stream; its events come with next(). */
static inline void open_stream(struct world *w, const char *path, const char *body)
{
    struct err err = {0};
    if (client_begin(w->client, "POST", path, str_of(body), &err))
        fail_msg("%s", err.msg);
    assert_int_equal(client_status(w->client), 200);
    assert_string_equal(client_header(w->client, "content-type"), "text/event-stream");
}

/* False at the end; "[DONE]" leaves json NULL. */
static inline bool next(struct world *w)
{
    struct sse_event e;
    bool end;
    assert_int_equal(client_event(w->client, &e, &end, NULL), RC_OK);
    json_decref(w->json);
    w->json = NULL;
    if (end)
        return false;
    buf_clear(&w->reply);
    buf_add(&w->reply, e.data.p, e.data.n);
    if (!str_is(e.data, "[DONE]"))
        assert_int_equal(jread_parse(e.data.p, e.data.n, &w->json, NULL), RC_OK);
    return true;
}

#define EVENTUALLY(cond)                                                                           \
    do {                                                                                           \
        int left_ms = 20000;                                                                       \
        while (!(cond) && left_ms-- > 0)                                                           \
            poll(NULL, 0, 1);                                                                      \
        assert_true(cond);                                                                         \
    } while (0)

/* Sends a request on a connection of its own and does not wait. */
static inline int send_only(const struct world *w, const char *body)
{
    char request[512];
    int fd;
    const int n = snprintf(request, sizeof request,
                           "POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                           strlen(body), body);
    assert_int_equal(client_connect("127.0.0.1", server_port(w->server), 5000, &fd, NULL), RC_OK);
    assert_int_equal(write(fd, request, (size_t)n), n);
    return fd;
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

#endif
