#include "net/url.h"

#include <strings.h>

static bool unreserved(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

/* What may stand in a request line: printable, no blank. */
static bool printable(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] == 0x7f)
            return false;
    return true;
}

static enum rc parse_port(struct str s, uint16_t *out, struct err *err)
{
    char digits[8];
    uint64_t port;
    if (s.n == 0 || s.n >= sizeof digits)
        return err_set(err, RC_FORMAT, "URL: port of %zu digits", s.n);
    memcpy(digits, s.p, s.n);
    digits[s.n] = 0;
    if (!str_to_u64(digits, &port) || port > UINT16_MAX)
        return err_set(err, RC_FORMAT, "URL: port '%s'", digits);
    *out = (uint16_t)port;
    return RC_OK;
}

/* host, host:port, [v6] or [v6]:port */
static enum rc parse_authority(struct str a, struct url *out, struct err *err)
{
    struct str host = a, port = {NULL, 0};
    if (memchr(a.p, '@', a.n))
        return err_set(err, RC_UNSUPPORTED, "URL: user names are not supported");
    if (a.n && a.p[0] == '[') {
        const char *end = memchr(a.p, ']', a.n);
        if (!end)
            return err_set(err, RC_FORMAT, "URL: '[' without ']'");
        host = (struct str){a.p + 1, (size_t)(end - a.p) - 1};
        const struct str rest = {end + 1, a.n - host.n - 2};
        if (rest.n && rest.p[0] != ':')
            return err_set(err, RC_FORMAT, "URL: after ']' comes ':' and a port");
        if (rest.n)
            port = (struct str){rest.p + 1, rest.n - 1};
    } else {
        const char *colon = memchr(a.p, ':', a.n);
        if (colon) {
            host.n = (size_t)(colon - a.p);
            port = (struct str){colon + 1, a.n - host.n - 1};
        }
    }
    if (!host.n || host.n >= sizeof out->host)
        return err_set(err, RC_FORMAT, "URL: host of %zu characters", host.n);
    memcpy(out->host, host.p, host.n);
    out->host[host.n] = 0;
    out->port = 80;
    return port.p ? parse_port(port, &out->port, err) : RC_OK;
}

enum rc url_parse(const char *s, struct url *out, struct err *err)
{
    struct str u = str_of(s);
    const char *scheme_end = strstr(s, "://");
    if (!printable(u))
        return err_set(err, RC_FORMAT, "URL: blank or control character");
    if (scheme_end) {
        const size_t n = (size_t)(scheme_end - s);
        if (n == 5 && !strncasecmp(s, "https", 5))
            return err_set(err, RC_UNSUPPORTED, "URL: https is not supported; use http");
        if (n != 4 || strncasecmp(s, "http", 4) != 0)
            return err_set(err, RC_UNSUPPORTED, "URL: only http:// is supported");
        u = (struct str){scheme_end + 3, u.n - n - 3};
    }
    struct str authority = {u.p, strcspn(u.p, "/?#")};
    enum rc rc = parse_authority(authority, out, err);
    if (rc)
        return rc;
    const char *path = u.p + authority.n;
    const size_t n = strcspn(path, "#");
    const bool slash = n && path[0] == '/';
    if (n + !slash >= sizeof out->path)
        return err_set(err, RC_LIMIT, "URL: path of %zu characters", n);
    out->path[0] = '/';
    memcpy(out->path + !slash, path, n);
    out->path[n + !slash] = 0;
    return RC_OK;
}

void url_encode(struct buf *b, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (unreserved(s.p[i]))
            buf_addc(b, s.p[i]);
        else
            buf_addf(b, "%%%02X", (unsigned)(unsigned char)s.p[i]);
    }
}
