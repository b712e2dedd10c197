/* told_int.h - a server in this process, real from HTTP to the kernels, whose model says what it is told.
 *
 *     told_set_up, told_open(template, server options)
 *     tell("text")       what comes next, then the end mark; while no request runs
 *     ask(&server, ...)  as with a program (program_int.h)
 *     told_close
 */
#ifndef HOLDFAST_TESTS_E2E_TOLD_INT_H
#define HOLDFAST_TESTS_E2E_TOLD_INT_H

#include "program_int.h"

#include "cli/host.h"
#include "text/bpe.h"

static struct scene scene;
static struct gguf *gguf;
static struct vocab *vocab;
static struct host *host;
static struct program server; /* only what asking needs */
static struct tokens script;

static token say(void *ctx, const struct job_desc *d, uint32_t n)
{
    (void)ctx;
    (void)d;
    return n < script.n ? script.v[n] : vocab_eos(vocab);
}

/* The token that stands for one byte. */
static inline token byte_token(char c)
{
    for (token t = 0; t < (token)vocab_size(vocab); t++) {
        const struct str s = vocab_bytes(vocab, t, false);
        if (s.n == 1 && s.p[0] == c)
            return t;
    }
    fail_msg("no token stands for byte %d", c);
    return -1;
}

/* Cut into bytes, not as the tokenizer would; tags stay whole where the vocabulary has them. */
static inline void tell(const char *text)
{
    script.n = 0;
    for (const char *p = text; *p;) {
        size_t n = *p == '<' ? strcspn(p, ">") + 1 : 1;
        if (*p == '<' && (n > strlen(p) || vocab_find(vocab, (struct str){p, n}) < 0))
            n = 1;
        const token t = n > 1 ? vocab_find(vocab, (struct str){p, n}) : byte_token(*p);
        assert_true(tokens_add(&script, t));
        p += n;
    }
}

static inline void told_open(const char *template, const struct server_opts *so)
{
    static char path[512];
    static struct logger quiet;
    snprintf(path, sizeof path, "%s/tests/templates/%s.jinja", HOUSE_SOURCE_DIR, template);
    struct host_opts o = {.server = *so,
                          .model_path = scene.model,
                          .alias = "tiny",
                          .template_path = path,
                          .n_threads = 1, /* more would wait for one another, not compute */
                          .n_ctx = 8192,
                          .cache_ram_mib = 512,
                          .say = say,
                          .lg = &quiet};
    struct err err = {0};
    sampling_defaults(&o.server.sampling);
    o.server.n_predict = -1;
    o.server.lg = &quiet;
    if (host_open(&o, &host, &err))
        fail_msg("%s", err.msg);
    server.port = host_port(host);
    server.client = program_client(&server);
}

static inline void told_close(void)
{
    program_release(&server);
    host_close(host, 0);
}

static int told_set_up(void **state)
{
    (void)state;
    scene_open(&scene);
    scene_make_model(&scene, "tiny", "f16");
    assert_int_equal(gguf_open(scene.model, &gguf, NULL), RC_OK);
    assert_int_equal(vocab_open(gguf, &vocab, NULL), RC_OK);
    return 0;
}

static int told_tear_down(void **state)
{
    (void)state;
    tokens_release(&script);
    vocab_close(vocab);
    gguf_close(gguf);
    scene_close(&scene);
    return 0;
}

static inline json_t *js(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

#endif
