/* base.h - the few things every room uses. */
#ifndef HOLDFAST_BASE_BASE_H
#define HOLDFAST_BASE_BASE_H

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t token; /* vocabulary index */

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* Always on: for a slip after which going on would hand a client wrong tokens. */
#define CHECK(cond) ((cond) ? (void)0 : check_failed(#cond, __FILE__, __LINE__))
_Noreturn void check_failed(const char *cond, const char *file, int line);

/* Each argument is evaluated twice. */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* a and step > 0; x + step must not overflow. */
static inline uint64_t round_up(uint64_t x, uint64_t step)
{
    return (x + step - 1) / step * step;
}

static inline uint64_t ceil_div(uint64_t x, uint64_t by)
{
    return x / by + (x % by != 0);
}

/* False when the result does not fit; *out is then unspecified. */
NODISCARD static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

NODISCARD static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
