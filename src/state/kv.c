#include "state/kv.h"

#include "base/mem.h"

#include <string.h>

/* Pages come in slabs of slab_pages (at most 64: one bit each).  Page index = slab * slab_pages + i + 1.
 * The lowest slab with room is filled first, so that slabs at the top empty and go back.  Those that stay partly
 * empty would add up to a twentieth of all: of their free pages only a few keep their memory, for the next to
 * come. */
enum { SLAB_PAGES_MAX = 64, IDLE_SHARE = 256 };
static const uint64_t slab_target_bytes = 16 * MIB;

struct slab {
    uint8_t *mem;  /* NULL: not allocated */
    uint64_t free; /* bit i: page i is free; meaningful with mem */
    uint64_t bare; /* bit i: it is, and takes no memory: not written yet, or given back */
    uint32_t refs[SLAB_PAGES_MAX];
};

struct kv {
    struct shape shape;
    uint64_t page_bytes, row_bytes, side_bytes; /* side: K (or V) of one layer in one page */
    uint64_t max_bytes, held_bytes;
    uint32_t slab_pages;
    uint32_t n_used;
    uint32_t n_idle; /* free, but not bare */
    struct slab *slabs;
    size_t n_slabs, cap_slabs;
    size_t hint; /* no slab below it has a free page */
};

enum rc kv_new(const struct shape *s, uint64_t max_bytes, struct kv **out, struct err *err)
{
    const uint64_t page_bytes = shape_page_bytes(s);
    if (max_bytes && max_bytes < page_bytes)
        return err_set(err, RC_LIMIT, "%" PRIu64 " bytes of KV hold not one page of %" PRIu64,
                       max_bytes, page_bytes);
    struct kv *kv = mem_zalloc(sizeof *kv);
    kv->shape = *s;
    kv->page_bytes = page_bytes;
    kv->row_bytes = shape_row_bytes(s);
    kv->side_bytes = (uint64_t)s->n_kv_heads * KV_PAGE * kv->row_bytes;
    kv->max_bytes = max_bytes;
    uint64_t n = page_bytes ? slab_target_bytes / page_bytes : SLAB_PAGES_MAX;
    if (max_bytes && page_bytes)
        n = MIN(n, max_bytes / page_bytes);
    kv->slab_pages = (uint32_t)MAX(1, MIN(n, SLAB_PAGES_MAX));
    *out = kv;
    return RC_OK;
}

void kv_free(struct kv *kv)
{
    if (!kv)
        return;
    for (size_t i = 0; i < kv->n_slabs; i++)
        mem_free(kv->slabs[i].mem);
    mem_free(kv->slabs);
    mem_free(kv);
}

uint64_t kv_bytes(const struct kv *kv)
{
    return ((uint64_t)kv->n_used + kv->n_idle) * kv->page_bytes;
}

uint32_t kv_n_pages(const struct kv *kv)
{
    return kv->n_used;
}

static struct slab *slab_of(const struct kv *kv, kv_page p, uint32_t *i)
{
    assert(p != 0 && (p - 1) / kv->slab_pages < kv->n_slabs);
    struct slab *s = &kv->slabs[(p - 1) / kv->slab_pages];
    *i = (p - 1) % kv->slab_pages;
    return s;
}

uint32_t kv_refs(const struct kv *kv, kv_page p)
{
    uint32_t i;
    const struct slab *s = slab_of(kv, p, &i);
    return s->mem ? s->refs[i] : 0;
}

static uint64_t all_free(const struct kv *kv)
{
    return UINT64_MAX >> (64 - kv->slab_pages);
}

/* A slab with a free page, allocated if need be; SIZE_MAX when the limit or the system says no. */
static size_t slab_with_room(struct kv *kv)
{
    size_t hole = SIZE_MAX;
    for (size_t i = kv->hint; i < kv->n_slabs; i++) {
        if (kv->slabs[i].mem && kv->slabs[i].free) {
            kv->hint = MIN(i, hole);
            return i;
        }
        if (!kv->slabs[i].mem && hole == SIZE_MAX)
            hole = i;
    }
    const uint64_t bytes = kv->slab_pages * kv->page_bytes;
    if (kv->max_bytes && kv->held_bytes + bytes > kv->max_bytes)
        return SIZE_MAX;
    if (hole == SIZE_MAX) {
        if ((kv->n_slabs + 1) * kv->slab_pages >= UINT32_MAX ||
            !mem_grow(&kv->slabs, &kv->cap_slabs, kv->n_slabs + 1, sizeof *kv->slabs))
            return SIZE_MAX;
        hole = kv->n_slabs++;
        kv->slabs[hole] = (struct slab){0};
    }
    struct slab *s = &kv->slabs[hole];
    s->mem = mem_try_huge(bytes);
    if (!s->mem)
        return SIZE_MAX;
    s->free = s->bare = all_free(kv);
    kv->held_bytes += bytes;
    kv->hint = hole;
    return hole;
}

static kv_page page_new(struct kv *kv)
{
    const size_t si = slab_with_room(kv);
    if (si == SIZE_MAX)
        return 0;
    struct slab *s = &kv->slabs[si];
    const uint64_t idle = s->free & ~s->bare;
    const uint32_t i = (uint32_t)__builtin_ctzll(idle ? idle : s->free);
    kv->n_idle -= idle != 0;
    s->free &= ~(UINT64_C(1) << i);
    s->bare &= ~(UINT64_C(1) << i);
    s->refs[i] = 1;
    kv->n_used++;
    return (kv_page)(si * kv->slab_pages + i + 1);
}

static void page_ref(struct kv *kv, kv_page p)
{
    uint32_t i;
    struct slab *s = slab_of(kv, p, &i);
    CHECK(s->refs[i] != 0 && s->refs[i] != UINT32_MAX);
    s->refs[i]++;
}

static void page_unref(struct kv *kv, kv_page p)
{
    uint32_t i;
    struct slab *s = slab_of(kv, p, &i);
    CHECK(s->mem && s->refs[i] != 0);
    if (--s->refs[i] != 0)
        return;
    s->free |= UINT64_C(1) << i;
    kv->n_used--;
    kv->n_idle++;
    const size_t si = (size_t)(s - kv->slabs);
    kv->hint = MIN(kv->hint, si);
    if (s->free == all_free(kv)) {
        kv->n_idle -= (uint32_t)__builtin_popcountll(s->free & ~s->bare);
        mem_free(s->mem);
        s->mem = NULL;
        kv->held_bytes -= kv->slab_pages * kv->page_bytes;
    } else if (kv->n_idle > kv->n_used / IDLE_SHARE) {
        mem_give_back(s->mem + i * kv->page_bytes, kv->page_bytes);
        s->bare |= UINT64_C(1) << i;
        kv->n_idle--;
    }
}

static uint8_t *page_mem(const struct kv *kv, kv_page p)
{
    uint32_t i;
    const struct slab *s = slab_of(kv, p, &i);
    assert(s->mem && s->refs[i]);
    return s->mem + i * kv->page_bytes;
}

void kv_table_init(struct kv_table *t)
{
    *t = (struct kv_table){0};
}

static void table_cut(struct kv *kv, struct kv_table *t, uint32_t n)
{
    while (t->n > n)
        page_unref(kv, t->pages[--t->n]);
}

void kv_table_release(struct kv *kv, struct kv_table *t)
{
    table_cut(kv, t, 0);
    mem_free(t->pages);
    kv_table_init(t);
}

static bool table_reserve(struct kv_table *t, uint32_t n)
{
    if (n <= t->cap)
        return true;
    const uint32_t cap = MAX(n, t->cap > UINT32_MAX / 2 ? UINT32_MAX : t->cap * 2);
    kv_page *p = mem_try_realloc(t->pages, cap * sizeof *p);
    if (!p)
        return false;
    t->pages = p;
    t->cap = cap;
    return true;
}

static enum rc no_pages(const struct kv *kv, uint32_t want, struct err *err)
{
    return err_set(err, RC_NOMEM,
                   "no KV memory for %" PRIu32 " more tokens: %" PRIu64 " of %" PRIu64
                   " bytes held, a page of %d tokens takes %" PRIu64,
                   want, kv->held_bytes, kv->max_bytes, KV_PAGE, kv->page_bytes);
}

enum rc kv_table_extend(struct kv *kv, struct kv_table *t, uint32_t n, struct err *err)
{
    uint32_t end;
    if (__builtin_add_overflow(t->len, n, &end))
        return err_set(err, RC_LIMIT, "%" PRIu32 " tokens and %" PRIu32 " more are too many",
                       t->len, n);
    const uint32_t pages = end / KV_PAGE + (end % KV_PAGE != 0);
    if (pages <= t->n)
        return RC_OK;
    if (!table_reserve(t, pages))
        return no_pages(kv, n, err);
    const uint32_t before = t->n;
    while (t->n < pages) {
        const kv_page p = page_new(kv);
        if (p == 0) {
            table_cut(kv, t, before);
            return no_pages(kv, n, err);
        }
        t->pages[t->n++] = p;
    }
    return RC_OK;
}

void kv_table_advance(struct kv_table *t, uint32_t n)
{
    t->len += n;
    CHECK(t->len <= (uint64_t)t->n * KV_PAGE);
}

/* dst holds the first n pages of src. */
static bool ref_pages(struct kv *kv, const struct kv_table *src, uint32_t n, struct kv_table *dst)
{
    CHECK(dst->n == 0 && dst->len == 0 && n <= src->n);
    if (!table_reserve(dst, n))
        return false;
    for (uint32_t j = 0; j < n; j++) {
        page_ref(kv, src->pages[j]);
        dst->pages[dst->n++] = src->pages[j];
    }
    return true;
}

enum rc kv_table_share(struct kv *kv, const struct kv_table *src, uint32_t len,
                       struct kv_table *dst, struct err *err)
{
    CHECK(len <= src->len);
    if (!ref_pages(kv, src, len / KV_PAGE + (len % KV_PAGE != 0), dst))
        return no_pages(kv, 0, err);
    dst->len = len;
    return RC_OK;
}

enum rc kv_table_fork(struct kv *kv, const struct kv_table *src, uint32_t len, struct kv_table *dst,
                      struct err *err)
{
    CHECK(len <= src->len);
    const uint32_t full = len / KV_PAGE, rest = len % KV_PAGE;
    if (!ref_pages(kv, src, full, dst))
        return no_pages(kv, 0, err);
    dst->len = full * KV_PAGE;
    if (rest) {
        const enum rc rc = kv_table_extend(kv, dst, rest, err);
        if (rc) {
            kv_table_release(kv, dst);
            return rc;
        }
        /* Rows above rest come along unread: K interleaves rows, so whole pages are simplest. */
        memcpy(page_mem(kv, dst->pages[full]), page_mem(kv, src->pages[full]), kv->page_bytes);
        kv_table_advance(dst, rest);
    }
    return RC_OK;
}

void kv_table_dedupe(struct kv *kv, struct kv_table *t, const struct kv_table *other, uint32_t n)
{
    CHECK(n <= t->len && n <= other->len);
    for (uint32_t j = 0; j < n / KV_PAGE; j++)
        if (t->pages[j] != other->pages[j]) {
            page_ref(kv, other->pages[j]);
            page_unref(kv, t->pages[j]);
            t->pages[j] = other->pages[j];
        }
}

void *kv_k(struct kv *kv, kv_page p, uint32_t a, uint32_t h)
{
    assert(a < kv->shape.n_attn && h < kv->shape.n_kv_heads);
    return page_mem(kv, p) + (uint64_t)2 * a * kv->side_bytes +
           (uint64_t)h * KV_PAGE * kv->row_bytes;
}

void *kv_v(struct kv *kv, kv_page p, uint32_t a, uint32_t h)
{
    return (uint8_t *)kv_k(kv, p, a, h) + kv->side_bytes;
}

void *kv_page_mem(const struct kv *kv, kv_page p)
{
    return page_mem(kv, p);
}
