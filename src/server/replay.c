#include "server/replay.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"

enum { N_BUCKETS = 1 << 14 };

/* Read only once it is in the store; refs and links are the store's, under its lock. */
struct replay_answer {
    struct replay_answer *next;          /* of its bucket */
    struct replay_answer *newer, *older; /* by use */
    unsigned refs;                       /* the store's and those of requests */
    XXH128_hash_t key;
    XXH64_hash_t before; /* of the text in front of what asked for the answer */
    struct str asked;    /* what asked for it: the generation prompt */
    struct str reasoning;
    const token *tokens; /* without the end mark */
    size_t n;
    token end; /* the end mark, or -1 */
    size_t bytes;
};

struct replay {
    struct replay_opts o;
    pthread_mutex_t lock; /* guards all below; a leaf */
    struct replay_answer *buckets[N_BUCKETS];
    struct replay_answer *newest, *oldest;
    struct replay_stats stats;
};

struct replay *replay_new(const struct replay_opts *o)
{
    struct replay *r = mem_zalloc(sizeof *r);
    r->o = *o;
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

/* ---- the store; all under the lock ---- */

static void unref(struct replay_answer *a)
{
    if (a && --a->refs == 0)
        mem_free(a);
}

static void unlink_use(struct replay *r, struct replay_answer *a)
{
    *(a->newer ? &a->newer->older : &r->newest) = a->older;
    *(a->older ? &a->older->newer : &r->oldest) = a->newer;
}

static void link_newest(struct replay *r, struct replay_answer *a)
{
    a->newer = NULL;
    a->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = a;
    r->newest = a;
}

static struct replay_answer **find(struct replay *r, XXH128_hash_t key)
{
    struct replay_answer **at = &r->buckets[key.low64 % N_BUCKETS];
    while (*at && !XXH128_isEqual((*at)->key, key))
        at = &(*at)->next;
    return at;
}

static void drop(struct replay *r, struct replay_answer **at)
{
    struct replay_answer *a = *at;
    CHECK(a);
    *at = a->next;
    unlink_use(r, a);
    r->stats.n--;
    r->stats.bytes -= a->bytes;
    unref(a);
}

/* Takes a. */
static void put(struct replay *r, struct replay_answer *a)
{
    struct replay_answer **at = find(r, a->key);
    if (*at)
        drop(r, at); /* said again, in other tokens: the last is what the cache has */
    at = &r->buckets[a->key.low64 % N_BUCKETS];
    a->next = *at;
    *at = a;
    link_newest(r, a);
    r->stats.n++;
    r->stats.bytes += a->bytes;
    while (r->oldest && r->stats.bytes > r->o.bytes)
        drop(r, find(r, r->oldest->key));
}

void replay_free(struct replay *r)
{
    if (!r)
        return;
    while (r->oldest)
        drop(r, find(r, r->oldest->key));
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

struct replay_stats replay_stats(struct replay *r)
{
    pthread_mutex_lock(&r->lock);
    const struct replay_stats s = r->stats;
    pthread_mutex_unlock(&r->lock);
    return s;
}

/* ---- keys: what a message says ---- */

static struct str trimmed(struct str s)
{
    while (s.n && isspace((unsigned char)s.p[0]))
        s = (struct str){s.p + 1, s.n - 1};
    while (s.n && isspace((unsigned char)s.p[s.n - 1]))
        s.n--;
    return s;
}

static struct str text_of(const json_t *v)
{
    return (struct str){json_string_value(v), json_string_length(v)};
}

/* Texts of a list of parts joined by newlines, as chat.c does it; a string as it is. */
static void add_content(struct buf *b, const json_t *content)
{
    if (!json_is_array(content)) {
        buf_add(b, json_string_value(content), json_string_length(content));
        return;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const struct str s = text_of(json_is_string(part) ? part : json_object_get(part, "text"));
        if (b->n && s.p)
            buf_addc(b, '\n');
        buf_add(b, s.p, s.n);
    }
}

/* Numbers that are equal get one form: JavaScript sends 3.0 back as 3.  NULL when memory is out. */
static json_t *plain_value(json_t *v)
{
    const double d = json_real_value(v);
    if (json_is_real(v) && d == floor(d) && fabs(d) < 9e15)
        return json_integer((json_int_t)d);
    if (!json_is_object(v) && !json_is_array(v))
        return json_incref(v);
    json_t *out = json_is_object(v) ? json_object() : json_array();
    bool bad = !out;
    const char *key;
    json_t *x;
    json_object_foreach(v, key, x) bad |=
        json_object_set_new_nocheck(out, key, plain_value(x)) != 0;
    for (size_t i = 0; i < json_array_size(v); i++)
        bad |= json_array_append_new(out, plain_value(json_array_get(v, i))) != 0;
    if (!bad)
        return out;
    json_decref(out);
    return NULL;
}

/* Arguments come as an object or as its text.  NULL when memory is out. */
static json_t *plain_arguments(json_t *v)
{
    json_t *parsed = NULL;
    if (json_is_string(v) && !json_string_length(v))
        return json_object();
    if (!json_is_string(v))
        return v ? plain_value(v) : json_object();
    if (jread_parse(json_string_value(v), json_string_length(v), &parsed, NULL))
        return json_incref(v); /* no JSON: the text itself */
    json_t *out = plain_value(parsed);
    json_decref(parsed);
    return out;
}

static int hash_bytes(const char *p, size_t n, void *state)
{
    return XXH3_128bits_update(state, p, n) == XXH_OK ? 0 : -1;
}

static bool hash_field(XXH3_state_t *h, struct str s)
{
    const uint64_t n = s.n;
    return !hash_bytes((const char *)&n, sizeof n, h) && !hash_bytes(s.p ? s.p : "", s.n, h);
}

/* Some clients send reasoning in front of the content, in the tags it was written in: "<think>r</think>c".
 * The parts of it; *reasoning is empty where that is not so. */
static struct str split_reasoning(struct str content, struct str *reasoning)
{
    static const char open[] = "<think>", close[] = "</think>";
    const struct str whole = trimmed(content);
    const ptrdiff_t end = str_find(whole, str_of(close), 0);
    *reasoning = (struct str){NULL, 0};
    if (!str_starts(whole, str_of(open)) || end < 0)
        return whole;
    const size_t head = sizeof open - 1, tail = (size_t)end + sizeof close - 1;
    *reasoning = trimmed((struct str){whole.p + head, (size_t)end - head});
    return trimmed((struct str){whole.p + tail, whole.n - tail});
}

/* The key of a conversation that goes on with a message. */
static bool add_message(XXH128_hash_t *key, const json_t *m)
{
    XXH3_state_t *h = XXH3_createState();
    struct buf content = BUF_INIT;
    struct str reasoning;
    bool ok = h && XXH3_128bits_reset(h) == XXH_OK;
    add_content(&content, json_object_get(m, "content"));
    ok = ok && !content.failed && !hash_bytes((const char *)key, sizeof *key, h) &&
         hash_field(h, text_of(json_object_get(m, "role"))) &&
         hash_field(h, split_reasoning((struct str){buf_str(&content), content.n}, &reasoning)) &&
         hash_field(h, text_of(json_object_get(m, "tool_call_id")));
    const json_t *calls = json_object_get(m, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls) && ok; i++) {
        const json_t *call = json_array_get(calls, i), *fn = json_object_get(call, "function");
        json_t *args = plain_arguments(json_object_get(fn ? fn : call, "arguments"));
        ok = args && hash_field(h, text_of(json_object_get(call, "id"))) &&
             hash_field(h, text_of(json_object_get(fn ? fn : call, "name"))) &&
             !json_dump_callback(args, hash_bytes, h,
                                 JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY);
        json_decref(args);
    }
    if (ok)
        *key = XXH3_128bits_digest(h);
    XXH3_freeState(h);
    buf_release(&content);
    return ok;
}

/* ---- before rendering ---- */

/* Counted, used last; NULL: there is none. */
static struct replay_answer *get(struct replay *r, XXH128_hash_t key)
{
    pthread_mutex_lock(&r->lock);
    struct replay_answer *a = *find(r, key);
    if (a) {
        a->refs++;
        unlink_use(r, a);
        link_newest(r, a);
    }
    pthread_mutex_unlock(&r->lock);
    return a;
}

static void give_back(struct replay *r, struct replay_answer *a)
{
    pthread_mutex_lock(&r->lock);
    unref(a);
    pthread_mutex_unlock(&r->lock);
}

/* Puts the reasoning into message i of a copy, as a field of its own; content, if not NULL, takes the
 * place of the message's.  False when memory is out. */
static bool put_back(json_t **messages, size_t i, struct str reasoning, const struct str *content)
{
    json_t *list = json_copy(*messages), *m = json_copy(json_array_get(*messages, i));
    const bool bad =
        json_object_set_new(m, "reasoning_content", json_stringn(reasoning.p, reasoning.n)) ||
        (content && json_object_set_new(m, "content", json_stringn(content->p, content->n))) ||
        json_array_set(list, i, m);
    json_decref(m);
    if (bad) {
        json_decref(list);
        return false;
    }
    json_decref(*messages);
    *messages = list;
    return true;
}

/* What message i was, if it was an answer of ours; the key in l goes on with it. */
static bool look_at(struct replay *r, json_t **messages, size_t i, struct replay_look *l)
{
    const json_t *m = json_array_get(*messages, i);
    const struct str role = text_of(json_object_get(m, "role"));
    if (!add_message(&l->said, m))
        return false;
    if (!role.p || !str_is(role, "assistant"))
        return true;
    struct replay_answer *a = get(r, l->said);
    if (!a)
        return true;
    struct str inside;
    const struct str content = split_reasoning(text_of(json_object_get(m, "content")), &inside);
    const struct str field = trimmed(text_of(json_object_get(m, "reasoning_content")));
    const struct str sent = field.n ? field : inside;
    if (sent.n && !str_eq(sent, trimmed(a->reasoning))) {
        give_back(r, a); /* the client has changed it */
        return true;
    }
    l->found[i] = a;
    if (field.n || !a->reasoning.n)
        return true;
    return put_back(messages, i, a->reasoning, inside.n ? &content : NULL);
}

enum rc replay_look(struct replay *r, json_t **messages, struct replay_look *out, struct err *err)
{
    const size_t n = json_array_size(*messages);
    out->found = mem_try_array(n, sizeof(struct replay_answer *));
    if (!out->found)
        return err_set(err, RC_NOMEM, "out of memory for the messages");
    out->n = n;
    for (size_t i = 0; i < n; i++)
        if (!look_at(r, messages, i, out))
            return err_set(err, RC_NOMEM, "out of memory for the messages");
    return RC_OK;
}

void replay_look_release(struct replay *r, struct replay_look *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->found[i])
            give_back(r, l->found[i]);
    mem_free(l->found);
    *l = (struct replay_look){0};
}

/* ---- after rendering ---- */

/* Whether text ends as the answer does, as far as a few bytes show. */
static bool ends_alike(const struct vocab *v, struct str text, const struct replay_answer *a)
{
    for (size_t i = a->n, seen = 0; i-- > 0 && seen < 16;) {
        const struct str s = vocab_bytes(v, a->tokens[i], true);
        if (!str_ends(text, s))
            return false;
        text.n -= s.n;
        seen += s.n;
    }
    return true;
}

/* Where an answer ends in the message's text: before the end mark, which the template writes (the one it
 * was sampled with was never evaluated).  An answer without one, cut behind a call or ended by its grammar,
 * must end there as the text does.  Behind the mark nothing but white space may come, else the text is not
 * what we take it for.  0: there is no such place. */
static size_t end_of_answer(const struct vocab *v, const struct chat_prompt *p,
                            const struct chat_span *s, const struct replay_answer *a)
{
    size_t at = s->end;
    while (at > s->begin && isspace((unsigned char)p->text.p[at - 1]))
        at--;
    const struct str text = {p->text.p + s->begin, at - s->begin};
    const token ends[] = {a->end, vocab_eos(v)};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        const struct str mark = ends[i] < 0 ? (struct str){NULL, 0} : vocab_bytes(v, ends[i], true);
        if (!mark.n || !str_ends(text, mark))
            continue;
        const struct str body = {text.p, text.n - mark.n};
        return a->end >= 0 || ends_alike(v, body, a) ? at - mark.n : 0;
    }
    return 0;
}

static bool has_thinking(const struct chat_prompt *p, size_t message)
{
    for (size_t i = 0; i < p->n_spans; i++)
        if (p->spans[i].part == CHAT_THINKING && (size_t)p->spans[i].message == message)
            return true;
    return false;
}

static enum rc splice_one(struct replay *r, const struct vocab *v, struct chat_prompt *p,
                          const struct chat_span *s, const struct replay_answer *a, struct err *err)
{
    const size_t begin = s->begin, end = end_of_answer(v, p, s, a);
    const struct str rest = {p->text.p + begin, s->end - begin};
    const bool shown =
        str_starts(rest, a->asked) && (!a->reasoning.n || has_thinking(p, (size_t)s->message));
    if (!end || (!shown && !r->o.keep_thinking) || XXH3_64bits(p->text.p, begin) != a->before)
        return RC_OK;
    return chat_splice(v, p, begin, end, a->asked, a->tokens, a->n, err);
}

enum rc replay_splice(struct replay *r, const struct replay_look *l, const struct vocab *v,
                      struct chat_prompt *p, struct err *err)
{
    enum rc rc = RC_OK;
    for (size_t i = 0; i < p->n_spans && !rc; i++) {
        const struct chat_span *s = &p->spans[i];
        if (s->part == CHAT_MESSAGE && s->message >= 0 && l->found[s->message])
            rc = splice_one(r, v, p, s, l->found[s->message], err);
    }
    return rc;
}

/* ---- after generating ---- */

static const struct chat_span *asking(const struct chat_prompt *p)
{
    for (size_t i = p->n_spans; i-- > 0;)
        if (p->spans[i].part == CHAT_PROMPT)
            return &p->spans[i];
    return NULL;
}

void replay_keep(struct replay *r, const struct replay_look *l, const struct vocab *v,
                 const struct chat_prompt *p, const json_t *message, struct str reasoning,
                 const token *tokens, size_t n)
{
    const struct chat_span *s = asking(p);
    XXH128_hash_t key = l->said;
    if (!s || !n || !add_message(&key, message))
        return;
    const struct str asked = {p->text.p + s->begin, p->text.n - s->begin};
    const bool marked = vocab_is_eog(v, tokens[n - 1]);
    const token end = marked ? tokens[n - 1] : -1;
    n -= marked;
    const size_t bytes = sizeof(struct replay_answer) + n * sizeof *tokens + asked.n + reasoning.n;
    struct replay_answer *a = bytes <= r->o.bytes ? mem_try(bytes) : NULL;
    if (!a)
        return;
    token *t = (token *)(a + 1);
    char *text = (char *)(t + n);
    memcpy(t, tokens, n * sizeof *t);
    memcpy(text, asked.p, asked.n);
    if (reasoning.n)
        memcpy(text + asked.n, reasoning.p, reasoning.n);
    *a = (struct replay_answer){.refs = 1,
                                .key = key,
                                .before = XXH3_64bits(p->text.p, s->begin),
                                .asked = {text, asked.n},
                                .reasoning = {text + asked.n, reasoning.n},
                                .tokens = t,
                                .n = n,
                                .end = end,
                                .bytes = bytes};
    pthread_mutex_lock(&r->lock);
    put(r, a);
    pthread_mutex_unlock(&r->lock);
}
