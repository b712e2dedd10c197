#include "server/route.h"

#include <string.h>

#include "server/reply.h"

static void hello(struct call *c)
{
    static const char text[] = "holdfast " HOLDFAST_VERSION "\n"
                               "POST /v1/chat/completions, /v1/responses, /v1/messages\n"
                               "POST /v1/completions, /completion\n"
                               "POST /apply-template, /tokenize, /detokenize\n"
                               "GET  /v1/models, /health, /props, /slots, /metrics, /cache\n";
    http_reply(c->r, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
}

static void refuse_infill(struct call *c)
{
    reply_refuse(c, 501, "not_supported_error",
                 "/infill is not supported: the models served here have no infill tokens that "
                 "holdfast knows; build the prompt and use /completion");
}

static void refuse_embeddings(struct call *c)
{
    reply_refuse(c, 501, "not_supported_error",
                 "embeddings are not supported: holdfast serves text generation only");
}

static const struct route routes[] = {
    {"GET", "/", hello, ROUTE_PUBLIC | ROUTE_EARLY},
    {"GET", "/health", llama_health, ROUTE_PUBLIC | ROUTE_EARLY},
    {"GET", "/v1/health", llama_health, ROUTE_PUBLIC | ROUTE_EARLY},
    {"GET", "/props", llama_props, 0},
    {"GET", "/slots", llama_slots, 0},
    {"POST", "/slots/", slots_action, ROUTE_PREFIX},
    {"GET", "/metrics", metrics_get, 0},
    {"GET", "/cache", cache_view_get, 0},
    {"GET", "/cache/explain", explain_get, 0},
    {"POST", "/cache/pin", cache_pin_post, ROUTE_JSON},
    {"POST", "/cache/unpin", cache_unpin_post, ROUTE_JSON},
    {"POST", "/cache/warm", cache_warm_post, ROUTE_JSON},
    {"DELETE", "/cache/", cache_view_delete, ROUTE_PREFIX},
    {"POST", "/tokenize", llama_tokenize, ROUTE_JSON},
    {"POST", "/detokenize", llama_detokenize, ROUTE_JSON},
    {"POST", "/completion", llama_completion, ROUTE_JSON},
    {"POST", "/completions", llama_completion, ROUTE_JSON},
    {"POST", "/v1/completions", openai_completions, ROUTE_JSON},
    {"POST", "/v1/chat/completions", openai_chat, ROUTE_JSON},
    {"POST", "/chat/completions", openai_chat, ROUTE_JSON},
    {"POST", "/v1/responses", openai_responses, ROUTE_JSON},
    {"POST", "/v1/messages", anthropic_messages, ROUTE_JSON | ROUTE_ANTHROPIC},
    {"POST", "/v1/messages/count_tokens", anthropic_count_tokens, ROUTE_JSON | ROUTE_ANTHROPIC},
    {"POST", "/apply-template", openai_apply_template, ROUTE_JSON},
    {"GET", "/v1/models", openai_models, ROUTE_PUBLIC},
    {"GET", "/models", openai_models, ROUTE_PUBLIC},
    {"GET", "/v1/models/", openai_model, ROUTE_PUBLIC | ROUTE_PREFIX},
    {"POST", "/infill", refuse_infill, 0},
    {"POST", "/embedding", refuse_embeddings, 0},
    {"POST", "/embeddings", refuse_embeddings, 0},
    {"POST", "/v1/embeddings", refuse_embeddings, 0},
};

static bool path_fits(const struct route *t, const char *path, const char **tail)
{
    const size_t n = strlen(t->path);
    if (!(t->flags & ROUTE_PREFIX))
        return !strcmp(t->path, path);
    if (strncmp(t->path, path, n) != 0 || !path[n])
        return false;
    *tail = path + n;
    return true;
}

const struct route *route_find(const char *method, const char *path, const char **tail,
                               bool *path_known)
{
    /* the body of a HEAD's reply is left out below us */
    const char *asked = strcmp(method, "HEAD") != 0 ? method : "GET";
    *path_known = false;
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        if (!path_fits(&routes[i], path, tail))
            continue;
        *path_known = true;
        if (!strcmp(routes[i].method, asked))
            return &routes[i];
    }
    return NULL;
}

void route_methods(const char *path, char out[64])
{
    const char *tail;
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < COUNT_OF(routes); i++)
        if (path_fits(&routes[i], path, &tail) && n < 48)
            n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? ", " : "", routes[i].method);
}
