/* vocab.h - the tokens of a model: texts, types, special ids, merges. */
#ifndef HOLDFAST_TEXT_VOCAB_H
#define HOLDFAST_TEXT_VOCAB_H

#include "base/err.h"
#include "base/str.h"
#include "gguf/gguf.h"

struct vocab;

enum token_type { /* the file's numbers */
                  TOKEN_NORMAL = 1,
                  TOKEN_UNKNOWN = 2,
                  TOKEN_CONTROL = 3,
                  TOKEN_USER = 4,
                  TOKEN_UNUSED = 5,
                  TOKEN_BYTE = 6
};

/* g is borrowed for the vocab's life. */
NODISCARD enum rc vocab_open(const struct gguf *g, struct vocab **out, struct err *err);
void vocab_close(struct vocab *v);
uint32_t vocab_size(const struct vocab *v);
struct str vocab_text(const struct vocab *v, token t); /* as in the file */
enum token_type vocab_type(const struct vocab *v, token t);
token vocab_find(const struct vocab *v, struct str text); /* -1 when there is none */
token vocab_bos(const struct vocab *v);                   /* -1 */
token vocab_eos(const struct vocab *v);                   /* -1 */
bool vocab_add_bos(const struct vocab *v);
/* Generation ends on it: eos, eot, <|im_end|>, <|endoftext|>, ... */
bool vocab_is_eog(const struct vocab *v, token t);
/* Bytes the token stands for: appended text of normal and byte tokens; user-defined as is; control and
 * unknown only with special.  Borrowed; n may be 0. */
struct str vocab_bytes(const struct vocab *v, token t, bool special);
struct str vocab_chat_template(const struct vocab *v); /* n = 0 when absent */

#endif
