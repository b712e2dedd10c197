#include "state/learned.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/pack.h"
#include "state/io.h"

enum { VERSION = 1, HEAD_BYTES = 48, SUMMED = HEAD_BYTES - 8 /* its own sum comes last */ };
static const char magic[8] = {'H', 'O', 'L', 'D', 'L', 'R', 'N', '\n'};

static void make_head(struct buf *b, uint64_t fingerprint, const void *p, uint64_t n)
{
    buf_add(b, magic, sizeof magic);
    pack_u32(b, VERSION);
    pack_u32(b, HEAD_BYTES);
    pack_u64(b, fingerprint);
    pack_u64(b, n);
    pack_u64(b, XXH3_64bits(p, n));
    if (!b->failed)
        pack_u64(b, XXH3_64bits(b->p, SUMMED));
}

static enum rc write_file(const char *path, const struct buf *head, const void *p, uint64_t n,
                          struct err *err)
{
    int fd;
    enum rc rc = io_create(path, &fd, err);
    if (rc)
        return rc;
    rc = io_write(fd, head->p, head->n, path, err);
    if (!rc)
        rc = io_write(fd, p, n, path, err);
    if (!rc)
        rc = io_sync(fd, path, err);
    const enum rc closed = io_close(fd, path, rc ? NULL : err);
    return rc ? rc : closed;
}

enum rc learned_write(const char *path, uint64_t fingerprint, const void *p, uint64_t n,
                      struct err *err)
{
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
        return err_set(err, RC_ARG, "path too long: %.100s...", path);
    if (n > LEARNED_MAX_BYTES)
        return err_set(err, RC_LIMIT, "%" PRIu64 " bytes are too many for %s", n, path);
    struct buf head;
    buf_init(&head);
    make_head(&head, fingerprint, p, n);
    const enum rc rc = head.failed ? err_set(err, RC_NOMEM, "no memory for the header of %s", path)
                                   : write_file(tmp, &head, p, n, err);
    buf_release(&head);
    return io_put_in_place(rc, tmp, path, err);
}

/* Bytes of content; the sum of those in *sum. */
static enum rc check_head(const uint8_t *f, uint64_t file_bytes, uint64_t fingerprint,
                          const char *path, uint64_t *n, uint64_t *sum, struct err *err)
{
    struct unpack u = {.p = f + sizeof magic, .n = HEAD_BYTES - sizeof magic};
    const uint32_t version = unpack_u32(&u), head_bytes = unpack_u32(&u);
    const uint64_t whose = unpack_u64(&u);
    *n = unpack_u64(&u);
    *sum = unpack_u64(&u);
    if (memcmp(f, magic, MIN(file_bytes, sizeof magic)) != 0)
        return err_set(err, RC_UNSUPPORTED, "%s holds nothing that was learned", path);
    if (file_bytes < HEAD_BYTES)
        return err_set(err, RC_FORMAT, "%s ends inside its header, at byte %" PRIu64, path,
                       file_bytes);
    if (version > VERSION)
        return err_set(err, RC_UNSUPPORTED, "%s has format %" PRIu32 "; this program knows %d",
                       path, version, VERSION);
    if (unpack_u64(&u) != XXH3_64bits(f, SUMMED) || version != VERSION || head_bytes != HEAD_BYTES)
        return err_set(err, RC_FORMAT, "%s: the header is damaged", path);
    if (whose != fingerprint)
        return err_set(err, RC_UNSUPPORTED, "%s was written for another model", path);
    if (*n > LEARNED_MAX_BYTES || *n != file_bytes - HEAD_BYTES)
        return err_set(err, RC_FORMAT,
                       "%s has %" PRIu64 " bytes after its header, wanted are %" PRIu64, path,
                       file_bytes - HEAD_BYTES, *n);
    return RC_OK;
}

enum rc learned_read(const char *path, uint64_t fingerprint, uint8_t **out, uint64_t *n,
                     struct err *err)
{
    *out = NULL;
    *n = 0;
    if (access(path, F_OK) && errno == ENOENT)
        return RC_OK;
    int fd;
    uint64_t file_bytes = 0, sum = 0;
    uint8_t f[HEAD_BYTES] = {0};
    enum rc rc = io_open(path, &fd, &file_bytes, err);
    if (rc)
        return rc;
    rc = io_read_at(fd, f, MIN(file_bytes, HEAD_BYTES), 0, path, err);
    if (!rc)
        rc = check_head(f, file_bytes, fingerprint, path, n, &sum, err);
    uint8_t *p = rc ? NULL : mem_try(MAX(*n, 1));
    if (!rc && !p)
        rc = err_set(err, RC_NOMEM, "no memory for the %" PRIu64 " bytes of %s", *n, path);
    if (!rc)
        rc = io_read_at(fd, p, *n, HEAD_BYTES, path, err);
    if (!rc && XXH3_64bits(p, *n) != sum)
        rc = err_set(err, RC_FORMAT, "%s is damaged", path);
    close(fd);
    if (rc) {
        mem_free(p);
        *n = 0;
        return rc;
    }
    *out = p;
    return RC_OK;
}
