#include "lab/live.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "lab/sim.h"
#include "net/client.h"

/* What a request was answered, instead of the trace's tokens of stream cid. */
struct said {
    int64_t cid;
    token *tokens;
    uint32_t n;
};

struct live {
    const struct trace *t;
    const struct live_opts *o;
    struct live_result *res;
    struct client *client;
    struct buf reply;
    uint32_t n_ctx, n_vocab;
    struct said *said; /* [t->n] of request i; no tokens: it says nothing */
    struct trace_tokens x;
};

/* ---- asking ---------------------------------------------------------------------------------- */

/* *out is owned by the caller. */
static enum rc ask(struct live *l, struct client *c, const char *method, const char *path,
                   struct str body, json_t **out, struct err *err)
{
    enum rc rc = client_call(c, method, path, body, &l->reply, err);
    *out = NULL;
    if (!rc && client_status(c) != 200)
        rc = err_set(err, RC_IO, "%s: status %d: %.150s", path, client_status(c),
                     buf_str(&l->reply));
    if (!rc)
        rc = jread_parse(buf_str(&l->reply), l->reply.n, out, err);
    return rc;
}

static enum rc number(const json_t *o, const char *key, uint64_t max, uint64_t *out,
                      struct err *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max)
        return err_set(err, RC_FORMAT, "the server does not tell its %s: it is no holdfast", key);
    *out = (uint64_t)json_integer_value(v);
    return RC_OK;
}

/* Sizes and budgets of the server. */
static enum rc ask_facts(struct live *l, struct err *err)
{
    json_t *cache, *models = NULL;
    uint64_t n_ctx = 0, n_vocab = 0, page = 0, step = 0, requests = 0;
    enum rc rc = ask(l, l->client, "GET", "/cache", (struct str){0}, &cache, err);
    if (!rc)
        rc = ask(l, l->client, "GET", "/v1/models", (struct str){0}, &models, err);
    const json_t *meta =
        json_object_get(json_array_get(json_object_get(models, "data"), 0), "meta");
    struct live_result *r = l->res;
    if (!rc)
        rc = number(cache, "budget_bytes", INT64_MAX, &r->budget_bytes, err);
    if (!rc)
        rc = number(cache, "bytes_per_snapshot", INT64_MAX, &r->snap_bytes, err);
    if (!rc)
        rc = number(cache, "bytes_per_token", INT64_MAX, &r->token_bytes, err);
    if (!rc)
        rc = number(cache, "page_tokens", 65536, &page, err);
    if (!rc)
        rc = number(cache, "step", UINT32_MAX, &step, err);
    if (!rc)
        rc = number(cache, "requests", INT64_MAX, &requests, err);
    if (!rc)
        rc = number(meta, "n_ctx", UINT32_MAX, &n_ctx, err);
    if (!rc)
        rc = number(meta, "n_vocab", INT32_MAX, &n_vocab, err);
    const char *policy = json_string_value(json_object_get(cache, "policy"));
    if (!rc && (!policy || strlen(policy) >= sizeof r->policy))
        rc = err_set(err, RC_FORMAT, "the server does not tell its cache policy");
    if (!rc && requests)
        rc = err_set(err, RC_STALE,
                     "the server has answered %" PRIu64 " requests already: its cache must be "
                     "empty, or nothing can be predicted",
                     requests);
    if (!rc) {
        snprintf(r->policy, sizeof r->policy, "%s", policy);
        r->page_tokens = (uint32_t)page;
        r->step = (uint32_t)step;
        l->n_ctx = (uint32_t)n_ctx;
        /* control tokens stand at the end of a vocabulary */
        l->n_vocab = (uint32_t)(n_vocab - n_vocab / 8);
    }
    json_decref(cache);
    json_decref(models);
    return rc;
}

static enum rc check_lengths(const struct live *l, struct err *err)
{
    for (uint32_t i = 0; i < l->t->n; i++) {
        const struct trace_req *r = &l->t->reqs[i];
        if ((uint64_t)r->n_prompt + r->n_gen + 1 > l->n_ctx)
            return err_set(err, RC_LIMIT,
                           "request %" PRIu32 " has %" PRIu32 " tokens and %" PRIu32
                           " to generate, the server's context is %" PRIu32 ": scale the trace",
                           i, r->n_prompt, r->n_gen, l->n_ctx);
    }
    return RC_OK;
}

/* ---- the prediction -------------------------------------------------------------------------- */

static enum rc predict(struct live *l, struct err *err)
{
    struct live_result *r = l->res;
    const struct sim_opts o = {.policy = r->policy,
                               .ram_bytes = r->budget_bytes,
                               .snap_bytes = r->snap_bytes,
                               .token_bytes = r->token_bytes,
                               .page_tokens = r->page_tokens,
                               .step = r->step,
                               .charge_tree = true,
                               .no_hints = l->o->no_hints};
    struct sim_result res;
    uint32_t *oracle = NULL, *reused = mem_try_array(l->t->n, sizeof *reused);
    enum rc rc = reused ? sim_oracle(l->t, &oracle, err)
                        : err_set(err, RC_NOMEM, "no memory for the prediction");
    if (!rc)
        rc = sim_run(l->t, &o, oracle, reused, &res, err);
    for (uint32_t i = 0; !rc && i < l->t->n; i++) {
        r->all[i].n_prompt = l->t->reqs[i].n_prompt;
        r->all[i].predicted = reused[i];
        r->predicted += reused[i];
        r->prompt_tokens += l->t->reqs[i].n_prompt;
    }
    mem_free(oracle);
    mem_free(reused);
    return rc;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* The latest request before i that generated the stream. */
static const struct said *find_said(const struct live *l, int64_t cid, uint32_t i)
{
    while (i--)
        if (l->said[i].tokens && l->said[i].cid == cid)
            return &l->said[i];
    return NULL;
}

/* Request i into l->x, with what was really said; segments of kind 0 alone can have been generated. */
static enum rc expand(struct live *l, uint32_t i, struct err *err)
{
    const enum rc rc = trace_expand(l->t, i, l->n_vocab, &l->x, err);
    uint32_t pos = 0;
    for (uint32_t k = 0; !rc && k < l->x.n_list && pos < l->x.n_prompt; k++) {
        const struct trace_seg *s = l->x.list[k];
        const struct said *said = s->kind ? NULL : find_said(l, s->cid, i);
        if (said)
            memcpy(l->x.seq + pos, said->tokens, MIN(said->n, s->len) * sizeof *said->tokens);
        pos += s->len;
    }
    return rc;
}

static void write_request(struct buf *b, const struct live *l, bool no_cache)
{
    struct jwrite w;
    const struct trace_tokens *x = &l->x;
    jwrite_init(&w, b);
    jwrite_obj(&w, NULL);
    jwrite_arr(&w, "prompt");
    for (uint32_t i = 0; i < x->n_prompt; i++)
        jwrite_i64(&w, NULL, x->seq[i]);
    jwrite_end_arr(&w);
    if (!l->o->no_hints) {
        jwrite_arr(&w, "cache_hints");
        for (uint32_t i = 0; i < x->n_hints; i++) {
            const char role[2] = {x->hints[i].role, 0};
            jwrite_arr(&w, NULL);
            jwrite_u64(&w, NULL, x->hints[i].pos);
            jwrite_str(&w, NULL, role);
            jwrite_end_arr(&w);
        }
        jwrite_end_arr(&w);
    }
    jwrite_u64(&w, "n_predict", x->n_gen ? x->n_gen + 1 : 0);
    jwrite_f64(&w, "temperature", 0);
    jwrite_bool(&w, "ignore_eos", true);
    jwrite_bool(&w, "return_tokens", true);
    jwrite_bool(&w, "cache_prompt", !no_cache);
    jwrite_arr(&w, "response_fields");
    jwrite_str(&w, NULL, "tokens");
    jwrite_str(&w, NULL, "content");
    jwrite_str(&w, NULL, "timings");
    jwrite_end_arr(&w);
    jwrite_end_obj(&w);
}

/* Sends the request in l->x; *out is owned by the caller. */
static enum rc complete(struct live *l, struct client *c, bool no_cache, json_t **out,
                        struct err *err)
{
    struct buf body = BUF_INIT;
    write_request(&body, l, no_cache);
    enum rc rc =
        body.failed
            ? err_set(err, RC_NOMEM, "no memory for a request of %" PRIu32 " tokens", l->x.n_prompt)
            : ask(l, c, "POST", "/completion", (struct str){body.p, body.n}, out, err);
    const json_t *tokens = json_object_get(*out, "tokens");
    const size_t want = l->x.n_gen ? (size_t)l->x.n_gen + 1 : 0;
    if (!rc && json_array_size(tokens) != want) {
        rc = err_set(err, RC_FORMAT, "the server generated %zu tokens, not %zu",
                     json_array_size(tokens), want);
        json_decref(*out);
        *out = NULL;
    }
    buf_release(&body);
    return rc;
}

/* ---- the run --------------------------------------------------------------------------------- */

static void wait_until(uint64_t due_ns)
{
    for (uint64_t now; (now = clock_mono_ns()) < due_ns;)
        poll(NULL, 0, (int)MIN((due_ns - now) / 1000000 + 1, UINT64_C(1000)));
}

static enum rc keep_said(struct live *l, uint32_t i, const json_t *tokens, struct err *err)
{
    struct said *s = &l->said[i];
    const size_t n = json_array_size(tokens);
    if (!n)
        return RC_OK;
    s->tokens = mem_try_array(n, sizeof *s->tokens);
    if (!s->tokens)
        return err_set(err, RC_NOMEM, "no memory for %zu generated tokens", n);
    s->cid = l->x.list[l->x.n_list - 1]->cid;
    s->n = (uint32_t)n;
    for (size_t k = 0; k < n; k++)
        s->tokens[k] = (token)json_integer_value(json_array_get(tokens, k));
    return RC_OK;
}

static enum rc run_one(struct live *l, uint32_t i, struct err *err)
{
    json_t *reply = NULL;
    struct live_result *r = l->res;
    enum rc rc = expand(l, i, err);
    if (!rc)
        rc = complete(l, l->client, false, &reply, err);
    if (!rc)
        rc = keep_said(l, i, json_object_get(reply, "tokens"), err);
    const json_t *timings = json_object_get(reply, "timings");
    uint64_t reused = 0, evaluated = 0;
    if (!rc)
        rc = number(timings, "cache_n", UINT32_MAX, &reused, err);
    if (!rc)
        rc = number(timings, "prompt_n", UINT32_MAX, &evaluated, err);
    if (!rc) {
        struct live_one *one = &r->all[i];
        one->reported = (uint32_t)reused;
        one->evaluated = (uint32_t)evaluated;
        one->prompt_ms = json_number_value(json_object_get(timings, "prompt_ms"));
        r->reported += reused;
        r->prompt_seconds += one->prompt_ms * 1e-3;
        r->n_differ += one->reported != one->predicted;
        const struct live_one *worst = &r->all[r->worst];
        if (labs((long)one->reported - (long)one->predicted) >
            labs((long)worst->reported - (long)worst->predicted))
            r->worst = i;
        r->n++;
    }
    json_decref(reply);
    return err_wrap(err, rc, "request %" PRIu32, i);
}

static enum rc run_all(struct live *l, struct err *err)
{
    const uint64_t begun = clock_mono_ns();
    enum rc rc = RC_OK;
    for (uint32_t i = 0; i < l->t->n && !rc; i++) {
        if (l->o->speed > 0)
            wait_until(begun + (uint64_t)((l->t->reqs[i].t - l->t->reqs[0].t) / l->o->speed * 1e9));
        rc = run_one(l, i, err);
        if (!rc && l->o->progress)
            l->o->progress(l->o->progress_ctx, i + 1, l->t->n);
    }
    l->res->seconds = (double)(clock_mono_ns() - begun) * 1e-9;
    return rc;
}

/* Every prompt again, evaluated whole. */
static enum rc check_all(struct live *l, struct err *err)
{
    struct client *c;
    const struct client_opts co = {.api_key = l->o->api_key};
    enum rc rc = client_new(l->o->against, &co, &c, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < l->t->n && !rc; i++) {
        json_t *reply = NULL;
        rc = expand(l, i, err);
        if (!rc)
            rc = complete(l, c, true, &reply, err);
        const json_t *tokens = json_object_get(reply, "tokens");
        bool equal = json_array_size(tokens) == l->said[i].n;
        for (uint32_t k = 0; !rc && equal && k < l->said[i].n; k++)
            equal = json_integer_value(json_array_get(tokens, k)) == l->said[i].tokens[k];
        if (!rc && !equal && !l->res->n_unequal++)
            l->res->first_unequal = i;
        l->res->n_checked += !rc;
        json_decref(reply);
        if (!rc && l->o->progress)
            l->o->progress(l->o->progress_ctx, i + 1, l->t->n);
        rc = err_wrap(err, rc, "request %" PRIu32 " again", i);
    }
    client_free(c);
    return rc;
}

enum rc live_run(const struct trace *t, const struct live_opts *o, struct live_result *out,
                 struct err *err)
{
    *out = (struct live_result){0};
    struct live l = {.t = t, .o = o, .res = out, .reply = BUF_INIT};
    const struct client_opts co = {.api_key = o->api_key};
    if (!t->n)
        return err_set(err, RC_ARG, "the trace has no requests");
    out->all = mem_try_array(t->n, sizeof *out->all);
    l.said = mem_try_array(t->n, sizeof *l.said);
    enum rc rc = out->all && l.said
                     ? client_new(o->url, &co, &l.client, err)
                     : err_set(err, RC_NOMEM, "no memory for %" PRIu32 " requests", t->n);
    if (!rc)
        rc = ask_facts(&l, err);
    if (!rc)
        rc = check_lengths(&l, err);
    if (!rc)
        rc = predict(&l, err);
    if (!rc)
        rc = run_all(&l, err);
    if (!rc && o->against)
        rc = check_all(&l, err);
    for (uint32_t i = 0; l.said && i < t->n; i++)
        mem_free(l.said[i].tokens);
    mem_free(l.said);
    trace_tokens_release(&l.x);
    buf_release(&l.reply);
    client_free(l.client);
    return rc;
}

void live_result_release(struct live_result *r)
{
    mem_free(r->all);
    r->all = NULL;
}
