/* openai_completions.c - POST /v1/completions, whole and streamed.
 *
 * Source: OpenAI's API reference, "Completions" (legacy).  Our timings object comes along in the last
 * object, as from llama-server; max_tokens has no default of 16: without it the answer ends by itself.
 */
#include "base/mem.h"
#include "base/utf8.h"
#include "server/gen.h"
#include "server/reply.h"
#include "server/route.h"
#include "server/shape.h"

struct completion {
    struct call *c;
    struct params p;
    struct prompts prompts;
    bool echo;
    int64_t n_top; /* logprobs: alternatives to list; -1: none asked for */
    char id[48];
    int64_t created;
    struct gen g;
    struct answer *answers; /* [g.n]; in a stream without what has been sent */
    struct buf *echoes;     /* [prompts.n]; NULL without echo */
};

/* ---- the request ---- */

static enum rc read_request(struct completion *m, struct err *err)
{
    const json_t *o = m->c->body;
    const char *suffix = NULL;
    int64_t best_of = -1;
    m->n_top = -1;
    enum rc rc = params_read(m->c, &m->p, err);
    if (!rc)
        rc = jread_str(o, "suffix", &suffix, err);
    if (!rc && suffix && *suffix)
        rc = err_set(err, RC_UNSUPPORTED, "suffix is not supported");
    if (!rc)
        rc = jread_bool(o, "echo", &m->echo, err);
    if (!rc)
        rc = jread_i64(o, "best_of", 1, MAX_CHOICES, &best_of, err);
    if (!rc && best_of > 0 && best_of != m->p.n)
        rc = err_set(err, RC_UNSUPPORTED, "best_of is not supported unless it equals n");
    if (!rc && json_is_boolean(json_object_get(o, "logprobs")))
        rc = err_set(err, RC_ARG, "logprobs must be a number of alternatives here, 0 to 20");
    if (!rc)
        rc = jread_i64(o, "logprobs", 0, 20, &m->n_top, err);
    if (!rc && m->n_top >= 0 && m->echo)
        rc = err_set(err, RC_UNSUPPORTED, "logprobs is not supported together with echo");
    if (m->n_top >= 0)
        m->p.n_probs = (uint32_t)MAX(m->n_top, 1); /* 0 still wants the chosen token's own */
    if (!rc)
        rc = prompts_read(m->c, "prompt", &m->prompts, err);
    return rc;
}

static bool make_echoes(struct completion *m)
{
    if (!m->echo)
        return true;
    m->echoes = mem_try_array(m->prompts.n, sizeof *m->echoes);
    if (m->echoes) {
        bool ok = true;
        for (uint32_t i = 0; i < m->prompts.n; i++) {
            prompt_text(m->c, m->prompts.v[i].v, m->prompts.v[i].n, &m->echoes[i]);
            ok = ok && !m->echoes[i].failed;
        }
        if (ok)
            return true;
    }
    struct err err;
    err_set(&err, RC_NOMEM, "out of memory for the echo");
    reply_error(m->c, &err);
    return false;
}

/* ---- the reply ---- */

static const char *finish_reason(enum stop_kind k)
{
    return k == STOP_EOG || k == STOP_WORD ? "stop" : "length";
}

static void begin_object(struct jwrite *w, struct buf *b, const struct completion *m)
{
    jwrite_init(w, b);
    jwrite_obj(w, NULL);
    jwrite_str(w, "id", m->id);
    jwrite_str(w, "object", "text_completion");
    jwrite_i64(w, "created", m->created);
    jwrite_str(w, "model", m->c->m->alias);
    jwrite_str(w, "system_fingerprint", "holdfast-" HOLDFAST_VERSION);
    jwrite_arr(w, "choices");
}

/* A token's text, or OpenAI's notation for bytes that are none. */
static void token_name(const struct completion *m, token t, struct buf *out)
{
    const struct str s = token_bytes(m->c, t);
    buf_clear(out);
    if (utf8_valid(s.p, s.n)) {
        buf_add(out, s.p, s.n);
        return;
    }
    buf_adds(out, "bytes:");
    for (size_t i = 0; i < s.n; i++)
        buf_addf(out, "\\x%02x", (unsigned)(unsigned char)s.p[i]);
}

/* OpenAI's logprobs: four arrays side by side.  offset: bytes of the answer before the first token. */
static void write_logprobs(struct jwrite *w, const struct completion *m, const struct prob *probs,
                           size_t n, size_t offset)
{
    const size_t width = 1 + (size_t)m->p.n_probs;
    struct buf name = BUF_INIT;
    if (m->n_top < 0 || !probs) {
        jwrite_null(w, "logprobs");
        return;
    }
    jwrite_obj(w, "logprobs");
    jwrite_arr(w, "tokens");
    for (size_t i = 0; i < n; i++) {
        token_name(m, probs[i * width].id, &name);
        jwrite_str(w, NULL, buf_str(&name));
    }
    jwrite_end_arr(w);
    jwrite_arr(w, "token_logprobs");
    for (size_t i = 0; i < n; i++)
        jwrite_f64(w, NULL, (double)probs[i * width].logprob);
    jwrite_end_arr(w);
    jwrite_arr(w, "top_logprobs");
    for (size_t i = 0; i < n; i++) {
        jwrite_obj(w, NULL);
        for (int64_t k = 1; k <= m->n_top; k++) {
            const struct prob *p = &probs[i * width + (size_t)k];
            token_name(m, p->id, &name);
            jwrite_f64(w, buf_str(&name), (double)p->logprob);
        }
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
    jwrite_arr(w, "text_offset");
    for (size_t i = 0; i < n; i++) {
        jwrite_u64(w, NULL, offset);
        offset += token_bytes(m->c, probs[i * width].id).n;
    }
    jwrite_end_arr(w);
    jwrite_end_obj(w);
    w->b->failed |= name.failed;
    buf_release(&name);
}

static void write_choice(struct jwrite *w, const struct completion *m, uint32_t i)
{
    const struct answer *a = &m->answers[i];
    struct buf text = BUF_INIT;
    if (m->echo)
        buf_add(&text, m->echoes[i / m->g.per_prompt].p, m->echoes[i / m->g.per_prompt].n);
    buf_add(&text, a->text.p, a->text.n);
    jwrite_obj(w, NULL);
    jwrite_strn(w, "text", buf_str(&text), text.n);
    jwrite_u64(w, "index", i);
    write_logprobs(w, m, a->probs, a->tokens.n, 0);
    jwrite_str(w, "finish_reason", finish_reason(a->stop));
    jwrite_end_obj(w);
    w->b->failed |= text.failed;
    buf_release(&text);
}

static void reply_whole(struct completion *m)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (!gen_collect(&m->g, m->answers))
        return;
    begin_object(&w, &b, m);
    for (uint32_t i = 0; i < m->g.n; i++)
        write_choice(&w, m, i);
    jwrite_end_arr(&w);
    shape_usage(&w, &m->g, m->answers, -1);
    shape_timings(&w, &m->answers[m->g.n - 1].timings);
    jwrite_end_obj(&w);
    reply_json(m->c, 200, &b);
    buf_release(&b);
}

/* ---- the stream ---- */

/* One choice's share; finish: NULL while it goes on. */
static void send_chunk(struct completion *m, uint32_t i, const struct piece *p, struct str text,
                       const char *finish)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_object(&w, &b, m);
    jwrite_obj(&w, NULL);
    jwrite_strn(&w, "text", text.p, text.n);
    jwrite_u64(&w, "index", i);
    if (finish)
        jwrite_null(&w, "logprobs");
    else
        write_logprobs(&w, m, p->probs, p->n_tokens, m->answers[i].n_bytes);
    jwrite_str(&w, "finish_reason", finish);
    jwrite_end_obj(&w);
    jwrite_end_arr(&w);
    if (m->p.include_usage)
        jwrite_null(&w, "usage");
    if (finish || m->p.timings_per_token)
        shape_timings(&w, &p->timings);
    if (!p->n_tokens && !finish && !text.n)
        shape_progress(&w, &p->timings);
    jwrite_end_obj(&w);
    stream_event(m->g.stream, NULL, &b);
    buf_release(&b);
}

static void send_usage(struct completion *m)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin_object(&w, &b, m);
    jwrite_end_arr(&w);
    shape_usage(&w, &m->g, m->answers, -1);
    jwrite_end_obj(&w);
    stream_event(m->g.stream, NULL, &b);
    buf_release(&b);
}

static void reply_stream(struct completion *m)
{
    struct piece *p;
    uint32_t which;
    bool failed = false;
    while ((p = gen_next(&m->g, &which))) {
        struct answer *a = &m->answers[which];
        struct err err;
        if (m->echo && !a->n_tokens && (p->n_tokens || p->last)) {
            const struct buf *e = &m->echoes[which / m->g.per_prompt];
            const struct piece none = {.timings = p->timings};
            send_chunk(m, which, &none, (struct str){buf_str(e), e->n}, NULL);
        }
        if (p->text.n || p->n_tokens || (m->p.return_progress && !p->last))
            send_chunk(m, which, p, (struct str){buf_str(&p->text), p->text.n}, NULL);
        answer_note(a, p);
        if (p->last && gen_failed(a, &err)) {
            stream_error(m->g.stream, &err);
            failed = true;
        } else if (p->last) {
            send_chunk(m, which, p, (struct str){"", 0}, finish_reason(p->stop));
        }
        piece_free(p);
    }
    if (m->g.gone || failed)
        return;
    if (m->p.include_usage)
        send_usage(m);
    stream_done(m->g.stream);
}

void openai_completions(struct call *c)
{
    struct completion m = {.c = c, .created = call_time()};
    struct err err;
    call_id(c, "cmpl-", m.id);
    c->id = m.id;
    if (read_request(&m, &err)) {
        reply_error(c, &err);
    } else if (make_echoes(&m)) {
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
    for (uint32_t i = 0; m.echoes && i < m.prompts.n; i++)
        buf_release(&m.echoes[i]);
    mem_free(m.echoes);
    prompts_release(&m.prompts);
    params_release(&m.p);
}
