/* http.h - our narrow server interface.  http_mhd.c is the only file that knows libmicrohttpd.
 *
 * A handler runs on its connection's own thread, may block, and answers through the reply functions.
 */
#ifndef HOLDFAST_NET_HTTP_H
#define HOLDFAST_NET_HTTP_H

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

struct http_server;
struct http_req;

struct http_opts {
    const char *host; /* NULL = 127.0.0.1 */
    uint16_t port;    /* 0 = any free one */
    uint64_t max_body;        /* bytes; larger is 413 */
    uint32_t max_connections; /* 0 = 256 */
    uint32_t timeout_s;       /* idle connections; 0 = 600 */
    const struct logger *lg;
};

typedef void http_handler(void *ctx, struct http_req *r);

/* RC_IO when the address cannot be had: "port 8080 on 127.0.0.1 is in use". */
NODISCARD enum rc http_start(const struct http_opts *o, http_handler *fn, void *ctx,
                             struct http_server **out, struct err *err);
uint16_t http_port(const struct http_server *s);
/* No new connections; waits for running handlers. */
void http_stop(struct http_server *s);

const char *http_method(const struct http_req *r);
const char *http_path(const struct http_req *r); /* without the query; percent-decoded */
const char *http_query(const struct http_req *r, const char *name);  /* or NULL */
const char *http_header(const struct http_req *r, const char *name); /* or NULL; any case */
struct str http_body(const struct http_req *r);
/* True once the client has gone: a long handler asks now and then. */
bool http_gone(struct http_req *r);

void http_set_header(struct http_req *r, const char *name, const char *value); /* before the reply */
void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t n);
/* A streamed reply: begin, then writes, then the handler returns.  http_write is false once the client
 * has gone. */
void http_stream_begin(struct http_req *r, int status, const char *type);
NODISCARD bool http_write(struct http_req *r, const void *p, size_t n);

#endif
