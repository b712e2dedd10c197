/* disk.h - a directory of segments, and the threads that move them.
 *
 * Each entry has one file: its snapshot, and of its KV what no other file has.  What lies before is in the file it
 * goes on from (its parent), which need not have a snapshot any more:
 *
 *     1.seg  [0 ............ 400) + snapshot at 400
 *     2.seg        [192 ......... 900) + snapshot at 900      parent 1, whose pages it needs up to 192
 *     3.seg  [0 .. 400) of 1.seg, snapshot at 400, no pages
 *
 * Invariants: (1) a parent was written before its children and has a smaller id.  (2) A file lasts as long as it is an
 * entry's or a child needs pages of it; what neither needs is cut off from its end.  (3) Jobs of the writing thread
 * are done in order, so a child is written only after its parent.  (4) At start everything follows from the files;
 * there is no index that could be lost.
 *
 * Owner of struct disk: the engine thread.  Two threads of its own move bytes, one writes and removes, one reads; jobs
 * go to them and come back (disk_poll) by queue.  Files are found intact, or are lost with a line in the log.
 */
#ifndef HOLDFAST_STATE_DISK_H
#define HOLDFAST_STATE_DISK_H

#include "base/log.h"
#include "state/foreign.h"

struct disk;
typedef uint32_t disk_ref; /* an entry's file; 0 = none */

struct disk_opts {
    const char *dir; /* made when it is not there (its parent must be) */
    uint64_t max_bytes;
    struct shape shape;
    const char *kernels;
    const struct logger *lg;
    void (*wake)(
        void *ctx); /* called on a thread of ours: there is something to disk_poll; may be NULL */
    void *ctx;
};

/* Locks the directory, reads headers and tokens of all its files, removes what was not written to its end and what
 * goes on from nothing; others' files and newer ones are left alone.  RC_LIMIT when another process has it, RC_IO when
 * it cannot be written. */
NODISCARD enum rc disk_open(const struct disk_opts *o, struct disk **out, struct err *err);
/* Waits for the jobs given; their outcome is lost.  The files stay. */
void disk_close(struct disk *d);

/* Entries there are, in the order of their last use; 0 when i is past the end. */
disk_ref disk_at(const struct disk *d, uint32_t i);
const struct segment_head *disk_head(const struct disk *d, disk_ref r);
/* The tokens of its path into out [pos]. */
void disk_path(const struct disk *d, disk_ref r, token *out);
/* Of its own file. */
uint64_t disk_bytes_of(const struct disk *d, disk_ref r);

/* Starts to write an entry: h's kind, hits, family, times and pos count.
 *   seq    [pos] copied
 *   pages  [ceil(pos / KV_PAGE)] of its whole path; those and snap stay as they are until the job is done, but
 *          for the last one, when it is not full: that is copied
 * 0 when it cannot: memory, max_bytes, or writing failed lately (said in the log then). */
NODISCARD disk_ref disk_write(struct disk *d, const struct segment_head *h, const token *seq,
                              const void *const *pages, const void *snap, uint64_t tag);
/* Starts to read an entry's pages from first on into dst [ceil(pos / KV_PAGE) - first], and its snapshot.  False when
 * memory is out. */
NODISCARD bool disk_read(struct disk *d, disk_ref r, uint32_t first, void *const *dst, void *snap,
                         uint64_t tag);
/* The entry is given up; it must not be in a job. */
void disk_drop(struct disk *d, disk_ref r);

/* The deepest state of another maker that start found after seq[0 .. pos), from < pos <= n: see foreign.h. */
struct foreign_state disk_foreign(const struct disk *d, const token *seq, uint32_t n,
                                  uint32_t from);

/* Starts to keep p [n] (taken over: mem_free) for the next start, in place of what was kept before; a failure is said in
 * the log.  Nothing is written over what start could not tell to be ours. */
void disk_keep(struct disk *d, void *p, size_t n);
/* The last one is still being written. */
bool disk_is_keeping(const struct disk *d);
/* What start found, *n bytes, owned by d until disk_keep or disk_close; NULL when nothing was kept. */
const void *disk_kept(const struct disk *d, size_t *n);

struct disk_done {
    bool write; /* else read */
    disk_ref ref;
    uint64_t tag;
    enum rc rc; /* not RC_OK after disk_write: the ref is gone */
    struct err err;
    uint64_t bytes, ns; /* moved, in so long */
};
/* A job that is done, waiting for one up to timeout_ns; false when there is none. */
bool disk_poll(struct disk *d, uint64_t timeout_ns, struct disk_done *out);
uint32_t disk_n_jobs(const struct disk *d); /* given, not polled */

struct disk_stats {
    uint64_t max_bytes, bytes;
    uint32_t n_files, n_entries;
    uint64_t reads, read_bytes, read_ns;
    uint64_t writes, write_bytes, write_ns;
    uint64_t failed_reads, failed_writes;
    bool writes_off; /* one failed lately */
};
void disk_stats(const struct disk *d, struct disk_stats *out);

#endif
