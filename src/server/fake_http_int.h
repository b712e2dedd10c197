/* fake_http_int.h - HTTP without a network, a vocabulary made in memory and a server over both: for tests
 * that want to see what a handler does with one request, many times and fast.
 *
 * It defines http.h's functions in the test's own program, so that the real ones are not linked.
 */
#ifndef HOLDFAST_SERVER_FAKE_HTTP_INT_H
#define HOLDFAST_SERVER_FAKE_HTTP_INT_H

#include "net/http.h"
#include "server/fake_engine_int.h"
#include "server/server.h"

/* ---- HTTP, as far as handlers see it ---- */

struct http_req {
    const char *path;
    struct str body;
    int status; /* of the reply; 0: none yet */
    int n_looks;
    bool stream;
};

void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t n)
{
    json_t *v = NULL;
    CHECK(!r->status && status >= 200 && status < 600);
    r->status = status;
    CHECK(strncmp(type, "application/json", 16) != 0 || !jread_parse(body, n, &v, NULL));
    json_decref(v);
}

void http_stream_begin(struct http_req *r, int status, const char *type)
{
    CHECK(!r->status && status == 200 && !strcmp(type, "text/event-stream"));
    r->status = status;
    r->stream = true;
}

bool http_write(struct http_req *r, const void *p, size_t n)
{
    CHECK(r->stream && n && ((const char *)p)[n - 1] == '\n');
    return true;
}

/* Clients are patient, but not for ever. */
bool http_gone(struct http_req *r)
{
    return ++r->n_looks > 1;
}

void http_set_header(struct http_req *r, const char *name, const char *value)
{
    (void)name;
    (void)value;
    CHECK(!r->status);
}

const char *http_query(const struct http_req *r, const char *name)
{
    (void)r;
    (void)name;
    return NULL;
}

const char *http_header(const struct http_req *r, const char *name)
{
    return http_query(r, name);
}

const char *http_method(const struct http_req *r)
{
    (void)r;
    return "POST";
}

const char *http_path(const struct http_req *r)
{
    return r->path;
}

struct str http_body(const struct http_req *r)
{
    return r->body;
}

bool http_too_large(const struct http_req *r)
{
    (void)r;
    return false;
}

struct http_server {
    http_handler *fn;
    void *ctx;
};

static struct http_server listening; /* the one that server_start opens */

enum rc http_start(const struct http_opts *o, http_handler *fn, void *ctx, struct http_server **out,
                   struct err *err)
{
    (void)o;
    (void)err;
    listening = (struct http_server){fn, ctx};
    *out = &listening;
    return RC_OK;
}

uint16_t http_port(const struct http_server *s)
{
    (void)s;
    return 1;
}

void http_stop(struct http_server *s)
{
    (void)s;
}

/* ---- a vocabulary ---- */

static void put(struct buf *b, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_addc(b, (char)(v >> 8 * i));
}

static void put_str(struct buf *b, const char *s)
{
    put(b, strlen(s), 8);
    buf_adds(b, s);
}

enum { GGUF_TYPE_I32 = 5, GGUF_TYPE_STR = 8, GGUF_TYPE_ARR = 9 };

static void put_array(struct buf *b, const char *key, unsigned type, uint64_t n)
{
    put_str(b, key);
    put(b, GGUF_TYPE_ARR, 4);
    put(b, type, 4);
    put(b, n, 8);
}

/* GPT-2's printable stand-in for a byte. */
static void put_byte_token(struct buf *b, unsigned byte)
{
    const bool shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    unsigned cp = byte;
    if (!shown) { /* the others count up from 256 */
        cp = 256;
        for (unsigned i = 0; i < byte; i++)
            cp += !((i >= 33 && i <= 126) || (i >= 161 && i != 173));
    }
    put(b, cp < 128 ? 1 : 2, 8);
    if (cp < 128) {
        buf_addc(b, (char)cp);
    } else {
        buf_addc(b, (char)(0xc0 | cp >> 6));
        buf_addc(b, (char)(0x80 | (cp & 63)));
    }
}

static const char *const special_tokens[] = {"<|im_start|>", "<|im_end|>",  "<think>",
                                             "</think>",     "<tool_call>", "</tool_call>"};

static void make_gguf(struct buf *b)
{
    const uint64_t n = 256 + COUNT_OF(special_tokens);
    buf_adds(b, "GGUF");
    put(b, 3, 4);
    put(b, 0, 8); /* tensors */
    put(b, 5, 8); /* keys */
    put_str(b, "tokenizer.ggml.model");
    put(b, GGUF_TYPE_STR, 4);
    put_str(b, "gpt2");
    put_str(b, "tokenizer.ggml.pre");
    put(b, GGUF_TYPE_STR, 4);
    put_str(b, "qwen2");
    put_array(b, "tokenizer.ggml.tokens", GGUF_TYPE_STR, n);
    for (unsigned i = 0; i < 256; i++)
        put_byte_token(b, i);
    for (size_t i = 0; i < COUNT_OF(special_tokens); i++)
        put_str(b, special_tokens[i]);
    put_array(b, "tokenizer.ggml.token_type", GGUF_TYPE_I32, n);
    for (uint64_t i = 0; i < n; i++)
        put(b, i < 256 ? TOKEN_NORMAL : i < 258 ? TOKEN_CONTROL : TOKEN_USER, 4);
    put_array(b, "tokenizer.ggml.merges", GGUF_TYPE_STR, 0);
}

/* ---- the target ---- */

static const char chat_template[] =
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson "
    "}}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

struct fixture { /* zero-initialise, then set_up */
    struct buf image;
    struct gguf *gguf;
    struct vocab *vocab;
    struct chat_template *chat;
    struct engine engine;
    struct server *server;
};

static inline void set_up(struct fixture *f)
{
    struct err err;
    struct server_opts o = {.n_predict = -1, .sse_ping_s = -1, .replay_bytes = MIB};
    make_gguf(&f->image);
    CHECK(!gguf_open_mem(f->image.p, f->image.n, &f->gguf, &err));
    CHECK(!vocab_open(f->gguf, &f->vocab, &err));
    CHECK(!chat_template_new(str_of(chat_template), f->vocab, &f->chat, &err));
    f->engine.vocab = f->vocab;
    f->engine.script = "hm</think>\n\na<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n"
                       "</tool_call>";
    sampling_defaults(&o.sampling);
    CHECK(!server_start(&o, &f->server, &err));
    server_ready(f->server, &(struct served){.engine = &f->engine,
                                             .vocab = f->vocab,
                                             .chat = f->chat,
                                             .alias = "m",
                                             .path = "m.gguf",
                                             .arch = "qwen35",
                                             .cache_policy = "hold",
                                             .n_parallel = 1,
                                             .n_vocab = vocab_size(f->vocab)});
}

static const char *const post_paths[] = {
    "/tokenize",       "/detokenize",          "/completion",
    "/v1/completions", "/v1/chat/completions", "/v1/responses",
    "/apply-template", "/v1/messages",         "/v1/messages/count_tokens"};

static inline void tear_down(struct fixture *f)
{
    server_stop(f->server, 0);
    chat_template_free(f->chat);
    vocab_close(f->vocab);
    gguf_close(f->gguf);
    buf_release(&f->image);
}

/* One POST; true when it was answered, or the client had gone. */
static inline bool post(struct fixture *f, const char *path, struct str body, int *status)
{
    struct http_req r = {.path = path, .body = body};
    (void)f;
    listening.fn(listening.ctx, &r);
    *status = r.status;
    return r.status || r.n_looks > 1;
}

#endif
