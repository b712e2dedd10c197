/* cost.h - what things take: measured live, given in replay. */
#ifndef HOLDFAST_CACHE_COST_H
#define HOLDFAST_CACHE_COST_H

#include "cache/cache.h"

struct cost {
    double rate[CACHE_N_RATES]; /* tokens/s, bytes/s, bytes/s */
};

/* rate[i] 0: a cautious guess. */
void cost_init(struct cost *k, const double rate[CACHE_N_RATES]);
/* amount took ns.  Long measurements count more. */
void cost_measured(struct cost *k, enum cache_rate r, uint64_t amount, uint64_t ns);
/* Tokens that could be evaluated while so many bytes are read. */
double cost_read_tokens(const struct cost *k, uint64_t bytes);

#endif
