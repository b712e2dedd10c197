/* Any template over a fixed conversation: renders or fails with a place, within its limits. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static json_t *vars;

static void release(void)
{
    json_decref(vars);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!vars) {
        vars = json_pack("{s:[{s:s,s:s},{s:s,s:n,s:[{s:{s:s,s:{s:i,s:[b,f]}}}]}],s:s,s:i,s:b}",
                         "messages", "role", "user", "content", "Gr\u00fc\u00dfe <x>", "role",
                         "assistant", "content", "tool_calls", "function", "name", "f", "arguments",
                         "a", 1, "b", 1, 2.5, "s", " text\n", "n", 7, "t", 1);
        CHECK(vars);
        (void)atexit(release);
    }
    struct jinja *t = NULL;
    struct jinja_result out = {0};
    struct err err = {0};
    const json_t *const messages = json_object_get(vars, "messages");
    const struct jinja_source src = {json_array_get(messages, 0), 1};
    const struct jinja_opts o = {.sources = &src,
                                 .n_sources = 1,
                                 .max_steps = 20000,
                                 .max_output = 1 << 16,
                                 .max_memory = 1 << 24};
    enum rc rc = jinja_compile((struct str){(const char *)data, n}, &t, &err);
    if (!rc)
        rc = jinja_render(t, vars, &o, &out, &err);
    if (rc && utf8_valid((const char *)data, n))
        CHECK(!strncmp(err.msg, "line ", 5));
    for (size_t i = 0; i < out.n_marks; i++)
        CHECK(out.marks[i].begin < out.marks[i].end && out.marks[i].end <= out.text.n);
    jinja_result_release(&out);
    jinja_free(t);
    return 0;
}
