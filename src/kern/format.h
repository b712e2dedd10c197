/* format.h - the block layouts of a GGUF file's tensor types.
 *
 * Blocks have no alignment in a file (17, 34, 110 bytes ...): copy one out with memcpy, then read it.
 * In the types of 32 elements, byte j of qs holds element j (low nibble) and j + 16 (high nibble).
 * d, m, dmin are f16 bits.  quant.c has the formula of each.
 */
#ifndef HOLDFAST_KERN_FORMAT_H
#define HOLDFAST_KERN_FORMAT_H

#include "base/base.h"

struct blk_q4_0 {
    uint16_t d;
    uint8_t qs[16];
};

struct blk_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
};

struct blk_q5_0 {
    uint16_t d;
    uint8_t qh[4]; /* fifth bits, little-endian: bit j belongs to element j */
    uint8_t qs[16];
};

struct blk_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
};

struct blk_q8_0 {
    uint16_t d;
    int8_t qs[32];
};

struct blk_q2_k {
    uint8_t sc[16]; /* per 16 elements: low nibble scale, high nibble min */
    uint8_t qs[64];
    uint16_t d, dmin;
};

struct blk_q3_k {
    uint8_t hm[32];
    uint8_t qs[64];
    uint8_t sc[12];
    uint16_t d;
};

struct blk_q4_k {
    uint16_t d, dmin;
    uint8_t sc[12]; /* eight 6-bit scales and eight 6-bit mins */
    uint8_t qs[128];
};

struct blk_q5_k {
    uint16_t d, dmin;
    uint8_t sc[12];
    uint8_t qh[32];
    uint8_t qs[128];
};

struct blk_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t sc[16];
    uint16_t d;
};

struct blk_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
};

struct blk_iq4_xs {
    uint16_t d;
    uint16_t sh;
    uint8_t sl[4];
    uint8_t qs[128];
};

struct blk_mxfp4 {
    uint8_t e; /* the scale is 2^(e - 128) */
    uint8_t qs[16];
};

static_assert(sizeof(struct blk_q4_0) == 18, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q4_1) == 20, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q5_0) == 22, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q5_1) == 24, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q8_0) == 34, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q2_k) == 84, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q3_k) == 110, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q4_k) == 144, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q5_k) == 176, "GGUF fixes this layout");
static_assert(sizeof(struct blk_q6_k) == 210, "GGUF fixes this layout");
static_assert(sizeof(struct blk_iq4_nl) == 18, "GGUF fixes this layout");
static_assert(sizeof(struct blk_iq4_xs) == 136, "GGUF fixes this layout");
static_assert(sizeof(struct blk_mxfp4) == 17, "GGUF fixes this layout");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are read as they lie in the file");

/* IQ4_NL and IQ4_XS: the value of a nibble, in units of the scale. */
extern const int8_t format_iq4[16];
/* MXFP4: twice the FP4 (E2M1) value of a nibble. */
extern const int8_t format_fp4[16];

#endif
