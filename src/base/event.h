/* event.h - one JSON line per decision, for programs.  event.def is the list.
 *
 * event_lookup(log, &(struct event_lookup){.id = 1, ...}) and so on for each name.
 */
#ifndef HOLDFAST_BASE_EVENT_H
#define HOLDFAST_BASE_EVENT_H

#include "base/err.h"

#include <stdio.h>

typedef uint32_t event_u32;
typedef uint64_t event_u64;
typedef double event_f64;
typedef const char *event_str;

#define F(kind, name) event_##kind name;
#define EVENT(name, fields)                                                                        \
    struct event_##name {                                                                          \
        fields                                                                                     \
    };
#include "base/event.def"
#undef EVENT
#undef F

/* NULL is a log that drops everything. */
struct event_log;
NODISCARD enum rc event_log_open(const char *path, struct event_log **out, struct err *err);
void event_log_close(struct event_log *l);

#define EVENT(name, fields) void event_##name(struct event_log *l, const struct event_##name *e);
#define F(kind, name)
#include "base/event.def"
#undef EVENT
#undef F

#endif
