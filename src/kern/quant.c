#include "kern/quant.h"

#include <math.h>
#include <string.h>

#include "kern/format.h"

const int8_t format_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
const int8_t format_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* ---- half floats ---- */

static float f32_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t rest = h & 0x7fff;
    if (rest >= 0x7c00) /* inf, nan */
        return f32_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) { /* subnormal: a multiple of 2^-24 */
        const float f = (float)rest * 0x1p-24f;
        return sign ? -f : f;
    }
    return f32_of_bits(sign | ((rest << 13) + ((127 - 15) << 23)));
}

uint16_t f32_to_f16(float f)
{
    const uint32_t u = bits_of_f32(f);
    const uint32_t sign = u >> 16 & 0x8000;
    const uint32_t rest = u & 0x7fffffff;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) { /* subnormal: let the f32 adder round at 2^-24 */
        const float aligned = f32_of_bits(rest) + 0.5f;
        return (uint16_t)(sign | (bits_of_f32(aligned) - 0x3f000000));
    }
    const uint32_t even = rest >> 13 & 1;
    return (uint16_t)(sign | (rest - ((127 - 15) << 23) + 0xfff + even) >> 13);
}

float bf16_to_f32(uint16_t h)
{
    return f32_of_bits((uint32_t)h << 16);
}

uint16_t f32_to_bf16(float f)
{
    const uint32_t u = bits_of_f32(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- decode ---- */

/* Scale and min of group g (0..7) in the 12 packed bytes of Q4_K and Q5_K. */
static void scale_min(const uint8_t sc[12], int g, uint8_t *s, uint8_t *m)
{
    if (g < 4) {
        *s = sc[g] & 63;
        *m = sc[g + 4] & 63;
    } else {
        *s = (uint8_t)((sc[g + 4] & 15) | (sc[g - 4] >> 6) << 4);
        *m = (uint8_t)((sc[g + 4] >> 4) | (sc[g] >> 6) << 4);
    }
}

static int nibble(const uint8_t qs[16], int j)
{
    return j < 16 ? qs[j] & 15 : qs[j - 16] >> 4;
}

static int fifth_bit(const uint8_t qh[4], int j)
{
    return (qh[j / 8] >> j % 8 & 1) << 4;
}

static void dec_f32(const void *src, float *y)
{
    memcpy(y, src, sizeof *y);
}

static void dec_f16(const void *src, float *y)
{
    uint16_t h;
    memcpy(&h, src, sizeof h);
    *y = f16_to_f32(h);
}

static void dec_bf16(const void *src, float *y)
{
    uint16_t h;
    memcpy(&h, src, sizeof h);
    *y = bf16_to_f32(h);
}

static void dec_q4_0(const void *src, float *y)
{
    struct blk_q4_0 b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 32; j++)
        y[j] = (float)(nibble(b.qs, j) - 8) * d;
}

static void dec_q4_1(const void *src, float *y)
{
    struct blk_q4_1 b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    for (int j = 0; j < 32; j++)
        y[j] = (float)nibble(b.qs, j) * d + m;
}

static void dec_q5_0(const void *src, float *y)
{
    struct blk_q5_0 b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 32; j++)
        y[j] = (float)((nibble(b.qs, j) | fifth_bit(b.qh, j)) - 16) * d;
}

static void dec_q5_1(const void *src, float *y)
{
    struct blk_q5_1 b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
    for (int j = 0; j < 32; j++)
        y[j] = (float)(nibble(b.qs, j) | fifth_bit(b.qh, j)) * d + m;
}

static void dec_q8_0(const void *src, float *y)
{
    struct blk_q8_0 b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)b.qs[j];
}

static void dec_q2_k(const void *src, float *y)
{
    struct blk_q2_k b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int i = 0; i < 256; i++) {
        const int n = i / 128, k = i % 128 / 32, l = i % 32, g = i / 16;
        const float lo = (float)(b.qs[32 * n + l] >> 2 * k & 3);
        y[i] = d * (float)(b.sc[g] & 15) * lo - dmin * (float)(b.sc[g] >> 4);
    }
}

/* Scale of group g (0..15) of a Q3_K block. */
static int q3_scale(const uint8_t sc[12], int g)
{
    const int low = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
    const int high = sc[8 + g % 4] >> 2 * (g / 4) & 3;
    return (low | high << 4) - 32;
}

static void dec_q3_k(const void *src, float *y)
{
    struct blk_q3_k b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 256; i++) {
        const int n = i / 128, k = i % 128 / 32, l = i % 32;
        const int lo = b.qs[32 * n + l] >> 2 * k & 3;
        const int hb = b.hm[l] >> (4 * n + k) & 1;
        y[i] = d * (float)q3_scale(b.sc, i / 16) * (float)(lo - (hb ? 0 : 4));
    }
}

static void dec_q4_k(const void *src, float *y)
{
    struct blk_q4_k b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int g = 0; g < 8; g++) {
        uint8_t s, m;
        scale_min(b.sc, g, &s, &m);
        const float ds = d * (float)s, dm = dmin * (float)m;
        for (int l = 0; l < 32; l++)
            y[32 * g + l] = ds * (float)(b.qs[g / 2 * 32 + l] >> 4 * (g % 2) & 15) - dm;
    }
}

static void dec_q5_k(const void *src, float *y)
{
    struct blk_q5_k b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int g = 0; g < 8; g++) {
        uint8_t s, m;
        scale_min(b.sc, g, &s, &m);
        const float ds = d * (float)s, dm = dmin * (float)m;
        for (int l = 0; l < 32; l++) {
            const int q = (b.qs[g / 2 * 32 + l] >> 4 * (g % 2) & 15) + 16 * (b.qh[l] >> g & 1);
            y[32 * g + l] = ds * (float)q - dm;
        }
    }
}

static void dec_q6_k(const void *src, float *y)
{
    struct blk_q6_k b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 256; i++) {
        const int n = i / 128, k = i % 128 / 32, l = i % 32;
        const int lo = b.ql[64 * n + 32 * (k % 2) + l] >> 4 * (k / 2) & 15;
        const int hi = b.qh[32 * n + l] >> 2 * k & 3;
        y[i] = d * (float)b.sc[i / 16] * (float)((lo | hi << 4) - 32);
    }
}

static void dec_iq4_nl(const void *src, float *y)
{
    struct blk_iq4_nl b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)format_iq4[nibble(b.qs, j)];
}

static void dec_iq4_xs(const void *src, float *y)
{
    struct blk_iq4_xs b;
    memcpy(&b, src, sizeof b);
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; g++) {
        const int s = ((b.sl[g / 2] >> 4 * (g % 2) & 15) | (b.sh >> 2 * g & 3) << 4) - 32;
        const float ds = d * (float)s;
        for (int j = 0; j < 32; j++)
            y[32 * g + j] = ds * (float)format_iq4[nibble(b.qs + 16 * g, j)];
    }
}

static void dec_mxfp4(const void *src, float *y)
{
    struct blk_mxfp4 b;
    memcpy(&b, src, sizeof b);
    const float s = ldexpf(1.0f, b.e - 128);
    for (int j = 0; j < 32; j++)
        y[j] = (float)format_fp4[nibble(b.qs, j)] * s;
}

/* ---- encode ---- */

static int clamp_int(int x, int lo, int hi)
{
    return MIN(MAX(x, lo), hi);
}

/* x * id to the nearest integer in [lo, hi]; x * id may be anything but nan. */
static int round_to(float v, int lo, int hi)
{
    return (int)lrintf(fminf(fmaxf(v, (float)lo), (float)hi));
}

/* 1 / d, or 0 where that is no use. */
static float inverse(float d)
{
    const float id = 1.0f / d;
    return d != 0 && isfinite(id) ? id : 0;
}

static float largest_abs(const float *x, int n)
{
    float best = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(best))
            best = x[i];
    return best; /* with its sign */
}

/* A scale for x [n] on the integers lo..hi with -lo > hi: the largest element is put on lo, then
 * the scale is refitted by least squares to what the others were rounded to. */
static float fit_scale(const float *x, int n, int lo, int hi)
{
    const float d = largest_abs(x, n) / (float)lo;
    const float id = inverse(d);
    double xq = 0, qq = 0;
    for (int i = 0; i < n; i++) {
        const int q = round_to(x[i] * id, lo, hi);
        xq += (double)x[i] * q;
        qq += (double)q * q;
    }
    return qq > 0 ? (float)(xq / qq) : 0;
}

/* Scale and min (both >= 0) so that x ~ scale * q - min, q in 0..top. */
static void fit_scale_min(const float *x, int n, int top, float *scale, float *min)
{
    float lo = 0, hi = x[0];
    for (int i = 0; i < n; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    float d = fmaxf(hi - lo, 0) / (float)top, m = -lo;
    for (int pass = 0; pass < 3; pass++) {
        const float id = inverse(d);
        double sq = 0, sqq = 0, sx = 0, sxq = 0;
        for (int i = 0; i < n; i++) {
            const int q = round_to((x[i] + m) * id, 0, top);
            sq += q;
            sqq += (double)q * q;
            sx += x[i];
            sxq += (double)x[i] * q;
        }
        const double det = n * sqq - sq * sq;
        if (det <= 0)
            break;
        double nd = (n * sxq - sx * sq) / det, nm = -(sqq * sx - sq * sxq) / det;
        if (nm < 0) { /* a min cannot be negative: refit the scale alone */
            nm = 0;
            nd = sxq / sqq;
        }
        if (nd <= 0)
            break;
        d = (float)nd;
        m = (float)nm;
    }
    *scale = d;
    *min = m;
}

static int nearest_iq4(float v)
{
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(v - (float)format_iq4[i]) < fabsf(v - (float)format_iq4[best]))
            best = i;
    return best;
}

/* As fit_scale, on the values of format_iq4. */
static float fit_iq4(const float *x, int n)
{
    const float id = inverse(largest_abs(x, n) / -127.0f);
    double xq = 0, qq = 0;
    for (int i = 0; i < n; i++) {
        const int q = format_iq4[nearest_iq4(x[i] * id)];
        xq += (double)x[i] * q;
        qq += (double)q * q;
    }
    return qq > 0 ? (float)(xq / qq) : 0;
}

static void put_nibbles(uint8_t qs[16], const uint8_t q[32])
{
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)((q[j] & 15) | q[j + 16] << 4);
}

static void put_fifth_bits(uint8_t qh[4], const uint8_t q[32])
{
    memset(qh, 0, 4);
    for (int j = 0; j < 32; j++)
        qh[j / 8] |= (uint8_t)((q[j] >> 4 & 1) << j % 8);
}

static void put_scale_min(uint8_t sc[12], int g, int s, int m)
{
    if (g < 4) {
        sc[g] |= (uint8_t)s;
        sc[g + 4] |= (uint8_t)m;
    } else {
        sc[g + 4] |= (uint8_t)((s & 15) | (m & 15) << 4);
        sc[g - 4] |= (uint8_t)(s >> 4 << 6);
        sc[g] |= (uint8_t)(m >> 4 << 6);
    }
}

static void enc_f32(const float *x, void *out)
{
    memcpy(out, x, sizeof *x);
}

static void enc_f16(const float *x, void *out)
{
    const uint16_t h = f32_to_f16(*x);
    memcpy(out, &h, sizeof h);
}

static void enc_bf16(const float *x, void *out)
{
    const uint16_t h = f32_to_bf16(*x);
    memcpy(out, &h, sizeof h);
}

static void enc_q4_0(const float *x, void *out)
{
    struct blk_q4_0 b;
    b.d = f32_to_f16(fit_scale(x, 32, -8, 7));
    const float id = inverse(f16_to_f32(b.d));
    uint8_t q[32];
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)(round_to(x[j] * id, -8, 7) + 8);
    put_nibbles(b.qs, q);
    memcpy(out, &b, sizeof b);
}

/* d and m of x ~ d q + m, q in 0..top, by the extremes; the q that belong to their rounded values. */
static void quant_by_range(const float x[32], int top, uint16_t *d, uint16_t *m, uint8_t q[32])
{
    float lo = x[0], hi = x[0];
    for (int j = 1; j < 32; j++) {
        lo = fminf(lo, x[j]);
        hi = fmaxf(hi, x[j]);
    }
    *m = f32_to_f16(lo);
    *d = f32_to_f16((hi - lo) / (float)top);
    const float id = inverse(f16_to_f32(*d)), from = f16_to_f32(*m);
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)round_to((x[j] - from) * id, 0, top);
}

static void enc_q4_1(const float *x, void *out)
{
    struct blk_q4_1 b;
    uint8_t q[32];
    quant_by_range(x, 15, &b.d, &b.m, q);
    put_nibbles(b.qs, q);
    memcpy(out, &b, sizeof b);
}

static void enc_q5_0(const float *x, void *out)
{
    struct blk_q5_0 b;
    b.d = f32_to_f16(fit_scale(x, 32, -16, 15));
    const float id = inverse(f16_to_f32(b.d));
    uint8_t q[32];
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)(round_to(x[j] * id, -16, 15) + 16);
    put_nibbles(b.qs, q);
    put_fifth_bits(b.qh, q);
    memcpy(out, &b, sizeof b);
}

static void enc_q5_1(const float *x, void *out)
{
    struct blk_q5_1 b;
    uint8_t q[32];
    quant_by_range(x, 31, &b.d, &b.m, q);
    put_nibbles(b.qs, q);
    put_fifth_bits(b.qh, q);
    memcpy(out, &b, sizeof b);
}

static void enc_q8_0(const float *x, void *out)
{
    struct blk_q8_0 b;
    b.d = f32_to_f16(fabsf(largest_abs(x, 32)) / 127.0f);
    const float id = inverse(f16_to_f32(b.d));
    for (int j = 0; j < 32; j++)
        b.qs[j] = (int8_t)round_to(x[j] * id, -127, 127);
    memcpy(out, &b, sizeof b);
}

static void enc_q2_k(const float *x, void *out)
{
    struct blk_q2_k b = {0};
    float s[16], m[16], top_s = 0, top_m = 0;
    for (int g = 0; g < 16; g++) {
        fit_scale_min(x + 16 * g, 16, 3, &s[g], &m[g]);
        top_s = fmaxf(top_s, s[g]);
        top_m = fmaxf(top_m, m[g]);
    }
    b.d = f32_to_f16(top_s / 15.0f);
    b.dmin = f32_to_f16(top_m / 15.0f);
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    for (int g = 0; g < 16; g++) {
        const int sq = round_to(s[g] * inverse(d), 0, 15);
        const int mq = round_to(m[g] * inverse(dmin), 0, 15);
        b.sc[g] = (uint8_t)(sq | mq << 4);
        const float id = inverse(d * (float)sq), min = dmin * (float)mq;
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            const int n = i / 128, k = i % 128 / 32, l = i % 32;
            b.qs[32 * n + l] |= (uint8_t)(round_to((x[i] + min) * id, 0, 3) << 2 * k);
        }
    }
    memcpy(out, &b, sizeof b);
}

/* Signed scales s [n] on the integers lo..hi: their common factor as f16, and the integers. */
static uint16_t quant_scales(const float *s, int n, int lo, int hi, int *sq)
{
    const uint16_t h = f32_to_f16(largest_abs(s, n) / (float)lo);
    const float id = inverse(f16_to_f32(h));
    for (int g = 0; g < n; g++)
        sq[g] = round_to(s[g] * id, lo, hi);
    return h;
}

static void enc_q3_k(const float *x, void *out)
{
    struct blk_q3_k b = {0};
    float s[16];
    int sq[16];
    for (int g = 0; g < 16; g++)
        s[g] = fit_scale(x + 16 * g, 16, -4, 3);
    b.d = quant_scales(s, 16, -32, 31, sq);
    for (int g = 0; g < 16; g++) {
        const int u = sq[g] + 32;
        b.sc[g % 8] |= (uint8_t)((u & 15) << 4 * (g / 8));
        b.sc[8 + g % 4] |= (uint8_t)(u >> 4 << 2 * (g / 4));
        const float id = inverse(f16_to_f32(b.d) * (float)sq[g]);
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            const int n = i / 128, k = i % 128 / 32, l = i % 32;
            const int q = round_to(x[i] * id, -4, 3) + 4;
            b.qs[32 * n + l] |= (uint8_t)((q & 3) << 2 * k);
            b.hm[l] |= (uint8_t)(q >> 2 << (4 * n + k));
        }
    }
    memcpy(out, &b, sizeof b);
}

/* What Q4_K and Q5_K share: d, dmin, the packed scales, and q [256] in 0..top. */
static void quant_k32(const float *x, int top, uint16_t *dh, uint16_t *dminh, uint8_t sc[12],
                      uint8_t q[256])
{
    float s[8], m[8], top_s = 0, top_m = 0;
    for (int g = 0; g < 8; g++) {
        fit_scale_min(x + 32 * g, 32, top, &s[g], &m[g]);
        top_s = fmaxf(top_s, s[g]);
        top_m = fmaxf(top_m, m[g]);
    }
    *dh = f32_to_f16(top_s / 63.0f);
    *dminh = f32_to_f16(top_m / 63.0f);
    const float d = f16_to_f32(*dh), dmin = f16_to_f32(*dminh);
    memset(sc, 0, 12);
    for (int g = 0; g < 8; g++) {
        const int sq = round_to(s[g] * inverse(d), 0, 63);
        const int mq = round_to(m[g] * inverse(dmin), 0, 63);
        put_scale_min(sc, g, sq, mq);
        const float id = inverse(d * (float)sq), min = dmin * (float)mq;
        for (int i = 32 * g; i < 32 * g + 32; i++)
            q[i] = (uint8_t)round_to((x[i] + min) * id, 0, top);
    }
}

static void enc_q4_k(const float *x, void *out)
{
    struct blk_q4_k b;
    uint8_t q[256];
    quant_k32(x, 15, &b.d, &b.dmin, b.sc, q);
    for (int i = 0; i < 128; i++) {
        const int c = i / 32, l = i % 32;
        b.qs[i] = (uint8_t)(q[64 * c + l] | q[64 * c + 32 + l] << 4);
    }
    memcpy(out, &b, sizeof b);
}

static void enc_q5_k(const float *x, void *out)
{
    struct blk_q5_k b;
    uint8_t q[256];
    quant_k32(x, 31, &b.d, &b.dmin, b.sc, q);
    memset(b.qh, 0, sizeof b.qh);
    for (int i = 0; i < 256; i++)
        b.qh[i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    for (int i = 0; i < 128; i++) {
        const int c = i / 32, l = i % 32;
        b.qs[i] = (uint8_t)((q[64 * c + l] & 15) | (q[64 * c + 32 + l] & 15) << 4);
    }
    memcpy(out, &b, sizeof b);
}

static void enc_q6_k(const float *x, void *out)
{
    struct blk_q6_k b = {0};
    float s[16];
    int sq[16];
    for (int g = 0; g < 16; g++)
        s[g] = fit_scale(x + 16 * g, 16, -32, 31);
    b.d = quant_scales(s, 16, -128, 127, sq);
    for (int g = 0; g < 16; g++) {
        b.sc[g] = (int8_t)sq[g];
        const float id = inverse(f16_to_f32(b.d) * (float)sq[g]);
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            const int n = i / 128, k = i % 128 / 32, l = i % 32;
            const int q = round_to(x[i] * id, -32, 31) + 32;
            b.ql[64 * n + 32 * (k % 2) + l] |= (uint8_t)((q & 15) << 4 * (k / 2));
            b.qh[32 * n + l] |= (uint8_t)(q >> 4 << 2 * k);
        }
    }
    memcpy(out, &b, sizeof b);
}

static void enc_iq4_nl(const float *x, void *out)
{
    struct blk_iq4_nl b;
    b.d = f32_to_f16(fit_iq4(x, 32));
    const float id = inverse(f16_to_f32(b.d));
    uint8_t q[32];
    for (int j = 0; j < 32; j++)
        q[j] = (uint8_t)nearest_iq4(x[j] * id);
    put_nibbles(b.qs, q);
    memcpy(out, &b, sizeof b);
}

static void enc_iq4_xs(const float *x, void *out)
{
    struct blk_iq4_xs b = {0};
    float s[8];
    int sq[8];
    for (int g = 0; g < 8; g++)
        s[g] = fit_iq4(x + 32 * g, 32);
    b.d = quant_scales(s, 8, -32, 31, sq);
    for (int g = 0; g < 8; g++) {
        const int u = sq[g] + 32;
        b.sl[g / 2] |= (uint8_t)((u & 15) << 4 * (g % 2));
        b.sh = (uint16_t)(b.sh | u >> 4 << 2 * g);
        const float id = inverse(f16_to_f32(b.d) * (float)sq[g]);
        uint8_t q[32];
        for (int j = 0; j < 32; j++)
            q[j] = (uint8_t)nearest_iq4(x[32 * g + j] * id);
        put_nibbles(b.qs + 16 * g, q);
    }
    memcpy(out, &b, sizeof b);
}

static int nearest_fp4(float v)
{
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(v - (float)format_fp4[i]) < fabsf(v - (float)format_fp4[best]))
            best = i;
    return best;
}

/* The power of two that loses least: the one that puts the largest element just within the top
 * value, or half of it (which clips the largest and rounds the rest finer). */
static void enc_mxfp4(const float *x, void *out)
{
    struct blk_mxfp4 b, best = {0};
    int e;
    (void)frexpf(fabsf(largest_abs(x, 32)) / 12.0f, &e); /* largest <= 12 * 2^e */
    double best_err = HUGE_VAL;
    for (int k = e - 1; k <= e; k++) {
        b.e = (uint8_t)clamp_int(k + 128, 0, 254);
        const float s = ldexpf(1.0f, b.e - 128);
        uint8_t q[32];
        double sum = 0;
        for (int j = 0; j < 32; j++) {
            q[j] = (uint8_t)nearest_fp4(x[j] / s);
            const double miss = (double)x[j] - (double)s * format_fp4[q[j]];
            sum += miss * miss;
        }
        put_nibbles(b.qs, q);
        if (sum < best_err) {
            best_err = sum;
            best = b;
        }
    }
    memcpy(out, &best, sizeof best);
}

/* ---- the table ---- */

static const struct {
    enum dtype type;
    void (*decode)(const void *block, float *y);
    void (*encode)(const float *x, void *block);
} codecs[] = {
    {DT_F32, dec_f32, enc_f32},          {DT_F16, dec_f16, enc_f16},
    {DT_BF16, dec_bf16, enc_bf16},       {DT_Q4_0, dec_q4_0, enc_q4_0},
    {DT_Q4_1, dec_q4_1, enc_q4_1},       {DT_Q5_0, dec_q5_0, enc_q5_0},
    {DT_Q5_1, dec_q5_1, enc_q5_1},       {DT_Q8_0, dec_q8_0, enc_q8_0},
    {DT_Q2_K, dec_q2_k, enc_q2_k},       {DT_Q3_K, dec_q3_k, enc_q3_k},
    {DT_Q4_K, dec_q4_k, enc_q4_k},       {DT_Q5_K, dec_q5_k, enc_q5_k},
    {DT_Q6_K, dec_q6_k, enc_q6_k},       {DT_IQ4_NL, dec_iq4_nl, enc_iq4_nl},
    {DT_IQ4_XS, dec_iq4_xs, enc_iq4_xs}, {DT_MXFP4, dec_mxfp4, enc_mxfp4},
};

static size_t codec_of(enum dtype t)
{
    size_t i = 0;
    while (i < COUNT_OF(codecs) && codecs[i].type != t)
        i++;
    CHECK(i < COUNT_OF(codecs));
    return i;
}

void quant_decode(enum dtype t, const void *src, uint64_t n, float *out)
{
    const struct dtype_info *info = dtype_info(t);
    const size_t c = codec_of(t);
    assert(n % info->block_elems == 0);
    const uint8_t *p = src;
    for (uint64_t i = 0; i < n; i += info->block_elems, p += info->block_bytes)
        codecs[c].decode(p, out + i);
}

void quant_encode(enum dtype t, const float *x, uint64_t n, void *out)
{
    const struct dtype_info *info = dtype_info(t);
    const size_t c = codec_of(t);
    assert(n % info->block_elems == 0);
    uint8_t *p = out;
    for (uint64_t i = 0; i < n; i += info->block_elems, p += info->block_bytes)
        codecs[c].encode(x + i, p);
}
