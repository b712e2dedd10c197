/* Start-up and encoding speed at the size of a real vocabulary (248,320 tokens).
 *
 *   text_bpe_bench
 */
#include <stdio.h>

#include "base/clock.h"
#include "text/bpe.h"
#include "text/testing_int.h"

static void fill(char *s, size_t n, int kind, struct rng *rng)
{
    static const char *const words[] = {"the ",    "cache ",   "of ",     "tokens ",
                                        "is ",     "a ",       "tree ",   "(x == 1);\n    ",
                                        "return ", "prefix, ", "state.\n"};
    for (size_t i = 0; i < n;) {
        if (kind == 0) {
            s[i++] = '=';
        } else if (kind == 1) {
            s[i++] = (char)rng_below(rng, 256);
        } else if (kind == 2) {
            s[i++] = (char)('a' + rng_below(rng, 26));
        } else if (kind == 3) {
            s[i] = "<|special_7|>"[i % 13];
            i++;
        } else {
            const char *const w = words[rng_below(rng, COUNT_OF(words))];
            for (size_t k = 0; w[k] && i < n; k++)
                s[i++] = w[k];
        }
    }
}

int main(void)
{
    static const char *const kinds[] = {"'=' only", "random bytes", "random letters", "specials",
                                        "prose"};
    struct test_vocab t;
    test_vocab_big(&t, 248320, "qwen35");
    struct err err;
    for (int i = 0; i < 3; i++) {
        struct vocab *v;
        const uint64_t t0 = clock_mono_ns();
        if (vocab_open(t.g, &v, &err))
            return 1;
        printf("vocab_open, 248320 tokens: %.1f ms\n", (double)(clock_mono_ns() - t0) * 1e-6);
        vocab_close(v);
    }
    struct rng rng = {1};
    const size_t most = 4 << 20;
    char *const s = mem_try(most);
    if (!s)
        return 1;
    for (int kind = 0; kind < (int)COUNT_OF(kinds); kind++) {
        fill(s, most, kind, &rng);
        for (size_t n = 1 << 16; n <= most; n *= 4) {
            struct tokens out = {0};
            const uint64_t t0 = clock_mono_ns();
            if (bpe_encode(t.v, (struct str){s, n}, &(struct bpe_opts){.parse_special = true}, &out,
                           &err))
                return 1;
            const double sec = (double)(clock_mono_ns() - t0) * 1e-9;
            printf("%-14s %7zu KiB %8zu tokens %8.1f ms %7.2f MB/s\n", kinds[kind], n >> 10, out.n,
                   sec * 1e3, (double)n / sec * 1e-6);
            tokens_release(&out);
        }
    }
    mem_free(s);
    test_vocab_close(&t);
    return 0;
}
