/* act.h - activations as the integer kernels want them: int8 with a scale, per chunk of 256 columns.
 *
 * A row of activations is an array of chunks; columns beyond the row are zero.  The kernels multiply
 * unsigned weights u with signed q; what the weights are short of (u - 8, u - 32, u - 128) is made up
 * for exactly, in integers, by starting a sum at n8, n32 or n128.
 *
 *     d = amax / 127,  q = nearest even of x * (127 / amax)
 *
 * A block whose amax is below ACT_TINY is zero; one with an inf or nan has d = nan.
 */
#ifndef HOLDFAST_KERN_ACT_H
#define HOLDFAST_KERN_ACT_H

#include "base/base.h"

#define ACT_TINY 1e-30f

/* One scale per 32 columns: for weights with a float scale per 32. */
struct act32 {
    int8_t q[256];
    float d[8];
    float s[8];      /* d * sum of q, for weights with a min */
    int32_t n8[8];   /* -8 * sum of q */
    int32_t n128[8]; /* -128 * sum of q */
};

/* One scale per 256 columns: for weights with integer scales inside a block of 256. */
struct act256 {
    int8_t q[256];
    float d;
    int32_t pad[3];
    int16_t sum32[8]; /* sums of q, for weights with a min */
    int16_t sum16[16];
    int32_t n128[8]; /* per 32: -128 * sum */
    int32_t n32[16]; /* per 16: -32 * sum */
};

static_assert(sizeof(struct act32) == 384 && sizeof(struct act256) == 416, "packed");

#endif
