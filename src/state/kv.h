/* kv.h - paged KV: pages of KV_PAGE tokens at absolute positions, shared by reference count.
 *
 *   page = for each attention layer a:  K [n_kv_heads], V [n_kv_heads], each a KV_PAGE x head_dim
 *                                       matrix in the layout kern/seq.h gives (K lane by lane)
 *
 * Page j of a sequence holds positions [64 j, 64 j + 64).  A table is one holder's list of pages: a
 * running sequence has one, every cached snapshot has one.  Rules:
 *  (1) rows below a holder's length never change while it holds the page;
 *  (2) only one running sequence may write into a page, and only rows at or above every other
 *      holder's length.  A sequence that starts inside a page it did not write gets its own copy of
 *      that page (kv_table_fork), at most 63 rows.
 *
 * Owner: the engine thread.  Kernels read and write rows through kv_view during a forward.
 */
#ifndef HOLDFAST_STATE_KV_H
#define HOLDFAST_STATE_KV_H

#include "state/shape.h"

struct kv;                /* all pages of one model */
typedef uint32_t kv_page; /* index; 0 = none */

struct kv_table {
    kv_page *pages; /* pages[j] holds positions from 64 j */
    uint32_t n, cap;
    uint32_t len; /* positions [0, len) are filled */
};

/* Pages are allocated in slabs as needed up to max_bytes (0 = no limit) and go back to the system when
 * a whole slab is free; of free pages among others most give their memory back. */
NODISCARD enum rc kv_new(const struct shape *s, uint64_t max_bytes, struct kv **out,
                         struct err *err);
void kv_free(struct kv *kv);
uint64_t
kv_bytes(const struct kv *kv); /* memory taken by pages: those below, and a few free ones */
uint32_t kv_n_pages(const struct kv *kv); /* referenced by anyone */
uint32_t kv_refs(const struct kv *kv, kv_page p);

void kv_table_init(struct kv_table *t);
/* Gives back every reference. */
void kv_table_release(struct kv *kv, struct kv_table *t);
/* Fresh pages so that positions [len, len + n) can be written.  RC_NOMEM leaves t as it was. */
NODISCARD enum rc kv_table_extend(struct kv *kv, struct kv_table *t, uint32_t n, struct err *err);
/* After the rows are written. */
void kv_table_advance(struct kv_table *t, uint32_t n);
/* dst (empty) holds positions [0, len) of src by reference: for a snapshot. */
NODISCARD enum rc kv_table_share(struct kv *kv, const struct kv_table *src, uint32_t len,
                                 struct kv_table *dst, struct err *err);
/* dst (empty) will continue from position len of src: full pages by reference, a last partial page
 * copied.  For a sequence. */
NODISCARD enum rc kv_table_fork(struct kv *kv, const struct kv_table *src, uint32_t len,
                                struct kv_table *dst, struct err *err);
/* Where both tables hold equal tokens [0, n): t takes over other's full pages below n and gives its
 * own back.  Sound because equal tokens give equal bits. */
void kv_table_dedupe(struct kv *kv, struct kv_table *t, const struct kv_table *other, uint32_t n);

/* Start of K (or V) of attention layer a, kv head h in page p: KV_PAGE * shape_row_bytes() bytes,
 * 64-byte aligned where that product is a multiple of 64. */
void *kv_k(struct kv *kv, kv_page p, uint32_t a, uint32_t h);
void *kv_v(struct kv *kv, kv_page p, uint32_t a, uint32_t h);
/* The whole page, shape_page_bytes() of them: to copy it out or fill a fresh one.  Stays there while it is held. */
void *kv_page_mem(const struct kv *kv, kv_page p);

#endif
