/* docs/formats/events.md names every event of base/event.def with all its fields, in their order. */
#include "base/event.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <cmocka.h>

static void expect_row(const char *doc, const char *name, const char *fields)
{
    struct buf head = BUF_INIT;
    buf_addf(&head, "\n| `%s` |", name);
    const char *row = strstr(doc, buf_str(&head));
    if (!row)
        fail_msg("events.md has no row for %s", name);
    const char *end = strchr(row + 1, '\n');
    assert_non_null(end);
    char line[512];
    snprintf(line, sizeof line, "%.*s", (int)(end - row), row);
    if (!strstr(line, fields))
        fail_msg("events.md: the row of %s does not list %s", name, fields);
    buf_release(&head);
}

static void the_table_lists_every_event_and_its_fields(void **state)
{
    (void)state;
    char *doc;
    size_t n;
    struct err err;
    if (file_read_all(HOUSE_SOURCE_DIR "/docs/formats/events.md", MIB, &doc, &n, &err))
        fail_msg("%s", err.msg);
#define F(kind, name) "`" #name "` "
#define EVENT(name, fields)                                                                        \
    {                                                                                              \
        const char list[] = "| " fields "|";                                                       \
        expect_row(doc, #name, list);                                                              \
    }
#include "base/event.def"
#undef EVENT
#undef F
    mem_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_lists_every_event_and_its_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
