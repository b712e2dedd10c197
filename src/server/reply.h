/* reply.h - whole replies, and the one place where an error becomes an HTTP status.
 *
 * Every error has OpenAI's shape with llama-server's numeric code:
 *
 *     {"error": {"message": "...", "type": "invalid_request_error", "param": "top_p", "code": 400}}
 *
 * On Anthropic's routes {"type": "error"} stands beside it and the types are theirs.
 * param comes from the message: RC_ARG and RC_UNSUPPORTED begin with the field's name, as the readers of
 * base/json.h and engine_submit make it.
 */
#ifndef HOLDFAST_SERVER_REPLY_H
#define HOLDFAST_SERVER_REPLY_H

#include "server/server_int.h"

/* Sends b as JSON; a buffer that failed becomes 503. */
void reply_json(struct call *c, int status, const struct buf *b);

/* By enum rc: bad input 400, out of memory or stopping 503, else 500. */
void reply_error(struct call *c, const struct err *err);
/* The prompt does not fit: 400, type exceed_context_size_error, both numbers. */
void reply_context_error(struct call *c, const struct err *err, uint64_t n_prompt, uint64_t n_ctx);
/* An answer that is no error of ours to explain by rc: 401, 404, 405, 413, 501. */
void reply_refuse(struct call *c, int status, const char *type, const char *message);

/* The object alone: for streams that fail after the first byte. */
void reply_write_error(const struct call *c, struct buf *b, const struct err *err);

#endif
