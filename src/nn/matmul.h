/* matmul.h - weights in the kernel table's own layout, and y = W x for one or many rows.
 *
 * Same bits: y[r] depends on x[r] and W alone, whatever else is in the batch, on any number of threads.
 * kern/README.md has the order of summation of each format.
 */
#ifndef HOLDFAST_NN_MATMUL_H
#define HOLDFAST_NN_MATMUL_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/pool.h"

struct kern;     /* kern/kern.h */
struct mat;      /* one weight matrix, or n_mats of equal shape (experts) */
struct mat_heap; /* nn/mat_heap.h */
struct act;      /* activation rows, f32 and the quantised copies the formats ask for */

struct mat_src {
    const char *name; /* for messages */
    enum dtype type;
    uint64_t cols, rows; /* inputs (contiguous), outputs */
    uint32_t n_mats;     /* 1, or the number of experts */
    const void *data;    /* borrowed; when the layout is used as it is, for mat's life */
};

struct mat_opts {
    bool no_repack; /* keep the file's layout */
    struct mat_heap
        *heap; /* for the packed weights, borrowed for mat's life; NULL: their own memory */
    /* Bytes [off, off + n) of src->data are packed and not read again; called in order, by the calling
     * thread.  May be NULL. */
    void (*packed)(void *ctx, uint64_t off, uint64_t n);
    void *ctx;
};

/* cols % block_elems == 0 (gguf has checked it). */
NODISCARD enum rc mat_new(const struct kern *k, struct pool *pool, const struct mat_src *src,
                          const struct mat_opts *o, struct mat **out, struct err *err);
void mat_free(struct mat *m);
uint64_t mat_rows(const struct mat *m);
uint64_t mat_cols(const struct mat *m);
/* Bytes of its own (0 when it reads the mapped file). */
uint64_t mat_bytes(const struct mat *m);
/* True when mat no longer needs src->data, so that the caller may drop those mapped pages. */
bool mat_owns_data(const struct mat *m);
/* Row r (of matrix 0) as f32: out [cols].  For the embedding. */
void mat_row(const struct mat *m, uint64_t r, float *out);

/* Room for max_rows rows of max_cols; reused for every matmul of a forward. */
NODISCARD enum rc act_new(const struct kern *k, uint32_t max_rows, uint64_t max_cols,
                          struct act **out, struct err *err);
void act_free(struct act *a);
/* x [n][cols], row stride ldx floats, borrowed until the next act_set.  Quantised copies are made
 * when the first matmul asks, once per set. */
void act_set(struct act *a, const float *x, uint32_t n, uint64_t cols, uint64_t ldx);

/* y[i][o] = sum_c W[o][c] x[i][c] for all n rows of a; y row stride ldy floats. */
void matmul(struct pool *pool, const struct mat *w, struct act *a, float *y, uint64_t ldy);
/* Several matrices over the same rows in one fork-join (q, k, v ...). */
struct matmul_job {
    const struct mat *w;
    float *y;
    uint64_t ldy;
    /* 0, or a multiple of 16: outputs in blocks of so many, y [rows(w) / block][n][block] instead, for
     * what is read block by block afterwards; the last one may be short (its rows are block apart too) */
    uint32_t block;
};
void matmul_many(struct pool *pool, const struct matmul_job *jobs, uint32_t n_jobs, struct act *a);

/* Experts.  Pair p (0 <= p < n_pairs) multiplies matrix expert[p] with activation row row[p] into
 * y + p * ldy.  Pairs must be sorted by expert; only experts that occur are read. */
void matmul_experts(struct pool *pool, const struct mat *w, struct act *a, const uint32_t *expert,
                    const uint32_t *row, uint32_t n_pairs, float *y, uint64_t ldy);

#endif
