/* matmul against a double-precision product of the decoded weights. */
#include "nn/matmul.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include "kern/act.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "nn/mat_error.h"
#include "nn/matmul_test_int.h"

#include <cmocka.h>

static struct pool *pool;

static int start(void **state)
{
    (void)state;
    return pool_new(&(struct pool_opts){.n_threads = 2}, &pool, NULL);
}

static int stop(void **state)
{
    (void)state;
    pool_free(pool);
    return 0;
}

/* Half a step of x's rounding to int8 in the block of column c. */
static double half_step(enum dtype t, const float *x, uint64_t cols, uint64_t c)
{
    const enum pack p = pack_of(t);
    if (pack_is_float(p))
        return 0;
    const uint64_t block = pack_is_act256(p) ? 256 : 32;
    float top = 0;
    for (uint64_t i = c / block * block; i < MIN(cols, c / block * block + block); i++)
        top = fmaxf(top, fabsf(x[i]));
    return top / 254.0 * (1 + 1e-6);
}

/* Every y within what rounding the activations can do, plus f32 rounding of the sums. */
static void check_product(const struct kern *k, enum dtype t, uint64_t cols, uint64_t rows,
                          uint32_t n, float w_scale, float x_scale, struct rng *rng)
{
    struct err err;
    uint8_t *blocks = random_blocks(rng, t, cols * rows, w_scale);
    float *x = random_floats(rng, n * cols, x_scale);
    float *w = mem_try(cols * rows * sizeof *w), *y = mem_try(n * rows * sizeof *y);
    assert_true(w && y);
    quant_decode(t, blocks, cols * rows, w);
    const struct mat_src src = {"w", t, cols, rows, 1, blocks};
    struct mat *m;
    struct act *a;
    assert_int_equal(mat_new(k, pool, &src, NULL, &m, &err), RC_OK);
    assert_int_equal(act_new(k, n, cols, &a, &err), RC_OK);
    act_set(a, x, n, cols, cols);
    matmul(pool, m, a, y, rows);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t r = 0; r < rows; r++) {
            double want = 0, slack = 0, size = 0;
            for (uint64_t c = 0; c < cols; c++) {
                const double wc = w[r * cols + c], xc = x[i * cols + c];
                want += wc * xc;
                size += fabs(wc * xc);
                slack += fabs(wc) * half_step(t, x + i * cols, cols, c);
            }
            /* a min is subtracted as a sum of its own: allow for the cancellation */
            slack += 1e-5 * size + 3e-7 * w_scale * x_scale * (double)cols;
            if (!(fabs(y[i * rows + r] - want) <= slack))
                fail_msg("%s %s %ux%u, token %u row %u: %g, should be %g +- %g (SEED %llu)",
                         k->name, dtype_info(t)->name, (unsigned)cols, (unsigned)rows, (unsigned)i,
                         (unsigned)r, (double)y[i * rows + r], want, slack,
                         (unsigned long long)test_seed());
        }
    act_free(a);
    mat_free(m);
    mem_free(y);
    mem_free(w);
    mem_free(x);
    mem_free(blocks);
}

static void every_type_multiplies_within_the_rounding_of_its_activations(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (uint32_t i = 0; kern_nth(i); i++)
        for (size_t t = 0; t < COUNT_OF(test_types); t++) {
            const uint32_t block = dtype_info(test_types[t])->block_elems;
            check_product(kern_nth(i), test_types[t], 256, 33, 1, 0.02f, 1, &rng);
            check_product(kern_nth(i), test_types[t], 512, 16, 9, 0.02f, 30, &rng);
            if (block < 256)
                check_product(kern_nth(i), test_types[t], 256 + 32, 5, 3, 1, 0.01f, &rng);
            if (block == 1)
                check_product(kern_nth(i), test_types[t], 7, 3, 2, 1, 1, &rng);
        }
}

static void tiny_and_huge_scales_stay_finite_and_right(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (uint32_t i = 0; kern_nth(i); i++)
        for (size_t t = 0; t < COUNT_OF(test_types); t++) {
            check_product(kern_nth(i), test_types[t], 256, 16, 7, 3e-6f, 1, &rng); /* subnormal d */
            check_product(kern_nth(i), test_types[t], 256, 16, 7, 3000, 1e4f, &rng);
            check_product(kern_nth(i), test_types[t], 256, 16, 7, 1, 1e-25f, &rng);
        }
}

static void a_row_read_back_has_the_bits_of_the_file(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    float want[512], got[512];
    for (size_t i = 0; i < COUNT_OF(test_types); i++)
        for (int raw = 0; raw < 2; raw++) {
            const enum dtype t = test_types[i];
            const uint32_t block = dtype_info(t)->block_elems;
            const uint64_t cols = block == 256 ? 512 : 320, rows = 21;
            uint8_t *blocks = random_blocks(&rng, t, cols * rows, 0.1f);
            const struct mat_src src = {"w", t, cols, rows, 1, blocks};
            const struct mat_opts o = {.no_repack = raw};
            struct mat *m;
            assert_int_equal(mat_new(kern_nth(0), pool, &src, &o, &m, NULL), RC_OK);
            assert_int_equal(mat_owns_data(m), !raw);
            assert_true(raw ? mat_bytes(m) == 0 : mat_bytes(m) > 0);
            for (uint64_t r = 0; r < rows; r++) {
                const uint64_t row_bytes = cols / block * dtype_info(t)->block_bytes;
                quant_decode(t, blocks + r * row_bytes, cols, want);
                mat_row(m, r, got);
                assert_memory_equal(got, want, cols * sizeof *got);
            }
            mat_free(m);
            mem_free(blocks);
        }
}

static void a_nan_activation_is_not_lost(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (uint32_t i = 0; kern_nth(i); i++)
        for (size_t t = 0; t < COUNT_OF(test_types); t++) {
            uint8_t *blocks = random_blocks(&rng, test_types[t], 256 * 16, 0.1f);
            float *x = random_floats(&rng, 256, 1), y[16];
            x[100] = NAN;
            const struct mat_src src = {"w", test_types[t], 256, 16, 1, blocks};
            struct mat *m;
            struct act *a;
            assert_int_equal(mat_new(kern_nth(i), pool, &src, NULL, &m, NULL), RC_OK);
            assert_int_equal(act_new(kern_nth(i), 1, 256, &a, NULL), RC_OK);
            act_set(a, x, 1, 256, 256);
            matmul(pool, m, a, y, 16);
            for (int r = 0; r < 16; r++)
                assert_true(isnan(y[r]));
            act_free(a);
            mat_free(m);
            mem_free(x);
            mem_free(blocks);
        }
}

static void rounding_activations_costs_no_more_than_elsewhere(void **state)
{
    (void)state;
    struct err err;
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++)
        for (size_t t = 0; t < COUNT_OF(test_types); t++) {
            struct mat_error e;
            assert_int_equal(mat_error(k, pool, test_types[t], &e, &err), RC_OK);
            /* an f32 sum of 2,048 products is off by some 1e-7 itself */
            if (e.rms > 1.02 * e.ggml_rms + 1e-6 || !(e.rms < 0.01))
                fail_msg("%s %s: error %g against %g", k->name, dtype_info(test_types[t])->name,
                         e.rms, e.ggml_rms);
            assert_true(pack_is_float(pack_of(test_types[t])) || e.rms > 1e-3);
        }
}

static void note_packed(void *ctx, uint64_t off, uint64_t n)
{
    uint64_t *end = ctx;
    assert_int_equal(off, *end);
    assert_true(n > 0);
    *end += n;
}

static void packing_gives_the_source_back_in_order_and_whole(void **state)
{
    (void)state;
    /* three matrices whose last tile is short; in all more than is packed at a time */
    enum { COLS = 4096, ROWS = 16 * 40 + 5, N = 3 };
    const uint64_t bytes = (uint64_t)COLS * ROWS * N * 4;
    void *w = mem_try_zalloc(bytes);
    assert_non_null(w);
    const struct mat_src src = {"w", DT_F32, COLS, ROWS, N, w};
    uint64_t end = 0;
    const struct mat_opts o = {.packed = note_packed, .ctx = &end};
    struct mat *m;
    assert_int_equal(mat_new(kern_nth(0), pool, &src, &o, &m, NULL), RC_OK);
    assert_int_equal(end, bytes);
    mat_free(m);
    mem_free(w);
}

static void no_memory_is_an_error_that_names_the_tensor(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    uint8_t *blocks = random_blocks(&rng, DT_Q8_0, 256 * 16, 0.1f);
    const struct mat_src src = {"blk.0.ffn_up.weight", DT_Q8_0, 256, 16, 1, blocks};
    struct mat *m = NULL;
    struct act *a = NULL;
    struct err err;
    mem_fail_after(1);
    assert_int_equal(mat_new(kern_nth(0), pool, &src, NULL, &m, &err), RC_NOMEM);
    assert_non_null(strstr(err.msg, "blk.0.ffn_up.weight"));
    mem_fail_after(1);
    assert_int_equal(act_new(kern_nth(0), 4, 256, &a, &err), RC_NOMEM);
    mem_fail_after(2);
    assert_int_equal(act_new(kern_nth(0), 4, 256, &a, &err), RC_NOMEM);
    mem_fail_after(0);
    mem_free(blocks);
}

static void shapes_outside_what_is_supported_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint64_t cols, rows;
        uint32_t n_mats;
        enum rc rc;
    } bad[] = {{0, 16, 1, RC_LIMIT},
               {256, 0, 1, RC_LIMIT},
               {256, 16, 0, RC_LIMIT},
               {256, 16, 5000, RC_LIMIT},
               {(uint64_t)1 << 33, 16, 1, RC_LIMIT},
               {(uint64_t)1 << 31, (uint64_t)1 << 31, 4096, RC_LIMIT},
               {48, 16, 1, RC_FORMAT}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        const struct mat_src src = {"w", DT_Q8_0, bad[i].cols, bad[i].rows, bad[i].n_mats, "data"};
        struct mat *m;
        assert_int_equal(mat_new(kern_nth(0), pool, &src, NULL, &m, NULL), bad[i].rc);
    }
}

static void tables_are_picked_by_name_and_others_refused(void **state)
{
    (void)state;
    const struct kern *k;
    struct err err;
    unsetenv("HOLDFAST_ISA");
    assert_int_equal(kern_pick(NULL, &k, &err), RC_OK);
    assert_ptr_equal(k, kern_nth(0));
    assert_int_equal(kern_pick("ref", &k, &err), RC_OK);
    assert_string_equal(k->name, "ref");
    setenv("HOLDFAST_ISA", "ref", 1);
    assert_int_equal(kern_pick("", &k, &err), RC_OK);
    assert_string_equal(k->name, "ref");
    setenv("HOLDFAST_ISA", "sse9", 1);
    assert_int_equal(kern_pick(NULL, &k, &err), RC_ARG);
    assert_non_null(strstr(err.msg, "sse9"));
    assert_non_null(strstr(err.msg, "ref"));
    unsetenv("HOLDFAST_ISA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_multiplies_within_the_rounding_of_its_activations),
        cmocka_unit_test(tiny_and_huge_scales_stay_finite_and_right),
        cmocka_unit_test(a_row_read_back_has_the_bits_of_the_file),
        cmocka_unit_test(a_nan_activation_is_not_lost),
        cmocka_unit_test(rounding_activations_costs_no_more_than_elsewhere),
        cmocka_unit_test(packing_gives_the_source_back_in_order_and_whole),
        cmocka_unit_test(no_memory_is_an_error_that_names_the_tensor),
        cmocka_unit_test(shapes_outside_what_is_supported_are_refused),
        cmocka_unit_test(tables_are_picked_by_name_and_others_refused),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
