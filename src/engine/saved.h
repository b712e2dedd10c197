/* saved.h - one entry's state outside the cache: copied out, written to a file, read back, put in again.
 *
 * Files are segments that stand alone (state/segment.h).  Copying in and out is the engine thread's; files are read and
 * written by whoever asked.
 */
#ifndef HOLDFAST_ENGINE_SAVED_H
#define HOLDFAST_ENGINE_SAVED_H

#include "cache/cache.h"
#include "state/shape.h"

struct saved {
    token *seq; /* [pos] */
    uint32_t pos, n_pages;
    enum cut_kind kind;
    unsigned char *pages; /* [n_pages] of shape_page_bytes() */
    void *snap;           /* shape_snap_bytes() */
};

/* Room for a state of pos tokens.  RC_NOMEM; release in any case. */
NODISCARD enum rc saved_init(struct saved *s, const struct shape *shape, uint32_t pos,
                             struct err *err);
void saved_release(struct saved *s);
/* *bytes: of the file.  Errors as segment_write. */
NODISCARD enum rc saved_write(const struct saved *s, const struct shape *shape, const char *kernels,
                              const char *path, uint64_t *bytes, struct err *err);
/* s need not be initialised.  Errors as segment_open and segment_read; RC_FORMAT for one that does not stand alone;
 * RC_LIMIT for one of more than max_pos tokens. */
NODISCARD enum rc saved_read(struct saved *s, const struct shape *shape, const char *kernels,
                             uint32_t max_pos, const char *path, uint64_t *bytes, struct err *err);

#endif
