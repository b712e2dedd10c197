/* buf.h - a growable run of bytes, always followed by a 0 that does not count.
 *
 * Failure sticks: once memory is out (or the limit reached), buf.failed is set and further adds do
 * nothing, so a writer checks once at the end.
 */
#ifndef HOLDFAST_BASE_BUF_H
#define HOLDFAST_BASE_BUF_H

#include "base/base.h"

struct buf {
    char *p; /* NULL while empty; else p[n] is 0 */
    size_t n, cap;
    size_t limit; /* 0 = none */
    bool failed;
};

#define BUF_INIT                                                                                   \
    {                                                                                              \
        NULL, 0, 0, 0, false                                                                       \
    }

void buf_init(struct buf *b);
void buf_release(struct buf *b);
void buf_clear(struct buf *b); /* empty, ready again; keeps the memory, clears failed */
void buf_add(struct buf *b, const void *p, size_t n);
void buf_addc(struct buf *b, char c);
void buf_adds(struct buf *b, const char *s);
void buf_addf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Drops the first n bytes. */
void buf_eat(struct buf *b, size_t n);
void buf_truncate(struct buf *b, size_t n);
/* "" when empty: never NULL. */
const char *buf_str(const struct buf *b);
/* The caller owns the result (mem_free); NULL if failed; b is empty afterwards. */
NODISCARD char *buf_take(struct buf *b);

#endif
