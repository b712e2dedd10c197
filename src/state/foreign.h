/* foreign.h - states in a directory that were made by another model, KV type or kernel table.  Nothing goes on from them
 * here; a prompt that would have is told so.
 *
 * A segment's header has the sum of its whole path, so a prompt is recognised by sums of its beginnings: no tokens are
 * kept, and at most FOREIGN_MAX states, those used last.
 */
#ifndef HOLDFAST_STATE_FOREIGN_H
#define HOLDFAST_STATE_FOREIGN_H

#include "state/segment.h"

enum { FOREIGN_MAX = 4096 };

/* What would have been gone on from. */
struct foreign_state {
    uint32_t pos; /* tokens; 0 = there is none */
    uint64_t id;  /* of its file */
    struct segment_maker by;
};

struct foreign; /* owner: the engine thread */

NODISCARD struct foreign *
foreign_new(void); /* NULL when memory is out, which the others take as none */
void foreign_free(struct foreign *f);
/* Notes a file of the directory, as segment_peek tells of it. */
void foreign_add(struct foreign *f, const struct segment_head *h, const struct segment_maker *by,
                 bool has_snap);
/* All are noted: what has a state, and all that it goes on from, can be found from now on. */
void foreign_ready(struct foreign *f);
/* The deepest state after seq[0 .. pos), from < pos <= n; pos 0 when there is none.  Linear in n. */
struct foreign_state foreign_find(const struct foreign *f, const token *seq, uint32_t n,
                                  uint32_t from);

#endif
