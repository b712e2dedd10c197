#include "engine/stop.h"

#include "base/str.h"

void stopper_init(struct stopper *s, const char *const *words, uint32_t n)
{
    *s = (struct stopper){.words = words, .n = n};
    buf_init(&s->held);
}

void stopper_release(struct stopper *s)
{
    buf_release(&s->held);
}

/* Length of the longest end of text that is a proper beginning of word. */
static size_t overlap(struct str text, struct str word)
{
    if (word.n == 0)
        return 0;
    for (size_t k = MIN(text.n, word.n - 1); k > 0; k--)
        if (memcmp(text.p + text.n - k, word.p, k) == 0)
            return k;
    return 0;
}

int stopper_add(struct stopper *s, const char *text, size_t n, struct buf *out)
{
    buf_add(&s->held, text, n);
    if (s->held.failed) {
        out->failed = true;
        return -1;
    }
    const struct str held = {buf_str(&s->held), s->held.n};
    int found = -1;
    size_t at = held.n, keep = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct str word = str_of(s->words[i]);
        if (word.n == 0)
            continue;
        const ptrdiff_t pos = str_find(held, word, 0);
        if (pos >= 0 && (size_t)pos < at) {
            at = (size_t)pos;
            found = (int)i;
        }
        keep = MAX(keep, overlap(held, word));
    }
    if (found >= 0) {
        buf_add(out, held.p, at);
        buf_clear(&s->held);
    } else {
        buf_add(out, held.p, held.n - keep);
        buf_eat(&s->held, held.n - keep);
    }
    return found;
}

void stopper_finish(struct stopper *s, struct buf *out)
{
    buf_add(out, buf_str(&s->held), s->held.n);
    buf_clear(&s->held);
}
