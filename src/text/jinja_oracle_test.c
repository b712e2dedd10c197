/* Against jinja2 itself (Debian's python3-jinja2), set up as in tests/templates/oracle.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/file.h"
#include "text/jinja.h"
#include "text/testing_int.h"

#include <cmocka.h>

#define TEMPLATES HOUSE_SOURCE_DIR "/tests/templates/"
#define NOW 1721984703 /* 2024-07-26 09:05:03 UTC, as in oracle.py */

static json_t *oracle_or_skip(const char *args)
{
    char cmd[512];
    snprintf(cmd, sizeof cmd, "python3 %soracle.py %s", TEMPLATES, args);
    FILE *const p = popen(cmd, "r");
    assert_non_null(p);
    struct buf b = BUF_INIT;
    char block[65536];
    for (size_t n; (n = fread(block, 1, sizeof block, p));)
        buf_add(&b, block, n);
    const int status = pclose(p);
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127)) {
        buf_release(&b);
        print_message("python3 with jinja2 is absent: skipped\n");
        skip();
    }
    assert_int_equal(status, 0);
    json_error_t e;
    json_t *const j = json_loadb(b.p, b.n, JSON_ALLOW_NUL, &e);
    if (!j)
        fail_msg("oracle: %s", e.text);
    buf_release(&b);
    return j;
}

static char *read_file(const char *path, size_t *n)
{
    char *s;
    struct err err;
    if (file_read_all(path, 1 << 20, &s, n, &err))
        fail_msg("%s", err.msg);
    return s;
}

/* Renders; NULL in *out when it fails. */
static void render(struct str source, const json_t *vars, struct jinja_result *out, bool *ok,
                   struct err *err)
{
    struct jinja *t = NULL;
    *ok = jinja_compile(source, &t, err) == RC_OK &&
          jinja_render(t, vars, &(struct jinja_opts){.now = NOW}, out, err) == RC_OK;
    jinja_free(t);
}

static bool check(const char *what, struct str source, const json_t *vars, const json_t *want)
{
    struct jinja_result got = {0};
    struct err err = {0};
    bool ok;
    render(source, vars, &got, &ok, &err);
    const bool wanted = json_is_string(want);
    const bool same =
        wanted == ok && (!ok || (got.text.n == json_string_length(want) &&
                                 !memcmp(buf_str(&got.text), json_string_value(want), got.text.n)));
    if (!same)
        print_error("%s: %.*s\n  want %s\n  got  %s\n", what, (int)MIN(source.n, 300), source.p,
                    wanted ? json_string_value(want) : "an error",
                    ok ? buf_str(&got.text) : err.msg);
    jinja_result_release(&got);
    return same;
}

static void every_snippet_renders_as_jinja2_does(void **state)
{
    (void)state;
    json_t *const want = oracle_or_skip("snippets " TEMPLATES "snippets.txt");
    json_t *const vars = test_json(TEMPLATES "snippets.json");
    size_t n, at = 0, i = 0, bad = 0;
    char *const text = read_file(TEMPLATES "snippets.txt", &n);
    const struct str all = {text, n};
    for (; at <= n; i++) {
        const ptrdiff_t hit = str_find(all, str_of("\n%%\n"), at);
        const size_t end = hit < 0 ? n : (size_t)hit;
        bad += !check("snippet", (struct str){text + at, end - at}, vars, json_array_get(want, i));
        at = end + 4;
    }
    assert_int_equal(i, json_array_size(want));
    assert_true(i > 100);
    assert_int_equal(bad, 0);
    mem_free(text);
    json_decref(vars);
    json_decref(want);
}

static void every_template_renders_every_conversation_as_jinja2_does(void **state)
{
    (void)state;
    json_t *const want = oracle_or_skip("templates");
    json_t *const talks = test_json(TEMPLATES "conversations.json");
    const char *name, *talk;
    json_t *texts, *text;
    size_t bad = 0, rendered = 0;
    assert_true(json_object_size(want) >= 12);
    assert_true(json_object_size(talks) >= 20);
    json_object_foreach(want, name, texts)
    {
        char path[512], what[256];
        size_t n;
        snprintf(path, sizeof path, "%s%s", TEMPLATES, name);
        char *const source = read_file(path, &n);
        json_object_foreach(texts, talk, text)
        {
            snprintf(what, sizeof what, "%s, %s", name, talk);
            bad += !check(what, (struct str){source, n}, json_object_get(talks, talk), text);
            rendered += json_is_string(text);
        }
        mem_free(source);
    }
    print_message("%zu renderings, %zu of them texts\n",
                  json_object_size(want) * json_object_size(talks), rendered);
    assert_int_equal(bad, 0);
    assert_true(rendered * 4 > json_object_size(want) * json_object_size(talks) * 3);
    json_decref(talks);
    json_decref(want);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_snippet_renders_as_jinja2_does),
        cmocka_unit_test(every_template_renders_every_conversation_as_jinja2_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
