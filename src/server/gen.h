/* gen.h - the jobs of one HTTP request, and the one loop that reads them.
 *
 * The loop is where a client that hangs up, a server that stops and a stream that has been silent too
 * long are noticed; protocols only see pieces.
 */
#ifndef HOLDFAST_SERVER_GEN_H
#define HOLDFAST_SERVER_GEN_H

#include "server/params.h"
#include "server/prompt.h"
#include "server/stream.h"

struct gen {
    struct call *c;
    struct job **jobs; /* [n]; prompt i, completion k is i * per_prompt + k */
    uint32_t n, per_prompt;
    uint32_t n_ended, turn;
    const struct prompts *prompts; /* borrowed until gen_end */
    const char *field;             /* that asks for a grammar, or NULL; for messages */
    bool no_cache;
    struct stream *stream; /* NULL for a whole reply */
    uint64_t looked_ns;    /* when the client was last looked for */
    bool gone;
};

/* Submits per_prompt jobs for each prompt.  On an error nothing runs and the reply has been sent. */
NODISCARD bool gen_start(struct gen *g, struct call *c, const struct prompts *prompts,
                         const struct params *p, struct stream *stream);
/* The next piece of any job, in *which; NULL when all have ended or the client has gone (g->gone: do not
 * reply).  The caller frees it. */
struct piece *gen_next(struct gen *g, uint32_t *which);
/* Cancels what still runs. */
void gen_end(struct gen *g);

/* What a job said, put together. */
struct answer {
    struct buf text;
    struct tokens tokens;
    struct prob *probs; /* [tokens.n][1 + n_probs], or NULL */
    size_t cap_probs;
    uint32_t n_probs;
    size_t n_bytes, n_tokens; /* of text, of tokens, kept here or not */
    bool newline;             /* in the text, kept or not */
    bool nomem;
    enum stop_kind stop;   /* STOP_NONE until the last piece */
    const char *stop_word; /* borrowed from the job; or NULL */
    struct timings timings;
    snap_id pinned;
    int32_t slot;   /* piece.slot */
    struct err err; /* with STOP_ERROR */
};

/* [g->n], empty; NULL when memory is out, which has been replied. */
struct answer *answers_new(struct gen *g);
void answers_free(const struct gen *g, struct answer *a);
/* All of a piece; or all but text, tokens and probabilities, which a stream has passed on. */
void answer_add(struct answer *a, const struct piece *p);
void answer_note(struct answer *a, const struct piece *p);
/* Whether an ended job has no answer to give, and why. */
bool gen_failed(const struct answer *a, struct err *err);

/* Reads all jobs to their ends into answers [g->n].  False when there is nothing to reply to, or when
 * an error has been replied already. */
NODISCARD bool gen_collect(struct gen *g, struct answer *answers);

#endif
