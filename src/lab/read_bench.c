/* Throughput of the readers: MB/s of log text through the whole way, on one core.
 *
 *   lab_read_bench [LOG...]     each LOG repeated to 128 MB; without LOGs, those of tests/logs
 *
 * What is timed is unwrapping, reading, following turns and counting, without the list of turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "lab/forensics.h"

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int bench(const char *path)
{
    enum { BYTES = 128 << 20 };
    struct err err;
    char *text;
    size_t n;
    if (file_read_all(path, BYTES, &text, &n, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    char *big = mem_try(BYTES);
    size_t k = 0;
    while (big && n && k + n <= BYTES) {
        memcpy(big + k, text, n);
        k += n;
    }
    double best = 1e9;
    for (int run = 0; run < 3 && k; run++) {
        struct forensics *f;
        if (forensics_new(&(struct forensics_opts){.now = 1.8e9}, &f, &err))
            return 1;
        const double begin = cpu_seconds();
        if (forensics_mem(f, path, big, k, &err) || forensics_end(f, &err))
            return 1;
        best = MIN(best, cpu_seconds() - begin);
        forensics_free(f);
    }
    printf("%8.0f MB/s  %s\n", (double)k / 1e6 / best, path);
    mem_free(big);
    mem_free(text);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const own[] = {"tests/logs/mainline-plain.log", "tests/logs/pxa.log",
                                      "tests/logs/mainline-default-level.log"};
    int bad = 0;
    for (int i = 1; i < argc; i++)
        bad |= bench(argv[i]);
    for (size_t i = 0; argc < 2 && i < COUNT_OF(own); i++)
        bad |= bench(own[i]);
    return bad;
}
