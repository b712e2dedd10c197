#include "cli/opts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char said[1024]; /* what opts_parse told the user */

struct values {
    const char *model, *operand[2];
    uint32_t port;
    int32_t n_predict;
    float temperature;
    bool warmup, given;
    uint64_t bytes;
    size_t n_operands;
};

static enum opts_result parse(struct values *v, int argc, const char *const *argv)
{
    const struct opt table[] = {
        {.kind = OPT_GROUP, .help = "things"},
        {"-m --model", OPT_STR, &v->model, .arg = "FILE", .help = "model"},
        {"--port", OPT_U32, &v->port, .arg = "N", .help = "port", .env = "OPTS_TEST_PORT",
         .max = 65535, .given = &v->given},
        {"-n --n-predict", OPT_I32, &v->n_predict, .arg = "N", .help = "tokens", .min = -1,
         .max = 1000},
        {"--temp", OPT_F32, &v->temperature, .arg = "T", .help = "temperature"},
        {"--warmup !--no-warmup", OPT_FLAG, &v->warmup, .help = "warm up",
         .env = "OPTS_TEST_WARMUP"},
        {"--cache-disk", OPT_BYTES, &v->bytes, .arg = "SIZE", .help = "bytes"},
        {"--ctx-checkpoints", OPT_IGNORED, .arg = "N", .help = "there is a budget instead"},
        {"--defrag", OPT_IGNORED, .arg = "X", .help = "nothing to do"},
        {"-fa --flash-attn", OPT_IGNORED, .arg = "[on|off]", .help = "there is one attention"},
        {"--rpc", OPT_REFUSED, .arg = "LIST", .help = "one machine only"},
    };
    const struct opts o = {.command = "test",
                           .intro = "Tests.",
                           .table = table,
                           .n = COUNT_OF(table),
                           .operands = v->operand,
                           .max_operands = 2,
                           .n_operands = &v->n_operands};
    FILE *out = fmemopen(said, sizeof said, "w");
    assert_non_null(out);
    memset(said, 0, sizeof said);
    char *copy[16] = {0};
    assert_true((size_t)argc < COUNT_OF(copy));
    for (int i = 0; i < argc; i++)
        copy[i] = strdup(argv[i]);
    const enum opts_result r = opts_parse(&o, argc, copy, out);
    /* OPT_STR borrows from argv: give the caller words that stay */
    for (int i = 0; i < argc; i++) {
        if (v->model == copy[i])
            v->model = argv[i];
        for (size_t j = 0; j < COUNT_OF(v->operand); j++)
            if (v->operand[j] == copy[i])
                v->operand[j] = argv[i];
        free(copy[i]);
    }
    fclose(out);
    return r;
}

#define PARSE(v, ...)                                                                              \
    parse((v), (int)COUNT_OF(((const char *const[]){"test", __VA_ARGS__})),                        \
          (const char *const[]){"test", __VA_ARGS__})

static void every_kind_sets_its_variable(void **state)
{
    (void)state;
    struct values v = {.warmup = true};
    assert_int_equal(PARSE(&v, "-m", "a.gguf", "--port", "80", "-n", "-1", "--temp", "0.5",
                           "--no-warmup", "--cache-disk", "1.5G", "x", "--", "-y"),
                     OPTS_OK);
    assert_string_equal(v.model, "a.gguf");
    assert_int_equal(v.port, 80);
    assert_true(v.given);
    assert_int_equal(v.n_predict, -1);
    assert_true(v.temperature == 0.5F);
    assert_false(v.warmup);
    assert_int_equal(v.bytes, 1610612736);
    assert_int_equal(v.n_operands, 2);
    assert_string_equal(v.operand[0], "x");
    assert_string_equal(v.operand[1], "-y");
    assert_string_equal(said, "");
}

static void underscores_and_equal_signs_are_understood(void **state)
{
    (void)state;
    struct values v = {0};
    assert_int_equal(PARSE(&v, "--n_predict=7", "--model=b_c"), OPTS_OK);
    assert_int_equal(v.n_predict, 7);
    struct values w = {0};
    assert_int_equal(PARSE(&w, "--no_warmup=1"), OPTS_ERROR);
    assert_non_null(strstr(said, "takes no value"));
}

static void an_unknown_option_names_the_nearest(void **state)
{
    (void)state;
    struct values v = {0};
    assert_int_equal(PARSE(&v, "--n-perdict", "3"), OPTS_ERROR);
    assert_non_null(strstr(said, "did you mean --n-predict?"));
    assert_int_equal(PARSE(&v, "--zzzzzzzz"), OPTS_ERROR);
    assert_null(strstr(said, "did you mean"));
}

static void a_wrong_value_names_option_value_and_range(void **state)
{
    (void)state;
    struct values v = {0};
    assert_int_equal(PARSE(&v, "--port", "65536"), OPTS_ERROR);
    assert_non_null(strstr(said, "--port: '65536' is not a whole number from 0 to 65535"));
    assert_int_equal(PARSE(&v, "--port", "8o"), OPTS_ERROR);
    assert_int_equal(PARSE(&v, "--port", "-1"), OPTS_ERROR);
    assert_int_equal(PARSE(&v, "-n", "-2"), OPTS_ERROR);
    assert_int_equal(PARSE(&v, "--temp", "warm"), OPTS_ERROR);
    assert_int_equal(PARSE(&v, "--cache-disk", "much"), OPTS_ERROR);
    assert_int_equal(PARSE(&v, "--port"), OPTS_ERROR);
    assert_non_null(strstr(said, "--port wants a value: N"));
    assert_int_equal(v.port, 0);
}

static void a_number_that_decides_nothing_must_still_be_one(void **state)
{
    (void)state;
    struct values v = {0};
    assert_int_equal(PARSE(&v, "--ctx-checkpoints", "32", "--defrag", "-0.5", "x"), OPTS_OK);
    assert_non_null(strstr(said, "--ctx-checkpoints decides nothing here"));
    assert_int_equal(PARSE(&v, "--ctx-checkpoints", "abc", "x"), OPTS_ERROR);
    assert_non_null(strstr(said, "--ctx-checkpoints: 'abc' is not a number"));
    assert_int_equal(PARSE(&v, "--ctx-checkpoints", "3.5", "x"), OPTS_ERROR);
    assert_int_equal(PARSE(&v, "--defrag", "much", "x"), OPTS_ERROR);
}

static void the_command_line_wins_over_the_environment(void **state)
{
    (void)state;
    struct values v = {.warmup = true};
    setenv("OPTS_TEST_PORT", "81", 1);
    setenv("OPTS_TEST_WARMUP", "off", 1);
    assert_int_equal(PARSE(&v, "x"), OPTS_OK);
    assert_int_equal(v.port, 81);
    assert_false(v.warmup);
    assert_int_equal(PARSE(&v, "--port", "82"), OPTS_OK);
    assert_int_equal(v.port, 82);
    setenv("OPTS_TEST_PORT", "many", 1);
    assert_int_equal(PARSE(&v, "x"), OPTS_ERROR);
    assert_non_null(strstr(said, "OPTS_TEST_PORT"));
    unsetenv("OPTS_TEST_PORT");
    setenv("OPTS_TEST_WARMUP", "perhaps", 1);
    assert_int_equal(PARSE(&v, "x"), OPTS_ERROR);
    unsetenv("OPTS_TEST_WARMUP");
}

static void what_decides_nothing_is_accepted_with_a_note(void **state)
{
    (void)state;
    struct values v = {0};
    assert_int_equal(PARSE(&v, "-fa", "on", "--port", "1"), OPTS_OK);
    assert_non_null(strstr(said, "note: -fa decides nothing here: there is one attention\n"));
    assert_int_equal(v.port, 1);
    assert_int_equal(PARSE(&v, "-fa", "--port", "2"), OPTS_OK);
    assert_int_equal(v.port, 2);
    assert_int_equal(PARSE(&v, "--rpc", "here"), OPTS_ERROR);
    assert_non_null(strstr(said, "--rpc is not supported: one machine only"));
}

static void words_are_counted(void **state)
{
    (void)state;
    struct values v = {0};
    assert_int_equal(PARSE(&v, "a", "b", "c"), OPTS_ERROR);
    assert_non_null(strstr(said, "'c'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_sets_its_variable),
        cmocka_unit_test(underscores_and_equal_signs_are_understood),
        cmocka_unit_test(an_unknown_option_names_the_nearest),
        cmocka_unit_test(a_wrong_value_names_option_value_and_range),
        cmocka_unit_test(a_number_that_decides_nothing_must_still_be_one),
        cmocka_unit_test(the_command_line_wins_over_the_environment),
        cmocka_unit_test(what_decides_nothing_is_accepted_with_a_note),
        cmocka_unit_test(words_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
