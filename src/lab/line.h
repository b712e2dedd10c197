/* line.h - what one log line says, whatever engine wrote it.
 *
 * A dialect is a table of line shapes (read_*.c).  A shape is a pattern over the message, the kind of line
 * it is, and which engines print it from when until when: so each recognised line also narrows down who
 * wrote the log.
 *
 *     {LINE_CREATE, "created context checkpoint {n} of {max} (", .pairs = true, ENG_ALL, 20251009, 0}
 *
 * In a pattern a blank matches any run of blanks (or none), {x} a number that goes to field x, and
 * everything else itself.  The message must begin with the pattern; with .pairs the rest is read as
 * "key = value" pairs by name, so that forks may add keys.
 */
#ifndef HOLDFAST_LAB_LINE_H
#define HOLDFAST_LAB_LINE_H

#include "base/err.h"
#include "base/str.h"

enum line_kind {
    LINE_UNKNOWN = 0,
    LINE_NOISE, /* recognised, says nothing about the cache */
    LINE_BEGIN, /* a server starts: its slots are empty */
    LINE_LAUNCH,
    LINE_PROMPT,  /* prompt length */
    LINE_DIVERGE, /* n_past = common prefix, held = tokens in the slot */
    LINE_CACHE,   /* the same, for every turn, without a slot (ik, PXA) */
    LINE_OFFER,   /* what the slot holds when a prompt is held against the RAM cache (ik, PXA) */
    LINE_FORCE,
    LINE_CHECK,   /* a checkpoint is tried against the common prefix */
    LINE_RESTORE, /* pos_max, n_past = tokens that need not be evaluated */
    LINE_REFUSED, /* a restore that failed */
    LINE_CREATE,
    LINE_ERASE,
    LINE_EVICT,    /* the ring was full */
    LINE_THIN,     /* too close to another one, or replaced by one at the same place */
    LINE_CLEAR,    /* everything lost: tokens could not be truncated */
    LINE_REENTRY,  /* n_past = where evaluation starts (the first one after a launch) */
    LINE_REWIND,   /* at least one token must be evaluated */
    LINE_PROGRESS, /* prefill so far */
    LINE_TIMING,   /* the next unprefixed timings belong to this slot and task */
    LINE_EVAL,     /* prompt: ms, n_tokens evaluated */
    LINE_DECODE,   /* generation: ms, n_tokens */
    LINE_RELEASE,  /* held = tokens in the slot afterwards */
    LINE_CANCEL,
    LINE_PICK_LCP, /* slot choice: sim = share of the prompt, keep = share of what the slot holds */
    LINE_PICK_LRU, /* t_last < 0: never used */
    LINE_PICK,     /* by id, by cheapest cache */
    LINE_PICK_SIM, /* a candidate: n_past of n_prompt */
    LINE_PARK,     /* the slot's prompt goes to the RAM cache */
    LINE_SWAP,     /* another prompt comes out of it: sim, keep */
    LINE_FREED,    /* the slot's prompt is given up */
    LINE_TURN,     /* a whole turn on one line (holdfast, Ollama, LM Studio) */
    LINE_HTTP,
    LINE_ECHO, /* prompt text follows: it may quote a log */
    LINE_N_KINDS
};
const char *line_kind_name(enum line_kind k);

enum engine_bit {
    ENG_LLAMA = 1 << 0,
    ENG_IK = 1 << 1,
    ENG_PXA = 1 << 2,
    ENG_OLLAMA =
        1 << 3, /* its own runners; when it starts llama-server the lines are llama.cpp's */
    ENG_LMSTUDIO = 1 << 4, /* likewise */
    ENG_HOLDFAST = 1 << 5,
    ENG_SLOTS = ENG_LLAMA | ENG_IK | ENG_PXA, /* share the slot line */
    ENG_KV = ENG_IK | ENG_PXA,
    ENG_N = 6
};
/* "llama.cpp", "ik_llama.cpp or PXA"; out has room for 96. */
void engine_names(uint32_t engines, char out[96]);

struct line {
    enum line_kind kind;
    uint32_t engines;     /* who prints such a line */
    int32_t since, until; /* yyyymmdd; 0: open */
    int32_t slot;         /* -1: not said */
    int64_t task;         /* -1: not said */
    /* -1 where the line does not say it */
    int64_t n_prompt, n_past, held, pos_min, pos_max, n_tokens, n, max, pos_next, lcp0;
    /* NaN where the line does not say it */
    double ms, mib, sim, keep, t_last, unix_s, ms2;
    bool prompt_end, boundary;
    struct str why; /* holdfast: why not more was reused; borrowed from the line */
};

struct shape {
    enum line_kind kind;
    const char *pattern;
    uint32_t engines;
    int32_t since, until; /* yyyymmdd, 0 open */
    bool pairs;
};

enum form {
    FORM_SLOT,  /* "slot f: id N | task M | message" */
    FORM_SRV,   /* "srv  f: message" */
    FORM_KV,    /* "INFO [f] message | tid=... key=value", or the same as one JSON object */
    FORM_SLOG,  /* "time=... level=... msg=\"message\" key=value" */
    FORM_EVENT, /* {"t":...,"ev":"message",...}: holdfast's events */
    FORM_RAW,   /* anything else, from its first character on */
    FORM_N
};

struct dialect {
    enum form form;
    const struct shape *shapes;
    size_t n;
};
/* Each read_*.c has the tables of one engine. */
extern const struct dialect dialect_llama[4], dialect_ik[3], dialect_pxa[3], dialect_holdfast[2],
    dialect_ollama[2], dialect_lmstudio[1];

/* Reads the body of a line.  False when no shape fits (kind LINE_UNKNOWN; engines may still be set by
 * the form).  Never stores or returns prompt text. */
bool line_read(struct str body, struct line *out);

/* The message against one pattern; *rest: what follows it. For tests. */
bool shape_match(const char *pattern, struct str msg, struct line *out, struct str *rest);

#endif
