#include "server/server.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/explain.h"
#include "server/reply.h"
#include "server/route.h"
#include "text/grammar_cache.h"

/* ---- who may ask ---- */

/* Takes the same time wherever the two differ. */
static bool same_secret(const char *a, const char *b)
{
    const size_t n = strlen(a), m = strlen(b);
    unsigned differ = n != m;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)(a[i] ^ b[i < m ? i : m]);
    return !differ;
}

static bool has_key(const struct call *c)
{
    const struct server_opts *o = &c->s->o;
    static const char bearer[] = "Bearer ";
    const char *key = http_header(c->r, "Authorization");
    if (key && !strncasecmp(key, bearer, sizeof bearer - 1))
        key += sizeof bearer - 1;
    else
        key = http_header(c->r, "x-api-key");
    bool ok = !o->n_api_keys;
    for (size_t i = 0; key && i < o->n_api_keys; i++)
        ok |= same_secret(key, o->api_keys[i]);
    return ok;
}

static bool is_local(struct str origin)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
    struct str host = origin;
    for (size_t i = 0; i < 2; i++) {
        const struct str scheme = str_of(i ? "https://" : "http://");
        if (str_starts(host, scheme)) {
            host = (struct str){host.p + scheme.n, host.n - scheme.n};
            break;
        }
    }
    if (host.n == origin.n)
        return false;
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        const struct str h = str_of(hosts[i]);
        if (str_starts(host, h) && (host.n == h.n || host.p[h.n] == ':'))
            return true;
    }
    return false;
}

static bool origin_allowed(const char *list, struct str origin)
{
    for (const char *p = list; *p;) {
        p += strspn(p, ", ");
        const struct str item = {p, strcspn(p, ", ")};
        if (item.n && (str_eq(item, origin) || (str_is(item, "localhost") && is_local(origin))))
            return true;
        p += item.n;
    }
    return false;
}

/* For pages in a browser.  There are no cookies here, so no credentials are ever allowed. */
static void set_cors(struct call *c)
{
    const char *origin = http_header(c->r, "Origin");
    const char *list = c->s->o.cors_origins;
    if (!list || !strcmp(list, "*")) {
        http_set_header(c->r, "Access-Control-Allow-Origin", "*");
    } else {
        http_set_header(c->r, "Vary", "Origin");
        if (origin && origin_allowed(list, str_of(origin)))
            http_set_header(c->r, "Access-Control-Allow-Origin", origin);
    }
}

static void answer_preflight(struct call *c)
{
    const char *headers = http_header(c->r, "Access-Control-Request-Headers");
    http_set_header(c->r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    http_set_header(c->r, "Access-Control-Allow-Headers", headers ? headers : "*");
    http_set_header(c->r, "Access-Control-Max-Age", "86400");
    http_reply(c->r, 204, "text/plain", "", 0);
}

/* ---- one call ---- */

int64_t call_time(void)
{
    return (int64_t)(clock_wall_ns() / 1000000000);
}

void call_id(const struct call *c, const char *prefix, char out[48])
{
    /* unique by the count; the start time keeps two runs of the server apart */
    const uint64_t n = atomic_fetch_add_explicit(&c->s->next_id, 1, memory_order_relaxed);
    snprintf(out, 48, "%s%016" PRIx64 "%08" PRIx64, prefix, c->s->started_ns, n & UINT32_MAX);
}

static bool parse_body(struct call *c)
{
    struct err err;
    const struct str body = http_body(c->r);
    enum rc rc = body.n ? jread_parse(body.p, body.n, &c->body, &err)
                        : err_set(&err, RC_FORMAT, "the body is empty, not a JSON object");
    if (!rc && !json_is_object(c->body))
        rc = err_set(&err, RC_FORMAT, "the body is JSON, but not an object");
    if (rc)
        reply_error(c, &err);
    return !rc;
}

static void answer(struct call *c)
{
    const char *method = http_method(c->r), *path = http_path(c->r);
    set_cors(c);
    if (!strcmp(method, "OPTIONS")) {
        answer_preflight(c);
        return;
    }
    bool path_known;
    const struct route *t = route_find(method, path, &c->tail, &path_known);
    c->anthropic = t && t->flags & ROUTE_ANTHROPIC;
    if (!t && path_known) {
        char allow[64];
        route_methods(path, allow);
        http_set_header(c->r, "Allow", allow);
        reply_refuse(c, 405, "invalid_request_error", "the path exists, but not for this method");
        return;
    }
    if (!(t && t->flags & ROUTE_PUBLIC) && !has_key(c)) {
        http_set_header(c->r, "WWW-Authenticate", "Bearer");
        reply_refuse(c, 401, "authentication_error", "Invalid API Key");
        return;
    }
    if (!t) {
        reply_refuse(c, 404, "not_found_error", "no such path");
        return;
    }
    if (!(t->flags & ROUTE_EARLY) && !c->m) {
        http_set_header(c->r, "Retry-After", "1");
        reply_refuse(c, 503, "unavailable_error", "Loading model");
        return;
    }
    if (atomic_load_explicit(&c->s->end_ns, memory_order_relaxed) != UINT64_MAX) {
        http_set_header(c->r, "Connection", "close");
        reply_refuse(c, 503, "unavailable_error", "the server is stopping");
        return;
    }
    if (http_too_large(c->r)) {
        reply_refuse(c, 413, "invalid_request_error", "the body is larger than the server takes");
        return;
    }
    const char *coding = http_header(c->r, "Content-Encoding");
    if (t->flags & ROUTE_JSON && coding && strcasecmp(coding, "identity") != 0) {
        http_set_header(c->r, "Accept-Encoding", "identity");
        reply_refuse(c, 415, "invalid_request_error",
                     "a body with a Content-Encoding is not supported: send it uncompressed");
        return;
    }
    if (t->flags & ROUTE_JSON && !parse_body(c))
        return;
    t->fn(c);
}

static void handle(void *ctx, struct http_req *r)
{
    struct server *s = ctx;
    struct call c = {.s = s, .r = r};
    /* acquire: pairs with server_ready */
    if (atomic_load_explicit(&s->ready, memory_order_acquire))
        c.m = &s->served;
    answer(&c);
    json_decref(c.body);
}

/* ---- start and stop ---- */

enum rc server_start(const struct server_opts *o, struct server **out, struct err *err)
{
    struct server *s = mem_zalloc(sizeof *s);
    s->o = *o;
    if (!s->o.sse_ping_s)
        s->o.sse_ping_s = 30;
    s->started_ns = clock_wall_ns();
    atomic_init(&s->ready, false);
    atomic_init(&s->end_ns, UINT64_MAX);
    atomic_init(&s->next_id, 0);
    if (o->replay_bytes)
        s->replay = replay_new(
            &(struct replay_opts){.bytes = o->replay_bytes, .keep_thinking = o->replay_thinking});
    s->explain = explain_new();
    const struct http_opts h = {.host = o->host,
                                .port = o->port,
                                .max_body = o->max_body,
                                .max_connections = o->max_connections,
                                .timeout_s = o->timeout_s,
                                .lg = o->lg};
    const enum rc rc = http_start(&h, handle, s, &s->http, err);
    if (rc) {
        replay_free(s->replay);
        explain_free(s->explain);
        mem_free(s);
        return rc;
    }
    *out = s;
    return RC_OK;
}

uint16_t server_port(const struct server *s)
{
    return http_port(s->http);
}

void server_ready(struct server *s, const struct served *served)
{
    s->served = *served;
    s->grammars = grammar_cache_new(served->vocab, 0);
    atomic_store_explicit(&s->ready, true, memory_order_release);
}

void server_stop(struct server *s, uint64_t drain_ns)
{
    if (!s)
        return;
    /* relaxed, here and where it is read: a number that handlers look at now and then */
    atomic_store_explicit(&s->end_ns, clock_mono_ns() + drain_ns, memory_order_relaxed);
    http_stop(s->http);
    replay_free(s->replay);
    explain_free(s->explain);
    grammar_cache_free(s->grammars);
    mem_free(s);
}
