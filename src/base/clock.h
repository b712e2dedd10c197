/* clock.h - time as a number. */
#ifndef HOLDFAST_BASE_CLOCK_H
#define HOLDFAST_BASE_CLOCK_H

#include "base/base.h"

uint64_t clock_mono_ns(void); /* monotonic: for durations */
uint64_t clock_wall_ns(void); /* since 1970: for stamps */
uint64_t clock_cpu_ns(void);  /* of this thread: what work costs, whoever else is running */

#endif
