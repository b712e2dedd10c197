/* matmul_bench - speed and error of matmul per format and shape, against rooflines measured around each.
 *
 *   nn_matmul_bench [-t THREADS] [-i ISA] [-f FORMAT] [-n TOKENS] [-q] [-c]
 *
 * GOPS: 2 x multiply-adds a second.  "of peak" is against int8 dot products for the quantised
 * formats and f32 multiply-adds for the float ones; GB/s counts packed weights only.
 * -q is quicker; -c counts the calling thread's CPU time, for -t 1 on a machine that is busy.
 * error: mat_error.h.
 */
#include "nn/matmul.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hist.h"
#include "base/str.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "nn/mat_error.h"
#include "nn/mat_heap.h"
#include "nn/matmul_test_int.h"
#include "nn/roof.h"

static const struct {
    const char *what;
    uint64_t cols, rows;
} shapes[] = {{"qkv 1024x6144", 1024, 6144}, {"out 2048x1024", 2048, 1024},
              {"up 1024x3584", 1024, 3584},  {"down 3584x1024", 3584, 1024},
              {"alpha 1024x16", 1024, 16},   {"head 1024x65536", 1024, 65536}};

struct bench {
    const struct kern *k;
    struct pool *pool;
    struct roof_probe *probe;
    bool quick, cpu_time;
};

static uint64_t elapsed_ns(const struct bench *b)
{
    return b->cpu_time ? clock_cpu_ns() : clock_mono_ns();
}

/* Median seconds of one matmul over enough copies of w that they do not stay in the caches when
 * there is one token (a model's weights do not either). */
static double seconds(const struct bench *b, struct mat *const *w, uint32_t n_w, struct act *a,
                      const float *x, uint32_t n, float *y)
{
    struct hist h;
    hist_init(&h);
    const uint64_t until = clock_mono_ns() + (b->quick ? 60 : 300) * 1000000ULL;
    uint32_t i = 0;
    do {
        const uint64_t cols = mat_cols(w[0]);
        const uint64_t t0 = elapsed_ns(b);
        for (uint32_t j = 0; j < n_w; j++) {
            act_set(a, x, n, cols, cols);
            matmul(b->pool, w[j], a, y, mat_rows(w[0]));
        }
        hist_add(&h, (double)(elapsed_ns(b) - t0) * 1e-9 / n_w);
    } while (++i < 3 || clock_mono_ns() < until);
    const double s = hist_quantile(&h, 0.5);
    hist_release(&h);
    return s;
}

static void bench_shape(const struct bench *b, enum dtype t, size_t shape, uint32_t n,
                        struct rng *rng)
{
    const uint64_t cols = shapes[shape].cols, rows = shapes[shape].rows;
    if (cols % dtype_info(t)->block_elems)
        return;
    uint8_t *blocks =
        mem_try(cols / dtype_info(t)->block_elems * dtype_info(t)->block_bytes * rows);
    CHECK(blocks);
    /* one encoded row, repeated: values do not change the speed */
    uint8_t *row = random_blocks(rng, t, cols, 0.02f);
    const uint64_t row_bytes = cols / dtype_info(t)->block_elems * dtype_info(t)->block_bytes;
    for (uint64_t r = 0; r < rows; r++)
        memcpy(blocks + r * row_bytes, row, row_bytes);
    struct mat *w[64];
    struct mat_heap *heap = mat_heap_new();
    const struct mat_opts o = {.heap = heap};
    uint32_t n_w = 0;
    uint64_t bytes = 0;
    do {
        const struct mat_src src = {"w", t, cols, rows, 1, blocks};
        CHECK(mat_new(b->k, b->pool, &src, &o, &w[n_w], NULL) == RC_OK);
        bytes += mat_bytes(w[n_w]);
    } while (++n_w < COUNT_OF(w) && n == 1 && bytes < 192 * MIB);
    float *x = random_floats(rng, n * cols, 1), *y = mem_try(n * rows * sizeof *y);
    struct act *a;
    CHECK(y && act_new(b->k, n, cols, &a, NULL) == RC_OK);
    const struct roof before = roof_measure(b->probe);
    const double s = seconds(b, w, n_w, a, x, n, y);
    const struct roof after = roof_measure(b->probe), roof = roof_better(&before, &after);
    const double ops = 2.0 * (double)cols * (double)rows * n / s;
    const double read = (double)bytes / n_w / s;
    const double peak = pack_is_float(pack_of(t)) ? roof.f32_ops : roof.int8_ops;
    printf("%-7s %-16s %4u %9.1f us %8.0f GOPS %5.1f %% of peak %7.1f GB/s %5.1f %% of read\n",
           dtype_info(t)->name, shapes[shape].what, n, s * 1e6, ops * 1e-9, 100 * ops / peak,
           read * 1e-9, 100 * read / roof.read_bytes);
    fflush(stdout);
    act_free(a);
    for (uint32_t i = 0; i < n_w; i++)
        mat_free(w[i]);
    mat_heap_free(heap);
    mem_free(x);
    mem_free(y);
    mem_free(row);
    mem_free(blocks);
}

int main(int argc, char **argv)
{
    struct err err;
    struct bench b = {0};
    struct pool_opts po = {0};
    const char *isa = NULL, *format = NULL;
    uint32_t tokens = 0;
    for (int c; (c = getopt(argc, argv, "t:i:f:n:qc")) != -1;)
        switch (c) {
        case 't':
            po.n_threads = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'i':
            isa = optarg;
            break;
        case 'f':
            format = optarg;
            break;
        case 'n':
            tokens = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'q':
            b.quick = true;
            break;
        case 'c':
            b.cpu_time = true;
            break;
        default:
            return 2;
        }
    if (kern_pick(isa, &b.k, &err) || pool_new(&po, &b.pool, &err) ||
        roof_new(b.k, b.pool, &b.probe, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const struct roof roof = roof_measure(b.probe);
    printf("table %s, %u threads: int8 %.0f GOPS, f32 %.0f GFLOPS, read %.1f GB/s\n", b.k->name,
           pool_n_threads(b.pool), roof.int8_ops * 1e-9, roof.f32_ops * 1e-9,
           roof.read_bytes * 1e-9);
    struct rng rng = {test_seed()};
    for (size_t t = 0; t < COUNT_OF(test_types); t++) {
        if (format && dtype_by_name(format) != dtype_info(test_types[t]))
            continue;
        struct mat_error e;
        CHECK(mat_error(b.k, b.pool, test_types[t], &e, &err) == RC_OK);
        printf("%-7s error %.5f, as ggml rounds %.5f\n", dtype_info(test_types[t])->name, e.rms,
               e.ggml_rms);
        for (size_t s = 0; s < COUNT_OF(shapes); s++) {
            static const uint32_t counts[] = {1, 4, 512};
            for (size_t i = 0; i < COUNT_OF(counts); i++)
                if ((tokens == 0 || tokens == counts[i]) &&
                    !(counts[i] > 4 && shapes[s].rows > 10000))
                    bench_shape(&b, test_types[t], s, counts[i], &rng);
        }
    }
    roof_free(b.probe);
    pool_free(b.pool);
    return 0;
}
