#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void buf_init(struct buf *b)
{
    *b = (struct buf)BUF_INIT;
}

void buf_release(struct buf *b)
{
    mem_free(b->p);
    buf_init(b);
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    b->failed = false;
    if (b->p)
        b->p[0] = 0;
}

static bool reserve(struct buf *b, size_t n)
{
    size_t want;
    if (b->failed || __builtin_add_overflow(b->n, n, &want) || want == SIZE_MAX ||
        (b->limit && want > b->limit) || !mem_grow(&b->p, &b->cap, want + 1, 1)) {
        b->failed = true;
        return false;
    }
    return true;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
}

void buf_addc(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_adds(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !reserve(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

void buf_eat(struct buf *b, size_t n)
{
    if (!n)
        return;
    assert(n <= b->n);
    memmove(b->p, b->p + n, b->n - n + 1);
    b->n -= n;
}

void buf_truncate(struct buf *b, size_t n)
{
    assert(n <= b->n);
    b->n = n;
    if (b->p)
        b->p[n] = 0;
}

const char *buf_str(const struct buf *b)
{
    return b->p ? b->p : "";
}

char *buf_take(struct buf *b)
{
    if (!reserve(b, 0)) {
        buf_release(b);
        return NULL;
    }
    char *p = b->p;
    p[b->n] = 0;
    const size_t limit = b->limit;
    buf_init(b);
    b->limit = limit;
    return p;
}
