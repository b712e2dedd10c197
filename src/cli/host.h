/* host.h - a model with a server round it, in this process: what `serve` and `demo` start. */
#ifndef HOLDFAST_CLI_HOST_H
#define HOLDFAST_CLI_HOST_H

#include "model/model.h"
#include "server/server.h"

struct host;

struct host_opts { /* borrowed until host_close */
    struct server_opts server;
    const char *model_path;
    const char *alias;   /* NULL = the file's name */
    uint32_t n_threads;  /* 0 = one a CPU */
    uint32_t n_parallel; /* 0 = 4 */
    uint32_t n_ctx;      /* per request; 0 = the model's */
    uint32_t n_batch;    /* -b; 0 = 2048 */
    uint32_t n_ubatch;   /* -ub; 0 = 512 */
    enum kv_type kv_type;
    const char *isa; /* NULL = the best */
    bool mlock, no_repack, no_mmap;
    bool pin_threads;      /* each to a CPU of its own */
    int64_t cache_ram_mib; /* HOST_CACHE_AUTO, -1 = no limit, else the budget */
    const char *cache_dir; /* NULL = memory only */
    double cache_disk_gib; /* 0 = 32 */
    uint32_t cache_step;
    double audit_restores;     /* engine_opts has it */
    const char *cache_policy;  /* NULL = "hold" */
    const char *events_path;   /* NULL = none */
    const char *template_path; /* a chat template instead of the model's; NULL = none */
    const struct logger *lg;
    token (*say)(void *ctx, const struct job_desc *d, uint32_t n); /* for tests: engine_opts.say */
    void *say_ctx;
};
/* 8 GiB, but at most half of the memory that is free once the model is there. */
#define HOST_CACHE_AUTO INT64_MIN

/* Listens first, then loads.  On failure nothing is left behind. */
NODISCARD enum rc host_open(const struct host_opts *o, struct host **out, struct err *err);
uint16_t host_port(const struct host *h);
const struct model_info *host_model(const struct host *h);
/* Requests running go on for up to drain_ns. */
void host_close(struct host *h, uint64_t drain_ns);

#endif
