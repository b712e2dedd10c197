/* world_int.h - what the engine's tests run over: the tiny model of random weights, opened once for a group
 * of tests.
 *
 *     cmocka_run_group_tests(tests, world_open, world_close)
 */
#ifndef HOLDFAST_ENGINE_WORLD_INT_H
#define HOLDFAST_ENGINE_WORLD_INT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "model/maker.h"

#include <cmocka.h>

static struct {
    struct pool *pool;
    struct gguf *g;
    struct vocab *vocab;
    struct model *model;
} world;

static inline void must(enum rc rc, const struct err *err)
{
    if (rc)
        fail_msg("%s", err->msg);
}

static inline int world_open_with(enum kv_type kv_type, uint32_t max_batch)
{
    char path[256];
    snprintf(path, sizeof path, "%s/engine_world-%d.gguf", HOUSE_BINARY_DIR, (int)getpid());
    struct err err;
    const struct maker_opts mo = {.preset = "tiny", .type = DT_F32, .seed = 5};
    const struct pool_opts po = {.n_threads = 1}; /* model_bits_test covers more */
    enum rc rc = maker_write(path, &mo, NULL, &err);
    if (!rc)
        rc = gguf_open(path, &world.g, &err);
    unlink(path); /* it stays mapped */
    if (!rc)
        rc = vocab_open(world.g, &world.vocab, &err);
    if (!rc)
        rc = pool_new(&po, &world.pool, &err);
    const struct model_opts o = {.pool = world.pool, .kv_type = kv_type, .max_batch = max_batch};
    if (!rc)
        rc = model_open(world.g, &o, &world.model, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.msg);
    return rc != RC_OK;
}

static inline int world_open(void **state)
{
    (void)state;
    return world_open_with(KV_F32, 64);
}

static inline int world_close(void **state)
{
    (void)state;
    model_close(world.model);
    pool_free(world.pool);
    vocab_close(world.vocab);
    gguf_close(world.g);
    return 0;
}

/* Tokens that are text, so that answers are text. */
static inline void random_tokens(token *out, uint32_t n, uint64_t seed)
{
    struct rng rng = {seed};
    for (uint32_t i = 0; i < n;) {
        const token t = (token)rng_below(&rng, vocab_size(world.vocab));
        if (vocab_type(world.vocab, t) == TOKEN_NORMAL)
            out[i++] = t;
    }
}

#endif
