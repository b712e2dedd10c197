/* The demo keeps its promises; it checks them itself. */
#include "program_int.h"

static void the_demo_keeps_its_promises(void **state)
{
    (void)state;
    struct scene s;
    char *said;
    scene_open(&s);
    const int status = RUN(&s, &said, "demo");
    if (status)
        fail_msg("%s", said);
    assert_non_null(strstr(said, "C' reuses exactly the 2531 tokens in common: 2531"));
    mem_free(said);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_demo_keeps_its_promises)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
