#include "lab/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"
#include "base/utf8.h"

enum {
    IN_BYTES = 256 * 1024,    /* of the file at a time */
    OUT_BYTES = 2 * LINES_MAX /* of text: a whole line and a read after it */
};

enum packing { PACK_UNKNOWN, PACK_NONE, PACK_GZIP, PACK_ZSTD };
enum coding { CODE_UNKNOWN, CODE_BYTES, CODE_UTF16LE, CODE_UTF16BE };

struct lines {
    char *path;
    int fd; /* -1: bytes in memory, already in in[] */
    bool follow, in_eof;
    enum packing packing;
    enum coding coding;
    z_stream z;
    bool z_open;
    ZSTD_DStream *zs;
    bool member_open; /* the compressed member read last has not ended */

    const uint8_t *in; /* [in_n], in_at of it consumed; buf, or the caller's memory */
    uint8_t *buf;
    size_t in_n, in_at;

    char *out;                      /* [out_at .. out_n) is text not handed out yet */
    size_t out_n, out_at, out_seen; /* out_seen: no newline before it */
    bool skipping;                  /* the rest of a cut line */
    uint32_t half;                  /* UTF-16: a high surrogate waiting for its mate */
    bool has_odd;
    uint8_t odd;
    struct err bad; /* what ended the reading */

    uint64_t n, bytes, n_cut;
};

static enum rc lines_alloc(struct lines **out)
{
    struct lines *l = mem_try_zalloc(sizeof *l);
    if (!l)
        return RC_NOMEM;
    l->fd = -1;
    l->out = mem_try(OUT_BYTES);
    if (!l->out) {
        lines_close(l);
        return RC_NOMEM;
    }
    *out = l;
    return RC_OK;
}

enum rc lines_open(const char *path, bool follow, struct lines **out, struct err *err)
{
    struct lines *l;
    if (lines_alloc(&l))
        return err_set(err, RC_NOMEM, "no memory to read %s", path);
    l->path = mem_strdup(path);
    l->buf = mem_try(IN_BYTES);
    if (!l->buf) {
        lines_close(l);
        return err_set(err, RC_NOMEM, "no memory to read %s", path);
    }
    l->in = l->buf;
    l->fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : dup(STDIN_FILENO);
    struct stat st;
    if (l->fd >= 0 && !fstat(l->fd, &st)) {
        l->follow = follow && S_ISREG(st.st_mode); /* a pipe ends when its writer does */
        if (S_ISDIR(st.st_mode)) {
            close(l->fd);
            l->fd = -1;
            errno = EISDIR;
        }
    }
    if (l->fd < 0) {
        const enum rc rc = err_sys(err, "%s", path);
        lines_close(l);
        return rc;
    }
    *out = l;
    return RC_OK;
}

enum rc lines_open_mem(const void *p, size_t n, struct lines **out, struct err *err)
{
    struct lines *l;
    if (lines_alloc(&l))
        return err_set(err, RC_NOMEM, "no memory to read a log");
    l->path = mem_strdup("memory");
    l->in = p;
    l->in_n = n;
    l->in_eof = true;
    *out = l;
    return RC_OK;
}

void lines_close(struct lines *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    if (l->z_open)
        inflateEnd(&l->z);
    ZSTD_freeDStream(l->zs);
    mem_free(l->path);
    mem_free(l->buf);
    mem_free(l->out);
    mem_free(l);
}

/* More bytes into in[], whatever is left in it first.  False at the end of the file or on failure. */
static bool refill(struct lines *l)
{
    if (l->in_eof)
        return false;
    memmove(l->buf, l->buf + l->in_at, l->in_n - l->in_at);
    l->in_n -= l->in_at;
    l->in_at = 0;
    ssize_t got;
    do
        got = read(l->fd, l->buf + l->in_n, IN_BYTES - l->in_n);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        (void)err_sys(&l->bad, "%s", l->path);
    if (got <= 0) {
        l->in_eof = true;
        return false;
    }
    l->in_n += (size_t)got;
    return true;
}

static void tell_packing(struct lines *l)
{
    const uint8_t *p = l->in + l->in_at;
    const size_t n = l->in_n - l->in_at;
    if (n >= 2 && p[0] == 0x1f && p[1] == 0x8b)
        l->packing = PACK_GZIP;
    else if (n >= 4 && p[0] == 0x28 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd)
        l->packing = PACK_ZSTD;
    else
        l->packing = PACK_NONE;
}

static void put_utf16(struct lines *l, uint32_t unit)
{
    const uint32_t high = l->half;
    l->half = 0;
    if (high && unit >= 0xdc00 && unit < 0xe000)
        unit = 0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00);
    else if (unit >= 0xd800 && unit < 0xdc00) {
        l->half = unit;
        return;
    } else if (unit >= 0xdc00 && unit < 0xe000)
        unit = 0xfffd;
    l->out_n += utf8_encode(unit, l->out + l->out_n);
}

/* raw[n] goes to out[], as UTF-8; out[] has room for 2n. */
static void recode(struct lines *l, const uint8_t *raw, size_t n)
{
    size_t i = 0;
    if (l->coding == CODE_UNKNOWN) {
        l->coding = CODE_BYTES;
        if (n >= 2 && raw[0] == 0xff && raw[1] == 0xfe)
            l->coding = CODE_UTF16LE;
        else if (n >= 2 && raw[0] == 0xfe && raw[1] == 0xff)
            l->coding = CODE_UTF16BE;
        if (l->coding != CODE_BYTES)
            i = 2;
        else if (n >= 3 && raw[0] == 0xef && raw[1] == 0xbb && raw[2] == 0xbf)
            i = 3;
    }
    if (l->coding == CODE_BYTES) {
        memcpy(l->out + l->out_n, raw + i, n - i);
        l->out_n += n - i;
        return;
    }
    const int first = l->coding == CODE_UTF16LE ? 0 : 8; /* shift of the byte that comes first */
    for (; i < n; i++) {
        if (!l->has_odd) {
            l->odd = raw[i];
            l->has_odd = true;
            continue;
        }
        l->has_odd = false;
        put_utf16(l, (uint32_t)l->odd << first | (uint32_t)raw[i] << (8 - first));
    }
}

static bool unpack_gzip(struct lines *l, char *p, size_t room, size_t *n)
{
    const uint8_t *src = l->in + l->in_at;
    const size_t have = l->in_n - l->in_at;
    if (!l->z_open) {
        l->z = (z_stream){0};
        if (inflateInit2(&l->z, 15 + 32) != Z_OK) {
            (void)err_set(&l->bad, RC_NOMEM, "%s: no memory for gzip", l->path);
            return false;
        }
        l->z_open = true;
    } else if (!l->member_open) {
        if (have < 2 && !l->in_eof)
            return false;
        if (have < 2 || src[0] != 0x1f || src[1] != 0x8b) {
            l->in_at = l->in_n; /* padding after the last member, as tapes leave it */
            return false;
        }
        inflateReset2(&l->z, 15 + 32);
    }
    l->member_open = true;
    l->z.next_in = (Bytef *)(uintptr_t)src; /* zlib only reads it */
    l->z.avail_in = (uInt)MIN(have, (size_t)1 << 30);
    l->z.next_out = (Bytef *)p;
    l->z.avail_out = (uInt)room;
    const int zr = inflate(&l->z, Z_NO_FLUSH);
    const size_t used = (size_t)(l->z.next_in - src);
    l->in_at += used;
    *n = room - l->z.avail_out;
    if (zr == Z_STREAM_END)
        l->member_open = false;
    else if (zr != Z_OK && zr != Z_BUF_ERROR)
        (void)err_set(&l->bad, RC_FORMAT, "%s: damaged gzip data (%s)", l->path,
                      l->z.msg ? l->z.msg : "zlib");
    return *n || used;
}

static bool unpack_zstd(struct lines *l, char *p, size_t room, size_t *n)
{
    if (!l->zs && !(l->zs = ZSTD_createDStream())) {
        (void)err_set(&l->bad, RC_NOMEM, "%s: no memory for zstd", l->path);
        return false;
    }
    ZSTD_inBuffer in = {l->in + l->in_at, l->in_n - l->in_at, 0};
    ZSTD_outBuffer out = {p, room, 0};
    const size_t r = ZSTD_decompressStream(l->zs, &out, &in);
    l->in_at += in.pos;
    *n = out.pos;
    if (ZSTD_isError(r))
        (void)err_set(&l->bad, RC_FORMAT, "%s: damaged zstd data (%s)", l->path,
                      ZSTD_getErrorName(r));
    l->member_open = r != 0;
    return *n || in.pos;
}

/* Some of in[] to p[room], unpacked; *n bytes.  False when nothing moved: more input is needed. */
static bool unpack(struct lines *l, char *p, size_t room, size_t *n)
{
    *n = 0;
    if (l->in_n == l->in_at)
        return false;
    switch (l->packing) {
    case PACK_GZIP:
        return unpack_gzip(l, p, room, n);
    case PACK_ZSTD:
        return unpack_zstd(l, p, room, n);
    case PACK_UNKNOWN:
    case PACK_NONE:
        *n = MIN(l->in_n - l->in_at, room);
        memcpy(p, l->in + l->in_at, *n);
        l->in_at += *n;
        return true;
    }
    return false;
}

/* More text into out[].  False at the end or on failure (l->bad). */
static bool more_text(struct lines *l)
{
    memmove(l->out, l->out + l->out_at, l->out_n - l->out_at);
    l->out_n -= l->out_at;
    l->out_seen -= l->out_at;
    l->out_at = 0;
    if (l->packing == PACK_UNKNOWN) {
        while (l->in_n - l->in_at < 4 && refill(l))
            ;
        if (l->in_n == l->in_at)
            return false;
        tell_packing(l);
    }
    while (!l->bad.rc) {
        size_t n;
        bool moved;
        if (l->coding == CODE_BYTES) {
            moved = unpack(l, l->out + l->out_n, OUT_BYTES - l->out_n, &n);
            l->out_n += n;
        } else {
            uint8_t raw[32 * 1024];
            moved = unpack(l, (char *)raw, MIN(sizeof raw, (OUT_BYTES - l->out_n) / 2), &n);
            if (n)
                recode(l, raw, n);
        }
        if (n)
            return true;
        if (!moved && !refill(l)) {
            if (l->member_open && !l->bad.rc && !l->follow)
                (void)err_set(&l->bad, RC_FORMAT, "%s: the compressed data end in the middle",
                              l->path);
            return false;
        }
    }
    return false;
}

/* At the end of a file that may still grow: wait, and see whether another file took its name. */
static void wait_for_more(struct lines *l)
{
    const struct timespec nap = {.tv_nsec = 200000000};
    nanosleep(&nap, NULL);
    l->in_eof = false;
    struct stat ours, theirs;
    if (!strcmp(l->path, "-") || fstat(l->fd, &ours))
        return;
    const off_t at = lseek(l->fd, 0, SEEK_CUR);
    if (at > ours.st_size) { /* truncated: from its new beginning */
        (void)lseek(l->fd, 0, SEEK_SET);
        return;
    }
    if (at < ours.st_size || stat(l->path, &theirs) ||
        (theirs.st_ino == ours.st_ino && theirs.st_dev == ours.st_dev))
        return;
    const int fd = open(l->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    close(l->fd);
    l->fd = fd;
}

static enum lines_got hand_out(struct lines *l, struct str *line, size_t n, size_t term)
{
    *line = (struct str){l->out + l->out_at, n};
    l->out_at += n + term;
    l->out_seen = l->out_at;
    l->bytes += n + term;
    l->n++;
    return LINES_LINE;
}

enum lines_got lines_next(struct lines *l, struct str *line, struct err *err)
{
    for (;;) {
        const char *nl = l->out_n > l->out_seen
                             ? memchr(l->out + l->out_seen, '\n', l->out_n - l->out_seen)
                             : NULL;
        if (nl) {
            const size_t n = (size_t)(nl - (l->out + l->out_at));
            if (l->skipping) {
                l->skipping = false;
                l->bytes += n + 1;
                l->out_at += n + 1;
                l->out_seen = l->out_at;
                continue;
            }
            return hand_out(l, line, n, 1);
        }
        l->out_seen = l->out_n;
        if (l->out_n - l->out_at >= LINES_MAX) {
            const bool rest = l->skipping;
            l->skipping = true;
            if (rest) {
                l->bytes += l->out_n - l->out_at;
                l->out_at = l->out_n;
                continue;
            }
            l->n_cut++;
            return hand_out(l, line, LINES_MAX, 0);
        }
        if (!l->bad.rc && more_text(l))
            continue;
        /* a last line without its newline: when following, it may still be in the making */
        if (!l->bad.rc && l->follow && l->packing <= PACK_NONE && l->fd >= 0) {
            wait_for_more(l);
            return LINES_IDLE;
        }
        const size_t left = l->out_n - l->out_at;
        if (left && !l->skipping)
            return hand_out(l, line, left, 0);
        if (!l->bad.rc)
            return LINES_END;
        if (err)
            *err = l->bad;
        return LINES_ERROR;
    }
}

uint64_t lines_n(const struct lines *l)
{
    return l->n;
}

uint64_t lines_bytes(const struct lines *l)
{
    return l->bytes;
}

uint64_t lines_n_cut(const struct lines *l)
{
    return l->n_cut;
}
