/* lcp.h - how much of each prompt the slot held already: the distribution and its shape. */
#ifndef HOLDFAST_LAB_LCP_H
#define HOLDFAST_LAB_LCP_H

#include "base/hist.h"
#include "base/json.h"

enum { LCP_BINS = 24 }; /* bin 0: nothing in common; bin k: [2^(k-1), 2^k) tokens */

struct lcp_stats {
    struct hist values;
    uint64_t bin[LCP_BINS], n, under_512, from_4096;
    /* of log2(1 + lcp), for the shape */
    double m1, m2, m3, m4;
};

void lcp_init(struct lcp_stats *s);
void lcp_release(struct lcp_stats *s);
void lcp_add(struct lcp_stats *s, int64_t lcp);
/* Sarle's coefficient of log2(1 + lcp), (skewness^2 + 1) / kurtosis; above 5/9, the uniform
 * distribution's, there are likely two groups.  NaN under 10 values. */
double lcp_bimodality(const struct lcp_stats *s);
/* {"n":..,"min":..,"p10":..,...,"bimodality":..,"bins":[{"from":..,"to":..,"n":..}]} under key. */
void lcp_json(struct lcp_stats *s, struct jwrite *w, const char *key);

#endif
