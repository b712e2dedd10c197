/* roof.h - what this machine can do at best with a kernel table: the rooflines a bench is held to.
 *
 * A machine shared with others does not keep its speed: memory bandwidth may double or halve within
 * seconds.  So a roof is measured next to each thing that is timed: before it, after it, and where that
 * can be done in between.
 */
#ifndef HOLDFAST_NN_ROOF_H
#define HOLDFAST_NN_ROOF_H

#include "base/err.h"
#include "base/pool.h"

struct kern;
struct roof_probe;

struct roof {
    double int8_ops;   /* a second, all threads of the pool; a multiply-add is two */
    double f32_ops;    /* the same, fused multiply-adds */
    double read_bytes; /* a second, from memory */
};

/* Holds 256 MiB to read until it is freed; the pool is borrowed. */
NODISCARD enum rc roof_new(const struct kern *k, struct pool *pool, struct roof_probe **out,
                           struct err *err);
void roof_free(struct roof_probe *p);
/* Takes some 40 ms. */
struct roof roof_measure(struct roof_probe *p);
/* Reads the 256 MiB once: bytes a second. */
double roof_read(struct roof_probe *p);
struct roof roof_better(const struct roof *a, const struct roof *b);

#endif
