/* inproc_int.h - a server in this process, real from HTTP to the kernels, over a small model of random weights.
 *
 *     inproc_set_up, inproc_open(template, host options)
 *     ask(&server, ...)  as with a program (program_int.h)
 *     inproc_close, inproc_tear_down
 *
 * The model says noise, unless host_opts.say tells it what.
 */
#ifndef HOLDFAST_TESTS_E2E_INPROC_INT_H
#define HOLDFAST_TESTS_E2E_INPROC_INT_H

#include "program_int.h"

#include "cli/host.h"

static struct scene scene;
static struct gguf *gguf;
static struct vocab *vocab;
static struct host *host;
static struct program server; /* only what asking needs */

static inline json_t *js(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    if (!v)
        fail_msg("not JSON: %s", text);
    return v;
}

/* given: what the test is about; the model, its template, sampling and a silent log are filled in. */
static inline void inproc_open(const char *template, const struct host_opts *given)
{
    static char path[512];
    static struct logger quiet;
    struct host_opts o = *given;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/tests/templates/%s.jinja", HOUSE_SOURCE_DIR, template);
    o.model_path = scene.model;
    o.alias = "tiny";
    o.template_path = path;
    o.lg = o.server.lg = &quiet;
    sampling_defaults(&o.server.sampling);
    o.server.n_predict = -1;
    if (host_open(&o, &host, &err))
        fail_msg("%s", err.msg);
    server.port = host_port(host);
    server.client = program_client(&server);
}

static inline void inproc_close(void)
{
    program_release(&server);
    host_close(host, 0);
}

static inline int inproc_set_up(void **state)
{
    (void)state;
    scene_open(&scene);
    scene_make_model(&scene, "tiny", "f16");
    assert_int_equal(gguf_open(scene.model, &gguf, NULL), RC_OK);
    assert_int_equal(vocab_open(gguf, &vocab, NULL), RC_OK);
    return 0;
}

static inline int inproc_tear_down(void **state)
{
    (void)state;
    vocab_close(vocab);
    gguf_close(gguf);
    scene_close(&scene);
    return 0;
}

#endif
