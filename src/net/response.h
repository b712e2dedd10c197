/* response.h - an HTTP/1.1 response, parsed as its bytes come in.
 *
 * Knows nothing of sockets: client.c feeds it, and so does the fuzzer.
 */
#ifndef HOLDFAST_NET_RESPONSE_H
#define HOLDFAST_NET_RESPONSE_H

#include "base/buf.h"
#include "base/err.h"

enum response_state {
    RESP_STATUS,
    RESP_HEADERS,
    RESP_SIZED,  /* a body of Content-Length */
    RESP_TO_EOF, /* a body that ends with the connection */
    RESP_CHUNK_SIZE,
    RESP_CHUNK,
    RESP_CHUNK_END,
    RESP_TRAILERS,
    RESP_DONE
};

struct response {
    enum response_state state;
    bool to_head; /* the request was HEAD: no body follows */
    int status;   /* 100..599, once the status line is there; 1xx are skipped */
    bool keep;    /* the connection can carry another request afterwards */
    bool chunked;
    bool sized;
    uint64_t left;      /* of a sized body or the current chunk */
    struct buf line;    /* unfinished */
    struct buf headers; /* name NUL value NUL ..., names in lower case */
};

void response_init(struct response *r, bool to_head);
void response_release(struct response *r);
/* Takes bytes of p[n] until the response is done; *used says how many.  Body bytes are appended to
 * body.  RC_FORMAT and RC_LIMIT end the connection. */
NODISCARD enum rc response_feed(struct response *r, const char *p, size_t n, size_t *used,
                                struct buf *body, struct err *err);
/* The connection has ended: fine for RESP_TO_EOF, else RC_FORMAT. */
NODISCARD enum rc response_eof(struct response *r, struct err *err);
static inline bool response_has_head(const struct response *r)
{
    return r->state > RESP_HEADERS;
}
/* By lower-case name; NULL when absent.  Of several with one name the first. */
const char *response_header(const struct response *r, const char *name);

#endif
