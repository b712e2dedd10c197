#include "state/segment.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/mem.h"
#include "state/io.h"

enum { VERSION = 1, HEAD_BYTES = 256, NAME_BYTES = 16, ALIGN = 4096 };
static const char magic[8] = {'H', 'O', 'L', 'D', 'S', 'E', 'G', '\n'};

/* Where things are in the header; docs/formats/cache-dir.md. */
enum {
    AT_VERSION = 8,
    AT_HEAD_BYTES = 12,
    AT_FINGERPRINT = 16,
    AT_KERNELS = 24,
    AT_KV_TYPE = 40,
    AT_PAGE_TOKENS = 44,
    AT_PAGE_BYTES = 48,
    AT_SNAP_BYTES = 56,
    AT_ID = 64,
    AT_PARENT = 72,
    AT_FROM = 80,
    AT_POS = 84,
    AT_FROM_HASH = 88,
    AT_PATH_HASH = 96,
    AT_KIND = 104,
    AT_HITS = 108,
    AT_FAMILY = 112,
    AT_USED = 120,
    AT_MADE = 128,
    AT_INDEX_SUM = 136,
    AT_SNAP_SUM = 144,
    AT_HEAD_SUM = 248 /* of all before it */
};

struct segment {
    struct segment_head head;
    char *path;
    int fd;
    uint64_t file_bytes, page_bytes, snap_bytes, pages_at, snap_sum;
    uint32_t n_pages, pages_left;
    uint8_t *index; /* tokens [pos - from], padded to 8 bytes; sums [n_pages]; zeros */
    token *tokens;  /* in the machine's order */
};

static void put(uint8_t *p, uint64_t x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}

static uint64_t get(const uint8_t *p, size_t n)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        x |= (uint64_t)p[i] << 8 * i;
    return x;
}

static uint64_t sum(const void *p, uint64_t n)
{
    return XXH3_64bits(p, n);
}

void segment_hashes(const token *seq, const uint32_t *pos, uint32_t n, uint64_t *out)
{
    XXH3_state_t *h = XXH3_createState();
    CHECK(h);
    XXH3_64bits_reset(h);
    uint8_t le[1024];
    for (uint32_t i = 0, at = 0; i < n; i++) {
        if (i && pos[i] == pos[i - 1]) {
            out[i] = out[i - 1];
            continue;
        }
        while (at < pos[i]) {
            uint32_t m = 0;
            for (; at < pos[i] && m < sizeof le; at++, m += 4)
                put(le + m, (uint32_t)seq[at], 4);
            XXH3_64bits_update(h, le, m);
        }
        out[i] = XXH3_64bits_digest(h);
    }
    XXH3_freeState(h);
}

uint64_t segment_hash(const token *seq, uint32_t n)
{
    uint64_t hash;
    segment_hashes(seq, &n, 1, &hash);
    return hash;
}

/* ---- layout ---------------------------------------------------------------------------------- */

uint32_t segment_n_pages(const struct segment_head *h)
{
    return (uint32_t)(ceil_div(h->pos, KV_PAGE) - ceil_div(h->from, KV_PAGE));
}

static uint64_t sums_at(const struct segment_head *h)
{
    return round_up(4 * (uint64_t)(h->pos - h->from), 8);
}

static uint64_t pages_at(const struct segment_head *h)
{
    return round_up(HEAD_BYTES + sums_at(h) + 8 * (uint64_t)segment_n_pages(h), ALIGN);
}

static uint64_t index_bytes(const struct segment_head *h) /* with what fills it up */
{
    return pages_at(h) - HEAD_BYTES;
}

uint64_t segment_bytes(const struct shape *s, const struct segment_head *h, uint32_t n_pages)
{
    return pages_at(h) + n_pages * shape_page_bytes(s);
}

uint64_t segment_whole_bytes(const struct shape *s, const struct segment_head *h)
{
    return segment_bytes(s, h, segment_n_pages(h)) + shape_snap_bytes(s);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Header and index, padded to where the pages begin. */
static uint8_t *front(const struct shape *s, const char *kernels, const struct segment_head *h,
                      const token *seq, const void *const *pages, const void *snap)
{
    uint8_t *f = mem_try_zalloc(pages_at(h));
    if (!f)
        return NULL;
    uint8_t *index = f + HEAD_BYTES;
    for (uint32_t i = h->from; i < h->pos; i++)
        put(index + 4 * (uint64_t)(i - h->from), (uint32_t)seq[i], 4);
    for (uint32_t j = 0; j < segment_n_pages(h); j++)
        put(index + sums_at(h) + 8 * (uint64_t)j, sum(pages[j], shape_page_bytes(s)), 8);
    memcpy(f, magic, sizeof magic);
    /* padded with zeros to its width: NOLINTNEXTLINE(bugprone-not-null-terminated-result) */
    memcpy(f + AT_KERNELS, kernels, strlen(kernels));
    const struct {
        uint32_t at, n;
        uint64_t x;
    } fields[] = {
        {AT_VERSION, 4, VERSION},
        {AT_HEAD_BYTES, 4, HEAD_BYTES},
        {AT_FINGERPRINT, 8, s->fingerprint},
        {AT_KV_TYPE, 4, s->kv_type},
        {AT_PAGE_TOKENS, 4, KV_PAGE},
        {AT_PAGE_BYTES, 8, shape_page_bytes(s)},
        {AT_SNAP_BYTES, 8, shape_snap_bytes(s)},
        {AT_ID, 8, h->id},
        {AT_PARENT, 8, h->parent},
        {AT_FROM, 4, h->from},
        {AT_POS, 4, h->pos},
        {AT_FROM_HASH, 8, segment_hash(seq, h->from)},
        {AT_PATH_HASH, 8, segment_hash(seq, h->pos)},
        {AT_KIND, 4, h->kind},
        {AT_HITS, 4, h->hits},
        {AT_FAMILY, 8, h->family},
        {AT_USED, 8, h->used_ns},
        {AT_MADE, 8, h->made_ns},
        {AT_INDEX_SUM, 8, sum(index, index_bytes(h))},
        {AT_SNAP_SUM, 8, sum(snap, shape_snap_bytes(s))},
    };
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        put(f + fields[i].at, fields[i].x, fields[i].n);
    put(f + AT_HEAD_SUM, sum(f, AT_HEAD_SUM), 8);
    return f;
}

static enum rc write_file(const char *path, const uint8_t *f, uint64_t n_front,
                          const struct shape *s, uint32_t n_pages, const void *const *pages,
                          const void *snap, struct err *err)
{
    int fd;
    enum rc rc = io_create(path, &fd, err);
    if (rc)
        return rc;
    rc = io_write(fd, f, n_front, path, err);
    for (uint32_t j = 0; j < n_pages && !rc; j++)
        rc = io_write(fd, pages[j], shape_page_bytes(s), path, err);
    if (!rc)
        rc = io_write(fd, snap, shape_snap_bytes(s), path, err);
    if (!rc)
        rc = io_sync(fd, path, err);
    const enum rc closed = io_close(fd, path, rc ? NULL : err);
    return rc ? rc : closed;
}

enum rc segment_write(const char *path, const struct shape *s, const char *kernels,
                      const struct segment_head *h, const token *seq, const void *const *pages,
                      const void *snap, struct err *err)
{
    CHECK(h->pos && h->from <= h->pos && (h->from % KV_PAGE == 0 || h->from == h->pos));
    CHECK(strlen(kernels) < NAME_BYTES);
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
        return err_set(err, RC_ARG, "path too long: %.100s...", path);
    uint8_t *f = front(s, kernels, h, seq, pages, snap);
    if (!f)
        return err_set(err, RC_NOMEM, "no memory for the index of %" PRIu32 " tokens", h->pos);
    const enum rc rc = write_file(tmp, f, pages_at(h), s, segment_n_pages(h), pages, snap, err);
    mem_free(f);
    return io_put_in_place(rc, tmp, path, err);
}

enum rc segment_shorten(const char *path, const struct shape *s, const struct segment_head *h,
                        uint32_t n_pages, struct err *err)
{
    return io_truncate(path, segment_bytes(s, h, n_pages), err);
}

/* ---- reading --------------------------------------------------------------------------------- */

static enum rc check_maker(const uint8_t *f, const struct shape *s, const char *kernels,
                           const char *path, struct err *err)
{
    char made[NAME_BYTES + 1] = "";
    memcpy(made, f + AT_KERNELS, NAME_BYTES);
    const enum kv_type kv = (enum kv_type)get(f + AT_KV_TYPE, 4);
    if (strcmp(made, kernels) != 0)
        return err_set(err, RC_STALE, "%s was made by kernels %s; these are %s", path, made,
                       kernels);
    if (kv != s->kv_type)
        return err_set(err, RC_STALE, "%s has KV in %s; here it is %s", path, kv_type_name(kv),
                       kv_type_name(s->kv_type));
    if (get(f + AT_FINGERPRINT, 8) != s->fingerprint)
        return err_set(err, RC_STALE, "%s was made by another model", path);
    if (get(f + AT_PAGE_TOKENS, 4) != KV_PAGE || get(f + AT_PAGE_BYTES, 8) != shape_page_bytes(s) ||
        get(f + AT_SNAP_BYTES, 8) != shape_snap_bytes(s))
        return err_set(err, RC_STALE,
                       "%s has pages of %" PRIu64 " bytes and snapshots of %" PRIu64
                       "; here they have %" PRIu64 " and %" PRIu64,
                       path, get(f + AT_PAGE_BYTES, 8), get(f + AT_SNAP_BYTES, 8),
                       shape_page_bytes(s), shape_snap_bytes(s));
    return RC_OK;
}

/* f [n], n <= HEAD_BYTES: what could be read of it. */
static enum rc check_head(const uint8_t *f, uint64_t n, const char *path, struct err *err)
{
    if (memcmp(f, magic, MIN(n, sizeof magic)) != 0)
        return err_set(err, RC_UNSUPPORTED, "%s holds no saved state", path);
    if (n < HEAD_BYTES)
        return err_set(err, RC_FORMAT, "%s ends inside its header, at byte %" PRIu64, path, n);
    const uint64_t version = get(f + AT_VERSION, 4);
    if (version > VERSION)
        return err_set(err, RC_UNSUPPORTED, "%s has format %" PRIu64 "; this program knows %d",
                       path, version, VERSION);
    if (get(f + AT_HEAD_SUM, 8) != sum(f, AT_HEAD_SUM) || version != VERSION ||
        get(f + AT_HEAD_BYTES, 4) != HEAD_BYTES)
        return err_set(err, RC_FORMAT, "%s: the header is damaged", path);
    return RC_OK;
}

static struct segment_head read_head(const uint8_t *f)
{
    return (struct segment_head){.id = get(f + AT_ID, 8),
                                 .parent = get(f + AT_PARENT, 8),
                                 .from = (uint32_t)get(f + AT_FROM, 4),
                                 .pos = (uint32_t)get(f + AT_POS, 4),
                                 .from_hash = get(f + AT_FROM_HASH, 8),
                                 .path_hash = get(f + AT_PATH_HASH, 8),
                                 .kind = (uint32_t)get(f + AT_KIND, 4),
                                 .hits = (uint32_t)get(f + AT_HITS, 4),
                                 .family = get(f + AT_FAMILY, 8),
                                 .used_ns = get(f + AT_USED, 8),
                                 .made_ns = get(f + AT_MADE, 8)};
}

static enum rc read_index(struct segment *g, const uint8_t *f, struct err *err)
{
    const struct segment_head *h = &g->head;
    if (!h->pos || h->from > h->pos || (h->from % KV_PAGE && h->from != h->pos) ||
        !h->from != !h->parent)
        return err_set(err, RC_FORMAT, "%s: tokens %" PRIu32 " to %" PRIu32 " are no segment",
                       g->path, h->from, h->pos);
    g->n_pages = segment_n_pages(h);
    g->pages_at = pages_at(h);
    if (g->pages_at > g->file_bytes)
        return err_set(err, RC_FORMAT,
                       "%s ends inside its index: %" PRIu64 " bytes, wanted are %" PRIu64, g->path,
                       g->file_bytes, g->pages_at);
    const uint64_t n = index_bytes(h), n_tokens = h->pos - h->from;
    g->index = mem_try(n);
    g->tokens = mem_try(n_tokens * sizeof *g->tokens);
    if (!g->index || !g->tokens)
        return err_set(err, RC_NOMEM, "no memory for the index of %s, %" PRIu64 " bytes", g->path,
                       n);
    const enum rc rc = io_read_at(g->fd, g->index, n, HEAD_BYTES, g->path, err);
    if (rc)
        return rc;
    if (get(f + AT_INDEX_SUM, 8) != sum(g->index, n))
        return err_set(err, RC_FORMAT, "%s: the index is damaged", g->path);
    for (uint64_t i = 0; i < n_tokens; i++) {
        const uint64_t t = get(g->index + 4 * i, 4);
        if (t > INT32_MAX)
            return err_set(err, RC_FORMAT, "%s: token %" PRIu64 " is %" PRIu64, g->path,
                           h->from + i, t);
        g->tokens[i] = (token)t;
    }
    return RC_OK;
}

/* How much of the payload there is: all, or whole pages. */
static enum rc measure(struct segment *g, struct err *err)
{
    const uint64_t have = g->file_bytes - g->pages_at;
    uint64_t pages, whole;
    if (!mul_u64(g->n_pages, g->page_bytes, &pages) || !add_u64(pages, g->snap_bytes, &whole) ||
        have > whole)
        return err_set(err, RC_FORMAT, "%s has more bytes than it says", g->path);
    g->pages_left = g->n_pages;
    if (have == whole)
        return RC_OK;
    if (have > pages || (g->page_bytes && have % g->page_bytes))
        return err_set(err, RC_FORMAT, "%s ends at byte %" PRIu64 ", inside its payload", g->path,
                       g->file_bytes);
    g->pages_left = g->page_bytes ? (uint32_t)(have / g->page_bytes) : 0;
    return RC_OK;
}

enum rc segment_open(const char *path, const struct shape *s, const char *kernels,
                     struct segment **out, struct err *err)
{
    struct segment *g = mem_zalloc(sizeof *g);
    g->path = mem_strdup(path);
    g->page_bytes = shape_page_bytes(s);
    g->snap_bytes = shape_snap_bytes(s);
    uint8_t f[HEAD_BYTES] = {0};
    enum rc rc = io_open(path, &g->fd, &g->file_bytes, err);
    const uint64_t n = MIN(g->file_bytes, HEAD_BYTES);
    if (!rc)
        rc = io_read_at(g->fd, f, n, 0, path, err);
    if (!rc)
        rc = check_head(f, n, path, err);
    if (!rc)
        rc = check_maker(f, s, kernels, path, err);
    if (rc)
        goto out;
    g->head = read_head(f);
    g->snap_sum = get(f + AT_SNAP_SUM, 8);
    rc = read_index(g, f, err);
    if (!rc)
        rc = measure(g, err);
out:
    if (rc)
        segment_close(g);
    else
        *out = g;
    return rc;
}

void segment_maker_of(const struct shape *s, const char *kernels, struct segment_maker *out)
{
    *out = (struct segment_maker){.fingerprint = s->fingerprint};
    snprintf(out->kernels, sizeof out->kernels, "%s", kernels);
    snprintf(out->kv_type, sizeof out->kv_type, "%s", kv_type_name(s->kv_type));
}

/* Whether a file of this length has all that its header says. */
static bool is_whole(const struct segment_head *h, uint64_t page_tokens, uint64_t page_bytes,
                     uint64_t snap_bytes, uint64_t file_bytes)
{
    uint64_t bytes;
    if (!page_tokens || h->from > h->pos)
        return false;
    const uint64_t n = ceil_div(h->pos, page_tokens) - ceil_div(h->from, page_tokens);
    const uint64_t at =
        round_up(HEAD_BYTES + round_up(4 * (uint64_t)(h->pos - h->from), 8) + 8 * n, ALIGN);
    return mul_u64(n, page_bytes, &bytes) && add_u64(bytes, at, &bytes) &&
           add_u64(bytes, snap_bytes, &bytes) && bytes == file_bytes;
}

enum rc segment_peek(const char *path, struct segment_head *h, struct segment_maker *by,
                     bool *has_snap, struct err *err)
{
    int fd;
    uint64_t file_bytes = 0;
    uint8_t f[HEAD_BYTES] = {0};
    enum rc rc = io_open(path, &fd, &file_bytes, err);
    if (rc)
        return rc;
    const uint64_t n = MIN(file_bytes, HEAD_BYTES);
    rc = io_read_at(fd, f, n, 0, path, err);
    if (!rc)
        rc = check_head(f, n, path, err);
    close(fd);
    if (rc)
        return rc;
    *h = read_head(f);
    *by = (struct segment_maker){.fingerprint = get(f + AT_FINGERPRINT, 8)};
    for (int i = 0; i < NAME_BYTES && f[AT_KERNELS + i]; i++) /* it is shown */
        by->kernels[i] =
            f[AT_KERNELS + i] > ' ' && f[AT_KERNELS + i] < 127 ? (char)f[AT_KERNELS + i] : '?';
    snprintf(by->kv_type, sizeof by->kv_type, "%s",
             kv_type_name((enum kv_type)get(f + AT_KV_TYPE, 4)));
    *has_snap = is_whole(h, get(f + AT_PAGE_TOKENS, 4), get(f + AT_PAGE_BYTES, 8),
                         get(f + AT_SNAP_BYTES, 8), file_bytes);
    return RC_OK;
}

void segment_close(struct segment *g)
{
    if (!g)
        return;
    if (g->fd >= 0)
        close(g->fd);
    mem_free(g->path);
    mem_free(g->index);
    mem_free(g->tokens);
    mem_free(g);
}

const struct segment_head *segment_head(const struct segment *g)
{
    return &g->head;
}

const token *segment_tokens(const struct segment *g)
{
    return g->tokens;
}

uint32_t segment_pages_left(const struct segment *g)
{
    return g->pages_left;
}

bool segment_has_snap(const struct segment *g)
{
    return g->file_bytes == g->pages_at + g->n_pages * g->page_bytes + g->snap_bytes;
}

uint64_t segment_file_bytes(const struct segment *g)
{
    return g->file_bytes;
}

enum rc segment_read(const struct segment *g, uint32_t first, uint32_t n, void *const *dst,
                     void *snap, struct err *err)
{
    if (first > g->pages_left || n > g->pages_left - first)
        return err_set(err, RC_FORMAT,
                       "%s has %" PRIu32 " pages, wanted are %" PRIu32 " from %" PRIu32, g->path,
                       g->pages_left, n, first);
    for (uint32_t j = 0; j < n; j++) {
        const uint64_t i = first + j;
        const enum rc rc =
            io_read_at(g->fd, dst[j], g->page_bytes, g->pages_at + i * g->page_bytes, g->path, err);
        if (rc)
            return rc;
        if (sum(dst[j], g->page_bytes) != get(g->index + sums_at(&g->head) + 8 * i, 8))
            return err_set(err, RC_FORMAT, "%s: the KV from token %" PRIu64 " on is damaged",
                           g->path, ceil_div(g->head.from, KV_PAGE) * KV_PAGE + i * KV_PAGE);
    }
    if (!snap)
        return RC_OK;
    if (!segment_has_snap(g))
        return err_set(err, RC_FORMAT, "%s has no snapshot", g->path);
    const enum rc rc = io_read_at(g->fd, snap, g->snap_bytes,
                                  g->pages_at + g->n_pages * g->page_bytes, g->path, err);
    if (!rc && sum(snap, g->snap_bytes) != g->snap_sum)
        return err_set(err, RC_FORMAT, "%s: the snapshot is damaged", g->path);
    return rc;
}
