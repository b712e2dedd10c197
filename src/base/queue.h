/* queue.h - messages that change owner, between threads.
 *
 * Intrusive: a message begins with struct qmsg.  Many writers, one or more readers, in order.
 */
#ifndef HOLDFAST_BASE_QUEUE_H
#define HOLDFAST_BASE_QUEUE_H

#include "base/base.h"

#include <pthread.h>

struct qmsg {
    struct qmsg *next;
};

struct queue {
    pthread_mutex_t lock; /* guards all below; a leaf: nothing is locked while it is held */
    pthread_cond_t more;
    struct qmsg *head, *tail;
    bool closed;
};

void queue_init(struct queue *q);
void queue_release(struct queue *q); /* must be empty */
/* False when closed: the message then still belongs to the caller. */
NODISCARD bool queue_put(struct queue *q, struct qmsg *m);
/* NULL when nothing came within timeout_ns (0: do not wait, UINT64_MAX: no limit), the queue is closed
 * and empty, or queue_wake() (or the system) woke the reader early: a caller that must wait loops. */
NODISCARD struct qmsg *queue_get(struct queue *q, uint64_t timeout_ns);
/* Puts fail from now on; waiting readers wake. */
void queue_close(struct queue *q);
/* Wakes one waiting reader without a message. */
void queue_wake(struct queue *q);

#endif
