/* server.h - the protocols: llama-server's, OpenAI's, and our own view of the cache.
 *
 * Listening and being ready are apart, so that a port in use is known before a model of many
 * gigabytes has been read, and clients that come early are told "Loading model" (503):
 *
 *     server_start(&opts, &s, err);
 *     ... open the model, start the engine ...
 *     server_ready(s, &served);
 *     ...
 *     server_stop(s, drain_ns);     then engine_stop()
 */
#ifndef HOLDFAST_SERVER_SERVER_H
#define HOLDFAST_SERVER_SERVER_H

#include "base/log.h"
#include "engine/engine.h"
#include "text/chat.h"
#include "text/vocab.h"

struct server;

struct server_opts {  /* all borrowed until server_stop */
    const char *host; /* NULL = 127.0.0.1 */
    uint16_t port;    /* 0 = any free one */
    const char *const *api_keys;
    size_t n_api_keys;        /* 0: anyone may ask */
    const char *cors_origins; /* "*" (NULL), "localhost", or a comma-separated list */
    uint64_t max_body;        /* bytes; 0 = 64 MiB */
    uint32_t max_connections; /* 0 = 256; beyond it idle ones are closed */
    uint32_t timeout_s;       /* idle connections; 0 = 600 */
    int32_t sse_ping_s;       /* silence in a stream before a comment is sent; 0 = 30, < 0 never */
    /* what requests that do not say otherwise get */
    struct sampling sampling;
    int32_t n_predict;
    bool special;               /* show control tokens */
    bool no_cache;              /* cache_prompt defaults to false */
    bool no_slots;              /* GET /slots is refused */
    uint32_t think_budget;      /* tokens of reasoning; 0: no limit */
    bool no_thinking;           /* a budget of 0 */
    const char *slot_save_path; /* directory of POST /slots/{id}; NULL: refused */
    unsigned drop_volatile;     /* enum volatile_kind: volatile.h */
    uint64_t replay_bytes; /* for answers that are put back as they were generated; 0: none are */
    bool replay_thinking;  /* also reasoning that the template drops from old turns */
    const struct logger *lg;
};

/* What is served, as requests for facts want it. */
struct served { /* all borrowed until server_stop */
    struct engine *engine;
    const struct vocab *vocab;
    const struct chat_template *chat;
    const char *alias; /* the model's name in the API */
    const char *path;
    const char *arch;
    const char *cache_policy;
    uint32_t n_parallel, n_vocab, n_embd, n_ctx_train;
    uint64_t n_params, weight_bytes;
};

NODISCARD enum rc server_start(const struct server_opts *o, struct server **out, struct err *err);
uint16_t server_port(const struct server *s);
void server_ready(struct server *s, const struct served *served);
/* No new requests; those running may go on for drain_ns, then they are cancelled.  Frees s. */
void server_stop(struct server *s, uint64_t drain_ns);

#endif
