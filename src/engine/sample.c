#include "engine/sample.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct cand {
    float logit;
    token id;
};

struct sample_room {
    uint32_t n_vocab;
    token *forbidden, *eog;
    uint32_t n_forbidden, n_eog;
    uint32_t *count;    /* [n_vocab] all zero between calls */
    struct cand *cands; /* [n_vocab] */
    double *weight;     /* [n_vocab] of cands, not normalised */
    float *raw;         /* [n_vocab] the model's logits, while probabilities are wanted */
};

/* This many nats below the best, exp is not even called: a vocabulary of 250,000 such tokens adds up
 * to 1e-12 of the best one's share. */
static const float negligible = 40.0f;

void sampling_defaults(struct sampling *s)
{
    *s = (struct sampling){.temperature = 0.8f,
                           .top_k = 40,
                           .top_p = 0.95f,
                           .min_p = 0.05f,
                           .repeat_penalty = 1.0f,
                           .repeat_last_n = 64};
}

static token *copy_tokens(const token *t, uint32_t n)
{
    token *out = mem_try_array(n, sizeof *out);
    if (out && n)
        memcpy(out, t, n * sizeof *out);
    return out;
}

enum rc sample_room_new(uint32_t n_vocab, const token *forbidden, uint32_t n_forbidden,
                        const token *eog, uint32_t n_eog, struct sample_room **out, struct err *err)
{
    struct sample_room *r = mem_zalloc(sizeof *r);
    *r = (struct sample_room){
        .n_vocab = n_vocab,
        .forbidden = copy_tokens(forbidden, n_forbidden),
        .n_forbidden = n_forbidden,
        .eog = copy_tokens(eog, n_eog),
        .n_eog = n_eog,
        .count = mem_try_array(n_vocab, sizeof *r->count),
        .cands = mem_try_array(n_vocab, sizeof *r->cands),
        .weight = mem_try_array(n_vocab, sizeof *r->weight),
        .raw = mem_try_array(n_vocab, sizeof *r->raw),
    };
    if (!r->forbidden || !r->eog || !r->count || !r->cands || !r->weight || !r->raw) {
        sample_room_free(r);
        return err_set(err, RC_NOMEM, "no memory to sample from a vocabulary of %u", n_vocab);
    }
    *out = r;
    return RC_OK;
}

void sample_room_free(struct sample_room *r)
{
    if (!r)
        return;
    mem_free(r->forbidden);
    mem_free(r->eog);
    mem_free(r->count);
    mem_free(r->cands);
    mem_free(r->weight);
    mem_free(r->raw);
    mem_free(r);
}

void sampler_init(struct sampler *s, const struct sampling *p, uint64_t seed,
                  const struct logit_bias *bias, uint32_t n_bias)
{
    *s =
        (struct sampler){.p = *p, .bias = bias, .n_bias = n_bias, .rng = {.s = seed}, .forced = -1};
}

/* ---- a heap of candidates -------------------------------------------------------------------- */

/* The total order that makes ties repeatable: higher logit first, then lower id. */
static inline bool better(struct cand a, struct cand b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Restores the heap h[n], worst on top, from i downwards. */
static void sift_down(struct cand *h, uint32_t n, uint32_t i)
{
    const struct cand x = h[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && better(h[child], h[child + 1]))
            child++;
        if (better(h[child], x))
            break;
        h[i] = h[child];
        i = child;
    }
    h[i] = x;
}

static void heapify(struct cand *h, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(h, n, i);
}

/* The k best of logits [n], best first; returns how many there are (numbers above -inf only).
 * One pass with the worst of the best on top of a heap: nearly every token fails one comparison. */
static uint32_t best_k(const float *logits, uint32_t n, uint32_t k, struct cand *out)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (m < k) {
            if (logits[i] > -INFINITY) {
                out[m++] = (struct cand){logits[i], (token)i};
                if (m == k)
                    heapify(out, m);
            }
        } else if (logits[i] > out[0].logit) {
            out[0] = (struct cand){logits[i], (token)i};
            sift_down(out, m, 0);
        }
    }
    if (m < k)
        heapify(out, m);
    for (uint32_t left = m; left > 1; left--) { /* the worst goes to the end */
        const struct cand worst = out[0];
        out[0] = out[left - 1];
        out[left - 1] = worst;
        sift_down(out, left - 1, 0);
    }
    return m;
}

/* ---- the chain ------------------------------------------------------------------------------- */

static void forbid(float *logits, const token *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        logits[t[i]] = -INFINITY;
}

/* All that the grammar does not allow. */
static void forbid_others(const struct sampler *s, float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64) {
        const uint32_t left = i < s->n_mask ? MIN(s->n_mask - i, 64) : 0;
        uint64_t bits = left ? s->mask[i / 64] : 0;
        if (left < 64)
            bits &= (UINT64_C(1) << left) - 1;
        if (bits == UINT64_MAX)
            continue;
        for (uint32_t k = 0; k < MIN(n - i, 64); k++)
            logits[i + k] = bits >> k & 1 ? logits[i + k] : -INFINITY;
    }
}

static void add_bias(const struct sampler *s, float *logits)
{
    for (uint32_t i = 0; i < s->n_bias; i++)
        logits[s->bias[i].id] += s->bias[i].bias;
}

/* Each distinct token of the window once, with its count. */
static void penalise(const struct sampler *s, struct sample_room *r, float *logits,
                     const token *history, uint32_t n)
{
    const struct sampling *p = &s->p;
    if (p->repeat_penalty == 1.0f && p->presence_penalty == 0.0f && p->frequency_penalty == 0.0f)
        return;
    const uint32_t window = p->repeat_last_n < 0 ? n : MIN((uint32_t)p->repeat_last_n, n);
    const token *w = history + (n - window);
    for (uint32_t i = 0; i < window; i++)
        r->count[w[i]]++;
    for (uint32_t i = 0; i < window; i++) {
        const uint32_t c = r->count[w[i]];
        if (!c)
            continue;
        r->count[w[i]] = 0;
        float *l = &logits[w[i]];
        *l = *l <= 0.0f ? *l * p->repeat_penalty : *l / p->repeat_penalty;
        *l -= (float)c * p->frequency_penalty + p->presence_penalty;
    }
}

/* -1 when no logit is a number above -inf. */
static token argmax(const float *logits, uint32_t n)
{
    float best = -INFINITY;
    token id = -1;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > best) {
            best = logits[i];
            id = (token)i;
        }
    return id;
}

/* Sum of exp(logit - top) over the vocabulary. */
static double mass(const float *logits, uint32_t n, float top)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > top - negligible)
            sum += exp((double)logits[i] - (double)top);
    return sum;
}

static uint32_t all_above(const float *logits, uint32_t n, float floor, struct cand *out)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] >= floor && logits[i] > -INFINITY)
            out[m++] = (struct cand){logits[i], (token)i};
    return m;
}

static double weight_of(struct cand c, float top)
{
    return exp((double)c.logit - (double)top);
}

/* Moves the fewest best of c [n] whose weights reach goal to the front, in no order, and returns how
 * many they are (all, when they do not reach it; at least one).  Quickselect by weight instead of by
 * count: a nucleus may be most of the vocabulary, and is then never sorted. */
static uint32_t select_weight(struct cand *c, uint32_t n, float top, double goal)
{
    struct rng rng = {1}; /* pivots; always the same */
    uint32_t lo = 0, hi = n;
    double sum = 0; /* of c [lo], which are all better than the rest */
    while (hi - lo > 1) {
        const uint32_t pick = lo + rng_below(&rng, hi - lo);
        const struct cand pivot = c[pick];
        c[pick] = c[lo];
        c[lo] = pivot;
        uint32_t mid = lo + 1; /* c [lo, mid) is the pivot and what is better */
        double part = weight_of(pivot, top);
        for (uint32_t i = lo + 1; i < hi; i++)
            if (better(c[i], pivot)) {
                const struct cand x = c[i];
                c[i] = c[mid];
                c[mid++] = x;
                part += weight_of(x, top);
            }
        c[lo] = c[mid - 1]; /* the pivot is the worst of the good part */
        c[mid - 1] = pivot;
        if (sum + part < goal) {
            sum += part;
            lo = mid;
        } else if (mid - lo > 1 && sum + part - weight_of(pivot, top) >= goal) {
            hi = mid - 1;
        } else {
            return mid;
        }
    }
    return MIN(lo + 1, n);
}

/* The fewest best tokens whose probabilities reach top_p, over the whole vocabulary, in no order.
 * Tokens rarer than (1 - top_p) / n are left out at once: all of them together do not reach 1 - top_p,
 * so the nucleus is complete before the first of them. */
static uint32_t nucleus(const float *logits, uint32_t n, float top_p, struct cand *out)
{
    const float top = logits[argmax(logits, n)];
    const double total = mass(logits, n, top);
    const double rare = (1.0 - (double)top_p) / (double)n * total;
    const float floor = (float)MAX((double)top + log(rare) - 1e-3, (double)(top - negligible));
    const uint32_t m = all_above(logits, n, floor, out);
    return select_weight(out, m, top, (double)top_p * total);
}

/* The same among cands [n], which are sorted, best first, and normalised among themselves. */
static uint32_t nucleus_of(const struct cand *cands, uint32_t n, float top_p)
{
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += weight_of(cands[i], cands[0].logit);
    for (uint32_t i = 0; i < n; i++) {
        sum += weight_of(cands[i], cands[0].logit);
        if (sum >= (double)top_p * total)
            return i + 1;
    }
    return n;
}

/* Fills r->cands with what is left to draw from; at least one unless nothing is allowed. */
static uint32_t filter(const struct sampler *s, struct sample_room *r, const float *logits)
{
    const struct sampling *p = &s->p;
    const uint32_t n = r->n_vocab;
    const token top = argmax(logits, n);
    if (top < 0)
        return 0;
    const bool top_k = p->top_k > 0 && (uint32_t)p->top_k < n;
    const bool top_p = p->top_p < 1.0f;
    const float floor = p->min_p > 0.0f ? logits[top] + logf(p->min_p) : -INFINITY;
    uint32_t m;
    if (top_k)
        m = best_k(logits, n, (uint32_t)p->top_k, r->cands);
    else if (top_p)
        m = nucleus(logits, n, p->top_p, r->cands);
    else
        return all_above(logits, n, floor, r->cands);
    if (top_k && top_p)
        m = nucleus_of(r->cands, m, p->top_p);
    uint32_t kept = 0; /* the best one stays: floor is not above it */
    for (uint32_t i = 0; i < m; i++)
        if (r->cands[i].logit >= floor)
            r->cands[kept++] = r->cands[i];
    return kept;
}

/* What changes logits: mask, bias, penalties. */
static void adjust(const struct sampler *s, struct sample_room *r, float *logits,
                   const token *history, uint32_t n)
{
    if (s->mask)
        forbid_others(s, logits, r->n_vocab);
    if (s->p.ignore_eos)
        forbid(logits, r->eog, r->n_eog);
    add_bias(s, logits);
    penalise(s, r, logits, history, n);
}

/* Filters, then weights after temperature.  Returns the number of candidates. */
static uint32_t weigh(const struct sampler *s, struct sample_room *r, const float *logits,
                      double *total)
{
    *total = 1;
    if (s->p.temperature <= 0.0f) {
        const token t = argmax(logits, r->n_vocab);
        r->cands[0] = (struct cand){0, t};
        r->weight[0] = 1;
        return t >= 0;
    }
    const uint32_t m = filter(s, r, logits);
    float top = -INFINITY;
    for (uint32_t i = 0; i < m; i++)
        top = MAX(top, r->cands[i].logit);
    double sum = 0;
    for (uint32_t i = 0; i < m; i++) {
        const double x = ((double)r->cands[i].logit - (double)top) / (double)s->p.temperature;
        sum += r->weight[i] = x > -(double)negligible ? exp(x) : 0;
    }
    *total = sum;
    return m;
}

static token draw(struct sampler *s, const struct sample_room *r, uint32_t m, double total)
{
    if (s->p.temperature <= 0.0f)
        return r->cands[0].id;
    double left = rng_f64(&s->rng) * total;
    uint32_t last = 0;
    for (uint32_t i = 0; i < m; i++) {
        if (r->weight[i] == 0)
            continue;
        last = i;
        left -= r->weight[i];
        if (left < 0)
            break;
    }
    return r->cands[last].id;
}

/* Within so many nats (after temperature) of the best is the head of a distribution.  The others are
 * lighter than e^-20: all of 250,000 of them together than 0.0006 of the best one. */
static const double head_nats = 20;

/* A draw from the whole vocabulary, for when there is temperature alone.  The head comes first, then the
 * others; how much these weigh is known well enough for nearly every draw without an exponential of each:
 * only where the draw falls among them, or too near the edge of a token to tell, it is worked out. */
static token draw_whole(struct sampler *s, struct sample_room *r, const float *logits)
{
    const uint32_t n = r->n_vocab;
    const token best = argmax(logits, n);
    if (best < 0)
        return -1;
    const double t = (double)s->p.temperature, top = (double)logits[best];
    const float edge = (float)(top - head_nats * t);
    const double u = rng_f64(&s->rng);
    uint32_t m = 0;
    double head = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] >= edge) {
            const double w = exp(((double)logits[i] - top) / t);
            head += w;
            r->weight[m] = w;
            r->cands[m++] = (struct cand){logits[i], (token)i};
        }
    double total = head;
    const double least = u * head, most = u * (head + (double)(n - m) * exp(-head_nats));
    double sum = 0;
    uint32_t i = 0;
    while (i < m && sum + r->weight[i] <= least)
        sum += r->weight[i++];
    if (i < m && most < sum + r->weight[i])
        return r->cands[i].id;
    for (uint32_t k = 0; k < n; k++) /* -inf weighs nothing; NaN is in no comparison */
        if (logits[k] < edge)
            total += exp(((double)logits[k] - top) / t);
    const double at = u * total;
    token last = best;
    for (i = 0, sum = 0; i < m; i++) {
        sum += r->weight[i];
        last = r->cands[i].id;
        if (at < sum)
            return last;
    }
    for (uint32_t k = 0; k < n; k++)
        if (logits[k] < edge && logits[k] > -INFINITY) {
            sum += exp(((double)logits[k] - top) / t);
            last = (token)k;
            if (at < sum)
                return last;
        }
    return last;
}

/* probs[1 .. n_probs] from raw; cands are work space.  Returns the log of the total mass. */
static double top_probs(struct sample_room *r, const float *raw, struct prob *probs,
                        uint32_t n_probs)
{
    const uint32_t m = best_k(raw, r->n_vocab, MAX(n_probs, 1), r->cands);
    if (!m)
        return 0;
    const float top = r->cands[0].logit;
    const double log_mass = (double)top + log(mass(raw, r->n_vocab, top));
    for (uint32_t i = 0; i < n_probs; i++)
        probs[1 + i] =
            i < m ? (struct prob){r->cands[i].id, (float)((double)r->cands[i].logit - log_mass)}
                  : (struct prob){-1, -INFINITY};
    return log_mass;
}

token sampler_next(struct sampler *s, struct sample_room *r, float *logits, const token *history,
                   uint32_t n, struct prob *probs, uint32_t n_probs)
{
    forbid(logits, r->forbidden, r->n_forbidden);
    double log_mass = 0;
    if (probs) {
        memcpy(r->raw, logits, r->n_vocab * sizeof *logits);
        log_mass = top_probs(r, r->raw, probs, n_probs);
    }
    token t = s->forced;
    if (t < 0) {
        const struct sampling *p = &s->p;
        const bool top_k = p->top_k > 0 && (uint32_t)p->top_k < r->n_vocab;
        double total;
        adjust(s, r, logits, history, n);
        if (p->temperature > 0 && !top_k && p->top_p >= 1 && p->min_p <= 0) {
            t = draw_whole(s, r, logits);
        } else {
            const uint32_t m = weigh(s, r, logits, &total);
            t = m ? draw(s, r, m, total) : -1;
        }
    }
    if (t < 0)
        return -1;
    if (probs)
        probs[0] = (struct prob){t, (float)((double)r->raw[t] - log_mass)};
    return t;
}

uint32_t sampler_candidates(struct sampler *s, struct sample_room *r, float *logits,
                            const token *history, uint32_t n, token *ids, double *p)
{
    forbid(logits, r->forbidden, r->n_forbidden);
    double total;
    adjust(s, r, logits, history, n);
    const uint32_t m = weigh(s, r, logits, &total);
    for (uint32_t i = 0; i < m; i++) {
        ids[i] = r->cands[i].id;
        p[i] = r->weight[i] / total;
    }
    return m;
}
