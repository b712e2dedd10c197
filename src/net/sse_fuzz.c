/* Any bytes as an event stream, in pieces: the same events as in one piece; and what a reader gives
 * out can be written and read again. */
#include "net/sse.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void events(struct buf *out, const char *p, size_t n, size_t piece)
{
    struct sse s;
    struct sse_event e;
    sse_init(&s, 0);
    while (n) {
        const size_t m = MIN(piece, n);
        CHECK(sse_feed(&s, p, m));
        p += m;
        n -= m;
        while (sse_next(&s, &e)) {
            const bool name = e.event.n && !memchr(e.event.p, 0, e.event.n);
            sse_write(out, name ? e.event.p : NULL, e.data);
        }
    }
    sse_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    const char *p = (const char *)data + 1;
    struct buf whole = BUF_INIT, pieces = BUF_INIT, again = BUF_INIT;
    events(&whole, p, n - 1, n);
    events(&pieces, p, n - 1, (data[0] & 63) + 1);
    CHECK(whole.n == pieces.n && !memcmp(buf_str(&whole), buf_str(&pieces), whole.n));
    events(&again, buf_str(&whole), whole.n, SIZE_MAX);
    CHECK(whole.n == again.n && !memcmp(buf_str(&whole), buf_str(&again), whole.n));
    buf_release(&whole);
    buf_release(&pieces);
    buf_release(&again);
    return 0;
}
