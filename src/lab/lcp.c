#include "lab/lcp.h"

#include <math.h>

void lcp_init(struct lcp_stats *s)
{
    *s = (struct lcp_stats){0};
    hist_init(&s->values);
}

void lcp_release(struct lcp_stats *s)
{
    hist_release(&s->values);
}

void lcp_add(struct lcp_stats *s, int64_t lcp)
{
    if (lcp < 0)
        return;
    hist_add(&s->values, (double)lcp);
    int k = 0;
    while (k + 1 < LCP_BINS && lcp >> k)
        k++;
    s->bin[k]++;
    s->under_512 += lcp < 512;
    s->from_4096 += lcp >= 4096;
    /* running central moments (Pébay 2008, update by one value) */
    const double n1 = (double)s->n, n = n1 + 1, x = log2(1 + (double)lcp);
    const double d = x - s->m1, dn = d / n, dn2 = dn * dn, t = d * dn * n1;
    s->n++;
    s->m1 += dn;
    s->m4 += t * dn2 * (n * n - 3 * n + 3) + 6 * dn2 * s->m2 - 4 * dn * s->m3;
    s->m3 += t * dn * (n - 2) - 3 * dn * s->m2;
    s->m2 += t;
}

double lcp_bimodality(const struct lcp_stats *s)
{
    if (s->n < 10 || s->m2 <= 0)
        return NAN;
    const double n = (double)s->n;
    const double skew = sqrt(n) * s->m3 / pow(s->m2, 1.5), kurt = n * s->m4 / (s->m2 * s->m2);
    return (skew * skew + 1) / kurt;
}

void lcp_json(struct lcp_stats *s, struct jwrite *w, const char *key)
{
    static const struct {
        const char *name;
        double q;
    } at[] = {{"min", 0},    {"p10", 0.1}, {"p25", 0.25}, {"median", 0.5},
              {"p75", 0.75}, {"p90", 0.9}, {"max", 1}};
    jwrite_obj(w, key);
    jwrite_u64(w, "n", s->n);
    for (size_t i = 0; i < COUNT_OF(at); i++)
        jwrite_f64(w, at[i].name, hist_quantile(&s->values, at[i].q));
    const double b = lcp_bimodality(s), n = (double)s->n;
    jwrite_fixed(w, "share_under_512", s->n ? (double)s->under_512 / n : 0, 4);
    jwrite_fixed(w, "share_from_4096", s->n ? (double)s->from_4096 / n : 0, 4);
    if (isnan(b))
        jwrite_null(w, "bimodality");
    else
        jwrite_fixed(w, "bimodality", b, 3);
    jwrite_bool(w, "two_groups", b > 5.0 / 9);
    jwrite_arr(w, "bins");
    for (int k = 0; k < LCP_BINS; k++) {
        if (!s->bin[k])
            continue;
        jwrite_obj(w, NULL);
        jwrite_i64(w, "from", k ? (int64_t)1 << (k - 1) : 0);
        jwrite_i64(w, "to", k ? ((int64_t)1 << k) - 1 : 0);
        jwrite_u64(w, "n", s->bin[k]);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
    jwrite_end_obj(w);
}
