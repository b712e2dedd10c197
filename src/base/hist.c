#include "base/hist.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

void hist_init(struct hist *h)
{
    *h = (struct hist){0};
}

void hist_release(struct hist *h)
{
    mem_free(h->v);
    hist_init(h);
}

void hist_add(struct hist *h, double v)
{
    if (!mem_grow(&h->v, &h->cap, h->n + 1, sizeof *h->v))
        return;
    h->v[h->n++] = v;
    h->sorted = false;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double hist_quantile(struct hist *h, double q)
{
    if (!h->n)
        return NAN;
    if (!h->sorted)
        qsort(h->v, h->n, sizeof *h->v, by_value);
    h->sorted = true;
    const double at = q * (double)(h->n - 1);
    const size_t lo = (size_t)at, hi = MIN(lo + 1, h->n - 1);
    return h->v[lo] + (h->v[hi] - h->v[lo]) * (at - (double)lo);
}

double hist_mean(const struct hist *h)
{
    double sum = 0;
    for (size_t i = 0; i < h->n; i++)
        sum += h->v[i];
    return h->n ? sum / (double)h->n : NAN;
}
