/* pick.c - the only place that asks what the CPU can do; built for the baseline.
 *
 * __builtin_cpu_supports asks the operating system too (XGETBV): a set whose registers it does not
 * save counts as absent.
 */
#include "kern/pick.h"

#include <stdlib.h>
#include <string.h>

#include "kern/kern.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

extern const struct kern kern_ref;
#if defined(__x86_64__)
extern const struct kern kern_avx2, kern_avx512, kern_avx512_vnni;
#elif defined(__aarch64__)
extern const struct kern kern_neon;
#endif

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512_vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
static bool has_neon_dotprod(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
#endif

/* Best first. */
static const struct {
    const struct kern *kern;
    bool (*runs)(void);
} tables[] = {
#if defined(__x86_64__)
    {&kern_avx512_vnni, has_avx512_vnni},
    {&kern_avx512, has_avx512},
    {&kern_avx2, has_avx2},
#elif defined(__aarch64__)
    {&kern_neon, has_neon_dotprod},
#endif
    {&kern_ref, always},
};

const struct kern *kern_nth(uint32_t n)
{
    for (size_t i = 0; i < COUNT_OF(tables); i++)
        if (tables[i].runs() && n-- == 0)
            return tables[i].kern;
    return NULL;
}

/* "avx2, ref" */
static void list_tables(char out[128])
{
    size_t n = 0;
    out[0] = 0;
    for (uint32_t i = 0; kern_nth(i); i++) {
        const char *name = kern_nth(i)->name;
        const size_t len = strlen(name);
        if (n + len + 3 > 128)
            break;
        if (n) {
            memcpy(out + n, ", ", 2);
            n += 2;
        }
        memcpy(out + n, name, len + 1);
        n += len;
    }
}

enum rc kern_pick(const char *name, const struct kern **out, struct err *err)
{
    if (!name || !*name)
        name = getenv("HOLDFAST_ISA");
    if (!name || !*name) {
        *out = kern_nth(0);
        return RC_OK;
    }
    char can[128];
    list_tables(can);
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        if (strcmp(tables[i].kern->name, name) != 0)
            continue;
        if (!tables[i].runs())
            return err_set(err, RC_UNSUPPORTED,
                           "instruction set %s: this CPU or operating system lacks it; it has %s",
                           name, can);
        *out = tables[i].kern;
        return RC_OK;
    }
    return err_set(err, RC_ARG, "no instruction set \"%.32s\"; this machine has %s", name, can);
}
