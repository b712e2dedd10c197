/* pick.h - choose a kernel table for the CPU we run on. */
#ifndef HOLDFAST_KERN_PICK_H
#define HOLDFAST_KERN_PICK_H

#include "base/err.h"

struct kern;

/* The best table the CPU and the operating system support; name forces one, and when name is NULL
 * or empty the environment variable HOLDFAST_ISA does.  RC_ARG for a name nobody knows,
 * RC_UNSUPPORTED for one that cannot run here; both messages list what can. */
NODISCARD enum rc kern_pick(const char *name, const struct kern **out, struct err *err);

/* Tables that can run here, best first, "ref" last; NULL from the end on.  For tests and benches. */
const struct kern *kern_nth(uint32_t i);

#endif
