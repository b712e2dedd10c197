/* str.h - borrowed slices of text. */
#ifndef HOLDFAST_BASE_STR_H
#define HOLDFAST_BASE_STR_H

#include "base/base.h"

#include <string.h>

struct str {
    const char *p; /* not terminated; may be NULL when n is 0 */
    size_t n;
};

static inline struct str str_of(const char *s)
{
    return (struct str){s, strlen(s)};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool str_is(struct str a, const char *b)
{
    return str_eq(a, str_of(b));
}

static inline bool str_starts(struct str a, struct str head)
{
    return a.n >= head.n && (head.n == 0 || memcmp(a.p, head.p, head.n) == 0);
}

static inline bool str_ends(struct str a, struct str tail)
{
    return a.n >= tail.n && (tail.n == 0 || memcmp(a.p + a.n - tail.n, tail.p, tail.n) == 0);
}

/* Index of the first needle at or after from, or -1. */
ptrdiff_t str_find(struct str hay, struct str needle, size_t from);

/* Whole string as a number; false when anything else is in it or it does not fit. */
NODISCARD bool str_to_i64(const char *s, int64_t *out);
NODISCARD bool str_to_u64(const char *s, uint64_t *out);
NODISCARD bool str_to_f64(const char *s, double *out);

/* "512", "64K", "1.5G", "16GiB" -> bytes (powers of 1024). */
NODISCARD bool str_to_bytes(const char *s, uint64_t *out);
/* 65863680 -> "62.8 MiB"; out has room for 16. */
void str_from_bytes(uint64_t n, char out[16]);

#endif
