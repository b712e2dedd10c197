/* drop.h - why a kept state went: one list for counters, events and metrics. */
#ifndef HOLDFAST_ENGINE_DROP_H
#define HOLDFAST_ENGINE_DROP_H

enum drop_why {
    DROP_BUDGET,   /* made room for one worth more */
    DROP_MEMORY,   /* a running request needed its pages */
    DROP_USER,     /* by hand */
    DROP_AUDIT,    /* found wrong */
    DROP_ERASED,   /* policy pxa: its slot's next prompt left the sequence below it */
    DROP_SHUTDOWN, /* never seen in a counter */
    DROP_N
};
const char *drop_name(enum drop_why why);

#endif
