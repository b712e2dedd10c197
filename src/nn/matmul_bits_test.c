/* y has the same bits for any batch, threads, cut, layout and table. */
#include "nn/matmul.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include "kern/kern.h"
#include "kern/pick.h"
#include "nn/matmul_test_int.h"

#include <cmocka.h>

enum { MAX_THREADS = 3 };
static struct pool *pools[MAX_THREADS + 1];

static int start(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_THREADS; n++)
        if (pool_new(&(struct pool_opts){.n_threads = n}, &pools[n], NULL))
            return 1;
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_THREADS; n++)
        pool_free(pools[n]);
    return 0;
}

/* One matrix and rows of activations, with the answer of the reference table, row by row. */
struct example {
    enum dtype t;
    uint64_t cols, rows;
    uint32_t n_mats, n;
    uint8_t *blocks;
    float *x, *want; /* want [n_mats][n][rows] */
};

static struct mat *open_mat(const struct kern *k, const struct example *e, bool raw)
{
    const struct mat_src src = {"w", e->t, e->cols, e->rows, e->n_mats, e->blocks};
    const struct mat_opts o = {.no_repack = raw};
    struct mat *m;
    CHECK(mat_new(k, pools[2], &src, &o, &m, NULL) == RC_OK);
    return m;
}

static struct act *open_act(const struct kern *k, const struct example *e)
{
    struct act *a;
    CHECK(act_new(k, e->n, e->cols, &a, NULL) == RC_OK);
    return a;
}

static const struct kern *reference(void)
{
    const struct kern *k;
    CHECK(kern_pick("ref", &k, NULL) == RC_OK);
    return k;
}

static struct example example(struct rng *rng, enum dtype t, uint64_t cols, uint64_t rows,
                              uint32_t n_mats, uint32_t n)
{
    struct example e = {t, cols, rows, n_mats, n, NULL, NULL, NULL};
    e.blocks = random_blocks(rng, t, cols * rows * n_mats, 0.05f);
    e.x = random_floats(rng, n * cols, 2);
    e.want = mem_try(n_mats * n * rows * sizeof *e.want);
    CHECK(e.want);
    struct mat *m = open_mat(reference(), &e, false);
    struct act *a = open_act(reference(), &e);
    for (uint32_t i = 0; i < n; i++) {
        act_set(a, e.x + i * cols, 1, cols, cols);
        for (uint32_t j = 0; j < n_mats; j++) {
            const uint32_t row = 0;
            matmul_experts(pools[1], m, a, &j, &row, 1, e.want + (j * n + i) * rows, rows);
        }
    }
    act_free(a);
    mat_free(m);
    return e;
}

static void example_release(struct example *e)
{
    mem_free(e->blocks);
    mem_free(e->x);
    mem_free(e->want);
}

static void check_rows(const struct kern *k, const struct example *e, const float *got,
                       const float *want, uint64_t n_floats, const char *how)
{
    for (uint64_t i = 0; i < n_floats; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s %s %ux%u, %u tokens, %s: float %u is %a, reference %a (SEED %llu)",
                     k->name, dtype_info(e->t)->name, (unsigned)e->cols, (unsigned)e->rows,
                     (unsigned)e->n, how, (unsigned)i, (double)got[i], (double)want[i],
                     (unsigned long long)test_seed());
}

/* All at once, in random slices, on 1 to 3 threads, packed and raw. */
static void check_cuts(const struct kern *k, const struct example *e, struct rng *rng)
{
    const uint64_t ldy = e->rows + rng_below(rng, 5);
    float *y = mem_try(e->n * ldy * sizeof *y);
    CHECK(y);
    struct act *a = open_act(k, e);
    for (int raw = 0; raw < 2; raw++) {
        struct mat *m = open_mat(k, e, raw);
        for (uint32_t threads = 1; threads <= MAX_THREADS; threads++)
            for (int sliced = 0; sliced < 2; sliced++) {
                memset(y, 0xff, e->n * ldy * sizeof *y);
                for (uint32_t i = 0, n; i < e->n; i += n) {
                    n = sliced ? 1 + rng_below(rng, MIN(e->n - i, 12)) : e->n;
                    act_set(a, e->x + i * e->cols, n, e->cols, e->cols);
                    matmul(pools[threads], m, a, y + i * ldy, ldy);
                }
                for (uint32_t i = 0; i < e->n; i++)
                    check_rows(k, e, y + i * ldy, e->want + i * e->rows, e->rows,
                               raw ? "raw" : "packed");
            }
        mat_free(m);
    }
    act_free(a);
    mem_free(y);
}

static void a_row_has_the_same_bits_in_any_batch_on_any_threads_and_table(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (size_t t = 0; t < COUNT_OF(test_types); t++) {
        const uint32_t block = dtype_info(test_types[t])->block_elems;
        static const struct {
            uint64_t cols, rows;
            uint32_t n;
        } shapes[] = {{256, 16, 13}, {768, 50, 7},  {256, 1, 3}, {512, 129, 25},
                      {32, 33, 8},   {288, 20, 11}, {1, 17, 4},  {301, 31, 9}};
        for (size_t s = 0; s < COUNT_OF(shapes); s++) {
            if (shapes[s].cols % block)
                continue;
            struct example e =
                example(&rng, test_types[t], shapes[s].cols, shapes[s].rows, 1, shapes[s].n);
            for (uint32_t i = 0; kern_nth(i); i++)
                check_cuts(kern_nth(i), &e, &rng);
            example_release(&e);
        }
    }
}

static void more_tokens_than_a_part_takes_change_no_bits(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    static const enum dtype some[] = {DT_Q8_0, DT_Q4_K, DT_F16};
    for (size_t t = 0; t < COUNT_OF(some); t++) {
        struct example e = example(&rng, some[t], 256, 40, 1, 493);
        for (uint32_t i = 0; kern_nth(i); i++)
            check_cuts(kern_nth(i), &e, &rng);
        example_release(&e);
    }
}

/* Several matrices of different types over the same rows, in one call. */
static void several_matrices_in_one_call_give_what_each_gives_alone(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (uint32_t i = 0; kern_nth(i); i++) {
        const struct kern *k = kern_nth(i);
        struct example e[COUNT_OF(test_types)];
        struct mat *m[COUNT_OF(test_types)];
        struct matmul_job jobs[COUNT_OF(test_types)];
        const uint32_t n = 5;
        for (size_t j = 0; j < COUNT_OF(test_types); j++) {
            e[j] = example(&rng, test_types[j], 256, 10 + 13 * j, 1, n);
            m[j] = open_mat(k, &e[j], false);
            jobs[j] =
                (struct matmul_job){m[j], mem_try(n * e[j].rows * sizeof(float)), e[j].rows, 0};
        }
        struct act *a = open_act(k, &e[0]);
        for (size_t j = 0; j < COUNT_OF(test_types); j++) {
            act_set(a, e[j].x, n, 256, 256); /* jobs see e[j]'s rows in turn */
            matmul_many(pools[2], jobs, COUNT_OF(test_types), a);
            check_rows(k, &e[j], jobs[j].y, e[j].want, n * e[j].rows, "many");
        }
        for (size_t j = 0; j < COUNT_OF(test_types); j++) {
            mem_free(jobs[j].y);
            mat_free(m[j]);
            example_release(&e[j]);
        }
        act_free(a);
    }
}

static void outputs_in_blocks_are_the_same_outputs(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    static const struct {
        uint32_t n, rows, block;
    } cases[] = {{1, 160, 32}, {5, 96, 16}, {3, 300, 128}, {250, 144, 48}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        const uint32_t n = cases[c].n, rows = cases[c].rows, block = cases[c].block;
        struct example e = example(&rng, DT_Q8_0, 256, rows, 1, n);
        for (uint32_t i = 0; kern_nth(i); i++) {
            struct mat *m = open_mat(kern_nth(i), &e, false);
            struct act *a = open_act(kern_nth(i), &e);
            float *flat = mem_try((size_t)n * rows * sizeof *flat);
            float *y = mem_try((size_t)n * round_up(rows, block) * sizeof *y);
            assert_true(flat && y);
            const struct matmul_job job = {.w = m, .y = y, .block = block};
            act_set(a, e.x, n, 256, 256);
            matmul(pools[1], m, a, flat, rows);
            matmul_many(pools[2], &job, 1, a);
            for (uint32_t t = 0; t < n; t++)
                for (uint32_t r = 0; r < rows; r++)
                    assert_memory_equal(flat + (size_t)t * rows + r,
                                        y + ((size_t)(r / block) * n + t) * block + r % block,
                                        sizeof *y);
            mem_free(flat);
            mem_free(y);
            act_free(a);
            mat_free(m);
        }
        example_release(&e);
    }
}

static void an_expert_gives_a_row_the_same_bits_whoever_else_asks_it(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    enum { MATS = 7, N = 19 };
    for (size_t t = 0; t < COUNT_OF(test_types); t++) {
        struct example e = example(&rng, test_types[t], 256, 45, MATS, N);
        for (uint32_t i = 0; kern_nth(i); i++)
            for (int raw = 0; raw < 2; raw++) {
                const struct kern *k = kern_nth(i);
                struct mat *m = open_mat(k, &e, raw);
                struct act *a = open_act(k, &e);
                uint32_t expert[MATS * N], row[MATS * N], n = 0;
                for (uint32_t j = 0; j < MATS; j++)
                    for (uint32_t r = 0; r < N; r++)
                        if (j != 3 && rng_below(&rng, 3) == 0) { /* nobody asks expert 3 */
                            expert[n] = j;
                            row[n++] = r;
                        }
                float *y = mem_try(MATS * N * e.rows * sizeof *y);
                CHECK(y);
                act_set(a, e.x, N, 256, 256);
                matmul_experts(pools[1 + i % 3], m, a, expert, row, n, y, e.rows);
                for (uint32_t p = 0; p < n; p++)
                    check_rows(k, &e, y + p * e.rows, e.want + (expert[p] * N + row[p]) * e.rows,
                               e.rows, "experts");
                mem_free(y);
                act_free(a);
                mat_free(m);
            }
        example_release(&e);
    }
}

static void a_long_matrix_for_few_tokens_has_the_same_bits_in_rounds(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    /* 1.6 MiB: up to 3 rounds on 2 and 3 threads, the last row in a tile of its own */
    struct example e = example(&rng, DT_Q8_0, 512, 3025, 1, 3);
    const struct kern *k;
    for (uint32_t i = 0; (k = kern_nth(i)); i++)
        check_cuts(k, &e, &rng);
    example_release(&e);
    /* experts in one cut: parts begin and end inside them */
    e = example(&rng, DT_Q4_0, 512, 528, 5, 1);
    const uint32_t expert[] = {0, 1, 3, 4}, row[] = {0, 0, 0, 0};
    for (uint32_t i = 0; (k = kern_nth(i)); i++)
        for (uint32_t threads = 1; threads <= MAX_THREADS; threads++) {
            float y[4 * 528];
            struct mat *m = open_mat(k, &e, false);
            struct act *a = open_act(k, &e);
            act_set(a, e.x, 1, e.cols, e.cols);
            matmul_experts(pools[threads], m, a, expert, row, 4, y, e.rows);
            for (uint32_t p = 0; p < 4; p++)
                check_rows(k, &e, y + p * e.rows, e.want + expert[p] * e.rows, e.rows, "rounds");
            act_free(a);
            mat_free(m);
        }
    example_release(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch_on_any_threads_and_table),
        cmocka_unit_test(a_long_matrix_for_few_tokens_has_the_same_bits_in_rounds),
        cmocka_unit_test(more_tokens_than_a_part_takes_change_no_bits),
        cmocka_unit_test(several_matrices_in_one_call_give_what_each_gives_alone),
        cmocka_unit_test(outputs_in_blocks_are_the_same_outputs),
        cmocka_unit_test(an_expert_gives_a_row_the_same_bits_whoever_else_asks_it),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
