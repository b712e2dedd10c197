#include "model/bind.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kern/quant.h"

enum rc bind_init(struct bind *b, const struct gguf *g, const struct logger *lg, struct err *err)
{
    *b = (struct bind){.g = g, .lg = lg, .block = -1};
    b->used = mem_try_array(gguf_n_tensors(g), sizeof *b->used);
    return b->used ? RC_OK
                   : err_set(err, RC_NOMEM, "no memory for %" PRIu64 " tensor names",
                             gguf_n_tensors(g));
}

void bind_load(struct bind *b, const struct kern *k, struct pool *pool, bool no_repack,
               struct mat_heap *heap, struct arena *arena)
{
    b->load = true;
    b->kern = k;
    b->pool = pool;
    b->no_repack = no_repack;
    b->heap = heap;
    b->arena = arena;
    b->total_bytes = b->weight_bytes;
    progress_begin(&b->progress, b->lg, "loading");
}

void bind_release(struct bind *b)
{
    if (b->load)
        progress_end(&b->progress);
    mem_free(b->used);
    b->used = NULL;
}

struct full {
    char s[80];
};

static struct full full_name(const struct bind *b, const char *name)
{
    struct full f;
    if (b->block < 0)
        snprintf(f.s, sizeof f.s, "%s", name);
    else
        snprintf(f.s, sizeof f.s, "blk.%d.%s", (int)b->block, name);
    return f;
}

bool bind_has(const struct bind *b, const char *name)
{
    return gguf_find_tensor(b->g, full_name(b, name).s) != NULL;
}

static void shape_text(const uint64_t ne[4], char out[96])
{
    int n = 4;
    while (n > 1 && ne[n - 1] == 1)
        n--;
    int at = snprintf(out, 96, "[%" PRIu64, ne[0]);
    for (int i = 1; i < n; i++)
        at += snprintf(out + at, 96 - (size_t)at, ", %" PRIu64, ne[i]);
    snprintf(out + at, 96 - (size_t)at, "]");
}

static uint64_t index_of(const struct bind *b, const struct gguf_tensor *t)
{
    uint64_t i = 0;
    while (gguf_tensor_at(b->g, i) != t)
        i++;
    return i;
}

/* The tensor of that name with that shape (trailing ones do not count). */
static enum rc find(struct bind *b, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                    const struct gguf_tensor **out, struct err *err)
{
    const uint64_t want[4] = {ne0, ne1, ne2, 1};
    const struct full f = full_name(b, name);
    const struct gguf_tensor *t = gguf_find_tensor(b->g, f.s);
    if (!t)
        return err_set(err, RC_FORMAT, "tensor %s is missing", f.s);
    if (memcmp(t->ne, want, sizeof want) != 0) {
        char has[96], should[96];
        shape_text(t->ne, has);
        shape_text(want, should);
        return err_set(err, RC_FORMAT, "tensor %s is %s, not %s", f.s, has, should);
    }
    bool *used = &b->used[index_of(b, t)];
    if (!b->load && !*used) {
        b->n_params += ne0 * ne1 * ne2;
        b->weight_bytes += t->bytes;
    }
    *used = true;
    *out = t;
    return RC_OK;
}

static void loaded(struct bind *b, const struct gguf_tensor *t)
{
    b->done_bytes += t->bytes;
    progress_at(&b->progress, b->done_bytes, b->total_bytes);
}

static enum rc decode(struct bind *b, const struct gguf_tensor *t, float **out, struct err *err)
{
    const uint64_t n = t->ne[0] * t->ne[1];
    *out = arena_try(b->arena, n * sizeof **out);
    if (!*out)
        return err_set(err, RC_NOMEM, "tensor %.*s: no memory for %" PRIu64 " values",
                       (int)t->name.n, t->name.p, n);
    quant_decode(t->type, t->data, n, *out);
    loaded(b, t);
    return RC_OK;
}

enum rc bind_vec(struct bind *b, const char *name, uint64_t n, const float **out, struct err *err)
{
    const struct gguf_tensor *t;
    float *v = NULL;
    enum rc rc = find(b, name, n, 1, 1, &t, err);
    if (!rc && b->load)
        rc = decode(b, t, &v, err);
    *out = v;
    return rc;
}

enum rc bind_turned(struct bind *b, const char *name, uint64_t cols, uint64_t rows,
                    const float **out, struct err *err)
{
    const struct gguf_tensor *t;
    float *v = NULL, *turned = NULL;
    enum rc rc = find(b, name, rows, cols, 1, &t, err);
    if (!rc && b->load)
        rc = decode(b, t, &v, err);
    if (v) {
        turned = arena_try(b->arena, cols * rows * sizeof *turned);
        if (!turned)
            return err_set(err, RC_NOMEM, "tensor %s: no memory", full_name(b, name).s);
        for (uint64_t c = 0; c < cols; c++)
            for (uint64_t r = 0; r < rows; r++)
                turned[r * cols + c] = v[c * rows + r];
    }
    *out = turned;
    return rc;
}

struct source {
    const struct gguf *g;
    const struct gguf_tensor *t;
};

static void packed(void *ctx, uint64_t off, uint64_t n)
{
    const struct source *s = ctx;
    gguf_drop_bytes(s->g, s->t, off, n);
}

static enum rc matrix(struct bind *b, const char *name, uint64_t cols, uint64_t rows,
                      uint32_t n_mats, bool no_repack, struct mat **out, struct err *err)
{
    const struct gguf_tensor *t;
    const enum rc rc = find(b, name, cols, rows, n_mats, &t, err);
    if (rc || !b->load)
        return rc;
    const struct full f = full_name(b, name);
    const struct mat_src src = {f.s, t->type, cols, rows, n_mats, t->data};
    struct source source = {b->g, t};
    const struct mat_opts o = {
        .no_repack = no_repack, .heap = b->heap, .packed = packed, .ctx = &source};
    const enum rc made = mat_new(b->kern, b->pool, &src, &o, out, err);
    if (made)
        return made;
    if (mat_owns_data(*out)) /* what lay across the bounds of pages too */
        gguf_drop_tensor(b->g, t);
    loaded(b, t);
    return RC_OK;
}

enum rc bind_mat(struct bind *b, const char *name, uint64_t cols, uint64_t rows, uint32_t n_mats,
                 struct mat **out, struct err *err)
{
    return matrix(b, name, cols, rows, n_mats, b->no_repack, out, err);
}

enum rc bind_rows(struct bind *b, const char *name, uint64_t cols, uint64_t rows, struct mat **out,
                  struct err *err)
{
    return matrix(b, name, cols, rows, 1, true, out, err);
}

/* "blk.N.": N, else -1 */
static int64_t block_of(struct str name)
{
    if (!str_starts(name, str_of("blk.")))
        return -1;
    int64_t n = 0;
    size_t i = 4;
    for (; i < name.n && i < 12 && name.p[i] >= '0' && name.p[i] <= '9'; i++)
        n = n * 10 + (name.p[i] - '0');
    return i > 4 && i < name.n && name.p[i] == '.' ? n : -1;
}

enum rc bind_rest(const struct bind *b, uint32_t n_layer, struct err *err)
{
    enum { SHOWN = 3 };
    uint64_t unknown = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(b->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(b->g, i);
        if (b->used[i] || block_of(t->name) >= (int64_t)n_layer)
            continue;
        if (str_ends(t->name, str_of(".scale")) || str_ends(t->name, str_of(".input_scale")))
            return err_set(err, RC_UNSUPPORTED,
                           "tensor %.*s: matrices with a scale of their own are not done",
                           (int)t->name.n, t->name.p);
        if (unknown < SHOWN)
            log_warn(b->lg, "tensor %.*s is not known and not used", (int)t->name.n, t->name.p);
        unknown++;
    }
    if (unknown > SHOWN)
        log_warn(b->lg, "%" PRIu64 " more tensors are not known and not used", unknown - SHOWN);
    return RC_OK;
}
