#include "net/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"

/* All events of s, fed in pieces of the given sizes, as "event|data;" each. */
static void read_all(struct buf *out, const char *s, size_t n, struct rng *rng)
{
    struct sse r;
    struct sse_event e;
    sse_init(&r, 0);
    for (size_t i = 0; i < n;) {
        const size_t want = rng ? (size_t)rng_below(rng, 5) + 1 : n;
        const size_t piece = MIN(want, n - i);
        assert_true(sse_feed(&r, s + i, piece));
        i += piece;
        while (sse_next(&r, &e)) {
            buf_add(out, e.event.p, e.event.n);
            buf_addc(out, '|');
            buf_add(out, e.data.p, e.data.n);
            buf_addc(out, ';');
        }
    }
    sse_release(&r);
}

static void expect(const char *stream, const char *events)
{
    struct rng rng = {7};
    for (int i = 0; i < 30; i++) {
        struct buf out = BUF_INIT;
        read_all(&out, stream, strlen(stream), i ? &rng : NULL);
        assert_string_equal(buf_str(&out), events);
        buf_release(&out);
    }
}

static void streams_are_read_as_the_standard_says(void **state)
{
    (void)state;
    expect("data: a\n\n", "|a;");
    expect("data:a\n\ndata: b\n\n", "|a;|b;");
    expect("event: x\ndata: a\n\n", "x|a;");
    expect("data: a\ndata: b\n\n", "|a\nb;");
    expect("data:  a\n\n", "| a;"); /* one blank only */
    expect("data\n\n", "|;");
    expect("data\ndata\n\n", "|\n;");
    expect(": comment\n\ndata: a\n\n", "|a;");
    expect("id: 1\nretry: 5\nnonsense\ndata: a\n\n", "|a;");
    expect("data: a\r\n\r\ndata: b\r\rdata: c\n\n", "|a;|b;|c;");
    expect("\xEF\xBB\xBF"
           "data: a\n\n",
           "|a;");
    expect("event: x\n\ndata: a\n\n", "|a;"); /* an event without data is none */
    expect("data: a\n", "");                  /* unfinished */
    expect("data: [DONE]\n\n", "|[DONE];");
    expect("", "");
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "a", "a\nb", "a\n", "\n\n", "{\"x\": 1}", " lead"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct buf b = BUF_INIT, out = BUF_INIT;
        char want[64];
        sse_write_comment(&b, "ping");
        sse_write(&b, i % 2 ? "name" : NULL, str_of(texts[i]));
        read_all(&out, b.p, b.n, NULL);
        snprintf(want, sizeof want, "%s|%s;", i % 2 ? "name" : "", texts[i]);
        assert_string_equal(buf_str(&out), want);
        buf_release(&b);
        buf_release(&out);
    }
}

static void an_event_beyond_the_limit_ends_the_stream(void **state)
{
    (void)state;
    struct sse r;
    struct sse_event e;
    sse_init(&r, 100);
    bool ok = true;
    for (int i = 0; ok && i < 100; i++) {
        ok = sse_feed(&r, "data: 12345\n", 12);
        assert_false(sse_next(&r, &e));
    }
    assert_false(ok);
    sse_release(&r);
    sse_init(&r, 100);
    for (int i = 0; i < 1000; i++) { /* while many small ones pass */
        assert_true(sse_feed(&r, "data: 12345\n\n", 13));
        assert_true(sse_next(&r, &e));
    }
    sse_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_are_read_as_the_standard_says),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(an_event_beyond_the_limit_ends_the_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
