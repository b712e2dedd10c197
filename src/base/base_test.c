/* base_test.c - the small rooms' promises: errors, memory, bytes, text, JSON, files, percentiles. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/event.h"
#include "base/file.h"
#include "base/hist.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void an_error_names_where_and_what(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(err_set(&e, RC_FORMAT, "tensor %s ends at %d", "x", 7), RC_FORMAT);
    assert_int_equal(err_wrap(&e, RC_FORMAT, "model %s", "m.gguf"), RC_FORMAT);
    assert_string_equal(e.msg, "model m.gguf: tensor x ends at 7");
    assert_int_equal(err_wrap(&e, RC_OK, "never"), RC_OK);
    assert_string_equal(e.msg, "model m.gguf: tensor x ends at 7");
    errno = ENOENT;
    assert_int_equal(err_sys(&e, "cannot open %s", "f"), RC_IO);
    assert_string_equal(e.msg, "cannot open f: No such file or directory");
    assert_int_equal(e.sys, ENOENT);
    assert_int_equal(err_set(NULL, RC_ARG, "x"), RC_ARG);
}

static void a_long_message_is_cut_not_overrun(void **state)
{
    (void)state;
    struct err e;
    char big[1000];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_set(&e, RC_ARG, "%s", big);
    err_wrap(&e, RC_ARG, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
}

static void injected_failures_begin_at_the_nth_call(void **state)
{
    (void)state;
    mem_fail_after(3);
    void *a = mem_try(1), *b = mem_try(1), *c = mem_try(1), *d = mem_try(1);
    mem_fail_after(0);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    assert_null(d);
    mem_free(a);
    mem_free(b);
    assert_null(mem_try_array(SIZE_MAX / 2, 4));
    assert_null(mem_try_aligned(64, SIZE_MAX - 8));
}

static void an_arena_gives_zeroed_aligned_memory_up_to_its_limit(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 100000);
    for (size_t i = 1; i < 300; i++) {
        unsigned char *p = arena_try(&a, i);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t j = 0; j < i; j++)
            assert_int_equal(p[j], 0);
        memset(p, 0xff, i);
    }
    assert_non_null(arena_try(&a, 30000));
    assert_null(arena_try(&a, 30000));
    assert_null(arena_try(&a, SIZE_MAX));
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    arena_release(&a);
}

static void a_buffer_fails_once_and_stays_failed(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    b.limit = 8;
    buf_adds(&b, "1234");
    buf_addf(&b, "%d", 56);
    assert_string_equal(buf_str(&b), "123456");
    buf_adds(&b, "789");
    assert_true(b.failed);
    buf_addc(&b, 'x');
    assert_string_equal(buf_str(&b), "123456");
    assert_null(buf_take(&b));
    buf_adds(&b, "abcdef");
    buf_eat(&b, 2);
    buf_truncate(&b, 3);
    assert_string_equal(buf_str(&b), "cde");
    char *s = buf_take(&b);
    assert_string_equal(s, "cde");
    mem_free(s);
    assert_string_equal(buf_str(&b), "");
    buf_release(&b);
}

static void numbers_are_read_whole_or_not_at_all(void **state)
{
    (void)state;
    int64_t i;
    uint64_t u;
    double d;
    assert_true(str_to_i64("-42", &i) && i == -42);
    assert_false(str_to_i64("42x", &i) || str_to_i64("", &i) || str_to_i64(" 4", &i));
    assert_false(str_to_i64("9223372036854775808", &i));
    assert_true(str_to_u64("18446744073709551615", &u) && u == UINT64_MAX);
    assert_false(str_to_u64("-1", &u));
    assert_true(str_to_f64("1e-3", &d) && d == 1e-3);
    assert_false(str_to_f64("nan", &d) || str_to_f64("1.0f", &d));
    assert_true(str_to_bytes("1.5G", &u) && u == 3 * GIB / 2);
    assert_true(str_to_bytes("64KiB", &u) && u == 65536);
    assert_true(str_to_bytes("7", &u) && u == 7);
    assert_false(str_to_bytes("7Q", &u) || str_to_bytes("99999999999T", &u));
    char s[16];
    str_from_bytes(65863680, s);
    assert_string_equal(s, "62.8 MiB");
    str_from_bytes(UINT64_MAX, s);
    assert_string_equal(s, "16.0 EiB");
    assert_int_equal(str_find(str_of("banana"), str_of("na"), 3), 4);
    assert_int_equal(str_find(str_of("banana"), str_of("x"), 0), -1);
}

static void utf8_round_trips_and_is_never_split(void **state)
{
    (void)state;
    static const uint32_t cps[] = {0x24, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0x10000, 0x10FFFF};
    for (size_t i = 0; i < COUNT_OF(cps); i++) {
        char s[4];
        uint32_t cp;
        const size_t n = utf8_encode(cps[i], s);
        assert_int_equal(utf8_decode(s, n, &cp), n);
        assert_int_equal(cp, cps[i]);
        for (size_t cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_complete(s, cut), 0);
            assert_false(utf8_valid(s, cut));
        }
        assert_int_equal(utf8_complete(s, n), n);
    }
    assert_false(utf8_valid("\xC0\x80", 2));
    assert_false(utf8_valid("\xED\xA0\x80", 3));
    assert_false(utf8_valid("\xF4\x90\x80\x80", 4));
    assert_int_equal(utf8_complete("a\xED\xA0", 3), 3); /* can never become valid */
    assert_int_equal(utf8_complete("a\xFF", 2), 2);
    assert_int_equal(utf8_complete("ab\xE2\x82", 4), 2);
}

static void json_reads_name_the_field(void **state)
{
    (void)state;
    struct err e;
    json_t *o;
    const char text[] = "{\"n\":3,\"f\":0.5,\"s\":\"x\",\"b\":true,\"z\":null,\"w\":4.0}";
    assert_int_equal(jread_parse(text, sizeof text - 1, &o, &e), RC_OK);
    int64_t n = 9;
    double f = 9;
    bool b = false;
    const char *s = "d";
    assert_int_equal(jread_i64(o, "n", 0, 10, &n, &e), RC_OK);
    assert_int_equal(n, 3);
    assert_int_equal(jread_i64(o, "w", 0, 10, &n, &e), RC_OK);
    assert_int_equal(n, 4);
    assert_int_equal(jread_i64(o, "z", 0, 10, &n, &e), RC_OK);
    assert_int_equal(jread_i64(o, "none", 0, 10, &n, &e), RC_OK);
    assert_int_equal(n, 4);
    assert_int_equal(jread_i64(o, "n", 4, 10, &n, &e), RC_ARG);
    assert_non_null(strstr(e.msg, "n is 3, must be 4 to 10"));
    assert_int_equal(jread_i64(o, "f", 0, 10, &n, &e), RC_ARG);
    assert_int_equal(jread_f64(o, "f", 0, 1, &f, &e), RC_OK);
    assert_true(f == 0.5);
    assert_int_equal(jread_bool(o, "b", &b, &e), RC_OK);
    assert_true(b);
    assert_int_equal(jread_bool(o, "s", &b, &e), RC_ARG);
    assert_int_equal(jread_str(o, "s", &s, &e), RC_OK);
    assert_string_equal(s, "x");
    assert_int_equal(jread_str(o, "n", &s, &e), RC_ARG);
    json_decref(o);
    assert_int_equal(jread_parse("{\"s\":\"a\\u0000b\"}", 16, &o, &e), RC_OK);
    assert_int_equal(json_string_length(json_object_get(o, "s")), 3);
    assert_int_equal(jread_str(o, "s", &s, &e), RC_ARG);
    json_decref(o);
    assert_int_equal(jread_parse("{\n\"a\":}", 7, &o, &e), RC_FORMAT);
    assert_non_null(strstr(e.msg, "line 2"));
}

static void what_is_written_as_json_reads_back(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct jwrite w;
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "s", "a\"\\\n\t\x01\xC3\xA9");
    jwrite_strn(&w, "bad", "x\xFFy", 3);
    jwrite_arr(&w, "a");
    jwrite_i64(&w, NULL, -5);
    jwrite_f64(&w, NULL, 0.1);
    jwrite_f64(&w, NULL, (double)NAN);
    jwrite_obj(&w, NULL);
    jwrite_end_obj(&w);
    jwrite_end_arr(&w);
    jwrite_bool(&w, "t", true);
    jwrite_fixed(&w, "ms", 1.23456, 2);
    jwrite_end_obj(&w);
    assert_string_equal(buf_str(&b),
                        "{\"s\":\"a\\\"\\\\\\n\\t\\u0001\xC3\xA9\",\"bad\":\"x\xEF\xBF\xBDy\","
                        "\"a\":[-5,0.1,null,{}],\"t\":true,\"ms\":1.23}");
    json_t *o;
    assert_int_equal(jread_parse(b.p, b.n, &o, NULL), RC_OK);
    json_decref(o);
    buf_release(&b);
}

static void a_file_is_replaced_whole_or_not_at_all(void **state)
{
    (void)state;
    char dir[] = "/tmp/holdfast-base-XXXXXX", path[64], bad[64];
    struct err e;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    snprintf(bad, sizeof bad, "%s/no/f", dir);
    assert_int_equal(file_write_atomically(path, "one", 3, &e), RC_OK);
    assert_int_equal(file_write_atomically(path, "second", 6, &e), RC_OK);
    char *p;
    size_t n;
    assert_int_equal(file_read_all(path, 100, &p, &n, &e), RC_OK);
    assert_int_equal(n, 6);
    assert_string_equal(p, "second");
    mem_free(p);
    assert_int_equal(file_read_all(path, 5, &p, &n, &e), RC_LIMIT);
    assert_int_equal(file_read_all(dir, 5, &p, &n, &e), RC_ARG);
    assert_int_equal(file_write_atomically(bad, "x", 1, &e), RC_IO);
    char link[256];
    struct stat st;
    snprintf(link, sizeof link, "%s/link", dir);
    assert_int_equal(symlink("f", link), 0);
    assert_int_equal(file_write_atomically(link, "second", 6, &e), RC_OK);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    unlink(link);
    assert_int_equal(file_write_atomically("/dev/full", "x", 1, &e), RC_IO);
    assert_int_equal(file_write_atomically("/dev/null", "x", 1, &e), RC_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    struct filemap m;
    assert_int_equal(filemap_open(&m, path, &e), RC_OK);
    assert_memory_equal(m.p, "second", 6);
    filemap_close(&m);
    assert_int_equal(filemap_open(&m, bad, &e), RC_IO);
    assert_non_null(strstr(e.msg, bad));
    assert_int_equal(filemap_read(&m, bad, &e), RC_IO);
    assert_int_equal(filemap_read(&m, dir, &e), RC_ARG);
    unlink(path);
    rmdir(dir);
}

static void a_file_that_was_read_is_a_copy_until_it_is_dropped(void **state)
{
    (void)state;
    enum { N = 5 * 4096 + 17 };
    char path[] = "/tmp/holdfast-read-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    static uint8_t bytes[N];
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 4096);
    assert_int_equal(file_write_all(fd, bytes, N, NULL), RC_OK);
    struct filemap m;
    assert_int_equal(filemap_read(&m, path, NULL), RC_OK);
    assert_int_equal(m.n, N);
    assert_memory_equal(m.p, bytes, N);
    /* the file changes: the copy does not, but for what is dropped */
    uint8_t other[N] = {0};
    assert_int_equal(pwrite(fd, other, N, 0), N);
    assert_memory_equal(m.p, bytes, N);
    filemap_drop(&m, 100, 3 * 4096);
    assert_memory_equal(m.p, bytes, 4096);
    assert_memory_equal(m.p + 4096, other, 2 * 4096);
    assert_memory_equal(m.p + 3 * 4096, bytes + 3 * 4096, N - 3 * 4096);
    filemap_close(&m);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(filemap_read(&m, path, NULL), RC_OK);
    assert_int_equal(m.n, 0);
    filemap_close(&m);
    close(fd);
    unlink(path);
}

static void events_are_one_json_line_each(void **state)
{
    (void)state;
    char path[] = "/tmp/holdfast-event-XXXXXX";
    close(mkstemp(path));
    struct event_log *l;
    assert_int_equal(event_log_open(path, &l, NULL), RC_OK);
    event_evict(l, &(struct event_evict){
                       .snap = 7, .pos = 64, .kind = "branch", .bytes = 5, .why = "budget"});
    event_evict(NULL, &(struct event_evict){0});
    event_log_close(l);
    char *p;
    size_t n;
    assert_int_equal(file_read_all(path, 1000, &p, &n, NULL), RC_OK);
    json_t *o;
    assert_int_equal(jread_parse(p, n, &o, NULL), RC_OK);
    assert_string_equal(json_string_value(json_object_get(o, "ev")), "evict");
    assert_int_equal(json_integer_value(json_object_get(o, "snap")), 7);
    assert_string_equal(json_string_value(json_object_get(o, "why")), "budget");
    json_decref(o);
    mem_free(p);
    unlink(path);
}

static void quantiles_interpolate_between_ranks(void **state)
{
    (void)state;
    struct hist h;
    hist_init(&h);
    assert_true(isnan(hist_quantile(&h, 0.5)));
    for (int i = 10; i >= 0; i--)
        hist_add(&h, i);
    assert_true(hist_quantile(&h, 0.5) == 5.0);
    assert_true(hist_quantile(&h, 0.25) == 2.5);
    assert_true(hist_quantile(&h, 1) == 10.0);
    assert_true(hist_mean(&h) == 5.0);
    hist_release(&h);
}

static void normals_have_mean_zero_and_variance_one(void **state)
{
    (void)state;
    struct rng r = {1};
    double sum = 0, sq = 0;
    for (int i = 0; i < 100000; i++) {
        const double x = rng_normal(&r);
        sum += x;
        sq += x * x;
    }
    assert_true(fabs(sum / 1e5) < 0.02 && fabs(sq / 1e5 - 1) < 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_names_where_and_what),
        cmocka_unit_test(a_long_message_is_cut_not_overrun),
        cmocka_unit_test(injected_failures_begin_at_the_nth_call),
        cmocka_unit_test(an_arena_gives_zeroed_aligned_memory_up_to_its_limit),
        cmocka_unit_test(a_buffer_fails_once_and_stays_failed),
        cmocka_unit_test(numbers_are_read_whole_or_not_at_all),
        cmocka_unit_test(utf8_round_trips_and_is_never_split),
        cmocka_unit_test(json_reads_name_the_field),
        cmocka_unit_test(what_is_written_as_json_reads_back),
        cmocka_unit_test(a_file_is_replaced_whole_or_not_at_all),
        cmocka_unit_test(a_file_that_was_read_is_a_copy_until_it_is_dropped),
        cmocka_unit_test(events_are_one_json_line_each),
        cmocka_unit_test(quantiles_interpolate_between_ranks),
        cmocka_unit_test(normals_have_mean_zero_and_variance_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
