#include "lab/prompts.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"

void prompt_pool_release(struct prompt_pool *p)
{
    mem_free(p->ids);
    *p = (struct prompt_pool){0};
}

static enum rc pool_add(struct prompt_pool *p, token id, struct err *err)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->ids[i] == id)
            return RC_OK;
    if (!mem_grow(&p->ids, &p->cap, p->n + 1, sizeof *p->ids))
        return err_set(err, RC_NOMEM, "no memory for token ids");
    p->ids[p->n++] = id;
    return RC_OK;
}

enum rc prompt_pool_fill(struct prompt_pool *p, struct client *c, uint64_t seed, struct err *err)
{
    /* plain words, no markup: no special token can come of them */
    static const char words[] = "the of and to in is that for it as was with be by on not he his "
                                "but at are this have from or had an "
                                "they which one you were all her she there would their we him been "
                                "has when who will no more if out "
                                "so up said what its about than into them can only other time new "
                                "some could these two may first then "
                                "do any like my now over such our man me even most made after also "
                                "did many before must through back "
                                "years where much your way well down should because long each just "
                                "state people those too mister how "
                                "little good world make very year still see own work men day get "
                                "here old between both life being under "
                                "three never know same last another while us off might great go "
                                "come since against right came take";
    struct buf body = BUF_INIT, reply = BUF_INIT;
    struct jwrite w;
    json_t *o = NULL;
    p->seed = seed;
    jwrite_init(&w, &body);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "content", words);
    jwrite_bool(&w, "add_special", false);
    jwrite_end_obj(&w);
    enum rc rc = client_call(c, "POST", "/tokenize", (struct str){body.p, body.n}, &reply, err);
    if (!rc && client_status(c) != 200)
        rc = err_set(err, RC_UNSUPPORTED, "POST /tokenize answered %d", client_status(c));
    if (!rc)
        rc = jread_parse(buf_str(&reply), reply.n, &o, err);
    const json_t *list = rc ? NULL : json_object_get(o, "tokens"), *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        if (!rc && json_is_integer(v) && json_integer_value(v) > 0 &&
            json_integer_value(v) < INT32_MAX)
            rc = pool_add(p, (token)json_integer_value(v), err);
    }
    if (!rc && p->n < PROMPTS_MAX_STREAMS)
        rc = err_set(err, RC_UNSUPPORTED, "/tokenize gave %zu different ids, %d are needed", p->n,
                     PROMPTS_MAX_STREAMS);
    json_decref(o);
    buf_release(&body);
    buf_release(&reply);
    return rc;
}

token prompt_token(const struct prompt_pool *p, uint32_t stream, uint32_t i)
{
    /* the same draw for all streams, shifted by the stream: never equal at one index */
    struct rng r = {.s = p->seed ^ ((uint64_t)i << 20)};
    return p->ids[(rng_u64(&r) % p->n + stream) % p->n];
}
