/* file.h - files: map, read at, write atomically. */
#ifndef HOLDFAST_BASE_FILE_H
#define HOLDFAST_BASE_FILE_H

#include "base/err.h"

struct filemap {
    const uint8_t *p; /* read-only; NULL when n is 0 */
    uint64_t n;
    int fd; /* the file, while p is not NULL */
};

/* Maps a whole regular file read-only.  RC_IO with the path in the message. */
NODISCARD enum rc filemap_open(struct filemap *m, const char *path, struct err *err);
/* The same, with the file read into memory now instead of page by page when it is touched. */
NODISCARD enum rc filemap_read(struct filemap *m, const char *path, struct err *err);
void filemap_close(struct filemap *m);
/* Tells the kernel that [off, off + n) will not be read again soon; rounds inwards to pages.  What is
 * read all the same comes from the file. */
void filemap_drop(const struct filemap *m, uint64_t off, uint64_t n);

/* Whole file into *out (mem_free), *n bytes, terminated by a 0; RC_LIMIT above max bytes. */
NODISCARD enum rc file_read_all(const char *path, uint64_t max, char **out, size_t *n,
                                struct err *err);
/* Exactly n bytes at off; RC_FORMAT when the file ends before. */
NODISCARD enum rc file_read_at(int fd, void *p, size_t n, uint64_t off, struct err *err);
NODISCARD enum rc file_write_all(int fd, const void *p, size_t n, struct err *err);
/* To a temporary name in the same directory, fsync, rename, fsync of the directory: afterwards path
 * holds either what it held or all of p[n].  A link keeps pointing at its file; what is no file (a device,
 * a pipe) is written as it is. */
NODISCARD enum rc file_write_atomically(const char *path, const void *p, size_t n, struct err *err);

#endif
