/* pack.h - little-endian numbers into a buf, and out of bytes that may be anything.
 *
 * Reading fails like struct buf: once the bytes have run out, failed is set and all that is read is 0, so a reader
 * checks once at the end (but bounds a count before it loops or allocates by it: unpack_fits).
 */
#ifndef HOLDFAST_BASE_PACK_H
#define HOLDFAST_BASE_PACK_H

#include <string.h>

#include "base/buf.h"

struct unpack {
    const uint8_t *p; /* borrowed */
    size_t n;         /* left */
    bool failed;
};

static inline void pack_uint(struct buf *b, uint64_t x, size_t n_bytes)
{
    uint8_t le[8];
    for (size_t i = 0; i < n_bytes; i++)
        le[i] = (uint8_t)(x >> 8 * i);
    buf_add(b, le, n_bytes);
}

static inline void pack_u32(struct buf *b, uint32_t x)
{
    pack_uint(b, x, 4);
}

static inline void pack_u64(struct buf *b, uint64_t x)
{
    pack_uint(b, x, 8);
}

/* IEEE 754 binary64. */
static inline void pack_f64(struct buf *b, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    pack_u64(b, bits);
}

static inline uint64_t unpack_uint(struct unpack *u, size_t n_bytes)
{
    uint64_t x = 0;
    if (u->failed || u->n < n_bytes) {
        u->failed = true;
        return 0;
    }
    for (size_t i = 0; i < n_bytes; i++)
        x |= (uint64_t)u->p[i] << 8 * i;
    u->p += n_bytes;
    u->n -= n_bytes;
    return x;
}

static inline uint32_t unpack_u32(struct unpack *u)
{
    return (uint32_t)unpack_uint(u, 4);
}

static inline uint64_t unpack_u64(struct unpack *u)
{
    return unpack_uint(u, 8);
}

static inline double unpack_f64(struct unpack *u)
{
    const uint64_t bits = unpack_u64(u);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Whether n things of so many bytes are still there; if not, that is a failure. */
static inline bool unpack_fits(struct unpack *u, uint64_t n, size_t bytes)
{
    u->failed |= n > u->n / bytes;
    return !u->failed;
}

#endif
