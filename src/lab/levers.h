/* levers.h - what each lever of the engine at hand, and holdfast, would reuse of the turns found.
 *
 * The turns are replayed as a trace (turns_trace.h) through the engine's own rules (legacy.h) and through
 * holdfast's cache (sim.h).
 */
#ifndef HOLDFAST_LAB_LEVERS_H
#define HOLDFAST_LAB_LEVERS_H

#include "base/json.h"
#include "lab/forensics.h"

enum { LEVERS_MAX_TURNS = 20000 };

/* The object to be put under "simulated" (owned by the caller); NULL with RC_OK when the trace is empty, or
 * the log is holdfast's own. */
NODISCARD enum rc levers_predict(const char *trace_path, const struct forensics_engine *e,
                                 json_t **out, struct err *err);

#endif
