/* server_int.h - what the files of this room share: the server, and one call of it. */
#ifndef HOLDFAST_SERVER_SERVER_INT_H
#define HOLDFAST_SERVER_SERVER_INT_H

#include <stdatomic.h>

#include "base/json.h"
#include "net/http.h"
#include "server/replay.h"
#include "server/server.h"

struct explain;
struct grammar_cache;

struct server {
    struct server_opts o;
    struct http_server *http;
    uint64_t started_ns; /* wall clock */
    struct served served;
    struct replay *replay; /* NULL: off */
    struct explain *explain;
    struct grammar_cache *grammars;
    atomic_bool ready; /* release: served is filled before */
    atomic_uint_fast64_t
        end_ns; /* monotonic; running jobs are cancelled then; UINT64_MAX: not yet */
    atomic_uint_fast64_t next_id;
};

/* One request being answered.  Owner: its handler thread. */
struct call {
    struct server *s;
    const struct served *m; /* NULL before the model is ready */
    struct http_req *r;
    json_t *body;     /* the parsed object; NULL for routes that take none */
    const char *tail; /* what followed a prefix route's path */
    bool anthropic;   /* errors in that shape */
    const char *id;   /* the response's; NULL: it has none */
};

/* Seconds since 1970, for "created". */
int64_t call_time(void);
/* prefix and 24 characters that no other call of this server's life gets. */
void call_id(const struct call *c, const char *prefix, char out[48]);

#endif
