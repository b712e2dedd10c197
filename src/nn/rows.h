/* rows.h - rows of a batch: stretches of sequences, and loops over rows on the pool. */
#ifndef HOLDFAST_NN_ROWS_H
#define HOLDFAST_NN_ROWS_H

#include "base/pool.h"
#include "state/kv.h"
#include "state/rec.h"

/* Rows [row, row + n) of the batch are positions [pos, pos + n) of one sequence.  Nobody asks for the
 * results of the first n_silent rows: an operator may leave them undefined, but not their traces in KV
 * and slot. */
struct stretch {
    uint32_t row, n, pos, n_silent;
    const struct kv_table *kv;
    rec_slot rec;
};

/* fn(ctx, r0, r1) for stretches of [0, n) that together cover it; cols says how much work a row is
 * (in floats touched), so that little work stays on the caller's thread.  fn must treat every row
 * alone. */
typedef void rows_fn(const void *ctx, uint32_t r0, uint32_t r1);
void rows_run(struct pool *pool, uint32_t n, uint64_t cols, rows_fn *fn, const void *ctx);

#endif
