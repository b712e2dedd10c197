#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "text/jinja.h"

#include <cmocka.h>

static enum rc render_with(const char *source, const json_t *vars, const struct jinja_opts *o,
                           struct jinja_result *out, struct err *err)
{
    struct jinja *t = NULL;
    enum rc rc = jinja_compile(str_of(source), &t, err);
    if (!rc)
        rc = jinja_render(t, vars, o, out, err);
    jinja_free(t);
    return rc;
}

/* Small, so that running away is soon over. */
static const struct jinja_opts limits = {
    .max_steps = 500000, .max_output = 1 << 20, .max_memory = 16 << 20};

static void expect_error(const char *source, enum rc want, const char *says)
{
    struct jinja_result out = {0};
    struct err err = {0};
    json_t *const vars = json_pack("{s:s, s:[i,i]}", "s", "text", "l", 1, 2);
    const enum rc rc = render_with(source, vars, &limits, &out, &err);
    if (rc != want || !strstr(err.msg, says))
        fail_msg("%s: %s \"%s\"", source, rc_name(rc), err.msg);
    assert_int_equal(out.text.n, 0);
    jinja_result_release(&out);
    json_decref(vars);
}

static void an_error_names_line_and_column(void **state)
{
    (void)state;
    expect_error("a\n  {{ s.x.y }}", RC_ARG, "line 2, column 9: 'str object' has no attribute 'x'");
    expect_error("\u00e9\u00e9{{ nope.x }}", RC_ARG, "line 1, column 10: 'nope' is undefined");
    expect_error("a\r\nb\r\n{{ 1 / 0 }}", RC_ARG, "line 3, column 6: division by zero");
    expect_error("{{ raise_exception('no tools') }}", RC_ARG, "line 1, column 19: no tools");
    expect_error("{% if x %}", RC_FORMAT, "line 1, column 11: unexpected end");
    expect_error("x\n{% for a b %}", RC_FORMAT, "line 2, column 10: expected in");
    expect_error("{{ 'a }}", RC_FORMAT, "line 1, column 4: unexpected end of a string");
    expect_error("{{ a | nope }}", RC_FORMAT, "line 1, column 8: no filter named 'nope'");
    expect_error("{{ a is nope }}", RC_FORMAT, "line 1, column 9: no test named 'nope'");
    expect_error("{% include 'x' %}", RC_FORMAT, "line 1, column 4: unknown statement 'include'");
    expect_error("{# ", RC_FORMAT, "line 1, column 1: missing end of comment");
    expect_error("{{ a", RC_FORMAT, "line 1, column 1: missing }}");
    expect_error("{{ a ? }}", RC_FORMAT, "line 1, column 6: unexpected character");
}

static void what_runs_away_meets_a_limit(void **state)
{
    (void)state;
    expect_error("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                 RC_LIMIT, "too m"); /* steps or memory */
    expect_error("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
                 "{{ f(40) }}",
                 RC_LIMIT, "too m");
    expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", RC_LIMIT, "nested too deeply");
    expect_error("{{ 'x' * 999999999 }}", RC_LIMIT, "too long");
    expect_error("{% set n = namespace(x='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}"
                 "{% set n.x = n.x + n.x %}{% endfor %}",
                 RC_LIMIT, "too much memory");
    expect_error("{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}"
                 "{% endfor %}{{ n.x }}",
                 RC_LIMIT, "nested too deeply");
    expect_error("{{ range(1000000) }}", RC_LIMIT, "range");
    expect_error("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", RC_LIMIT, "line 1");
    expect_error("{{ 9223372036854775807 + 1 }}", RC_LIMIT, "too large");
    expect_error("{{ '%999999999d' % 1 }}", RC_ARG, "unsupported format");
    expect_error("{{ s.ljust(99999999999) }}", RC_LIMIT, "too long");

    struct buf b = BUF_INIT;
    for (int i = 0; i < 100000; i++)
        buf_adds(&b, "(");
    struct jinja *t = NULL;
    struct err err;
    struct buf open = BUF_INIT;
    buf_addf(&open, "{{ %s", b.p);
    assert_int_equal(jinja_compile(str_of(open.p), &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "too many brackets"));
    buf_clear(&open);
    for (int i = 0; i < 10000; i++)
        buf_adds(&open, "{% if 1 %}");
    assert_int_equal(jinja_compile(str_of(open.p), &t, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "nested too deeply"));
    buf_clear(&open);
    buf_adds(&open, "{{ 1");
    for (int i = 0; i < 10000; i++)
        buf_adds(&open, " + 1");
    buf_adds(&open, " }}");
    expect_error(open.p, RC_LIMIT, "nested too deeply"); /* a chain leans to the left */
    buf_clear(&open);
    for (int i = 0; i < 3000; i++)
        buf_adds(&open, "{{ not not -(-1) }}");
    struct jinja_result out = {0};
    assert_int_equal(render_with(open.p, NULL, &(struct jinja_opts){0}, &out, &err), RC_OK);
    assert_int_equal(out.text.n, 4 * 3000);
    jinja_result_release(&out);
    buf_release(&open);
    buf_release(&b);
}

/* Writes each mark as source:text. */
static void check_marks(const char *source, const json_t *vars, const struct jinja_source *src,
                        size_t n, const char *want)
{
    struct jinja_result out = {0};
    struct err err;
    struct buf b = BUF_INIT;
    if (render_with(source, vars, &(struct jinja_opts){.sources = src, .n_sources = n}, &out, &err))
        fail_msg("%s: %s", source, err.msg);
    for (size_t i = 0; i < out.n_marks; i++) {
        const struct jinja_mark m = out.marks[i];
        assert_true(m.begin < m.end && m.end <= out.text.n);
        buf_addf(&b, "%s%u:%.*s|", m.source & JINJA_LOOP ? "L" : "", m.source & ~JINJA_LOOP,
                 (int)(m.end - m.begin), out.text.p + m.begin);
    }
    assert_string_equal(buf_str(&b), want);
    buf_release(&b);
    jinja_result_release(&out);
}

static void text_is_followed_from_input_to_output(void **state)
{
    (void)state;
    json_t *const vars =
        json_pack("{s:[{s:s,s:s},{s:s,s:s}],s:[s]}", "ms", "role", "user", "content", " hi there ",
                  "role", "bot", "content", "<think>why</think>so", "tools", "T");
    const json_t *const ms = json_object_get(vars, "ms");
    const json_t *const m0 = json_array_get(ms, 0), *const m1 = json_array_get(ms, 1);
    const struct jinja_source src[] = {{m0, 1},
                                       {json_object_get(m0, "content"), 2},
                                       {m1, 3},
                                       {json_object_get(m1, "content"), 4},
                                       {json_object_get(vars, "tools"), 5}};
    const size_t n = COUNT_OF(src);
    check_marks("{% for m in ms %}[{{ m.role }}]{{ m.content | trim }};{% endfor %}", vars, src, n,
                "1:user|2:hi there|L1:[user]hi there;|3:bot|4:<think>why</think>so|"
                "L3:[bot]<think>why</think>so;|");
    /* through +, ~, split, slices, blocks, macros, join, replace and tojson */
    check_marks("{{ 'x' + ms[0].content[1:3] + 'y' }}", vars, src, n, "2:hi|");
    check_marks("{{ 'a' ~ ms[1].content.split('</think>')[-1] ~ ms[0].content.strip() }}", vars,
                src, n, "4:so|2:hi there|");
    check_marks("{% set c %}<{{ ms[0].content }}>{% endset %}{{ c | upper }}", vars, src, n,
                "2:< HI THERE >|");
    check_marks(
        "{% macro f(x) %}({{ x.content | replace('hi', 'ho') }}){% endmacro %}{{ f(ms[0]) }}", vars,
        src, n, "2: |2: there |");
    check_marks("{{ [ms[1].role, ms[0].role] | join('-') }}", vars, src, n, "3:bot|1:user|");
    check_marks("{{ ms[0] | tojson }}{{ tools | tojson }}", vars, src, n,
                "1:{\"role\": \"user\", \"content\": \" hi there \"}|5:[\"T\"]|");
    check_marks("{% for m in ms %}{% endfor %}{{ ms | length }}", vars, src, n, "");
    json_decref(vars);
}

static void one_template_renders_in_many_threads_worth_of_runs(void **state)
{
    (void)state; /* a run leaves nothing behind in the template */
    struct jinja *t = NULL;
    struct err err;
    assert_int_equal(jinja_compile(str_of("{% macro m(a=[]) %}{{ a }}{% endmacro %}"
                                          "{% set x = x | default(0) + 1 %}{{ x }}{{ m() }}"),
                                   &t, &err),
                     RC_OK);
    for (int i = 0; i < 3; i++) {
        struct jinja_result out = {0};
        assert_int_equal(jinja_render(t, NULL, &(struct jinja_opts){0}, &out, &err), RC_OK);
        assert_string_equal(buf_str(&out.text), "1[]");
        jinja_result_release(&out);
    }
    jinja_free(t);
}

static void no_allocation_failure_leaks_or_crashes(void **state)
{
    (void)state;
    static const char source[] =
        "{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(x=1) %}"
        "{% for k, v in {'a': [1, 'x'], 'b': s}.items() %}{{ loop.index }}{{ f(k, b=v) | upper }}"
        "{% endfor %}{{ [3, 1] | sort | join(',') }}{{ s | tojson }}{{ '%s' % s }}"
        "{% set c %}{{ s }}{% endset %}{{ c.split('e') }}";
    json_t *const vars = json_pack("{s:s}", "s", "text");
    const struct jinja_source src = {json_object_get(vars, "s"), 9};
    enum rc rc = RC_NOMEM;
    uint64_t n = 1;
    for (; rc == RC_NOMEM; n++) {
        struct jinja_result out = {0};
        struct err err;
        mem_fail_after(n);
        rc = render_with(source, vars, &(struct jinja_opts){.sources = &src, .n_sources = 1}, &out,
                         &err);
        mem_fail_after(0);
        if (rc == RC_LIMIT) /* a full output and no memory look the same to a buffer */
            rc = RC_NOMEM;
        jinja_result_release(&out);
    }
    assert_int_equal(rc, RC_OK);
    assert_true(n > 8);
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_names_line_and_column),
        cmocka_unit_test(what_runs_away_meets_a_limit),
        cmocka_unit_test(text_is_followed_from_input_to_output),
        cmocka_unit_test(one_template_renders_in_many_threads_worth_of_runs),
        cmocka_unit_test(no_allocation_failure_leaks_or_crashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
