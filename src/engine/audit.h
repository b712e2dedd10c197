/* audit.h - restored states held against what evaluating them anew gives, bit by bit, while nobody waits.
 *
 *     audit_note()    a request restored this entry: perhaps look at it
 *     audit_wants()   there is something to do
 *     audit_step()    one forward of it; between two of them requests come first
 *
 * The tokens of an entry's path are evaluated from the first one on in a slot of their own; then the recurrent state and
 * every row of KV are compared.  An entry that differs is dropped, with a line in the log and an event.  An entry that
 * goes, or memory that is short, ends its audit without a result.
 *
 * Owner: the engine thread.
 */
#ifndef HOLDFAST_ENGINE_AUDIT_H
#define HOLDFAST_ENGINE_AUDIT_H

#include "engine/reuse.h"
#include "model/model.h"

struct audit;

struct audit_opts {
    double share;        /* of restores that are looked at, 0 .. 1 */
    struct reuse *reuse; /* borrowed; with one recurrent slot more than there are sequences */
    struct model *model; /* borrowed */
    uint32_t n_rows;     /* of a forward */
    const struct logger *lg;
    struct event_log *events;
};

NODISCARD enum rc audit_new(const struct audit_opts *o, struct audit **out, struct err *err);
void audit_free(struct audit *a); /* before the reuse; NULL is fine, here and below */
void audit_note(struct audit *a, snap_id id);
bool audit_wants(const struct audit *a);
void audit_step(struct audit *a);

struct audit_stats {
    uint64_t equal, different, skipped; /* skipped: without a result, or too many at once */
};
void audit_stats(const struct audit *a, struct audit_stats *out);

#endif
