/* meter.h - rates measured while running, counters for metrics.  Owner: the engine thread. */
#ifndef HOLDFAST_ENGINE_METER_H
#define HOLDFAST_ENGINE_METER_H

#include "base/base.h"

struct meter {
    uint64_t jobs, prompt_tokens, reused_tokens, predicted_tokens, steps;
    uint64_t prompt_ns, predicted_ns;
    double rows_per_s; /* of forwards that carry many rows; 0 until one has run */
};

/* One forward of so many rows took so long. */
void meter_step(struct meter *m, uint32_t n_rows, uint64_t ns);
/* Rows of a forward that should take about ns; min .. max. */
uint32_t meter_rows_in(const struct meter *m, uint64_t ns, uint32_t min, uint32_t max);

#endif
