#include "cli/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "model/maker.h"

#include <cmocka.h>

static struct gguf *make(const char *preset, enum dtype type)
{
    char path[256];
    snprintf(path, sizeof path, "%s/bench_test-%d.gguf", HOUSE_BINARY_DIR, (int)getpid());
    const struct maker_opts mo = {.preset = preset, .type = type, .seed = 1};
    struct gguf *g = NULL;
    struct err err;
    if (maker_write(path, &mo, NULL, &err) || gguf_open(path, &g, &err))
        fail_msg("%s", err.msg);
    unlink(path); /* it stays mapped */
    return g;
}

static double elems(const struct gguf *g, const char *name)
{
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    assert_non_null(t);
    return (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2];
}

static void the_cost_of_a_token_counts_what_it_touches(void **state)
{
    (void)state;
    struct bench_cost c;
    struct gguf *g = make("tiny", DT_Q8_0);
    assert_int_equal(bench_cost_of(g, &c, NULL), RC_OK);
    /* the head is tied to the embedding */
    const double late = elems(g, "token_embd.weight") + elems(g, "blk.7.attn_output.weight") +
                        3 * elems(g, "blk.7.ffn_up.weight");
    assert_true(c.head.int8_ops == 2 * late);
    assert_true(c.head.read_bytes == late / 32 * 34);
    assert_true(c.body.int8_ops > 0);
    assert_true(c.attn_ops == 4 * 4 * 32); /* 2 of 8 layers, one of them last; 4 heads of 32 */
    assert_true(c.attn_last_ops == c.attn_ops);
    gguf_close(g);

    struct bench_cost all;
    g = make("tiny-moe", DT_F32);
    assert_int_equal(bench_cost_of(g, &all, NULL), RC_OK);
    double experts = 0, rest = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const bool head = str_is(t->name, "output.weight");
        if (t->ne[1] == 1 || str_is(t->name, "token_embd.weight") || head)
            continue;
        *(t->ne[2] > 1 ? &experts : &rest) +=
            (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2];
    }
    assert_true(experts > 0);
    rest += elems(g, "output.weight");
    assert_true(all.body.f32_ops + all.head.f32_ops == 2 * (rest + experts * 3 / 8)); /* of 8 */
    assert_true(all.head.f32_ops > 2 * (elems(g, "output.weight") + experts / 8 * 3 / 8));
    gguf_close(g);
}

static void every_sample_is_timed_from_the_same_state(void **state)
{
    (void)state;
    struct gguf *g = make("tiny", DT_F32);
    const struct bench_opts o = {.g = g, .n_threads = 1, .n_ubatch = 32, .profile = true};
    struct bench_rig *b;
    struct bench_result r;
    struct err err;
    if (bench_open(&o, &b, &err))
        fail_msg("%s", err.msg);
    const enum bench_kind kinds[] = {BENCH_PREFILL, BENCH_DECODE};
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (uint32_t depth = 0; depth <= 70; depth += 70) {
            if (bench_run(b, kinds[k], 40, depth, 3, &r, &err))
                fail_msg("%s", err.msg);
            assert_int_equal(r.n_samples, 3);
            assert_int_equal(r.n_tokens, 40);
            assert_int_equal(r.n_depth, depth);
            assert_true(r.attn_least_s > 0);
            double least = 0;
            for (uint32_t i = 0; i < 3; i++)
                least += r.least_s[i];
            assert_true(least > r.attn_least_s);
            assert_true(r.roof.read_min > 0);
            assert_true(r.roof.read_min <= r.roof.median.read_bytes);
            assert_true(r.roof.median.read_bytes <= r.roof.read_max);
            assert_true(r.profile.ns[MODEL_FFN] > 0);
            for (uint32_t i = 0; i < 3; i++)
                assert_true(r.s[i] > 0);
            bench_result_release(&r);
        }
    if (bench_snapshot(b, 3, &r, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(r.bytes, shape_snap_bytes(&bench_model(b)->shape));
    assert_int_equal(r.n_samples, 3);
    bench_result_release(&r);
    bench_close(b);
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cost_of_a_token_counts_what_it_touches),
        cmocka_unit_test(every_sample_is_timed_from_the_same_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
