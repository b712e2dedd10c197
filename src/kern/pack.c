#include "kern/pack.h"

#include <math.h>
#include <string.h>

#include "kern/format.h"
#include "kern/quant.h"

enum pack pack_of(enum dtype t)
{
    switch (t) {
    case DT_F32:
        return PACK_F32;
    case DT_F16:
        return PACK_F16;
    case DT_BF16:
        return PACK_BF16;
    case DT_Q8_0:
    case DT_Q5_0: /* d (u5 - 16) = d ((u5 + 112) - 128) */
        return PACK_Q8;
    case DT_Q5_1:
        return PACK_Q8M;
    case DT_Q4_0:
        return PACK_Q4;
    case DT_Q4_1:
        return PACK_Q4M;
    case DT_IQ4_NL:
        return PACK_I4;
    case DT_MXFP4:
        return PACK_M4;
    case DT_Q4_K:
        return PACK_Q4K;
    case DT_Q5_K:
        return PACK_Q5K;
    case DT_Q6_K:
    case DT_Q3_K: /* the same formula, fewer bits */
        return PACK_Q6K;
    case DT_Q2_K:
        return PACK_Q2K;
    case DT_IQ4_XS:
        return PACK_I4X;
    }
    check_failed("a tensor type has a layout", __FILE__, __LINE__);
}

uint64_t pack_tile_bytes(enum pack p, uint64_t n_cols)
{
    const uint32_t tail = (uint32_t)(n_cols % CHUNK_COLS);
    uint64_t n = n_cols / CHUNK_COLS * pack_chunk(p, CHUNK_COLS).bytes;
    if (tail)
        n += pack_chunk(p, tail).bytes;
    return n;
}

/* ---- packing ---- */

static uint32_t word(const void *p, uint32_t i)
{
    uint32_t w;
    memcpy(&w, (const uint8_t *)p + 4 * i, 4);
    return w;
}

static void put_word(uint8_t *p, uint32_t w)
{
    memcpy(p, &w, 4);
}

static void put_half(uint8_t *p, uint32_t i, uint16_t h)
{
    memcpy(p + 2 * i, &h, 2);
}

#define NIB 0x0f0f0f0fU

/* One row of one group of 32: 16 bytes as the types of 32 elements store their nibbles, which is
 * the order of a packed group already. */
static void put_nibbles(uint8_t *group, uint32_t r, const uint8_t qs[16])
{
    for (uint32_t i = 0; i < 4; i++)
        memcpy(group + 64 * i + 4 * r, qs + 4 * i, 4);
}

static void pack_q8_0(const uint8_t *src, uint32_t r, uint32_t n_groups, uint8_t *out)
{
    uint8_t *q = out + pack_chunk(PACK_Q8, n_groups * GROUP_COLS).weights;
    for (uint32_t g = 0; g < n_groups; g++, src += sizeof(struct blk_q8_0), q += 8 * 64) {
        memcpy(out + 2 * (TILE_ROWS * g + r), src, 2);
        for (uint32_t i = 0; i < 8; i++)
            put_word(q + 64 * i + 4 * r, word(src + 2, i) ^ 0x80808080U);
    }
}

/* The fifth bits of elements 4 i .. 4 i + 3, as bit 4 of four bytes. */
static uint32_t fifth_bits(const uint8_t qh[4], uint32_t i)
{
    const uint32_t b = word(qh, 0) >> 4 * i & 15;
    return (b & 1) << 4 | (b & 2) << 11 | (b & 4) << 18 | (b & 8) << 25;
}

static uint32_t five_bits(const uint8_t qs[16], const uint8_t qh[4], uint32_t i)
{
    const uint32_t lo = i < 4 ? word(qs, i) & NIB : word(qs, i - 4) >> 4 & NIB;
    return lo | fifth_bits(qh, i);
}

static void pack_q5_0(const uint8_t *src, uint32_t r, uint32_t n_groups, uint8_t *out)
{
    uint8_t *q = out + pack_chunk(PACK_Q8, n_groups * GROUP_COLS).weights;
    for (uint32_t g = 0; g < n_groups; g++, src += sizeof(struct blk_q5_0), q += 8 * 64) {
        struct blk_q5_0 b;
        memcpy(&b, src, sizeof b);
        put_half(out, TILE_ROWS * g + r, b.d);
        for (uint32_t i = 0; i < 8; i++)
            put_word(q + 64 * i + 4 * r, five_bits(b.qs, b.qh, i) + 0x70707070U);
    }
}

static void pack_q5_1(const uint8_t *src, uint32_t r, uint32_t n_groups, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_Q8M, n_groups * GROUP_COLS);
    uint8_t *q = out + c.weights;
    for (uint32_t g = 0; g < n_groups; g++, src += sizeof(struct blk_q5_1), q += 8 * 64) {
        struct blk_q5_1 b;
        memcpy(&b, src, sizeof b);
        put_half(out, TILE_ROWS * g + r, b.d);
        put_half(out + c.mins, TILE_ROWS * g + r, b.m);
        for (uint32_t i = 0; i < 8; i++)
            put_word(q + 64 * i + 4 * r, five_bits(b.qs, b.qh, i));
    }
}

/* Q4_0 and IQ4_NL: f16 scale, then nibbles. */
static void pack_nibbles(const uint8_t *src, uint32_t r, uint32_t n_groups, uint8_t *out)
{
    uint8_t *q = out + pack_chunk(PACK_Q4, n_groups * GROUP_COLS).weights;
    for (uint32_t g = 0; g < n_groups; g++, src += sizeof(struct blk_q4_0), q += NIBBLES) {
        memcpy(out + 2 * (TILE_ROWS * g + r), src, 2);
        put_nibbles(q, r, src + 2);
    }
}

static void pack_q4_1(const uint8_t *src, uint32_t r, uint32_t n_groups, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_Q4M, n_groups * GROUP_COLS);
    uint8_t *q = out + c.weights;
    for (uint32_t g = 0; g < n_groups; g++, src += sizeof(struct blk_q4_1), q += NIBBLES) {
        memcpy(out + 2 * (TILE_ROWS * g + r), src, 2);
        memcpy(out + c.mins + 2 * (TILE_ROWS * g + r), src + 2, 2);
        put_nibbles(q, r, src + 4);
    }
}

static void pack_mxfp4(const uint8_t *src, uint32_t r, uint32_t n_groups, uint8_t *out)
{
    uint8_t *q = out + pack_chunk(PACK_M4, n_groups * GROUP_COLS).weights;
    for (uint32_t g = 0; g < n_groups; g++, src += sizeof(struct blk_mxfp4), q += NIBBLES) {
        out[TILE_ROWS * g + r] = src[0];
        put_nibbles(q, r, src + 1);
    }
}

/* Scales and mins of a Q4_K or Q5_K block. */
static void put_k_scales(const struct pack_chunk *c, uint32_t r, const uint8_t sc[12], uint8_t *out)
{
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t s, m;
        if (g < 4) {
            s = sc[g] & 63;
            m = sc[g + 4] & 63;
        } else {
            s = (sc[g + 4] & 15) | (uint32_t)(sc[g - 4] >> 6) << 4;
            m = sc[g + 4] >> 4 | (uint32_t)(sc[g] >> 6) << 4;
        }
        out[c->scales + TILE_ROWS * g + r] = (uint8_t)s;
        out[c->mins + 2 * (TILE_ROWS * (g / 2) + r) + g % 2] = (uint8_t)m;
    }
}

/* The nibbles of groups 2 c and 2 c + 1 share 32 bytes in Q4_K and Q5_K. */
static void put_k_nibbles(const struct pack_chunk *c, uint32_t r, const uint8_t qs[128],
                          uint8_t *out)
{
    for (uint32_t pair = 0; pair < 4; pair++, qs += 32)
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t a = word(qs, i), b = word(qs, i + 4);
            uint8_t *even = out + c->weights + 2 * pair * c->group_bytes + 64 * i + 4 * r;
            put_word(even, (a & NIB) | (b & NIB) << 4);
            put_word(even + c->group_bytes, (a >> 4 & NIB) | (b & ~NIB));
        }
}

static void pack_q4_k(const uint8_t *src, uint32_t r, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_Q4K, CHUNK_COLS);
    struct blk_q4_k b;
    memcpy(&b, src, sizeof b);
    put_half(out, r, b.d);
    put_half(out, TILE_ROWS + r, b.dmin);
    put_k_scales(&c, r, b.sc, out);
    put_k_nibbles(&c, r, b.qs, out);
}

static void pack_q5_k(const uint8_t *src, uint32_t r, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_Q5K, CHUNK_COLS);
    struct blk_q5_k b;
    memcpy(&b, src, sizeof b);
    put_half(out, r, b.d);
    put_half(out, TILE_ROWS + r, b.dmin);
    put_k_scales(&c, r, b.sc, out);
    put_k_nibbles(&c, r, b.qs, out);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t plane = 0;
        for (uint32_t i = 0; i < 8; i++)
            plane |= (word(b.qh, i) >> g & 0x01010101U) << i;
        put_word(out + c.weights + g * c.group_bytes + NIBBLES + 4 * r, plane);
    }
}

static void pack_q6_k(const uint8_t *src, uint32_t r, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_Q6K, CHUNK_COLS);
    struct blk_q6_k b;
    memcpy(&b, src, sizeof b);
    put_half(out, r, b.d);
    for (uint32_t s = 0; s < 16; s++)
        out[c.scales + TILE_ROWS * s + r] = (uint8_t)b.sc[s];
    for (uint32_t g = 0; g < 8; g++) {
        const uint32_t n = g / 4, k = g % 4;
        const uint8_t *ql = b.ql + 64 * n + 32 * (k % 2), *qh = b.qh + 32 * n;
        uint8_t *q = out + c.weights + g * c.group_bytes + 4 * r;
        uint32_t plane[2] = {0, 0};
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t a = word(ql, i) >> 4 * (k / 2) & NIB;
            const uint32_t z = word(ql, i + 4) >> 4 * (k / 2) & NIB;
            put_word(q + 64 * i, a | z << 4);
            plane[0] |= (word(qh, i) >> 2 * k & 0x03030303U) << 2 * i;
            plane[1] |= (word(qh, i + 4) >> 2 * k & 0x03030303U) << 2 * i;
        }
        put_word(q + NIBBLES, plane[0]);
        put_word(q + NIBBLES + 64, plane[1]);
    }
}

/* To Q6_K's layout: u = lo - 4 + 4 hb + 32 is 28..35. */
static void pack_q3_k(const uint8_t *src, uint32_t r, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_Q6K, CHUNK_COLS);
    struct blk_q3_k b;
    memcpy(&b, src, sizeof b);
    put_half(out, r, b.d);
    for (uint32_t s = 0; s < 16; s++) {
        const uint32_t low = s < 8 ? b.sc[s] & 15U : b.sc[s - 8] / 16U;
        const uint32_t high = (uint32_t)b.sc[8 + s % 4] >> 2 * (s / 4) & 3;
        out[c.scales + TILE_ROWS * s + r] = (uint8_t)((low | high << 4) - 32);
    }
    for (uint32_t g = 0; g < 8; g++) {
        uint8_t *q = out + c.weights + g * c.group_bytes + 4 * r;
        uint32_t u[8], plane[2] = {0, 0};
        for (uint32_t i = 0; i < 8; i++)
            u[i] = (word(b.qs + 32 * (g / 4), i) >> 2 * (g % 4) & 0x03030303U) +
                   ((word(b.hm, i) >> g & 0x01010101U) << 2) + 0x1c1c1c1cU;
        for (uint32_t i = 0; i < 4; i++) {
            put_word(q + 64 * i, (u[i] & NIB) | (u[i + 4] & NIB) << 4);
            plane[0] |= (u[i] >> 4 & 0x03030303U) << 2 * i;
            plane[1] |= (u[i + 4] >> 4 & 0x03030303U) << 2 * i;
        }
        put_word(q + NIBBLES, plane[0]);
        put_word(q + NIBBLES + 64, plane[1]);
    }
}

static void pack_q2_k(const uint8_t *src, uint32_t r, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_Q2K, CHUNK_COLS);
    struct blk_q2_k b;
    memcpy(&b, src, sizeof b);
    put_half(out, r, b.d);
    put_half(out, TILE_ROWS + r, b.dmin);
    for (uint32_t s = 0; s < 16; s++) {
        out[c.scales + TILE_ROWS * s + r] = b.sc[s] & 15;
        out[c.mins + 2 * (TILE_ROWS * (s / 2) + r) + s % 2] = b.sc[s] >> 4;
    }
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t plane[2] = {0, 0};
        for (uint32_t i = 0; i < 8; i++)
            plane[i / 4] |= (word(b.qs + 32 * (g / 4), i) >> 2 * (g % 4) & 0x03030303U)
                            << 2 * (i % 4);
        uint8_t *q = out + c.weights + g * c.group_bytes + 4 * r;
        put_word(q, plane[0]);
        put_word(q + 64, plane[1]);
    }
}

static void pack_iq4_xs(const uint8_t *src, uint32_t r, uint8_t *out)
{
    const struct pack_chunk c = pack_chunk(PACK_I4X, CHUNK_COLS);
    struct blk_iq4_xs b;
    memcpy(&b, src, sizeof b);
    put_half(out, r, b.d);
    for (uint32_t g = 0; g < 8; g++) {
        const uint32_t s =
            ((uint32_t)b.sl[g / 2] >> 4 * (g % 2) & 15) | ((uint32_t)b.sh >> 2 * g & 3) << 4;
        out[c.scales + TILE_ROWS * g + r] = (uint8_t)(s - 32);
        put_nibbles(out + c.weights + g * c.group_bytes, r, b.qs + 16 * g);
    }
}

static void pack_f32(const uint8_t *src, uint32_t r, uint32_t n, uint8_t *out)
{
    for (uint32_t k = 0; k < n; k++)
        memcpy(out + 4 * (TILE_ROWS * k + r), src + 4 * k, 4);
}

static void pack_half(const uint8_t *src, uint32_t r, uint32_t n, uint8_t *out)
{
    for (uint32_t k = 0; k < n; k++)
        memcpy(out + 2 * (TILE_ROWS * k + r), src + 2 * k, 2);
}

/* One row of one chunk; n columns. */
static void pack_one(enum dtype t, const uint8_t *src, uint32_t r, uint32_t n, uint8_t *out)
{
    const uint32_t n_groups = n / GROUP_COLS;
    switch (t) {
    case DT_F32:
        pack_f32(src, r, n, out);
        break;
    case DT_F16:
    case DT_BF16:
        pack_half(src, r, n, out);
        break;
    case DT_Q8_0:
        pack_q8_0(src, r, n_groups, out);
        break;
    case DT_Q5_0:
        pack_q5_0(src, r, n_groups, out);
        break;
    case DT_Q5_1:
        pack_q5_1(src, r, n_groups, out);
        break;
    case DT_Q4_0:
    case DT_IQ4_NL:
        pack_nibbles(src, r, n_groups, out);
        break;
    case DT_Q4_1:
        pack_q4_1(src, r, n_groups, out);
        break;
    case DT_MXFP4:
        pack_mxfp4(src, r, n_groups, out);
        break;
    case DT_Q4_K:
        pack_q4_k(src, r, out);
        break;
    case DT_Q5_K:
        pack_q5_k(src, r, out);
        break;
    case DT_Q6_K:
        pack_q6_k(src, r, out);
        break;
    case DT_Q3_K:
        pack_q3_k(src, r, out);
        break;
    case DT_Q2_K:
        pack_q2_k(src, r, out);
        break;
    case DT_IQ4_XS:
        pack_iq4_xs(src, r, out);
        break;
    }
}

void pack_chunk_from(enum dtype t, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                     uint64_t n_cols, uint64_t c, uint8_t *out)
{
    const struct dtype_info *info = dtype_info(t);
    const uint64_t col = c * CHUNK_COLS;
    const uint32_t n = (uint32_t)MIN(n_cols - col, (uint64_t)CHUNK_COLS);
    assert(col < n_cols && n % info->block_elems == 0 && n_rows <= TILE_ROWS);
    src += col / info->block_elems * info->block_bytes;
    if (n_rows < TILE_ROWS)
        memset(out, 0, pack_chunk(pack_of(t), n).bytes);
    for (uint32_t r = 0; r < n_rows; r++, src += row_bytes)
        pack_one(t, src, r, n, out);
}

/* ---- reading a row back ---- */

static float half_at(const uint8_t *p, uint32_t i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return f16_to_f32(h);
}

/* The stored number of column k (0..31) of a group. */
static uint32_t number_at(enum pack p, const uint8_t *group, uint32_t r, uint32_t k)
{
    const uint32_t k4 = k / 4, at = 4 * r + k % 4;
    if (p == PACK_Q8 || p == PACK_Q8M)
        return group[64 * k4 + at];
    if (p == PACK_Q2K)
        return group[64 * (k4 / 4) + at] >> 2 * (k4 % 4) & 3U;
    const uint32_t nib = group[64 * (k4 % 4) + at] >> 4 * (k4 / 4) & 15U;
    if (p == PACK_Q5K)
        return nib | (group[NIBBLES + at] >> k4 & 1U) << 4;
    if (p == PACK_Q6K)
        return nib | (group[NIBBLES + 64 * (k4 / 4) + at] >> 2 * (k4 % 4) & 3U) << 4;
    return nib;
}

static float value_at(enum pack p, const struct pack_chunk *c, const uint8_t *chunk, uint32_t r,
                      uint32_t k)
{
    const uint32_t g = k / 32, sub = k / 16, at = TILE_ROWS * g + r;
    const uint32_t u = number_at(p, chunk + c->weights + g * c->group_bytes, r, k % 32);
    const uint8_t *s = chunk + c->scales, *m = chunk + c->mins;
    switch (p) {
    case PACK_Q8:
        return half_at(chunk, at) * (float)((int)u - 128);
    case PACK_Q4:
        return half_at(chunk, at) * (float)((int)u - 8);
    case PACK_Q8M:
    case PACK_Q4M:
        return half_at(chunk, at) * (float)u + half_at(m, at);
    case PACK_I4:
        return half_at(chunk, at) * (float)format_iq4[u];
    case PACK_M4:
        return ldexpf(1.0f, chunk[at] - 128) * (float)format_fp4[u];
    case PACK_Q4K:
    case PACK_Q5K:
        return half_at(chunk, r) * (float)s[at] * (float)u -
               half_at(chunk, TILE_ROWS + r) * (float)m[2 * (TILE_ROWS * (g / 2) + r) + g % 2];
    case PACK_Q6K:
        return half_at(chunk, r) * (float)(int8_t)s[TILE_ROWS * sub + r] * (float)((int)u - 32);
    case PACK_Q2K:
        return half_at(chunk, r) * (float)s[TILE_ROWS * sub + r] * (float)u -
               half_at(chunk, TILE_ROWS + r) * (float)m[2 * (TILE_ROWS * (sub / 2) + r) + sub % 2];
    case PACK_I4X:
        return half_at(chunk, r) * (float)(int8_t)s[at] * (float)format_iq4[u];
    default:
        return 0; /* the float layouts do not come here */
    }
}

static void row_of_chunk(enum pack p, const uint8_t *chunk, uint32_t n, uint32_t r, float *out)
{
    const struct pack_chunk c = pack_chunk(p, n);
    for (uint32_t k = 0; k < n; k++) {
        uint16_t h;
        switch (p) {
        case PACK_F32:
            memcpy(out + k, chunk + 4 * (TILE_ROWS * k + r), 4);
            break;
        case PACK_F16:
            out[k] = half_at(chunk, TILE_ROWS * k + r);
            break;
        case PACK_BF16:
            memcpy(&h, chunk + 2 * (TILE_ROWS * k + r), 2);
            out[k] = bf16_to_f32(h);
            break;
        default:
            out[k] = value_at(p, &c, chunk, r, k);
        }
    }
}

void pack_row(enum pack p, const uint8_t *tile, uint64_t n_cols, uint32_t r, float *out)
{
    for (uint64_t col = 0; col < n_cols; col += CHUNK_COLS) {
        const uint32_t n = (uint32_t)MIN(n_cols - col, (uint64_t)CHUNK_COLS);
        row_of_chunk(p, tile, n, r, out + col);
        tile += pack_chunk(p, n).bytes;
    }
}
