#include "engine/tier.h"

#include "base/mem.h"

/* An entry on its way to disk keeps the pages that are being written. */
struct writing {
    snap_id id;
    struct kv_table pages;
};

struct tier {
    struct disk *disk;
    struct kv *kv;
    disk_ref *refs; /* [n_refs] by entry; 0 = no file */
    size_t n_refs, cap_refs;
    struct writing *writing; /* [n_writing], unordered */
    size_t n_writing, cap_writing;
};

enum { SLACK = 64 }; /* a part of so many: headers of files that only hold KV for others */

uint64_t tier_cache_bytes(uint64_t bytes)
{
    return bytes - bytes / SLACK;
}

uint64_t tier_entry_bytes(const struct shape *s)
{
    const struct segment_head h = {.from = 0, .pos = 1};
    return segment_bytes(s, &h, 1);
}

enum rc tier_open(const struct disk_opts *o, struct kv *kv, struct tier **out, struct err *err)
{
    struct disk *disk;
    const enum rc rc = disk_open(o, &disk, err);
    if (rc)
        return rc;
    struct tier *t = mem_zalloc(sizeof *t);
    t->disk = disk;
    t->kv = kv;
    *out = t;
    return RC_OK;
}

void tier_close(struct tier *t)
{
    if (!t)
        return;
    disk_close(t->disk);
    for (size_t i = 0; i < t->n_writing; i++)
        kv_table_release(t->kv, &t->writing[i].pages);
    mem_free(t->writing);
    mem_free(t->refs);
    mem_free(t);
}

static bool reserve(struct tier *t, snap_id id)
{
    if (id < t->n_refs)
        return true;
    if (!mem_grow(&t->refs, &t->cap_refs, (size_t)id + 1, sizeof *t->refs))
        return false;
    while (t->n_refs <= id)
        t->refs[t->n_refs++] = 0;
    return true;
}

static disk_ref ref_of(const struct tier *t, snap_id id)
{
    return id < t->n_refs ? t->refs[id] : 0;
}

void tier_adopt(struct tier *t, struct cache *c, const struct logger *lg)
{
    struct cache_stats st;
    struct disk_stats ds;
    cache_stats(c, &st);
    disk_stats(t->disk, &ds);
    uint32_t n = 0, first = 0, kept = 0;
    uint64_t bytes = ds.bytes;
    while (disk_at(t->disk, n))
        n++;
    for (; first < n && bytes > st.disk_budget; first++) /* the longest unused go */
        bytes -= MIN(bytes, disk_bytes_of(t->disk, disk_at(t->disk, first)));
    for (uint32_t i = 0; i < n; i++) {
        const disk_ref r = disk_at(t->disk, i);
        const struct segment_head *h = disk_head(t->disk, r);
        snap_id id = 0;
        token *seq = i < first ? NULL : mem_try_array(h->pos, sizeof *seq);
        if (seq) {
            disk_path(t->disk, r, seq);
            const struct cache_found f = {.seq = seq,
                                          .pos = h->pos,
                                          .kind = h->kind < CUT_N_KINDS ? h->kind : CUT_NONE,
                                          .family = h->family,
                                          .hits = h->hits,
                                          .used_ns = h->used_ns,
                                          .made_ns = h->made_ns};
            id = cache_adopt(c, &f, h->used_ns);
            mem_free(seq);
        }
        if (id && reserve(t, id)) {
            t->refs[id] = r;
            kept++;
        } else if (id) {
            (void)cache_drop(c, id);
            disk_drop(t->disk, r);
        } else {
            disk_drop(t->disk, r);
        }
    }
    log_info(lg, "cache directory: %" PRIu32 " of %" PRIu32 " entries found there are kept", kept,
             n);
}

bool tier_write(struct tier *t, const struct cache *c, const struct cache_entry *e,
                const struct kv_table *pages, const struct snap *snap)
{
    const struct segment_head h = {.pos = e->pos,
                                   .kind = e->kind,
                                   .hits = e->hits,
                                   .family = e->family,
                                   .used_ns = e->used_ns,
                                   .made_ns = e->made_ns};
    struct writing w = {.id = e->id};
    kv_table_init(&w.pages);
    token *seq = mem_try_array(e->pos, sizeof *seq);
    const void **mem = mem_try_array(pages->n, sizeof *mem);
    disk_ref ref = 0;
    if (seq && mem && reserve(t, e->id) &&
        mem_grow(&t->writing, &t->cap_writing, t->n_writing + 1, sizeof *t->writing) &&
        !kv_table_share(t->kv, pages, e->pos, &w.pages, NULL)) {
        CHECK(cache_path(c, e->id, seq));
        for (uint32_t j = 0; j < pages->n; j++)
            mem[j] = kv_page_mem(t->kv, pages->pages[j]);
        ref = disk_write(t->disk, &h, seq, mem, snap_data(snap), e->id);
    }
    mem_free(seq);
    mem_free(mem);
    if (!ref) {
        kv_table_release(t->kv, &w.pages);
        return false;
    }
    t->refs[e->id] = ref;
    t->writing[t->n_writing++] = w;
    return true;
}

bool tier_read(struct tier *t, snap_id id, const struct kv_table *table, uint32_t first,
               struct snap *snap)
{
    const disk_ref ref = ref_of(t, id);
    CHECK(ref && first <= table->n);
    void **dst = mem_try_array(table->n - first, sizeof *dst);
    if (!dst)
        return false;
    for (uint32_t j = first; j < table->n; j++)
        dst[j - first] = kv_page_mem(t->kv, table->pages[j]);
    const bool ok = disk_read(t->disk, ref, first, dst, snap_fill(snap), id);
    mem_free(dst);
    return ok;
}

void tier_drop(struct tier *t, snap_id id)
{
    const disk_ref ref = ref_of(t, id);
    if (!ref)
        return;
    t->refs[id] = 0;
    disk_drop(t->disk, ref);
}

const struct segment_head *tier_head(const struct tier *t, snap_id id)
{
    const disk_ref ref = ref_of(t, id);
    return ref ? disk_head(t->disk, ref) : NULL;
}

bool tier_poll(struct tier *t, uint64_t timeout_ns, struct tier_done *out)
{
    struct disk_done done;
    if (!disk_poll(t->disk, timeout_ns, &done))
        return false;
    *out = (struct tier_done){.id = (snap_id)done.tag,
                              .write = done.write,
                              .ok = !done.rc,
                              .bytes = done.bytes,
                              .ns = done.ns};
    if (!done.write)
        return true;
    if (!out->ok)
        t->refs[out->id] = 0;
    for (size_t i = 0; i < t->n_writing; i++)
        if (t->writing[i].id == out->id) {
            kv_table_release(t->kv, &t->writing[i].pages);
            t->writing[i] = t->writing[--t->n_writing];
            break;
        }
    return true;
}

uint32_t tier_n_moving(const struct tier *t)
{
    return disk_n_jobs(t->disk);
}

void tier_stats(const struct tier *t, struct disk_stats *out)
{
    disk_stats(t->disk, out);
}
