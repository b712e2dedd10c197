#include "server/params.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/thinking.h"
#include "text/bpe.h"

/* ---- what we do not do ---- */

/* Fields that change the text elsewhere, and the value that asks for nothing. */
static const struct {
    const char *name;
    enum { NUMBER, AT_MOST, EMPTY, FALSE } kind;
    double neutral;
} refused[] = {
    {"dry_multiplier", NUMBER, 0},
    {"dynatemp_range", NUMBER, 0},
    {"mirostat", NUMBER, 0},
    {"typical_p", NUMBER, 1},
    {"top_n_sigma", NUMBER, -1},
    {"xtc_probability", NUMBER, 0},
    {"adaptive_target", NUMBER, -1},
    {"min_keep", NUMBER, 0},
    {"n_indent", NUMBER, 0},
    {"t_max_predict_ms", AT_MOST, 0}, /* -1 is what clients of llama-server send */
    {"lora", EMPTY, 0},
    {"image_data", EMPTY, 0},
    {"multimodal_data", EMPTY, 0},
    {"post_sampling_probs", FALSE, 0},
};

static bool asks_for_nothing(const json_t *v, size_t i)
{
    if (!v || json_is_null(v) || json_is_false(v))
        return true;
    if (refused[i].kind == NUMBER)
        return json_is_number(v) && json_number_value(v) == refused[i].neutral;
    if (refused[i].kind == AT_MOST)
        return json_is_number(v) && json_number_value(v) <= refused[i].neutral;
    if (refused[i].kind == EMPTY)
        return json_is_string(v) ? !json_string_length(v) : json_is_array(v) && !json_array_size(v);
    return false;
}

static enum rc refuse(const json_t *o, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (!asks_for_nothing(json_object_get(o, refused[i].name), i))
            return err_set(err, RC_UNSUPPORTED, "%s is not supported", refused[i].name);
    return RC_OK;
}

/* ---- numbers ---- */

static enum rc read_f32(const json_t *o, const char *key, double min, double max, float *out,
                        struct err *err)
{
    double d = (double)*out;
    const enum rc rc = jread_f64(o, key, min, max, &d, err);
    *out = (float)d;
    return rc;
}

static enum rc read_i32(const json_t *o, const char *key, int32_t min, int32_t max, int32_t *out,
                        struct err *err)
{
    int64_t i = *out;
    const enum rc rc = jread_i64(o, key, min, max, &i, err);
    *out = (int32_t)i;
    return rc;
}

static enum rc read_sampling(const json_t *o, struct sampling *s, struct err *err)
{
    enum rc rc = read_f32(o, "temperature", -1, 1e4, &s->temperature, err);
    if (!rc)
        rc = read_i32(o, "top_k", -1, INT32_MAX, &s->top_k, err);
    if (!rc)
        rc = read_f32(o, "top_p", 0, 1, &s->top_p, err);
    if (!rc)
        rc = read_f32(o, "min_p", 0, 1, &s->min_p, err);
    if (!rc)
        rc = read_f32(o, "repeat_penalty", 1e-3, 1e4, &s->repeat_penalty, err);
    if (!rc)
        rc = read_i32(o, "repeat_last_n", -1, INT32_MAX, &s->repeat_last_n, err);
    if (!rc)
        rc = read_f32(o, "presence_penalty", -1e4, 1e4, &s->presence_penalty, err);
    if (!rc)
        rc = read_f32(o, "frequency_penalty", -1e4, 1e4, &s->frequency_penalty, err);
    if (!rc)
        rc = jread_bool(o, "ignore_eos", &s->ignore_eos, err);
    if (rc)
        return rc;
    int64_t seed = -1; /* "a random one", as llama-server has it; so is its 4294967295 */
    rc = jread_i64(o, "seed", INT64_MIN, INT64_MAX, &seed, err);
    if (!rc && json_is_number(json_object_get(o, "seed"))) {
        s->has_seed = seed != -1 && seed != (int64_t)UINT32_MAX;
        s->seed = (uint64_t)seed;
    }
    return rc;
}

/* One that any JSON reader can hold and send again. */
static uint64_t draw_seed(void)
{
    uint32_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (uint32_t)clock_wall_ns();
    return seed % UINT32_MAX;
}

/* The first of these names that is there. */
static enum rc read_n_predict(const json_t *o, int32_t *out, struct err *err)
{
    static const char *const names[] = {"n_predict", "max_completion_tokens", "max_tokens"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const json_t *v = json_object_get(o, names[i]);
        if (v && !json_is_null(v))
            return read_i32(o, names[i], -1, INT32_MAX, out, err);
    }
    return RC_OK;
}

static enum rc read_n(const json_t *o, uint32_t *out, struct err *err)
{
    static const char *const names[] = {"n", "n_cmpl"};
    int64_t n = 1;
    enum rc rc = RC_OK;
    for (size_t i = 0; i < COUNT_OF(names) && !rc; i++)
        rc = jread_i64(o, names[i], 1, MAX_CHOICES, &n, err);
    *out = (uint32_t)n;
    return rc;
}

/* ---- stop ---- */

enum rc params_read_stop(const json_t *o, const char *key, struct params *p, struct err *err)
{
    const json_t *v = json_object_get(o, key);
    const bool one = json_is_string(v);
    if (!v || json_is_null(v))
        return RC_OK;
    if (!one && !json_is_array(v))
        return err_set(err, RC_ARG, "%s must be a string or an array of strings", key);
    const size_t n = one ? 1 : json_array_size(v);
    if (n + p->n_stop > MAX_STOPS)
        return err_set(err, RC_ARG, "%s has %zu strings, %d are the most", key, n, MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = one ? v : json_array_get(v, i);
        if (!json_is_string(s))
            return err_set(err, RC_ARG, "%s[%zu] must be a string", key, i);
        if (json_string_length(s))
            p->stop[p->n_stop++] = json_string_value(s);
    }
    return RC_OK;
}

/* ---- logit_bias ---- */

static enum rc add_bias(struct params *p, token id, float bias, struct err *err)
{
    if (!mem_grow(&p->bias, &p->cap_bias, p->n_bias + 1, sizeof *p->bias))
        return err_set(err, RC_NOMEM, "out of memory for logit_bias");
    p->bias[p->n_bias++] = (struct logit_bias){id, bias};
    return RC_OK;
}

enum rc params_forbid(struct params *p, token id, struct err *err)
{
    return add_bias(p, id, -INFINITY, err);
}

/* Every token of a text. */
static enum rc add_text_bias(const struct call *c, struct params *p, struct str text, float bias,
                             struct err *err)
{
    struct tokens t = {0};
    enum rc rc = bpe_encode(c->m->vocab, text, &(struct bpe_opts){.parse_special = true}, &t, err);
    for (size_t i = 0; i < t.n && !rc; i++)
        rc = add_bias(p, t.v[i], bias, err);
    tokens_release(&t);
    return rc;
}

static enum rc bias_value(const json_t *v, float *out, struct err *err)
{
    if (json_is_false(v)) {
        *out = -INFINITY;
        return RC_OK;
    }
    if (!json_is_number(v))
        return err_set(err, RC_ARG, "logit_bias: a bias must be a number or false");
    *out = (float)json_number_value(v);
    return RC_OK;
}

static bool token_of(const struct call *c, int64_t id, token *out)
{
    *out = (token)id;
    return id >= 0 && id < vocab_size(c->m->vocab);
}

/* [[id or text, bias], ...] */
static enum rc read_bias_pairs(const struct call *c, const json_t *list, struct params *p,
                               struct err *err)
{
    enum rc rc = RC_OK;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *what = json_array_get(pair, 0);
        float bias = 0;
        token id;
        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return err_set(err, RC_ARG, "logit_bias[%zu] must be a pair of token and bias", i);
        rc = bias_value(json_array_get(pair, 1), &bias, err);
        if (rc)
            return rc;
        if (json_is_string(what)) {
            const struct str text = {json_string_value(what), json_string_length(what)};
            rc = add_text_bias(c, p, text, bias, err);
        } else if (json_is_integer(what) && token_of(c, json_integer_value(what), &id)) {
            rc = add_bias(p, id, bias, err);
        } else {
            rc = err_set(err, RC_ARG, "logit_bias[%zu]: no such token", i);
        }
    }
    return rc;
}

/* {"id or text": bias, ...} */
static enum rc read_bias_map(const struct call *c, json_t *map, struct params *p, struct err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        float bias = 0;
        int64_t n;
        token id;
        enum rc rc = bias_value(value, &bias, err);
        if (!rc && !str_to_i64(key, &n))
            rc = add_text_bias(c, p, str_of(key), bias, err);
        else if (!rc && token_of(c, n, &id))
            rc = add_bias(p, id, bias, err);
        else if (!rc)
            rc = err_set(err, RC_ARG, "logit_bias: no token %" PRId64, n);
        if (rc)
            return rc;
    }
    return RC_OK;
}

static enum rc read_bias(const struct call *c, struct params *p, struct err *err)
{
    json_t *v = json_object_get(c->body, "logit_bias");
    if (!v || json_is_null(v))
        return RC_OK;
    if (json_is_array(v))
        return read_bias_pairs(c, v, p, err);
    if (json_is_object(v))
        return read_bias_map(c, v, p, err);
    return err_set(err, RC_ARG, "logit_bias must be an object or an array of pairs");
}

/* ---- all ---- */

static enum rc read_flags(const json_t *o, struct params *p, struct err *err)
{
    enum rc rc = jread_bool(o, "stream", &p->stream, err);
    if (!rc)
        rc = jread_bool(o, "cache_prompt", &p->cache_prompt, err);
    if (!rc)
        rc = jread_bool(o, "return_tokens", &p->return_tokens, err);
    if (!rc)
        rc = jread_bool(o, "return_progress", &p->return_progress, err);
    if (!rc)
        rc = jread_bool(o, "timings_per_token", &p->timings_per_token, err);
    const json_t *so = json_object_get(o, "stream_options");
    if (!rc && so && !json_is_null(so) && !json_is_object(so))
        rc = err_set(err, RC_ARG, "stream_options must be an object");
    if (!rc && json_is_object(so))
        rc = err_wrap(err, jread_bool(so, "include_usage", &p->include_usage, err),
                      "stream_options");
    return rc;
}

static enum rc read_think_budget(const json_t *o, struct params *p, struct err *err)
{
    static const char key[] = "thinking_budget_tokens";
    p->think_given = json_is_number(json_object_get(o, key));
    return read_i32(o, key, -1, INT32_MAX, &p->think_budget, err);
}

static enum rc read_family(const json_t *o, struct params *p, struct err *err)
{
    const char *key = NULL;
    const enum rc rc = jread_str(o, "prompt_cache_key", &key, err);
    if (!rc && key && *key)
        p->family = XXH3_64bits(key, strlen(key)) | 1; /* 0 means none */
    return rc;
}

enum rc params_read(const struct call *c, struct params *p, struct err *err)
{
    const json_t *o = c->body;
    *p = (struct params){.sampling = c->s->o.sampling,
                         .n_predict = c->s->o.n_predict,
                         .cache_prompt = !c->s->o.no_cache,
                         .think_budget = thinking_default(c->s),
                         .sse_ping_s = c->s->o.sse_ping_s};
    int64_t n_probs = 0;
    enum rc rc = refuse(o, err);
    if (!rc)
        rc = read_sampling(o, &p->sampling, err);
    if (!rc)
        rc = read_n_predict(o, &p->n_predict, err);
    if (!rc)
        rc = read_n(o, &p->n, err);
    if (!rc)
        rc = params_read_stop(o, "stop", p, err);
    if (!rc)
        rc = read_flags(o, p, err);
    if (!rc)
        rc = read_family(o, p, err);
    if (!rc)
        rc = read_think_budget(o, p, err);
    if (!rc)
        rc = jread_i64(o, "n_probs", 0, 1000, &n_probs, err);
    if (!rc)
        rc = read_i32(o, "sse_ping_interval", -1, INT32_MAX, &p->sse_ping_s, err);
    if (!rc)
        rc = read_bias(c, p, err);
    if (!rc)
        rc = constraint_read(o, &p->want, err);
    p->n_probs = (uint32_t)n_probs;
    if (!p->sampling.has_seed) {
        p->sampling.has_seed = true;
        p->sampling.seed = draw_seed();
    }
    if (rc)
        params_release(p);
    return rc;
}

void params_release(struct params *p)
{
    constraint_release(&p->want);
    mem_free(p->bias);
    p->bias = NULL;
    p->n_bias = p->cap_bias = 0;
}

void params_to_job(const struct call *c, const struct params *p, struct job_desc *d)
{
    *d = (struct job_desc){.n_predict = p->n_predict,
                           .sampling = p->sampling,
                           .bias = p->bias,
                           .n_bias = (uint32_t)p->n_bias,
                           .stop = p->stop,
                           .n_stop = p->n_stop,
                           .grammar_after = p->grammar_after,
                           .n_probs = p->n_probs,
                           .think = p->think,
                           .family = p->family,
                           .no_cache = !p->cache_prompt,
                           .pin = p->pin,
                           .special = c->s->o.special};
}

void params_write(struct jwrite *w, const char *key, const struct params *p, uint64_t seed)
{
    const struct sampling *s = &p->sampling;
    jwrite_obj(w, key);
    jwrite_u64(w, "seed", seed);
    jwrite_f64(w, "temperature", (double)s->temperature);
    jwrite_i64(w, "top_k", s->top_k);
    jwrite_f64(w, "top_p", (double)s->top_p);
    jwrite_f64(w, "min_p", (double)s->min_p);
    jwrite_i64(w, "repeat_last_n", s->repeat_last_n);
    jwrite_f64(w, "repeat_penalty", (double)s->repeat_penalty);
    jwrite_f64(w, "presence_penalty", (double)s->presence_penalty);
    jwrite_f64(w, "frequency_penalty", (double)s->frequency_penalty);
    jwrite_arr(w, "stop");
    for (uint32_t i = 0; i < p->n_stop; i++)
        jwrite_str(w, NULL, p->stop[i]);
    jwrite_end_arr(w);
    jwrite_i64(w, "max_tokens", p->n_predict);
    jwrite_i64(w, "n_predict", p->n_predict);
    jwrite_bool(w, "ignore_eos", s->ignore_eos);
    jwrite_bool(w, "stream", p->stream);
    jwrite_arr(w, "logit_bias");
    for (size_t i = 0; i < p->n_bias; i++) {
        jwrite_obj(w, NULL);
        jwrite_f64(w, "bias", (double)p->bias[i].bias);
        jwrite_i64(w, "token", p->bias[i].id);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
    jwrite_strn(w, "grammar", p->want.gbnf.p, p->want.gbnf.n);
    jwrite_u64(w, "n_probs", p->n_probs);
    jwrite_bool(w, "timings_per_token", p->timings_per_token);
    jwrite_arr(w, "samplers");
    static const char *const chain[] = {"penalties", "top_k", "top_p", "min_p", "temperature"};
    for (size_t i = 0; i < COUNT_OF(chain); i++)
        jwrite_str(w, NULL, chain[i]);
    jwrite_end_arr(w);
    jwrite_end_obj(w);
}
