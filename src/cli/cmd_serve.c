/* cmd_serve.c - the server as a program: options as llama-server has them, signals, logs. */
#include "cli/cmd.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cache/pxa.h"
#include "cli/box.h"
#include "cli/host.h"
#include "cli/opts.h"
#include "cli/opts_llama.h"
#include "engine/engine.h"
#include "server/volatile.h"
#include "cli/opts_place.h"

enum { MAX_KEYS = 256 };

/* What the options set. */
struct settings {
    struct host_opts host;
    struct logger lg;
    uint32_t port, drain_s, max_body_mib;
    int32_t n_threads, n_threads_batch, n_parallel;
    int64_t seed;
    bool n_threads_batch_given, seed_given, ram_given;
    int32_t verbosity;
    bool verbosity_given, verbose, silent;
    const char *log_level, *log_file;
    const char *api_key, *api_key_file;
    const char *type_k, *type_v;
    bool cache_prompt, repack, mmap, slots;
    struct place_opts place;
    int64_t cache_ram_mib;
    uint32_t replay_mib;
    int32_t reasoning_budget;
    const char *drop_volatile;
    /* made from them */
    char *key_text; /* owns what keys point into */
    const char *keys[MAX_KEYS];
    size_t n_keys;
};

/* ---- the table ---- */

static enum opts_result parse(struct settings *s, int argc, char **argv)
{
    struct host_opts *h = &s->host;
    struct server_opts *v = &h->server;
    struct sampling *p = &v->sampling;
    const struct opt table[] = {
        {.kind = OPT_GROUP, .help = "model"},
        {"-m --model", OPT_STR, &h->model_path, .arg = "FILE",
         .help = "GGUF file to serve (the demo model)", .env = "LLAMA_ARG_MODEL"},
        {"-a --alias", OPT_STR, &h->alias, .arg = "NAME",
         .help = "the model's name in the API (the file's name)", .env = "LLAMA_ARG_ALIAS"},
        {"-c --ctx-size", OPT_U32, &h->n_ctx, .arg = "N",
         .help = "context of a request (0 = the model's)", .env = "LLAMA_ARG_CTX_SIZE"},
        {"-np --parallel", OPT_I32, &s->n_parallel, .arg = "N",
         .help = "requests computed at once (4)", .env = "LLAMA_ARG_N_PARALLEL", .min = -1,
         .max = 1024},
        {"-b --batch-size", OPT_U32, &h->n_batch, .arg = "N", .help = "rows of one step (2048)",
         .env = "LLAMA_ARG_BATCH", .min = 1, .max = 1 << 20},
        {"-ub --ubatch-size", OPT_U32, &h->n_ubatch, .arg = "N",
         .help = "rows of one forward (512)", .env = "LLAMA_ARG_UBATCH", .min = 1, .max = 1 << 16},
        {"-t --threads", OPT_I32, &s->n_threads, .arg = "N",
         .help = "threads that compute (one a CPU)", .env = "LLAMA_ARG_THREADS", .min = -1,
         .max = POOL_MAX_THREADS},
        {"-tb --threads-batch", OPT_I32, &s->n_threads_batch, .arg = "N",
         .help = "accepted; -t serves both", .min = -1, .max = POOL_MAX_THREADS,
         .given = &s->n_threads_batch_given},
        {"-ctk --cache-type-k", OPT_STR, &s->type_k, .arg = "TYPE",
         .help = "KV type: i16, f16, f32, q8_0 (i16)", .env = "LLAMA_ARG_CACHE_TYPE_K"},
        {"-ctv --cache-type-v", OPT_STR, &s->type_v, .arg = "TYPE", .help = "the same as -ctk",
         .env = "LLAMA_ARG_CACHE_TYPE_V"},
        {"--chat-template-file", OPT_STR, &h->template_path, .arg = "FILE",
         .help = "chat template instead of the model's", .env = "LLAMA_ARG_CHAT_TEMPLATE_FILE"},
        {"--isa", OPT_STR, &h->isa, .arg = "NAME",
         .help = "kernel table (the best this machine has)", .env = "HOLDFAST_ISA"},
        {"--mlock", OPT_FLAG, &h->mlock, .help = "keep the weights in RAM",
         .env = "LLAMA_ARG_MLOCK"},
        {"--mmap !--no-mmap", OPT_FLAG, &s->mmap,
         .help = "map the file; else it is read into memory first (on)", .env = "LLAMA_ARG_MMAP"},
        PLACE_OPTS(&s->place),
        {"--repack !--no-repack !-nr", OPT_FLAG, &s->repack,
         .help = "lay weights out for the kernels (on)", .env = "LLAMA_ARG_REPACK"},

        {.kind = OPT_GROUP, .help = "cache"},
        {"-cram --cache-ram", OPT_I64, &s->cache_ram_mib, .arg = "MIB",
         .help = "budget for cached state (8192, at most half the free memory; -1 = no limit)",
         .env = "LLAMA_ARG_CACHE_RAM", .min = -1, .max = 1 << 30, .given = &s->ram_given},
        {"--cache-dir", OPT_STR, &h->cache_dir, .arg = "DIR",
         .help = "state that leaves memory goes here, for the next start too (none)"},
        {"--cache-disk", OPT_F64, &h->cache_disk_gib, .arg = "GIB",
         .help = "how much of it --cache-dir may hold (32)", .min = 1e-3, .max = 1 << 20},
        {"--audit-restores", OPT_F64, &h->audit_restores, .arg = "P", .min = 0, .max = 1,
         .help = "evaluate this share of restored states again when idle, and compare (0)"},
        {"--cache-step", OPT_U32, &h->cache_step, .arg = "N",
         .help = "also keep every N tokens (0 = not)"},
        {"--cache-policy", OPT_STR, &h->cache_policy, .arg = "NAME",
         .help = "hold, lru, none, pxa (hold)"},
        {"--cache-prompt !--no-cache-prompt", OPT_FLAG, &s->cache_prompt,
         .help = "reuse unless a request says otherwise (on)", .env = "LLAMA_ARG_CACHE_PROMPT"},
        {"--replay-ram", OPT_U32, &s->replay_mib, .arg = "MIB",
         .help = "for answers that are put back as generated when they come again (64; 0 = off)",
         .max = 1 << 20},
        {"--replay-thinking", OPT_FLAG, &v->replay_thinking,
         .help = "also reasoning that the template drops from old turns"},
        {"--drop-volatile", OPT_STR, &s->drop_volatile, .arg = "LIST",
         .help = "lines of system prompts to leave out: billing, date, git, cwd, session, all"},
        {"--events", OPT_STR, &h->events_path, .arg = "FILE",
         .help = "write every cache decision as a line of JSON"},

        {.kind = OPT_GROUP, .help = "network"},
        {"--host", OPT_STR, &v->host, .arg = "HOST",
         .help = "address or name to listen on (127.0.0.1)", .env = "LLAMA_ARG_HOST"},
        {"--port", OPT_U32, &s->port, .arg = "N", .help = "port (8080; 0 = any free one)",
         .env = "LLAMA_ARG_PORT", .max = 65535},
        {"--api-key", OPT_STR, &s->api_key, .arg = "KEY[,KEY]",
         .help = "keys that clients must show one of", .env = "LLAMA_API_KEY"},
        {"--api-key-file", OPT_STR, &s->api_key_file, .arg = "FILE",
         .help = "the same, one a line; lines with # do not count",
         .env = "LLAMA_ARG_API_KEY_FILE"},
        {"--cors-origins", OPT_STR, &v->cors_origins, .arg = "LIST",
         .help = "web pages that may ask: *, localhost, or origins (*)",
         .env = "LLAMA_ARG_CORS_ORIGINS"},
        {"-to --timeout", OPT_U32, &v->timeout_s, .arg = "S",
         .help = "close idle connections after (600)", .env = "LLAMA_ARG_TIMEOUT", .min = 1,
         .max = 1 << 24},
        {"--max-connections", OPT_U32, &v->max_connections, .arg = "N",
         .help = "open at once (256); beyond it those idle longest are closed", .min = 1,
         .max = 1 << 16},
        {"--sse-ping-interval --sse-keepalive-interval", OPT_I32, &v->sse_ping_s, .arg = "S",
         .help = "comment in a silent stream after (30; -1 = never)",
         .env = "LLAMA_ARG_SSE_PING_INTERVAL", .min = -1, .max = 1 << 24},
        {"--max-body", OPT_U32, &s->max_body_mib, .arg = "MIB", .help = "largest request (64)",
         .min = 1, .max = 1 << 20},
        {"--drain", OPT_U32, &s->drain_s, .arg = "S",
         .help = "on Ctrl-C, let requests finish for (60)", .max = 1 << 24},
        {"--slot-save-path", OPT_STR, &h->server.slot_save_path, .arg = "DIR",
         .help = "where POST /slots/{id}?action=save keeps its files (none)"},
        {"--slots !--no-slots", OPT_FLAG, &s->slots, .help = "answer GET /slots (on)",
         .env = "LLAMA_ARG_ENDPOINT_SLOTS"},

        {.kind = OPT_GROUP, .help = "what requests get that do not say otherwise"},
        {"-n --predict --n-predict", OPT_I32, &v->n_predict, .arg = "N",
         .help = "tokens to generate (-1 = till the end)", .env = "LLAMA_ARG_N_PREDICT", .min = -1,
         .max = INT32_MAX},
        {"--temperature --temp", OPT_F32, &p->temperature, .arg = "T", .help = "temperature (0.8)",
         .env = "LLAMA_ARG_TEMPERATURE", .min = -1, .max = 1e4},
        {"--top-k", OPT_I32, &p->top_k, .arg = "N", .help = "top-k (40; 0 = off)",
         .env = "LLAMA_ARG_TOP_K"},
        {"--top-p", OPT_F32, &p->top_p, .arg = "P", .help = "top-p (0.95; 1 = off)",
         .env = "LLAMA_ARG_TOP_P", .max = 1},
        {"--min-p", OPT_F32, &p->min_p, .arg = "P", .help = "min-p (0.05; 0 = off)",
         .env = "LLAMA_ARG_MIN_P", .max = 1},
        {"--repeat-last-n", OPT_I32, &p->repeat_last_n, .arg = "N",
         .help = "tokens penalties look at (64)", .min = -1, .max = INT32_MAX},
        {"--repeat-penalty", OPT_F32, &p->repeat_penalty, .arg = "X",
         .help = "repetition penalty (1 = off)", .env = "LLAMA_ARG_REPEAT_PENALTY", .min = 1e-3,
         .max = 1e4},
        {"--presence-penalty", OPT_F32, &p->presence_penalty, .arg = "X",
         .help = "presence penalty (0 = off)", .env = "LLAMA_ARG_PRESENCE_PENALTY"},
        {"--frequency-penalty", OPT_F32, &p->frequency_penalty, .arg = "X",
         .help = "frequency penalty (0 = off)", .env = "LLAMA_ARG_FREQUENCY_PENALTY"},
        {"--reasoning-budget", OPT_I32, &s->reasoning_budget, .arg = "N",
         .help = "tokens of reasoning (-1 = no limit; 0 = none)", .env = "LLAMA_ARG_THINK_BUDGET",
         .min = -1, .max = INT32_MAX},
        {"-s --seed", OPT_I64, &s->seed, .arg = "N", .help = "seed (-1 = a new one each time)",
         .given = &s->seed_given},
        {"--ignore-eos", OPT_FLAG, &p->ignore_eos, .help = "never end by itself"},
        {"-sp --special", OPT_FLAG, &v->special, .help = "show control tokens in the text"},

        {.kind = OPT_GROUP, .help = "log"},
        {"--log-level", OPT_STR, &s->log_level, .arg = "LEVEL",
         .help = "error, warn, info or debug (info)"},
        {"-v --verbose --log-verbose", OPT_FLAG, &s->verbose, .help = "everything"},
        {"-lv --verbosity --log-verbosity", OPT_I32, &s->verbosity, .arg = "N",
         .help = "llama-server's levels: 1 error ... 5 debug", .env = "LLAMA_ARG_LOG_VERBOSITY",
         .max = 99, .given = &s->verbosity_given},
        {"--log-disable", OPT_FLAG, &s->silent, .help = "nothing"},
        {"--log-file", OPT_STR, &s->log_file, .arg = "FILE",
         .help = "append the log to FILE instead of stderr", .env = "LLAMA_ARG_LOG_FILE"},
        {"--log-timestamps !--no-log-timestamps", OPT_FLAG, &s->lg.times,
         .help = "seconds since the start before each line (on)",
         .env = "LLAMA_ARG_LOG_TIMESTAMPS"},
    };
    static const char epilog[] =
        "example:\n"
        "  holdfast serve -m model.gguf -c 32768 --cache-ram 16384\n"
        "  curl localhost:8080/v1/completions -d '{\"prompt\": \"Once\", \"max_tokens\": 32}'\n";
    const struct opts o = {.command = "serve",
                           .intro = "Serve a model over HTTP: OpenAI's and llama-server's APIs.",
                           .table = table,
                           .n = COUNT_OF(table),
                           .more = llama_opts,
                           .n_more = n_llama_opts,
                           .epilog = epilog};
    return opts_parse(&o, argc, argv, stderr);
}

/* ---- from settings to options ---- */

static bool wrong(const char *what)
{
    fprintf(stderr, "holdfast serve: %s\n", what);
    return false;
}

static bool set_log(struct settings *s)
{
    static const char *const names[] = {
        [LOG_ERROR] = "error", [LOG_WARN] = "warn", [LOG_INFO] = "info", [LOG_DEBUG] = "debug"};
    size_t level = LOG_INFO;
    if (s->verbosity_given) /* 0 output only, 1 error, 2 warning, 3 info, 4 trace, 5 debug */
        level = (size_t)MIN(MAX(s->verbosity - 1, 0), (int)LOG_DEBUG);
    if (s->log_level) {
        for (level = 0; level < COUNT_OF(names); level++)
            if (!strcasecmp(s->log_level, names[level]))
                break;
        if (level == COUNT_OF(names))
            return wrong("--log-level is error, warn, info or debug");
    }
    s->lg.level = s->verbose ? LOG_DEBUG : (enum log_level)level;
    s->lg.start_ns = clock_mono_ns();
    s->lg.out = s->silent ? NULL : stderr;
    if (s->log_file && !s->silent) {
        s->lg.out = fopen(s->log_file, "ae");
        if (!s->lg.out) {
            perror(s->log_file);
            return false;
        }
    }
    return true;
}

static bool add_key(struct settings *s, const char *key)
{
    if (s->n_keys == MAX_KEYS)
        return wrong("too many API keys");
    s->keys[s->n_keys++] = key;
    return true;
}

/* Cuts text at any of the separators into keys. */
static bool add_keys(struct settings *s, char *text, const char *separators)
{
    char *save = NULL;
    for (char *k = strtok_r(text, separators, &save); k; k = strtok_r(NULL, separators, &save))
        if (k[0] != '#' && !add_key(s, k))
            return false;
    return true;
}

static bool set_keys(struct settings *s)
{
    struct buf text = BUF_INIT;
    if (s->api_key) {
        buf_adds(&text, s->api_key);
        for (size_t i = 0; i < text.n; i++)
            if (text.p[i] == ',')
                text.p[i] = '\n';
        buf_addc(&text, '\n');
    }
    if (s->api_key_file) {
        struct err err;
        char *file = NULL;
        size_t n;
        if (file_read_all(s->api_key_file, MIB, &file, &n, &err)) {
            buf_release(&text);
            return wrong(err.msg);
        }
        buf_add(&text, file, n);
        mem_free(file);
    }
    if (!text.n)
        return true;
    s->key_text = buf_take(&text);
    if (!s->key_text)
        return wrong("out of memory");
    if (!add_keys(s, s->key_text, "\r\n"))
        return false;
    /* a file that was meant to close the door must not leave it open */
    return s->n_keys || wrong("--api-key or --api-key-file has no key in it");
}

static bool set_kv_type(struct settings *s)
{
    enum kv_type k = KV_DEFAULT, v = KV_DEFAULT;
    if (s->type_k && !kv_type_parse(s->type_k, &k))
        return wrong("--cache-type-k is i16, f16, f32 or q8_0");
    if (s->type_v && !kv_type_parse(s->type_v, &v))
        return wrong("--cache-type-v is i16, f16, f32 or q8_0");
    if (s->type_k && s->type_v && k != v)
        return wrong("--cache-type-k and --cache-type-v must be the same");
    s->host.kv_type = s->type_k ? k : v;
    return true;
}

static bool set_volatile(struct settings *s)
{
    char line[320];
    struct err err;
    if (!s->drop_volatile || !volatile_parse(s->drop_volatile, &s->host.server.drop_volatile, &err))
        return true;
    snprintf(line, sizeof line, "--drop-volatile: %s", err.msg);
    return wrong(line);
}

/* Now, and not when somebody wants to save something. */
static bool check_slot_path(const char *dir)
{
    char line[320];
    struct stat st;
    if (!dir)
        return true;
    if (stat(dir, &st))
        snprintf(line, sizeof line, "--slot-save-path %s: %s", dir, strerror(errno));
    else if (!S_ISDIR(st.st_mode))
        snprintf(line, sizeof line, "--slot-save-path %s is no directory", dir);
    else if (access(dir, W_OK | X_OK))
        snprintf(line, sizeof line, "--slot-save-path %s: cannot write there: %s", dir,
                 strerror(errno));
    else
        return true;
    return wrong(line);
}

static bool check_policy(const char *name)
{
    struct err err;
    return !engine_check_policy(name, &err) || wrong(err.msg);
}

/* A client could name a file that the cache has open, and the cache removes what it takes for its own. */
static bool check_two_places(const char *cache_dir, const char *slot_dir)
{
    struct stat a, b;
    if (!cache_dir || !slot_dir || stat(cache_dir, &a) || stat(slot_dir, &b) ||
        a.st_dev != b.st_dev || a.st_ino != b.st_ino)
        return true;
    return wrong("--cache-dir and --slot-save-path must be two directories: names are the "
                 "clients' in one, the cache's in the other");
}

static bool settle(struct settings *s)
{
    struct host_opts *h = &s->host;
    if (!h->model_path && !box_default("serve", &h->model_path))
        return false;
    if (!set_log(s) || !set_keys(s) || !set_kv_type(s) || !set_volatile(s) ||
        !check_policy(h->cache_policy) || !check_slot_path(h->server.slot_save_path) ||
        !check_two_places(h->cache_dir, h->server.slot_save_path))
        return false;
    h->lg = h->server.lg = &s->lg;
    h->server.port = (uint16_t)s->port;
    h->server.api_keys = s->keys;
    h->server.n_api_keys = s->n_keys;
    h->server.max_body = s->max_body_mib * MIB;
    h->server.replay_bytes = s->replay_mib * MIB;
    h->server.no_thinking = s->reasoning_budget == 0;
    h->server.think_budget = s->reasoning_budget > 0 ? (uint32_t)s->reasoning_budget : 0;
    h->server.no_cache = !s->cache_prompt;
    h->server.no_slots = !s->slots;
    if (s->seed_given && s->seed != -1) {
        h->server.sampling.has_seed = true;
        h->server.sampling.seed = (uint64_t)s->seed;
    }
    h->n_threads = s->n_threads > 0 ? (uint32_t)s->n_threads : 0;
    if (s->n_threads_batch_given && s->n_threads_batch > 0 && !h->n_threads)
        h->n_threads = (uint32_t)s->n_threads_batch;
    h->n_parallel = s->n_parallel > 0 ? (uint32_t)s->n_parallel : 0;
    h->no_repack = !s->repack;
    h->no_mmap = !s->mmap;
    h->pin_threads = s->place.strict;
    /* the levers of the engine that is imitated are its environment's */
    if (h->cache_policy && !strcmp(h->cache_policy, "pxa"))
        h->cache_policy =
            pxa_name_of_levers(getenv("PXA_CKPT_PROMPT_POLICY"), getenv("PXA_CKPT_PROMPT_END"));
    h->cache_ram_mib = s->ram_given ? s->cache_ram_mib : HOST_CACHE_AUTO;
    return place_apply(&s->place, "serve");
}

/* ---- running ---- */

/* The first signal ends serving, the second the process.  All threads have both blocked; one waits for
 * them. */
struct stopper {
    sigset_t set;
    pthread_mutex_t lock; /* guards stop and up */
    pthread_cond_t changed;
    bool stop, up;
};

static void *wait_for_signals(void *arg)
{
    struct stopper *st = arg;
    for (;;) {
        int sig;
        if (sigwait(&st->set, &sig))
            continue;
        pthread_mutex_lock(&st->lock);
        const bool again = st->stop || !st->up; /* loading has nothing to finish */
        st->stop = true;
        pthread_cond_broadcast(&st->changed);
        pthread_mutex_unlock(&st->lock);
        if (again)
            _exit(128 + sig);
    }
    return NULL;
}

static bool watch_signals(struct stopper *st)
{
    pthread_t t;
    sigemptyset(&st->set);
    sigaddset(&st->set, SIGINT);
    sigaddset(&st->set, SIGTERM);
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->changed, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (pthread_sigmask(SIG_BLOCK, &st->set, NULL) ||
        pthread_create(&t, NULL, wait_for_signals, st))
        return false;
    pthread_setname_np(t, "signals");
    pthread_detach(t);
    return true;
}

static int run(struct settings *s)
{
    static struct stopper st; /* its thread outlives this function */
    struct host *h;
    struct err err;
    if (!watch_signals(&st)) {
        fprintf(stderr, "holdfast serve: no thread for signals\n");
        return 1;
    }
    log_info(&s->lg, "holdfast %s: loading %s", HOLDFAST_VERSION, s->host.model_path);
    if (host_open(&s->host, &h, &err)) {
        fprintf(stderr, "holdfast serve: %s\n", err.msg);
        return 1;
    }
    const char *host = s->host.server.host ? s->host.server.host : "127.0.0.1";
    const bool v6 = strchr(host, ':') != NULL;
    log_info(&s->lg, "listening on http://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "",
             host_port(h));
    pthread_mutex_lock(&st.lock);
    st.up = true;
    while (!st.stop)
        pthread_cond_wait(&st.changed, &st.lock);
    pthread_mutex_unlock(&st.lock);
    log_info(&s->lg, "stopping: requests that run may finish for %u s; once more to stop at once",
             s->drain_s);
    host_close(h, (uint64_t)s->drain_s * 1000000000);
    log_info(&s->lg, "stopped");
    return 0;
}

int cmd_serve(int argc, char **argv)
{
    struct settings s = {.port = 8080,
                         .drain_s = 60,
                         .max_body_mib = 64,
                         .replay_mib = 64,
                         .reasoning_budget = -1,
                         .n_threads = -1,
                         .n_parallel = -1,
                         .seed = -1,
                         .cache_prompt = true,
                         .repack = true,
                         .mmap = true,
                         .slots = true,
                         .lg.times = true};
    s.host.server.n_predict = -1;
    sampling_defaults(&s.host.server.sampling);
    const enum opts_result parsed = parse(&s, argc, argv);
    if (parsed)
        return opts_status(parsed);
    const int status = settle(&s) ? run(&s) : 2;
    mem_free(s.key_text);
    if (s.log_file && s.lg.out)
        fclose(s.lg.out);
    return status;
}
