/* llama_completion.c - POST /completion, llama-server's shape.
 *
 * Source: the README of llama.cpp's server.  Where that leaves a choice: tokens_cached is the number of
 * tokens the sequence held at its end, id_slot is where it ran, for POST /slots/{n}, and model is the
 * alias that is served, whatever the request called it.  id is ours: it names the response for
 * /cache/explain.
 */
#include <string.h>

#include "base/mem.h"
#include "server/gen.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/shape.h"

struct completion {
    struct call *c;
    char id[48];
    struct params p;
    struct prompts prompts;
    struct cache_hint *hints;
    const json_t *fields; /* response_fields, or NULL */
    struct gen g;
    struct answer *answers; /* [g.n]; in a stream without what has been sent */
};

static const char *stop_type(enum stop_kind k)
{
    switch (k) {
    case STOP_EOG:
        return "eos";
    case STOP_WORD:
        return "word";
    case STOP_LIMIT:
    case STOP_CONTEXT:
        return "limit";
    default:
        return "none";
    }
}

static void write_tokens(struct jwrite *w, const char *key, const token *t, size_t n)
{
    jwrite_arr(w, key);
    for (size_t i = 0; i < n; i++)
        jwrite_i64(w, NULL, t[i]);
    jwrite_end_arr(w);
}

/* The final object.  In a stream the text and tokens have been sent before. */
static void write_final(struct buf *b, const struct completion *m, uint32_t i,
                        const struct answer *a)
{
    const struct tokens *prompt = &m->prompts.v[i / m->g.per_prompt];
    const bool whole = !m->p.stream;
    struct jwrite w;
    struct buf text = BUF_INIT;
    jwrite_init(&w, b);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "id", m->id);
    jwrite_u64(&w, "index", i);
    jwrite_strn(&w, "content", buf_str(&a->text), whole ? a->text.n : 0);
    write_tokens(&w, "tokens", a->tokens.v, whole && m->p.return_tokens ? a->tokens.n : 0);
    jwrite_i64(&w, "id_slot", a->slot);
    jwrite_bool(&w, "stop", true);
    jwrite_str(&w, "model", m->c->m->alias);
    jwrite_u64(&w, "tokens_predicted", a->timings.n_predicted);
    jwrite_u64(&w, "tokens_evaluated", a->timings.n_prompt);
    params_write(&w, "generation_settings", &m->p, job_seed(m->g.jobs[i]));
    prompt_text(m->c, prompt->v, prompt->n, &text);
    jwrite_strn(&w, "prompt", buf_str(&text), text.n);
    jwrite_bool(&w, "has_new_line", a->newline);
    jwrite_bool(&w, "truncated", a->stop == STOP_CONTEXT);
    jwrite_str(&w, "stop_type", stop_type(a->stop));
    jwrite_str(&w, "stopping_word", a->stop_word ? a->stop_word : "");
    /* the token sampled last was never evaluated */
    jwrite_u64(&w, "tokens_cached",
               a->timings.n_prompt + a->timings.n_predicted - (a->timings.n_predicted > 0));
    shape_timings(&w, &a->timings);
    if (whole && a->probs)
        shape_probs(&w, "completion_probabilities", m->c, a->probs, a->tokens.n, a->n_probs,
                    a->n_probs);
    jwrite_end_obj(&w);
    b->failed |= text.failed;
    buf_release(&text);
}

static json_t *at_path(json_t *o, const char *path, const char **leaf)
{
    char key[128];
    for (const char *p = path; o;) {
        const size_t n = strcspn(p, "/");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, p, n);
        key[n] = 0;
        o = json_object_get(o, key);
        *leaf = p;
        if (!p[n])
            return o;
        p += n + 1;
    }
    return NULL;
}

/* response_fields: only those named; "a/b" becomes a top-level b. */
static void select_fields(struct buf *b, const json_t *fields)
{
    json_t *whole = NULL;
    if (!fields || b->failed || jread_parse(buf_str(b), b->n, &whole, NULL))
        return;
    json_t *chosen = json_object();
    for (size_t i = 0; i < json_array_size(fields); i++) {
        const char *leaf = NULL;
        json_t *v = at_path(whole, json_string_value(json_array_get(fields, i)), &leaf);
        if (v && json_object_set(chosen, leaf, v))
            b->failed = true;
    }
    struct jwrite w;
    buf_clear(b);
    jwrite_init(&w, b);
    jwrite_json(&w, NULL, chosen);
    json_decref(chosen);
    json_decref(whole);
}

static void reply_whole(struct completion *m)
{
    const bool list = m->prompts.several || m->g.per_prompt > 1;
    struct buf b = BUF_INIT;
    if (!gen_collect(&m->g, m->answers))
        return;
    if (list)
        buf_addc(&b, '[');
    for (uint32_t i = 0; i < m->g.n; i++) {
        struct buf one = BUF_INIT;
        if (i)
            buf_addc(&b, ',');
        write_final(&one, m, i, &m->answers[i]);
        select_fields(&one, m->fields);
        buf_add(&b, buf_str(&one), one.n);
        b.failed |= one.failed;
        buf_release(&one);
    }
    if (list)
        buf_addc(&b, ']');
    reply_json(m->c, 200, &b);
    buf_release(&b);
}

static void write_partial(struct buf *b, const struct completion *m, uint32_t i,
                          const struct piece *p)
{
    struct jwrite w;
    jwrite_init(&w, b);
    jwrite_obj(&w, NULL);
    jwrite_u64(&w, "index", i);
    jwrite_strn(&w, "content", buf_str(&p->text), p->text.n);
    write_tokens(&w, "tokens", p->tokens, p->n_tokens);
    jwrite_bool(&w, "stop", false);
    jwrite_i64(&w, "id_slot", p->slot);
    jwrite_u64(&w, "tokens_predicted", p->timings.n_predicted);
    jwrite_u64(&w, "tokens_evaluated", p->timings.n_prompt);
    if (m->p.timings_per_token)
        shape_timings(&w, &p->timings);
    if (!p->n_tokens)
        shape_progress(&w, &p->timings);
    if (p->probs)
        shape_probs(&w, "completion_probabilities", m->c, p->probs, p->n_tokens, p->n_probs,
                    p->n_probs);
    jwrite_end_obj(&w);
}

static void reply_stream(struct completion *m)
{
    struct piece *p;
    uint32_t which;
    while ((p = gen_next(&m->g, &which))) {
        struct buf b = BUF_INIT;
        struct err err;
        if (p->text.n || p->n_tokens || (m->p.return_progress && !p->last)) {
            write_partial(&b, m, which, p);
            stream_event(m->g.stream, NULL, &b);
            buf_clear(&b);
        }
        answer_note(&m->answers[which], p);
        if (p->last && gen_failed(&m->answers[which], &err)) {
            stream_error(m->g.stream, &err);
        } else if (p->last) {
            write_final(&b, m, which, &m->answers[which]);
            select_fields(&b, m->fields);
            stream_event(m->g.stream, NULL, &b);
        }
        buf_release(&b);
        piece_free(p);
    }
}

static enum rc read_fields(struct completion *m, struct err *err)
{
    const json_t *v = json_object_get(m->c->body, "response_fields");
    if (!v || json_is_null(v) || !json_array_size(v))
        return json_is_array(v) || !v || json_is_null(v)
                   ? RC_OK
                   : err_set(err, RC_ARG, "response_fields must be an array of strings");
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            return err_set(err, RC_ARG, "response_fields[%zu] must be a string", i);
    m->fields = v;
    return RC_OK;
}

/* cache_hints: [[position, "role letter"], ...], where messages begin in a prompt that the client made itself. */
static enum rc read_hints(struct completion *m, struct err *err)
{
    const json_t *list = json_object_get(m->c->body, "cache_hints");
    const size_t n = json_array_size(list);
    if (!list || json_is_null(list))
        return RC_OK;
    if (!json_is_array(list) || m->prompts.n != 1)
        return err_set(err, RC_ARG, "cache_hints must be an array, of one prompt's boundaries");
    const size_t n_prompt = m->prompts.v[0].n;
    if (n > n_prompt)
        return err_set(err, RC_ARG, "cache_hints has %zu places, the prompt %zu tokens", n,
                       n_prompt);
    m->hints = mem_try_array(n, sizeof *m->hints);
    if (!m->hints && n)
        return err_set(err, RC_NOMEM, "out of memory for cache_hints");
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, i);
        const int64_t pos = json_integer_value(json_array_get(pair, 0));
        const char *role = json_string_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !json_is_integer(json_array_get(pair, 0)) || !role ||
            strlen(role) != 1 || !strchr("suaovg", *role))
            return err_set(err, RC_ARG,
                           "cache_hints[%zu] is no [position, role] with a role of s u a o v g", i);
        if (pos < 0 || (uint64_t)pos >= n_prompt || (i && pos < m->hints[i - 1].pos))
            return err_set(err, RC_ARG,
                           "cache_hints[%zu]: %" PRId64 " is out of order or beyond the prompt", i,
                           pos);
        m->hints[i] = (struct cache_hint){(uint32_t)pos, *role};
    }
    m->prompts.hints = m->hints;
    m->prompts.n_hints = (uint32_t)n;
    return RC_OK;
}

void llama_completion(struct call *c)
{
    struct completion m = {.c = c};
    struct err err;
    call_id(c, "cmpl-", m.id);
    c->id = m.id;
    enum rc rc = params_read(c, &m.p, &err);
    if (!rc)
        rc = read_fields(&m, &err);
    if (!rc)
        rc = prompts_read(c, "prompt", &m.prompts, &err);
    if (!rc)
        rc = read_hints(&m, &err);
    if (rc) {
        reply_error(c, &err);
    } else {
        struct stream st;
        stream_init(&st, c, m.p.sse_ping_s);
        if (gen_start(&m.g, c, &m.prompts, &m.p, m.p.stream ? &st : NULL)) {
            m.answers = answers_new(&m.g);
            if (m.answers && m.p.stream)
                reply_stream(&m);
            else if (m.answers)
                reply_whole(&m);
            answers_free(&m.g, m.answers);
            gen_end(&m.g);
        }
        stream_release(&st);
    }
    prompts_release(&m.prompts);
    mem_free(m.hints);
    params_release(&m.p);
}
