#include "net/response.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

enum { MAX_LINE = 16 << 10, MAX_HEAD = 64 << 10 };

void response_init(struct response *r, bool to_head)
{
    memset(r, 0, sizeof *r);
    r->to_head = to_head;
    r->line.limit = MAX_LINE;
    r->headers.limit = MAX_HEAD;
}

void response_release(struct response *r)
{
    buf_release(&r->line);
    buf_release(&r->headers);
}

const char *response_header(const struct response *r, const char *name)
{
    for (size_t i = 0; i < r->headers.n;) {
        const char *key = r->headers.p + i, *value = key + strlen(key) + 1;
        if (!strcmp(key, name))
            return value;
        i += strlen(key) + 1 + strlen(value) + 1;
    }
    return NULL;
}

static enum rc status_line(struct response *r, struct str s, struct err *err)
{
    /* HTTP/1.x SP 3DIGIT [SP reason] */
    static const char head[] = "HTTP/1.";
    const size_t n = sizeof head - 1;
    if (s.n < n + 5 || memcmp(s.p, head, n) != 0 || (s.p[n] != '0' && s.p[n] != '1') ||
        s.p[n + 1] != ' ' || (s.n > n + 5 && s.p[n + 5] != ' '))
        return err_set(err, RC_FORMAT, "HTTP response: not an HTTP/1.1 status line");
    int status = 0;
    for (size_t i = n + 2; i < n + 5; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return err_set(err, RC_FORMAT, "HTTP response: status is no number");
        status = status * 10 + (s.p[i] - '0');
    }
    if (status < 100 || status > 599)
        return err_set(err, RC_FORMAT, "HTTP response: status %d", status);
    r->status = status;
    r->keep = s.p[n] == '1';
    r->state = RESP_HEADERS;
    return RC_OK;
}

static struct str trim(struct str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s.p++;
        s.n--;
    }
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

static bool equals(struct str s, const char *word)
{
    return s.n == strlen(word) && !strncasecmp(s.p, word, s.n);
}

/* Whether a comma-separated list has the word. */
static bool lists(struct str s, const char *word)
{
    for (;;) {
        const char *comma = s.n ? memchr(s.p, ',', s.n) : NULL;
        const struct str item = {s.p, comma ? (size_t)(comma - s.p) : s.n};
        if (equals(trim(item), word))
            return true;
        if (!comma)
            return false;
        s.n -= item.n + 1;
        s.p = comma + 1;
    }
}

static bool parse_size(struct str s, int base, uint64_t *out)
{
    uint64_t v = 0;
    if (!s.n)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];
        uint64_t digit;
        if (c >= '0' && c <= '9')
            digit = (unsigned char)(c - '0');
        else if (base == 16 && (c | 32) >= 'a' && (c | 32) <= 'f')
            digit = (unsigned char)((c | 32) - 'a') + 10U;
        else
            return false;
        if (!mul_u64(v, (uint64_t)base, &v) || !add_u64(v, digit, &v))
            return false;
    }
    *out = v;
    return true;
}

static enum rc header_line(struct response *r, struct str s, struct err *err)
{
    const char *colon = memchr(s.p, ':', s.n);
    if (!colon || colon == s.p || memchr(s.p, 0, s.n) || s.p[0] == ' ' || s.p[0] == '\t')
        return err_set(err, RC_FORMAT, "HTTP response: header line without a name");
    const struct str name = {s.p, (size_t)(colon - s.p)};
    const struct str value = trim((struct str){colon + 1, s.n - name.n - 1});
    for (size_t i = 0; i < name.n; i++) {
        const char c = name.p[i];
        buf_addc(&r->headers, (char)(c >= 'A' && c <= 'Z' ? c | 32 : c));
    }
    buf_addc(&r->headers, 0);
    buf_add(&r->headers, value.p, value.n);
    buf_addc(&r->headers, 0);
    if (r->headers.failed)
        return err_set(err, RC_LIMIT, "HTTP response: headers above %d bytes", (int)MAX_HEAD);
    if (equals(name, "transfer-encoding")) {
        if (!equals(value, "chunked"))
            return err_set(err, RC_UNSUPPORTED, "HTTP response: transfer encoding");
        r->chunked = true;
    } else if (equals(name, "content-length")) {
        uint64_t n;
        if (!parse_size(value, 10, &n) || (r->sized && n != r->left))
            return err_set(err, RC_FORMAT, "HTTP response: Content-Length is no number");
        r->sized = true;
        r->left = n;
    } else if (equals(name, "connection")) {
        if (lists(value, "close"))
            r->keep = false;
        else if (lists(value, "keep-alive"))
            r->keep = true;
    }
    return RC_OK;
}

static void end_of_headers(struct response *r)
{
    if (r->status < 200) { /* 100 Continue and the like: the real one follows */
        const bool to_head = r->to_head;
        response_release(r);
        response_init(r, to_head);
    } else if (r->to_head || r->status == 204 || r->status == 304) {
        r->state = RESP_DONE;
    } else if (r->chunked) {
        r->state = RESP_CHUNK_SIZE;
    } else if (r->sized) {
        r->state = r->left ? RESP_SIZED : RESP_DONE;
    } else {
        r->state = RESP_TO_EOF;
        r->keep = false;
    }
}

static enum rc chunk_size(struct response *r, struct str s, struct err *err)
{
    const char *ext = s.n ? memchr(s.p, ';', s.n) : NULL;
    const struct str digits = trim((struct str){s.p, ext ? (size_t)(ext - s.p) : s.n});
    if (!parse_size(digits, 16, &r->left))
        return err_set(err, RC_FORMAT, "HTTP response: chunk size is no number");
    r->state = r->left ? RESP_CHUNK : RESP_TRAILERS;
    return RC_OK;
}

static enum rc whole_line(struct response *r, struct err *err)
{
    struct str s = {buf_str(&r->line), r->line.n};
    if (s.n && s.p[s.n - 1] == '\r')
        s.n--;
    switch (r->state) {
    case RESP_STATUS:
        return s.n ? status_line(r, s, err) : RC_OK; /* RFC 9112 2.2: blank lines before it */
    case RESP_HEADERS:
        if (s.n)
            return header_line(r, s, err);
        end_of_headers(r);
        return RC_OK;
    case RESP_CHUNK_SIZE:
        return chunk_size(r, s, err);
    case RESP_CHUNK_END:
        if (s.n)
            return err_set(err, RC_FORMAT, "HTTP response: chunk longer than its size");
        r->state = RESP_CHUNK_SIZE;
        return RC_OK;
    default: /* RESP_TRAILERS: read over */
        if (!s.n)
            r->state = RESP_DONE;
        return RC_OK;
    }
}

static bool in_body(const struct response *r)
{
    return r->state == RESP_SIZED || r->state == RESP_TO_EOF || r->state == RESP_CHUNK;
}

enum rc response_feed(struct response *r, const char *p, size_t n, size_t *used, struct buf *body,
                      struct err *err)
{
    size_t i = 0;
    enum rc rc = RC_OK;
    while (i < n && r->state != RESP_DONE && !rc) {
        if (in_body(r)) {
            const size_t take =
                r->state == RESP_TO_EOF ? n - i : (size_t)MIN((uint64_t)(n - i), r->left);
            buf_add(body, p + i, take);
            i += take;
            if (body->failed)
                rc = err_set(err, RC_LIMIT, "HTTP response: body too large");
            if (r->state == RESP_TO_EOF)
                continue;
            r->left -= take;
            if (!r->left)
                r->state = r->state == RESP_SIZED ? RESP_DONE : RESP_CHUNK_END;
            continue;
        }
        const char *lf = memchr(p + i, '\n', n - i);
        const size_t take = lf ? (size_t)(lf - (p + i)) : n - i;
        buf_add(&r->line, p + i, take);
        i += take + (lf != NULL);
        if (r->line.failed)
            rc = err_set(err, RC_LIMIT, "HTTP response: line above %d bytes", (int)MAX_LINE);
        else if (lf) {
            rc = whole_line(r, err);
            buf_clear(&r->line);
        }
    }
    *used = i;
    return rc;
}

enum rc response_eof(struct response *r, struct err *err)
{
    if (r->state == RESP_TO_EOF)
        r->state = RESP_DONE;
    if (r->state == RESP_DONE)
        return RC_OK;
    return err_set(err, RC_FORMAT, "HTTP response: the connection ended %s",
                   response_has_head(r) ? "inside the body" : "before the headers did");
}
