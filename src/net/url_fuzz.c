/* Any text as a URL; what parses is safe in a request line. */
#include "net/url.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char s[2048];
    struct url u;
    struct err err;
    const size_t m = MIN(n, sizeof s - 1);
    memcpy(s, data, m);
    s[m] = 0;
    if (!url_parse(s, &u, &err)) {
        CHECK(u.host[0] && u.path[0] == '/');
        for (const char *p = u.path; *p; p++)
            CHECK(*p > ' ' || *p < 0);
    } else {
        CHECK(err.msg[0]);
    }
    struct buf b = BUF_INIT;
    url_encode(&b, (struct str){s, m});
    CHECK(b.n >= m);
    buf_release(&b);
    return 0;
}
