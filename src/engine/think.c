#include "engine/think.h"

#include <ctype.h>

#define OPEN "<think>"
#define CLOSE "</think>"

void think_init(struct think *t, const struct think_limit *limit)
{
    *t = (struct think){.limit = limit};
    if (limit->n_end)
        t->state = limit->open ? THINK_ON : THINK_WAIT;
}

token think_next(struct think *t)
{
    if (t->state == THINK_ON && t->n >= t->limit->budget)
        *t = (struct think){.state = THINK_ENDING, .limit = t->limit};
    return t->state == THINK_ENDING ? t->limit->end[t->n] : -1;
}

/* Reasoning begins with the answer or not at all. */
static void wait_for_open(struct think *t, struct str text)
{
    for (size_t i = 0; i < text.n && t->state == THINK_WAIT; i++) {
        if (!t->n_seen && isspace((unsigned char)text.p[i]))
            continue;
        if (text.p[i] != OPEN[t->n_seen++])
            t->state = THINK_OVER;
        else if (t->n_seen == sizeof OPEN - 1)
            *t = (struct think){.state = THINK_ON, .limit = t->limit};
    }
}

static void wait_for_close(struct think *t, struct str text)
{
    for (size_t i = 0; i < text.n && t->state == THINK_ON; i++) {
        if (t->n_seen == sizeof t->seen) {
            memmove(t->seen, t->seen + 1, sizeof t->seen - 1);
            t->n_seen--;
        }
        t->seen[t->n_seen++] = text.p[i];
        if (str_is((struct str){t->seen, t->n_seen}, CLOSE))
            t->state = THINK_OVER;
    }
}

void think_note(struct think *t, struct str text)
{
    switch (t->state) {
    case THINK_OVER:
        return;
    case THINK_WAIT:
        wait_for_open(t, text);
        return;
    case THINK_ON:
        t->n++;
        wait_for_close(t, text);
        return;
    case THINK_ENDING:
        if (++t->n == t->limit->n_end)
            t->state = THINK_OVER;
    }
}
