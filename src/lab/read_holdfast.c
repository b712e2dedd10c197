/* read_holdfast.c - holdfast's own events (--events FILE; base/event.def is the list).  One request:
 *
 *   {"t":12.5,"ev":"lookup","id":3,"n_prompt":4947,"lcp":2531,"start":2528,"from":"ram","why":""}
 *   {"t":12.5,"ev":"restore","id":3,"snap":7,"pos":2528,"bytes":...,"ms":1.9,"tier":"ram"}
 *   {"t":13.0,"ev":"cut","id":3,"snap":9,"pos":4944,"kind":"prompt","bytes":...,"ms":2.0}
 *   {"t":14.8,"ev":"turn","id":3,"n_prompt":4947,"n_reused":2528,"n_evaluated":2419,...}
 *
 * and its line for people, which says the same:
 *
 *   14.812 I request 3: prompt 4947, reused 2528 (branch, RAM), evaluated 2419 in 1.83 s (1321.9 tok/s),
 *     generated 32 in 1.20 s (26.7 tok/s), stop limit; 3 of 2531 common tokens again: no snapshot placed 3
 *
 * There are no slots: a snapshot belongs to no request, and an eviction to whoever needed the room.
 */
#include "lab/line.h"

#define H ENG_HOLDFAST

static const struct shape event_shapes[] = {
    {LINE_LAUNCH, "lookup", H, 0, 0, false}, {LINE_RESTORE, "restore", H, 0, 0, false},
    {LINE_CREATE, "cut", H, 0, 0, false},    {LINE_EVICT, "evict", H, 0, 0, false},
    {LINE_CANCEL, "cancel", H, 0, 0, false}, {LINE_TURN, "turn", H, 0, 0, false},
    {LINE_NOISE, "reject", H, 0, 0, false},  {LINE_NOISE, "spill", H, 0, 0, false},
};

static const struct shape raw_shapes[] = {
    {LINE_TURN, "request {task}: prompt {n_prompt}, reused {n_past}", H, 0, 0, false},
};

const struct dialect dialect_holdfast[2] = {
    {FORM_EVENT, event_shapes, COUNT_OF(event_shapes)},
    {FORM_RAW, raw_shapes, COUNT_OF(raw_shapes)},
};
