#include "base/place.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- CPU sets ---- */

uint32_t cpus_count(const struct cpus *c)
{
    uint32_t n = 0;
    for (size_t i = 0; i < COUNT_OF(c->bits); i++)
        n += (uint32_t)__builtin_popcountll(c->bits[i]);
    return n;
}

bool cpus_has(const struct cpus *c, uint32_t cpu)
{
    return cpu < PLACE_MAX_CPUS && c->bits[cpu / 64] >> cpu % 64 & 1;
}

static void add(struct cpus *c, uint32_t cpu)
{
    c->bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

enum rc cpus_add_mask(struct cpus *c, const char *mask, struct err *err)
{
    const char *digits = mask;
    if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X'))
        digits += 2;
    const size_t n = strlen(digits);
    if (!n || n > PLACE_MAX_CPUS / 4 || strspn(digits, "0123456789abcdefABCDEF") != n)
        return err_set(err, RC_ARG, "'%.40s' is no mask of CPUs: hexadecimal digits, as in 0xff",
                       mask);
    for (size_t i = 0; i < n; i++) {
        const char d[2] = {digits[n - 1 - i], 0};
        const unsigned long four = strtoul(d, NULL, 16);
        c->bits[i / 16] |= (uint64_t)four << 4 * (i % 16);
    }
    return RC_OK;
}

/* A number below PLACE_MAX_CPUS at *p, which moves behind it. */
static bool number(const char **p, uint32_t *out)
{
    uint32_t v = 0;
    const char *at = *p;
    for (; *at >= '0' && *at <= '9' && v < PLACE_MAX_CPUS; at++)
        v = v * 10 + (uint32_t)(*at - '0');
    if (at == *p || v >= PLACE_MAX_CPUS)
        return false;
    *p = at;
    *out = v;
    return true;
}

enum rc cpus_add_list(struct cpus *c, const char *list, struct err *err)
{
    struct cpus all = *c;
    const char *p = list;
    for (;;) {
        uint32_t from, to;
        if (!number(&p, &from))
            break;
        to = from;
        if (*p == '-' && (p++, !number(&p, &to)))
            break;
        if (to < from)
            break;
        for (uint32_t i = from; i <= to; i++)
            add(&all, i);
        if (!*p || *p == '\n') {
            *c = all;
            return RC_OK;
        }
        if (*p++ != ',')
            break;
    }
    return err_set(err, RC_ARG, "'%.40s' is no range of CPUs from 0 to %d, as in 0-3", list,
                   PLACE_MAX_CPUS - 1);
}

void cpus_allowed(struct cpus *c)
{
    cpu_set_t set;
    *c = (struct cpus){0};
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set)) /* more CPUs than a set holds */
        CPU_SET(0, &set);
    for (uint32_t i = 0; i < MIN((uint32_t)PLACE_MAX_CPUS, (uint32_t)CPU_SETSIZE); i++)
        if (CPU_ISSET((size_t)i, &set))
            add(c, i);
}

enum rc cpus_confine(const struct cpus *c, struct err *err)
{
    struct cpus can;
    cpu_set_t set;
    cpus_allowed(&can);
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < PLACE_MAX_CPUS; i++) {
        if (!cpus_has(c, i))
            continue;
        if (!cpus_has(&can, i))
            return err_set(err, RC_ARG, "CPU %u is none of the %u that this process may use", i,
                           cpus_count(&can));
        CPU_SET((size_t)i, &set);
    }
    if (!cpus_count(c))
        return err_set(err, RC_ARG, "a set of no CPUs");
    if (sched_setaffinity(0, sizeof set, &set))
        return err_sys(err, "cannot keep to %u CPUs", cpus_count(c));
    return RC_OK;
}

/* ---- NUMA ---- */

bool numa_by_name(const char *name, enum numa *out)
{
    static const char *const names[] = {
        [NUMA_DISTRIBUTE] = "distribute", [NUMA_ISOLATE] = "isolate", [NUMA_INHERIT] = "numactl"};
    for (size_t i = NUMA_DISTRIBUTE; i < COUNT_OF(names); i++)
        if (!strcmp(name, names[i])) {
            *out = (enum numa)i;
            return true;
        }
    return false;
}

/* The list in a file of sysfs; false when there is no such file. */
static bool read_list(struct cpus *out, const char *dir, const char *name)
{
    char path[256], line[512];
    *out = (struct cpus){0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    const bool ok = f && fgets(line, sizeof line, f) && cpus_add_list(out, line, NULL) == RC_OK;
    if (f)
        fclose(f);
    return ok;
}

/* Pages to come go to the nodes in turn. */
static enum rc interleave(const struct cpus *nodes, struct err *err)
{
#ifdef SYS_set_mempolicy
    enum { MPOL_INTERLEAVE = 3 }; /* linux/mempolicy.h */
    unsigned long mask[PLACE_MAX_CPUS / (8 * sizeof(unsigned long))] = {0};
    const size_t word = 8 * sizeof *mask;
    for (uint32_t i = 0; i < PLACE_MAX_CPUS; i++)
        if (cpus_has(nodes, i))
            mask[i / word] |= 1UL << i % word;
    if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, (unsigned long)PLACE_MAX_CPUS) == 0)
        return RC_OK;
#else
    errno = ENOSYS;
#endif
    return err_sys(err, "cannot spread memory over %u nodes", cpus_count(nodes));
}

static enum rc stay_here(const char *sysfs, const struct cpus *nodes, struct err *err)
{
    const int here = sched_getcpu();
    struct cpus can;
    cpus_allowed(&can);
    for (uint32_t i = 0; i < PLACE_MAX_CPUS; i++) {
        struct cpus c;
        char name[32];
        snprintf(name, sizeof name, "node%u/cpulist", i);
        if (!cpus_has(nodes, i) || !read_list(&c, sysfs, name) || here < 0 ||
            !cpus_has(&c, (uint32_t)here))
            continue;
        for (size_t w = 0; w < COUNT_OF(c.bits); w++)
            c.bits[w] &= can.bits[w];
        return cpus_confine(&c, err);
    }
    return err_set(err, RC_IO, "%s: no node has CPU %d", sysfs, here);
}

enum rc numa_apply(enum numa mode, const char *sysfs, uint32_t *n_nodes, struct err *err)
{
    struct cpus nodes;
    const bool known = read_list(&nodes, sysfs, "online");
    *n_nodes = known ? cpus_count(&nodes) : 1;
    if (*n_nodes < 2 || mode == NUMA_NONE || mode == NUMA_INHERIT)
        return RC_OK;
    return mode == NUMA_DISTRIBUTE ? interleave(&nodes, err) : stay_here(sysfs, &nodes, err);
}
