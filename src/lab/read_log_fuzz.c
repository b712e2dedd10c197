/* Any bytes as a log, plain or packed: the whole way to the report's JSON. */
#include "lab/forensics.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err err;
    struct forensics *f;
    json_t *summary = NULL;
    if (forensics_new(&(struct forensics_opts){.now = 1.8e9, .keep_turns = true}, &f, &err))
        return 0;
    /* the same log twice: as two files of one server */
    for (int i = 0; i < 2; i++)
        if (forensics_mem(f, "fuzz", data, n, &err) && !err.msg[0])
            abort(); /* an error says why */
    if (!forensics_end(f, &err) && !forensics_summary(f, NULL, &summary, &err)) {
        static FILE *null;
        if (!null)
            null = fopen("/dev/null", "w");
        if (forensics_write(f, summary, null, &err))
            abort();
    }
    json_decref(summary);
    forensics_free(f);
    return 0;
}
