/* route.h - which function answers which path. */
#ifndef HOLDFAST_SERVER_ROUTE_H
#define HOLDFAST_SERVER_ROUTE_H

#include "server/server_int.h"

enum {
    ROUTE_PUBLIC = 1, /* asks for no key */
    ROUTE_EARLY = 2,  /* answers before the model is ready */
    ROUTE_PREFIX = 4, /* path is a beginning; call.tail is the rest */
    ROUTE_JSON = 8,   /* the body is a JSON object, parsed into call.body */
    ROUTE_ANTHROPIC = 16
};

struct route {
    const char *method, *path;
    void (*fn)(struct call *c);
    unsigned flags;
};

/* Finds the route, or NULL with *path_known telling 405 from 404. */
const struct route *route_find(const char *method, const char *path, const char **tail,
                               bool *path_known);
/* "GET, POST": what path answers to, for the Allow header. */
void route_methods(const char *path, char out[64]);

/* llama.c */
void llama_health(struct call *c);
void llama_props(struct call *c);
void llama_slots(struct call *c);
void llama_tokenize(struct call *c);
void llama_detokenize(struct call *c);
void llama_completion(struct call *c);
/* metrics.c */
void metrics_get(struct call *c);
/* cache_view.c */
void cache_view_get(struct call *c);
void cache_view_delete(struct call *c);
/* cache_keep.c */
void cache_pin_post(struct call *c);
void cache_unpin_post(struct call *c);
void cache_warm_post(struct call *c);
/* slots.c */
void slots_action(struct call *c);
/* explain.c */
void explain_get(struct call *c);
/* openai_models.c, openai_completions.c */
void openai_models(struct call *c);
void openai_model(struct call *c);
void openai_completions(struct call *c);
/* openai_chat.c */
void openai_chat(struct call *c);
void openai_apply_template(struct call *c);
/* openai_responses.c */
void openai_responses(struct call *c);
/* anthropic.c */
void anthropic_messages(struct call *c);
void anthropic_count_tokens(struct call *c);

#endif
