/* trace.h - a workload: when which prompts came, as runs of opaque content.  docs/formats/trace.md
 *
 * A prompt is a list of segments (cid, len): the first len tokens of an unbounded stream of tokens named cid.
 * Two tokens are equal if and only if stream and index are.  A request may begin with the first segments of an
 * earlier one, so a trace is small; tokens are made when asked for.
 */
#ifndef HOLDFAST_LAB_TRACE_H
#define HOLDFAST_LAB_TRACE_H

#include "cache/cache.h"

struct trace_seg {
    int64_t cid;
    uint32_t len;
    char kind; /* a message starts here: s u a o v, or g for the generation prompt; 0 = none */
};

struct trace_req {
    double t;              /* seconds from the start */
    uint32_t base, n_base; /* begins with the first n_base segments of request base */
    uint32_t first,
        n_own; /* segments of its own; the last one is what was generated if n_gen > 0 */
    uint32_t n_prompt, n_gen; /* tokens */
    uint32_t stream;          /* index into trace.streams; for reports only */
};

struct trace {
    char *name, *source;
    struct trace_req *reqs;
    uint32_t n;
    struct trace_seg *segs;
    size_t n_segs;
    char **streams;
    uint32_t n_streams;
    uint64_t prompt_tokens;
    size_t reqs_cap, segs_cap, streams_cap;
};

/* Reads a file, line by line; "-" is standard input.  RC_FORMAT and RC_LIMIT name the line. */
NODISCARD enum rc trace_open(const char *path, struct trace **out, struct err *err);
void trace_close(struct trace *t);

/* The first n requests (0 = all) with every segment's length times scale, at least one token.  Overlaps scale with them;
 * two prompts that part inside a segment part at least a token after it begins, or together.  RC_LIMIT, RC_NOMEM. */
NODISCARD enum rc trace_shrink(struct trace *t, uint32_t n, double scale, struct err *err);

/* One request made real; reused from request to request. */
struct trace_tokens {
    token *seq; /* [n_prompt + n_gen] */
    size_t seq_cap;
    uint32_t n_prompt, n_gen;
    struct cache_hint *hints;
    size_t hints_cap;
    uint32_t n_hints;
    const struct trace_seg **list; /* its segments in order */
    size_t list_cap;
    uint32_t n_list;
};

/* n_vocab 0: token ids are 31-bit hashes, so that unequal tokens practically never meet.  Else ids in
 * [0, n_vocab), for a real model. */
NODISCARD enum rc trace_expand(const struct trace *t, uint32_t i, uint32_t n_vocab,
                               struct trace_tokens *out, struct err *err);
void trace_tokens_release(struct trace_tokens *x);

#endif
