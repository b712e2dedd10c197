/* place.h - where threads run and where memory lies: CPU sets and NUMA nodes.
 *
 * A set is made from what the user gives and then confines the whole process; threads and memory that
 * come afterwards inherit it.  So: before any thread starts and before the model is loaded.
 */
#ifndef HOLDFAST_BASE_PLACE_H
#define HOLDFAST_BASE_PLACE_H

#include "base/err.h"

enum { PLACE_MAX_CPUS = 1024 };

struct cpus { /* zero-initialise: empty */
    uint64_t bits[PLACE_MAX_CPUS / 64];
};
uint32_t cpus_count(const struct cpus *c);
bool cpus_has(const struct cpus *c, uint32_t cpu);
/* Adds the CPUs of a hexadecimal mask: "0xff", "f0". */
NODISCARD enum rc cpus_add_mask(struct cpus *c, const char *mask, struct err *err);
/* Adds "0-3", or a list as the kernel writes it: "0-3,8". */
NODISCARD enum rc cpus_add_list(struct cpus *c, const char *list, struct err *err);
/* What this process may use now. */
void cpus_allowed(struct cpus *c);
/* From now on this process runs on c only.  RC_ARG when a CPU of c is not allowed. */
NODISCARD enum rc cpus_confine(const struct cpus *c, struct err *err);

enum numa {
    NUMA_NONE,
    NUMA_DISTRIBUTE, /* memory page by page over all nodes, so that their channels work together */
    NUMA_ISOLATE,    /* CPUs of the node that runs this now; memory follows them */
    NUMA_INHERIT     /* what numactl set stays */
};
bool numa_by_name(const char *name, enum numa *out); /* "distribute", "isolate", "numactl" */

/* sysfs is "/sys/devices/system/node" (tests give another).  *n_nodes: how many there are; with one (or
 * where the kernel does not tell) nothing is done, since there is nothing to choose. */
NODISCARD enum rc numa_apply(enum numa mode, const char *sysfs, uint32_t *n_nodes, struct err *err);

#endif
