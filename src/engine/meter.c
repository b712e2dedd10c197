#include "engine/meter.h"

/* Forwards of fewer rows mostly wait for the weights to come from memory and say little about how
 * long one of many rows takes. */
enum { MANY_ROWS = 16 };

void meter_step(struct meter *m, uint32_t n_rows, uint64_t ns)
{
    m->steps++;
    if (n_rows < MANY_ROWS || ns == 0)
        return;
    const double rate = (double)n_rows * 1e9 / (double)ns;
    m->rows_per_s = m->rows_per_s > 0 ? 0.75 * m->rows_per_s + 0.25 * rate : rate;
}

uint32_t meter_rows_in(const struct meter *m, uint64_t ns, uint32_t min, uint32_t max)
{
    const double rows = m->rows_per_s * (double)ns * 1e-9;
    if (m->rows_per_s <= 0 || rows >= (double)max)
        return max;
    return MIN(MAX((uint32_t)rows, min), max);
}
