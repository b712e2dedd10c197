/* Any bytes as one line: unwrapped, split, read.  A body never reaches outside what it came from. */
#include "lab/line.h"
#include "lab/unwrap.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct unwrap *u;
    struct err err;
    if (!u && unwrap_new(1.8e9, &u, &err))
        return 0;
    /* a copy of its own, so that one byte too far is seen */
    char *text = malloc(n ? n : 1);
    if (!text)
        return 0;
    memcpy(text, data, n);
    struct unwrapped o;
    if (unwrap_line(u, (struct str){text, n}, &o)) {
        struct line l;
        const size_t cut = second_head(o.body);
        if (cut >= o.body.n && cut)
            abort();
        if (line_read(o.body, &l) && ((unsigned)l.kind >= LINE_N_KINDS || l.kind == LINE_UNKNOWN ||
                                      l.slot < -1 || l.task < -1))
            abort();
        char names[160];
        wrap_names(o.wraps, names);
    }
    free(text);
    return 0;
}
