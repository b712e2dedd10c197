/* kern_ref.c - the meaning of every kernel, in plain C. */
#include "kern/kern.h"

#define KERN(f) f##_ref
#define KERN_LANES 1

#include "kern/lanes_ref.inc"
#include "kern/body_mat.inc"

#include "kern/body_seq.inc"

extern const struct kern KERN(kern);
const struct kern KERN(kern) = {.name = "ref", KERN_MAT_ENTRIES, KERN_SEQ_ENTRIES};
