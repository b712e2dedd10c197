/* signs.h - where earlier prompts parted, recognised in new ones.
 *
 * A sign is a hash of the SIGN_TOKENS tokens before a divergence, or of those that the older path had right
 * after it.  Where one occurs in a prompt (its last occurrence counts), the next request is likely to part
 * there too: the block that is rendered anew, the line with the time.
 */
#ifndef HOLDFAST_CACHE_SIGNS_H
#define HOLDFAST_CACHE_SIGNS_H

#include "base/pack.h"

enum { SIGN_TOKENS = 8, SIGNS_MAX = 4096, SIGN_FILTER_BITS = 1 << 17 };
enum sign_side { SIGN_BEFORE, SIGN_AFTER };

struct signs; /* at most SIGNS_MAX; the longest unconfirmed goes first */

NODISCARD struct signs *signs_new(void); /* NULL when memory is out */
void signs_free(struct signs *s);
uint64_t signs_bytes(const struct signs *s);
uint32_t signs_count(const struct signs *s);

/* Remembers, or confirms, window[0 .. SIGN_TOKENS). */
void signs_learn(struct signs *s, const token *window, enum sign_side side);

struct sign_match {
    uint32_t pos; /* where the divergence is expected */
    uint32_t sign;
    uint64_t key; /* names the sign; never 0 */
};
/* Last occurrences that expect a divergence in (from, to], to <= n, in no order; at most max, the latest
 * confirmed signs. Linear in to - from. */
uint32_t signs_find(const struct signs *s, const token *seq, uint32_t n, uint32_t from, uint32_t to,
                    struct sign_match *out, uint32_t max);

/* All of them; docs/formats/cache-dir.md has the bytes. */
void signs_save(const struct signs *s, struct buf *b);
/* Into one just made.  False, and s to be freed, when the bytes are none of signs_save. */
NODISCARD bool signs_load(struct signs *s, struct unpack *u);

#endif
