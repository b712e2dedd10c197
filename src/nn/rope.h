/* rope.h - rotary embedding: the angles of a position.  The turning itself is in attn.
 *
 *   theta_j = p_j base^(-2 j / rot)      j = 0 .. rot / 2 - 1
 *
 * p_j is the position for pairs that belong to the time, height or width section (all three carry the
 * position in text) and 0 for the rest.  Angles are formed and reduced in f64: at position 200,000 an
 * f32 angle would be off by 0.004.
 */
#ifndef HOLDFAST_NN_ROPE_H
#define HOLDFAST_NN_ROPE_H

#include "base/err.h"

enum { ROPE_MAX = 512 };

struct rope {
    uint32_t rot;
    double freq[ROPE_MAX / 2]; /* 0: the pair does not turn */
};

/* rot even, 2..ROPE_MAX; sections: pairs per stream t, h, w, e, interleaved; their sum is not 0. */
void rope_init(struct rope *r, uint32_t rot, double base, const uint32_t sections[4]);
/* cs, sn [rot / 2]: cosine and sine of each angle at pos < 2^20. */
void rope_angles(const struct rope *r, uint32_t pos, float *cs, float *sn);

#endif
