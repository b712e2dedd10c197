/* pool.h - fork-join workers for the slices of one kernel call.
 *
 * pool_run(p, n, fn, ctx) calls fn(ctx, part, worker) once for every part in [0, n), spread over the
 * workers (the caller is worker 0), and returns when all are done.  Which worker gets a part varies;
 * what part i computes may not depend on it, nor on the number of workers: so the thread count
 * changes no bits.
 *
 * One caller at a time.  Workers spin a little before they sleep; hardly at all when there are more
 * threads than CPUs, since whom they wait for then waits for theirs.
 */
#ifndef HOLDFAST_BASE_POOL_H
#define HOLDFAST_BASE_POOL_H

#include "base/err.h"

enum { POOL_MAX_THREADS = 512 };

struct pool;
typedef void pool_fn(void *ctx, uint32_t part, uint32_t worker);

struct pool_opts {
    uint32_t n_threads; /* callers included; 0 = number of CPUs this process may use */
    bool pin; /* bind worker i to the i-th allowed CPU; the caller with its first pool_run */
};

/* RC_LIMIT above POOL_MAX_THREADS. */
NODISCARD enum rc pool_new(const struct pool_opts *o, struct pool **out, struct err *err);
void pool_free(struct pool *p);
uint32_t pool_n_threads(const struct pool *p);
void pool_run(struct pool *p, uint32_t n_parts, pool_fn *fn, void *ctx);

#endif
