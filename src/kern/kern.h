/* kern.h - a table of functions per instruction set: the arithmetic of nn's operators.
 *
 * nn gets a table from kern/pick.h and calls through it; nothing else is exported by a kernel file.
 * Within a table a row's result depends on that row alone (README.md, "Order of summation").
 */
#ifndef HOLDFAST_KERN_KERN_H
#define HOLDFAST_KERN_KERN_H

#include "base/base.h"
#include "kern/act.h"
#include "kern/pack.h"
#include "kern/seq.h"

/* Rows [row_begin, row_end) of one matrix times n rows of activations. */
struct kern_mul {
    enum pack pack;
    uint64_t n_cols, n_rows;     /* of the whole matrix */
    uint64_t row_begin, row_end; /* row_begin % TILE_ROWS == 0; row_end too, or it is n_rows */
    const uint8_t *tiles;        /* packed, 64-byte aligned; unused when raw is set */
    uint64_t tile_bytes;         /* pack_tile_bytes() */
    const uint8_t *raw; /* the file's rows of type, packed chunk by chunk on the way; or NULL */
    enum dtype type;
    uint64_t row_bytes;

    /* f32 for the float layouts, act256 for those of 256-element blocks, else act32 */
    const void *x;
    uint64_t x_stride;    /* bytes from row to row */
    const uint32_t *rows; /* [n]: which row of x token t uses; NULL: row t */
    uint32_t n;           /* tokens, >= 1 */

    float *y;     /* y[t * ldy + row] */
    uint64_t ldy; /* floats */
};

struct kern {
    const char *name; /* "ref", "avx2", "avx512", "avx512_vnni", "neon" */

    /* ---- matrices: kern/body_mat.inc ---- */
    void (*mul)(const struct kern_mul *m);
    /* x [n] to ceil(n / 256) chunks (act.h). */
    void (*act32)(const float *x, uint64_t n, struct act32 *out);
    void (*act256)(const float *x, uint64_t n, struct act256 *out); /* n % 256 == 0 */

    /* What the CPU can do at best: rounds of independent int8 dot products or f32 multiply-adds, done
     * in registers; return how many operations that was (a multiply-add is two).  busy_read reads
     * p [n] (multiples of 512 bytes).  *sink changes, so that the work is real. */
    uint64_t (*busy_dot)(uint64_t rounds, uint64_t *sink);
    uint64_t (*busy_fma)(uint64_t rounds, uint64_t *sink);
    void (*busy_read)(const void *p, uint64_t n, uint64_t *sink);

    /* ---- sequence operators: kern/body_seq.inc fills them (KERN_SEQ_ENTRIES) ---- */
    struct kern_seq seq;
    /* ---- end of the sequence operators ---- */
};

#endif
