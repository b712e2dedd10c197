#include "text/detok.h"

#include <string.h>

#include "base/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"

void detok_init(struct detok *d, bool special)
{
    *d = (struct detok){.special = special};
}

/* Appends s[n], which ends no character early, with stray bytes as U+FFFD. */
static void add_whole(struct buf *out, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t len = utf8_decode(s + i, n - i, &cp);
        if (cp == UINT32_MAX) {
            buf_add(out, s + from, i - from);
            buf_adds(out, REPLACEMENT);
            from = i + len;
        }
        i += len;
    }
    buf_add(out, s + from, n - from);
}

static void add_bytes(struct detok *d, struct str s, struct buf *out)
{
    /* Bytes join the held ones until these are whole or turn out to be none. */
    while (d->n_held && s.n) {
        d->held[d->n_held++] = *s.p++;
        s.n--;
        const size_t whole = utf8_complete(d->held, d->n_held);
        add_whole(out, d->held, whole);
        d->n_held = (uint8_t)(d->n_held - whole);
        memmove(d->held, d->held + whole, d->n_held);
    }
    const size_t whole = utf8_complete(s.p, s.n);
    add_whole(out, s.p, whole);
    if (s.n > whole) {
        d->n_held = (uint8_t)(s.n - whole);
        memcpy(d->held, s.p + whole, d->n_held);
    }
}

void detok_add(struct detok *d, const struct vocab *v, token t, struct buf *out)
{
    const struct str s = vocab_bytes(v, t, d->special);
    if (s.n)
        add_bytes(d, s, out);
}

void detok_finish(struct detok *d, struct buf *out)
{
    if (d->n_held)
        buf_adds(out, REPLACEMENT);
    d->n_held = 0;
}
