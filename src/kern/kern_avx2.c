/* kern_avx2.c - AVX2, FMA and F16C: any x86-64 of the last ten years. */
#include "kern/kern.h"

#define KERN(f) f##_avx2
#define KERN_LANES 8

#include "kern/lanes_avx2.inc"
#include "kern/body_mat.inc"

#include "kern/body_seq.inc"

extern const struct kern KERN(kern);
const struct kern KERN(kern) = {.name = "avx2", KERN_MAT_ENTRIES, KERN_SEQ_ENTRIES};
