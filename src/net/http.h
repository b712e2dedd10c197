/* http.h - our narrow server interface.  http_mhd.c is the only file that knows libmicrohttpd.
 *
 * A handler runs on a thread of its own for one request, may block, and answers through the reply
 * functions:
 *
 *     static void hello(void *ctx, struct http_req *r)
 *     {
 *         http_reply(r, 200, "text/plain", "hello\n", 6);
 *     }
 *
 * What the request functions return is borrowed until the handler returns.
 */
#ifndef HOLDFAST_NET_HTTP_H
#define HOLDFAST_NET_HTTP_H

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

struct http_server;
struct http_req;

struct http_opts {
    const char *host;         /* address or name, IPv4 or IPv6; NULL = 127.0.0.1 */
    uint16_t port;            /* 0 = any free one */
    uint64_t max_body;        /* bytes of a request's body; 0 = 64 MiB */
    uint32_t max_connections; /* 0 = 256; beyond it those idle longest are closed for newcomers */
    uint32_t timeout_s;       /* connections on which nothing moves; 0 = 600 */
    const struct logger *lg;  /* may be NULL */
};

typedef void http_handler(void *ctx, struct http_req *r);

/* RC_IO when the address cannot be had: "port 8080 on 127.0.0.1 is in use"; RC_ARG for a host that
 * has no address. */
NODISCARD enum rc http_start(const struct http_opts *o, http_handler *fn, void *ctx,
                             struct http_server **out, struct err *err);
uint16_t http_port(const struct http_server *s);
/* Takes no new connections, waits for running handlers (telling them to hurry is the caller's
 * business), closes the rest, frees s. */
void http_stop(struct http_server *s);

const char *http_method(const struct http_req *r);
const char *http_path(const struct http_req *r); /* without the query; percent-decoded */
const char *http_query(const struct http_req *r, const char *name);  /* or NULL */
const char *http_header(const struct http_req *r, const char *name); /* or NULL; any case */
struct str http_body(const struct http_req *r);
/* The body is larger than max_body (http_body is then empty): the handler answers 413.  When Content-Length said so,
 * before the body has come; the connection closes then. */
bool http_too_large(const struct http_req *r);
/* True once the client has closed its end, be it its sending side alone: a long handler asks now and
 * then, and may return without a reply (499 is sent then). */
bool http_gone(struct http_req *r);

void http_set_header(struct http_req *r, const char *name,
                     const char *value); /* before the reply */
/* The whole reply; copies body[n].  Once for a request. */
void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t n);
/* A streamed reply: begin, then writes, then the handler returns.  http_write copies, waits while the
 * client reads too slowly, and is false once it has gone. */
void http_stream_begin(struct http_req *r, int status, const char *type);
NODISCARD bool http_write(struct http_req *r, const void *p, size_t n);

#endif
