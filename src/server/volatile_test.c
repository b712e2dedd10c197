/* The texts are those that clients were seen to send. */
#include "server/volatile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* One system message and one of the user, with the same text. */
static json_t *conversation(const char *text)
{
    return json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", text, "role", "user",
                     "content", text);
}

static void expect(const char *kinds, const char *text, const char *want)
{
    unsigned k;
    json_t *m = conversation(text);
    assert_int_equal(volatile_parse(kinds, &k, NULL), RC_OK);
    assert_int_equal(volatile_drop(k, &m, NULL), RC_OK);
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 0), "content")), want);
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 1), "content")), text);
    json_decref(m);
}

static const char claude[] =
    "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;\n"
    "You are Claude Code.\n"
    "<env>\nWorking directory: /home/u/p\nIs directory a git repo: Yes\nPlatform: linux\n"
    "Today's date: 2026-03-31\n</env>\n"
    "gitStatus: This is the git status at the start of the conversation.\n"
    "Current branch: main\n\nStatus:\n M a.c\n\nRecent commits:\n1234567 x\n89abcde y\n\n"
    "# Tone\nBe brief.";

static void each_kind_drops_its_own_lines(void **state)
{
    (void)state;
    expect("", claude, claude);
    expect("billing", "x-anthropic-billing-header: cch=1;\nYou.", "You.");
    expect("date", "a\n  Today's date: Mon Mar 02 2026\n - Today's date is 2026-03-31.\nb", "a\nb");
    expect("date", "  <current_date>2026-05-16</current_date>\n  <cwd>/x</cwd>\n",
           "  <cwd>/x</cwd>\n");
    expect("cwd", "  <current_date>2026-05-16</current_date>\n  <cwd>/x</cwd>\n",
           "  <current_date>2026-05-16</current_date>\n");
    expect("cwd", "- Primary working directory: /home/u\n- Platform: linux", "- Platform: linux");
    expect("session", "Session ID: 12\nx", "x");
    expect("git", claude,
           "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;\n"
           "You are Claude Code.\n<env>\nWorking directory: /home/u/p\nPlatform: linux\n"
           "Today's date: 2026-03-31\n</env>\n\n# Tone\nBe brief.");
    expect("all", claude,
           "You are Claude Code.\n<env>\nPlatform: linux\n</env>\n\n# Tone\nBe brief.");
}

static void talk_about_dates_is_left_alone(void **state)
{
    (void)state;
    static const char text[] = "Say Today's date: when asked.\nWhat is Today's date is not known.";
    expect("all", text, text);
}

static void a_part_with_nothing_left_goes(void **state)
{
    (void)state;
    json_t *m =
        json_pack("[{s:s,s:[{s:s,s:s},{s:s,s:s}]},{s:s,s:s}]", "role", "system", "content", "type",
                  "text", "text", "x-anthropic-billing-header: cch=1;", "type", "text", "text",
                  "You are", "role", "system", "content", "Today's date: now\nyes");
    json_t *was = json_deep_copy(m), *old = json_incref(m);
    assert_int_equal(volatile_drop(VOLATILE_BILLING | VOLATILE_DATE, &m, NULL), RC_OK);
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 0), "content")),
                        "You are");
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 1), "content")), "yes");
    assert_true(json_equal(old, was)); /* the client's own is not touched */
    json_decref(old);
    json_decref(was);
    json_decref(m);
}

static void malformed_messages_are_left_to_who_checks_them(void **state)
{
    (void)state;
    static const char *const texts[] = {"[5]", "[{\"role\":5}]", "[{\"role\":\"system\"}]",
                                        "[{\"role\":\"system\",\"content\":[5,{\"text\":5}]}]"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        json_t *m = json_loads(texts[i], 0, NULL);
        assert_int_equal(volatile_drop(~0U, &m, NULL), RC_OK);
        json_decref(m);
    }
}

static void unknown_kinds_are_named(void **state)
{
    (void)state;
    struct err err;
    unsigned k;
    assert_int_equal(volatile_parse("date,moon", &k, &err), RC_ARG);
    assert_non_null(strstr(err.msg, "'moon'"));
    assert_int_equal(volatile_parse("date,billing", &k, &err), RC_OK);
    assert_int_equal(k, VOLATILE_DATE | VOLATILE_BILLING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_drops_its_own_lines),
        cmocka_unit_test(talk_about_dates_is_left_alone),
        cmocka_unit_test(a_part_with_nothing_left_goes),
        cmocka_unit_test(malformed_messages_are_left_to_who_checks_them),
        cmocka_unit_test(unknown_kinds_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
