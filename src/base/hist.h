/* hist.h - percentiles of numbers that are all kept. */
#ifndef HOLDFAST_BASE_HIST_H
#define HOLDFAST_BASE_HIST_H

#include "base/base.h"

struct hist {
    double *v;
    size_t n, cap;
    bool sorted;
};

void hist_init(struct hist *h);
void hist_release(struct hist *h);
/* Silently drops the value when memory is out. */
void hist_add(struct hist *h, double v);
/* Linear interpolation between ranks, q in [0, 1]; NaN when empty.  Sorts on first use. */
double hist_quantile(struct hist *h, double q);
double hist_mean(const struct hist *h);

#endif
