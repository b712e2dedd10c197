/* Any bytes as the body of any POST: one reply comes, it is JSON or a stream, and nothing leaks.  The
 * first byte chooses the path. */
#include "server/fake_http_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct fixture f; /* made once: it is the same for every input */
    int status;
    if (!f.vocab)
        set_up(&f);
    if (n < 1)
        return 0;
    const struct str body = {(const char *)data + 1, n - 1};
    CHECK(post(&f, post_paths[data[0] % COUNT_OF(post_paths)], body, &status));
    CHECK(atomic_load(&f.engine.n_alive) == 0);
    return 0;
}
