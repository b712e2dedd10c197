#include "cache/cost.h"

#include <math.h>

/* Two cores and a slow SSD. */
static const double guess[CACHE_N_RATES] = {
    [CACHE_RATE_PREFILL] = 100, [CACHE_RATE_READ] = 400e6, [CACHE_RATE_WRITE] = 200e6};
static const double memory_s = 10; /* a measurement that long weighs as much as all before it */

void cost_init(struct cost *k, const double rate[CACHE_N_RATES])
{
    for (int i = 0; i < CACHE_N_RATES; i++)
        k->rate[i] = rate[i] > 0 ? rate[i] : guess[i];
}

void cost_measured(struct cost *k, enum cache_rate r, uint64_t amount, uint64_t ns)
{
    if (!amount || !ns)
        return;
    const double s = (double)ns * 1e-9, w = s / (s + memory_s);
    k->rate[r] *= pow((double)amount / s / k->rate[r], w); /* rates differ by factors */
}

double cost_read_tokens(const struct cost *k, uint64_t bytes)
{
    return (double)bytes / k->rate[CACHE_RATE_READ] * k->rate[CACHE_RATE_PREFILL];
}
