/* pack.h - weights in tiles: 16 output rows side by side, so that a SIMD lane is an output row.
 *
 * A matrix is cut into tiles of 16 rows, a tile into chunks of 256 columns (the last one may be
 * shorter), a chunk into groups of 32.  A chunk is one run of memory: first the scales of its groups
 * for all 16 rows, then per group the weights, four neighbouring columns of a row making one 32-bit
 * lane:
 *
 *     group of 32 columns:   k4 = 0                    k4 = 1              ...  k4 = 7
 *                            r0:k0k1k2k3 r1:k0k1k2k3 .. r0:k4k5k6k7 r1: ..
 *
 * A kernel takes 64 bytes of weights and the same four activations in every lane, and after the last
 * column lane r holds row r: nothing is ever summed across lanes, for one token or for many.
 * Rows beyond the matrix are zero.  All tables share this layout.
 */
#ifndef HOLDFAST_KERN_PACK_H
#define HOLDFAST_KERN_PACK_H

#include "base/dtype.h"

enum {
    TILE_ROWS = 16,
    CHUNK_COLS = 256,
    GROUP_COLS = 32,
    CHUNK_GROUPS = 8,
    NIBBLES = 4 * 64 /* bytes of a group's nibbles */
};

/* How a chunk is laid out.  [g] counts groups, [r] rows; "nibbles" are 4 x 64 bytes per group, word i
 * of a row holding k4 = i in the low nibbles and k4 = i + 4 in the high ones.  Each part begins at a
 * multiple of 64 bytes.  u is the unsigned number stored. */
enum pack {
    PACK_F32,  /* f32 [k][r] */
    PACK_F16,  /* f16 [k][r] */
    PACK_BF16, /* bf16 [k][r] */
    PACK_Q8,   /* f16 d[g][r]; bytes [g][k4][r][4]:  d (u - 128) */
    PACK_Q8M,  /* f16 d[g][r], m[g][r]; bytes, u < 32:  d u + m */
    PACK_Q4,   /* f16 d[g][r]; nibbles:  d (u - 8) */
    PACK_Q4M,  /* f16 d[g][r], m[g][r]; nibbles:  d u + m */
    PACK_I4,   /* f16 d[g][r]; nibbles:  d format_iq4[u] */
    PACK_M4,   /* u8 e[g][r]; nibbles:  2^(e - 128) format_fp4[u] */
    PACK_Q4K,  /* f16 d[r], dmin[r]; u8 s[g][r]; u8 m[g / 2][r][2]; nibbles:  d s u - dmin m */
    PACK_Q5K,  /* the same; per group nibbles, then 64 bytes: bit k4 is the fifth bit of u */
    PACK_Q6K,  /* f16 d[r]; i8 s[16][r]; per group nibbles, then 2 x 64 bytes: bits 2 (k4 % 4) of
                  plane k4 / 4 are the upper two of u:  d s (u - 32), s per 16 columns */
    PACK_Q2K,  /* f16 d[r], dmin[r]; u8 s[16][r]; u8 m[8][r][2]; per group 2 x 64 bytes of 2-bit u:
                  d s u - dmin m, s and m per 16 columns */
    PACK_I4X,  /* f16 d[r]; i8 s[g][r]; nibbles:  d s format_iq4[u] */
    PACK_COUNT
};

/* The layout a tensor type is packed to.  Exact: every weight keeps its value. */
enum pack pack_of(enum dtype t);

/* Weights that are floats, multiplied with f32 activations. */
static inline bool pack_is_float(enum pack p)
{
    return p == PACK_F32 || p == PACK_F16 || p == PACK_BF16;
}

/* Integer scales inside a block of 256: activations are act256 (else act32). */
static inline bool pack_is_act256(enum pack p)
{
    return p == PACK_Q4K || p == PACK_Q5K || p == PACK_Q6K || p == PACK_Q2K || p == PACK_I4X;
}

/* Where things lie in a chunk of n columns.  Offsets in bytes; 0 where there is no such part. */
struct pack_chunk {
    uint32_t scales; /* after d[r] and dmin[r] of the K layouts */
    uint32_t mins;
    uint32_t weights;
    uint32_t group_bytes;
    uint32_t bytes; /* all of it */
};
/* Inline, so that a kernel that knows p sees constants. */
static inline struct pack_chunk pack_chunk(enum pack p, uint32_t n_cols)
{
    const uint32_t n_groups = (uint32_t)ceil_div(n_cols, GROUP_COLS);
    struct pack_chunk c = {0};
    uint32_t head = 0;
    switch (p) {
    case PACK_F32:
        c.bytes = n_cols * TILE_ROWS * 4;
        return c;
    case PACK_F16:
    case PACK_BF16:
        c.bytes = (uint32_t)round_up((uint64_t)n_cols * TILE_ROWS * 2, 64);
        return c;
    case PACK_Q8:
    case PACK_Q4:
    case PACK_I4:
        head = n_groups * TILE_ROWS * 2;
        break;
    case PACK_Q8M:
    case PACK_Q4M:
        c.mins = n_groups * TILE_ROWS * 2;
        head = 2 * c.mins;
        break;
    case PACK_M4:
        head = n_groups * TILE_ROWS;
        break;
    case PACK_Q4K:
    case PACK_Q5K:
        c.scales = 2 * TILE_ROWS * 2;
        c.mins = c.scales + 8 * TILE_ROWS;
        head = c.mins + 8 * TILE_ROWS;
        break;
    case PACK_Q6K:
        c.scales = TILE_ROWS * 2;
        head = c.scales + 16 * TILE_ROWS;
        break;
    case PACK_Q2K:
        c.scales = 2 * TILE_ROWS * 2;
        c.mins = c.scales + 16 * TILE_ROWS;
        head = c.mins + 16 * TILE_ROWS;
        break;
    case PACK_I4X:
        c.scales = TILE_ROWS * 2;
        head = c.scales + 8 * TILE_ROWS;
        break;
    case PACK_COUNT:
        break;
    }
    switch (p) {
    case PACK_Q8:
    case PACK_Q8M:
        c.group_bytes = 8 * 64;
        break;
    case PACK_Q5K:
        c.group_bytes = NIBBLES + 64;
        break;
    case PACK_Q6K:
        c.group_bytes = NIBBLES + 2 * 64;
        break;
    case PACK_Q2K:
        c.group_bytes = 2 * 64;
        break;
    default:
        c.group_bytes = NIBBLES;
    }
    c.weights = (uint32_t)round_up(head, 64);
    c.bytes = c.weights + n_groups * c.group_bytes;
    return c;
}

uint64_t pack_tile_bytes(enum pack p, uint64_t n_cols);

/* Packs columns [256 c, min(256 c + 256, n_cols)) of n_rows <= 16 rows at src, row_bytes apart, into
 * out (pack_chunk().bytes, 64-byte aligned). */
void pack_chunk_from(enum dtype t, const uint8_t *src, uint64_t row_bytes, uint32_t n_rows,
                     uint64_t n_cols, uint64_t c, uint8_t *out);

/* Row r (0..15) of a packed tile as f32 [n_cols], with the bits quant_decode would give. */
void pack_row(enum pack p, const uint8_t *tile, uint64_t n_cols, uint32_t r, float *out);

#endif
