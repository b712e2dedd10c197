/* told_int.h - the server of inproc_int.h, with a model that says what it is told.
 *
 *     inproc_set_up, told_open(template, server options)
 *     tell("text")       what comes next, then the end mark; while no request runs
 *     ask(&server, ...)
 *     inproc_close, told_tear_down
 */
#ifndef HOLDFAST_TESTS_E2E_TOLD_INT_H
#define HOLDFAST_TESTS_E2E_TOLD_INT_H

#include "inproc_int.h"

#include "text/bpe.h"

static struct tokens script;

static token say(void *ctx, const struct job_desc *d, uint32_t n)
{
    (void)ctx;
    (void)d;
    return n < script.n ? script.v[n] : vocab_eos(vocab);
}

/* The token that stands for one byte. */
static inline token byte_token(char c)
{
    for (token t = 0; t < (token)vocab_size(vocab); t++) {
        const struct str s = vocab_bytes(vocab, t, false);
        if (s.n == 1 && s.p[0] == c)
            return t;
    }
    fail_msg("no token stands for byte %d", c);
    return -1;
}

/* Cut into bytes, not as the tokenizer would; tags stay whole where the vocabulary has them. */
static inline void tell(const char *text)
{
    script.n = 0;
    for (const char *p = text; *p;) {
        size_t n = *p == '<' ? strcspn(p, ">") + 1 : 1;
        if (*p == '<' && (n > strlen(p) || vocab_find(vocab, (struct str){p, n}) < 0))
            n = 1;
        const token t = n > 1 ? vocab_find(vocab, (struct str){p, n}) : byte_token(*p);
        assert_true(tokens_add(&script, t));
        p += n;
    }
}

static inline void told_open(const char *template, const struct server_opts *so)
{
    const struct host_opts o = {.server = *so,
                                .n_threads = 1, /* more would wait for one another, not compute */
                                .n_ctx = 8192,
                                .cache_ram_mib = 512,
                                .say = say};
    inproc_open(template, &o);
}

static inline int told_tear_down(void **state)
{
    tokens_release(&script);
    return inproc_tear_down(state);
}

#endif
