#include "gguf/gguf_write.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "gguf/gguf.h"

enum { ALIGN = 32, WRITE_BYTES = 1 << 20 };

/* Until the first data the head is only collected: its counts come first in the file.  From then on
 * `out` holds what has not been written yet, never much more than WRITE_BYTES. */
struct gguf_writer {
    char *path, *tmp; /* tmp is renamed to path at the end */
    int fd;
    struct buf keys, infos, out;
    uint64_t n_keys, n_tensors;
    uint64_t *sizes; /* bytes of each tensor */
    size_t sizes_cap;
    uint64_t offset;   /* of the next tensor announced */
    bool started;      /* the head is out; tensor `at` is being written */
    uint64_t at, done; /* bytes of it so far */
    enum rc rc;        /* the first failure; nothing is done after it */
    struct err err;
};

static void put_u32(struct buf *b, uint32_t v)
{
    v = htole32(v);
    buf_add(b, &v, sizeof v);
}

static void put_u64(struct buf *b, uint64_t v)
{
    v = htole64(v);
    buf_add(b, &v, sizeof v);
}

static void put_str(struct buf *b, struct str s)
{
    put_u64(b, s.n);
    buf_add(b, s.p, s.n);
}

static void writer_free(struct gguf_writer *w)
{
    buf_release(&w->keys);
    buf_release(&w->infos);
    buf_release(&w->out);
    mem_free(w->sizes);
    mem_free(w->path);
    mem_free(w->tmp);
    mem_free(w);
}

enum rc gguf_writer_open(const char *path, struct gguf_writer **out, struct err *err)
{
    struct stat st;
    /* rename() would put the file in the place of a device or directory */
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return err_set(err, RC_ARG, "%s is not a file", path);
    const size_t n = strlen(path) + 32;
    struct gguf_writer *w = mem_zalloc(sizeof *w);
    w->path = mem_strdup(path);
    w->tmp = mem_alloc(n);
    snprintf(w->tmp, n, "%s.tmp.%ld", path, (long)getpid());
    w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        const enum rc rc = err_sys(err, "cannot create %s", w->tmp);
        writer_free(w);
        return rc;
    }
    *out = w;
    return RC_OK;
}

/* ---- keys ---- */

static bool begin_key(struct gguf_writer *w, const char *key, enum gguf_kind kind)
{
    if (w->rc)
        return false;
    if (w->started) {
        w->rc = err_set(&w->err, RC_ARG, "key %s comes after the first data", key);
        return false;
    }
    put_str(&w->keys, str_of(key));
    put_u32(&w->keys, kind);
    w->n_keys++;
    return true;
}

void gguf_write_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    if (begin_key(w, key, GGUF_U32))
        put_u32(&w->keys, v);
}

void gguf_write_f32(struct gguf_writer *w, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (begin_key(w, key, GGUF_F32))
        put_u32(&w->keys, bits);
}

void gguf_write_bool(struct gguf_writer *w, const char *key, bool v)
{
    if (begin_key(w, key, GGUF_BOOL))
        buf_addc(&w->keys, v ? 1 : 0);
}

void gguf_write_str(struct gguf_writer *w, const char *key, const char *v)
{
    if (begin_key(w, key, GGUF_STR))
        put_str(&w->keys, str_of(v));
}

void gguf_write_arr_i32(struct gguf_writer *w, const char *key, const int32_t *v, uint64_t n)
{
    if (!begin_key(w, key, GGUF_ARR))
        return;
    put_u32(&w->keys, GGUF_I32);
    put_u64(&w->keys, n);
    for (uint64_t i = 0; i < n; i++)
        put_u32(&w->keys, (uint32_t)v[i]);
}

void gguf_write_arr_str(struct gguf_writer *w, const char *key, const struct str *v, uint64_t n)
{
    if (!begin_key(w, key, GGUF_ARR))
        return;
    put_u32(&w->keys, GGUF_STR);
    put_u64(&w->keys, n);
    for (uint64_t i = 0; i < n; i++)
        put_str(&w->keys, v[i]);
}

/* ---- tensors ---- */

static enum rc announce(struct gguf_writer *w, const char *name, enum dtype type, uint32_t n_dims,
                        const uint64_t *ne)
{
    const struct dtype_info *di = dtype_info(type);
    uint64_t bytes = 1, next;
    if (w->started)
        return err_set(&w->err, RC_ARG, "tensor %s comes after the first data", name);
    if (!di || n_dims < 1 || n_dims > 4 || !*name || strlen(name) > 63)
        return err_set(&w->err, RC_ARG, "tensor %s: type %d, %" PRIu32 " dimensions", name,
                       (int)type, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        if (!ne[d] || !mul_u64(bytes, ne[d], &bytes))
            return err_set(&w->err, RC_ARG, "tensor %s: dimension %" PRIu32 " is %" PRIu64, name, d,
                           ne[d]);
    if (ne[0] % di->block_elems)
        return err_set(&w->err, RC_ARG, "tensor %s: rows of %" PRIu64 " are no %s blocks", name,
                       ne[0], di->name);
    if (!mul_u64(bytes / di->block_elems, di->block_bytes, &bytes) ||
        !add_u64(w->offset, bytes, &next) || next > INT64_MAX ||
        !mem_grow(&w->sizes, &w->sizes_cap, w->n_tensors + 1, sizeof *w->sizes))
        return err_set(&w->err, RC_NOMEM, "tensor %s: too large, or no memory", name);
    put_str(&w->infos, str_of(name));
    put_u32(&w->infos, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        put_u64(&w->infos, ne[d]);
    put_u32(&w->infos, type);
    put_u64(&w->infos, w->offset);
    w->sizes[w->n_tensors++] = bytes;
    w->offset = round_up(next, ALIGN);
    return RC_OK;
}

void gguf_write_tensor(struct gguf_writer *w, const char *name, enum dtype type, uint32_t n_dims,
                       const uint64_t *ne)
{
    if (!w->rc)
        w->rc = announce(w, name, type, n_dims, ne);
}

/* ---- output ---- */

static void flush(struct gguf_writer *w)
{
    if (w->rc)
        return;
    if (w->out.failed)
        w->rc = err_set(&w->err, RC_NOMEM, "no memory to write %s", w->path);
    else
        w->rc = file_write_all(w->fd, buf_str(&w->out), w->out.n, &w->err);
    buf_clear(&w->out);
}

static void put_padding(struct buf *b, uint64_t n)
{
    static const char zeros[ALIGN];
    buf_add(b, zeros, round_up(n, ALIGN) - n);
}

static void start(struct gguf_writer *w)
{
    struct buf *b = &w->out;
    buf_adds(b, "GGUF");
    put_u32(b, 3);
    put_u64(b, w->n_tensors);
    put_u64(b, w->n_keys);
    b->failed |= w->keys.failed | w->infos.failed;
    buf_add(b, buf_str(&w->keys), w->keys.n);
    buf_add(b, buf_str(&w->infos), w->infos.n);
    put_padding(b, b->n);
    buf_release(&w->keys);
    buf_release(&w->infos);
    w->started = true;
    flush(w);
}

bool gguf_write_data(struct gguf_writer *w, const void *p, uint64_t n)
{
    if (!w->rc && !w->started)
        start(w);
    for (const char *c = p; n && !w->rc;) {
        if (w->at == w->n_tensors) {
            w->rc = err_set(&w->err, RC_ARG, "%" PRIu64 " bytes after the last tensor", n);
            break;
        }
        const uint64_t now = MIN(n, w->sizes[w->at] - w->done);
        if (now >= WRITE_BYTES) { /* past the buffer */
            flush(w);
            if (!w->rc)
                w->rc = file_write_all(w->fd, c, now, &w->err);
        } else {
            buf_add(&w->out, c, now);
        }
        c += now;
        n -= now;
        w->done += now;
        if (w->done == w->sizes[w->at]) {
            put_padding(&w->out, w->done);
            w->at++;
            w->done = 0;
        }
        if (w->out.n >= WRITE_BYTES)
            flush(w);
    }
    return !w->rc;
}

enum rc gguf_writer_close(struct gguf_writer *w, struct err *err)
{
    if (!w->rc && !w->started)
        start(w);
    flush(w);
    if (!w->rc && w->at < w->n_tensors)
        w->rc =
            err_set(&w->err, RC_ARG,
                    "tensor %" PRIu64 " of %" PRIu64 " got %" PRIu64 " of its %" PRIu64 " bytes",
                    w->at + 1, w->n_tensors, w->done, w->sizes[w->at]);
    if (close(w->fd) && !w->rc)
        w->rc = err_sys(&w->err, "cannot close");
    if (!w->rc && rename(w->tmp, w->path))
        w->rc = err_sys(&w->err, "cannot rename %s", w->tmp);
    if (w->rc)
        (void)unlink(w->tmp);
    const enum rc rc = w->rc;
    if (rc) {
        err_set(err, rc, "%s: %s", w->path, w->err.msg);
        if (err)
            err->sys = w->err.sys;
    }
    writer_free(w);
    return rc;
}

void gguf_writer_abandon(struct gguf_writer *w)
{
    close(w->fd);
    (void)unlink(w->tmp);
    writer_free(w);
}
