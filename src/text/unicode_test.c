#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <cmocka.h>

static void every_code_point_has_the_class_of_the_list(void **state)
{
    (void)state;
    uint8_t *const want = mem_try_zalloc(0x110000);
    FILE *const f = fopen(HOUSE_SOURCE_DIR "/tools/unicode_classes.tsv", "r");
    assert_non_null(want);
    assert_non_null(f);
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char c, *end;
        static const char codes[] = ".LMNS";
        if (line[0] == '#')
            continue;
        c = line[0];
        const unsigned long lo = strtoul(line + 2, &end, 16), hi = strtoul(end, NULL, 16);
        for (unsigned long cp = lo; cp <= hi; cp++)
            want[cp] = (uint8_t)(strchr(codes, c) - codes);
    }
    fclose(f);
    for (uint32_t cp = 0; cp < 0x110000; cp++)
        if (unicode_class(cp) != want[cp])
            fail_msg("U+%04X is %d, listed as %d", cp, unicode_class(cp), want[cp]);
    mem_free(want);
}

static void check_clean(const char *in, size_t n, const char *want)
{
    struct buf b = BUF_INIT;
    unicode_clean((struct str){in, n}, &b);
    assert_string_equal(buf_str(&b), want);
    assert_int_equal(unicode_is_clean((struct str){in, n}),
                     strlen(want) == n && !memcmp(in, want, n));
    assert_true(unicode_is_clean((struct str){b.p, b.n}));
    buf_release(&b);
}

#define BAD "\xef\xbf\xbd"

static void stray_bytes_become_replacement_characters(void **state)
{
    (void)state;
    check_clean("abc", 3, "abc");
    check_clean("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    check_clean("a\x80"
                "b",
                3, "a" BAD "b");
    check_clean("\xf0\x9f\x98", 3, BAD BAD BAD);
    check_clean("\xff\xfe", 2, BAD BAD);
    check_clean("\xf4\x90\x80\x80", 4, BAD BAD BAD BAD); /* above U+10FFFF */
    check_clean("\xe2\x82"
                "a",
                3, BAD BAD "a");
}

static void overlong_forms_become_short_and_surrogates_stay(void **state)
{
    (void)state;
    check_clean("\xc1\x81", 2, "A");
    check_clean("\xe0\x81\x81", 3, "A");
    check_clean("\xed\xa0\x80", 3, "\xed\xa0\x80");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_has_the_class_of_the_list),
        cmocka_unit_test(stray_bytes_become_replacement_characters),
        cmocka_unit_test(overlong_forms_become_short_and_surrogates_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
