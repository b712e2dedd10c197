#include "nn/rope.h"

#include <math.h>

/* Whether pair j turns with the position: its section is t, h or w. */
static bool pair_turns(uint32_t j, const uint32_t s[4])
{
    const uint64_t u = j % ((uint64_t)s[0] + s[1] + s[2] + s[3]);
    return u < 3 * (uint64_t)s[u % 3];
}

void rope_init(struct rope *r, uint32_t rot, double base, const uint32_t sections[4])
{
    assert(rot >= 2 && rot <= ROPE_MAX && rot % 2 == 0);
    *r = (struct rope){.rot = rot};
    for (uint32_t j = 0; j < rot / 2; j++)
        r->freq[j] = pair_turns(j, sections) ? pow(base, -2.0 * j / rot) : 0;
}

/* Own sine and cosine, so that the bits do not hang on the C library's choice of code.  x = k pi/2 + r;
 * the first part of pi/2 has 33 bits, so k times it is exact below 2^20.  Taylor to r^13 is good to
 * 2e-14 on |r| <= pi/4. */
static void sin_cos(double x, float *s, float *c)
{
    const double k = nearbyint(x * 0x1.45f306dc9c883p-1);
    const double r = (x - k * 0x1.921fb544p+0) - k * 0x1.0b4611a626331p-34, z = r * r;
    const double sine =
        r * (1 + z * (-1 / 6.0 +
                      z * (1 / 120.0 +
                           z * (-1 / 5040.0 + z * (1 / 362880.0 + z * (-1 / 39916800.0 +
                                                                       z * (1 / 6227020800.0)))))));
    const double cosine =
        1 + z * (-1 / 2.0 +
                 z * (1 / 24.0 +
                      z * (-1 / 720.0 +
                           z * (1 / 40320.0 + z * (-1 / 3628800.0 +
                                                   z * (1 / 479001600.0 - z / 87178291200.0))))));
    switch ((uint64_t)k % 4) {
    case 0:
        *s = (float)sine, *c = (float)cosine;
        break;
    case 1:
        *s = (float)cosine, *c = (float)-sine;
        break;
    case 2:
        *s = (float)-sine, *c = (float)-cosine;
        break;
    default:
        *s = (float)-cosine, *c = (float)sine;
    }
}

void rope_angles(const struct rope *r, uint32_t pos, float *cs, float *sn)
{
    for (uint32_t j = 0; j < r->rot / 2; j++)
        sin_cos(pos * r->freq[j], &sn[j], &cs[j]);
}
