/* kern_avx512_vnni.c */
#include "kern/kern.h"

#define KERN(f) f##_avx512_vnni
#define KERN_LANES 16

#include "kern/body_seq.inc"

extern const struct kern KERN(kern);
const struct kern KERN(kern) = {.name = "avx512_vnni", KERN_SEQ_ENTRIES};
