/* rec.h - recurrent slots: one live state per running sequence.
 *
 *   slot = for each delta layer d:  conv [K - 1][C]   raw projections, oldest first
 *                                   S    [n_v_heads][state_dim][state_dim], inside a head as kern/seq.h says
 *
 * One contiguous run of shape_snap_bytes(), 64-byte aligned, so that a snapshot is one memcpy.
 * Owner: the engine thread.
 */
#ifndef HOLDFAST_STATE_REC_H
#define HOLDFAST_STATE_REC_H

#include "state/shape.h"

struct rec;
typedef uint32_t rec_slot; /* 1..n; 0 = none */

NODISCARD enum rc rec_new(const struct shape *s, uint32_t n_slots, struct rec **out,
                          struct err *err);
void rec_free(struct rec *r);
/* A zeroed slot, or 0 when all are taken. */
NODISCARD rec_slot rec_take(struct rec *r);
void rec_give(struct rec *r, rec_slot s);
float *rec_conv(struct rec *r, rec_slot s, uint32_t delta_layer);
float *rec_s(struct rec *r, rec_slot s, uint32_t delta_layer);
void *rec_bytes(struct rec *r, rec_slot s); /* the whole slot */

#endif
