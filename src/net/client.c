#include "net/client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "net/response.h"
#include "net/host.h"
#include "net/url.h"

enum { MAX_HEADERS = 8 };

struct client {
    struct url url;
    struct client_opts o;
    char *names[MAX_HEADERS], *values[MAX_HEADERS];
    size_t n_headers;
    int fd; /* -1: not connected */
    struct response resp;
    struct buf body; /* decoded, not yet read */
    struct sse sse;
};

/* ---- sockets ---- */

/* Waits for events on fd; RC_IO with ETIMEDOUT when nothing happens for ms. */
static enum rc await(int fd, short events, uint32_t ms, const char *what, struct err *err)
{
    const uint64_t until = clock_mono_ns() + (uint64_t)ms * 1000000;
    for (;;) {
        const uint64_t now = clock_mono_ns();
        const int left = now >= until ? 0 : (int)MIN((until - now) / 1000000 + 1, (uint64_t)60000);
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, left);
        if (n > 0)
            return RC_OK;
        if (n < 0 && errno != EINTR)
            return err_sys(err, "%s: poll", what);
        if (!n && clock_mono_ns() >= until) {
            errno = ETIMEDOUT;
            return err_sys(err, "%s: nothing for %u ms", what, ms);
        }
    }
}

static enum rc connect_one(const struct addrinfo *a, uint32_t ms, int *out, struct err *err)
{
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, "socket");
    enum rc rc = RC_OK;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        if (errno == EINPROGRESS) {
            int e = 0;
            socklen_t n = sizeof e;
            rc = await(fd, POLLOUT, ms, "connect", err);
            if (!rc && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n) && e) {
                errno = e;
                rc = err_sys(err, "connect");
            }
        } else {
            rc = err_sys(err, "connect");
        }
    }
    if (rc) {
        close(fd);
        return rc;
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *out = fd;
    return RC_OK;
}

enum rc client_connect(const char *host, uint16_t port, uint32_t timeout_ms, int *fd,
                       struct err *err)
{
    struct addrinfo *list;
    enum rc rc = host_resolve(host, port, 0, &list, err);
    if (rc)
        return rc;
    rc = err_set(err, RC_ARG, "host %s has no address", host);
    for (const struct addrinfo *a = list; a && rc; a = a->ai_next)
        rc = connect_one(a, timeout_ms, fd, err);
    freeaddrinfo(list);
    return err_wrap(err, rc, "%s port %u", host, port);
}

static enum rc send_all(struct client *c, const char *p, size_t n, struct err *err)
{
    while (n) {
        const ssize_t m = send(c->fd, p, n, MSG_NOSIGNAL);
        if (m > 0) {
            p += m;
            n -= (size_t)m;
        } else if (m < 0 && errno == EAGAIN) {
            const enum rc rc = await(c->fd, POLLOUT, c->o.idle_ms, "send", err);
            if (rc)
                return rc;
        } else if (m < 0 && errno != EINTR) {
            return err_sys(err, "send");
        }
    }
    return RC_OK;
}

/* Reads once and feeds the parser. */
static enum rc receive(struct client *c, struct err *err)
{
    char p[1 << 16];
    for (;;) {
        const ssize_t m = recv(c->fd, p, sizeof p, 0);
        if (m > 0) {
            size_t used;
            const enum rc rc = response_feed(&c->resp, p, (size_t)m, &used, &c->body, err);
            if (used < (size_t)m)
                c->resp.keep = false; /* more than was asked for */
            return rc;
        }
        if (m == 0) {
            const enum rc rc = response_eof(&c->resp, err);
            client_hang_up(c);
            return rc;
        }
        if (errno == EAGAIN) {
            const enum rc rc = await(c->fd, POLLIN, c->o.idle_ms, "reply", err);
            if (rc)
                return rc;
        } else if (errno != EINTR) {
            return err_sys(err, "receive");
        }
    }
}

void client_hang_up(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* ---- requests ---- */

enum rc client_new(const char *url, const struct client_opts *o, struct client **out,
                   struct err *err)
{
    struct client *c = mem_zalloc(sizeof *c);
    const enum rc rc = url_parse(url, &c->url, err);
    if (rc) {
        mem_free(c);
        return rc;
    }
    if (o)
        c->o = *o;
    c->o.connect_ms = c->o.connect_ms ? c->o.connect_ms : 10000;
    c->o.idle_ms = c->o.idle_ms ? c->o.idle_ms : 600000;
    c->o.max_body = c->o.max_body ? c->o.max_body : 256 * MIB;
    const size_t n = strlen(c->url.path);
    if (c->url.path[n - 1] == '/')
        c->url.path[n - 1] = 0; /* the paths asked for begin with one */
    c->fd = -1;
    c->body.limit = c->o.max_body;
    response_init(&c->resp, false);
    sse_init(&c->sse, 0);
    if (c->o.api_key) {
        struct buf b = BUF_INIT;
        buf_addf(&b, "Bearer %s", c->o.api_key);
        client_set_header(c, "Authorization", buf_str(&b));
        buf_release(&b);
    }
    *out = c;
    return RC_OK;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    client_hang_up(c);
    for (size_t i = 0; i < c->n_headers; i++) {
        mem_free(c->names[i]);
        mem_free(c->values[i]);
    }
    response_release(&c->resp);
    sse_release(&c->sse);
    buf_release(&c->body);
    mem_free(c);
}

void client_set_header(struct client *c, const char *name, const char *value)
{
    size_t i = 0;
    while (i < c->n_headers && strcasecmp(c->names[i], name) != 0)
        i++;
    if (i < c->n_headers) {
        mem_free(c->names[i]);
        mem_free(c->values[i]);
        c->n_headers--;
        c->names[i] = c->names[c->n_headers];
        c->values[i] = c->values[c->n_headers];
    }
    if (!value)
        return;
    CHECK(c->n_headers < MAX_HEADERS);
    c->names[c->n_headers] = mem_strdup(name);
    c->values[c->n_headers++] = mem_strdup(value);
}

static enum rc attempt(struct client *c, struct str head, struct str body, bool to_head,
                       struct err *err)
{
    enum rc rc = RC_OK;
    if (c->fd < 0)
        rc = client_connect(c->url.host, c->url.port, c->o.connect_ms, &c->fd, err);
    response_release(&c->resp);
    response_init(&c->resp, to_head);
    buf_clear(&c->body);
    sse_release(&c->sse);
    sse_init(&c->sse, 0);
    if (!rc)
        rc = send_all(c, head.p, head.n, err);
    if (!rc && body.n)
        rc = send_all(c, body.p, body.n, err);
    while (!rc && !response_has_head(&c->resp))
        rc = receive(c, err);
    if (rc)
        client_hang_up(c);
    return rc;
}

enum rc client_begin(struct client *c, const char *method, const char *path, struct str body,
                     struct err *err)
{
    if (c->fd >= 0 && (c->resp.state != RESP_DONE || !c->resp.keep))
        client_hang_up(c);
    struct buf head = BUF_INIT;
    const bool v6 = strchr(c->url.host, ':') != NULL;
    buf_addf(&head, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%u\r\nUser-Agent: holdfast/%s\r\n", method,
             c->url.path, path, v6 ? "[" : "", c->url.host, v6 ? "]" : "", c->url.port,
             HOLDFAST_VERSION);
    for (size_t i = 0; i < c->n_headers; i++)
        buf_addf(&head, "%s: %s\r\n", c->names[i], c->values[i]);
    if (body.p)
        buf_addf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.n);
    buf_adds(&head, "\r\n");
    enum rc rc = RC_OK;
    if (head.failed) {
        rc = err_set(err, RC_NOMEM, "HTTP request: out of memory");
    } else {
        const bool reused = c->fd >= 0;
        const bool to_head = !strcmp(method, "HEAD");
        const struct str h = {head.p, head.n};
        rc = attempt(c, h, body, to_head, err);
        /* the server may have closed the idle connection just when we took it up */
        if (rc && reused && !c->resp.status)
            rc = attempt(c, h, body, to_head, err);
    }
    buf_release(&head);
    return err_wrap(err, rc, "%s %s", method, path);
}

int client_status(const struct client *c)
{
    return c->resp.status;
}

const char *client_header(const struct client *c, const char *name)
{
    return response_header(&c->resp, name);
}

enum rc client_read(struct client *c, struct buf *out, bool *end, struct err *err)
{
    enum rc rc = RC_OK;
    *end = false;
    while (!rc && !c->body.n && c->resp.state != RESP_DONE)
        rc = c->fd < 0 ? err_set(err, RC_CANCELLED, "hung up") : receive(c, err);
    if (rc) {
        client_hang_up(c);
        return rc;
    }
    *end = !c->body.n;
    buf_add(out, c->body.p, c->body.n);
    buf_clear(&c->body);
    return out->failed ? err_set(err, RC_LIMIT, "reply larger than allowed") : RC_OK;
}

enum rc client_event(struct client *c, struct sse_event *out, bool *end, struct err *err)
{
    *end = false;
    while (!sse_next(&c->sse, out)) {
        struct buf more = BUF_INIT;
        enum rc rc = client_read(c, &more, end, err);
        if (!rc && !*end && !sse_feed(&c->sse, more.p, more.n))
            rc = err_set(err, RC_LIMIT, "event larger than allowed");
        buf_release(&more);
        if (rc || *end)
            return rc;
    }
    return RC_OK;
}

enum rc client_call(struct client *c, const char *method, const char *path, struct str body,
                    struct buf *out, struct err *err)
{
    enum rc rc = client_begin(c, method, path, body, err);
    buf_clear(out);
    for (bool end = false; !rc && !end;) {
        rc = client_read(c, out, &end, err);
        if (!rc && out->n > c->o.max_body)
            rc =
                err_set(err, RC_LIMIT, "%s %s: reply above %zu bytes", method, path, c->o.max_body);
    }
    return rc;
}
