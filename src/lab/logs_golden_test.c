/* The handed server logs against the truth beside them (../shared/fixtures/logs). */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "lab/forensics.h"

#include <cmocka.h>

static const char dir[] = HOUSE_SHARED_DIR "/fixtures/logs";

static json_t *load(const char *path)
{
    char *text;
    size_t n;
    struct err err;
    json_t *o;
    if (file_read_all(path, 64 * MIB, &text, &n, &err))
        fail_msg("%s", err.msg);
    if (jread_parse(text, n, &o, &err))
        fail_msg("%s: %s", path, err.msg);
    mem_free(text);
    return o;
}

static json_t *analyse(const char *path)
{
    struct err err;
    struct forensics *f;
    json_t *summary, *all;
    assert_int_equal(
        forensics_new(&(struct forensics_opts){.now = 4e9, .keep_turns = true}, &f, &err), 0);
    if (forensics_file(f, path, false, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(forensics_end(f, &err), 0);
    assert_int_equal(forensics_summary(f, NULL, &summary, &err), 0);
    FILE *out = tmpfile();
    assert_non_null(out);
    assert_int_equal(forensics_write(f, summary, out, &err), 0);
    const long n = ftell(out);
    rewind(out);
    char *text = malloc((size_t)n);
    assert_int_equal(fread(text, 1, (size_t)n, out), n);
    if (jread_parse(text, (size_t)n, &all, &err))
        fail_msg("our own JSON: %s", err.msg);
    free(text);
    fclose(out);
    json_decref(summary);
    forensics_free(f);
    return all;
}

static int bad;

static void same_block(const char *log, const char *where, const json_t *want, const json_t *got)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)want, key, v)
    {
        const json_t *g = json_object_get(got, key);
        const double a = json_number_value(v), b = json_number_value(g);
        const double tolerance = strcmp(key, "prefill_seconds") ? 0 : 0.01;
        if (!g || fabs(a - b) > tolerance) {
            print_error("%s: %s.%s is %g, should be %g\n", log, where, key, b, a);
            bad++;
        }
    }
}

static void same_list(const char *log, const char *key, const json_t *want, const json_t *got)
{
    const json_t *a = json_object_get(want, key), *b = json_object_get(got, key);
    if (!json_equal(a, b)) {
        print_error("%s: %s differs (%zu and %zu items)\n", log, key, json_array_size(a),
                    json_array_size(b));
        bad++;
    }
}

static void same_turns(const char *log, const json_t *want, const json_t *got)
{
    static const char *const keys[] = {
        "slot",   "task",      "prompt_tokens", "cached_before", "lcp",     "outcome",
        "reused", "evaluated", "restored_at",   "prefill_ms",    "created", "erased"};
    const json_t *a = json_object_get(want, "turn_list"), *b = json_object_get(got, "turn_list");
    if (json_array_size(a) != json_array_size(b)) {
        print_error("%s: %zu turns, should be %zu\n", log, json_array_size(b), json_array_size(a));
        bad++;
        return;
    }
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < COUNT_OF(keys); k++) {
            const json_t *x = json_object_get(json_array_get(a, i), keys[k]),
                         *y = json_object_get(json_array_get(b, i), keys[k]);
            const bool lost = json_integer_value(json_object_get(want, "damaged_event_lines")) &&
                              (!strcmp(keys[k], "created") || !strcmp(keys[k], "erased"));
            if (lost) /* the truth counts lines that the file no longer has */
                continue;
            /* what a cancelled prompt's length was, no line says */
            if (json_is_null(y) && !strcmp(keys[k], "prompt_tokens") &&
                json_is_null(json_object_get(json_array_get(a, i), "evaluated")))
                continue;
            if (json_is_real(x) ? fabs(json_real_value(x) - json_number_value(y)) > 0.005
                                : !json_equal(x, y)) {
                char *s = json_dumps(x, JSON_ENCODE_ANY), *t = json_dumps(y, JSON_ENCODE_ANY);
                print_error("%s: turn %zu (task %lld): %s is %s, should be %s\n", log, i,
                            json_integer_value(json_object_get(json_array_get(a, i), "task")),
                            keys[k], t, s);
                free(s);
                free(t);
                bad++;
            }
        }
}

static void the_handed_logs_come_out_as_their_truth(void **state)
{
    (void)state;
    DIR *d = opendir(dir);
    if (!d) {
        print_message("skipped: no %s\n", dir);
        skip();
    }
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        const size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 4, ".log") != 0)
            continue;
        char log[512], truth[600];
        snprintf(log, sizeof log, "%s/%s", dir, e->d_name);
        snprintf(truth, sizeof truth, "%.*s.expect.json", (int)strlen(log) - 4, log);
        json_t *want = load(truth), *got = analyse(log);
        same_block(e->d_name, "totals", json_object_get(want, "totals"),
                   json_object_get(got, "totals"));
        const char *slot;
        json_t *v;
        json_object_foreach(json_object_get(want, "slots"), slot, v)
            same_block(e->d_name, slot, v, json_object_get(json_object_get(got, "slots"), slot));
        same_list(e->d_name, "lcp_printed", want, got);
        same_list(e->d_name, "lcp_printed_detail", want, got);
        same_list(e->d_name, "restored_positions", want, got);
        same_list(e->d_name, "orphan_timings", want, got);
        same_turns(e->d_name, want, got);
        json_decref(want);
        json_decref(got);
        n++;
    }
    closedir(d);
    assert_int_equal(bad, 0);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_handed_logs_come_out_as_their_truth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
