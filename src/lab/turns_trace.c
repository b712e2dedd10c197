#include "lab/turns_trace.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

enum {
    HEADER_BYTES = 512,
    N_CONTENTS = 1024,
    MAX_SEGS = 65536 /* of one slot; a longer history is cut to a fresh start */
};

struct seg {
    uint64_t cid;
    int64_t len;
};

struct content {
    uint32_t process, slot;
    uint64_t request; /* whose segments these are */
    struct seg *segs;
    size_t n, cap;
};

struct turns_trace {
    FILE *f;
    char *name;
    struct content *contents;
    size_t n_contents, contents_cap;
    uint64_t n, left_out, next_cid;
    double t0;
    bool has_t0, failed;
    struct buf line;
};

enum rc turns_trace_new(const char *path, const char *name, struct turns_trace **out,
                        struct err *err)
{
    struct turns_trace *x = mem_try_zalloc(sizeof *x);
    if (!x)
        return err_set(err, RC_NOMEM, "no memory for a trace");
    buf_init(&x->line);
    x->name = mem_strdup(name);
    x->next_cid = 1;
    x->f = fopen(path, "we");
    char blank[HEADER_BYTES];
    memset(blank, ' ', sizeof blank);
    blank[sizeof blank - 1] = '\n';
    if (!x->f || fwrite(blank, 1, sizeof blank, x->f) != sizeof blank || fflush(x->f)) {
        const enum rc rc = err_sys(err, "trace %s", path);
        turns_trace_free(x);
        return rc;
    }
    *out = x;
    return RC_OK;
}

void turns_trace_free(struct turns_trace *x)
{
    if (!x)
        return;
    if (x->f)
        fclose(x->f);
    for (size_t i = 0; i < x->n_contents; i++)
        mem_free(x->contents[i].segs);
    mem_free(x->contents);
    mem_free(x->name);
    buf_release(&x->line);
    mem_free(x);
}

static struct content *content_of(struct turns_trace *x, uint32_t process, uint32_t slot)
{
    for (size_t i = 0; i < x->n_contents; i++)
        if (x->contents[i].process == process && x->contents[i].slot == slot)
            return &x->contents[i];
    if (x->n_contents == N_CONTENTS ||
        !mem_grow(&x->contents, &x->contents_cap, x->n_contents + 1, sizeof *x->contents))
        return NULL;
    x->contents[x->n_contents] = (struct content){.process = process, .slot = slot};
    return &x->contents[x->n_contents++];
}

static void write_seg(struct jwrite *w, const char *key, const struct seg *s)
{
    jwrite_arr(w, key);
    jwrite_u64(w, NULL, s->cid);
    jwrite_i64(w, NULL, s->len);
    jwrite_end_arr(w);
}

void turns_trace_add(struct turns_trace *x, const struct turn *t)
{
    struct content *c = content_of(x, t->process, t->slot);
    /* a cancelled turn counts as far as it came */
    const int64_t n_prompt = t->n_prompt < 0 && t->cancelled ? t->held_after : t->n_prompt;
    if (!c || n_prompt < 1 || n_prompt > UINT32_MAX || t->lcp < 0 || t->generated > UINT32_MAX) {
        x->left_out++;
        if (c)
            c->n = 0;
        return;
    }
    const int64_t keep = MIN(t->lcp, n_prompt), gen = MAX(t->generated, 0);
    /* whole segments below the common prefix, then a part of one */
    size_t whole = 0;
    int64_t at = 0;
    while (whole < c->n && at + c->segs[whole].len <= keep)
        at += c->segs[whole++].len;
    struct seg own[4];
    size_t n_own = 0;
    if (at < keep && whole < c->n)
        own[n_own++] = (struct seg){c->segs[whole].cid, keep - at};
    else if (at < keep) /* the log begins with a slot that held something */
        own[n_own++] = (struct seg){x->next_cid++, keep - at};
    if (n_prompt > keep)
        own[n_own++] = (struct seg){x->next_cid++, n_prompt - keep};
    const size_t n_prompt_segs = n_own;
    if (gen)
        own[n_own++] = (struct seg){x->next_cid++, gen};

    struct jwrite w;
    buf_clear(&x->line);
    jwrite_init(&w, &x->line);
    if (!x->has_t0 && t->time != TIME_NONE) {
        x->t0 = t->t;
        x->has_t0 = true;
    }
    const double dt = t->time != TIME_NONE && x->has_t0 ? t->t - x->t0 : (double)x->n;
    char stream[32];
    snprintf(stream, sizeof stream, "p%" PRIu32 "s%" PRIu32, t->process, t->slot);
    jwrite_obj(&w, NULL);
    jwrite_u64(&w, "i", x->n);
    jwrite_fixed(&w, "t", dt > 0 && dt < 1e10 ? dt : 0, 3);
    jwrite_str(&w, "s", stream);
    if (whole) {
        jwrite_arr(&w, "b");
        jwrite_u64(&w, NULL, c->request);
        jwrite_u64(&w, NULL, whole);
        jwrite_end_arr(&w);
    }
    jwrite_arr(&w, "p");
    for (size_t i = 0; i < n_prompt_segs; i++)
        write_seg(&w, NULL, &own[i]);
    jwrite_end_arr(&w);
    if (gen)
        write_seg(&w, "g", &own[n_own - 1]);
    jwrite_end_obj(&w);
    buf_addc(&x->line, '\n');
    x->failed |= x->line.failed || fwrite(x->line.p, 1, x->line.n, x->f) != x->line.n;

    if (whole + n_own > MAX_SEGS || !mem_grow(&c->segs, &c->cap, whole + n_own, sizeof *c->segs)) {
        c->n = 0;
    } else {
        memcpy(c->segs + whole, own, n_own * sizeof *own);
        c->n = whole + n_own;
    }
    c->request = x->n++;
}

enum rc turns_trace_end(struct turns_trace *x, struct err *err)
{
    struct jwrite w;
    buf_clear(&x->line);
    jwrite_init(&w, &x->line);
    jwrite_obj(&w, NULL);
    jwrite_u64(&w, "holdfast_trace", 1);
    jwrite_strn(&w, "name", x->name, MIN(strlen(x->name), (size_t)80));
    jwrite_u64(&w, "requests", x->n);
    jwrite_obj(&w, "units");
    jwrite_str(&w, "t", "s");
    jwrite_str(&w, "len", "tokens");
    jwrite_end_obj(&w);
    jwrite_str(&w, "source", "holdfast forensics: overlaps with the slot's content only");
    jwrite_end_obj(&w);
    if (x->line.failed || x->line.n >= HEADER_BYTES || x->failed)
        return err_sys(err, "writing the trace");
    if (fseek(x->f, 0, SEEK_SET) || fwrite(x->line.p, 1, x->line.n, x->f) != x->line.n ||
        fflush(x->f))
        return err_sys(err, "writing the trace");
    return RC_OK;
}

uint64_t turns_trace_n(const struct turns_trace *x)
{
    return x->n;
}

uint64_t turns_trace_left_out(const struct turns_trace *x)
{
    return x->left_out;
}
