/* `holdfast make-model` and `holdfast inspect` as a user runs them. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "gguf/gguf_write.h"

#include <cmocka.h>

struct dir {
    char path[64];
};

static int make_dir(void **state)
{
    struct dir *d = mem_zalloc(sizeof *d);
    snprintf(d->path, sizeof d->path, "/tmp/holdfast-inspect-XXXXXX");
    *state = d;
    return !mkdtemp(d->path);
}

static int remove_dir(void **state)
{
    struct dir *d = *state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", d->path);
    const int bad = system(cmd);
    mem_free(d);
    return bad;
}

/* Exit status of "holdfast ARGS", run in the directory; stdout and stderr together into out. */
static int holdfast(const struct dir *d, const char *args, struct buf *out)
{
    const char *bin = getenv("HOLDFAST_BIN");
    if (!bin || access(bin, X_OK)) {
        print_message("HOLDFAST_BIN names no program\n");
        skip();
    }
    char cmd[1024], piece[4096];
    snprintf(cmd, sizeof cmd, "cd %s && %s %s 2>&1", d->path, bin, args);
    FILE *f = popen(cmd, "r");
    assert_non_null(f);
    buf_clear(out);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        buf_add(out, piece, n);
    const int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static json_int_t int_in(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v))
        fail_msg("%s is no integer", key);
    return json_integer_value(v);
}

static void inspect_tells_what_a_made_model_costs(void **state)
{
    struct buf out = BUF_INIT;
    assert_int_equal(
        holdfast(*state, "make-model --preset tiny-moe --type q8_0 --seed 4 --out a.gguf", &out),
        0);
    assert_non_null(strstr(out.p, "a.gguf: tiny-moe q8_0, 149 tensors, 862152 weights"));
    assert_int_equal(holdfast(*state, "inspect a.gguf --json -ctk f32", &out), 0);
    json_t *o = json_loadb(out.p, out.n, 0, NULL);
    assert_non_null(o);
    const json_t *model = json_object_get(o, "model"), *tensors = json_object_get(o, "tensors");
    assert_int_equal(int_in(o, "version"), 3);
    assert_int_equal(json_array_size(tensors), 149);
    assert_int_equal(int_in(model, "n_attention"), 2);
    assert_int_equal(int_in(model, "n_delta"), 6);
    /* 6 layers x (conv 3 x (2 x 64 + 192) + S 6 x 32 x 32) floats */
    assert_int_equal(int_in(model, "snapshot_bytes"), 6 * (3 * 320 + 6 * 32 * 32) * 4);
    /* 2 layers x (K + V) x 2 heads x 32 floats */
    assert_int_equal(int_in(model, "kv_token_bytes"), 2 * 2 * 2 * 32 * 4);
    json_int_t sum = 0;
    for (size_t i = 0; i < json_array_size(tensors); i++)
        sum += int_in(json_array_get(tensors, i), "bytes");
    assert_int_equal(sum, int_in(model, "weight_bytes"));
    json_decref(o);

    assert_int_equal(holdfast(*state, "inspect a.gguf", &out), 0);
    static const char *const lines[] = {"general.architecture", "blk.7.ffn_down_exps.weight",
                                        "32 x 64 x 8", "snapshot    166.5 KiB",
                                        "KV (i16)    544 B"};
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        if (!strstr(out.p, lines[i]))
            fail_msg("no '%s' in\n%s", lines[i], out.p);
    assert_int_equal(holdfast(*state, "inspect a.gguf --key qwen35moe.block_count", &out), 0);
    assert_string_equal(out.p, "8\n");
    buf_release(&out);
}

static void a_cut_file_is_refused_by_name(void **state)
{
    struct buf out = BUF_INIT;
    const struct dir *d = *state;
    char path[128];
    assert_int_equal(holdfast(d, "make-model --preset tiny --out a.gguf", &out), 0);
    snprintf(path, sizeof path, "%s/a.gguf", d->path);
    assert_int_equal(truncate(path, 1000000), 0);
    assert_int_equal(holdfast(d, "inspect a.gguf", &out), 1);
    assert_non_null(strstr(out.p, "a.gguf: tensor blk."));
    assert_non_null(strstr(out.p, "but the file has 1000000"));
    assert_int_equal(holdfast(d, "inspect b.gguf", &out), 1);
    assert_non_null(strstr(out.p, "b.gguf"));
    buf_release(&out);
}

static void a_file_that_cannot_be_served_is_still_shown(void **state)
{
    struct buf out = BUF_INIT;
    const struct dir *d = *state;
    struct gguf_writer *w;
    struct err err;
    char path[128];
    static const uint64_t ne[] = {64};
    static const float zeros[64];
    snprintf(path, sizeof path, "%s/other.gguf", d->path);
    assert_int_equal(gguf_writer_open(path, &w, &err), RC_OK);
    gguf_write_str(w, "general.architecture", "another\x1b[31m");
    gguf_write_tensor(w, "some.weight", DT_F32, 1, ne);
    assert_true(gguf_write_data(w, zeros, sizeof zeros));
    assert_int_equal(gguf_writer_close(w, &err), RC_OK);
    assert_int_equal(holdfast(d, "inspect other.gguf --no-tensors", &out), 0);
    assert_non_null(strstr(out.p, "another\\x1b[31m"));
    assert_non_null(strstr(out.p, "no model that can be served"));
    assert_null(strstr(out.p, "some.weight"));
    assert_int_equal(holdfast(d, "inspect other.gguf --json", &out), 0);
    json_t *o = json_loadb(out.p, out.n, 0, NULL);
    assert_non_null(o);
    assert_true(json_is_null(json_object_get(o, "model")));
    assert_true(json_is_string(json_object_get(o, "model_error")));
    json_decref(o);
    buf_release(&out);
}

static void wrong_options_are_usage_errors(void **state)
{
    static const struct {
        const char *args, *says;
    } rows[] = {
        {"make-model --preset tiny", "--out"},
        {"make-model --preset huge --out a.gguf", "no preset 'huge'"},
        {"make-model --preset tiny --type q9 --out a.gguf", "no type 'q9'"},
        {"make-model --preset tiny --layers 5 --out a.gguf", "5 layers"},
        {"inspect", "FILE"},
        {"inspect a.gguf -ctk q4_0", "'q4_0'"},
    };
    struct buf out = BUF_INIT;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(holdfast(*state, rows[i].args, &out), 2);
        if (!strstr(out.p, rows[i].says))
            fail_msg("%s: %s", rows[i].args, out.p);
    }
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(inspect_tells_what_a_made_model_costs, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_cut_file_is_refused_by_name, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_served_is_still_shown, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(wrong_options_are_usage_errors, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
