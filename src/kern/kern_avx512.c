/* kern_avx512.c - AVX-512 F, BW, VL, DQ, without the dot products that came later. */
#include "kern/kern.h"

#define KERN(f) f##_avx512
#define KERN_LANES 16

#include "kern/lanes_avx512.inc"
#include "kern/body_mat.inc"

#include "kern/body_seq.inc"

extern const struct kern KERN(kern);
const struct kern KERN(kern) = {.name = "avx512", KERN_MAT_ENTRIES, KERN_SEQ_ENTRIES};
