#include "cli/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/place.h"
#include "text/chat.h"

struct host {
    struct host_opts o;
    struct server *server;
    struct event_log *events;
    struct gguf *gguf;
    struct vocab *vocab;
    struct chat_template *chat;
    struct pool *pool;
    struct model *model;
    struct engine *engine;
    uint32_t n_cpus; /* before this thread was bound to one */
};

/* MemAvailable, in bytes; 0 when /proc does not say. */
static uint64_t memory_available(void)
{
    static const char key[] = "MemAvailable:";
    char line[128];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && !kib && fgets(line, sizeof line, f))
        if (!strncmp(line, key, sizeof key - 1))
            kib = strtoull(line + sizeof key - 1, NULL, 10);
    if (f)
        fclose(f);
    return kib * KIB;
}

static uint64_t cache_bytes(const struct host_opts *o)
{
    if (o->cache_ram_mib == -1)
        return UINT64_C(1) << 50; /* more than any machine has, and far from overflowing sums */
    if (o->cache_ram_mib != HOST_CACHE_AUTO)
        return (uint64_t)o->cache_ram_mib * MIB;
    const uint64_t free_bytes = memory_available();
    return free_bytes ? MIN(8 * GIB, free_bytes / 2) : 8 * GIB;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The user's file, else the model's, else ChatML.  A model's own that is beyond us is no reason not to
 * serve, but one to say so. */
static enum rc open_template(struct host *h, struct err *err)
{
    if (h->o.template_path) {
        char *text;
        size_t n;
        enum rc rc = file_read_all(h->o.template_path, 4 * MIB, &text, &n, err);
        if (rc)
            return rc;
        rc = chat_template_new((struct str){text, n}, h->vocab, &h->chat, err);
        mem_free(text);
        return err_wrap(err, rc, "chat template %s", h->o.template_path);
    }
    const struct str own = vocab_chat_template(h->vocab);
    struct err why;
    if (own.n && chat_template_new(own, h->vocab, &h->chat, &why) == RC_OK)
        return RC_OK;
    log_warn(h->o.lg, "chat template: %s; ChatML serves instead",
             own.n ? why.msg : "the model has none");
    return chat_template_new(str_of(chat_template_chatml), h->vocab, &h->chat, err);
}

static enum rc load(struct host *h, struct err *err)
{
    const struct host_opts *o = &h->o;
    enum rc rc = RC_OK;
    if (o->events_path)
        rc = event_log_open(o->events_path, &h->events, err);
    if (!rc)
        rc = (o->no_mmap ? gguf_open_copy : gguf_open)(o->model_path, &h->gguf, err);
    if (!rc)
        rc = vocab_open(h->gguf, &h->vocab, err);
    if (!rc)
        rc = open_template(h, err);
    const struct pool_opts po = {.n_threads = o->n_threads, .pin = o->pin_threads};
    if (!rc)
        rc = pool_new(&po, &h->pool, err);
    const struct model_opts mo = {.pool = h->pool,
                                  .lg = o->lg,
                                  .isa = o->isa,
                                  .kv_type = o->kv_type,
                                  .max_batch = o->n_ubatch,
                                  .no_repack = o->no_repack,
                                  .mlock = o->mlock};
    if (!rc)
        rc = model_open(h->gguf, &mo, &h->model, err);
    return rc;
}

/* "35.1 G", "820 M", "600 k" */
static void count_text(uint64_t n, char out[16])
{
    static const char units[] = " kMGT";
    double v = (double)n;
    size_t u = 0;
    for (; v >= 999.5 && u < 4; u++)
        v /= 1000;
    snprintf(out, 16, "%.*f %c", v < 99.95 ? 1 : 0, v, units[u]);
}

static void say_what_is_served(const struct host *h, uint64_t ram_bytes, double seconds)
{
    const struct model_info *info = model_info(h->model);
    char weights[16], snap[16], token_kv[16], ram[16], params[16];
    count_text(info->n_params, params);
    str_from_bytes(info->weight_bytes, weights);
    str_from_bytes(shape_snap_bytes(&info->shape), snap);
    str_from_bytes(shape_token_bytes(&info->shape), token_kv);
    str_from_bytes(ram_bytes, ram);
    log_info(h->o.lg,
             "model %s: %s, %u layers (%u attention, %u delta net), %s parameters, %s; "
             "loaded in %.1f s",
             file_name(h->o.model_path), info->arch, info->n_layer, info->shape.n_attn,
             info->shape.n_delta, params, weights, seconds);
    log_info(h->o.lg, "%u threads, kernels %s; context %u a request, %u at once",
             pool_n_threads(h->pool), info->isa, engine_n_ctx(h->engine), h->o.n_parallel);
    if (pool_n_threads(h->pool) > h->n_cpus)
        log_warn(h->o.lg, "%u threads on %u CPUs wait for one another", pool_n_threads(h->pool),
                 h->n_cpus);
    log_info(h->o.lg, "cache %s, %s: a snapshot is %s, a token of KV %s", h->o.cache_policy, ram,
             snap, token_kv);
}

static enum rc start_engine(struct host *h, uint64_t ram_bytes, struct err *err)
{
    const double disk_gib = h->o.cache_disk_gib > 0 ? h->o.cache_disk_gib : 32;
    const struct engine_opts eo = {.model = h->model,
                                   .vocab = h->vocab,
                                   .lg = h->o.lg,
                                   .events = h->events,
                                   .n_ctx = h->o.n_ctx,
                                   .n_parallel = h->o.n_parallel,
                                   .n_batch = h->o.n_batch ? h->o.n_batch : 2048,
                                   .cache_ram_bytes = ram_bytes,
                                   .cache_dir = h->o.cache_dir,
                                   .cache_disk_bytes = (uint64_t)(disk_gib * (double)GIB),
                                   .cache_step = h->o.cache_step,
                                   .audit_restores = h->o.audit_restores,
                                   .cache_policy = h->o.cache_policy,
                                   .say = h->o.say,
                                   .say_ctx = h->o.say_ctx};
    return engine_start(&eo, &h->engine, err);
}

static void serve(struct host *h)
{
    const struct model_info *info = model_info(h->model);
    const struct served served = {.engine = h->engine,
                                  .vocab = h->vocab,
                                  .chat = h->chat,
                                  .alias = h->o.alias ? h->o.alias : file_name(h->o.model_path),
                                  .path = h->o.model_path,
                                  .arch = info->arch,
                                  .cache_policy = h->o.cache_policy,
                                  .n_parallel = h->o.n_parallel,
                                  .n_vocab = info->n_vocab,
                                  .n_embd = info->n_embd,
                                  .n_ctx_train = info->n_ctx_train,
                                  .n_params = info->n_params,
                                  .weight_bytes = info->weight_bytes};
    server_ready(h->server, &served);
}

enum rc host_open(const struct host_opts *o, struct host **out, struct err *err)
{
    struct host *h = mem_zalloc(sizeof *h);
    const uint64_t begun = clock_mono_ns();
    struct cpus can;
    cpus_allowed(&can);
    h->n_cpus = cpus_count(&can);
    h->o = *o;
    h->o.n_parallel = o->n_parallel ? o->n_parallel : 4;
    h->o.cache_policy = o->cache_policy ? o->cache_policy : "hold";
    enum rc rc = server_start(&o->server, &h->server, err);
    if (!rc)
        rc = load(h, err);
    uint64_t ram_bytes = 0;
    if (!rc) {
        ram_bytes = cache_bytes(o);
        rc = start_engine(h, ram_bytes, err);
    }
    if (rc) {
        host_close(h, 0);
        return rc;
    }
    say_what_is_served(h, ram_bytes, (double)(clock_mono_ns() - begun) * 1e-9);
    serve(h);
    *out = h;
    return RC_OK;
}

uint16_t host_port(const struct host *h)
{
    return server_port(h->server);
}

const struct model_info *host_model(const struct host *h)
{
    return model_info(h->model);
}

void host_close(struct host *h, uint64_t drain_ns)
{
    if (!h)
        return;
    server_stop(h->server, drain_ns);
    engine_stop(h->engine, 0);
    model_close(h->model);
    pool_free(h->pool);
    chat_template_free(h->chat);
    vocab_close(h->vocab);
    gguf_close(h->gguf);
    event_log_close(h->events);
    mem_free(h);
}
