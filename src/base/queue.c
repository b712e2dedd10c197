#include "base/queue.h"

#include <time.h>

void queue_init(struct queue *q)
{
    *q = (struct queue){0};
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->more, &attr);
    pthread_condattr_destroy(&attr);
}

void queue_release(struct queue *q)
{
    assert(!q->head);
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
}

bool queue_put(struct queue *q, struct qmsg *m)
{
    pthread_mutex_lock(&q->lock);
    const bool ok = !q->closed;
    if (ok) {
        m->next = NULL;
        if (q->tail)
            q->tail->next = m;
        else
            q->head = m;
        q->tail = m;
        pthread_cond_signal(&q->more);
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

struct qmsg *queue_get(struct queue *q, uint64_t timeout_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t s = timeout_ns / UINT64_C(1000000000);
    until.tv_sec += (time_t)MIN(s, UINT64_C(1000000000));
    until.tv_nsec += (long)(timeout_ns % UINT64_C(1000000000));
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&q->lock);
    /* a timed wait may wake for queue_wake() too: one wait, then whatever is there */
    if (!q->head && !q->closed && timeout_ns) {
        if (timeout_ns == UINT64_MAX)
            pthread_cond_wait(&q->more, &q->lock);
        else
            pthread_cond_timedwait(&q->more, &q->lock, &until);
    }
    struct qmsg *m = q->head;
    if (m) {
        q->head = m->next;
        if (!q->head)
            q->tail = NULL;
        m->next = NULL;
    }
    pthread_mutex_unlock(&q->lock);
    return m;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

void queue_wake(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
}
