#include "net/url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void the_parts_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *url, *host;
        uint16_t port;
        const char *path;
    } cases[] = {
        {"http://127.0.0.1:8080", "127.0.0.1", 8080, "/"},
        {"http://localhost", "localhost", 80, "/"},
        {"HTTP://localhost/", "localhost", 80, "/"},
        {"localhost:99/v1?x=1#frag", "localhost", 99, "/v1?x=1"},
        {"http://[::1]:8080/a/b", "::1", 8080, "/a/b"},
        {"http://[fe80::1]", "fe80::1", 80, "/"},
        {"http://h?q", "h", 80, "/?q"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct url u;
        assert_int_equal(url_parse(cases[i].url, &u, NULL), RC_OK);
        assert_string_equal(u.host, cases[i].host);
        assert_int_equal(u.port, cases[i].port);
        assert_string_equal(u.path, cases[i].path);
    }
}

static void what_is_no_url_gets_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        enum rc rc;
        const char *reason;
    } cases[] = {
        {"", RC_FORMAT, "host of 0"},
        {"http://", RC_FORMAT, "host of 0"},
        {"http://:80", RC_FORMAT, "host of 0"},
        {"https://h/", RC_UNSUPPORTED, "https"},
        {"ftp://h/", RC_UNSUPPORTED, "only http"},
        {"http://u:p@h/", RC_UNSUPPORTED, "user names"},
        {"http://h:", RC_FORMAT, "port of 0"},
        {"http://h:65536", RC_FORMAT, "65536"},
        {"http://h:8o", RC_FORMAT, "8o"},
        {"http://[::1", RC_FORMAT, "without ']'"},
        {"http://[::1]x", RC_FORMAT, "after ']'"},
        {"http://h/a b", RC_FORMAT, "blank"},
        {"http://h/a\r\nX: y", RC_FORMAT, "control"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct url u;
        struct err err;
        assert_int_equal(url_parse(cases[i].url, &u, &err), cases[i].rc);
        assert_non_null(strstr(err.msg, cases[i].reason));
    }
}

static void long_parts_are_refused(void **state)
{
    (void)state;
    char s[4096];
    struct url u;
    memset(s, 'a', sizeof s);
    s[sizeof s - 1] = 0;
    assert_int_equal(url_parse(s, &u, NULL), RC_FORMAT);
    memcpy(s, "h/", 2);
    assert_int_equal(url_parse(s, &u, NULL), RC_LIMIT);
    s[sizeof u.path] = 0; /* "h" and a path that just fits */
    assert_int_equal(url_parse(s, &u, NULL), RC_OK);
}

static void encoding_leaves_only_unreserved_characters(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    url_encode(&b, str_of("aZ09-._~ /?\xC3\xA4"));
    assert_string_equal(buf_str(&b), "aZ09-._~%20%2F%3F%C3%A4");
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_are_found),
        cmocka_unit_test(what_is_no_url_gets_a_reason),
        cmocka_unit_test(long_parts_are_refused),
        cmocka_unit_test(encoding_leaves_only_unreserved_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
