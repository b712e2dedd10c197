#include "lab/matrix.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "lab/forensics.h"
#include "lab/legacy.h"
#include "lab/prompts.h"
#include "lab/runner.h"
#include "lab/summary_int.h"
#include "text/bpe.h"

enum { MAX_STEPS = 64, MAX_CONFIGS = 64, MAX_NAME = 64 };

/* ---- what is asked --------------------------------------------------------------------------- */

enum step_kind {
    STEP_FRESH,      /* shared tokens of stream 0, then its own stream's */
    STEP_CONTINUE,   /* the conversation, the reply to it, and n tokens more */
    STEP_INTERLOPER, /* shared tokens of the conversation, then its own stream's */
    STEP_REPEAT      /* the conversation again, as it was */
};

struct step {
    const char *label;
    enum step_kind kind;
    uint32_t shared, n, stream;
};

struct sequence {
    const char *name, *what;
    struct step steps[3];
};

/* The study's lengths: A is 4,560 tokens, C shares 2,531 of them and has 4,947, B is 99 of its own. */
static const struct sequence sequences[] = {
    {"ac",
     "A, then C, which shares 2,531 of its 4,560 tokens",
     {{"A", STEP_FRESH, 2531, 4560, 1}, {"C", STEP_FRESH, 2531, 4947, 2}}},
    {"abc",
     "A, an unrelated B of 99 tokens, then C",
     {{"A", STEP_FRESH, 2531, 4560, 1},
      {"B", STEP_FRESH, 0, 99, 3},
      {"C", STEP_FRESH, 2531, 4947, 2}}},
    {"acd",
     "A, C, then D of C's length, which leaves A where C did",
     {{"A", STEP_FRESH, 2531, 4560, 1},
      {"C", STEP_FRESH, 2531, 4947, 2},
      {"D", STEP_FRESH, 2531, 4947, 5}}},
    {"aa", "A twice", {{"A", STEP_FRESH, 2531, 4560, 1}, {"A again", STEP_REPEAT, 0, 0, 0}}},
    {"append",
     "A, then A with its reply and 200 tokens more",
     {{"A", STEP_FRESH, 2531, 4560, 1}, {"A+", STEP_CONTINUE, 0, 200, 4}}},
    {"probe",
     "6,346 tokens, then 6,350 that share 6,341 of them",
     {{"P", STEP_FRESH, 6341, 6346, 1}, {"P'", STEP_FRESH, 6341, 6350, 2}}},
    {"first",
     "3,000 tokens, then C's length sharing 1,956 of them",
     {{"A1", STEP_FRESH, 1956, 3000, 1}, {"C1", STEP_FRESH, 1956, 4947, 2}}},
    {"c", "C alone: the reference", {{"C", STEP_FRESH, 2531, 4947, 2}}},
};

const char *experiment_sequence_at(size_t i, const char **what)
{
    if (i >= COUNT_OF(sequences))
        return NULL;
    if (what)
        *what = sequences[i].what;
    return sequences[i].name;
}

struct config {
    char name[MAX_NAME], predict[MAX_NAME];
    char **argv, **env;
    bool own; /* results show its program and model by name, not by where they are here */
};

struct plan_cell {
    char sequence[MAX_NAME];
    struct step steps[MAX_STEPS];
    size_t n_steps;
};

struct experiment {
    struct experiment_opts o;
    struct config *configs;
    size_t n_configs, configs_cap;
    struct plan_cell *cells; /* the sequences */
    size_t n_cells, cells_cap;
    json_t *results;
};

static uint32_t scaled(const struct experiment_opts *o, uint32_t n)
{
    const double v = round(n * o->scale);
    return n ? (uint32_t)fmax(v, 2) : 0;
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* NULL when memory is out. */
static struct plan_cell *add_cell(struct experiment *x)
{
    if (!mem_grow(&x->cells, &x->cells_cap, x->n_cells + 1, sizeof *x->cells))
        return NULL;
    struct plan_cell *c = &x->cells[x->n_cells++];
    *c = (struct plan_cell){0};
    return c;
}

static bool wanted(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (!strncmp(p, name, n) && (p[n] == 0 || p[n] == ','))
            return true;
    }
    return !list;
}

static enum rc plan_sequences(struct experiment *x, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(sequences); i++) {
        if (!wanted(x->o.sequences, sequences[i].name))
            continue;
        struct plan_cell *c = add_cell(x);
        if (!c)
            return err_set(err, RC_NOMEM, "no memory for the cells");
        snprintf(c->sequence, sizeof c->sequence, "%s", sequences[i].name);
        for (size_t k = 0; k < COUNT_OF(sequences[i].steps) && sequences[i].steps[k].label; k++) {
            struct step s = sequences[i].steps[k];
            s.n = scaled(&x->o, s.n);
            s.shared = MIN(scaled(&x->o, s.shared), s.n ? s.n - 1 : 0);
            c->steps[c->n_steps++] = s;
        }
    }
    if (!x->n_cells)
        return err_set(err, RC_ARG, "no sequence of that name: %s", x->o.sequences);
    return RC_OK;
}

/* A conversation that grows, and between its turns an interloper that shares so many of its first tokens. */
static enum rc plan_cascade(struct experiment *x, struct err *err)
{
    const uint32_t rounds = MIN(MAX(x->o.rounds, 1u), (uint32_t)MAX_STEPS / 2 - 1);
    for (uint32_t i = 0; i < x->o.n_overlaps; i++) {
        struct plan_cell *c = add_cell(x);
        if (!c)
            return err_set(err, RC_NOMEM, "no memory for the cells");
        snprintf(c->sequence, sizeof c->sequence, "cascade-%u", x->o.overlaps[i]);
        c->steps[c->n_steps++] = (struct step){"T", STEP_FRESH, 0, scaled(&x->o, 4560), 1};
        for (uint32_t k = 0; k < rounds; k++) {
            const uint32_t n = MAX(scaled(&x->o, 600), x->o.overlaps[i] + 16);
            c->steps[c->n_steps++] = (struct step){"I", STEP_INTERLOPER, x->o.overlaps[i], n,
                                                   8 + k % (PROMPTS_MAX_STREAMS - 8)};
            c->steps[c->n_steps++] =
                (struct step){"T+", STEP_CONTINUE, 0, scaled(&x->o, 300), 2 + k % 6};
        }
    }
    return RC_OK;
}

/* Tokens that no turn of any cell needs more of, whatever the model was made for. */
static uint64_t longest(const struct experiment *x)
{
    uint64_t most = 4096;
    for (size_t i = 0; i < x->n_cells; i++) {
        uint64_t n = 0; /* a conversation is at most all its turns */
        for (size_t k = 0; k < x->cells[i].n_steps; k++)
            n += x->cells[i].steps[k].n + x->o.n_predict;
        most = MAX(most, n);
    }
    return most;
}

/* ---- configurations -------------------------------------------------------------------------- */

static void config_release(struct config *c)
{
    runner_words_free(c->argv);
    runner_words_free(c->env);
}

static enum rc add_config(struct experiment *x, const char *name, const char *predict, char **argv,
                          char **env, struct err *err)
{
    if (x->n_configs == MAX_CONFIGS ||
        !mem_grow(&x->configs, &x->configs_cap, x->n_configs + 1, sizeof *x->configs)) {
        runner_words_free(argv);
        runner_words_free(env);
        return err_set(err, RC_LIMIT, "more than %d configurations", MAX_CONFIGS);
    }
    struct config *c = &x->configs[x->n_configs++];
    *c = (struct config){.argv = argv, .env = env};
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->predict, sizeof c->predict, "%s", predict);
    for (char *p = c->name; *p; p++) /* it names a directory */
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", *p))
            *p = '_';
    return RC_OK;
}

static char **word_list(const char *const *v)
{
    size_t n = 0;
    while (v[n])
        n++;
    char **out = mem_try_array(n + 1, sizeof *out);
    for (size_t i = 0; out && i < n; i++)
        out[i] = mem_strdup(v[i]);
    return out;
}

/* holdfast itself: without a cache, with PXA's rules and levers, with its own, and with a bound on what a
 * first divergence costs. */
static enum rc own_configs(struct experiment *x, struct err *err)
{
    char context[24];
    snprintf(context, sizeof context, "%" PRIu64, longest(x));
    static const struct {
        const char *name, *policy, *predict, *env[3], *step;
    } own[] = {
        {"none", "none", "", {NULL}, NULL},
        {"pxa", "pxa", "pxa", {"PXA_CKPT_PROMPT_POLICY=1", "PXA_CKPT_PROMPT_END=0", NULL}, NULL},
        {"pxa-policy0",
         "pxa",
         "pxa-policy0",
         {"PXA_CKPT_PROMPT_POLICY=0", "PXA_CKPT_PROMPT_END=0", NULL},
         NULL},
        {"pxa-end",
         "pxa",
         "pxa-end",
         {"PXA_CKPT_PROMPT_POLICY=1", "PXA_CKPT_PROMPT_END=1", NULL},
         NULL},
        {"pxa-both",
         "pxa",
         "pxa-both",
         {"PXA_CKPT_PROMPT_POLICY=0", "PXA_CKPT_PROMPT_END=1", NULL},
         NULL},
        {"hold", "hold", "", {NULL}, NULL},
        {"hold-step512", "hold", "", {NULL}, "512"}};
    enum rc rc = RC_OK;
    for (size_t i = 0; i < COUNT_OF(own) && !rc; i++) {
        const char *const argv[] = {
            x->o.binary, "serve", "-m", x->o.model, "--host", "127.0.0.1", "--port", "{port}", "-c",
            context, "--cache-policy", own[i].policy, "--cache-step",
            own[i].step ? own[i].step : "0", "-np", "1",
            /* with PXA's rules the log has that engine's lines, and they are what is read */
            *own[i].predict ? NULL : "--events", "{dir}/events.jsonl", NULL};
        char **a = word_list(argv), **e = word_list(own[i].env);
        if (!a || !e) {
            runner_words_free(a);
            runner_words_free(e);
            return err_set(err, RC_NOMEM, "no memory for configurations");
        }
        rc = add_config(x, own[i].name, own[i].predict, a, e, err);
        if (!rc)
            x->configs[x->n_configs - 1].own = true;
    }
    return rc;
}

static char **words_of(const json_t *list)
{
    const size_t n = json_array_size(list);
    char **out = mem_try_array(n + 1, sizeof *out);
    for (size_t i = 0; out && i < n; i++) {
        const char *s = json_string_value(json_array_get(list, i));
        out[i] = mem_strdup(s ? s : "");
    }
    return out;
}

/* {"NAME": "value"} as "NAME=value" words. */
static char **env_words(const json_t *o)
{
    const char *key;
    json_t *v;
    size_t n = 0;
    char **out = mem_try_array(json_object_size(o) + 1, sizeof *out);
    if (!out)
        return NULL;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        struct buf b = BUF_INIT;
        buf_addf(&b, "%s=%s", key, json_is_string(v) ? json_string_value(v) : "");
        if ((out[n] = buf_take(&b)))
            n++;
    }
    return out;
}

static enum rc file_configs(struct experiment *x, struct err *err)
{
    char *text;
    size_t n;
    json_t *o;
    enum rc rc = file_read_all(x->o.config_path, 16 * MIB, &text, &n, err);
    if (rc)
        return rc;
    rc = jread_parse(text, n, &o, err);
    mem_free(text);
    if (rc)
        return err_wrap(err, rc, "%s", x->o.config_path);
    const json_t *list = json_object_get(o, "configs"), *c = NULL;
    size_t i;
    if (!json_array_size(list))
        rc = err_set(err, RC_FORMAT, "configs must be a list that is not empty");
    json_array_foreach(list, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name")),
                   *predict = json_string_value(json_object_get(c, "predict"));
        const json_t *cmd = json_object_get(c, "cmd"), *env = json_object_get(c, "env");
        struct legacy_opts lo;
        if (rc)
            break;
        if (!name || !*name || !json_array_size(cmd) || (env && !json_is_object(env)))
            rc = err_set(err, RC_FORMAT,
                         "configs[%zu] needs a name, cmd as a list of words, env as an object", i);
        else if (predict && !legacy_by_name(predict, &lo))
            rc = err_set(err, RC_FORMAT, "configs[%zu]: no rules named %s to predict with", i,
                         predict);
        else {
            char **a = words_of(cmd), **e = env_words(env);
            rc = a && e ? add_config(x, name, predict ? predict : "", a, e, err)
                        : err_set(err, RC_NOMEM, "no memory for configurations");
        }
    }
    json_decref(o);
    return err_wrap(err, rc, "%s", x->o.config_path);
}

static enum rc command_config(struct experiment *x, struct err *err)
{
    char **argv, **env = mem_try_array(1, sizeof *env);
    if (!env)
        return err_set(err, RC_NOMEM, "no memory for configurations");
    enum rc rc = runner_words(x->o.engine_cmd, &argv, err);
    if (rc) {
        runner_words_free(env);
        return rc;
    }
    bool port = false;
    for (size_t i = 0; argv[i]; i++)
        port |= strstr(argv[i], "{port}") != NULL;
    if (!port) {
        runner_words_free(argv);
        runner_words_free(env);
        return err_set(err, RC_ARG, "the command must hold {port}, as in --port {port}");
    }
    return add_config(x, "engine", "", argv, env, err);
}

/* ---- one cell -------------------------------------------------------------------------------- */

struct cell_run {
    struct experiment *x;
    const struct config *config;
    const struct plan_cell *cell;
    struct prompt_pool pool;
    struct client *client;
    struct legacy *rules;        /* what is predicted, or NULL */
    struct tokens conv, answer;  /* the conversation, and the reply to it */
    struct tokens prompt, reply; /* of this turn */
    struct tokens
        before[MAX_STEPS]; /* what each earlier turn left: prompt and reply but its last token */
    size_t n_before;
    json_t *turns;
};

static enum rc make_prompt(struct cell_run *r, const struct step *s, struct err *err)
{
    bool ok = true;
    r->prompt.n = 0;
    switch (s->kind) {
    case STEP_FRESH:
        for (uint32_t i = 0; i < s->n && ok; i++)
            ok = tokens_add(&r->prompt, prompt_token(&r->pool, i < s->shared ? 0 : s->stream, i));
        break;
    case STEP_INTERLOPER:
        for (uint32_t i = 0; i < s->n && ok; i++)
            ok = tokens_add(&r->prompt, i < s->shared && i < r->conv.n
                                            ? r->conv.v[i]
                                            : prompt_token(&r->pool, s->stream, i));
        break;
    case STEP_REPEAT:
        ok = tokens_append(&r->prompt, r->conv.v, r->conv.n);
        break;
    case STEP_CONTINUE:
        ok = tokens_append(&r->prompt, r->conv.v, r->conv.n) &&
             tokens_append(&r->prompt, r->answer.v, r->answer.n);
        for (uint32_t i = 0; i < s->n && ok; i++)
            ok = tokens_add(&r->prompt, prompt_token(&r->pool, s->stream, (uint32_t)r->prompt.n));
        break;
    }
    if (ok && s->kind != STEP_INTERLOPER) {
        r->conv.n = 0;
        ok = tokens_append(&r->conv, r->prompt.v, r->prompt.n);
    }
    return ok ? RC_OK : err_set(err, RC_NOMEM, "no memory for a prompt");
}

static void write_request(struct buf *b, const struct cell_run *r)
{
    struct jwrite w;
    jwrite_init(&w, b);
    jwrite_obj(&w, NULL);
    jwrite_arr(&w, "prompt");
    for (size_t i = 0; i < r->prompt.n; i++)
        jwrite_i64(&w, NULL, r->prompt.v[i]);
    jwrite_end_arr(&w);
    jwrite_u64(&w, "n_predict", r->x->o.n_predict);
    jwrite_fixed(&w, "temperature", 0, 1);
    jwrite_u64(&w, "top_k", 1);
    jwrite_u64(&w, "seed", 1);
    jwrite_bool(&w, "cache_prompt", true);
    jwrite_bool(&w, "ignore_eos", true);
    jwrite_bool(&w, "return_tokens", true);
    jwrite_bool(&w, "stream", false);
    jwrite_end_obj(&w);
}

static size_t overlap(const struct tokens *a, const struct tokens *b)
{
    size_t i = 0;
    while (i < a->n && i < b->n && a->v[i] == b->v[i])
        i++;
    return i;
}

/* What the engine's rules say of this turn, with the reply it really gave. */
static enum rc predict(struct cell_run *r, json_t *turn, struct err *err)
{
    struct legacy_turn t;
    struct tokens seq = {0};
    if (!r->rules)
        return RC_OK;
    bool ok = tokens_append(&seq, r->prompt.v, r->prompt.n);
    for (size_t i = 0; i < r->x->o.n_predict && ok; i++)
        ok = tokens_add(&seq, i < r->reply.n ? r->reply.v[i] : -2 - (token)i);
    enum rc rc = ok ? legacy_request(r->rules, seq.v, (uint32_t)r->prompt.n, r->x->o.n_predict,
                                     NULL, 0, &t, err)
                    : err_set(err, RC_NOMEM, "no memory for a prediction");
    if (!rc) {
        json_t *made_at = json_array();
        for (uint32_t i = 0; i < MIN(t.n_made, (uint32_t)LEGACY_MAX_MADE) && made_at; i++)
            ok &= !json_array_append_new(made_at, json_integer(t.made[i]));
        json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:o}", "verdict",
                              slot_verdict_name(t.verdict), "reused", (json_int_t)t.reused, "made",
                              (json_int_t)t.n_made, "erased", (json_int_t)t.n_erased, "restored_at",
                              (json_int_t)t.restored, "made_at", made_at);
        if (!ok || !o || json_object_set_new(turn, "predicted", o))
            rc = err_set(err, RC_NOMEM, "no memory for a prediction");
    }
    tokens_release(&seq);
    return rc;
}

static enum rc one_turn(struct cell_run *r, const struct step *s, struct err *err)
{
    struct buf body = BUF_INIT, reply = BUF_INIT;
    json_t *o = NULL;
    char hash[20];
    enum rc rc = make_prompt(r, s, err);
    size_t shared = 0, shared_any = 0;
    for (size_t i = 0; i < r->n_before && !rc; i++) {
        shared = overlap(&r->prompt, &r->before[i]); /* the last one stands */
        shared_any = MAX(shared_any, shared);
    }
    if (!rc) {
        write_request(&body, r);
        rc = body.failed ? err_set(err, RC_NOMEM, "no memory for a request")
                         : client_call(r->client, "POST", "/completion",
                                       (struct str){body.p, body.n}, &reply, err);
    }
    if (!rc && client_status(r->client) != 200)
        rc = err_set(err, RC_IO, "/completion answered %d: %.120s", client_status(r->client),
                     buf_str(&reply));
    if (!rc)
        rc = jread_parse(buf_str(&reply), reply.n, &o, err);
    if (!rc) {
        const json_t *timings = json_object_get(o, "timings"),
                     *content = json_object_get(o, "content"), *v;
        const double n = (double)r->prompt.n, evaluated = num(timings, "prompt_n"),
                     cached = num(timings, "cache_n");
        const double reused = !isnan(cached) ? cached : !isnan(evaluated) ? n - evaluated : NAN;
        size_t i;
        bool ok = true;
        r->reply.n = 0;
        json_array_foreach(json_object_get(o, "tokens"), i, v) ok &=
            tokens_add(&r->reply, (token)json_integer_value(v));
        snprintf(hash, sizeof hash, "%016" PRIx64,
                 (uint64_t)XXH3_64bits(json_string_value(content) ? json_string_value(content) : "",
                                       json_string_length(content)));
        json_t *turn = json_pack("{s:s, s:I, s:I, s:I, s:s, s:I}", "label", s->label, "prompt",
                                 (json_int_t)r->prompt.n, "shared", (json_int_t)shared,
                                 "shared_with_any", (json_int_t)shared_any, "completion", hash,
                                 "generated", (json_int_t)r->reply.n);
        ok = ok && turn &&
             !json_object_set_new(turn, "reused",
                                  isnan(reused) ? json_null() : json_integer((json_int_t)reused));
        ok = ok && !json_object_set_new(turn, "prefill_ms", json_real(num(timings, "prompt_ms")));
        ok = ok && !json_object_set_new(turn, "decode_ms", json_real(num(timings, "predicted_ms")));
        if (ok)
            rc = predict(r, turn, err);
        ok = !json_array_append_new(r->turns, turn) && ok;
        if (s->kind != STEP_INTERLOPER) {
            r->answer.n = 0;
            ok = ok && tokens_append(&r->answer, r->reply.v, r->reply.n);
        }
        /* the last token sampled never enters a slot */
        struct tokens *left = &r->before[r->n_before++];
        ok = ok && tokens_append(left, r->prompt.v, r->prompt.n) &&
             tokens_append(left, r->reply.v, r->reply.n ? r->reply.n - 1 : 0);
        if (!ok)
            rc = err_set(err, RC_NOMEM, "no memory for the results");
    }
    json_decref(o);
    buf_release(&body);
    buf_release(&reply);
    return rc;
}

/* ---- what the server's log says -------------------------------------------------------------- */

struct log_turns {
    json_t *turns;
    size_t n;
};

static bool take_turn(void *ctx, const struct turn *t)
{
    struct log_turns *l = ctx;
    if (!t->launched)
        return true;
    json_t *turn = json_array_get(l->turns, l->n++);
    if (!turn)
        return true;
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:I, s:s}", "outcome", outcome_name(t->outcome), "created",
                  (json_int_t)t->created, "erased", (json_int_t)t->erased, "restored_at",
                  (json_int_t)(t->restored ? t->restored_pos : -1), "cause", cause_name(t->cause));
    if (o && !isnan(t->restore_ms))
        json_object_set_new(o, "restore_ms", json_real(t->restore_ms));
    if (o)
        json_object_set_new(turn, "log", o);
    return true;
}

static void read_log(const char *path, json_t *turns)
{
    struct log_turns l = {turns, 0};
    struct forensics *f;
    struct err err;
    if (forensics_new(&(struct forensics_opts){.now = 4e9, .turn = take_turn, .ctx = &l}, &f, &err))
        return;
    /* what the log does not hold is not in the results; that is no failure of the cell */
    if (!forensics_file(f, path, false, &err))
        (void)!forensics_end(f, &err);
    forensics_free(f);
}

static const char *last_part(const char *path)
{
    const char *slash = *path == '/' ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}

static json_t *config_json(const struct config *c)
{
    json_t *o = json_object(), *cmd = json_array(), *env = json_array();
    for (size_t i = 0; c->argv[i]; i++)
        json_array_append_new(cmd, json_string(c->own ? last_part(c->argv[i]) : c->argv[i]));
    for (size_t i = 0; c->env[i]; i++)
        json_array_append_new(env, json_string(c->env[i]));
    json_object_set_new(o, "name", json_string(c->name));
    json_object_set_new(o, "cmd", cmd);
    json_object_set_new(o, "env", env);
    json_object_set_new(o, "predict", *c->predict ? json_string(c->predict) : json_null());
    return o;
}

static enum rc make_dir(const char *path, struct err *err)
{
    return mkdir(path, 0755) && errno != EEXIST ? err_sys(err, "%s", path) : RC_OK;
}

static enum rc save_json(const char *path, const json_t *o, struct err *err)
{
    char *text = json_dumps(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    if (!text)
        return err_set(err, RC_NOMEM, "no memory for %s", path);
    const enum rc rc = file_write_atomically(path, text, strlen(text), err);
    free(text);
    return rc;
}

static enum rc run_cell(struct experiment *x, const struct plan_cell *cell,
                        const struct config *config, struct err *err)
{
    char dir[4096], path[4200];
    struct cell_run r = {.x = x, .config = config, .cell = cell, .turns = json_array()};
    struct runner *runner = NULL;
    struct legacy_opts lo;
    struct err why = {0};
    snprintf(dir, sizeof dir, "%s/%s.%s", x->o.out_dir, cell->sequence, config->name);
    enum rc rc = make_dir(dir, err);
    if (rc) {
        json_decref(r.turns);
        return rc;
    }
    if (*config->predict && legacy_by_name(config->predict, &lo))
        rc = legacy_new(&lo, &r.rules, &why);
    /* a run before this one may have left its events: they are appended to */
    snprintf(path, sizeof path, "%s/events.jsonl", dir);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/server.log", dir);
    if (!rc)
        rc = runner_start(&(struct runner_opts){.argv = (const char *const *)config->argv,
                                                .env = (const char *const *)config->env,
                                                .dir = dir,
                                                .log_path = path,
                                                .start_s = x->o.start_s},
                          &runner, &why);
    const bool hopeless = rc && !x->o.config_path && !json_array_size(x->results);
    if (!rc) {
        r.client = runner_client(runner);
        rc = prompt_pool_fill(&r.pool, r.client, x->o.seed, &why);
    }
    for (size_t i = 0; i < cell->n_steps && !rc; i++)
        rc = one_turn(&r, &cell->steps[i], &why);
    runner_stop(runner);
    /* holdfast's events say more than its lines for people */
    char events[4200];
    snprintf(events, sizeof events, "%s/events.jsonl", dir);
    read_log(access(events, R_OK) ? path : events, r.turns);
    json_t *meta =
        json_pack("{s:s, s:s, s:b, s:o, s:o}", "sequence", cell->sequence, "config", config->name,
                  "ok", rc == RC_OK, "engine", config_json(config), "turns", r.turns);
    if (meta && rc)
        json_object_set_new(meta, "error", json_string(why.msg));
    legacy_free(r.rules);
    prompt_pool_release(&r.pool);
    tokens_release(&r.conv);
    tokens_release(&r.answer);
    tokens_release(&r.prompt);
    tokens_release(&r.reply);
    for (size_t i = 0; i < r.n_before; i++)
        tokens_release(&r.before[i]);
    if (!meta)
        return err_set(err, RC_NOMEM, "no memory for the results");
    if (hopeless) { /* every other cell is of the same engine */
        json_decref(meta);
        return err_set(err, rc, "%s", why.msg);
    }
    snprintf(path, sizeof path, "%s/meta.json", dir);
    rc = save_json(path, meta, err);
    if (json_array_append_new(x->results, meta))
        rc = err_set(err, RC_NOMEM, "no memory for the results");
    return rc;
}

/* ---- equality -------------------------------------------------------------------------------- */

/* Which completions the cells gave to one and the same prompt. */
static json_t *completions(const json_t *cells)
{
    json_t *groups = json_object();
    size_t i, k;
    json_t *cell, *turn;
    json_array_foreach((json_t *)(uintptr_t)cells, i, cell)
    {
        json_array_foreach(json_object_get(cell, "turns"), k, turn)
        {
            const char *label = json_string_value(json_object_get(turn, "label")),
                       *hash = json_string_value(json_object_get(turn, "completion"));
            /* only what does not depend on an earlier reply or an interloper's overlap */
            if (label && !strcmp(label, "A again"))
                label = "A";
            if (!label || !hash || strchr(label, '+') || !strcmp(label, "I") || !strcmp(label, "T"))
                continue;
            json_t *g = json_object_get(groups, label);
            if (!g) {
                g = json_object();
                json_object_set_new(groups, label, g);
            }
            json_object_set_new(g, hash,
                                json_integer(json_integer_value(json_object_get(g, hash)) + 1));
        }
    }
    return groups;
}

static enum rc write_reports(const struct experiment *x, const json_t *summary, struct err *err)
{
    static const struct {
        const char *name;
        bool html;
    } docs[] = {{"report.md", false}, {"report.html", true}};
    char path[4200];
    snprintf(path, sizeof path, "%s/report.json", x->o.out_dir);
    enum rc rc = save_json(path, summary, err);
    for (size_t i = 0; i < COUNT_OF(docs) && !rc; i++) {
        struct buf b = BUF_INIT;
        experiment_document(summary, &b, docs[i].html);
        snprintf(path, sizeof path, "%s/%s", x->o.out_dir, docs[i].name);
        rc = b.failed ? err_set(err, RC_NOMEM, "no memory for %s", path)
                      : file_write_atomically(path, b.p, b.n, err);
        buf_release(&b);
    }
    return rc;
}

enum rc experiment_run(const struct experiment_opts *o, json_t **summary, struct err *err)
{
    struct experiment x = {.o = *o, .results = json_array()};
    enum rc rc = make_dir(o->out_dir, err);
    *summary = NULL;
    if (!rc)
        rc = o->cascade ? plan_cascade(&x, err) : plan_sequences(&x, err);
    if (!rc && o->config_path)
        rc = file_configs(&x, err);
    else if (!rc && o->engine_cmd)
        rc = command_config(&x, err);
    else if (!rc)
        rc = own_configs(&x, err);
    uint32_t done = 0;
    for (size_t i = 0; i < x.n_cells && !rc; i++)
        for (size_t k = 0; k < x.n_configs && !rc; k++) {
            char name[2 * MAX_NAME + 2];
            snprintf(name, sizeof name, "%s.%s", x.cells[i].sequence, x.configs[k].name);
            if (o->progress)
                o->progress(o->ctx, name, done++, (uint32_t)(x.n_cells * x.n_configs));
            rc = run_cell(&x, &x.cells[i], &x.configs[k], err);
        }
    if (!rc) {
        *summary = json_pack("{s:s, s:b, s:f, s:I, s:I, s:O, s:o}", "schema",
                             "holdfast-experiment/1", "cascade", (int)o->cascade, "scale", o->scale,
                             "n_predict", (json_int_t)o->n_predict, "seed", (json_int_t)o->seed,
                             "cells", x.results, "completions", completions(x.results));
        rc = *summary ? write_reports(&x, *summary, err)
                      : err_set(err, RC_NOMEM, "no memory for the results");
    }
    json_decref(x.results);
    for (size_t i = 0; i < x.n_configs; i++)
        config_release(&x.configs[i]);
    mem_free(x.configs);
    mem_free(x.cells);
    return rc;
}
