/* program_int.h - the real binary under test: run it, start it as a server, talk to it, stop it.
 *
 * HOLDFAST_BIN names it (ctest sets it), else it is the build's.  Everything lives in a directory that scene_close removes.
 */
#ifndef HOLDFAST_TESTS_E2E_PROGRAM_INT_H
#define HOLDFAST_TESTS_E2E_PROGRAM_INT_H

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "net/client.h"

#include <cmocka.h>

/* Until the condition holds, at most half a minute: for what another process brings about. */
#define EVENTUALLY(cond)                                                                           \
    do {                                                                                           \
        int left_ms = 30000;                                                                       \
        while (!(cond) && left_ms-- > 0)                                                           \
            poll(NULL, 0, 1);                                                                      \
        assert_true(cond);                                                                         \
    } while (0)

struct scene {
    char dir[64];
    char model[96]; /* of random weights, once scene_make_model has run */
};

struct program {
    pid_t pid;     /* 0: not running */
    char out[128]; /* file with its standard output and error */
    char log[128]; /* file with its log, of a server */
    uint16_t port;
    struct client *client;
    struct buf reply;
    json_t *json; /* the last reply, parsed */
};

/* ---- processes ---- */

static inline char *whole_file(const char *path)
{
    char *text = NULL;
    size_t n;
    return file_read_all(path, 64 * MIB, &text, &n, NULL) ? mem_strdup("") : text;
}

static inline void program_spawn(struct program *p, const char *const *argv)
{
    const char *named = getenv("HOLDFAST_BIN");
    const char *bin = named ? named : HOUSE_BINARY_DIR "/holdfast";
    const char *args[64] = {bin};
    size_t n = 1;
    for (; *argv && n < COUNT_OF(args) - 1; argv++)
        args[n++] = *argv;
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid)
        return;
    const int fd = open(p->out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(bin, (char *const *)(uintptr_t)args);
    _exit(127);
}

/* The exit status; 128 + signal when one ended it. */
static inline int program_wait(struct program *p)
{
    int status;
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    p->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs a command to its end; *said (mem_free) is all it wrote, unless said is NULL. */
static inline int run(const struct scene *s, char **said, const char *const *argv)
{
    struct program p = {0};
    snprintf(p.out, sizeof p.out, "%s/out", s->dir);
    program_spawn(&p, argv);
    const int status = program_wait(&p);
    if (said)
        *said = whole_file(p.out);
    return status;
}

#define RUN(scene, said, ...) run((scene), (said), (const char *const[]){__VA_ARGS__, NULL})

/* ---- the scene ---- */

static inline void scene_open(struct scene *s)
{
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/holdfast-e2e-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
}

static inline void scene_make_model(struct scene *s, const char *preset, const char *type)
{
    char *said;
    snprintf(s->model, sizeof s->model, "%s/%s.gguf", s->dir, preset);
    if (RUN(s, &said, "make-model", "--preset", preset, "--type", type, "-o", s->model))
        fail_msg("make-model: %s", said);
    mem_free(said);
}

static inline void scene_close(struct scene *s)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    assert_int_equal(system(command), 0);
}

/* ---- a server ---- */

static inline struct client *program_client(const struct program *p)
{
    char url[64];
    struct client *c;
    snprintf(url, sizeof url, "http://127.0.0.1:%u", p->port);
    assert_int_equal(client_new(url, NULL, &c, NULL), RC_OK);
    return c;
}

/* Starts `serve` (without a model of the scene's, the one in the box) on a free port with more options (NULL-terminated), waits until it listens. */
static inline void program_serve(struct program *p, const struct scene *s, const char *name,
                                 const char *const *more)
{
    memset(p, 0, sizeof *p);
    snprintf(p->out, sizeof p->out, "%s/%s.out", s->dir, name);
    snprintf(p->log, sizeof p->log, "%s/%s.log", s->dir, name);
    (void)unlink(p->log);
    const char *argv[48] = {"serve",      "--port", "0",           "-t", "2",
                            "--log-file", p->log,   "--cache-ram", "256"};
    size_t n = 9;
    if (s->model[0]) {
        argv[n++] = "-m";
        argv[n++] = s->model;
    }
    while (*more && n < COUNT_OF(argv) - 1)
        argv[n++] = *more++;
    program_spawn(p, argv);
    static const char mark[] = "listening on http://127.0.0.1:";
    const uint64_t until = clock_mono_ns() + UINT64_C(120000000000);
    while (!p->port && clock_mono_ns() < until && waitpid(p->pid, NULL, WNOHANG) == 0) {
        char *text = whole_file(p->log);
        const char *at = strstr(text, mark);
        if (at && strchr(at, '\n'))
            p->port = (uint16_t)strtoul(at + sizeof mark - 1, NULL, 10);
        mem_free(text);
        poll(NULL, 0, 2);
    }
    if (!p->port) {
        char *said = whole_file(p->out);
        fail_msg("the server does not start: %s", said);
    }
    p->client = program_client(p);
}

static inline void program_release(struct program *p)
{
    client_free(p->client);
    json_decref(p->json);
    buf_release(&p->reply);
    p->client = NULL;
    p->json = NULL;
}

/* Ends it as Ctrl-C does; the exit status. */
static inline int program_stop(struct program *p)
{
    program_release(p);
    assert_int_equal(kill(p->pid, SIGINT), 0);
    return program_wait(p);
}

/* ---- asking it ---- */

/* A model of random weights says anything, also U+0000. */
static inline json_t *parse(struct str s)
{
    json_error_t e;
    json_t *v = json_loadb(s.p, s.n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
    if (!v)
        fail_msg("%s at %d: %.*s", e.text, e.position, (int)s.n, s.p);
    return v;
}

/* The status; the reply is in p->reply and, when it is JSON, in p->json. */
static inline int ask(struct program *p, const char *method, const char *path, const char *body)
{
    struct err err = {0};
    const struct str b = body ? str_of(body) : (struct str){NULL, 0};
    if (client_call(p->client, method, path, b, &p->reply, &err))
        fail_msg("%s", err.msg);
    json_decref(p->json);
    p->json = NULL;
    const char *type = client_header(p->client, "content-type");
    if (type && !strncmp(type, "application/json", 16))
        p->json = parse((struct str){p->reply.p, p->reply.n});
    return client_status(p->client);
}

/* The value at "a.b.0.c". */
static inline json_t *at(json_t *v, const char *path)
{
    char copy[128], *save = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *k = strtok_r(copy, ".", &save); k && v; k = strtok_r(NULL, ".", &save))
        v = json_is_array(v) ? json_array_get(v, (size_t)strtoul(k, NULL, 10))
                             : json_object_get(v, k);
    return v;
}

static inline const char *text_at(json_t *v, const char *path)
{
    const char *s = json_string_value(at(v, path));
    if (!s)
        fail_msg("there is no text at %s", path);
    return s;
}

/* A text to compare with, owned (json_decref). */
static inline json_t *keep_text(json_t *v, const char *path)
{
    text_at(v, path);
    return json_incref(at(v, path));
}

static inline void assert_text(json_t *v, const char *path, const json_t *want)
{
    if (!json_equal(at(v, path), want))
        fail_msg("not the same text: %s, but before %s", text_at(v, path), json_string_value(want));
}

static inline int64_t int_at(json_t *v, const char *path)
{
    if (!json_is_integer(at(v, path)))
        fail_msg("there is no integer at %s", path);
    return json_integer_value(at(v, path));
}

#endif
