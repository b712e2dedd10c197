/* perslot_log.h - what PXA's server prints of a slot's life, in its words; holdfast forensics reads it.
 *
 * Warnings are lines of a slot, information is "INFO [f] text | key=value"; both as that server prints
 * them, so without the prefix of other lines.  Counts and times only, no text.
 */
#ifndef HOLDFAST_ENGINE_PERSLOT_LOG_H
#define HOLDFAST_ENGINE_PERSLOT_LOG_H

#include "base/log.h"
#include "cache/pxa.h"

struct perslot_log {
    const struct logger *lg;
    uint32_t slot;
    uint64_t task;
    double mib; /* size of a checkpoint */
};

void say_rules(const struct perslot_log *g, const struct pxa_rules *r);
void say_launch(const struct perslot_log *g, uint32_t held, uint32_t lcp);
/* The prompt leaves the sequence. */
void say_divergence(const struct perslot_log *g, uint32_t lcp, uint32_t held);
void say_restored(const struct perslot_log *g, uint32_t held, const struct mark *m, double ms);
void say_forced(const struct perslot_log *g);
void say_erased(const struct perslot_log *g, const struct mark *m);
void say_evicted(const struct perslot_log *g, const struct mark *m);
void say_created(const struct perslot_log *g, const struct mark *m, uint32_t n, uint32_t of,
                 double ms);
void say_one_token(const struct perslot_log *g);
/* A batch begins at p0. */
void say_batch(const struct perslot_log *g, uint32_t p0);
void say_timings(const struct perslot_log *g, uint32_t n_prompt, double prompt_ms, uint32_t n_gen,
                 double gen_ms);
void say_released(const struct perslot_log *g, uint32_t n_past, uint32_t n_cache);

#endif
