/* replay.h - what the model wrote, kept to be put back where a client sends its parsed form again.
 *
 * A reply leaves as reasoning, content and calls; the next request brings these back as JSON, often
 * changed: reasoning dropped, keys of arguments in another order, white space gone.  The template then
 * writes other text than the model did, its tokens differ from those in the cache, and all that follows
 * is evaluated again.  So the tokens of each answer are kept, under a key made of the whole conversation
 * before it and of what it said, and take the place of the template's text when
 *
 *   1. the client's message says the same: content but for white space at its ends, calls with their
 *      ids, names and arguments as JSON values, reasoning the same (in its field, or in front of the
 *      content in <think> tags) or dropped;
 *   2. the text before it is the very text the answer was generated after;
 *   3. the template shows what the model wrote: the message begins with what asked for the answer, and
 *      reasoning, if there was some, is not dropped.  (keep_thinking leaves this rule out.)
 *
 * By the key and (2) nothing of one conversation gets into another.
 *
 *     replay_look       the client's messages: find answers, put dropped reasoning back
 *     chat_render
 *     replay_splice     tokens for text, where (2) and (3) hold
 *     ... generate ...
 *     replay_keep
 *
 * Any thread.
 */
#ifndef HOLDFAST_SERVER_REPLAY_H
#define HOLDFAST_SERVER_REPLAY_H

#include <xxhash.h>

#include "text/chat.h"

struct replay;
struct replay_answer; /* one of the store's; counted */

struct replay_opts {
    uint64_t bytes;     /* what answers may take; the least recently used go first */
    bool keep_thinking; /* also where the template drops it */
};
struct replay *replay_new(const struct replay_opts *o);
void replay_free(struct replay *r);

struct replay_stats {
    uint64_t n, bytes;
};
struct replay_stats replay_stats(struct replay *r);

/* What is known of one request's conversation.  Zero-initialise. */
struct replay_look {
    struct replay_answer **found; /* [n] of each message; NULL: none */
    size_t n;
    XXH128_hash_t said; /* key of the conversation as it came */
};

/* *messages (OpenAI's shape; replaced by a changed copy where reasoning is put back) is checked by
 * nobody yet.  RC_NOMEM. */
NODISCARD enum rc replay_look(struct replay *r, json_t **messages, struct replay_look *out,
                              struct err *err);
/* RC_NOMEM. */
NODISCARD enum rc replay_splice(struct replay *r, const struct replay_look *l,
                                const struct vocab *v, struct chat_prompt *p, struct err *err);
void replay_look_release(struct replay *r, struct replay_look *l);

/* A complete answer to the conversation that l and p are of.  message: as a client will send it,
 * reasoning apart; tokens [n] as they were sampled, the end mark too if there was one.  Memory
 * running out costs the answer its place, no more. */
void replay_keep(struct replay *r, const struct replay_look *l, const struct vocab *v,
                 const struct chat_prompt *p, const json_t *message, struct str reasoning,
                 const token *tokens, size_t n);

#endif
