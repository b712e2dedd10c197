#include "engine/tier.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/pack.h"

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

/* ---- from start to start --------------------------------------------------------------------- */

enum { USE_BYTES = 40, USE_PINNED = 1 };

/* What is known of a file's entry beyond the file. */
struct use {
    uint64_t id, made_ns; /* the file's; an id alone may have been given to another one since */
    uint64_t used_ns;
    uint32_t hits, idle;
    bool pinned;
};

bool tier_keep(struct tier *t, struct cache *c)
{
    struct buf b;
    struct cache_entry e;
    uint32_t n = 0;
    buf_init(&b);
    for (snap_id id = 1; id < t->n_refs; id++)
        n += t->refs[id] && cache_entry_get(c, id, &e) && e.on_disk;
    pack_u32(&b, n);
    for (snap_id id = 1; id < t->n_refs; id++) {
        if (!t->refs[id] || !cache_entry_get(c, id, &e) || !e.on_disk)
            continue;
        const struct segment_head *h = disk_head(t->disk, t->refs[id]);
        pack_u64(&b, h->id);
        pack_u64(&b, h->made_ns);
        pack_u64(&b, e.used_ns);
        pack_u32(&b, e.hits);
        pack_u32(&b, e.idle);
        pack_u32(&b, e.user_pin ? USE_PINNED : 0);
        pack_u32(&b, 0);
    }
    cache_save(c, &b);
    const size_t n_bytes = b.n;
    char *p = buf_take(&b);
    buf_release(&b);
    if (p)
        disk_keep(t->disk, p, n_bytes);
    return p != NULL;
}

bool tier_is_keeping(const struct tier *t)
{
    return disk_is_keeping(t->disk);
}

static int by_id(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* What tier_keep wrote, by id; the cache's part goes into the cache.  NULL when there is none. */
static struct use *read_kept(const struct tier *t, struct cache *c, uint32_t *n,
                             const struct logger *lg)
{
    *n = 0;
    struct unpack u = {0};
    u.p = disk_kept(t->disk, &u.n);
    if (!u.p)
        return NULL;
    const uint32_t n_uses = unpack_u32(&u);
    struct use *uses =
        unpack_fits(&u, n_uses, USE_BYTES) ? mem_try_array(n_uses, sizeof *uses) : NULL;
    if (!uses) {
        log_warn(lg, "cache directory: what was learned cannot be read; begun without");
        return NULL;
    }
    for (uint32_t i = 0; i < n_uses; i++) {
        uses[i] = (struct use){.id = unpack_u64(&u), .made_ns = unpack_u64(&u)};
        uses[i].used_ns = unpack_u64(&u);
        uses[i].hits = unpack_u32(&u);
        uses[i].idle = unpack_u32(&u);
        uses[i].pinned = unpack_u32(&u) & USE_PINNED;
        (void)unpack_u32(&u);
    }
    qsort(uses, n_uses, sizeof *uses, by_id);
    *n = n_uses;
    struct err err;
    if (cache_load(c, u.p, u.n, &err))
        log_warn(lg, "cache directory: %s; begun without", err.msg);
    return uses;
}

/* An entry found, and how it was used as far as known. */
struct candidate {
    disk_ref ref;
    struct use use;
};

/* Those that go first when there is not room for all. */
static int by_worth(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->use.pinned != y->use.pinned)
        return x->use.pinned - y->use.pinned;
    if (x->use.used_ns != y->use.used_ns)
        return x->use.used_ns < y->use.used_ns ? -1 : 1;
    return (x->ref > y->ref) - (x->ref < y->ref);
}

static struct candidate *find_all(const struct tier *t, struct cache *c, uint32_t *n,
                                  const struct logger *lg)
{
    uint32_t n_uses;
    struct use *uses = read_kept(t, c, &n_uses, lg);
    *n = 0;
    while (disk_at(t->disk, *n))
        (*n)++;
    struct candidate *all = mem_try_array(MAX(*n, 1), sizeof *all);
    for (uint32_t i = 0; all && i < *n; i++) {
        const disk_ref ref = disk_at(t->disk, i);
        const struct segment_head *h = disk_head(t->disk, ref);
        const struct use key = {.id = h->id};
        const struct use *u = n_uses ? bsearch(&key, uses, n_uses, sizeof *uses, by_id) : NULL;
        all[i] = (struct candidate){
            ref, {.made_ns = h->made_ns, .used_ns = h->used_ns, .hits = h->hits}};
        if (u && u->made_ns == h->made_ns)
            all[i].use = *u;
    }
    mem_free(uses);
    if (all)
        qsort(all, *n, sizeof *all, by_worth);
    return all;
}

/* The cache's entry for a file; 0 when there is none or no room. */
static snap_id adopt(struct tier *t, struct cache *c, const struct candidate *x)
{
    const struct segment_head *h = disk_head(t->disk, x->ref);
    token *seq = mem_try_array(h->pos, sizeof *seq);
    if (!seq)
        return 0;
    disk_path(t->disk, x->ref, seq);
    const struct cache_found f = {.seq = seq,
                                  .pos = h->pos,
                                  .kind = h->kind < CUT_N_KINDS ? h->kind : CUT_NONE,
                                  .family = h->family,
                                  .hits = x->use.hits,
                                  .idle = x->use.idle,
                                  .used_ns = x->use.used_ns,
                                  .made_ns = h->made_ns};
    snap_id id = cache_adopt(c, &f, x->use.used_ns);
    mem_free(seq);
    if (id && !reserve(t, id)) {
        (void)cache_drop(c, id);
        id = 0;
    }
    if (id)
        t->refs[id] = x->ref;
    return id;
}

void tier_adopt(struct tier *t, struct cache *c, const struct logger *lg)
{
    struct cache_stats st;
    struct disk_stats ds;
    cache_stats(c, &st);
    disk_stats(t->disk, &ds);
    uint32_t n, first = 0, kept = 0, pinned = 0;
    uint64_t bytes = ds.bytes;
    struct candidate *all = find_all(t, c, &n, lg);
    if (!all) {
        log_warn(lg, "cache directory: no memory for the %" PRIu32 " entries found there", n);
        return;
    }
    for (; first < n && bytes > st.disk_budget; first++) /* the longest unused go */
        bytes -= MIN(bytes, disk_bytes_of(t->disk, all[first].ref));
    for (uint32_t i = 0; i < n; i++) {
        const snap_id id = i < first ? 0 : adopt(t, c, &all[i]);
        kept += id != 0;
        pinned += id && all[i].use.pinned && cache_pin(c, id, true);
        if (!id)
            disk_drop(t->disk, all[i].ref);
    }
    mem_free(all);
    log_info(lg,
             "cache directory: %" PRIu32 " of %" PRIu32 " entries found there are kept, %" PRIu32
             " of them pinned",
             kept, n, pinned);
}

struct foreign_state tier_foreign(const struct tier *t, const token *seq, uint32_t n, uint32_t from)
{
    return disk_foreign(t->disk, seq, n, from);
}

/* ---- what is on its way ---------------------------------------------------------------------- */

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
