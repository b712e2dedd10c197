/* tier.h - the cache's entries on disk: which file each has, what is on its way there.
 *
 * Between cache, which knows entries by number, and state/disk, which knows files.  Without a directory that can be used
 * there is no tier, and the cache has memory only.
 *
 * Owner: the engine thread.
 */
#ifndef HOLDFAST_ENGINE_TIER_H
#define HOLDFAST_ENGINE_TIER_H

#include "cache/cache.h"
#include "state/disk.h"
#include "state/kv.h"
#include "state/snap.h"

struct tier;

/* How much of a directory's bytes the cache may fill, and what it counts for each entry besides snapshot and pages: a
 * file has a header and an index, and its own copy of the page in which it begins. */
uint64_t tier_cache_bytes(uint64_t bytes);
uint64_t tier_entry_bytes(const struct shape *s);

NODISCARD enum rc tier_open(const struct disk_opts *o, struct kv *kv, struct tier **out,
                            struct err *err);
/* Waits for what is under way.  The files stay. */
void tier_close(struct tier *t);
/* What the directory has goes into the cache: what was learned, then entries, as far as its budget reaches; the rest is
 * removed. */
void tier_adopt(struct tier *t, struct cache *c, const struct logger *lg);
/* Starts to write what the cache has learned, how its entries on disk were used and which are pinned, for tier_adopt at the
 * next start.  False when memory is out. */
bool tier_keep(struct tier *t, struct cache *c);
/* That is still under way. */
bool tier_is_keeping(const struct tier *t);
/* Of another maker's files: see disk_foreign. */
struct foreign_state tier_foreign(const struct tier *t, const token *seq, uint32_t n,
                                  uint32_t from);

/* Starts to write the entry s names; false when it cannot.  pages: of its path, held until it is done; snap stays. */
NODISCARD bool tier_write(struct tier *t, const struct cache *c, const struct cache_entry *e,
                          const struct kv_table *pages, const struct snap *snap);
/* Starts to read the entry's snapshot into snap, and the pages of table from first on. */
NODISCARD bool tier_read(struct tier *t, snap_id id, const struct kv_table *table, uint32_t first,
                         struct snap *snap);
/* The entry's file goes, when it has one. */
void tier_drop(struct tier *t, snap_id id);
/* What its file says of it; NULL when it has none. */
const struct segment_head *tier_head(const struct tier *t, snap_id id);

struct tier_done {
    snap_id id;
    bool write; /* else read */
    bool ok;
    uint64_t bytes, ns;
};
/* The next thing done, waiting up to timeout_ns; false when there is none. */
bool tier_poll(struct tier *t, uint64_t timeout_ns, struct tier_done *out);
uint32_t tier_n_moving(const struct tier *t);
void tier_stats(const struct tier *t, struct disk_stats *out);

#endif
