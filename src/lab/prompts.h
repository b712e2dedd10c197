/* prompts.h - prompts with exact token overlaps, from ordinary ids of whatever model is served.
 *
 * A stream is an endless sequence of ids; two streams differ at every index.  A prompt is the first shared
 * tokens of stream 0 and then its own stream's, so its common prefix with any other is known to the token.
 */
#ifndef HOLDFAST_LAB_PROMPTS_H
#define HOLDFAST_LAB_PROMPTS_H

#include "base/err.h"
#include "net/client.h"

enum { PROMPTS_MAX_STREAMS = 64 };

struct prompt_pool {
    token *ids; /* distinct, ordinary */
    size_t n, cap;
    uint64_t seed;
};

void prompt_pool_release(struct prompt_pool *p);
/* Asks the server for the ids of common words (POST /tokenize).  RC_UNSUPPORTED when it gives too few. */
NODISCARD enum rc prompt_pool_fill(struct prompt_pool *p, struct client *c, uint64_t seed,
                                   struct err *err);
/* The id at index i of a stream, stream < PROMPTS_MAX_STREAMS. */
token prompt_token(const struct prompt_pool *p, uint32_t stream, uint32_t i);

#endif
