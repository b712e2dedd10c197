#include "server/thinking.h"

#include <string.h>

/* Those not here have no limit: high, xhigh, max. */
static const struct {
    const char *effort;
    int32_t budget;
} efforts[] = {{"none", 0}, {"minimal", 512}, {"low", 2048}, {"medium", 8192}};

int32_t thinking_default(const struct server *s)
{
    return s->o.no_thinking ? 0 : s->o.think_budget ? (int32_t)s->o.think_budget : -1;
}

static bool mentions(const struct talk *t, const char *what)
{
    return str_find(chat_template_source(t->c->m->chat), str_of(what), 0) >= 0;
}

enum rc thinking_settle(struct talk *t, struct err *err)
{
    if (t->effort && !t->p.think_given && !mentions(t, "reasoning_effort"))
        for (size_t i = 0; i < COUNT_OF(efforts); i++)
            if (!strcmp(t->effort, efforts[i].effort))
                t->p.think_budget = efforts[i].budget;
    if (t->p.think_budget || json_object_get(t->kwargs, "enable_thinking"))
        return RC_OK;
    if (!t->kwargs)
        t->kwargs = json_object();
    if (json_object_set_new(t->kwargs, "enable_thinking", json_false()))
        return err_set(err, RC_NOMEM, "out of memory for the template's variables");
    return RC_OK;
}

enum rc thinking_limit(struct talk *t, struct err *err)
{
    /* as the template writes it, so that the answer rendered again is the same text */
    const bool lines = mentions(t, "\\n</think>\\n\\n");
    const char *end = !lines ? "</think>" : t->p.want.field ? "\n</think>" : "\n</think>\n\n";
    if (t->p.think_budget < 0 || t->continue_last)
        return RC_OK;
    const enum rc rc = bpe_encode(t->c->m->vocab, str_of(end),
                                  &(struct bpe_opts){.parse_special = true}, &t->think_end, err);
    t->p.think = (struct think_limit){.end = t->think_end.v,
                                      .n_end = (uint32_t)t->think_end.n,
                                      .budget = (uint32_t)t->p.think_budget,
                                      .open = t->prompt.thinking};
    return rc;
}
