/* url.h - http URLs and percent-encoding. */
#ifndef HOLDFAST_NET_URL_H
#define HOLDFAST_NET_URL_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

struct url {
    char host[256]; /* IPv6 without the brackets */
    uint16_t port;
    char path[1024]; /* begins with '/'; the query included, the fragment dropped */
};

/* "http://host[:port][/path][?query]", the scheme may be missing, the default port is 80.  RC_FORMAT
 * with the reason; RC_UNSUPPORTED for https. */
NODISCARD enum rc url_parse(const char *s, struct url *out, struct err *err);

/* Appends s with everything but RFC 3986's unreserved characters as %XX. */
void url_encode(struct buf *b, struct str s);

#endif
