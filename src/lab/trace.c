#include "lab/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

enum {
    MAX_TOKENS = 1 << 26,   /* of one request */
    MAX_SEGMENTS = 1 << 24, /* of one request */
    MAX_LINE = 64 << 20
};

/* -- reading --------------------------------------------------------------------------------- */

struct reader {
    struct trace *t;
    bool seen_header;
};

static bool kind_known(char k)
{
    return k && strchr("suaovg", k) != NULL;
}

static enum rc read_segment(struct reader *rd, const json_t *v, uint32_t *len, struct err *err)
{
    struct trace *t = rd->t;
    const size_t n = json_array_size(v);
    const json_t *cid = json_array_get(v, 0), *l = json_array_get(v, 1), *k = json_array_get(v, 2);
    if (!json_is_array(v) || n < 2 || n > 3 || !json_is_integer(cid) || !json_is_integer(l))
        return err_set(err, RC_FORMAT, "a segment is [cid, len] or [cid, len, kind]");
    if (json_integer_value(l) < 0 || json_integer_value(l) > MAX_TOKENS)
        return err_set(err, RC_LIMIT, "a segment of %" JSON_INTEGER_FORMAT " tokens; at most %d",
                       json_integer_value(l), MAX_TOKENS);
    char kind = 0;
    if (k) {
        const char *s = json_string_value(k);
        if (!s || !kind_known(s[0]) || s[1])
            return err_set(err, RC_FORMAT, "a segment's kind is one of s u a o v g");
        kind = s[0];
    }
    if (!mem_grow(&t->segs, &t->segs_cap, t->n_segs + 1, sizeof *t->segs))
        return err_set(err, RC_NOMEM, "out of memory");
    *len = (uint32_t)json_integer_value(l);
    t->segs[t->n_segs++] = (struct trace_seg){json_integer_value(cid), *len, kind};
    return RC_OK;
}

static uint32_t n_segments(const struct trace_req *r)
{
    return r->n_base + r->n_own;
}

/* Tokens in the first k segments of request i. */
static uint64_t tokens_in(const struct trace *t, uint32_t i, uint32_t k)
{
    uint64_t n = 0;
    for (;;) {
        const struct trace_req *r = &t->reqs[i];
        for (uint32_t s = r->n_base; s < k; s++)
            n += t->segs[r->first + (s - r->n_base)].len;
        k = MIN(k, r->n_base);
        if (!k)
            return n;
        i = r->base;
    }
}

static enum rc read_base(struct reader *rd, const json_t *b, struct trace_req *r, uint64_t *tokens,
                         struct err *err)
{
    struct trace *t = rd->t;
    const json_t *j = json_array_get(b, 0), *k = json_array_get(b, 1);
    if (!json_is_array(b) || json_array_size(b) != 2 || !json_is_integer(j) || !json_is_integer(k))
        return err_set(err, RC_FORMAT, "b: must be [request, segments]");
    if (json_integer_value(j) < 0 || json_integer_value(j) >= t->n)
        return err_set(err, RC_FORMAT,
                       "b: names request %" JSON_INTEGER_FORMAT ", which is not an earlier one",
                       json_integer_value(j));
    r->base = (uint32_t)json_integer_value(j);
    if (json_integer_value(k) < 0 || json_integer_value(k) > n_segments(&t->reqs[r->base]))
        return err_set(err, RC_FORMAT,
                       "b: takes %" JSON_INTEGER_FORMAT " segments of request %" PRIu32
                       ", which has %" PRIu32,
                       json_integer_value(k), r->base, n_segments(&t->reqs[r->base]));
    r->n_base = (uint32_t)json_integer_value(k);
    *tokens = tokens_in(t, r->base, r->n_base);
    return RC_OK;
}

static enum rc stream_index(struct trace *t, const char *name, uint32_t *out, struct err *err)
{
    for (*out = 0; *out < t->n_streams; ++*out)
        if (!strcmp(t->streams[*out], name))
            return RC_OK;
    if (t->n_streams >= 4096) { /* names that never repeat: one bin for the rest */
        *out = t->n_streams - 1;
        return RC_OK;
    }
    if (!mem_grow(&t->streams, &t->streams_cap, (size_t)t->n_streams + 1, sizeof *t->streams))
        return err_set(err, RC_NOMEM, "out of memory");
    t->streams[t->n_streams++] = mem_strdup(name);
    return RC_OK;
}

static enum rc read_request(struct reader *rd, const json_t *o, struct err *err)
{
    struct trace *t = rd->t;
    struct trace_req r = {.first = (uint32_t)t->n_segs};
    int64_t i = -1;
    const char *stream = "";
    enum rc rc = jread_i64(o, "i", 0, UINT32_MAX, &i, err);
    if (!rc)
        rc = jread_f64(o, "t", 0, 1e12, &r.t, err);
    if (!rc)
        rc = jread_str(o, "s", &stream, err);
    if (rc)
        return err->rc = RC_FORMAT; /* not RC_ARG: it is the file's fault */
    if (i != t->n)
        return err_set(err, RC_FORMAT, "i: is %" PRId64 ", but this is request %" PRIu32, i, t->n);
    uint64_t n = 0;
    const json_t *b = json_object_get(o, "b"), *p = json_object_get(o, "p"),
                 *g = json_object_get(o, "g"), *seg;
    if (b && (rc = read_base(rd, b, &r, &n, err)))
        return rc;
    if (!json_is_array(p))
        return err_set(err, RC_FORMAT, "p: must be a list of segments");
    size_t k;
    uint32_t len;
    json_array_foreach(p, k, seg)
    {
        if ((rc = read_segment(rd, seg, &len, err)))
            return rc;
        n += len;
    }
    if (g && (rc = read_segment(rd, g, &r.n_gen, err)))
        return rc;
    if (!n)
        return err_set(err, RC_FORMAT, "the prompt has no tokens");
    if (n + r.n_gen > MAX_TOKENS || t->n_segs - r.first > MAX_SEGMENTS - r.n_base ||
        t->n_segs > UINT32_MAX - MAX_SEGMENTS || t->n == UINT32_MAX)
        return err_set(err, RC_LIMIT,
                       "a request of %" PRIu64 " tokens in %zu segments is too large", n + r.n_gen,
                       t->n_segs - r.first + r.n_base);
    if ((rc = stream_index(t, stream, &r.stream, err)))
        return rc;
    r.n_own = (uint32_t)t->n_segs - r.first;
    r.n_prompt = (uint32_t)n;
    if (!mem_grow(&t->reqs, &t->reqs_cap, (size_t)t->n + 1, sizeof *t->reqs))
        return err_set(err, RC_NOMEM, "out of memory");
    t->reqs[t->n++] = r;
    t->prompt_tokens += n;
    return RC_OK;
}

static enum rc read_header(struct reader *rd, const json_t *o, struct err *err)
{
    int64_t version = 0;
    const char *name = "", *source = "";
    if (jread_i64(o, "holdfast_trace", 1, INT64_MAX, &version, err) ||
        jread_str(o, "name", &name, err) || jread_str(o, "source", &source, err))
        return err->rc = RC_FORMAT; /* not RC_ARG: it is the file's fault */
    if (!version)
        return err_set(err, RC_FORMAT, "no holdfast_trace header; is this a trace?");
    if (version != 1)
        return err_set(err, RC_UNSUPPORTED, "trace format %" PRId64 "; this program reads 1",
                       version);
    rd->t->name = mem_strdup(name);
    rd->t->source = mem_strdup(source);
    rd->seen_header = true;
    return RC_OK;
}

static enum rc read_line(struct reader *rd, const char *line, size_t n, struct err *err)
{
    json_t *o = NULL;
    enum rc rc = jread_parse(line, n, &o, err);
    if (!rc && !json_is_object(o))
        rc = err_set(err, RC_FORMAT, "not a JSON object");
    if (!rc)
        rc = rd->seen_header ? read_request(rd, o, err) : read_header(rd, o, err);
    json_decref(o);
    return rc;
}

enum rc trace_open(const char *path, struct trace **out, struct err *err)
{
    struct err own;
    if (!err)
        err = &own;
    const bool piped = !strcmp(path, "-");
    FILE *f = piped ? stdin : fopen(path, "r");
    if (!f)
        return err_sys(err, "%s", path);
    if (piped)
        path = "standard input";
    struct reader rd = {.t = mem_zalloc(sizeof *rd.t)};
    char *line = NULL;
    size_t cap = 0;
    enum rc rc = RC_OK;
    for (uint64_t no = 1; !rc; no++) {
        const ssize_t n = getline(&line, &cap, f);
        if (n < 0)
            break;
        if (n > MAX_LINE)
            rc = err_set(err, RC_LIMIT, "longer than %d bytes", MAX_LINE);
        else if (strspn(line, " \t\r\n") < (size_t)n)
            rc = read_line(&rd, line, (size_t)n, err);
        rc = err_wrap(err, rc, "%s line %" PRIu64, path, no);
    }
    if (!rc && ferror(f))
        rc = err_sys(err, "%s", path);
    if (!rc && !rd.seen_header)
        rc = err_set(err, RC_FORMAT, "%s: empty, no holdfast_trace header", path);
    free(line);
    if (!piped)
        fclose(f);
    if (rc) {
        trace_close(rd.t);
        return rc;
    }
    *out = rd.t;
    return RC_OK;
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_streams; i++)
        mem_free(t->streams[i]);
    mem_free(t->streams);
    mem_free(t->reqs);
    mem_free(t->segs);
    mem_free(t->name);
    mem_free(t->source);
    mem_free(t);
}

/* -- tokens ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Token n of stream cid.  Two seeds: with one, two streams would be shifted copies of each other. */
static void fill(token *out, int64_t cid, uint32_t len, uint32_t n_vocab)
{
    const uint64_t seed = mix((uint64_t)cid + UINT64_C(0x9e3779b97f4a7c15));
    const uint32_t a = (uint32_t)seed, b = (uint32_t)(seed >> 32);
    for (uint32_t n = 0; n < len; n++) {
        uint32_t x = n * UINT32_C(0x9e3779b1) + a;
        x = (x ^ x >> 15 ^ b) * UINT32_C(0x85ebca77);
        x = (x ^ x >> 13) * UINT32_C(0xc2b2ae3d);
        out[n] = (token)((x ^ x >> 16) >> 1);
    }
    for (uint32_t n = 0; n_vocab && n < len; n++)
        out[n] = (token)((uint64_t)out[n] * n_vocab >> 31);
}

/* Its segments: own ones from the end backwards, then those of the request it begins with, and so on. */
static bool list_segments(const struct trace *t, uint32_t i, struct trace_tokens *x)
{
    x->n_list = n_segments(&t->reqs[i]);
    if (!mem_grow(&x->list, &x->list_cap, (size_t)x->n_list + 1, sizeof *x->list))
        return false;
    for (uint32_t k = x->n_list; k;) {
        const struct trace_req *r = &t->reqs[i];
        while (k > r->n_base) {
            k--;
            x->list[k] = &t->segs[r->first + (k - r->n_base)];
        }
        i = r->base;
    }
    return true;
}

enum rc trace_shrink(struct trace *t, uint32_t n, double scale, struct err *err)
{
    struct trace_tokens x = {0};
    t->n = n ? MIN(n, t->n) : t->n;
    for (size_t i = 0; i < t->n_segs; i++) {
        const double len = t->segs[i].len * scale;
        if (t->segs[i].len)
            t->segs[i].len = len < 1 ? 1 : len < UINT32_MAX ? (uint32_t)len : UINT32_MAX;
    }
    t->prompt_tokens = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        struct trace_req *r = &t->reqs[i];
        if (!list_segments(t, i, &x)) {
            trace_tokens_release(&x);
            return err_set(err, RC_NOMEM, "request %" PRIu32 ": no memory", i);
        }
        uint64_t sum = 0;
        for (uint32_t k = 0; k < x.n_list; k++)
            sum += x.list[k]->len;
        if (r->n_gen)
            r->n_gen = x.list[x.n_list - 1]->len;
        if (sum > INT32_MAX) {
            trace_tokens_release(&x);
            return err_set(err, RC_LIMIT, "request %" PRIu32 ": %" PRIu64 " tokens", i, sum);
        }
        r->n_prompt = (uint32_t)sum - r->n_gen;
        t->prompt_tokens += r->n_prompt;
    }
    trace_tokens_release(&x);
    return RC_OK;
}

enum rc trace_expand(const struct trace *t, uint32_t i, uint32_t n_vocab, struct trace_tokens *x,
                     struct err *err)
{
    const struct trace_req *r = &t->reqs[i];
    const size_t n = (size_t)r->n_prompt + r->n_gen;
    if (!list_segments(t, i, x) || !mem_grow(&x->seq, &x->seq_cap, n, sizeof *x->seq) ||
        !mem_grow(&x->hints, &x->hints_cap, x->n_list, sizeof *x->hints))
        return err_set(err, RC_NOMEM, "request %" PRIu32 ": no memory for %zu tokens", i, n);
    x->n_prompt = r->n_prompt;
    x->n_gen = r->n_gen;
    x->n_hints = 0;
    uint32_t pos = 0;
    for (uint32_t k = 0; k < x->n_list; k++) {
        const struct trace_seg *s = x->list[k];
        if (s->kind && pos < r->n_prompt)
            x->hints[x->n_hints++] = (struct cache_hint){pos, s->kind};
        fill(x->seq + pos, s->cid, s->len, n_vocab);
        pos += s->len;
    }
    return RC_OK;
}

void trace_tokens_release(struct trace_tokens *x)
{
    mem_free(x->seq);
    mem_free(x->hints);
    mem_free(x->list);
    *x = (struct trace_tokens){0};
}
