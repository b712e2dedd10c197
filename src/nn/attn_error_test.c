/* What attention over i16 pages loses, next to rounding K, V, queries and weights to f16, as is usual
 * (docs/decisions/attention-int16.md has the table). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "kern/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { D = 256, T = 4096, ROWS = 4, SPAN = 512, REPEATS = 6 };

static uint64_t test_seed(void)
{
    const char *env = getenv("SEED");
    const uint64_t seed = env ? strtoull(env, NULL, 10) : 1;
    print_message("SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Queries (scaled by 1 / sqrt(D)) against all keys. */
struct input {
    const char *name;
    uint32_t n; /* keys */
    float q[ROWS][D], k[T][D], v[T][D];
};

static void gaussian(struct rng *rng, struct input *in, double sharpness)
{
    for (uint32_t i = 0; i < D; i++)
        for (uint32_t r = 0; r < ROWS; r++)
            in->q[r][i] = (float)(rng_normal(rng) * sharpness / sqrt(D));
    for (uint32_t t = 0; t < in->n; t++)
        for (uint32_t i = 0; i < D; i++) {
            in->k[t][i] = (float)rng_normal(rng);
            in->v[t][i] = (float)rng_normal(rng);
        }
}

/* Channels much greater than the others, as trained models have them. */
static void raise_channels(struct input *in)
{
    for (uint32_t i = 5; i < D; i += 50) {
        for (uint32_t t = 0; t < in->n; t++) {
            in->k[t][i] *= 12;
            in->v[t][(i + 7) % D] *= 12;
        }
        for (uint32_t r = 0; r < ROWS; r++)
            in->q[r][i] *= 0.25f;
    }
}

/* All queries lean towards key 0, which gets so many nats more than an average key. */
static void make_sink(struct rng *rng, struct input *in, double nats, double value)
{
    for (uint32_t i = 0; i < D; i++) {
        const double u = rng_normal(rng);
        for (uint32_t r = 0; r < ROWS; r++)
            in->q[r][i] += (float)(0.2 * u);
        in->k[0][i] = (float)(nats / (0.2 * D) * u);
        in->v[0][i] *= (float)value;
    }
}

enum { N_CASES = 8 };

static struct input *make_case(struct rng *rng, int which)
{
    static const char *const names[N_CASES] = {
        "gaussian", "gaussian, 60 keys", "gaussian, sharp",   "channels x 12",
        "flat",     "sink, small value", "sink, usual value", "sink, channels x 12"};
    struct input *in = mem_zalloc(sizeof *in);
    in->name = names[which];
    in->n = which == 1 ? 60 : which == 4 ? T : 1000;
    gaussian(rng, in, which == 2 ? 4 : which == 4 ? 0.01 : 1);
    if (which == 3 || which == 7)
        raise_channels(in);
    if (which == 5 || which == 7)
        make_sink(rng, in, 12, 0.02);
    if (which == 6)
        make_sink(rng, in, 12, 1);
    return in;
}

/* ---- in f64, of numbers rounded to f16 or not ---- */

static float to_half(float x)
{
    return f16_to_f32(f32_to_f16(x));
}

static void round_to_halves(struct input *in)
{
    for (uint32_t i = 0; i < D; i++) {
        for (uint32_t r = 0; r < ROWS; r++)
            in->q[r][i] = to_half(in->q[r][i]);
        for (uint32_t t = 0; t < in->n; t++) {
            in->k[t][i] = to_half(in->k[t][i]);
            in->v[t][i] = to_half(in->v[t][i]);
        }
    }
}

static void naive(const struct input *in, bool halves, double (*y)[D])
{
    static double p[T];
    for (uint32_t r = 0; r < ROWS; r++) {
        double max = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < in->n; t++) {
            p[t] = 0;
            for (uint32_t i = 0; i < D; i++)
                p[t] += (double)in->q[r][i] * (double)in->k[t][i];
            max = MAX(max, p[t]);
        }
        memset(y[r], 0, sizeof y[r]);
        for (uint32_t t = 0; t < in->n; t++) {
            double w = exp(p[t] - max);
            sum += w;
            if (halves)
                w = (double)to_half((float)w);
            for (uint32_t i = 0; i < D; i++)
                y[r][i] += w * (double)in->v[t][i];
        }
        for (uint32_t i = 0; i < D; i++)
            y[r][i] /= sum;
    }
}

/* ---- by a table ---- */

static void by_table(const struct kern *k, const struct input *in, enum seq_kv type, double (*y)[D])
{
    const size_t side = (size_t)SEQ_PAGE * (D + 1) * 4; /* of the widest type */
    const struct kern_seq *s = &k->seq;
    char *K = mem_alloc(T / SEQ_PAGE * side), *V = mem_alloc(T / SEQ_PAGE * side);
    memset(K, 0xff, T / SEQ_PAGE * side);
    memset(V, 0xff, T / SEQ_PAGE * side);
    for (uint32_t t = 0; t < in->n; t++)
        s->kv_put[type](in->k[t], in->v[t], D, t % SEQ_PAGE, K + t / SEQ_PAGE * side,
                        V + t / SEQ_PAGE * side);
    static float packed[ROWS * D], o[ROWS * D], sum[ROWS * D], scratch[SEQ_SCRATCH];
    float m[ROWS], l[ROWS], m_sum[ROWS], l_sum[ROWS];
    uint32_t last[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        s->pack_q[type](in->q[r], D, r, ROWS, packed);
        last[r] = in->n - 1;
        m_sum[r] = -INFINITY;
    }
    const struct seq_tile tile = {ROWS, D, last, packed, o, m, l, NULL};
    for (uint32_t pos = 0; pos < in->n; pos += SEQ_PAGE) {
        if (pos % SPAN == 0)
            s->attn_begin(&tile);
        s->attn_page[type](&tile, pos, K + pos / SEQ_PAGE * side, V + pos / SEQ_PAGE * side,
                           scratch);
        if ((pos + SEQ_PAGE) % SPAN == 0 || pos + SEQ_PAGE >= in->n)
            for (uint32_t r = 0; r < ROWS; r++)
                s->attn_combine(o + r * D, m[r], l[r], D, sum + r * D, &m_sum[r], &l_sum[r]);
    }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < D; i++)
            y[r][i] = (double)sum[r * D + i] / (double)l_sum[r];
    mem_free(K);
    mem_free(V);
}

struct sums {
    double error, size; /* squares */
};

static void add_error(struct sums *s, double (*got)[D], double (*want)[D])
{
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < D; i++) {
            s->error += (got[r][i] - want[r][i]) * (got[r][i] - want[r][i]);
            s->size += want[r][i] * want[r][i];
        }
}

static double relative(const struct sums *s)
{
    return sqrt(s->error / s->size);
}

/* 10 % for chance: with some channels much greater than others the two are about equal. */
static void i16_is_no_worse_than_rounding_to_f16(void **state)
{
    (void)state;
    static double want[ROWS][D], y[ROWS][D];
    const struct kern *k;
    struct rng rng = {test_seed()};
    print_message("error x 1e6         f16    f16 KV  i16\n");
    for (int c = 0; c < N_CASES; c++) {
        struct input *in = NULL;
        struct sums f16 = {0}, kv[8] = {{0}}, i16[8] = {{0}};
        for (int repeat = 0; repeat < REPEATS; repeat++) {
            mem_free(in);
            in = make_case(&rng, c);
            naive(in, false, want);
            for (uint32_t i = 0; (k = kern_nth(i)); i++) {
                by_table(k, in, SEQ_F16, y);
                add_error(&kv[i], y, want);
                by_table(k, in, SEQ_I16, y);
                add_error(&i16[i], y, want);
            }
            round_to_halves(in);
            naive(in, true, y);
            add_error(&f16, y, want);
        }
        for (uint32_t i = 0; (k = kern_nth(i)); i++) {
            print_message("%-18s %5.0f  %5.0f  %5.0f  %s\n", in->name, relative(&f16) * 1e6,
                          relative(&kv[i]) * 1e6, relative(&i16[i]) * 1e6, k->name);
            assert_true(relative(&i16[i]) < 1.1 * relative(&f16));
        }
        mem_free(in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(i16_is_no_worse_than_rounding_to_f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
