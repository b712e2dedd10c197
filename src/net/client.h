/* client.h - a small blocking HTTP/1.1 client: one connection to one server, kept between requests.
 *
 *     client_new("http://127.0.0.1:8080", NULL, &c, err);
 *     client_begin(c, "POST", "/completion", str_of(json), err);
 *     while (!client_event(c, &event, &end, err) && !end)  ... event.data ...
 *     client_free(c);
 *
 * For the lab, the demo and the tests; not thread-safe, no TLS, no redirects.
 */
#ifndef HOLDFAST_NET_CLIENT_H
#define HOLDFAST_NET_CLIENT_H

#include "base/buf.h"
#include "base/err.h"
#include "net/sse.h"

struct client;

struct client_opts {
    uint32_t connect_ms; /* 0 = 10 s */
    uint32_t idle_ms;    /* longest silence while a reply is awaited or read; 0 = 10 min */
    size_t max_body;     /* of a reply read whole; 0 = 256 MiB */
    const char *api_key; /* sent as Authorization: Bearer; may be NULL */
};

/* Does not connect yet.  A path in the URL is put before every path asked for. o may be NULL. */
NODISCARD enum rc client_new(const char *url, const struct client_opts *o, struct client **out,
                             struct err *err);
void client_free(struct client *c);

/* Sends a request and reads the reply's head.  body.p NULL: none; else it goes as application/json.
 * Unread rest of an earlier reply costs that connection. */
NODISCARD enum rc client_begin(struct client *c, const char *method, const char *path,
                               struct str body, struct err *err);
/* Of every request from now on; NULL removes it.  The strings are copied. */
void client_set_header(struct client *c, const char *name, const char *value);
int client_status(const struct client *c);
const char *client_header(const struct client *c, const char *name); /* lower case; or NULL */

/* Appends what has come of the body, waiting for at least a byte; *end when there is no more. */
NODISCARD enum rc client_read(struct client *c, struct buf *out, bool *end, struct err *err);
/* The next server-sent event of the body (borrowed until the next call). */
NODISCARD enum rc client_event(struct client *c, struct sse_event *out, bool *end, struct err *err);
/* client_begin and the whole body; out is cleared first. */
NODISCARD enum rc client_call(struct client *c, const char *method, const char *path,
                              struct str body, struct buf *out, struct err *err);
/* Hangs up at once, whatever is under way. */
void client_hang_up(struct client *c);

/* A connected, non-blocking socket to the first address of host that answers. */
NODISCARD enum rc client_connect(const char *host, uint16_t port, uint32_t timeout_ms, int *fd,
                                 struct err *err);

#endif
