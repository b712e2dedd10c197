/* roof.h - what this machine can do at best with a kernel table: the rooflines a bench is held to. */
#ifndef HOLDFAST_NN_ROOF_H
#define HOLDFAST_NN_ROOF_H

#include "base/err.h"
#include "base/pool.h"

struct kern;

struct roof {
    double int8_ops;   /* a second, all threads of the pool; a multiply-add is two */
    double f32_ops;    /* the same, fused multiply-adds */
    double read_bytes; /* a second, from memory */
};

/* Takes some tenths of a second and 256 MiB. */
NODISCARD enum rc roof_measure(const struct kern *k, struct pool *pool, struct roof *out,
                               struct err *err);

#endif
