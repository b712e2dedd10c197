/* kern_avx512_vnni.c - AVX-512 with int8 dot products. */
#include "kern/kern.h"

#define KERN(f) f##_avx512_vnni
#define KERN_LANES 16

#define LANES_VNNI
#include "kern/lanes_avx512.inc"
#include "kern/body_mat.inc"

#include "kern/body_seq.inc"

extern const struct kern KERN(kern);
const struct kern KERN(kern) = {.name = "avx512_vnni", KERN_MAT_ENTRIES, KERN_SEQ_ENTRIES};
