/* turns_trace.h - turns written as a trace (docs/formats/trace.md), for `holdfast replay`.
 *
 * Each slot's content is followed as segments: a prompt begins with the segments it shares with the slot,
 * up to its common prefix, and goes on with content of its own.  What it shares with anything else is not
 * in a log, so a trace made this way understates what a cache for all requests can reuse.
 */
#ifndef HOLDFAST_LAB_TURNS_TRACE_H
#define HOLDFAST_LAB_TURNS_TRACE_H

#include "lab/turn.h"

#include <stdio.h>

struct turns_trace;
/* To path, at once; the header's count is put in by turns_trace_end. RC_IO: path must be a file that can
 * be rewound. */
NODISCARD enum rc turns_trace_new(const char *path, const char *name, struct turns_trace **out,
                                  struct err *err);
void turns_trace_free(struct turns_trace *x);
/* In launch order. Turns without a prompt length or common prefix are left out and counted. */
void turns_trace_add(struct turns_trace *x, const struct turn *t);
NODISCARD enum rc turns_trace_end(struct turns_trace *x, struct err *err);
uint64_t turns_trace_n(const struct turns_trace *x);
uint64_t turns_trace_left_out(const struct turns_trace *x);

#endif
