#include "server/prompt.h"

#include "base/mem.h"
#include "text/detok.h"

static enum rc add_text(const struct call *c, const json_t *v, const struct bpe_opts *o,
                        struct tokens *out, struct err *err)
{
    const struct str text = {json_string_value(v), json_string_length(v)};
    return bpe_encode(c->m->vocab, text, o, out, err);
}

static enum rc add_id(const struct call *c, const char *field, const json_t *v, struct tokens *out,
                      struct err *err)
{
    const int64_t id = json_integer_value(v);
    const uint32_t n = vocab_size(c->m->vocab);
    if (id < 0 || id >= n)
        return err_set(err, RC_ARG, "%s: token %" PRId64 " is not of the vocabulary (0 to %u)",
                       field, id, n - 1);
    if (!tokens_add(out, (token)id))
        return err_set(err, RC_NOMEM, "out of memory for %s", field);
    return RC_OK;
}

enum rc prompt_tokens(const struct call *c, const char *field, const json_t *v,
                      const struct bpe_opts *o, struct tokens *out, struct err *err)
{
    struct bpe_opts opts = *o;
    const json_t *text = json_is_object(v) ? json_object_get(v, "prompt_string") : v;
    if (json_is_object(v) && json_array_size(json_object_get(v, "multimodal_data")))
        return err_set(err, RC_UNSUPPORTED, "%s: multimodal_data is not supported", field);
    if (json_is_string(text))
        return add_text(c, text, &opts, out, err);
    if (!json_is_array(v))
        return err_set(err, RC_ARG, "%s must be text or token ids", field);
    enum rc rc = RC_OK;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) {
        const json_t *item = json_array_get(v, i);
        if (json_is_string(item))
            rc = add_text(c, item, &opts, out, err);
        else if (json_is_integer(item))
            rc = add_id(c, field, item, out, err);
        else
            rc = err_set(err, RC_ARG, "%s[%zu] is neither text nor a token id", field, i);
        opts.add_special = false; /* at the beginning only */
    }
    return rc;
}

/* Whether the array holds prompts rather than the parts of one. */
static bool is_list(const json_t *v)
{
    bool only_text = true;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        if (json_is_array(item) || json_is_object(item))
            return true;
        only_text = only_text && json_is_string(item);
    }
    return only_text && json_array_size(v);
}

enum rc prompts_read(const struct call *c, const char *field, struct prompts *out, struct err *err)
{
    static const struct bpe_opts opts = {.add_special = true, .parse_special = true};
    const json_t *v = json_object_get(c->body, field);
    *out = (struct prompts){0};
    if (!v || json_is_null(v))
        return err_set(err, RC_ARG, "%s is missing", field);
    out->several = json_is_array(v) && is_list(v);
    const size_t n = out->several ? json_array_size(v) : 1;
    if (n > MAX_PROMPTS)
        return err_set(err, RC_ARG, "%s has %zu prompts, %d are the most", field, n, MAX_PROMPTS);
    out->v = mem_try_array(n, sizeof *out->v);
    if (!out->v)
        return err_set(err, RC_NOMEM, "out of memory for %s", field);
    enum rc rc = RC_OK;
    while (out->n < n && !rc) {
        const json_t *item = out->several ? json_array_get(v, out->n) : v;
        struct tokens *t = &out->v[out->n++];
        rc = prompt_tokens(c, field, item, &opts, t, err);
        if (!rc && !t->n)
            rc = err_set(err, RC_ARG, "%s is empty", field);
    }
    if (rc)
        prompts_release(out);
    return rc;
}

void prompts_release(struct prompts *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        tokens_release(&p->v[i]);
    mem_free(p->v);
    *p = (struct prompts){0};
}

void prompt_text(const struct call *c, const token *t, size_t n, struct buf *out)
{
    struct detok d;
    detok_init(&d, true);
    for (size_t i = 0; i < n; i++)
        detok_add(&d, c->m->vocab, t[i], out);
    detok_finish(&d, out);
}

struct str token_bytes(const struct call *c, token t)
{
    /* a model may have more rows than its vocabulary has tokens */
    const bool known = t >= 0 && (uint32_t)t < vocab_size(c->m->vocab);
    return known ? vocab_bytes(c->m->vocab, t, true) : (struct str){"", 0};
}
