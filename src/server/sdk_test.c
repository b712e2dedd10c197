/* The official client libraries against the server: tests/sdk/sdk.mjs asks, this answers.  Skipped where
 * node or the libraries (npm ci in tests/sdk) are missing. */
#include "server/testing_int.h"

static void the_client_libraries_understand_every_reply(void **state)
{
    struct world *w = *state;
    char command[1024];
    if (system("node --version >/dev/null 2>&1") ||
        access(HOUSE_SOURCE_DIR "/tests/sdk/node_modules/openai/package.json", R_OK)) {
        print_message("node or tests/sdk/node_modules is missing: npm ci in tests/sdk\n");
        skip();
    }
    w->engine.script = "let me see\n</think>\n\nI will look.\n\n<tool_call>\n<function=weather>\n"
                       "<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
                       "</function>\n</tool_call>";
    w->engine.other_script = "so\n</think>\n\nplain text";
    snprintf(command, sizeof command, "node '%s/tests/sdk/sdk.mjs' http://127.0.0.1:%u",
             HOUSE_SOURCE_DIR, server_port(w->server));
    assert_int_equal(system(command), 0);
    EVENTUALLY(atomic_load(&w->engine.n_alive) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {T(the_client_libraries_understand_every_reply)};
    return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
