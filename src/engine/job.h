/* job.h - a request on its way between a client's thread and the engine's.
 *
 * Two hold a job: the client (job_free) and the engine, from engine_submit until the last piece is
 * out.  The description is copied once and then only read.  Pieces go from the engine's thread to the
 * reader's through out; the last one is allocated with the job, so that its end can always be told.
 */
#ifndef HOLDFAST_ENGINE_JOB_H
#define HOLDFAST_ENGINE_JOB_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/queue.h"
#include "engine/engine.h"

/* What the engine's inbox carries. */
struct msg {
    struct qmsg q;
    enum msg_kind { MSG_JOB, MSG_CALL, MSG_STOP, MSG_DISK } kind;
};

struct piece_node {
    struct qmsg q;
    struct piece piece;
};

struct job {
    struct msg msg; /* first: a job is a message */
    atomic_uint refs;
    atomic_bool cancelled;
    uint64_t id, seed, submit_ns;
    struct arena mem; /* what d points to */
    struct job_desc d;
    struct queue out;
    struct piece_node *last; /* engine: not sent yet */
    bool ended;              /* reader: the last piece has been read */
};

/* Limits that a description is held against. */
struct job_limits {
    uint32_t n_vocab, n_ctx;
};

/* Checks and copies d; one reference.  Errors as engine_submit. */
NODISCARD enum rc job_new(const struct job_desc *d, const struct job_limits *lim, uint64_t id,
                          struct job **out, struct err *err);
void job_ref(struct job *j);
void job_unref(struct job *j);
bool job_is_cancelled(const struct job *j);
/* NULL when memory is out. */
NODISCARD struct piece_node *piece_new(void);
/* To the reader; dropped when there is none any more. */
void job_take_piece(struct job *j, struct piece_node *p);

#endif
