/* The file, all numbers little-endian (docs/formats/gguf.md):
 *
 *   "GGUF"  u32 version  u64 n_tensors  u64 n_keys
 *   n_keys    x { str name, u32 kind, value }                    str = u64 length, bytes
 *   n_tensors x { str name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset }
 *   padding to a multiple of general.alignment from the start of the file
 *   data: tensor i at data_start + offset_i
 *
 * The file is hostile until proved otherwise.  struct reader is the only way to its header bytes and
 * never moves past the end, so that a count is believed only as far as there are bytes to back it:
 *
 *   (1) nothing is allocated for more items than the bytes left could hold;
 *   (2) sums and products of numbers from the file go through add_u64 and mul_u64;
 *   (3) once gguf_open has returned, every string, array and tensor lies inside its mapping, tensors of
 *       one file do not overlap, and names are unique.
 */
#include "gguf/gguf.h"

#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"

enum {
    MAX_ITEMS = 65536,    /* keys, tensors: real files have tens and about a thousand */
    MAX_KEY_NAME = 65535, /* bytes */
    MAX_TENSOR_NAME = 63,
    MIN_KEY_BYTES = 8 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8,
    MIN_ALIGN = 8, /* the format's own minimum; f32 data can then be read in place */
    DEFAULT_ALIGN = 32
};
static const uint64_t max_elems = UINT64_C(1) << 30;

/* Name to number: slots hold index + 1, 0 is empty; linear probing at half load. */
struct index {
    uint32_t *slots, mask;
};

typedef enum rc open_fn(struct filemap *m, const char *path, struct err *err);

struct gguf {
    struct filemap *parts;
    uint32_t n_parts;
    open_fn *open;
    bool mapped; /* parts are ours to unmap */
    uint32_t version;
    struct gguf_key *keys;
    uint64_t n_keys;
    struct gguf_tensor *tensors;
    uint64_t n_tensors;
    struct index key_index, tensor_index;
};

/* ---- bytes ---- */

struct reader {
    const uint8_t *p;
    uint64_t n, at;
};

static uint64_t left(const struct reader *r)
{
    return r->n - r->at;
}

static const uint8_t *take(struct reader *r, uint64_t n)
{
    if (n > left(r))
        return NULL;
    const uint8_t *p = r->p + r->at;
    r->at += n;
    return p;
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static bool read_u32(struct reader *r, uint32_t *v)
{
    const uint8_t *p = take(r, 4);
    if (p)
        *v = load_u32(p);
    return p;
}

static bool read_u64(struct reader *r, uint64_t *v)
{
    const uint8_t *p = take(r, 8);
    if (p)
        *v = load_u64(p);
    return p;
}

static bool read_str(struct reader *r, struct str *s)
{
    uint64_t n;
    if (!read_u64(r, &n))
        return false;
    const uint8_t *p = take(r, n);
    if (p)
        *s = (struct str){(const char *)p, n};
    return p;
}

/* A name out of the file, fit for a message: printable and of bounded length. */
struct shown {
    char s[72];
};

static struct shown show(struct str s)
{
    struct shown o;
    const size_t n = MIN(s.n, sizeof o.s - 4);
    for (size_t i = 0; i < n; i++)
        o.s[i] = (char)(s.p[i] > 0x20 && s.p[i] < 0x7f ? s.p[i] : '?');
    memcpy(o.s + n, n < s.n ? "..." : "", n < s.n ? 4 : 1);
    return o;
}

/* ---- index ---- */

/* Keys and tensors both begin with their name. */
static struct str name_at(const void *items, size_t size, uint64_t i)
{
    return *(const struct str *)((const char *)items + i * size);
}

/* The slot that holds name, or the empty one where it belongs. */
static uint32_t *index_slot(const struct index *x, const void *items, size_t size, struct str name)
{
    uint32_t h = (uint32_t)XXH3_64bits(name.p, name.n) & x->mask;
    while (x->slots[h] && !str_eq(name_at(items, size, x->slots[h] - 1), name))
        h = (h + 1) & x->mask;
    return &x->slots[h];
}

/* RC_FORMAT when two items share a name. */
static enum rc index_build(struct index *x, const void *items, size_t size, uint64_t n,
                           const char *what, struct err *err)
{
    uint32_t cap = 16;
    while (cap < 2 * n)
        cap *= 2;
    x->slots = mem_try_array(cap, sizeof *x->slots);
    if (!x->slots)
        return err_set(err, RC_NOMEM, "no memory for %" PRIu64 " %ss", n, what);
    x->mask = cap - 1;
    for (uint64_t i = 0; i < n; i++) {
        const struct str name = name_at(items, size, i);
        uint32_t *slot = index_slot(x, items, size, name);
        if (*slot)
            return err_set(err, RC_FORMAT, "%s %s occurs twice", what, show(name).s);
        *slot = (uint32_t)i + 1;
    }
    return RC_OK;
}

/* ---- keys ---- */

static const struct {
    const char *name;
    uint8_t bytes; /* 0: not of one size */
} kinds[] = {
    [GGUF_U8] = {"u8", 1},     [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},   [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},   [GGUF_BOOL] = {"bool", 1}, [GGUF_STR] = {"string", 0},
    [GGUF_ARR] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_kind_name(enum gguf_kind k)
{
    return (size_t)k < COUNT_OF(kinds) ? kinds[k].name : "unknown";
}

/* Moves r over k->n values of kind k->elem and sets k->data, k->bytes. */
static enum rc read_values(struct reader *r, struct gguf_key *k, const char *name, struct err *err)
{
    k->data = r->p + r->at;
    if (k->elem != GGUF_STR) {
        uint64_t bytes;
        if (!mul_u64(k->n, kinds[k->elem].bytes, &bytes) || !take(r, bytes))
            return err_set(err, RC_FORMAT,
                           "key %s: %" PRIu64 " x %s at byte %" PRIu64 " do not fit in the %" PRIu64
                           " bytes left",
                           name, k->n, kinds[k->elem].name, r->at, left(r));
        k->bytes = bytes;
        return RC_OK;
    }
    const uint64_t from = r->at;
    if (k->n > left(r) / 8)
        return err_set(err, RC_FORMAT,
                       "key %s: %" PRIu64 " strings at byte %" PRIu64 " do not fit in the %" PRIu64
                       " bytes left",
                       name, k->n, r->at, left(r));
    for (uint64_t i = 0; i < k->n; i++) {
        const uint64_t at = r->at;
        struct str s;
        if (!read_str(r, &s))
            return err_set(err, RC_FORMAT,
                           "key %s: string %" PRIu64 " of %" PRIu64 " at byte %" PRIu64
                           " runs past the end of the file (%" PRIu64 " bytes)",
                           name, i + 1, k->n, at, r->n);
    }
    k->bytes = r->at - from;
    return RC_OK;
}

static enum rc read_key(struct reader *r, struct gguf_key *k, const char *which, struct err *err)
{
    const uint64_t at = r->at;
    if (!read_str(r, &k->name))
        return err_set(err, RC_FORMAT,
                       "%s: the name at byte %" PRIu64 " runs past the end of the file (%" PRIu64
                       " bytes)",
                       which, at, r->n);
    if (!k->name.n || k->name.n > MAX_KEY_NAME)
        return err_set(err, RC_FORMAT, "%s: a name of %zu bytes (1 to %d allowed)", which,
                       k->name.n, MAX_KEY_NAME);
    const struct shown name = show(k->name);
    uint32_t kind;
    if (!read_u32(r, &kind))
        return err_set(err, RC_FORMAT, "key %s: the file ends before its value", name.s);
    if (kind > GGUF_F64)
        return err_set(err, RC_FORMAT, "key %s: unknown value type %" PRIu32, name.s, kind);
    k->kind = k->elem = (enum gguf_kind)kind;
    k->n = 1;
    if (kind == GGUF_ARR) {
        uint32_t elem;
        if (!read_u32(r, &elem) || !read_u64(r, &k->n))
            return err_set(err, RC_FORMAT, "key %s: the file ends inside its array", name.s);
        if (elem == GGUF_ARR)
            return err_set(err, RC_UNSUPPORTED, "key %s: an array of arrays", name.s);
        if (elem > GGUF_F64)
            return err_set(err, RC_FORMAT, "key %s: unknown element type %" PRIu32, name.s, elem);
        if (k->n > max_elems)
            return err_set(err, RC_LIMIT, "key %s: %" PRIu64 " elements (at most %" PRIu64 ")",
                           name.s, k->n, max_elems);
        k->elem = (enum gguf_kind)elem;
    }
    return read_values(r, k, name.s, err);
}

/* "key 3 of 30, after general.name": for an item whose name could not be read. */
struct which {
    char s[128];
};

static struct which which_item(const char *what, uint64_t i, uint64_t n, struct str prev)
{
    struct which w;
    snprintf(w.s, sizeof w.s, "%s %" PRIu64 " of %" PRIu64 "%s%s", what, i + 1, n,
             i ? ", after " : "", i ? show(prev).s : "");
    return w;
}

static enum rc read_keys(struct reader *r, struct gguf_key **keys, uint64_t n, struct err *err)
{
    if (n > MAX_ITEMS || n > left(r) / MIN_KEY_BYTES)
        return err_set(err, RC_FORMAT,
                       "the header announces %" PRIu64 " keys in %" PRIu64
                       " bytes (at most %d keys)",
                       n, left(r), MAX_ITEMS);
    struct gguf_key *const k = mem_try_array(MAX(n, 1), sizeof *k);
    if (!k)
        return err_set(err, RC_NOMEM, "no memory for %" PRIu64 " keys", n);
    *keys = k;
    for (uint64_t i = 0; i < n; i++) {
        const struct which w = which_item("key", i, n, i ? k[i - 1].name : (struct str){0});
        const enum rc rc = read_key(r, &k[i], w.s, err);
        if (rc)
            return rc;
    }
    return RC_OK;
}

static bool is_int(enum gguf_kind k)
{
    return k <= GGUF_I32 || k == GGUF_U64 || k == GGUF_I64;
}

/* Integer kinds and bool; false for others, and for a u64 beyond INT64_MAX. */
static bool int_at(enum gguf_kind kind, const uint8_t *p, int64_t *out)
{
    switch (kind) {
    case GGUF_U8:
    case GGUF_BOOL:
        *out = *p;
        return true;
    case GGUF_I8:
        *out = (int8_t)*p;
        return true;
    case GGUF_U16:
        *out = (uint16_t)(p[0] | p[1] << 8);
        return true;
    case GGUF_I16:
        *out = (int16_t)(p[0] | p[1] << 8);
        return true;
    case GGUF_U32:
        *out = load_u32(p);
        return true;
    case GGUF_I32:
        *out = (int32_t)load_u32(p);
        return true;
    case GGUF_I64:
    case GGUF_U64:
        *out = (int64_t)load_u64(p);
        return kind == GGUF_I64 || *out >= 0;
    default:
        return false;
    }
}

static bool float_at(enum gguf_kind kind, const uint8_t *p, double *out)
{
    if (kind == GGUF_F32) {
        const uint32_t bits = load_u32(p);
        float f;
        memcpy(&f, &bits, sizeof f);
        *out = (double)f;
        return true;
    }
    if (kind == GGUF_F64) {
        const uint64_t bits = load_u64(p);
        memcpy(out, &bits, sizeof *out);
        return true;
    }
    return false;
}

/* ---- tensors ---- */

/* An info as read; the offset is turned into data once the data section's place is known. */
struct info {
    struct gguf_tensor t;
    uint64_t offset;
};

static enum rc read_info(struct reader *r, struct info *f, const char *which, struct err *err)
{
    struct gguf_tensor *const t = &f->t;
    const uint64_t at = r->at;
    if (!read_str(r, &t->name))
        return err_set(err, RC_FORMAT,
                       "%s: the name at byte %" PRIu64 " runs past the end of the file (%" PRIu64
                       " bytes)",
                       which, at, r->n);
    const struct shown name = show(t->name);
    if (!t->name.n || t->name.n > MAX_TENSOR_NAME)
        return err_set(err, RC_FORMAT, "%s: a name of %zu bytes (1 to %d allowed)", which,
                       t->name.n, MAX_TENSOR_NAME);
    if (!read_u32(r, &t->n_dims))
        goto cut;
    if (t->n_dims < 1 || t->n_dims > 4)
        return err_set(err, RC_FORMAT, "tensor %s: %" PRIu32 " dimensions (1 to 4 allowed)", name.s,
                       t->n_dims);
    uint64_t n_elems = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d < t->n_dims && !read_u64(r, &t->ne[d]))
            goto cut;
        if (!t->ne[d] || !mul_u64(n_elems, t->ne[d], &n_elems) || n_elems > INT64_MAX)
            return err_set(err, RC_FORMAT, "tensor %s: dimension %" PRIu32 " is %" PRIu64, name.s,
                           d, t->ne[d]);
    }
    uint32_t type;
    if (!read_u32(r, &type) || !read_u64(r, &f->offset))
        goto cut;
    const struct dtype_info *di = dtype_info(type);
    if (!di)
        return err_set(err, RC_UNSUPPORTED, "tensor %s: unknown type %" PRIu32, name.s, type);
    t->type = di->type;
    if (t->ne[0] % di->block_elems)
        return err_set(err, RC_FORMAT,
                       "tensor %s: rows of %" PRIu64
                       " elements are no whole number of %s blocks of "
                       "%" PRIu32,
                       name.s, t->ne[0], di->name, di->block_elems);
    if (!mul_u64(n_elems / di->block_elems, di->block_bytes, &t->bytes))
        return err_set(err, RC_FORMAT, "tensor %s: %" PRIu64 " elements are too many", name.s,
                       n_elems);
    return RC_OK;
cut:
    return err_set(err, RC_FORMAT,
                   "tensor %s: the file ends inside its description (%" PRIu64 " bytes)", name.s,
                   r->n);
}

static int by_offset(const void *a, const void *b)
{
    const struct info *x = *(const struct info *const *)a, *y = *(const struct info *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Each tensor inside the file and clear of the others. */
static enum rc place_tensors(const struct reader *r, struct info *infos, uint64_t n, uint64_t align,
                             struct err *err)
{
    if (!n)
        return RC_OK;
    const uint64_t start = round_up(r->at, align);
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_tensor *const t = &infos[i].t;
        const struct shown name = show(t->name);
        if (infos[i].offset % align)
            return err_set(err, RC_FORMAT,
                           "tensor %s: offset %" PRIu64 " is no multiple of the alignment %" PRIu64,
                           name.s, infos[i].offset, align);
        uint64_t from, end;
        if (!add_u64(start, infos[i].offset, &from) || !add_u64(from, t->bytes, &end))
            return err_set(err, RC_FORMAT,
                           "tensor %s: offset %" PRIu64 " and %" PRIu64 " bytes overflow", name.s,
                           infos[i].offset, t->bytes);
        if (end > r->n)
            return err_set(err, RC_FORMAT,
                           "tensor %s ends at byte %" PRIu64 ", but the file has %" PRIu64
                           ": is the download complete?",
                           name.s, end, r->n);
        t->data = r->p + from;
    }
    struct info **const sorted = mem_try_array(n, sizeof(struct info *));
    if (!sorted)
        return err_set(err, RC_NOMEM, "no memory to check %" PRIu64 " tensors", n);
    for (uint64_t i = 0; i < n; i++)
        sorted[i] = &infos[i];
    qsort(sorted, n, sizeof(struct info *), by_offset);
    enum rc rc = RC_OK;
    for (uint64_t i = 1; i < n && !rc; i++)
        if (sorted[i]->offset - sorted[i - 1]->offset < sorted[i - 1]->t.bytes)
            rc = err_set(err, RC_FORMAT, "tensors %s and %s overlap at offset %" PRIu64,
                         show(sorted[i - 1]->t.name).s, show(sorted[i]->t.name).s,
                         sorted[i]->offset);
    mem_free(sorted);
    return rc;
}

/* Appends the tensors of part number `part` to g. */
static enum rc read_tensors(struct gguf *g, struct reader *r, uint32_t part, uint64_t n,
                            uint64_t align, struct err *err)
{
    if (n > MAX_ITEMS - g->n_tensors || n > left(r) / MIN_TENSOR_BYTES)
        return err_set(err, RC_FORMAT,
                       "the header announces %" PRIu64 " tensors in %" PRIu64
                       " bytes (at most %d tensors)",
                       n, left(r), MAX_ITEMS);
    if (!n)
        return RC_OK;
    struct info *const infos = mem_try_array(n, sizeof *infos);
    if (!infos)
        return err_set(err, RC_NOMEM, "no memory for %" PRIu64 " tensors", n);
    enum rc rc = RC_OK;
    for (uint64_t i = 0; i < n && !rc; i++) {
        const struct which w =
            which_item("tensor", i, n, i ? infos[i - 1].t.name : (struct str){0});
        rc = read_info(r, &infos[i], w.s, err);
    }
    if (!rc)
        rc = place_tensors(r, infos, n, align, err);
    if (!rc) {
        struct gguf_tensor *const all =
            mem_try_realloc(g->tensors, (g->n_tensors + n) * sizeof *all);
        if (all) {
            g->tensors = all;
            for (uint64_t i = 0; i < n; i++) {
                all[g->n_tensors] = infos[i].t;
                all[g->n_tensors++].part = part;
            }
        } else {
            rc = err_set(err, RC_NOMEM, "no memory for %" PRIu64 " tensors", n);
        }
    }
    mem_free(infos);
    return rc;
}

/* ---- files ---- */

struct head {
    uint32_t version;
    uint64_t n_tensors, n_keys;
};

static enum rc read_head(struct reader *r, struct head *h, struct err *err)
{
    const uint8_t *magic = take(r, 4);
    if (!magic)
        return err_set(err, RC_FORMAT, "%" PRIu64 " bytes are too few for a GGUF file", r->n);
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(err, RC_FORMAT, "not a GGUF file (begins with %02x %02x %02x %02x)",
                       magic[0], magic[1], magic[2], magic[3]);
    if (!read_u32(r, &h->version))
        return err_set(err, RC_FORMAT, "the file ends before its version");
    if (h->version && !(h->version & 0xffff))
        return err_set(err, RC_UNSUPPORTED,
                       "a big-endian GGUF file (version reads 0x%08" PRIx32
                       "); convert it to little-endian",
                       h->version);
    if (h->version < 2 || h->version > 3)
        return err_set(err, RC_UNSUPPORTED, "GGUF version %" PRIu32 " (2 and 3 are supported)",
                       h->version);
    if (!read_u64(r, &h->n_tensors) || !read_u64(r, &h->n_keys))
        return err_set(err, RC_FORMAT, "the file ends before its counts (%" PRIu64 " bytes)", r->n);
    return RC_OK;
}

/* general.alignment of these keys. */
static enum rc find_align(const struct gguf_key *keys, uint64_t n_keys, uint64_t *align,
                          struct err *err)
{
    *align = DEFAULT_ALIGN;
    for (uint64_t i = 0; i < n_keys; i++) {
        int64_t v;
        if (!str_is(keys[i].name, "general.alignment"))
            continue;
        if (keys[i].kind == GGUF_ARR || !int_at(keys[i].kind, keys[i].data, &v))
            return err_set(err, RC_FORMAT, "key general.alignment is %s, not an integer",
                           gguf_kind_name(keys[i].kind));
        if (v < MIN_ALIGN || v > UINT32_MAX || (v & (v - 1)))
            return err_set(err, RC_FORMAT,
                           "key general.alignment is %" PRId64
                           ", not a power of two of at least %d",
                           v, MIN_ALIGN);
        *align = (uint64_t)v;
    }
    return RC_OK;
}

/* Keys into *keys (the caller frees them, also on failure), tensors appended to g. */
static enum rc read_part(struct gguf *g, uint32_t part, struct gguf_key **keys, uint64_t *n_keys,
                         struct err *err)
{
    struct reader r = {.p = g->parts[part].p, .n = g->parts[part].n};
    struct head h = {0};
    uint64_t align = 0;
    enum rc rc = read_head(&r, &h, err);
    if (!rc)
        rc = read_keys(&r, keys, h.n_keys, err);
    if (!rc)
        rc = find_align(*keys, h.n_keys, &align, err);
    if (!rc)
        rc = read_tensors(g, &r, part, h.n_tensors, align, err);
    if (!rc) {
        *n_keys = h.n_keys;
        if (!part)
            g->version = h.version;
    }
    return rc;
}

static enum rc index_tensors(struct gguf *g, struct err *err)
{
    return index_build(&g->tensor_index, g->tensors, sizeof *g->tensors, g->n_tensors, "tensor",
                       err);
}

/* The first part: its keys are the model's. */
static enum rc read_first(struct gguf *g, uint32_t *n_split, struct err *err)
{
    enum rc rc = read_part(g, 0, &g->keys, &g->n_keys, err);
    if (!rc)
        rc = index_build(&g->key_index, g->keys, sizeof *g->keys, g->n_keys, "key", err);
    if (!rc)
        rc = gguf_get_u32(g, "split.count", false, n_split, err);
    if (!rc && *n_split > UINT16_MAX)
        rc = err_set(err, RC_FORMAT, "key split.count is %" PRIu32, *n_split);
    return rc;
}

/* Is this part what its place says?  Keys of later parts serve for nothing else. */
static enum rc check_part(const struct gguf_key *keys, uint64_t n_keys, uint32_t no, uint32_t count,
                          struct err *err)
{
    const struct {
        const char *name;
        int64_t want;
    } checks[] = {{"split.no", no}, {"split.count", count}};
    for (size_t c = 0; c < COUNT_OF(checks); c++) {
        int64_t v = -1;
        for (uint64_t i = 0; i < n_keys; i++)
            if (str_is(keys[i].name, checks[c].name) && keys[i].kind != GGUF_ARR &&
                !int_at(keys[i].kind, keys[i].data, &v))
                v = -1;
        if (v != checks[c].want)
            return err_set(err, RC_FORMAT,
                           "key %s should be %" PRId64
                           " in this part of a split file, but it is %s",
                           checks[c].name, checks[c].want, v < 0 ? "not there" : "another number");
    }
    return RC_OK;
}

/* Opens parts 2 .. n of the file whose first part is at path. */
static enum rc read_others(struct gguf *g, const char *path, uint32_t n, struct err *err)
{
    char tail[32], *name = NULL;
    snprintf(tail, sizeof tail, "-00001-of-%05" PRIu32 ".gguf", n);
    uint32_t no = 0, n_tensors = 0;
    enum rc rc = gguf_get_u32(g, "split.no", true, &no, err);
    if (rc)
        return rc;
    if (no)
        return err_set(err, RC_ARG,
                       "part %" PRIu32 " of %" PRIu32
                       " of a split model; open the first one, ...%s",
                       no + 1, n, tail);
    if (!str_ends(str_of(path), str_of(tail)))
        return err_set(err, RC_ARG,
                       "the first of %" PRIu32 " files of a split model; its name must end in %s",
                       n, tail);
    rc = gguf_get_u32(g, "split.tensors.count", false, &n_tensors, err);
    if (rc)
        return rc;

    struct filemap *const parts = mem_try_array(n, sizeof *parts);
    if (!parts)
        return err_set(err, RC_NOMEM, "no memory for %" PRIu32 " parts", n);
    parts[0] = g->parts[0];
    mem_free(g->parts);
    g->parts = parts;
    const size_t stem = strlen(path) - strlen(tail), name_bytes = strlen(path) + 1;
    name = mem_try(name_bytes);
    if (!name)
        return err_set(err, RC_NOMEM, "no memory for a file name of %zu bytes", name_bytes);
    for (uint32_t i = 1; i < n && !rc; i++) {
        struct gguf_key *keys = NULL;
        uint64_t n_keys = 0;
        snprintf(name, name_bytes, "%.*s-%05" PRIu32 "-of-%05" PRIu32 ".gguf", (int)stem, path,
                 i + 1, n);
        rc = g->open(&g->parts[i], name, err);
        if (!rc) {
            g->n_parts = i + 1;
            rc = read_part(g, i, &keys, &n_keys, err);
            if (!rc)
                rc = check_part(keys, n_keys, i, n, err);
            rc = err_wrap(err, rc, "part %" PRIu32 " of %" PRIu32, i + 1, n);
        }
        mem_free(keys);
    }
    mem_free(name);
    if (!rc && gguf_find_key(g, "split.tensors.count") && n_tensors != g->n_tensors)
        rc = err_set(err, RC_FORMAT,
                     "key split.tensors.count is %" PRIu32 ", but the parts have %" PRIu64
                     " tensors",
                     n_tensors, g->n_tensors);
    return rc;
}

static enum rc open_with(open_fn *open_part, const char *path, struct gguf **out, struct err *err)
{
    struct gguf *g = mem_zalloc(sizeof *g);
    uint32_t n_split = 0;
    g->mapped = true;
    g->open = open_part;
    g->parts = mem_zalloc(sizeof *g->parts);
    enum rc rc = open_part(&g->parts[0], path, err);
    if (rc)
        goto out; /* the message has the path */
    g->n_parts = 1;
    rc = read_first(g, &n_split, err);
    if (!rc && n_split > 1)
        rc = read_others(g, path, n_split, err);
    if (!rc)
        rc = index_tensors(g, err);
    rc = err_wrap(err, rc, "%s", path);
    if (!rc) {
        *out = g;
        return RC_OK;
    }
out:
    gguf_close(g);
    return rc;
}

enum rc gguf_open(const char *path, struct gguf **out, struct err *err)
{
    return open_with(filemap_open, path, out, err);
}

enum rc gguf_open_copy(const char *path, struct gguf **out, struct err *err)
{
    return open_with(filemap_read, path, out, err);
}

enum rc gguf_open_mem(const void *p, uint64_t n, struct gguf **out, struct err *err)
{
    struct gguf *g = mem_zalloc(sizeof *g);
    uint32_t n_split = 0;
    g->parts = mem_zalloc(sizeof *g->parts);
    g->parts[0] = (struct filemap){.p = p, .n = n};
    g->n_parts = 1;
    enum rc rc = read_first(g, &n_split, err);
    if (!rc && n_split > 1)
        rc = err_set(err, RC_UNSUPPORTED, "one of %" PRIu32 " files of a split model, in memory",
                     n_split);
    if (!rc)
        rc = index_tensors(g, err);
    if (!rc) {
        *out = g;
        return RC_OK;
    }
    gguf_close(g);
    return rc;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_parts && g->mapped; i++)
        filemap_close(&g->parts[i]);
    mem_free(g->parts);
    mem_free(g->keys);
    mem_free(g->tensors);
    mem_free(g->key_index.slots);
    mem_free(g->tensor_index.slots);
    mem_free(g);
}

/* ---- what callers ask ---- */

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

uint32_t gguf_n_parts(const struct gguf *g)
{
    return g->n_parts;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_parts; i++)
        n += g->parts[i].n;
    return n;
}

uint64_t gguf_n_keys(const struct gguf *g)
{
    return g->n_keys;
}

const struct gguf_key *gguf_key_at(const struct gguf *g, uint64_t i)
{
    assert(i < g->n_keys);
    return &g->keys[i];
}

const struct gguf_key *gguf_find_key(const struct gguf *g, const char *name)
{
    const uint32_t i = *index_slot(&g->key_index, g->keys, sizeof *g->keys, str_of(name));
    return i ? &g->keys[i - 1] : NULL;
}

uint64_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    const uint32_t i = *index_slot(&g->tensor_index, g->tensors, sizeof *g->tensors, str_of(name));
    return i ? &g->tensors[i - 1] : NULL;
}

/* *k is NULL when the key is absent and may be. */
static enum rc look_up(const struct gguf *g, const char *name, bool required,
                       const struct gguf_key **k, struct err *err)
{
    *k = gguf_find_key(g, name);
    if (!*k && required)
        return err_set(err, RC_FORMAT, "key %s is missing", name);
    return RC_OK;
}

static enum rc wrong_kind(const struct gguf_key *k, const char *name, const char *want,
                          struct err *err)
{
    return err_set(err, RC_FORMAT, "key %s is %s, not %s", name, gguf_kind_name(k->kind), want);
}

enum rc gguf_get_u32(const struct gguf *g, const char *name, bool required, uint32_t *out,
                     struct err *err)
{
    const struct gguf_key *k;
    int64_t v;
    const enum rc rc = look_up(g, name, required, &k, err);
    if (rc || !k)
        return rc;
    if (!is_int(k->kind))
        return wrong_kind(k, name, "an integer", err);
    if (!int_at(k->kind, k->data, &v))
        return err_set(err, RC_FORMAT, "key %s is %" PRIu64 ", beyond 32 bits", name,
                       load_u64(k->data));
    if (v < 0 || v > UINT32_MAX)
        return err_set(err, RC_FORMAT, "key %s is %" PRId64 ", beyond 32 bits", name, v);
    *out = (uint32_t)v;
    return RC_OK;
}

enum rc gguf_get_f32(const struct gguf *g, const char *name, bool required, float *out,
                     struct err *err)
{
    const struct gguf_key *k;
    double v;
    const enum rc rc = look_up(g, name, required, &k, err);
    if (rc || !k)
        return rc;
    if (!float_at(k->kind, k->data, &v))
        return wrong_kind(k, name, "a float", err);
    if (!isfinite(v) || !isfinite((float)v))
        return err_set(err, RC_FORMAT, "key %s is %g", name, v);
    *out = (float)v;
    return RC_OK;
}

enum rc gguf_get_bool(const struct gguf *g, const char *name, bool required, bool *out,
                      struct err *err)
{
    const struct gguf_key *k;
    int64_t v;
    const enum rc rc = look_up(g, name, required, &k, err);
    if (rc || !k)
        return rc;
    if (!int_at(k->kind, k->data, &v))
        return wrong_kind(k, name, "a bool", err);
    *out = v != 0;
    return RC_OK;
}

enum rc gguf_get_str(const struct gguf *g, const char *name, bool required, struct str *out,
                     struct err *err)
{
    const struct gguf_key *k;
    const enum rc rc = look_up(g, name, required, &k, err);
    if (rc || !k)
        return rc;
    if (k->kind != GGUF_STR)
        return wrong_kind(k, name, "a string", err);
    *out = (struct str){(const char *)k->data + 8, k->bytes - 8};
    return RC_OK;
}

bool gguf_arr_i64(const struct gguf_key *k, uint64_t i, int64_t *out)
{
    assert(i < k->n);
    return int_at(k->elem, k->data + i * kinds[k->elem].bytes, out);
}

bool gguf_arr_f64(const struct gguf_key *k, uint64_t i, double *out)
{
    assert(i < k->n);
    return float_at(k->elem, k->data + i * kinds[k->elem].bytes, out);
}

bool gguf_arr_next_str(const struct gguf_key *k, uint64_t *off, struct str *out)
{
    if (k->elem != GGUF_STR || *off >= k->bytes)
        return false;
    const uint64_t n = load_u64(k->data + *off);
    *out = (struct str){(const char *)k->data + *off + 8, n};
    *off += 8 + n;
    return true;
}

void gguf_drop_bytes(const struct gguf *g, const struct gguf_tensor *t, uint64_t off, uint64_t n)
{
    const struct filemap *m = &g->parts[t->part];
    assert(off <= t->bytes && n <= t->bytes - off);
    if (g->mapped)
        filemap_drop(m, (uint64_t)(t->data - m->p) + off, n);
}

void gguf_drop_tensor(const struct gguf *g, const struct gguf_tensor *t)
{
    gguf_drop_bytes(g, t, 0, t->bytes);
}
