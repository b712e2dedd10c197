/* The findings as text, Markdown and HTML: what stands in them, and that every plot has marks. */
#include "lab/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "lab/doc.h"
#include "lab/forensics.h"
#include "lab/levers.h"
#include "lab/plot.h"

#include <cmocka.h>

static json_t *summary_of(const char *name)
{
    char path[512], trace[] = "/tmp/holdfast-report-test-XXXXXX";
    struct err err;
    struct forensics *f;
    struct forensics_engine e;
    json_t *sim, *s;
    const int fd = mkstemp(trace);
    assert_true(fd >= 0);
    close(fd);
    snprintf(path, sizeof path, "%s/tests/logs/%s", HOUSE_SOURCE_DIR, name);
    assert_int_equal(
        forensics_new(&(struct forensics_opts){.now = 1.8e9, .trace_path = trace}, &f, &err), 0);
    if (forensics_file(f, path, false, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(forensics_end(f, &err), 0);
    forensics_engine(f, &e);
    if (levers_predict(trace, &e, &sim, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(forensics_summary(f, sim, &s, &err), 0);
    forensics_free(f);
    unlink(trace);
    return s;
}

static size_t times(const char *hay, const char *needle)
{
    size_t n = 0;
    for (const char *p = hay; (p = strstr(p, needle)); p += strlen(needle))
        n++;
    return n;
}

static void must_have(const char *what, const char *text, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strstr(text, parts[i]))
            fail_msg("%s: no \"%s\" in:\n%s", what, parts[i], text);
}

static void the_page_of_text_answers_why_and_what(void **state)
{
    (void)state;
    json_t *s = summary_of("mainline-plain.log");
    struct buf b = BUF_INIT;
    report_text(s, &b);
    static const char *const parts[] = {"a build between 2025-10-30 and 2026-01-09",
                                        "5: 4 timed, 1 cancelled",
                                        "1  forced full re-prefill",
                                        "1,514 tokens evaluated again",
                                        "placement: no checkpoint at or below the divergence",
                                        "task 40, slot 0: 1,500 of 3,400 tokens again",
                                        "llama-20251030",
                                        "hold, 4 GiB"};
    must_have("text", buf_str(&b), parts, COUNT_OF(parts));
    buf_release(&b);
    json_decref(s);
}

static void pxa_logs_are_held_against_pxas_levers(void **state)
{
    (void)state;
    json_t *s = summary_of("pxa.log");
    const json_t *policies = json_object_get(json_object_get(s, "simulated"), "policies"), *p;
    size_t i, seen = 0;
    json_array_foreach(policies, i, p) seen +=
        !strncmp(json_string_value(json_object_get(p, "name")), "pxa-policy0", 11);
    assert_true(seen >= 2);
    json_decref(s);
}

static void markdown_and_html_say_the_same(void **state)
{
    (void)state;
    json_t *s = summary_of("mainline-plain.log");
    struct buf md = BUF_INIT, html = BUF_INIT;
    report_document(s, &md, false);
    report_document(s, &html, true);
    static const char *const both[] = {"13,050 prompt tokens", "Prefill forensics", "1,514",
                                       "What would help", "retention (inferred)"};
    must_have("Markdown", buf_str(&md), both, COUNT_OF(both));
    must_have("HTML", buf_str(&html), both, COUNT_OF(both));
    assert_int_equal(times(buf_str(&md), "\n## "), times(buf_str(&html), "<h2>"));
    static const char *const page[] = {"prefers-color-scheme:dark", "@media print", "</html>"};
    must_have("HTML", buf_str(&html), page, COUNT_OF(page));
    assert_null(strstr(buf_str(&html), "src=")); /* self-contained */
    assert_null(strstr(buf_str(&html), "href="));
    assert_null(strstr(buf_str(&html), "nan"));
    buf_release(&md);
    buf_release(&html);
    json_decref(s);
}

static void every_plot_has_marks(void **state)
{
    (void)state;
    json_t *s = summary_of("mainline-plain.log");
    struct buf b = BUF_INIT;
    report_document(s, &b, true);
    size_t n = 0;
    for (const char *p = buf_str(&b); (p = strstr(p, "<svg class=\"plot\"")); n++) {
        const char *end = strstr(p, "</svg>");
        assert_non_null(end);
        const size_t k = (size_t)(end - p);
        assert_non_null(memmem(p, k, "class=\"mark", 11));
        assert_non_null(memmem(p, k, "<title>", 7));
        p = end;
    }
    assert_int_equal(n, 4); /* prefixes, cost, lives of slot 0, policies */
    buf_release(&b);
    json_decref(s);
}

static void names_from_logs_are_escaped(void **state)
{
    (void)state;
    struct err err;
    struct forensics *f;
    json_t *s;
    static const char text[] =
        "<b>-1\"  | slot x: id  0 | task 0 | processing task\n"
        "<b>-1\"  | slot x: id  0 | task 0 | prompt eval time = 1.00 ms / 10 tokens\n";
    assert_int_equal(
        forensics_new(&(struct forensics_opts){.now = 1.8e9, .keep_turns = true}, &f, &err), 0);
    assert_int_equal(forensics_mem(f, "<script>alert(1)</script>|`x", text, sizeof text - 1, &err),
                     0);
    assert_int_equal(forensics_end(f, &err), 0);
    assert_int_equal(forensics_summary(f, NULL, &s, &err), 0);
    struct buf b = BUF_INIT;
    report_document(s, &b, true);
    assert_null(strstr(buf_str(&b), "<script"));
    assert_null(strstr(buf_str(&b), "<b>"));
    buf_release(&b);
    json_decref(s);
    forensics_free(f);
}

static void an_empty_log_makes_a_report_too(void **state)
{
    (void)state;
    struct err err;
    struct forensics *f;
    json_t *s;
    assert_int_equal(forensics_new(&(struct forensics_opts){.now = 1.8e9}, &f, &err), 0);
    assert_int_equal(forensics_mem(f, "empty", "", 0, &err), 0);
    assert_int_equal(forensics_end(f, &err), 0);
    assert_int_equal(forensics_summary(f, NULL, &s, &err), 0);
    struct buf b = BUF_INIT;
    report_text(s, &b);
    report_document(s, &b, false);
    report_document(s, &b, true);
    assert_false(b.failed);
    assert_non_null(strstr(buf_str(&b), "nothing recognised"));
    assert_non_null(strstr(buf_str(&b), "no rate"));
    buf_release(&b);
    json_decref(s);
    forensics_free(f);
}

static void running_out_of_memory_is_said(void **state)
{
    (void)state;
    size_t n;
    char path[512], *text;
    struct err err;
    snprintf(path, sizeof path, "%s/tests/logs/pxa.log", HOUSE_SOURCE_DIR);
    assert_int_equal(file_read_all(path, MIB, &text, &n, &err), 0);
    bool done = false;
    for (uint64_t k = 1; !done && k < 400; k++) {
        struct forensics *f = NULL;
        json_t *s = NULL;
        mem_fail_after(k);
        enum rc rc =
            forensics_new(&(struct forensics_opts){.now = 1.8e9, .keep_turns = true}, &f, &err);
        if (!rc)
            rc = forensics_mem(f, "x", text, n, &err);
        if (!rc)
            rc = forensics_end(f, &err);
        if (!rc)
            rc = forensics_summary(f, NULL, &s, &err);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM);
        done = k > 300;
        json_decref(s);
        forensics_free(f);
    }
    mem_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_of_text_answers_why_and_what),
        cmocka_unit_test(pxa_logs_are_held_against_pxas_levers),
        cmocka_unit_test(markdown_and_html_say_the_same),
        cmocka_unit_test(every_plot_has_marks),
        cmocka_unit_test(names_from_logs_are_escaped),
        cmocka_unit_test(an_empty_log_makes_a_report_too),
        cmocka_unit_test(running_out_of_memory_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
