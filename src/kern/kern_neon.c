/* kern_neon.c - ARMv8.2 with dot products. */
#include "kern/kern.h"

#define KERN(f) f##_neon
#define KERN_LANES 4

#include "kern/lanes_neon.inc"
#include "kern/body_mat.inc"

#include "kern/body_seq.inc"

extern const struct kern KERN(kern);
const struct kern KERN(kern) = {.name = "neon", KERN_MAT_ENTRIES, KERN_SEQ_ENTRIES};
