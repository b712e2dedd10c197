#include "engine/saved.h"

#include <string.h>

#include "base/mem.h"
#include "state/segment.h"

enum rc saved_init(struct saved *s, const struct shape *shape, uint32_t pos, struct err *err)
{
    *s = (struct saved){.pos = pos, .n_pages = (pos + KV_PAGE - 1) / KV_PAGE};
    s->seq = mem_try_array(pos, sizeof *s->seq);
    s->pages = mem_try_array(s->n_pages, shape_page_bytes(shape));
    s->snap = mem_try(shape_snap_bytes(shape));
    if (s->seq && s->pages && s->snap)
        return RC_OK;
    return err_set(err, RC_NOMEM, "no memory for a state of %u tokens", pos);
}

void saved_release(struct saved *s)
{
    mem_free(s->seq);
    mem_free(s->pages);
    mem_free(s->snap);
    *s = (struct saved){0};
}

/* [n_pages] pointers to its pages; NULL when memory is out. */
static void **page_list(const struct saved *s, const struct shape *shape)
{
    void **list = mem_try_array(s->n_pages, sizeof *list);
    for (uint32_t j = 0; list && j < s->n_pages; j++)
        list[j] = s->pages + j * shape_page_bytes(shape);
    return list;
}

enum rc saved_write(const struct saved *s, const struct shape *shape, const char *kernels,
                    const char *path, uint64_t *bytes, struct err *err)
{
    const struct segment_head h = {.pos = s->pos, .kind = s->kind};
    void **list = page_list(s, shape);
    const enum rc rc = list ? segment_write(path, shape, kernels, &h, s->seq,
                                            (const void *const *)list, s->snap, err)
                            : err_set(err, RC_NOMEM, "no memory to write a state");
    mem_free(list);
    *bytes = segment_whole_bytes(shape, &h);
    return rc;
}

enum rc saved_read(struct saved *s, const struct shape *shape, const char *kernels,
                   uint32_t max_pos, const char *path, uint64_t *bytes, struct err *err)
{
    struct segment *g;
    *s = (struct saved){0};
    enum rc rc = segment_open(path, shape, kernels, &g, err);
    if (rc)
        return rc;
    const struct segment_head *h = segment_head(g);
    if (h->parent || h->from || !h->pos || !segment_has_snap(g))
        rc = err_set(err, RC_FORMAT, "%s: not a whole state, but a part of one", path);
    else if (h->pos > max_pos)
        rc = err_set(err, RC_LIMIT, "%s: a state of %u tokens, the context is %u", path, h->pos,
                     max_pos);
    if (!rc)
        rc = saved_init(s, shape, h->pos, err);
    void **list = rc ? NULL : page_list(s, shape);
    if (!rc && !list)
        rc = err_set(err, RC_NOMEM, "no memory to read a state");
    if (!rc)
        rc = segment_read(g, 0, s->n_pages, list, s->snap, err);
    if (!rc) {
        memcpy(s->seq, segment_tokens(g), s->pos * sizeof *s->seq);
        s->kind = h->kind < CUT_N_KINDS ? (enum cut_kind)h->kind : CUT_GEN_END;
        *bytes = segment_file_bytes(g);
    }
    mem_free(list);
    segment_close(g);
    return rc;
}
