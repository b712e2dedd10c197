#include "model/maker.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "gguf/gguf.h"
#include "kern/quant.h"
#include "model/maker_int.h"

#include <cmocka.h>

static const enum dtype types[] = {DT_F32,  DT_F16,    DT_BF16,   DT_Q8_0, DT_Q4_0, DT_Q4_1,
                                   DT_Q5_0, DT_Q5_1,   DT_Q2_K,   DT_Q3_K, DT_Q4_K, DT_Q5_K,
                                   DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4};

struct dir {
    char path[64], file[80];
};

static int make_dir(void **state)
{
    struct dir *d = mem_zalloc(sizeof *d);
    snprintf(d->path, sizeof d->path, "/tmp/holdfast-maker-XXXXXX");
    *state = d;
    if (!mkdtemp(d->path))
        return -1;
    snprintf(d->file, sizeof d->file, "%s/m.gguf", d->path);
    return 0;
}

static int remove_dir(void **state)
{
    struct dir *d = *state;
    (void)unlink(d->file);
    const int bad = rmdir(d->path); /* fails when a temporary file was left */
    mem_free(d);
    return bad;
}

static struct gguf *write_and_open(const struct dir *d, const struct maker_opts *o)
{
    struct gguf *g = NULL;
    struct err err = {0};
    struct maker_info info;
    if (maker_write(d->file, o, &info, &err) || gguf_open(d->file, &g, &err))
        fail_msg("%s %s: %s", o->preset, dtype_info(o->type)->name, err.msg);
    assert_int_equal(gguf_n_tensors(g), info.n_tensors);
    return g;
}

static float *decode(const struct gguf *g, const char *name, uint64_t *n)
{
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    assert_non_null(t);
    *n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    float *x = mem_try_array(*n, sizeof *x);
    assert_non_null(x);
    quant_decode(t->type, t->data, *n, x);
    return x;
}

/* ---- files ---- */

static void every_preset_and_type_gives_a_file_that_opens(void **state)
{
    static const struct {
        const char *preset;
        uint64_t n_tensors;
        size_t step; /* through types: mini-moe is slow to encode */
    } rows[] = {{"tiny", 108, 1}, {"tiny-moe", 149, 1}, {"mini", 108, 1}, {"mini-moe", 149, 9}};
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        for (size_t t = 0; t < COUNT_OF(types); t += rows[r].step) {
            /* four layers have every kind of block */
            const struct maker_opts o = {
                .preset = rows[r].preset, .type = types[t], .seed = 3, .n_layers = 4};
            struct gguf *g = write_and_open(*state, &o);
            const bool moe = strstr(o.preset, "moe"), is_tiny = strstr(o.preset, "tiny");
            assert_int_equal(gguf_n_tensors(g), moe ? 3 * 19 + 16 + 3 : 3 * 14 + 11 + 2);
            const struct gguf_tensor *w = gguf_find_tensor(g, "blk.3.attn_q.weight");
            const bool fits = w->ne[0] % dtype_info(types[t])->block_elems == 0;
            assert_int_equal(w->type, fits ? types[t] : DT_Q8_0);
            assert_true(fits || is_tiny);
            assert_int_equal(gguf_find_tensor(g, "blk.0.ssm_conv1d.weight")->type, DT_F32);
            assert_int_equal(gguf_find_tensor(g, "output_norm.weight")->type, DT_F32);
            assert_int_equal(!gguf_find_tensor(g, "output.weight"), !moe);
            gguf_close(g);
        }
        const struct maker_opts o = {.preset = rows[r].preset, .seed = 3};
        struct gguf *g = write_and_open(*state, &o);
        assert_int_equal(gguf_n_tensors(g), rows[r].n_tensors);
        gguf_close(g);
    }
}

static void tensors_follow_one_another_padded_to_the_alignment(void **state)
{
    const struct maker_opts o = {.preset = "tiny-moe", .type = DT_Q4_0, .seed = 1};
    struct gguf *g = write_and_open(*state, &o);
    const uint8_t *next = gguf_tensor_at(g, 0)->data;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        assert_ptr_equal(t->data, next);
        next = t->data + round_up(t->bytes, 32);
    }
    gguf_close(g);
}

static void options_override_the_preset(void **state)
{
    const struct maker_opts o = {
        .preset = "TINY", .seed = 1, .n_layers = 12, .n_vocab = 3000, .n_ctx = 999, .mtp = true};
    struct gguf *g = write_and_open(*state, &o);
    struct err err;
    uint32_t v = 0;
    assert_int_equal(gguf_n_tensors(g), 9 * 14 + 3 * 11 + 15 + 2);
    assert_int_equal(gguf_get_u32(g, "qwen35.block_count", true, &v, &err), RC_OK);
    assert_int_equal(v, 13);
    assert_int_equal(gguf_get_u32(g, "qwen35.nextn_predict_layers", true, &v, &err), RC_OK);
    assert_int_equal(v, 1);
    assert_int_equal(gguf_get_u32(g, "qwen35.context_length", true, &v, &err), RC_OK);
    assert_int_equal(v, 999);
    assert_int_equal(gguf_find_tensor(g, "token_embd.weight")->ne[1], 3000);
    assert_int_equal(gguf_find_key(g, "tokenizer.ggml.tokens")->n, 3000);
    assert_non_null(gguf_find_tensor(g, "blk.12.nextn.eh_proj.weight"));
    gguf_close(g);
}

static void read_file(const char *path, char **p, size_t *n)
{
    struct err err;
    assert_int_equal(file_read_all(path, 64 << 20, p, n, &err), RC_OK);
}

static void a_file_is_a_function_of_its_options(void **state)
{
    const struct dir *d = *state;
    struct maker_opts o = {.preset = "tiny-moe", .type = DT_Q8_0, .seed = 7};
    char *a, *b, *c;
    size_t n_a, n_b, n_c;
    gguf_close(write_and_open(d, &o));
    read_file(d->file, &a, &n_a);
    gguf_close(write_and_open(d, &o));
    read_file(d->file, &b, &n_b);
    o.seed = 8;
    gguf_close(write_and_open(d, &o));
    read_file(d->file, &c, &n_c);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(a, b, n_a);
    assert_int_equal(n_a, n_c);
    assert_memory_not_equal(a, c, n_a);
    mem_free(a);
    mem_free(b);
    mem_free(c);
}

static void bad_options_are_refused_and_leave_nothing(void **state)
{
    const struct dir *d = *state;
    static const struct {
        struct maker_opts o;
        const char *says;
    } rows[] = {
        {{.preset = "huge"}, "no preset 'huge'"},
        {{.preset = NULL}, "no preset"},
        {{.preset = "tiny", .n_layers = 6}, "6 layers"},
        {{.preset = "tiny", .n_layers = 4000}, "4000 layers"},
        {{.preset = "tiny", .n_vocab = 281}, "281 tokens"},
        {{.preset = "tiny", .n_vocab = UINT32_MAX}, "4294967295 tokens"},
        {{.preset = "tiny", .type = (enum dtype)9}, "no type 9"},
        {{.preset = "tiny", .type = DT_Q5_K, .medium = true}, "only q4_K"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct err err = {0};
        assert_int_equal(maker_write(d->file, &rows[i].o, NULL, &err), RC_ARG);
        assert_non_null(strstr(err.msg, rows[i].says));
        assert_int_not_equal(access(d->file, F_OK), 0);
    }
    struct err err = {0};
    const struct maker_opts o = {.preset = "tiny"};
    assert_int_equal(maker_write("/tmp/no/such/dir/m.gguf", &o, NULL, &err), RC_IO);
}

static void stopping_leaves_nothing(void **state)
{
    const struct dir *d = *state;
    const atomic_bool stop = true;
    struct err err = {0};
    const struct maker_opts o = {.preset = "tiny", .stop = &stop};
    assert_int_equal(maker_write(d->file, &o, NULL, &err), RC_CANCELLED);
    assert_int_not_equal(access(d->file, F_OK), 0);
}

static void running_out_of_memory_is_an_error_without_leaks(void **state)
{
    const struct dir *d = *state;
    const struct maker_opts o = {.preset = "tiny", .n_layers = 4, .n_vocab = 300};
    enum rc rc = RC_NOMEM;
    uint64_t n = 0;
    while (rc && n < 1000) {
        struct err err = {0};
        mem_fail_after(++n);
        rc = maker_write(d->file, &o, NULL, &err);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM);
        assert_int_equal(access(d->file, F_OK) == 0, rc == RC_OK);
    }
    assert_int_equal(rc, RC_OK);
    assert_true(n > 10);
}

/* ---- weights ---- */

static void weights_have_the_scale_their_role_asks_for(void **state)
{
    static const struct {
        const char *name;
        double mean, rms; /* about the mean */
    } rows[] = {
        {"token_embd.weight", 0, 1},            /* large: out of the bank */
        {"blk.0.attn_qkv.weight", 0, 1.0 / 16}, /* 1 / sqrt(256) */
        {"blk.0.ffn_gate_exps.weight", 0, 1.0 / 16},
        {"blk.0.ffn_gate_inp.weight", 0, 3.0 / 16},
        {"blk.0.ssm_conv1d.weight", 0, 0.5},
        {"blk.0.attn_norm.weight", 1, 0.1},
        {"output.weight", 0, 3.0 / 16},
    };
    const struct maker_opts o = {.preset = "mini-moe", .seed = 5, .n_layers = 4, .n_vocab = 20000};
    struct gguf *g = write_and_open(*state, &o);
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        uint64_t n;
        float *x = decode(g, rows[r].name, &n);
        double sum = 0, square = 0;
        for (uint64_t i = 0; i < n; i++) {
            sum += (double)x[i];
            square += ((double)x[i] - rows[r].mean) * ((double)x[i] - rows[r].mean);
        }
        const double noise = 5 * rows[r].rms / sqrt((double)n);
        if (fabs(sum / (double)n - rows[r].mean) > noise ||
            fabs(sqrt(square / (double)n) - rows[r].rms) > MAX(noise, 1e-3 * rows[r].rms))
            fail_msg("%s: mean %g rms %g", rows[r].name, sum / (double)n, sqrt(square / (double)n));
        mem_free(x);
    }
    gguf_close(g);
}

static void heads_forget_at_rates_that_span_the_range(void **state)
{
    const struct maker_opts o = {.preset = "mini", .seed = 5, .n_layers = 16};
    struct gguf *g = write_and_open(*state, &o);
    double slowest = 1e9, fastest = 0;
    for (int i = 0; i < 16; i++) {
        char name[64];
        uint64_t n;
        if (i % 4 == 3)
            continue;
        snprintf(name, sizeof name, "blk.%d.ssm_a", i);
        float *a = decode(g, name, &n);
        snprintf(name, sizeof name, "blk.%d.ssm_dt.bias", i);
        float *dt = decode(g, name, &n);
        for (uint64_t h = 0; h < n; h++) {
            const double step = log1p(exp((double)dt[h])), rate = -(double)a[h] * step;
            assert_true(a[h] <= -0.0499f && a[h] >= -4.001f);
            assert_true(step >= 0.00999 && step <= 0.3001);
            slowest = MIN(slowest, rate);
            fastest = MAX(fastest, rate);
        }
        mem_free(a);
        mem_free(dt);
    }
    assert_true(slowest < 0.005 && fastest > 0.3); /* memories of 200 tokens and of 3 */
    gguf_close(g);
}

static void a_medium_file_gives_more_bits_to_what_needs_them(void **state)
{
    const struct dir *d = *state;
    const struct maker_opts o = {
        .preset = "mini", .type = DT_Q4_K, .medium = true, .seed = 1, .n_layers = 8};
    struct gguf *g = write_and_open(d, &o);
    static const struct {
        const char *name;
        enum dtype type;
    } want[] = {{"token_embd.weight", DT_Q6_K},     {"blk.0.attn_qkv.weight", DT_Q5_K},
                {"blk.0.ffn_down.weight", DT_Q6_K}, {"blk.1.ffn_down.weight", DT_Q4_K},
                {"blk.3.ffn_down.weight", DT_Q6_K}, {"blk.3.attn_v.weight", DT_Q6_K},
                {"blk.7.ffn_down.weight", DT_Q6_K}, {"blk.3.attn_output.weight", DT_Q4_K},
                {"blk.7.ffn_gate.weight", DT_Q4_K}, {"blk.0.ssm_conv1d.weight", DT_F32}};
    for (size_t i = 0; i < COUNT_OF(want); i++)
        assert_int_equal(gguf_find_tensor(g, want[i].name)->type, want[i].type);
    gguf_close(g);
}

static void two_types_are_two_roundings_of_one_model(void **state)
{
    static const char *const names[] = {"token_embd.weight", "blk.3.attn_q.weight"};
    struct maker_opts o = {.preset = "mini", .seed = 2, .n_layers = 4, .n_vocab = 20000};
    float *exact[2];
    uint64_t n[2];
    struct gguf *g = write_and_open(*state, &o);
    for (size_t i = 0; i < 2; i++)
        exact[i] = decode(g, names[i], &n[i]);
    assert_true(n[0] > 1 << 22 && n[1] < 1 << 22); /* out of the bank, and not */
    gguf_close(g);
    o.type = DT_Q8_0;
    g = write_and_open(*state, &o);
    for (size_t i = 0; i < 2; i++) {
        double error = 0, energy = 0;
        float *x = decode(g, names[i], &n[i]);
        for (uint64_t k = 0; k < n[i]; k++) {
            error += pow((double)(x[k] - exact[i][k]), 2);
            energy += pow((double)exact[i][k], 2);
        }
        assert_true(error < 1e-4 * energy);
        mem_free(x);
        mem_free(exact[i]);
    }
    gguf_close(g);
}

/* ---- the vocabulary ---- */

static int by_text(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    const int c = memcmp(x->p, y->p, MIN(x->n, y->n));
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static bool is_token(const struct str *sorted, uint32_t n, struct str s)
{
    return bsearch(&s, sorted, n, sizeof s, by_text);
}

/* The order of tokens is the order of merges, so left and right of every merge must be there too. */
static void check_vocab(uint32_t size)
{
    struct maker_vocab v;
    struct err err = {0};
    assert_int_equal(maker_vocab_init(&v, size, 1, &err), RC_OK);
    assert_int_equal(v.n, size);
    struct str *sorted = mem_try_array(size, sizeof *sorted);
    assert_non_null(sorted);
    memcpy(sorted, v.tokens, size * sizeof *sorted);
    qsort(sorted, size, sizeof *sorted, by_text);
    for (uint32_t i = 1; i < size; i++)
        assert_true(by_text(&sorted[i - 1], &sorted[i]) < 0); /* unique */
    uint32_t n_single = 0;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t c;
        assert_true(v.tokens[i].n > 0 && utf8_valid(v.tokens[i].p, v.tokens[i].n));
        n_single +=
            v.types[i] == 1 && utf8_decode(v.tokens[i].p, v.tokens[i].n, &c) == v.tokens[i].n;
    }
    assert_int_equal(n_single, 256);
    for (uint32_t i = 0; i < v.n_merges; i++) {
        const struct str m = v.merges[i];
        const char *space = memchr(m.p, ' ', m.n);
        char joined[256];
        assert_non_null(space);
        assert_true(m.n < sizeof joined);
        const size_t n_left = (size_t)(space - m.p), n_right = m.n - n_left - 1;
        memcpy(joined, m.p, n_left);
        memcpy(joined + n_left, space + 1, n_right);
        assert_true(is_token(sorted, size, (struct str){m.p, n_left}));
        assert_true(is_token(sorted, size, (struct str){space + 1, n_right}));
        assert_true(is_token(sorted, size, (struct str){joined, n_left + n_right}));
    }
    assert_true(str_is(v.tokens[v.endoftext], "<|endoftext|>"));
    assert_true(str_is(v.tokens[v.im_end], "<|im_end|>"));
    assert_true(str_is(v.tokens[v.endoftext + 25], "</think>"));
    assert_int_equal(v.types[v.im_end], 3);
    assert_int_equal(v.types[v.endoftext + 25], 4);
    mem_free(sorted);
    maker_vocab_release(&v);
}

static void a_vocabulary_is_closed_under_its_merges(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {282, 283, 512, 1700, 20000};
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        check_vocab(sizes[i]);
}

static void the_full_vocabulary_has_its_specials_where_the_published_one_has(void **state)
{
    (void)state;
    struct maker_vocab v;
    struct err err = {0};
    check_vocab(248320);
    assert_int_equal(maker_vocab_init(&v, 248320, 1, &err), RC_OK);
    assert_int_equal(v.endoftext, 248044);
    assert_int_equal(v.im_end, 248046);
    assert_true(str_is(v.tokens[248069], "</think>"));
    assert_true(str_is(v.tokens[248319], "[PAD248319]"));
    assert_int_equal(v.types[248319], 5);
    assert_true(v.n_merges >= 248044 - 256);
    maker_vocab_release(&v);
}

static void training_finds_the_frequent_words(void **state)
{
    (void)state;
    struct maker_vocab v;
    struct err err = {0};
    static const char *const words[] = {"\u0120the", "\u0120and", "ing", "\u0120return",
                                        "\u0120is"};
    assert_int_equal(maker_vocab_init(&v, 1482, 1, &err), RC_OK);
    for (size_t w = 0; w < COUNT_OF(words); w++) {
        bool found = false;
        for (uint32_t i = 0; i < v.n && !found; i++)
            found = str_is(v.tokens[i], words[w]);
        if (!found)
            fail_msg("no token '%s'", words[w]);
    }
    maker_vocab_release(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_preset_and_type_gives_a_file_that_opens, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(tensors_follow_one_another_padded_to_the_alignment,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(options_override_the_preset, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_file_is_a_function_of_its_options, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(bad_options_are_refused_and_leave_nothing, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(stopping_leaves_nothing, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(running_out_of_memory_is_an_error_without_leaks, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(weights_have_the_scale_their_role_asks_for, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(heads_forget_at_rates_that_span_the_range, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_medium_file_gives_more_bits_to_what_needs_them, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(two_types_are_two_roundings_of_one_model, make_dir,
                                        remove_dir),
        cmocka_unit_test(a_vocabulary_is_closed_under_its_merges),
        cmocka_unit_test(the_full_vocabulary_has_its_specials_where_the_published_one_has),
        cmocka_unit_test(training_finds_the_frequent_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
