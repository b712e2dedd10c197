#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* Opens a regular file for reading; *n is its size. */
static enum rc open_regular(const char *path, int *fd, uint64_t *n, struct err *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return err_sys(err, "cannot open %s", path);
    enum rc rc = RC_OK;
    if (fstat(*fd, &st))
        rc = err_sys(err, "cannot stat %s", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, RC_ARG, "%s is %s, not a file", path,
                     S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    else
        *n = (uint64_t)st.st_size;
    if (rc)
        close(*fd);
    return rc;
}

enum rc filemap_open(struct filemap *m, const char *path, struct err *err)
{
    *m = (struct filemap){0};
    enum rc rc = open_regular(path, &m->fd, &m->n, err);
    if (rc)
        return rc;
    if (m->n) {
        void *p = mmap(NULL, m->n, PROT_READ, MAP_SHARED, m->fd, 0);
        if (p != MAP_FAILED) {
            m->p = p;
            return RC_OK;
        }
        rc = err_sys(err, "cannot map %s (%" PRIu64 " bytes)", path, m->n);
    }
    close(m->fd);
    *m = (struct filemap){0};
    return rc;
}

enum rc filemap_read(struct filemap *m, const char *path, struct err *err)
{
    enum rc rc = filemap_open(m, path, err);
    if (rc || !m->p)
        return rc;
    /* in place of the file's pages, memory */
    void *p = mmap((void *)(uintptr_t)m->p, m->n, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (p == MAP_FAILED)
        rc = err_set(err, RC_NOMEM, "no memory to read %s (%" PRIu64 " bytes)", path, m->n);
    else if (!(rc = err_wrap(err, file_read_at(m->fd, p, m->n, 0, err), "%s", path)) &&
             mprotect(p, m->n, PROT_READ))
        rc = err_sys(err, "cannot protect %s", path);
    if (rc)
        filemap_close(m);
    return rc;
}

void filemap_close(struct filemap *m)
{
    if (m->p) {
        munmap((void *)(uintptr_t)m->p, m->n);
        close(m->fd);
    }
    *m = (struct filemap){0};
}

void filemap_drop(const struct filemap *m, uint64_t off, uint64_t n)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t from = round_up(off, page), to = (off + n) / page * page;
    if (to <= from)
        return;
    /* A new mapping in the place of this one: a copy's pages would read as zeros after MADV_DONTNEED.
     * Without huge pages, else one byte read later brings 2 MiB back.  Should it fail, all just stays. */
    void *p = mmap((void *)((uintptr_t)m->p + from), to - from, PROT_READ, MAP_SHARED | MAP_FIXED,
                   m->fd, (off_t)from);
    if (p != MAP_FAILED)
        (void)madvise(p, to - from, MADV_NOHUGEPAGE);
}

enum rc file_read_all(const char *path, uint64_t max, char **out, size_t *n, struct err *err)
{
    int fd;
    uint64_t size = 0;
    enum rc rc = open_regular(path, &fd, &size, err);
    if (rc)
        return rc;
    char *p = NULL;
    if (size > max || size > SIZE_MAX - 1)
        rc = err_set(err, RC_LIMIT, "%s has %" PRIu64 " bytes, at most %" PRIu64, path, size, max);
    else if (!(p = mem_try(size + 1)))
        rc = err_set(err, RC_NOMEM, "no memory for the %" PRIu64 " bytes of %s", size, path);
    else
        rc = err_wrap(err, file_read_at(fd, p, size, 0, err), "%s", path);
    close(fd);
    if (rc) {
        mem_free(p);
        return rc;
    }
    p[size] = 0;
    *out = p;
    *n = size;
    return RC_OK;
}

enum rc file_read_at(int fd, void *p, size_t n, uint64_t off, struct err *err)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(fd, (char *)p + done, n - done, (off_t)(off + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, "cannot read %zu bytes at %" PRIu64, n, off);
        if (!got)
            return err_set(err, RC_FORMAT,
                           "file ends at byte %" PRIu64 ", wanted %zu bytes at %" PRIu64,
                           off + done, n, off);
        done += (size_t)got;
    }
    return RC_OK;
}

enum rc file_write_all(int fd, const void *p, size_t n, struct err *err)
{
    for (size_t done = 0; done < n;) {
        const ssize_t put = write(fd, (const char *)p + done, n - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_sys(err, "cannot write %zu bytes", n);
        done += (size_t)put;
    }
    return RC_OK;
}

static enum rc sync_directory_of(const char *path, struct err *err)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)MAX(slash - path, 1) : 1, slash ? path : ".");
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, "cannot open directory %s", dir);
    const enum rc rc = fsync(fd) ? err_sys(err, "cannot sync directory %s", dir) : RC_OK;
    close(fd);
    return rc;
}

static enum rc write_through(const char *path, const void *p, size_t n, struct err *err)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, "cannot open %s", path);
    enum rc rc = err_wrap(err, file_write_all(fd, p, n, err), "%s", path);
    if (close(fd) && !rc)
        rc = err_sys(err, "cannot close %s", path);
    return rc;
}

enum rc file_write_atomically(const char *path, const void *p, size_t n, struct err *err)
{
    char tmp[PATH_MAX], target[PATH_MAX];
    struct stat st;
    if (!stat(path, &st)) {
        if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
            return write_through(path, p, n, err);
        if (realpath(path, target)) /* a link stays one */
            path = target;
    }
    if (snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid()) >= (int)sizeof tmp)
        return err_set(err, RC_ARG, "path too long: %.100s...", path);
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_sys(err, "cannot create %s", tmp);
    enum rc rc = err_wrap(err, file_write_all(fd, p, n, err), "%s", tmp);
    if (!rc && fsync(fd))
        rc = err_sys(err, "cannot sync %s", tmp);
    if (close(fd) && !rc)
        rc = err_sys(err, "cannot close %s", tmp);
    if (!rc && rename(tmp, path))
        rc = err_sys(err, "cannot rename %s to %s", tmp, path);
    if (rc) {
        (void)unlink(tmp);
        return rc;
    }
    return sync_directory_of(path, err);
}
