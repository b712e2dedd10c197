/* quant.h - every tensor type to f32 and back, in plain C.
 *
 * quant_decode is the meaning of a format: bit-exact, no fused multiply-add.  The kernels are held
 * against it.  quant_encode rounds to nearest with fitted scales; it serves the model maker and tests.
 */
#ifndef HOLDFAST_KERN_QUANT_H
#define HOLDFAST_KERN_QUANT_H

#include "base/dtype.h"

float f16_to_f32(uint16_t h);
/* To nearest, ties to even; too large becomes inf, nan stays nan. */
uint16_t f32_to_f16(float f);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f);

/* src: n / block_elems blocks of type t, any alignment; out [n].  n % block_elems == 0. */
void quant_decode(enum dtype t, const void *src, uint64_t n, float *out);
/* x [n], finite; out has room for n / block_elems blocks. */
void quant_encode(enum dtype t, const float *x, uint64_t n, void *out);

#endif
