#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "gguf/gguf_write.h"
#include "model/maker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static char dir[] = HOUSE_BINARY_DIR "/model_test_XXXXXX";
static struct gguf *dense, *moe;

static struct gguf *make(const char *preset, bool mtp, uint64_t seed)
{
    char path[512];
    snprintf(path, sizeof path, "%s/made.gguf", dir);
    struct err err;
    struct gguf *g = NULL;
    const struct maker_opts o = {.preset = preset, .seed = seed, .n_layers = 4, .mtp = mtp};
    enum rc rc = maker_write(path, &o, NULL, &err);
    if (!rc)
        rc = gguf_open(path, &g, &err);
    if (rc)
        print_message("%s\n", err.msg);
    assert_int_equal(rc, RC_OK);
    unlink(path);
    return g;
}

/* A change to a file on its way through a copy.  key without the architecture's name, or starting with
 * "general."; a tensor's whole name. */
struct edit {
    const char *key;
    enum { DROP, U32, F32, STR, SECTIONS } as;
    uint32_t u;
    float f;
    const char *s;
    const char *tensor;  /* left out, or with */
    const char *renamed; /* another name */
    uint64_t more_rows;  /* or more rows */
    const char *extra;   /* one more tensor, of 32 values */
};

static bool key_is(const struct gguf_key *k, const char *arch, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, name);
    return str_is(k->name, full) || (!strncmp(name, "general.", 8) && str_is(k->name, name));
}

static void write_value(struct gguf_writer *w, const char *name, const struct edit *e)
{
    static const int32_t none[4];
    if (e->as == U32)
        gguf_write_u32(w, name, e->u);
    else if (e->as == F32)
        gguf_write_f32(w, name, e->f);
    else if (e->as == STR)
        gguf_write_str(w, name, e->s);
    else if (e->as == SECTIONS)
        gguf_write_arr_i32(w, name, none, 4);
}

static void copy_key(struct gguf_writer *w, const struct gguf *g, const struct gguf_key *k)
{
    char name[128], text[256];
    uint32_t u = 0;
    float f = 0;
    struct str s = {NULL, 0};
    snprintf(name, sizeof name, "%.*s", (int)k->name.n, k->name.p);
    if (k->kind == GGUF_ARR && k->elem == GGUF_I32) {
        int32_t v[4] = {0};
        for (uint64_t i = 0; i < MIN(k->n, 4); i++) {
            int64_t x;
            assert_true(gguf_arr_i64(k, i, &x));
            v[i] = (int32_t)x;
        }
        gguf_write_arr_i32(w, name, v, MIN(k->n, 4));
    } else if (k->kind == GGUF_STR && !gguf_get_str(g, name, true, &s, NULL)) {
        snprintf(text, sizeof text, "%.*s", (int)MIN(s.n, 200), s.p);
        gguf_write_str(w, name, text);
    } else if (k->kind == GGUF_F32 && !gguf_get_f32(g, name, true, &f, NULL)) {
        gguf_write_f32(w, name, f);
    } else if (k->kind == GGUF_U32 && !gguf_get_u32(g, name, true, &u, NULL)) {
        gguf_write_u32(w, name, u);
    }
}

static struct gguf *edited(const struct gguf *g, const struct edit *e)
{
    const char *arch = g == moe ? "qwen35moe" : "qwen35";
    char path[512], full[128];
    snprintf(path, sizeof path, "%s/edited.gguf", dir);
    struct gguf_writer *w;
    assert_int_equal(gguf_writer_open(path, &w, NULL), RC_OK);
    bool found = false;
    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        snprintf(full, sizeof full, "%.*s", (int)k->name.n, k->name.p);
        if (e->key && key_is(k, arch, e->key)) {
            write_value(w, full, e);
            found = true;
        } else {
            copy_key(w, g, k);
        }
    }
    if (e->key && !found) {
        snprintf(full, sizeof full, "%s.%s", arch, e->key);
        write_value(w, full, e);
    }
    static const uint8_t zeros[64 * 192 * 4];
    const uint64_t extra_ne = 32;
    for (int data = 0; data <= 1; data++) {
        for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            const bool this = e->tensor && str_is(t->name, e->tensor);
            if (this && !e->renamed && !e->more_rows)
                continue;
            snprintf(full, sizeof full, "%.*s", (int)t->name.n, t->name.p);
            uint64_t ne[4];
            memcpy(ne, t->ne, sizeof ne);
            if (this)
                ne[1] += e->more_rows;
            if (!data) {
                gguf_write_tensor(w, this && e->renamed ? e->renamed : full, t->type, t->n_dims,
                                  ne);
                continue;
            }
            gguf_write_data(w, t->data, t->bytes);
            if (this && e->more_rows)
                gguf_write_data(w, zeros, t->bytes / t->ne[1] * e->more_rows);
        }
        if (e->extra && !data)
            gguf_write_tensor(w, e->extra, DT_F32, 1, &extra_ne);
        if (e->extra && data)
            gguf_write_data(w, zeros, 32 * 4);
    }
    struct err err;
    struct gguf *out = NULL;
    enum rc rc = gguf_writer_close(w, &err);
    if (!rc)
        rc = gguf_open(path, &out, &err);
    if (rc)
        print_message("%s\n", err.msg);
    assert_int_equal(rc, RC_OK);
    unlink(path);
    return out;
}

static void assert_refused(const struct gguf *g, const struct edit *e, enum rc want,
                           const char *message)
{
    struct gguf *bad = edited(g, e);
    struct model_info info;
    struct err err = {0};
    const enum rc rc = model_describe(bad, KV_F16, &info, &err);
    if (rc != want || !strstr(err.msg, message))
        print_message("%s %s: %s, \"%s\", not %s, \"%s\"\n", e->key ? e->key : "",
                      e->tensor ? e->tensor : "", rc_name(rc), err.msg, rc_name(want), message);
    assert_int_equal(rc, want);
    assert_non_null(strstr(err.msg, message));
    gguf_close(bad);
}

static void numbers_that_contradict_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        struct edit e;
        bool moe;
        enum rc rc;
        const char *message;
    } cases[] = {
        {{.key = "ssm.time_step_rank", .as = U32, .u = 3},
         false,
         RC_FORMAT,
         "qwen35.ssm.time_step_rank 3 is no multiple of 2 key heads"},
        {{.key = "ssm.inner_size", .as = U32, .u = 100},
         false,
         RC_FORMAT,
         "qwen35.ssm.inner_size 100 is not 4 heads of 32"},
        {{.key = "ssm.conv_kernel", .as = U32, .u = 1}, false, RC_FORMAT, "ssm.conv_kernel"},
        {{.key = "ssm.conv_kernel", .as = U32, .u = 17}, false, RC_UNSUPPORTED, "17 taps"},
        {{.key = "ssm.state_size", .as = DROP}, false, RC_FORMAT, "qwen35.ssm.state_size"},
        {{.key = "attention.value_length", .as = U32, .u = 64},
         false,
         RC_FORMAT,
         "value_length 64 differs from key_length 32"},
        {{.key = "attention.head_count", .as = U32, .u = 3}, false, RC_FORMAT, "no multiple of 2"},
        {{.key = "attention.head_count_kv", .as = U32, .u = 0}, false, RC_FORMAT, "head_count_kv"},
        {{.key = "attention.layer_norm_rms_epsilon", .as = DROP}, false, RC_FORMAT, "epsilon"},
        {{.key = "attention.layer_norm_rms_epsilon", .as = F32, .f = -1},
         false,
         RC_FORMAT,
         "epsilon is -1"},
        {{.key = "rope.dimension_count", .as = U32, .u = 15}, false, RC_FORMAT, "not even"},
        {{.key = "rope.dimension_count", .as = U32, .u = 64}, false, RC_FORMAT, "heads of 32"},
        {{.key = "rope.dimension_sections", .as = SECTIONS}, false, RC_FORMAT, "sum to 0"},
        {{.key = "rope.dimension_sections", .as = DROP}, false, RC_FORMAT, "is missing"},
        {{.key = "rope.freq_base", .as = F32, .f = 0}, false, RC_FORMAT, "freq_base is 0"},
        {{.key = "rope.scaling.factor", .as = F32, .f = 4}, false, RC_UNSUPPORTED, "factor 4"},
        {{.key = "block_count", .as = U32, .u = 0}, false, RC_FORMAT, "block_count is 0"},
        {{.key = "block_count", .as = U32, .u = 2000}, false, RC_FORMAT, "block_count is 2000"},
        {{.key = "nextn_predict_layers", .as = U32, .u = 4}, false, RC_FORMAT, "4 of 4 blocks"},
        {{.key = "full_attention_interval", .as = U32, .u = 0}, false, RC_FORMAT, "interval is 0"},
        {{.key = "embedding_length", .as = U32, .u = 96},
         false,
         RC_FORMAT,
         "tensor token_embd.weight is [64, 512], not [96, 512]"},
        {{.key = "feed_forward_length", .as = DROP}, false, RC_FORMAT, "feed_forward_length"},
        {{.key = "expert_used_count", .as = U32, .u = 9}, true, RC_FORMAT, "9 of 8 experts"},
        {{.key = "expert_count", .as = U32, .u = 16}, true, RC_FORMAT, "ffn_gate_inp.weight"},
        {{.key = "general.architecture", .as = STR, .s = "llama"},
         false,
         RC_UNSUPPORTED,
         "architecture \"llama\""},
        {{.key = "general.type", .as = STR, .s = "adapter"}, false, RC_UNSUPPORTED, "no model"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_refused(cases[i].moe ? moe : dense, &cases[i].e, cases[i].rc, cases[i].message);
}

static void every_missing_tensor_is_named(void **state)
{
    (void)state;
    const struct gguf *const files[] = {dense, moe};
    for (int f = 0; f < 2; f++)
        for (uint64_t i = 0; i < gguf_n_tensors(files[f]); i++) {
            char name[128], message[160];
            const struct gguf_tensor *t = gguf_tensor_at(files[f], i);
            snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
            snprintf(message, sizeof message, "tensor %s is missing", name);
            if (strcmp(name, "output.weight") != 0) /* without it the head is tied */
                assert_refused(files[f], &(struct edit){.tensor = name}, RC_FORMAT, message);
        }
}

static void a_wrong_shape_is_told_with_both_shapes(void **state)
{
    (void)state;
    assert_refused(dense, &(struct edit){.tensor = "blk.1.ffn_up.weight", .more_rows = 3},
                   RC_FORMAT, "tensor blk.1.ffn_up.weight is [64, 195], not [64, 192]");
    assert_refused(dense, &(struct edit){.tensor = "blk.3.attn_k.weight", .more_rows = 32},
                   RC_FORMAT, "tensor blk.3.attn_k.weight is [64, 96], not [64, 64]");
}

static void a_matrix_with_a_scale_of_its_own_is_refused(void **state)
{
    (void)state;
    assert_refused(dense, &(struct edit){.extra = "blk.0.ffn_up.scale"}, RC_UNSUPPORTED,
                   "tensor blk.0.ffn_up.scale");
    assert_refused(dense, &(struct edit){.extra = "blk.0.ffn_up.input_scale"}, RC_UNSUPPORTED,
                   "tensor blk.0.ffn_up.input_scale");
}

static void an_unknown_tensor_is_warned_of_and_ignored(void **state)
{
    (void)state;
    struct gguf *g = edited(dense, &(struct edit){.extra = "blk.0.wonder.weight"});
    char *text = NULL;
    size_t n = 0;
    const struct logger lg = {.level = LOG_WARN, .out = open_memstream(&text, &n)};
    struct pool *pool;
    struct model *m;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 1}, &pool, NULL), RC_OK);
    assert_int_equal(model_open(g, &(struct model_opts){.pool = pool, .lg = &lg}, &m, NULL), RC_OK);
    fclose(lg.out);
    assert_non_null(strstr(text, "tensor blk.0.wonder.weight is not known"));
    free(text);
    model_close(m);
    pool_free(pool);
    gguf_close(g);
}

static void a_prediction_block_changes_nothing_that_is_described(void **state)
{
    (void)state;
    struct gguf *with = make("tiny", true, 7), *without = make("tiny", false, 7);
    struct model_info a, b;
    assert_int_equal(model_describe(with, KV_F16, &a, NULL), RC_OK);
    assert_int_equal(model_describe(without, KV_F16, &b, NULL), RC_OK);
    assert_int_equal(a.n_layer, 4);
    assert_int_equal(a.n_layer, b.n_layer);
    assert_int_equal(a.n_params, b.n_params);
    assert_int_equal(a.weight_bytes, b.weight_bytes);
    assert_int_equal(shape_snap_bytes(&a.shape), shape_snap_bytes(&b.shape));
    gguf_close(with);
    gguf_close(without);
}

static uint64_t fingerprint(struct gguf *g, const char *isa, enum kv_type type)
{
    struct pool *pool;
    struct model *m;
    struct err err;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 1}, &pool, NULL), RC_OK);
    const struct model_opts o = {.pool = pool, .isa = isa, .kv_type = type};
    const enum rc rc = model_open(g, &o, &m, &err);
    if (rc)
        print_message("%s\n", err.msg);
    assert_int_equal(rc, RC_OK);
    const uint64_t f = model_info(m)->shape.fingerprint;
    model_close(m);
    pool_free(pool);
    return f;
}

static void the_fingerprint_tells_weights_arithmetic_and_layout_apart(void **state)
{
    (void)state;
    struct gguf *again = make("tiny", false, 1), *other = make("tiny", false, 2);
    const uint64_t f = fingerprint(dense, "ref", KV_F16);
    assert_true(f == fingerprint(again, "ref", KV_F16));
    assert_true(f != fingerprint(other, "ref", KV_F16));
    assert_true(f != fingerprint(dense, "ref", KV_F32));
    assert_true(f != fingerprint(moe, "ref", KV_F16));
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        assert_true(f != fingerprint(dense, "avx2", KV_F16));
#endif
    gguf_close(again);
    gguf_close(other);
}

static void opening_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct gguf *const files[] = {dense, moe};
    struct pool *pool;
    assert_int_equal(pool_new(&(struct pool_opts){.n_threads = 1}, &pool, NULL), RC_OK);
    for (int f = 0; f < 2; f++)
        for (uint64_t n = 1;; n++) {
            struct model *m = NULL;
            struct err err = {0};
            const struct model_opts o = {.pool = pool, .max_batch = 8};
            mem_fail_after(n);
            const enum rc rc = model_open(files[f], &o, &m, &err);
            mem_fail_after(0);
            model_close(m);
            if (!rc)
                break;
            assert_int_equal(rc, RC_NOMEM);
            assert_null(m);
            assert_true(err.msg[0] != 0);
        }
    pool_free(pool);
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    dense = make("tiny", false, 1);
    moe = make("tiny-moe", false, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gguf_close(dense);
    gguf_close(moe);
    rmdir(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_that_contradict_are_refused_by_name),
        cmocka_unit_test(every_missing_tensor_is_named),
        cmocka_unit_test(a_wrong_shape_is_told_with_both_shapes),
        cmocka_unit_test(a_matrix_with_a_scale_of_its_own_is_refused),
        cmocka_unit_test(an_unknown_tensor_is_warned_of_and_ignored),
        cmocka_unit_test(a_prediction_block_changes_nothing_that_is_described),
        cmocka_unit_test(the_fingerprint_tells_weights_arithmetic_and_layout_apart),
        cmocka_unit_test(opening_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
