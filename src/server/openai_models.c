/* openai_models.c - GET /v1/models and /v1/models/{id}: the one model that is served. */
#include <string.h>

#include "server/reply.h"
#include "server/route.h"

static void write_model(struct jwrite *w, const struct call *c)
{
    jwrite_obj(w, NULL);
    jwrite_str(w, "id", c->m->alias);
    jwrite_str(w, "object", "model");
    jwrite_i64(w, "created", (int64_t)(c->s->started_ns / 1000000000));
    jwrite_str(w, "owned_by", "holdfast");
    jwrite_obj(w, "meta"); /* llama-server's */
    jwrite_str(w, "arch", c->m->arch);
    jwrite_i64(w, "vocab_type", 2); /* byte-level BPE */
    jwrite_u64(w, "n_vocab", c->m->n_vocab);
    jwrite_u64(w, "n_ctx", engine_n_ctx(c->m->engine));
    jwrite_u64(w, "n_ctx_train", c->m->n_ctx_train);
    jwrite_u64(w, "n_embd", c->m->n_embd);
    jwrite_u64(w, "n_params", c->m->n_params);
    jwrite_u64(w, "size", c->m->weight_bytes);
    jwrite_end_obj(w);
    jwrite_end_obj(w);
}

void openai_models(struct call *c)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "object", "list");
    jwrite_arr(&w, "data");
    write_model(&w, c);
    jwrite_end_arr(&w);
    jwrite_end_obj(&w);
    reply_json(c, 200, &b);
    buf_release(&b);
}

void openai_model(struct call *c)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (strcmp(c->tail, c->m->alias) != 0) {
        reply_refuse(c, 404, "not_found_error", "no such model; GET /v1/models has the one served");
        return;
    }
    jwrite_init(&w, &b);
    write_model(&w, c);
    reply_json(c, 200, &b);
    buf_release(&b);
}
