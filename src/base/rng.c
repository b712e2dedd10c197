#include "base/rng.h"

#include <math.h>

double rng_normal(struct rng *r)
{
    /* Box-Muller, one of the pair; 1 - u keeps the logarithm finite */
    const double u = 1.0 - rng_f64(r), v = rng_f64(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}
