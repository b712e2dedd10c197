/* http_mhd.c - http.h over libmicrohttpd.
 *
 * libmicrohttpd gives each connection a thread and pulls reply bytes from callbacks; our handlers
 * push.  So each request gets a second thread, the handler's, and the two meet in struct http_req:
 *
 *     connection thread (libmicrohttpd)            handler thread
 *     access_cb: body complete, start handler -->  fn(ctx, r)
 *     wait for phase != HANDLING            <--    http_reply / http_stream_begin
 *     read_cb: wait for bytes or the end    <--    http_write, return
 *     completed_cb: gone = true, join       -->    http_write false, http_gone true
 *
 * The connection thread does not look at its socket while it waits, so http_gone polls it.  The
 * socket outlives the handler because completed_cb joins it before libmicrohttpd closes.
 *
 * A client that only closes its sending side looks like one that has gone, until something is sent to it.
 * Long handlers must end for the latter at once, so both count as gone; what such a client can still read
 * is no empty reply and no stream that seems whole.
 *
 * Connections kept alive must not keep newcomers out: when there are too many, the one that has been idle
 * longest is closed (struct conn).
 */
#include "net/http.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/host.h"

enum {
    MAX_HEADERS = 16, /* set by a handler */
    MAX_CONNECTIONS = 256,
    NEWCOMERS = 32, /* accepted beyond the limit, while an idle connection is closed for each */
    STREAM_AHEAD = 1 << 18, /* bytes a handler may be ahead of its client */
    CHUNK = 1 << 15,
    FLUSH_MS = 5000, /* that http_stop leaves finished replies to reach their clients */
    LINGER_MS = 2000 /* that a client which is still sending has to read its refusal */
};

/* A connection.  Owner: the server's list, under its lock. */
struct conn {
    struct conn *next;
    int fd;
    bool busy, closing; /* a request is under way; told to close */
    uint64_t idle_ns;   /* since when it is not busy */
};

struct http_server {
    struct MHD_Daemon *daemon;
    http_handler *fn;
    void *ctx;
    const struct logger *lg;
    uint64_t max_body;
    uint32_t timeout_s;
    int listen_fd;
    uint16_t port;
    uint32_t max_connections;
    pthread_mutex_t lock; /* guards what follows; a leaf */
    struct conn *conns;
    uint32_t n_conns; /* without those told to close */
    pthread_cond_t changed;
    uint32_t n_handlers, n_replies; /* running; not yet sent or given up */
};

enum phase { HANDLING, WHOLE, STREAM };

struct http_req {
    struct http_server *s;
    struct MHD_Connection *conn;
    const char *method, *path;
    int fd;
    struct buf body;
    bool too_large;
    bool close; /* answered before its body was read: nothing behind it is a request */
    pthread_t thread;
    bool started;
    atomic_bool gone;

    char *names[MAX_HEADERS], *values[MAX_HEADERS]; /* the handler's until phase changes */
    size_t n_headers;
    char type[96];
    int status;

    pthread_mutex_t lock; /* guards what follows; a leaf */
    pthread_cond_t changed;
    enum phase phase;
    bool done;      /* the handler has returned */
    struct buf out; /* the whole reply, or stream bytes on their way */
};

/* ---- the handler's side ---- */

const char *http_method(const struct http_req *r)
{
    return r->method;
}

const char *http_path(const struct http_req *r)
{
    return r->path;
}

const char *http_query(const struct http_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->conn, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_header(const struct http_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->conn, MHD_HEADER_KIND, name);
}

struct str http_body(const struct http_req *r)
{
    return (struct str){r->body.p, r->body.n};
}

bool http_too_large(const struct http_req *r)
{
    return r->too_large;
}

bool http_gone(struct http_req *r)
{
    /* relaxed: a hint; whoever sets it also wakes and joins */
    if (atomic_load_explicit(&r->gone, memory_order_relaxed))
        return true;
    struct pollfd p = {.fd = r->fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) <= 0 || !(p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)))
        return false;
    atomic_store_explicit(&r->gone, true, memory_order_relaxed);
    return true;
}

void http_set_header(struct http_req *r, const char *name, const char *value)
{
    size_t i = 0;
    while (i < r->n_headers && strcasecmp(r->names[i], name) != 0)
        i++;
    CHECK(i < MAX_HEADERS);
    if (i == r->n_headers) {
        r->names[r->n_headers++] = mem_strdup(name);
    } else {
        mem_free(r->values[i]);
    }
    r->values[i] = mem_strdup(value);
}

static void begin(struct http_req *r, enum phase phase, int status, const char *type)
{
    CHECK(r->phase == HANDLING); /* one reply each */
    r->status = status;
    snprintf(r->type, sizeof r->type, "%s", type);
    r->phase = phase;
    pthread_cond_broadcast(&r->changed);
}

void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t n)
{
    pthread_mutex_lock(&r->lock);
    buf_add(&r->out, body, n);
    if (r->out.failed) {
        static const char sorry[] = "out of memory for the reply\n";
        status = 503;
        type = "text/plain";
        buf_release(&r->out);
        buf_init(&r->out);
        buf_add(&r->out, sorry, sizeof sorry - 1);
    }
    begin(r, WHOLE, status, type);
    pthread_mutex_unlock(&r->lock);
}

void http_stream_begin(struct http_req *r, int status, const char *type)
{
    pthread_mutex_lock(&r->lock);
    begin(r, STREAM, status, type);
    pthread_mutex_unlock(&r->lock);
}

bool http_write(struct http_req *r, const void *p, size_t n)
{
    pthread_mutex_lock(&r->lock);
    CHECK(r->phase == STREAM);
    while (r->out.n >= STREAM_AHEAD && !atomic_load_explicit(&r->gone, memory_order_relaxed))
        pthread_cond_wait(&r->changed, &r->lock);
    buf_add(&r->out, p, n);
    const bool ok = !r->out.failed;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return ok && !http_gone(r);
}

static void count(struct http_server *s, int handlers, int replies)
{
    pthread_mutex_lock(&s->lock);
    s->n_handlers += (uint32_t)handlers;
    s->n_replies += (uint32_t)replies;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *handler_main(void *arg)
{
    struct http_req *r = arg;
    pthread_setname_np(pthread_self(), "http-handler");
    r->s->fn(r->s->ctx, r);
    pthread_mutex_lock(&r->lock);
    static const char gone[] = "the client has closed its sending side: its request was ended\n";
    if (r->phase == HANDLING && atomic_load_explicit(&r->gone, memory_order_relaxed)) {
        buf_add(&r->out, gone, sizeof gone - 1);
        begin(r, WHOLE, 499, "text/plain");
    } else if (r->phase == HANDLING) {
        begin(r, WHOLE, 500, "text/plain"); /* a handler that forgot to answer */
    }
    r->done = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    count(r->s, -1, 0);
    return NULL;
}

/* ---- libmicrohttpd's side ---- */

static void set_timeout(struct http_req *r, uint32_t seconds)
{
    MHD_set_connection_option(r->conn, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)seconds);
}

static ssize_t read_cb(void *cls, uint64_t pos, char *p, size_t max)
{
    struct http_req *r = cls;
    (void)pos;
    set_timeout(r, 0); /* the silence that follows is the handler's, not the client's */
    pthread_mutex_lock(&r->lock);
    while (!r->out.n && !r->done)
        pthread_cond_wait(&r->changed, &r->lock);
    const size_t n = MIN(max, r->out.n);
    const bool failed = r->out.failed;
    if (n) {
        memcpy(p, r->out.p, n);
        buf_eat(&r->out, n);
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    set_timeout(r, r->s->timeout_s); /* also counts from now */
    if (n)
        return (ssize_t)n;
    const bool cut = failed || atomic_load_explicit(&r->gone, memory_order_relaxed);
    return cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
}

static void add_headers(struct http_req *r, struct MHD_Response *resp)
{
    MHD_add_response_header(resp, "Content-Type", r->type);
    for (size_t i = 0; i < r->n_headers; i++)
        MHD_add_response_header(resp, r->names[i], r->values[i]);
    if (r->close)
        MHD_add_response_header(resp, "Connection", "close");
}

/* Waits until the handler has something and queues it. */
static enum MHD_Result await_reply(struct http_req *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->phase == HANDLING)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    struct MHD_Response *resp =
        r->phase == STREAM
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK, read_cb, r, NULL)
            : MHD_create_response_from_buffer(r->out.n, r->out.p, MHD_RESPMEM_PERSISTENT);
    if (!resp)
        return MHD_NO;
    add_headers(r, resp);
    set_timeout(r, r->s->timeout_s);
    const enum MHD_Result ok = MHD_queue_response(r->conn, (unsigned)r->status, resp);
    MHD_destroy_response(resp);
    return ok;
}

static struct http_req *req_new(struct http_server *s, struct MHD_Connection *conn,
                                const char *path, const char *method)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct http_req *r = mem_try_zalloc(sizeof *r);
    if (!r)
        return NULL;
    r->s = s;
    r->conn = conn;
    r->path = path;
    r->method = method;
    r->fd = info ? info->connect_fd : -1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    return r;
}

static void req_free(struct http_req *r)
{
    for (size_t i = 0; i < r->n_headers; i++) {
        mem_free(r->names[i]);
        mem_free(r->values[i]);
    }
    buf_release(&r->body);
    buf_release(&r->out);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static void take_body(struct http_req *r, const char *p, size_t n)
{
    if (r->too_large)
        return; /* read on, so that the client gets to read the answer */
    if (n > r->s->max_body - r->body.n)
        r->too_large = true;
    else
        buf_add(&r->body, p, n);
    if (r->too_large || r->body.failed) {
        r->too_large = true;
        buf_release(&r->body);
        buf_init(&r->body);
    }
}

/* ---- connections ---- */

/* Under the lock: closes connections until there are no more than the limit, or none is idle. */
static void close_idle(struct http_server *s)
{
    while (s->n_conns > s->max_connections) {
        struct conn *oldest = NULL;
        for (struct conn *c = s->conns; c; c = c->next)
            if (!c->busy && !c->closing && (!oldest || c->idle_ns < oldest->idle_ns))
                oldest = c;
        if (!oldest)
            return;
        oldest->closing = true;
        s->n_conns--;
        shutdown(oldest->fd, SHUT_RDWR); /* its thread wakes and closes it */
    }
}

static void connection_cb(void *cls, struct MHD_Connection *conn, void **slot,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http_server *s = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_lock(&s->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        struct conn *c = mem_zalloc(sizeof *c);
        c->fd = info ? info->connect_fd : -1;
        c->idle_ns = clock_mono_ns();
        c->next = s->conns;
        s->conns = c;
        s->n_conns++;
        *slot = c;
        close_idle(s);
    } else if (*slot) {
        struct conn *c = *slot, **at = &s->conns;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        s->n_conns -= !c->closing;
        mem_free(c);
        *slot = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

static void set_busy(struct http_server *s, struct MHD_Connection *conn, bool busy)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *c = info ? info->socket_context : NULL;
    if (!c)
        return;
    pthread_mutex_lock(&s->lock);
    c->busy = busy;
    c->idle_ns = clock_mono_ns();
    if (!busy)
        close_idle(s);
    pthread_mutex_unlock(&s->lock);
}

/* ---- requests ---- */

/* What the headers say of where the body ends. */
struct framing {
    const char *length; /* the first Content-Length, or NULL */
    bool differ, encoded;
};

static enum MHD_Result see_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct framing *f = ctx;
    (void)kind;
    if (!strcasecmp(name, "Transfer-Encoding")) {
        f->encoded = true;
    } else if (!strcasecmp(name, "Content-Length") && value) {
        f->differ |= f->length && strcmp(f->length, value) != 0;
        f->length = f->length ? f->length : value;
    }
    return MHD_YES;
}

/* A body whose end is told in two ways: whoever passed the request on may have taken the other one, and what is
 * the body to one is a request to the other. */
static enum MHD_Result refuse_framing(struct http_req *r)
{
    static char text[] = "the request says in two ways how long its body is: more than one "
                         "Content-Length, or one beside Transfer-Encoding\n";
    r->close = true;
    r->status = 400;
    snprintf(r->type, sizeof r->type, "text/plain");
    struct MHD_Response *resp =
        MHD_create_response_from_buffer(sizeof text - 1, text, MHD_RESPMEM_PERSISTENT);
    if (!resp)
        return MHD_NO;
    add_headers(r, resp);
    const enum MHD_Result ok = MHD_queue_response(r->conn, (unsigned)r->status, resp);
    MHD_destroy_response(resp);
    return ok;
}

static enum MHD_Result start_handler(struct http_req *r)
{
    struct http_server *s = r->s;
    set_timeout(r, 0);
    count(s, 1, 1);
    r->started = true;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 1 << 21);
    const int e = pthread_create(&r->thread, &attr, handler_main, r);
    pthread_attr_destroy(&attr);
    if (e) {
        log_warn(s->lg, "http: no thread for a request: %s", strerror(e));
        r->started = false;
        count(s, -1, -1);
        return MHD_NO;
    }
    return await_reply(r);
}

/* The headers are there, of the body nothing has been read. */
static enum MHD_Result begin_request(struct http_req *r)
{
    struct framing f = {0};
    uint64_t n = 0;
    MHD_get_connection_values(r->conn, MHD_HEADER_KIND, see_header, &f);
    if (f.differ || (f.length && f.encoded))
        return refuse_framing(r);
    if (!f.length || !str_to_u64(f.length, &n) || n <= r->s->max_body)
        return MHD_YES;
    r->too_large = r->close = true;
    return start_handler(r);
}

/* Closing a socket on which bytes arrive resets it, and the client may lose the reply: read what it still sends,
 * for a while. */
static void linger(int fd)
{
    char sink[1 << 14];
    const uint64_t until = clock_mono_ns() + LINGER_MS * (uint64_t)1000000;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    shutdown(fd, SHUT_WR);
    for (uint64_t now = clock_mono_ns(); now < until; now = clock_mono_ns())
        if (poll(&p, 1, (int)((until - now) / 1000000) + 1) <= 0 ||
            recv(fd, sink, sizeof sink, MSG_DONTWAIT) <= 0)
            return;
}

static enum MHD_Result access_cb(void *cls, struct MHD_Connection *conn, const char *path,
                                 const char *method, const char *version, const char *data,
                                 size_t *n_data, void **slot)
{
    struct http_server *s = cls;
    struct http_req *r = *slot;
    (void)version;
    if (!r) {
        *slot = req_new(s, conn, path, method);
        if (!*slot)
            return MHD_NO;
        set_busy(s, conn, true);
        return begin_request(*slot);
    }
    if (*n_data) {
        take_body(r, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    return start_handler(r);
}

static void completed_cb(void *cls, struct MHD_Connection *conn, void **slot,
                         enum MHD_RequestTerminationCode why)
{
    struct http_req *r = *slot;
    (void)cls;
    if (!r)
        return;
    if (r->close && why == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        linger(r->fd);
    set_busy(r->s, conn, false);
    if (r->started) {
        pthread_mutex_lock(&r->lock);
        atomic_store_explicit(&r->gone, true, memory_order_relaxed);
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
        count(r->s, 0, -1);
    }
    req_free(r);
    *slot = NULL;
}

PRINTF_LIKE(2, 0) static void log_cb(void *cls, const char *fmt, va_list ap)
{
    struct http_server *s = cls;
    char line[256];
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = 0;
    log_debug(s->lg, "http: %s", line);
}

/* ---- listening ---- */

static enum rc listen_on(const struct addrinfo *a, const char *host, uint16_t port, int *out,
                         struct err *err)
{
    const int on = 1, off = 0;
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, "socket for %s", host);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 128) == 0) {
        *out = fd;
        return RC_OK;
    }
    const int e = errno;
    close(fd);
    errno = e;
    if (e == EADDRINUSE) {
        err_set(err, RC_IO, "port %u on %s is in use", port, host);
        if (err)
            err->sys = e;
        return RC_IO;
    }
    return err_sys(err, "listen on %s port %u", host, port);
}

/* The first address of host that can be had, IPv4 before IPv6. */
static enum rc listen_any(const char *host, uint16_t port, int *fd, struct err *err)
{
    struct addrinfo *list;
    enum rc rc = host_resolve(host, port, AI_PASSIVE, &list, err);
    if (rc)
        return rc;
    static const int order[] = {AF_INET, AF_INET6};
    rc = err_set(err, RC_ARG, "host %s has no address", host);
    *fd = -1;
    for (size_t i = 0; i < COUNT_OF(order) && *fd < 0; i++)
        for (const struct addrinfo *a = list; a && *fd < 0; a = a->ai_next)
            if (a->ai_family == order[i])
                rc = listen_on(a, host, port, fd, err);
    freeaddrinfo(list);
    return rc;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    char service[8] = "0";
    if (!getsockname(fd, (struct sockaddr *)&a, &n))
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, service, sizeof service, NI_NUMERICSERV);
    uint64_t port = 0;
    return str_to_u64(service, &port) ? (uint16_t)port : 0;
}

enum rc http_start(const struct http_opts *o, http_handler *fn, void *ctx, struct http_server **out,
                   struct err *err)
{
    const char *host = o->host && *o->host ? o->host : "127.0.0.1";
    int fd = -1;
    const enum rc rc = listen_any(host, o->port, &fd, err);
    if (rc)
        return rc;
    struct http_server *s = mem_zalloc(sizeof *s);
    s->fn = fn;
    s->ctx = ctx;
    s->lg = o->lg;
    s->max_body = o->max_body ? o->max_body : 64 * MIB;
    s->timeout_s = o->timeout_s ? o->timeout_s : 600;
    s->max_connections = o->max_connections ? o->max_connections : MAX_CONNECTIONS;
    s->listen_fd = fd;
    s->port = port_of(fd);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                           MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    s->daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, access_cb, s, MHD_OPTION_EXTERNAL_LOGGER, log_cb, s,
                         MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)s->max_connections + NEWCOMERS, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)s->timeout_s, MHD_OPTION_NOTIFY_COMPLETED, completed_cb, NULL,
                         MHD_OPTION_NOTIFY_CONNECTION, connection_cb, s,
                         MHD_OPTION_THREAD_STACK_SIZE, (size_t)1 << 19, MHD_OPTION_END);
    if (!s->daemon) {
        close(fd);
        pthread_cond_destroy(&s->changed);
        pthread_mutex_destroy(&s->lock);
        mem_free(s);
        return err_set(err, RC_IO, "the HTTP server does not start on %s port %u", host, o->port);
    }
    *out = s;
    return RC_OK;
}

uint16_t http_port(const struct http_server *s)
{
    return s->port;
}

void http_stop(struct http_server *s)
{
    if (!s)
        return;
    MHD_quiesce_daemon(s->daemon);
    /* refuses newcomers at once; closed only when libmicrohttpd is surely done with it */
    shutdown(s->listen_fd, SHUT_RDWR);
    pthread_mutex_lock(&s->lock);
    while (s->n_handlers)
        pthread_cond_wait(&s->changed, &s->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FLUSH_MS / 1000;
    while (s->n_replies && !pthread_cond_timedwait(&s->changed, &s->lock, &until))
        continue;
    pthread_mutex_unlock(&s->lock);
    MHD_stop_daemon(s->daemon);
    close(s->listen_fd);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
