#include "state/io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- faults ---------------------------------------------------------------------------------- */

/* Written by tests while nobody calls; relaxed, since only the count is shared. */
static struct io_fault fault;
static _Atomic uint64_t n_calls;
static atomic_bool blocked;

void io_fault_set(const struct io_fault *f)
{
    fault = *f;
    atomic_store_explicit(&blocked, f->at && f->kind == IO_FAULT_BLOCK, memory_order_relaxed);
    atomic_store_explicit(&n_calls, 0, memory_order_relaxed);
}

void io_fault_let_go(void)
{
    atomic_store_explicit(&blocked, false, memory_order_relaxed);
}

uint64_t io_calls(void)
{
    return atomic_load_explicit(&n_calls, memory_order_relaxed);
}

/* A call is about to be made. *max: how many bytes it may move, cut down.  False when it must fail; errno says
 * how. */
static bool step(uint64_t *max)
{
    const uint64_t i = 1 + atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    if (!fault.at || i < fault.at)
        return true;
    switch (fault.kind) {
    case IO_FAULT_FAIL:
        break;
    case IO_FAULT_HALF:
        if (i == fault.at && max && *max > 1) {
            *max /= 2;
            return true;
        }
        break;
    case IO_FAULT_SHORT:
        if (!max)
            return true;
        *max = *max / 3 + 1;
        errno = EINTR;
        return i % 2;
    case IO_FAULT_BLOCK:
        while (atomic_load_explicit(&blocked, memory_order_relaxed))
            usleep(1000);
        return true;
    case IO_FAULT_KILL:
        if (i == fault.at && max && *max > 1) {
            *max /= 2;
            return true;
        }
        (void)raise(SIGKILL);
    }
    errno = fault.sys;
    return false;
}

/* ---- calls ----------------------------------------------------------------------------------- */

enum rc io_create(const char *path, int *fd, struct err *err)
{
    *fd = step(NULL) ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    return *fd < 0 ? err_sys(err, "cannot create %s", path) : RC_OK;
}

enum rc io_open(const char *path, int *fd, uint64_t *bytes, struct err *err)
{
    *fd = step(NULL) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW) : -1;
    if (*fd < 0)
        return err_sys(err, "cannot open %s", path);
    struct stat st;
    enum rc rc = RC_OK;
    if (!step(NULL) || fstat(*fd, &st))
        rc = err_sys(err, "cannot stat %s", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, RC_UNSUPPORTED, "%s is no regular file", path);
    else
        *bytes = (uint64_t)st.st_size;
    if (rc) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

enum { MOST = 1 << 30 }; /* bytes in one call; Linux moves no more than 2 GiB */

enum rc io_write(int fd, const void *p, uint64_t n, const char *path, struct err *err)
{
    for (uint64_t done = 0; done < n;) {
        uint64_t max = MIN(n - done, MOST);
        const ssize_t put = step(&max) ? write(fd, (const char *)p + done, max) : -1;
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_sys(err, "cannot write %" PRIu64 " bytes to %s", n, path);
        done += (uint64_t)put;
    }
    return RC_OK;
}

enum rc io_read_at(int fd, void *p, uint64_t n, uint64_t off, const char *path, struct err *err)
{
    for (uint64_t done = 0; done < n;) {
        uint64_t max = MIN(n - done, MOST);
        const ssize_t got = step(&max) ? pread(fd, (char *)p + done, max, (off_t)(off + done)) : -1;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, "cannot read %s at byte %" PRIu64, path, off + done);
        if (!got)
            return err_set(err, RC_FORMAT,
                           "%s ends at byte %" PRIu64 ", wanted are %" PRIu64 " at %" PRIu64, path,
                           off + done, n, off);
        done += (uint64_t)got;
    }
    return RC_OK;
}

enum rc io_sync(int fd, const char *path, struct err *err)
{
    return step(NULL) && !fsync(fd) ? RC_OK : err_sys(err, "cannot sync %s", path);
}

enum rc io_close(int fd, const char *path, struct err *err)
{
    const bool ok = step(NULL);
    const int sys = errno;
    const int closed = close(fd);
    if (ok && !closed)
        return RC_OK;
    if (!ok)
        errno = sys;
    return err_sys(err, "cannot close %s", path);
}

static enum rc rename_to(const char *from, const char *to, struct err *err)
{
    return step(NULL) && !rename(from, to) ? RC_OK
                                           : err_sys(err, "cannot rename %s to %s", from, to);
}

static enum rc sync_dir_of(const char *path, struct err *err)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (snprintf(dir, sizeof dir, "%.*s", slash ? (int)MAX(slash - path, 1) : 1,
                 slash ? path : ".") >= (int)sizeof dir)
        return err_set(err, RC_ARG, "path too long: %.100s...", path);
    const int fd = step(NULL) ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0)
        return err_sys(err, "cannot open directory %s", dir);
    const enum rc rc = io_sync(fd, dir, err);
    close(fd);
    return rc;
}

enum rc io_put_in_place(enum rc written, const char *tmp, const char *path, struct err *err)
{
    const enum rc rc = written ? written : rename_to(tmp, path, err);
    if (rc) {
        (void)io_unlink(tmp, NULL);
        return rc;
    }
    return sync_dir_of(path, err);
}

enum rc io_truncate(const char *path, uint64_t bytes, struct err *err)
{
    return step(NULL) && !truncate(path, (off_t)bytes) ? RC_OK
                                                       : err_sys(err, "cannot shorten %s", path);
}

enum rc io_unlink(const char *path, struct err *err)
{
    if (step(NULL) && (!unlink(path) || errno == ENOENT))
        return RC_OK;
    return err_sys(err, "cannot remove %s", path);
}
