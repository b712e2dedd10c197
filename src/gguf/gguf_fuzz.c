/* Any bytes are refused or open to something that can be read to its last byte. */
#include "gguf/gguf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t read_key_values(const struct gguf_key *k)
{
    uint64_t sum = 0, off = 0;
    struct str s;
    int64_t i;
    double d;
    for (uint64_t j = 0; k->elem != GGUF_STR && j < k->n; j++) {
        if (gguf_arr_i64(k, j, &i))
            sum += (uint64_t)i;
        else if (gguf_arr_f64(k, j, &d))
            sum++;
    }
    while (gguf_arr_next_str(k, &off, &s))
        for (size_t j = 0; j < s.n; j++)
            sum += (uint8_t)s.p[j];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct gguf *g;
    struct err err = {0};
    if (gguf_open_mem(data, n, &g, &err)) {
        if (!err.msg[0])
            abort(); /* a refusal says why */
        return 0;
    }
    static volatile uint64_t sink;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        char name[256];
        sum += read_key_values(k);
        if (k->name.n < sizeof name && !memchr(k->name.p, 0, k->name.n)) {
            memcpy(name, k->name.p, k->name.n);
            name[k->name.n] = 0;
            if (gguf_find_key(g, name) != k)
                abort(); /* names are unique and found */
        }
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        for (uint64_t j = 0; j < t->bytes; j++)
            sum += t->data[j];
    }
    sink = sum;
    (void)sink;
    gguf_close(g);
    return 0;
}
