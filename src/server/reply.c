#include "server/reply.h"

#include <string.h>

static const char type_json[] = "application/json; charset=utf-8";

void reply_json(struct call *c, int status, const struct buf *b)
{
    static const char sorry[] = "{\"error\":{\"message\":\"out of memory for the reply\","
                                "\"type\":\"unavailable_error\",\"param\":null,\"code\":503}}";
    if (b->failed)
        http_reply(c->r, 503, type_json, sorry, sizeof sorry - 1);
    else
        http_reply(c->r, status, type_json, buf_str(b), b->n);
}

static int error_status(enum rc rc)
{
    switch (rc) {
    case RC_ARG:
    case RC_FORMAT:
    case RC_UNSUPPORTED:
    case RC_LIMIT:
        return 400;
    case RC_NOMEM:
    case RC_CANCELLED:
        return 503;
    default:
        return 500;
    }
}

static const char *error_type(int status)
{
    return status == 400   ? "invalid_request_error"
           : status == 503 ? "unavailable_error"
                           : "server_error";
}

/* The field a message begins with, when the request has it or lacks it. */
static struct str field_of(const struct call *c, const struct err *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    const size_t root = strspn(err->msg, letters);
    const size_t n = root + strcspn(err->msg + root, " :");
    char key[64];
    const bool theirs = err->rc == RC_ARG || err->rc == RC_UNSUPPORTED || err->rc == RC_LIMIT;
    if (!theirs || !root || root >= sizeof key)
        return (struct str){NULL, 0};
    memcpy(key, err->msg, root);
    key[root] = 0;
    const bool known = json_object_get(c->body, key) || !strcmp(err->msg + n, " is missing");
    return (struct str){err->msg, known ? n : 0};
}

/* Anthropic's word for one of our types. */
static const char *anthropic_type(const char *type)
{
    static const char *const words[][2] = {{"exceed_context_size_error", "invalid_request_error"},
                                           {"unavailable_error", "overloaded_error"},
                                           {"server_error", "api_error"},
                                           {"not_supported_error", "api_error"}};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (!strcmp(type, words[i][0]))
            return words[i][1];
    return type;
}

static void begin(const struct call *c, struct jwrite *w, struct buf *b, const char *message,
                  const char *type, struct str param, int code)
{
    jwrite_init(w, b);
    jwrite_obj(w, NULL);
    if (c->anthropic)
        jwrite_str(w, "type", "error");
    jwrite_obj(w, "error");
    jwrite_str(w, "message", message);
    jwrite_str(w, "type", c->anthropic ? anthropic_type(type) : type);
    if (param.n)
        jwrite_strn(w, "param", param.p, param.n);
    else
        jwrite_null(w, "param");
    jwrite_i64(w, "code", code);
}

static void end(struct jwrite *w)
{
    jwrite_end_obj(w);
    jwrite_end_obj(w);
}

void reply_write_error(const struct call *c, struct buf *b, const struct err *err)
{
    struct jwrite w;
    const int status = error_status(err->rc);
    begin(c, &w, b, err->msg, error_type(status), field_of(c, err), status);
    end(&w);
}

void reply_error(struct call *c, const struct err *err)
{
    struct buf b = BUF_INIT;
    reply_write_error(c, &b, err);
    if (err->rc == RC_NOMEM)
        http_set_header(c->r, "Retry-After", "1");
    reply_json(c, error_status(err->rc), &b);
    buf_release(&b);
}

void reply_context_error(struct call *c, const struct err *err, uint64_t n_prompt, uint64_t n_ctx)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    char text[sizeof err->msg];
    snprintf(text, sizeof text, "%s", err->msg);
    if (c->anthropic) /* what its clients look for before they shorten a conversation */
        snprintf(text, sizeof text, "prompt is too long: %" PRIu64 " tokens > %" PRIu64 " maximum",
                 n_prompt, n_ctx);
    begin(c, &w, &b, text, "exceed_context_size_error", str_of("prompt"), 400);
    jwrite_u64(&w, "n_prompt_tokens", n_prompt);
    jwrite_u64(&w, "n_ctx", n_ctx);
    end(&w);
    reply_json(c, 400, &b);
    buf_release(&b);
}

void reply_refuse(struct call *c, int status, const char *type, const char *message)
{
    struct buf b = BUF_INIT;
    struct jwrite w;
    begin(c, &w, &b, message, type, (struct str){NULL, 0}, status);
    end(&w);
    reply_json(c, status, &b);
    buf_release(&b);
}
