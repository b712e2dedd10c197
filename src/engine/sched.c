#include "engine/sched.h"

void sched_share(struct sched_row *rows, uint32_t n, uint32_t max_rows, uint32_t max_prefill,
                 uint32_t first)
{
    uint32_t room = max_rows;
    uint32_t n_prefill = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct sched_row *r = &rows[(first + i) % n];
        r->take = r->decode && room > 0;
        room -= r->take;
        n_prefill += !r->decode && r->want > 0;
    }
    room = MIN(room, max_prefill);
    /* the shortest first, each an equal share of what is left */
    while (n_prefill > 0 && room > 0) {
        struct sched_row *shortest = NULL;
        for (uint32_t i = 0; i < n; i++) {
            struct sched_row *r = &rows[(first + i) % n];
            if (!r->decode && r->take == 0 && r->want > 0 &&
                (!shortest || r->want < shortest->want))
                shortest = r;
        }
        shortest->take = MIN(shortest->want, (uint32_t)ceil_div(room, n_prefill));
        room -= shortest->take;
        n_prefill--;
    }
}
