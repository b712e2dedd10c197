/* llama.c - llama-server's small routes, in its shapes: /health, /props, /slots, /tokenize,
 * /detokenize.  Source: the README of llama.cpp's server. */
#include "base/utf8.h"
#include "server/params.h"
#include "server/prompt.h"
#include "server/reply.h"
#include "server/route.h"

/* ---- small facts ---- */

void llama_health(struct call *c)
{
    struct buf b = BUF_INIT;
    if (!c->m) {
        reply_refuse(c, 503, "unavailable_error", "Loading model");
        return;
    }
    buf_adds(&b, "{\"status\":\"ok\"}");
    reply_json(c, 200, &b);
    buf_release(&b);
}

static void write_token_text(struct jwrite *w, const char *key, const struct call *c, token t)
{
    const struct str s = t < 0 ? (struct str){"", 0} : vocab_text(c->m->vocab, t);
    jwrite_strn(w, key, s.p, s.n);
}

void llama_props(struct call *c)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    struct params p = {.sampling = c->s->o.sampling, .n_predict = c->s->o.n_predict};
    const struct str template = vocab_chat_template(c->m->vocab);
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    jwrite_obj(&w, "default_generation_settings");
    params_write(&w, "params", &p, p.sampling.has_seed ? p.sampling.seed : UINT32_MAX);
    jwrite_u64(&w, "n_ctx", engine_n_ctx(c->m->engine));
    jwrite_end_obj(&w);
    jwrite_u64(&w, "total_slots", c->m->n_parallel);
    jwrite_str(&w, "model_alias", c->m->alias);
    jwrite_str(&w, "model_path", c->m->path);
    jwrite_strn(&w, "chat_template", template.p, template.n);
    write_token_text(&w, "bos_token", c, vocab_bos(c->m->vocab));
    write_token_text(&w, "eos_token", c, vocab_eos(c->m->vocab));
    jwrite_obj(&w, "modalities");
    jwrite_bool(&w, "vision", false);
    jwrite_bool(&w, "audio", false);
    jwrite_end_obj(&w);
    jwrite_str(&w, "build_info", "holdfast " HOLDFAST_VERSION);
    jwrite_bool(&w, "is_sleeping", false);
    jwrite_end_obj(&w);
    reply_json(c, 200, &b);
    buf_release(&b);
}

static void write_slot(struct jwrite *w, const struct call *c, const struct slot_view *s)
{
    jwrite_obj(w, NULL);
    jwrite_u64(w, "id", s->id);
    jwrite_i64(w, "id_task", s->job ? (int64_t)s->job : -1);
    jwrite_u64(w, "n_ctx", engine_n_ctx(c->m->engine));
    jwrite_bool(w, "speculative", false);
    jwrite_bool(w, "is_processing", s->job != 0);
    jwrite_u64(w, "n_prompt_tokens", s->n_prompt);
    jwrite_u64(w, "n_prompt_tokens_processed", s->n_done);
    jwrite_obj(w, "next_token");
    jwrite_bool(w, "has_next_token", s->job && !s->prefill);
    jwrite_u64(w, "n_decoded", s->n_predicted);
    jwrite_end_obj(w);
    jwrite_end_obj(w);
}

void llama_slots(struct call *c)
{
    struct engine_view v;
    struct err err;
    if (c->s->o.no_slots) {
        reply_refuse(c, 501, "not_supported_error", "this server was started with --no-slots");
        return;
    }
    if (engine_view(c->m->engine, false, &v, &err)) {
        reply_error(c, &err);
        return;
    }
    uint32_t n_idle = 0;
    struct buf b = BUF_INIT;
    struct jwrite w;
    jwrite_init(&w, &b);
    jwrite_arr(&w, NULL);
    for (uint32_t i = 0; i < v.n_slots; i++) {
        n_idle += !v.slots[i].job;
        write_slot(&w, c, &v.slots[i]);
    }
    jwrite_end_arr(&w);
    if (!n_idle && http_query(c->r, "fail_on_no_slot"))
        reply_refuse(c, 503, "unavailable_error", "no slot available");
    else
        reply_json(c, 200, &b);
    buf_release(&b);
    engine_view_release(&v);
}

/* ---- tokenize, detokenize ---- */

static void write_piece(struct jwrite *w, const struct call *c, token t)
{
    const struct str s = token_bytes(c, t);
    jwrite_obj(w, NULL);
    jwrite_i64(w, "id", t);
    if (utf8_valid(s.p, s.n)) {
        jwrite_strn(w, "piece", s.p, s.n);
    } else {
        jwrite_arr(w, "piece");
        for (size_t i = 0; i < s.n; i++)
            jwrite_i64(w, NULL, (unsigned char)s.p[i]);
        jwrite_end_arr(w);
    }
    jwrite_end_obj(w);
}

void llama_tokenize(struct call *c)
{
    struct bpe_opts o = {.parse_special = true};
    struct tokens t = {0};
    struct err err;
    bool pieces = false;
    const json_t *content = json_object_get(c->body, "content");
    enum rc rc = jread_bool(c->body, "add_special", &o.add_special, &err);
    if (!rc)
        rc = jread_bool(c->body, "parse_special", &o.parse_special, &err);
    if (!rc)
        rc = jread_bool(c->body, "with_pieces", &pieces, &err);
    if (!rc && !content)
        rc = err_set(&err, RC_ARG, "content is missing");
    if (!rc)
        rc = prompt_tokens(c, "content", content, &o, &t, &err);
    if (rc) {
        reply_error(c, &err);
    } else {
        struct buf b = BUF_INIT;
        struct jwrite w;
        jwrite_init(&w, &b);
        jwrite_obj(&w, NULL);
        jwrite_arr(&w, "tokens");
        for (size_t i = 0; i < t.n; i++) {
            if (pieces)
                write_piece(&w, c, t.v[i]);
            else
                jwrite_i64(&w, NULL, t.v[i]);
        }
        jwrite_end_arr(&w);
        jwrite_end_obj(&w);
        reply_json(c, 200, &b);
        buf_release(&b);
    }
    tokens_release(&t);
}

void llama_detokenize(struct call *c)
{
    struct tokens t = {0};
    struct err err;
    const json_t *list = json_object_get(c->body, "tokens");
    enum rc rc = RC_OK;
    if (!list)
        rc = err_set(&err, RC_ARG, "tokens is missing");
    else if (!json_is_array(list))
        rc = err_set(&err, RC_ARG, "tokens must be an array of token ids");
    for (size_t i = 0; i < json_array_size(list) && !rc; i++)
        if (!json_is_integer(json_array_get(list, i)))
            rc = err_set(&err, RC_ARG, "tokens[%zu] is no token id", i);
    if (!rc)
        rc = prompt_tokens(c, "tokens", list, &(struct bpe_opts){0}, &t, &err);
    if (rc) {
        reply_error(c, &err);
    } else {
        struct buf text = BUF_INIT, b = BUF_INIT;
        struct jwrite w;
        prompt_text(c, t.v, t.n, &text);
        jwrite_init(&w, &b);
        jwrite_obj(&w, NULL);
        jwrite_strn(&w, "content", buf_str(&text), text.n);
        jwrite_end_obj(&w);
        b.failed |= text.failed;
        reply_json(c, 200, &b);
        buf_release(&text);
        buf_release(&b);
    }
    tokens_release(&t);
}
