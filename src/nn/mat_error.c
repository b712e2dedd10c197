#include "nn/mat_error.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kern/kern.h"
#include "kern/quant.h"
#include "nn/matmul.h"

enum { COLS = 2048, ROWS = 64, N = 16 };

struct trial {
    float *w;           /* [ROWS][COLS], decoded */
    float *x, *rounded; /* [N][COLS] */
    float *y;           /* [N][ROWS] */
    uint8_t *blocks;    /* w as it was encoded */
};

static void normals(struct rng *rng, float *x, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rng_normal(rng) * scale);
}

/* x [256] as int8 with one f32 scale. */
static void round_256(const float *x, float *out)
{
    float top = 0;
    for (int i = 0; i < 256; i++)
        top = fmaxf(top, fabsf(x[i]));
    for (int i = 0; i < 256; i++)
        out[i] = top > 0 ? rintf(x[i] * (127 / top)) * (top / 127) : 0;
}

/* What ggml's CPU kernels see of x [N * COLS] beside weights of type t. */
static void round_as_ggml(enum dtype t, const float *x, uint8_t *scratch, float *out)
{
    if (pack_is_act256(pack_of(t))) {
        for (size_t i = 0; i < (size_t)N * COLS; i += 256)
            round_256(x + i, out + i);
        return;
    }
    const enum dtype rounding = pack_is_float(pack_of(t)) ? t : DT_Q8_0;
    quant_encode(rounding, x, (uint64_t)N * COLS, scratch);
    quant_decode(rounding, scratch, (uint64_t)N * COLS, out);
}

static void compare(const struct trial *t, struct mat_error *out)
{
    double ours = 0, theirs = 0, all = 0;
    for (size_t n = 0; n < N; n++)
        for (size_t r = 0; r < ROWS; r++) {
            const float *w = t->w + r * COLS, *x = t->x + n * COLS, *z = t->rounded + n * COLS;
            double want = 0, ggml = 0;
            for (size_t c = 0; c < COLS; c++) {
                want += (double)w[c] * (double)x[c];
                ggml += (double)w[c] * (double)z[c];
            }
            const double e = (double)t->y[n * ROWS + r] - want;
            ours += e * e;
            theirs += (ggml - want) * (ggml - want);
            all += want * want;
        }
    *out = (struct mat_error){.rms = sqrt(ours / all), .ggml_rms = sqrt(theirs / all)};
}

static enum rc multiply(const struct kern *k, struct pool *pool, enum dtype type, struct trial *t,
                        struct err *err)
{
    const struct mat_src src = {"trial", type, COLS, ROWS, 1, t->blocks};
    struct mat *m = NULL;
    struct act *a = NULL;
    enum rc rc = mat_new(k, pool, &src, NULL, &m, err);
    if (!rc)
        rc = act_new(k, N, COLS, &a, err);
    if (!rc) {
        act_set(a, t->x, N, COLS, COLS);
        matmul(pool, m, a, t->y, ROWS);
    }
    act_free(a);
    mat_free(m);
    return rc;
}

enum rc mat_error(const struct kern *k, struct pool *pool, enum dtype type, struct mat_error *out,
                  struct err *err)
{
    struct trial t = {.w = mem_try_array((size_t)ROWS * COLS, sizeof(float)),
                      .x = mem_try_array((size_t)N * COLS, sizeof(float)),
                      .rounded = mem_try_array((size_t)N * COLS, sizeof(float)),
                      .y = mem_try_array((size_t)N * ROWS, sizeof(float)),
                      .blocks = mem_try((size_t)ROWS * COLS * sizeof(float))};
    enum rc rc = RC_OK;
    if (!t.w || !t.x || !t.rounded || !t.y || !t.blocks)
        rc = err_set(err, RC_NOMEM, "no memory for a trial product");
    if (!rc) {
        struct rng rng = {1};
        normals(&rng, t.x, (size_t)N * COLS, 1);
        normals(&rng, t.w, (size_t)ROWS * COLS, 0.02);
        round_as_ggml(type, t.x, t.blocks, t.rounded);
        quant_encode(type, t.w, (uint64_t)ROWS * COLS, t.blocks);
        quant_decode(type, t.blocks, (uint64_t)ROWS * COLS, t.w);
        rc = multiply(k, pool, type, &t, err);
    }
    if (!rc)
        compare(&t, out);
    mem_free(t.w);
    mem_free(t.x);
    mem_free(t.rounded);
    mem_free(t.y);
    mem_free(t.blocks);
    return rc;
}
