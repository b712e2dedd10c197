#include "cli/opts_place.h"

#include "base/place.h"

#define SYSFS_NODES "/sys/devices/system/node"

static enum rc confine(const struct place_opts *p, struct err *err)
{
    struct cpus c = {0};
    enum rc rc = RC_OK;
    if (p->mask)
        rc = cpus_add_mask(&c, p->mask, err);
    if (!rc && p->range)
        rc = cpus_add_list(&c, p->range, err);
    if (!rc && (p->mask || p->range))
        rc = cpus_confine(&c, err);
    return rc;
}

bool place_apply(const struct place_opts *p, const char *command)
{
    struct err err;
    enum numa mode = NUMA_NONE;
    uint32_t n_nodes = 1;
    if (p->numa && !numa_by_name(p->numa, &mode)) {
        fprintf(stderr, "holdfast %s: --numa is distribute, isolate or numactl\n", command);
        return false;
    }
    if (confine(p, &err) || (mode && numa_apply(mode, SYSFS_NODES, &n_nodes, &err))) {
        fprintf(stderr, "holdfast %s: %s\n", command, err.msg);
        return false;
    }
    if (mode && n_nodes < 2)
        fprintf(stderr, "note: --numa decides nothing here: this machine has one node\n");
    return true;
}
