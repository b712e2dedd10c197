/* snap.h - snapshots: a slot's exact bits, copied out and back, in RAM under a byte count.
 *
 * Owner: the engine thread.
 */
#ifndef HOLDFAST_STATE_SNAP_H
#define HOLDFAST_STATE_SNAP_H

#include "state/rec.h"

struct snap; /* one snapshot's payload */
struct snap_store;

NODISCARD enum rc snap_store_new(const struct shape *s, struct snap_store **out, struct err *err);
void snap_store_free(struct snap_store *st); /* all snapshots must be gone */
uint64_t snap_store_bytes(const struct snap_store *st);
/* Copies slot's bits out. RC_NOMEM when the system has none. */
NODISCARD enum rc snap_take(struct snap_store *st, struct rec *r, rec_slot slot, struct snap **out,
                            struct err *err);
/* One to be filled through snap_fill: read back from disk. */
NODISCARD enum rc snap_blank(struct snap_store *st, struct snap **out, struct err *err);
void *snap_fill(struct snap *sn); /* shape_snap_bytes() of them */
void snap_restore(const struct snap *sn, struct rec *r, rec_slot slot);
void snap_free(struct snap_store *st, struct snap *sn);
const void *snap_data(const struct snap *sn); /* shape_snap_bytes() of them */

#endif
