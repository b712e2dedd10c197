/* kern_avx512.c */
#include "kern/kern.h"

#define KERN(f) f##_avx512
#define KERN_LANES 16

#include "kern/body_seq.inc"

extern const struct kern KERN(kern);
const struct kern KERN(kern) = {.name = "avx512", KERN_SEQ_ENTRIES};
