/* io.h - the system calls of the disk tier, each able to fail on request.
 *
 * Every call is one step: interrupted and short transfers are gone on with inside.  Errors are RC_IO with the
 * path and errno's sentence; RC_FORMAT when a file ends before what is wanted.
 */
#ifndef HOLDFAST_STATE_IO_H
#define HOLDFAST_STATE_IO_H

#include "base/err.h"

/* A new file for writing, its owner's alone (it tells what was said); one of that name is emptied. */
NODISCARD enum rc io_create(const char *path, int *fd, struct err *err);
/* A regular file for reading, and its size. */
NODISCARD enum rc io_open(const char *path, int *fd, uint64_t *bytes, struct err *err);
NODISCARD enum rc io_write(int fd, const void *p, uint64_t n, const char *path, struct err *err);
NODISCARD enum rc io_read_at(int fd, void *p, uint64_t n, uint64_t off, const char *path,
                             struct err *err);
NODISCARD enum rc io_sync(int fd, const char *path, struct err *err);
/* A failure to close a file written to is a failure to write it. */
NODISCARD enum rc io_close(int fd, const char *path, struct err *err);
/* Ends the writing of tmp, which went as written says: it takes path's name, for good once its directory is on disk;
 * or it is removed, and written or why it could not be named is returned. */
NODISCARD enum rc io_put_in_place(enum rc written, const char *tmp, const char *path,
                                  struct err *err);
NODISCARD enum rc io_truncate(const char *path, uint64_t bytes, struct err *err);
/* A file that is not there is none to remove. */
enum rc io_unlink(const char *path, struct err *err);

/* For tests, process-wide like mem_fail_after: what happens at the at-th system call from now (1 = the next). */
struct io_fault {
    uint64_t at; /* 0 = nothing happens */
    enum io_fault_kind {
        IO_FAULT_FAIL,  /* it, and every one after it, fails with sys; nothing is moved */
        IO_FAULT_HALF,  /* as FAIL, but a transfer first moves half of its bytes */
        IO_FAULT_SHORT, /* from then on transfers are interrupted, and move a third each time */
        IO_FAULT_KILL,  /* the process is killed instead, after half of a transfer */
        IO_FAULT_BLOCK  /* it, and every one after it, waits for io_fault_let_go */
    } kind;
    int sys;
};
void io_fault_set(const struct io_fault *f);
void io_fault_let_go(void);
uint64_t io_calls(void); /* system calls since io_fault_set */

#endif
