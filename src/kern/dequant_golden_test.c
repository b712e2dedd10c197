/* quant_decode against vectors of an independent implementation (tests/golden has the recipe). */
#include "kern/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/file.h"

#include <cmocka.h>

static const enum dtype all_types[] = {DT_F32,  DT_F16,   DT_BF16,   DT_Q4_0,  DT_Q4_1, DT_Q5_0,
                                       DT_Q5_1, DT_Q8_0,  DT_Q2_K,   DT_Q3_K,  DT_Q4_K, DT_Q5_K,
                                       DT_Q6_K, DT_MXFP4, DT_IQ4_NL, DT_IQ4_XS};

static uint8_t hex_digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
}

static void check_vectors(enum dtype t)
{
    char path[512];
    snprintf(path, sizeof path, HOUSE_SHARED_DIR "/golden/dequant/%s.json", dtype_info(t)->name);
    for (char *c = strrchr(path, '/'); *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c |= 32;
    char *text;
    size_t len;
    struct err err;
    assert_int_equal(file_read_all(path, 16 * MIB, &text, &len, &err), RC_OK);
    json_t *root;
    assert_int_equal(jread_parse(text, len, &root, &err), RC_OK);
    const char *raw = json_string_value(json_object_get(root, "raw"));
    const char *bits = json_string_value(json_object_get(root, "bits"));
    assert_non_null(raw);
    assert_non_null(bits);
    const size_t n_bytes = strlen(raw) / 2, n = strlen(bits) / 8;
    assert_true(n > 0 && n_bytes == n / dtype_info(t)->block_elems * dtype_info(t)->block_bytes);
    uint8_t *src = mem_try(n_bytes + 1);
    float *y = mem_try(n * sizeof *y);
    assert_true(src && y);
    for (size_t i = 0; i < n_bytes; i++) /* at an odd address: blocks have no alignment */
        src[i + 1] = (uint8_t)(hex_digit(raw[2 * i]) << 4 | hex_digit(raw[2 * i + 1]));
    quant_decode(t, src + 1, n, y);
    for (size_t i = 0; i < n; i++) {
        char want[9];
        memcpy(want, bits + 8 * i, 8);
        want[8] = 0;
        uint32_t got;
        memcpy(&got, &y[i], 4);
        if (got != (uint32_t)strtoul(want, NULL, 16))
            fail_msg("%s element %zu: %08x, golden %s", dtype_info(t)->name, i, got, want);
    }
    json_decref(root);
    mem_free(text);
    mem_free(src);
    mem_free(y);
}

static void every_format_decodes_to_the_golden_bits(void **state)
{
    (void)state;
    if (access(HOUSE_SHARED_DIR "/golden/dequant", R_OK) != 0)
        skip();
    for (size_t i = 0; i < COUNT_OF(all_types); i++)
        if (all_types[i] != DT_F32)
            check_vectors(all_types[i]);
}

/* Relative rms error of a normal distribution through each format.  The bounds are some 5 % above
 * what the encoders reach; 6 dB of error more would be a bit lost. */
static void encoding_loses_no_more_than_the_format_must(void **state)
{
    (void)state;
    static const struct {
        enum dtype t;
        double bound;
    } limits[] = {{DT_F32, 0},       {DT_F16, 2.2e-4},  {DT_BF16, 1.77e-3},  {DT_Q8_0, 0.0057},
                  {DT_Q6_K, 0.0195}, {DT_Q5_K, 0.039},  {DT_Q5_1, 0.040},    {DT_Q5_0, 0.0441},
                  {DT_Q4_K, 0.078},  {DT_Q4_1, 0.0825}, {DT_IQ4_XS, 0.0815}, {DT_IQ4_NL, 0.081},
                  {DT_Q4_0, 0.0885}, {DT_MXFP4, 0.117}, {DT_Q3_K, 0.157},    {DT_Q2_K, 0.288}};
    enum { N = 64 * 256 };
    static float x[N], y[N];
    static uint8_t blocks[4 * N];
    struct rng rng = {7};
    for (int i = 0; i < N; i++)
        x[i] = (float)rng_normal(&rng) * 0.02f;
    for (size_t l = 0; l < COUNT_OF(limits); l++) {
        quant_encode(limits[l].t, x, N, blocks);
        quant_decode(limits[l].t, blocks, N, y);
        double e = 0, s = 0;
        for (int i = 0; i < N; i++) {
            e += (double)(y[i] - x[i]) * (y[i] - x[i]);
            s += (double)x[i] * x[i];
        }
        if (sqrt(e / s) > limits[l].bound)
            fail_msg("%s: relative error %.4f, bound %.4f", dtype_info(limits[l].t)->name,
                     sqrt(e / s), limits[l].bound);
    }
}

static void zeros_and_extremes_encode_to_finite_values(void **state)
{
    (void)state;
    static const float scale[] = {0, 1e-40f, 1e-30f, 1e-7f, 1, 1000, 60000};
    float x[256], y[256];
    uint8_t block[1024];
    struct rng rng = {3};
    for (size_t s = 0; s < COUNT_OF(scale); s++)
        for (size_t t = 0; t < COUNT_OF(all_types); t++) {
            for (int i = 0; i < 256; i++)
                x[i] = (float)(2 * rng_f64(&rng) - 1) * scale[s];
            quant_encode(all_types[t], x, 256, block);
            quant_decode(all_types[t], block, 256, y);
            for (int i = 0; i < 256; i++) {
                if (!isfinite(y[i]) || fabsf(y[i]) > 2 * scale[s] + 1e-6f)
                    fail_msg("%s at scale %g: %g became %g", dtype_info(all_types[t])->name,
                             (double)scale[s], (double)x[i], (double)y[i]);
            }
        }
}

static void half_floats_survive_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = f16_to_f32((uint16_t)h), b = bf16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(f16_to_f32(f32_to_f16(f))));
        else
            assert_int_equal(f32_to_f16(f), h);
        if (isnan(b))
            assert_true(isnan(bf16_to_f32(f32_to_bf16(b))));
        else
            assert_int_equal(f32_to_bf16(b), h);
    }
    /* halfway cases go to even */
    assert_int_equal(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);
    assert_int_equal(f32_to_f16(0x1p-25f), 0);
    assert_int_equal(f32_to_f16(3 * 0x1p-25f), 2);
    assert_int_equal(f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_decodes_to_the_golden_bits),
        cmocka_unit_test(encoding_loses_no_more_than_the_format_must),
        cmocka_unit_test(zeros_and_extremes_encode_to_finite_values),
        cmocka_unit_test(half_floats_survive_the_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
