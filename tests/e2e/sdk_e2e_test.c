/* The official client libraries against the real server over a small model: tests/sdk/real.mjs asks.
 * Skipped where node or the libraries (npm ci in tests/sdk) are missing. */
#include "program_int.h"

static void the_client_libraries_get_what_they_ask_for(void **state)
{
    struct scene scene;
    struct program server;
    char command[1024];
    static const char template[] = HOUSE_SOURCE_DIR "/tests/templates/qwen35_xml.jinja";
    static const char *const options[] = {
        "-c", "4096", "--alias", "tiny", "--chat-template-file", template, "--reasoning-budget",
        "0",  NULL};
    (void)state;
    if (system("node --version >/dev/null 2>&1") ||
        access(HOUSE_SOURCE_DIR "/tests/sdk/node_modules/openai/package.json", R_OK)) {
        print_message("node or tests/sdk/node_modules is missing: npm ci in tests/sdk\n");
        skip();
    }
    scene_open(&scene);
    scene_make_model(&scene, "tiny", "f16");
    program_serve(&server, &scene, "sdk", options);
    snprintf(command, sizeof command, "node '%s/tests/sdk/real.mjs' http://127.0.0.1:%u",
             HOUSE_SOURCE_DIR, server.port);
    assert_int_equal(system(command), 0);
    assert_int_equal(program_stop(&server), 0);
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_client_libraries_get_what_they_ask_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
