/* rng.h - splitmix64: small, seeded, the same everywhere. */
#ifndef HOLDFAST_BASE_RNG_H
#define HOLDFAST_BASE_RNG_H

#include "base/base.h"

struct rng {
    uint64_t s;
};

static inline uint64_t rng_u64(struct rng *r)
{
    uint64_t z = (r->s += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [0, n), n > 0 (bias below 2^-32 for n < 2^32). */
static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)(((rng_u64(r) >> 32) * n) >> 32);
}

/* Uniform in [0, 1). */
static inline double rng_f64(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

/* Standard normal. */
double rng_normal(struct rng *r);

#endif
