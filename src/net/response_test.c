#include "net/response.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

struct result {
    struct response r;
    struct buf body;
    enum rc rc;
    size_t used;
};

static void feed(struct result *t, const char *s, size_t n, bool to_head, struct rng *rng)
{
    memset(t, 0, sizeof *t);
    response_init(&t->r, to_head);
    while (t->used < n && !t->rc && t->r.state != RESP_DONE) {
        const size_t want = rng ? (size_t)rng_below(rng, 7) + 1 : n;
        const size_t piece = MIN(want, n - t->used);
        size_t used;
        t->rc = response_feed(&t->r, s + t->used, piece, &used, &t->body, NULL);
        t->used += used;
    }
}

static void release(struct result *t)
{
    response_release(&t->r);
    buf_release(&t->body);
}

/* The whole of s makes one response with this status and body, however it is cut. */
static void expect(const char *s, int status, const char *body, bool keep)
{
    struct rng rng = {11};
    for (int i = 0; i < 30; i++) {
        struct result t;
        feed(&t, s, strlen(s), false, i ? &rng : NULL);
        assert_int_equal(t.rc, RC_OK);
        assert_int_equal(response_eof(&t.r, NULL), RC_OK);
        assert_int_equal(t.r.status, status);
        assert_string_equal(buf_str(&t.body), body);
        assert_int_equal(t.r.keep, keep);
        assert_int_equal(t.used, strlen(s));
        release(&t);
    }
}

static void every_kind_of_body_is_read(void **state)
{
    (void)state;
    expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true);
    expect("HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", 200, "hello", true);
    expect("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", false);
    expect("HTTP/1.1 200\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx", 200, "x", false);
    expect("HTTP/1.1 404 Not Found\r\n\r\nto the end", 404, "to the end", false);
    expect("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true);
    expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
           "5\r\nhello\r\n1;ext=1\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
           200, "hello 0123456789", true);
    expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, "x",
           true);
}

static void a_head_request_has_no_body(void **state)
{
    (void)state;
    struct result t;
    static const char s[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    feed(&t, s, sizeof s - 1, true, NULL);
    assert_int_equal(t.r.state, RESP_DONE);
    release(&t);
}

static void headers_are_found_in_any_case(void **state)
{
    (void)state;
    struct result t;
    static const char s[] =
        "HTTP/1.1 200 OK\r\nX-One:  a b \r\nx-two:\r\nX-ONE: second\r\nContent-Length: 0\r\n\r\n";
    feed(&t, s, sizeof s - 1, false, NULL);
    assert_string_equal(response_header(&t.r, "x-one"), "a b");
    assert_string_equal(response_header(&t.r, "x-two"), "");
    assert_null(response_header(&t.r, "x-three"));
    release(&t);
}

static void bytes_of_the_next_response_are_left_alone(void **state)
{
    (void)state;
    struct result t;
    static const char s[] = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200";
    feed(&t, s, sizeof s - 1, false, NULL);
    assert_int_equal(t.r.state, RESP_DONE);
    assert_string_equal(buf_str(&t.body), "x");
    assert_string_equal(s + t.used, "HTTP/1.1 200");
    release(&t);
}

static void nonsense_is_an_error(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "HTTP/2 200 OK\r\n",
        "HTTP/1.1 2x0 OK\r\n",
        "HTTP/1.1 099 OK\r\n",
        "HTTP/1.1 2000 OK\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n",
        "HTTP/1.1 200 OK\r\n: no name\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1ffffffffffffffff\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct result t;
        feed(&t, bad[i], strlen(bad[i]), false, NULL);
        assert_int_not_equal(t.rc, RC_OK);
        release(&t);
    }
}

static void an_early_end_is_an_error(void **state)
{
    (void)state;
    static const char s[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    for (size_t n = 0; n + 1 < sizeof s - 1; n++) {
        struct result t;
        feed(&t, s, n, false, NULL);
        assert_int_equal(t.rc, RC_OK);
        assert_int_equal(response_eof(&t.r, NULL), RC_FORMAT);
        release(&t);
    }
}

static void endless_lines_and_headers_are_cut_off(void **state)
{
    (void)state;
    struct response r;
    struct buf body = BUF_INIT;
    size_t used;
    response_init(&r, false);
    enum rc rc = response_feed(&r, "HTTP/1.1 200 OK\r\n", 17, &used, &body, NULL);
    for (int i = 0; i < 100000 && !rc; i++)
        rc = response_feed(&r, "X-Header: 0123456789\r\n", 22, &used, &body, NULL);
    assert_int_equal(rc, RC_LIMIT);
    response_release(&r);
    response_init(&r, false);
    rc = RC_OK;
    for (int i = 0; i < 100000 && !rc; i++)
        rc = response_feed(&r, "HTTP/1.1 ", 9, &used, &body, NULL);
    assert_int_equal(rc, RC_LIMIT);
    response_release(&r);
    buf_release(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_body_is_read),
        cmocka_unit_test(a_head_request_has_no_body),
        cmocka_unit_test(headers_are_found_in_any_case),
        cmocka_unit_test(bytes_of_the_next_response_are_left_alone),
        cmocka_unit_test(nonsense_is_an_error),
        cmocka_unit_test(an_early_end_is_an_error),
        cmocka_unit_test(endless_lines_and_headers_are_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
