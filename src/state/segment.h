/* segment.h - a sequence's state in a file: tokens, KV pages, snapshot.
 *
 *     header   256 bytes: who made it, what it holds, checksums
 *     index    tokens of [from, pos), a checksum for each page; to a multiple of 4096
 *     pages    KV of [from, pos), as in memory
 *     snapshot after pos tokens
 *
 * docs/formats/cache-dir.md has every byte.  A segment stands alone (from 0), or goes on where another one, its
 * parent, has the KV of [0, from).  Written whole or not at all; afterwards it can only be cut off from its end: first
 * the snapshot goes (segment_shorten), then pages.  A segment without snapshot serves those that go on from it.
 *
 * Nothing here knows of a directory or a cache: state/disk keeps many, a saved slot is one.  To save entry or sequence
 * with table t, len tokens and snapshot: pages[j] = kv_page_bytes(kv, t->pages[j]), j < ceil(len / KV_PAGE).
 */
#ifndef HOLDFAST_STATE_SEGMENT_H
#define HOLDFAST_STATE_SEGMENT_H

#include "base/err.h"
#include "state/shape.h"

struct segment_head {
    uint64_t id, parent; /* names within a directory; 0 for one that stands alone */
    /* from: a multiple of KV_PAGE, or pos (then there are no pages); 0 when there is no parent */
    uint32_t from, pos;
    uint64_t from_hash,
        path_hash; /* segment_hash of the tokens [0, from) and [0, pos); set by segment_write */
    /* what the cache says of the entry; 0 where there is no cache */
    uint32_t kind, hits;
    uint64_t family, used_ns, made_ns;
};

uint64_t segment_hash(const token *seq, uint32_t n);
/* The same of each seq[0 .. pos[i]), pos [n] ascending, into out [n], in one pass. */
void segment_hashes(const token *seq, const uint32_t *pos, uint32_t n, uint64_t *out);
/* Pages of a segment: of the positions [from, pos). */
uint32_t segment_n_pages(const struct segment_head *h);
/* Bytes of the file with its first n_pages pages, and with all of them and the snapshot. */
uint64_t segment_bytes(const struct shape *s, const struct segment_head *h, uint32_t n_pages);
uint64_t segment_whole_bytes(const struct shape *s, const struct segment_head *h);

/* Writes path.tmp, syncs it, renames it to path, syncs the directory: afterwards path holds all of it, or what it held
 * before; path.tmp is gone.
 *   seq    [pos] the whole path, also what lies before from
 *   pages  [segment_n_pages(h)] of shape_page_bytes(s) bytes
 *   snap   shape_snap_bytes(s) bytes
 * kernels: name of the table that computed them (model_info.isa), shorter than 16 bytes.  RC_IO, RC_NOMEM. */
NODISCARD enum rc segment_write(const char *path, const struct shape *s, const char *kernels,
                                const struct segment_head *h, const token *seq,
                                const void *const *pages, const void *snap, struct err *err);

/* Who made a file: what the fingerprint stands for, as far as there are names for it. */
struct segment_maker {
    uint64_t fingerprint;
    char kernels[17], kv_type[8];
};
void segment_maker_of(const struct shape *s, const char *kernels, struct segment_maker *out);
/* The header alone, whoever made the file; has_snap: it is as long as one with its snapshot.  The same errors as
 * segment_open, without RC_STALE. */
NODISCARD enum rc segment_peek(const char *path, struct segment_head *h, struct segment_maker *by,
                               bool *has_snap, struct err *err);

struct segment; /* an open file */

/* Reads and checks header and index.
 *   RC_UNSUPPORTED  not such a file, or of a newer format
 *   RC_STALE        made by another model, KV type, kernel table or layout
 *   RC_FORMAT       damaged, or not written to its end
 *   RC_IO, RC_NOMEM
 * kernels: for the message alone; the fingerprint decides. */
NODISCARD enum rc segment_open(const char *path, const struct shape *s, const char *kernels,
                               struct segment **out, struct err *err);
void segment_close(struct segment *g);
const struct segment_head *segment_head(const struct segment *g);
const token *segment_tokens(const struct segment *g); /* [pos - from], not negative */
uint32_t segment_pages_left(const struct segment *g); /* not cut off */
bool segment_has_snap(const struct segment *g);
uint64_t segment_file_bytes(const struct segment *g);

/* Pages [first, first + n) into dst [n], the snapshot into snap (NULL: not wanted), all checked.  RC_FORMAT when
 * something is damaged or was cut off; what dst and snap then hold must not be used. */
NODISCARD enum rc segment_read(const struct segment *g, uint32_t first, uint32_t n,
                               void *const *dst, void *snap, struct err *err);

/* Cuts the file off after its first n_pages pages. */
NODISCARD enum rc segment_shorten(const char *path, const struct shape *s,
                                  const struct segment_head *h, uint32_t n_pages, struct err *err);

#endif
