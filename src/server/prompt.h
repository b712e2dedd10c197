/* prompt.h - the prompt field of a completion request, in every shape llama-server and OpenAI know:
 *
 *     "text"                          one prompt
 *     [1, 2, 3]                       one prompt of token ids
 *     [1, 2, "text", 3]               one prompt, mixed
 *     {"prompt_string": "text"}       one prompt
 *     ["a", "b"], [[1, 2], "b", ...]  several prompts
 *
 * Text is tokenised with control tokens recognised; a text at the beginning gets the BOS token where the
 * model asks for one.
 */
#ifndef HOLDFAST_SERVER_PROMPT_H
#define HOLDFAST_SERVER_PROMPT_H

#include "server/server_int.h"
#include "text/bpe.h"

enum { MAX_PROMPTS = 128 };

struct prompts {
    struct tokens *v;
    uint32_t n;
    bool several; /* an array of prompts was sent, be it of one */
    /* where the messages of a conversation begin; borrowed; of the one prompt there is then */
    const struct cache_hint *hints;
    uint32_t n_hints;
};

/* RC_ARG naming the field. */
NODISCARD enum rc prompts_read(const struct call *c, const char *field, struct prompts *out,
                               struct err *err);
void prompts_release(struct prompts *p);
/* One prompt: text, ids or mixed (the first four shapes, and a single one in an array of strings).
 * Appends to out. */
NODISCARD enum rc prompt_tokens(const struct call *c, const char *field, const json_t *v,
                                const struct bpe_opts *o, struct tokens *out, struct err *err);
/* The text of tokens, control tokens shown. */
void prompt_text(const struct call *c, const token *t, size_t n, struct buf *out);
/* What one token stands for, control tokens shown; not always whole characters. */
struct str token_bytes(const struct call *c, token t);

#endif
