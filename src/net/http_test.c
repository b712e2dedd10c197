/* The server and the client against one another, and the server against raw bytes. */
#include "net/http.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/client.h"

#include <cmocka.h>

/* What the test handler saw, and the gate it waits at. */
struct world {
    struct http_server *server;
    struct client *client;
    atomic_int n_gone, n_running;
    atomic_bool open; /* lets handlers at /wait and /endless go on */
};

static void handler(void *ctx, struct http_req *r)
{
    struct world *w = ctx;
    const char *path = http_path(r);
    atomic_fetch_add(&w->n_running, 1);
    if (http_too_large(r)) {
        http_reply(r, 413, "text/plain", "too large", 9);
    } else if (!strcmp(path, "/echo")) {
        const struct str body = http_body(r);
        http_set_header(r, "X-Method", http_method(r));
        http_set_header(r, "X-Query", http_query(r, "q") ? http_query(r, "q") : "none");
        http_set_header(r, "X-Agent", http_header(r, "user-AGENT"));
        http_reply(r, 200, "text/plain", body.p, body.n);
    } else if (!strcmp(path, "/a b")) {
        http_reply(r, 200, "text/plain", "decoded", 7);
    } else if (!strcmp(path, "/silent")) {
        /* answers nothing */
    } else if (!strcmp(path, "/count")) {
        http_stream_begin(r, 200, "text/event-stream");
        for (int i = 0; i < 1000; i++) {
            char s[32];
            const int n = snprintf(s, sizeof s, "data: %d\n\n", i);
            if (!http_write(r, s, (size_t)n))
                break;
        }
    } else if (!strcmp(path, "/endless")) {
        static const char block[1 << 16];
        http_stream_begin(r, 200, "application/octet-stream");
        while (http_write(r, block, sizeof block))
            continue;
        atomic_fetch_add(&w->n_gone, 1);
    } else if (!strcmp(path, "/leave") || !strcmp(path, "/leave-stream")) {
        if (path[6]) {
            http_stream_begin(r, 200, "text/event-stream");
            if (!http_write(r, "data: 1\n\n", 9))
                atomic_fetch_add(&w->n_gone, 1);
        }
        while (!http_gone(r))
            poll(NULL, 0, 1);
    } else if (!strcmp(path, "/wait")) {
        while (!http_gone(r) && !atomic_load(&w->open))
            poll(NULL, 0, 1);
        atomic_fetch_add(&w->n_gone, http_gone(r));
        http_reply(r, 200, "text/plain", "late", 4);
    } else {
        http_reply(r, 404, "text/plain", "no", 2);
    }
    atomic_fetch_sub(&w->n_running, 1);
}

static void base_url(const struct world *w, char out[64])
{
    snprintf(out, 64, "http://127.0.0.1:%u", http_port(w->server));
}

static struct client *another_client(const struct world *w)
{
    char url[64];
    struct client *c;
    const struct client_opts o = {.idle_ms = 20000};
    base_url(w, url);
    assert_int_equal(client_new(url, &o, &c, NULL), RC_OK);
    return c;
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    const struct http_opts o = {.max_body = 1000000};
    if (!w || http_start(&o, handler, w, &w->server, NULL))
        return -1;
    w->client = another_client(w);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    atomic_store(&w->open, true);
    client_free(w->client);
    http_stop(w->server);
    free(w);
    return 0;
}

/* Until the condition holds, at most some seconds: for what another thread brings about. */
#define EVENTUALLY(cond)                                                                           \
    do {                                                                                           \
        int left_ms = 20000;                                                                       \
        while (!(cond) && left_ms-- > 0)                                                           \
            poll(NULL, 0, 1);                                                                      \
        assert_true(cond);                                                                         \
    } while (0)

static const struct str no_body = {NULL, 0};

static void a_request_arrives_whole(void **state)
{
    struct world *w = *state;
    struct buf b = BUF_INIT;
    assert_int_equal(client_call(w->client, "POST", "/echo?q=a%20b", str_of("hello"), &b, NULL),
                     RC_OK);
    assert_int_equal(client_status(w->client), 200);
    assert_string_equal(buf_str(&b), "hello");
    assert_string_equal(client_header(w->client, "x-method"), "POST");
    assert_string_equal(client_header(w->client, "x-query"), "a b");
    assert_string_equal(client_header(w->client, "content-type"), "text/plain");
    assert_non_null(strstr(client_header(w->client, "x-agent"), "holdfast/"));
    assert_int_equal(client_call(w->client, "GET", "/a%20b", no_body, &b, NULL), RC_OK);
    assert_string_equal(buf_str(&b), "decoded");
    assert_int_equal(client_call(w->client, "GET", "/nowhere", no_body, &b, NULL), RC_OK);
    assert_int_equal(client_status(w->client), 404);
    buf_release(&b);
}

static void a_large_body_passes_and_a_larger_one_is_413(void **state)
{
    struct world *w = *state;
    struct buf b = BUF_INIT;
    char *big = malloc(3000000);
    assert_non_null(big);
    memset(big, 'x', 3000000);
    assert_int_equal(client_call(w->client, "POST", "/echo", (struct str){big, 1000000}, &b, NULL),
                     RC_OK);
    assert_int_equal(b.n, 1000000);
    assert_int_equal(client_call(w->client, "POST", "/echo", (struct str){big, 1000001}, &b, NULL),
                     RC_OK);
    assert_int_equal(client_status(w->client), 413);
    assert_int_equal(client_call(w->client, "POST", "/echo", (struct str){big, 3000000}, &b, NULL),
                     RC_OK);
    assert_int_equal(client_status(w->client), 413);
    assert_int_equal(client_call(w->client, "POST", "/echo", str_of("x"), &b, NULL), RC_OK);
    assert_int_equal(client_status(w->client), 200); /* over a new connection */
    free(big);
    buf_release(&b);
}

static void a_stream_arrives_in_order(void **state)
{
    struct world *w = *state;
    for (int round = 0; round < 2; round++) { /* the second on the same connection */
        int n = 0;
        bool end = false;
        struct sse_event e;
        assert_int_equal(client_begin(w->client, "GET", "/count", no_body, NULL), RC_OK);
        while (!client_event(w->client, &e, &end, NULL) && !end)
            assert_int_equal(strtol(e.data.p, NULL, 10), n++);
        assert_true(end);
        assert_int_equal(n, 1000);
    }
}

static void a_handler_that_says_nothing_is_500(void **state)
{
    struct world *w = *state;
    struct buf b = BUF_INIT;
    assert_int_equal(client_call(w->client, "GET", "/silent", no_body, &b, NULL), RC_OK);
    assert_int_equal(client_status(w->client), 500);
    buf_release(&b);
}

static void a_waiting_handler_learns_that_the_client_has_gone(void **state)
{
    struct world *w = *state;
    int fd;
    static const char req[] = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_int_equal(client_connect("127.0.0.1", http_port(w->server), 5000, &fd, NULL), RC_OK);
    assert_int_equal(send(fd, req, sizeof req - 1, 0), sizeof req - 1);
    EVENTUALLY(atomic_load(&w->n_running) == 1);
    close(fd);
    EVENTUALLY(atomic_load(&w->n_gone) == 1);
    EVENTUALLY(atomic_load(&w->n_running) == 0);
}

static void a_streaming_handler_learns_that_the_client_has_gone(void **state)
{
    struct world *w = *state;
    struct buf b = BUF_INIT;
    bool end;
    assert_int_equal(client_begin(w->client, "GET", "/endless", no_body, NULL), RC_OK);
    assert_int_equal(client_read(w->client, &b, &end, NULL), RC_OK);
    assert_false(end);
    client_hang_up(w->client);
    EVENTUALLY(atomic_load(&w->n_gone) == 1);
    buf_release(&b);
}

/* All that comes until the end. */
static void read_all(int fd, struct buf *b)
{
    char s[512];
    ssize_t n;
    do {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        n = recv(fd, s, sizeof s, 0);
        buf_add(b, s, n > 0 ? (size_t)n : 0);
    } while (n > 0);
}

static void a_client_that_closes_its_sending_side_is_told_so(void **state)
{
    struct world *w = *state;
    static const char *const paths[] = {"/leave", "/leave-stream"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        int fd;
        char req[64];
        struct buf b = BUF_INIT;
        const int n = snprintf(req, sizeof req, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", paths[i]);
        assert_int_equal(client_connect("127.0.0.1", http_port(w->server), 5000, &fd, NULL), RC_OK);
        assert_int_equal(send(fd, req, (size_t)n, 0), n);
        EVENTUALLY(atomic_load(&w->n_running) == 1);
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        read_all(fd, &b);
        if (i) { /* a stream that is cut has no last chunk */
            assert_null(strstr(buf_str(&b), "\r\n0\r\n"));
        } else {
            assert_memory_equal(buf_str(&b), "HTTP/1.1 499", 12);
            assert_non_null(strstr(buf_str(&b), "closed its sending side"));
        }
        buf_release(&b);
        close(fd);
        EVENTUALLY(atomic_load(&w->n_running) == 0);
    }
}

static void idle_connections_make_room_for_newcomers(void **state)
{
    struct world *w = *state;
    enum { LIMIT = 4, MORE = 40 };
    struct http_server *s;
    const struct http_opts o = {.max_connections = LIMIT};
    static const char busy[] = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
    static const char quick[] = "GET /a%20b HTTP/1.1\r\nHost: x\r\n\r\n";
    int working, fd[MORE];
    char text[512] = "";
    assert_int_equal(http_start(&o, handler, w, &s, NULL), RC_OK);
    assert_int_equal(client_connect("127.0.0.1", http_port(s), 5000, &working, NULL), RC_OK);
    assert_int_equal(send(working, busy, sizeof busy - 1, 0), sizeof busy - 1);
    EVENTUALLY(atomic_load(&w->n_running) == 1);
    for (int i = 0; i < MORE; i++) { /* half of them never ask, half stay after their answer */
        struct pollfd p = {.events = POLLIN};
        assert_int_equal(client_connect("127.0.0.1", http_port(s), 5000, &fd[i], NULL), RC_OK);
        if (i % 2)
            continue;
        p.fd = fd[i];
        assert_int_equal(send(fd[i], quick, sizeof quick - 1, MSG_NOSIGNAL), sizeof quick - 1);
        assert_int_equal(poll(&p, 1, 20000), 1);
        assert_true(recv(fd[i], text, sizeof text - 1, 0) > 0);
        assert_memory_equal(text, "HTTP/1.1 200", 12);
    }
    atomic_store(&w->open, true); /* who is at work is not closed */
    struct pollfd p = {.fd = working, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_true(recv(working, text, sizeof text - 1, 0) > 0);
    assert_memory_equal(text, "HTTP/1.1 200", 12);
    close(working);
    for (int i = 0; i < MORE; i++)
        close(fd[i]);
    http_stop(s);
}

static void requests_run_side_by_side(void **state)
{
    struct world *w = *state;
    enum { N = 20 };
    int fd[N];
    static const char req[] = "GET /wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for (int i = 0; i < N; i++) {
        assert_int_equal(client_connect("127.0.0.1", http_port(w->server), 5000, &fd[i], NULL),
                         RC_OK);
        assert_int_equal(send(fd[i], req, sizeof req - 1, 0), sizeof req - 1);
    }
    EVENTUALLY(atomic_load(&w->n_running) == N);
    atomic_store(&w->open, true);
    for (int i = 0; i < N; i++) {
        char s[512];
        struct pollfd p = {.fd = fd[i], .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        assert_true(recv(fd[i], s, sizeof s, 0) > 12);
        assert_memory_equal(s, "HTTP/1.1 200", 12);
        close(fd[i]);
    }
}

static void nonsense_is_refused_and_the_server_lives(void **state)
{
    struct world *w = *state;
    static const char *const bad[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        int fd;
        assert_int_equal(client_connect("127.0.0.1", http_port(w->server), 5000, &fd, NULL), RC_OK);
        assert_true(send(fd, bad[i], strlen(bad[i]), MSG_NOSIGNAL) > 0);
        shutdown(fd, SHUT_WR);
        char s[512];
        ssize_t n;
        do {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            assert_int_equal(poll(&p, 1, 20000), 1);
            n = recv(fd, s, sizeof s, 0);
            if (n > 12)
                assert_memory_not_equal(s, "HTTP/1.1 200", 12);
        } while (n > 0);
        close(fd);
    }
    struct buf b = BUF_INIT;
    assert_int_equal(client_call(w->client, "POST", "/echo", str_of("alive"), &b, NULL), RC_OK);
    assert_string_equal(buf_str(&b), "alive");
    buf_release(&b);
}

/* Sends a request that is to be refused, with a second one behind it. */
static void refused(const struct world *w, const char *head, const char *status)
{
    struct buf b = BUF_INIT;
    char all[1024];
    int fd;
    const int n = snprintf(all, sizeof all,
                           "%s\r\n\r\nhello0\r\n\r\n"
                           "GET /a%%20b HTTP/1.1\r\nHost: x\r\n\r\n",
                           head);
    assert_int_equal(client_connect("127.0.0.1", http_port(w->server), 5000, &fd, NULL), RC_OK);
    assert_int_equal(send(fd, all, (size_t)n, MSG_NOSIGNAL), n);
    read_all(fd, &b); /* ends: the server closes, though this side has not */
    assert_memory_equal(buf_str(&b), status, strlen(status));
    assert_non_null(strstr(buf_str(&b), "Connection: close"));
    assert_null(strstr(buf_str(&b), "decoded"));
    assert_null(strstr(buf_str(&b) + 1, "HTTP/1.1"));
    buf_release(&b);
    close(fd);
}

#define METHODS "POST", "PUT", "GET", "DELETE"

static void a_body_of_two_lengths_is_400_and_hides_no_request(void **state)
{
    struct world *w = *state;
    static const char *const methods[] = {METHODS};
    static const char *const lengths[] = {
        "Content-Length: 5\r\nContent-Length: 6",
        "content-length: 0\r\nContent-Length: 5",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
    };
    for (size_t i = 0; i < COUNT_OF(lengths) * COUNT_OF(methods); i++) {
        char head[256];
        snprintf(head, sizeof head, "%s /echo HTTP/1.1\r\nHost: x\r\n%s",
                 methods[i % COUNT_OF(methods)], lengths[i / COUNT_OF(methods)]);
        refused(w, head, "HTTP/1.1 400");
    }
}

static void a_length_said_twice_alike_is_one(void **state)
{
    struct world *w = *state;
    struct buf b = BUF_INIT;
    static const char req[] =
        "POST /echo HTTP/1.1\r\nHost: x\r\nUser-Agent: t\r\nConnection: close\r\n"
        "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello";
    int fd;
    assert_int_equal(client_connect("127.0.0.1", http_port(w->server), 5000, &fd, NULL), RC_OK);
    assert_int_equal(send(fd, req, sizeof req - 1, 0), sizeof req - 1);
    read_all(fd, &b);
    assert_memory_equal(buf_str(&b), "HTTP/1.1 200", 12);
    assert_non_null(strstr(buf_str(&b), "\r\n\r\nhello"));
    buf_release(&b);
    close(fd);
}

static void a_length_beyond_the_limit_is_413_before_the_body_comes(void **state)
{
    struct world *w = *state;
    static const char *const methods[] = {METHODS};
    for (size_t i = 0; i < COUNT_OF(methods); i++) {
        char head[256];
        snprintf(head, sizeof head, "%s /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001",
                 methods[i]);
        refused(w, head, "HTTP/1.1 413");
    }
}

static void a_port_in_use_is_named(void **state)
{
    struct world *w = *state;
    struct http_server *second;
    struct err err;
    char want[64];
    const struct http_opts o = {.port = http_port(w->server)};
    assert_int_equal(http_start(&o, handler, w, &second, &err), RC_IO);
    snprintf(want, sizeof want, "port %u on 127.0.0.1 is in use", http_port(w->server));
    assert_string_equal(err.msg, want);
    assert_int_equal(err.sys, EADDRINUSE);
}

static void hosts_are_names_or_addresses_of_either_kind(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *listen, *ask;
    } cases[] = {
        {"localhost", "127.0.0.1"}, {"0.0.0.0", "127.0.0.1"}, {"::1", "::1"}, {"::", "::1"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct http_server *s;
        struct err err;
        const struct http_opts o = {.host = cases[i].listen};
        if (http_start(&o, handler, w, &s, &err)) {
            /* a machine without IPv6 */
            assert_int_equal(strchr(cases[i].listen, ':') != NULL, 1);
            continue;
        }
        char url[64];
        struct client *c;
        struct buf b = BUF_INIT;
        const bool v6 = strchr(cases[i].ask, ':') != NULL;
        snprintf(url, sizeof url, "http://%s%s%s:%u/", v6 ? "[" : "", cases[i].ask, v6 ? "]" : "",
                 http_port(s));
        assert_int_equal(client_new(url, NULL, &c, NULL), RC_OK);
        assert_int_equal(client_call(c, "POST", "/echo", str_of("x"), &b, NULL), RC_OK);
        assert_string_equal(buf_str(&b), "x");
        buf_release(&b);
        client_free(c);
        http_stop(s);
    }
    struct http_server *s;
    struct err err;
    const struct http_opts o = {.host = "no.such.host.invalid"};
    assert_int_equal(http_start(&o, handler, w, &s, &err), RC_ARG);
    assert_non_null(strstr(err.msg, "no.such.host.invalid"));
}

static void *stop_main(void *arg)
{
    http_stop(arg);
    return NULL;
}

static void stopping_lets_running_handlers_finish(void **state)
{
    struct world *w = *state;
    struct http_server *s;
    const struct http_opts o = {0};
    assert_int_equal(http_start(&o, handler, w, &s, NULL), RC_OK);
    const uint16_t port = http_port(s);
    int fd, other;
    static const char req[] = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_int_equal(client_connect("127.0.0.1", port, 5000, &fd, NULL), RC_OK);
    assert_int_equal(send(fd, req, sizeof req - 1, 0), sizeof req - 1);
    EVENTUALLY(atomic_load(&w->n_running) == 1);
    pthread_t stopper;
    assert_int_equal(pthread_create(&stopper, NULL, stop_main, s), 0);
    /* soon nobody new is let in */
    bool refused = false;
    for (int i = 0; i < 2000 && !refused; i++) {
        refused = client_connect("127.0.0.1", port, 1000, &other, NULL) != RC_OK;
        if (!refused) {
            close(other);
            poll(NULL, 0, 1);
        }
    }
    assert_true(refused);
    atomic_store(&w->open, true);
    char text[512] = "";
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_true(recv(fd, text, sizeof text - 1, 0) > 0);
    assert_non_null(strstr(text, "late"));
    close(fd);
    pthread_join(stopper, NULL);
}

static void a_server_that_is_not_there_is_an_error(void **state)
{
    struct world *w = *state;
    struct http_server *s;
    struct client *c;
    struct err err;
    char url[64];
    const struct http_opts o = {0};
    assert_int_equal(http_start(&o, handler, w, &s, NULL), RC_OK);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", http_port(s));
    http_stop(s);
    assert_int_equal(client_new(url, NULL, &c, NULL), RC_OK);
    assert_int_equal(client_begin(c, "GET", "/", no_body, &err), RC_IO);
    assert_int_equal(err.sys, ECONNREFUSED);
    client_free(c);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(a_request_arrives_whole),
        T(a_large_body_passes_and_a_larger_one_is_413),
        T(a_stream_arrives_in_order),
        T(a_handler_that_says_nothing_is_500),
        T(a_waiting_handler_learns_that_the_client_has_gone),
        T(a_streaming_handler_learns_that_the_client_has_gone),
        T(requests_run_side_by_side),
        T(nonsense_is_refused_and_the_server_lives),
        T(a_body_of_two_lengths_is_400_and_hides_no_request),
        T(a_length_said_twice_alike_is_one),
        T(a_length_beyond_the_limit_is_413_before_the_body_comes),
        T(a_port_in_use_is_named),
        T(hosts_are_names_or_addresses_of_either_kind),
        T(a_client_that_closes_its_sending_side_is_told_so),
        T(idle_connections_make_room_for_newcomers),
        T(stopping_lets_running_handlers_finish),
        T(a_server_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
