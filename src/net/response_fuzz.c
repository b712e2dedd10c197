/* A response from anywhere: cut in two places at will, it parses to the same. */
#include "net/response.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static enum rc feed_all(struct response *r, const char *p, size_t n, size_t piece, struct buf *body)
{
    enum rc rc = RC_OK;
    while (n && !rc && r->state != RESP_DONE) {
        size_t used;
        const size_t m = MIN(piece, n);
        rc = response_feed(r, p, m, &used, body, NULL);
        CHECK(used <= m);
        p += used;
        n -= used;
    }
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    const size_t piece = (data[0] & 63) + 1;
    const char *p = (const char *)data + 1;
    struct response a, b;
    struct buf body_a = BUF_INIT, body_b = BUF_INIT;
    response_init(&a, false);
    response_init(&b, false);
    const enum rc rc_a = feed_all(&a, p, n - 1, n, &body_a);
    const enum rc rc_b = feed_all(&b, p, n - 1, piece, &body_b);
    CHECK(rc_a == rc_b);
    if (!rc_a) {
        CHECK(a.state == b.state && a.status == b.status && a.keep == b.keep);
        CHECK(body_a.n == body_b.n);
        CHECK(!body_a.n || !memcmp(body_a.p, body_b.p, body_a.n));
        response_header(&a, "content-type");
    }
    response_release(&a);
    response_release(&b);
    buf_release(&body_a);
    buf_release(&body_b);
    return 0;
}
