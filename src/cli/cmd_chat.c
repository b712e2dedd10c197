/* holdfast chat: talk to a model at the terminal.  A server in this process, asked over HTTP as any client
 * would, so that what is seen here is what a client gets: a turn evaluates what is new in it.
 */
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/box.h"
#include "cli/host.h"
#include "cli/opts.h"
#include "net/client.h"

struct talk {
    struct host_opts host;
    const char *system;
    uint32_t n_predict;
    double temperature;
    bool think, timings;
    struct client *client;
    json_t *messages;
};

static enum rc add_message(struct talk *t, const char *role, const char *content,
                           const char *reasoning, struct err *err)
{
    json_t *o = json_pack("{s:s, s:s, s:s*}", "role", role, "content", content, "reasoning_content",
                          reasoning);
    if (!o || json_array_append_new(t->messages, o))
        return err_set(err, RC_ARG, "the %s's text is not UTF-8", role);
    return RC_OK;
}

static void write_request(const struct talk *t, struct buf *b)
{
    struct jwrite w;
    jwrite_init(&w, b);
    jwrite_obj(&w, NULL);
    jwrite_json(&w, "messages", t->messages);
    jwrite_u64(&w, "max_tokens", t->n_predict);
    jwrite_f64(&w, "temperature", t->temperature);
    jwrite_bool(&w, "stream", true);
    jwrite_obj(&w, "chat_template_kwargs");
    jwrite_bool(&w, "enable_thinking", t->think);
    jwrite_end_obj(&w);
    jwrite_end_obj(&w);
}

/* A piece of the reply: printed, and kept where it belongs. */
static void take_delta(const json_t *delta, struct buf *content, struct buf *reasoning)
{
    const json_t *said = json_object_get(delta, "content");
    const json_t *thought = json_object_get(delta, "reasoning_content");
    if (json_is_string(thought)) {
        if (!reasoning->n)
            fputs("(thinks) ", stdout);
        fputs(json_string_value(thought), stdout);
        buf_adds(reasoning, json_string_value(thought));
    }
    if (json_is_string(said)) {
        if (reasoning->n && !content->n)
            putchar('\n');
        fputs(json_string_value(said), stdout);
        buf_adds(content, json_string_value(said));
    }
    fflush(stdout);
}

static void tell_timings(const json_t *o)
{
    const json_t *t = json_object_get(o, "timings");
    if (json_is_object(t))
        fprintf(stderr, "[reused %lld, evaluated %lld in %.0f ms; generated %lld in %.0f ms]\n",
                (long long)json_integer_value(json_object_get(t, "cache_n")),
                (long long)json_integer_value(json_object_get(t, "prompt_n")),
                json_number_value(json_object_get(t, "prompt_ms")),
                (long long)json_integer_value(json_object_get(t, "predicted_n")),
                json_number_value(json_object_get(t, "predicted_ms")));
}

static enum rc read_event(const struct talk *t, const struct sse_event *e, struct buf *content,
                          struct buf *reasoning, struct err *err)
{
    if (str_eq(e->data, str_of("[DONE]")))
        return RC_OK;
    json_t *o;
    enum rc rc = jread_parse(e->data.p, e->data.n, &o, err);
    if (rc)
        return rc;
    const json_t *failed = json_object_get(json_object_get(o, "error"), "message");
    if (json_is_string(failed)) {
        rc = err_set(err, RC_FORMAT, "%.200s", json_string_value(failed));
    } else {
        const json_t *choice = json_array_get(json_object_get(o, "choices"), 0);
        take_delta(json_object_get(choice, "delta"), content, reasoning);
        if (t->timings)
            tell_timings(o);
    }
    json_decref(o);
    return rc;
}

static enum rc refused(struct talk *t, struct err *err)
{
    struct buf body = BUF_INIT;
    bool end = false;
    enum rc rc = RC_OK;
    while (!rc && !end)
        rc = client_read(t->client, &body, &end, err);
    if (!rc) {
        json_t *o = json_loadb(body.p, body.n, 0, NULL);
        const char *why =
            json_string_value(json_object_get(json_object_get(o, "error"), "message"));
        rc = err_set(err, RC_ARG, "%.200s", why ? why : buf_str(&body));
        json_decref(o);
    }
    buf_release(&body);
    return rc;
}

static enum rc stream_reply(struct talk *t, struct buf *content, struct buf *reasoning,
                            struct err *err)
{
    struct buf request = BUF_INIT;
    write_request(t, &request);
    enum rc rc = client_begin(t->client, "POST", "/v1/chat/completions",
                              (struct str){request.p, request.n}, err);
    buf_release(&request);
    if (!rc && client_status(t->client) != 200)
        return refused(t, err);
    struct sse_event e;
    bool end = false;
    while (!rc && !(rc = client_event(t->client, &e, &end, err)) && !end)
        rc = read_event(t, &e, content, reasoning, err);
    return rc;
}

/* One turn.  What failed leaves the conversation as it was. */
static enum rc ask(struct talk *t, const char *text, struct err *err)
{
    struct buf content = BUF_INIT, reasoning = BUF_INIT;
    enum rc rc = add_message(t, "user", text, NULL, err);
    if (rc)
        return rc;
    rc = stream_reply(t, &content, &reasoning, err);
    putchar('\n');
    if (rc)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    else
        rc = add_message(t, "assistant", buf_str(&content),
                         reasoning.n ? buf_str(&reasoning) : NULL, err);
    buf_release(&content);
    buf_release(&reasoning);
    return rc;
}

/* Lines from the terminal until its end; a turn that fails is told and the talk goes on. */
static enum rc converse(struct talk *t, struct err *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    const bool terminal = isatty(STDIN_FILENO);
    enum rc rc = RC_OK;
    for (;;) {
        if (terminal) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        if ((n = getline(&line, &cap, stdin)) < 0)
            break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = 0;
        if (!n)
            continue;
        rc = ask(t, line, err);
        if (!rc)
            continue;
        if (!terminal)
            break;
        fprintf(stderr, "holdfast chat: %s\n", err->msg);
        rc = RC_OK;
    }
    free(line);
    return rc;
}

static enum rc talk(struct talk *t, const char *prompt, struct err *err)
{
    struct host *h;
    char url[64];
    enum rc rc = host_open(&t->host, &h, err);
    if (rc)
        return rc;
    snprintf(url, sizeof url, "http://127.0.0.1:%u", host_port(h));
    rc = client_new(url, NULL, &t->client, err);
    t->messages = json_array();
    if (!rc && t->system)
        rc = add_message(t, "system", t->system, NULL, err);
    if (!rc)
        rc = prompt ? ask(t, prompt, err) : converse(t, err);
    json_decref(t->messages);
    client_free(t->client);
    host_close(h, 0);
    return rc;
}

int cmd_chat(int argc, char **argv)
{
    struct logger lg = {.level = LOG_WARN, .out = stderr};
    struct talk t = {.n_predict = 1024, .temperature = 0.8};
    const char *prompt = NULL;
    bool verbose = false;
    const struct opt table[] = {
        {"-m --model", OPT_STR, &t.host.model_path, .arg = "FILE",
         .help = "model to load (the demo model that comes with holdfast)"},
        {"-p --prompt", OPT_STR, &prompt, .arg = "TEXT",
         .help = "say this, print the reply and end (lines from stdin)"},
        {"-sys --system-prompt", OPT_STR, &t.system, .arg = "TEXT", .help = "the system message"},
        {"-n --predict --n-predict", OPT_U32, &t.n_predict, .arg = "N",
         .help = "tokens of a reply at most (1024)"},
        {"-c --ctx-size", OPT_U32, &t.host.n_ctx, .arg = "N", .help = "context (the model's)"},
        {"-t --threads", OPT_U32, &t.host.n_threads, .arg = "N", .help = "threads (one a CPU)",
         .max = POOL_MAX_THREADS},
        {"--temp --temperature", OPT_F64, &t.temperature, .arg = "X", .min = 0, .max = 100,
         .help = "0 takes the likeliest token (0.8)"},
        {"--think", OPT_FLAG, &t.think, .help = "let it think before it answers"},
        {"--timings", OPT_FLAG, &t.timings, .help = "tell what each turn reused and evaluated"},
        {"-v --verbose", OPT_FLAG, &verbose, .help = "show the server's log"},
    };
    const struct opts o = {.command = "chat",
                           .intro = "Talk to a model at the terminal.",
                           .table = table,
                           .n = COUNT_OF(table)};
    const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    if (!t.host.model_path && !box_default("chat", &t.host.model_path))
        return 2;
    if (verbose)
        lg.level = LOG_INFO;
    t.host.lg = t.host.server.lg = &lg;
    t.host.n_parallel = 1;
    t.host.cache_ram_mib = HOST_CACHE_AUTO;
    t.host.cache_policy = "hold";
    t.host.server.replay_bytes = 16 * MIB;
    sampling_defaults(&t.host.server.sampling);
    struct err err;
    const enum rc rc = talk(&t, prompt, &err);
    if (rc)
        fprintf(stderr, "holdfast chat: %s\n", err.msg);
    return rc ? 1 : 0;
}
