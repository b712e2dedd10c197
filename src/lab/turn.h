/* turn.h - lines become turns: one per request, in a form that no longer depends on the engine.
 *
 * A slot of llama.cpp and its relatives holds one token sequence and a ring of checkpoints on it.  The
 * builder follows both from the lines, so that at each divergence it knows which checkpoints there were,
 * which there had been, and who removed them.  What a log does not print is worked out where a rule
 * allows only one answer and marked as such (lcp_from, n_prompt_from); the rest stays -1.
 *
 * Memory: per process and slot, bounded; nothing grows with the log.
 */
#ifndef HOLDFAST_LAB_TURN_H
#define HOLDFAST_LAB_TURN_H

#include "lab/line.h"
#include "lab/unwrap.h"

enum outcome {
    OUT_UNKNOWN,  /* the log does not say */
    OUT_COLD,     /* the slot held nothing */
    OUT_APPEND,   /* went on where the slot stood */
    OUT_TRIMMED,  /* cut back to the common prefix without a checkpoint (no recurrent state) */
    OUT_RESTORED, /* from a checkpoint, or from a snapshot of a shared cache */
    OUT_FORCED,   /* full re-prefill, said so */
    OUT_CLEARED,  /* full re-prefill: tokens could not be truncated */
    OUT_ZERO_OVERLAP, /* full re-prefill: nothing in common with what the slot held; wipes it silently */
    OUT_SILENT_FULL, /* full re-prefill of a shared prefix, and the log says nothing of it */
    OUT_N
};
const char *outcome_name(enum outcome o);

/* Where the common prefix comes from. */
enum lcp_from {
    LCP_UNKNOWN,
    LCP_CACHE,   /* printed: "======== Cache" line, or a whole-turn line */
    LCP_NPAST,   /* printed: divergence line */
    LCP_AGAINST, /* printed: checkpoint search */
    LCP_SIM,     /* printed: "checking sim = s (L/P)" */
    LCP_RULE,    /* follows: an append, an empty slot, a silent wipe */
    LCP_ROUNDED  /* from a share printed with three decimals: near */
};
const char *lcp_from_name(enum lcp_from f);

enum cause {
    CAUSE_NONE,        /* nothing shared was evaluated again */
    CAUSE_BASELINE,    /* nothing worth a checkpoint was shared */
    CAUSE_PLACEMENT,   /* no checkpoint at or below the divergence had ever been made */
    CAUSE_RETENTION,   /* one had been made and was erased or evicted */
    CAUSE_GRANULARITY, /* restored, but the checkpoint lay below the divergence */
    CAUSE_REWIND, /* one lay exactly there and the engine's rule refuses it, or went back for one token */
    CAUSE_UNKNOWN,
    CAUSE_N
};
const char *cause_name(enum cause c);

enum { PROCESS_NAME_MAX = 112 };
enum { TURN_MAX_EVIDENCE = 6 };
struct evidence {
    uint32_t file;
    uint64_t line;
    const char *what; /* a fixed word or two */
};

struct turn {
    uint64_t seq; /* launch order, from 0 */
    uint32_t file, process, slot;
    int64_t task;
    uint32_t engines;
    uint64_t line; /* of the launch, or of the first line that spoke of it */
    enum time_kind time;
    double t, t_end; /* launch and last line; by time */

    bool launched;  /* its launch line is in the log */
    bool timed;     /* so is how much it evaluated */
    bool cancelled; /* by the client, before its timing */
    bool released;
    bool swapped;  /* the slot's content came out of the RAM cache for it */
    bool complete; /* the turn's own line said everything (holdfast, Ollama, LM Studio) */

    /* tokens; -1 where the log does not tell */
    int64_t n_prompt, held, lcp, start, evaluated, generated, held_after;
    enum lcp_from lcp_from;
    bool n_prompt_inferred, start_inferred;
    double prefill_ms, decode_ms; /* NaN where not printed */
    /* between two progress lines, of engines that print no timing: tokens and seconds */
    int64_t rate_tokens;
    double rate_s;
    bool mismatch; /* prompt length, re-entry and tokens evaluated do not add up */

    /* slot choice: shares of the prompt and of the slot's tokens, NaN; a candidate line's numbers, -1 */
    double pick_sim, pick_keep;
    bool picked_lru;
    int64_t sim_lcp, sim_prompt;
    bool verbose; /* the process prints its checkpoint lines */
    char why[64]; /* holdfast's own reason */

    bool forced, restored, cleared, refused, rewound; /* lines seen */
    int64_t restored_pos;                             /* pos_max of the restore, or -1 */
    double restore_ms, create_ms;
    uint32_t created, erased, evicted, thinned, n_create_ms;
    enum outcome outcome;

    /* cause.c */
    int64_t lost; /* shared tokens evaluated again; -1 unknown */
    enum cause cause;
    bool cause_inferred;
    const char *cause_why; /* the rule, in words */
    int64_t cause_task;    /* whose doing: erased by this task; -1 */
    int64_t cause_pos;     /* the checkpoint in question; -1 */
    uint32_t n_evidence;
    struct evidence evidence[TURN_MAX_EVIDENCE];
};

enum gone {
    GONE_NOT,
    GONE_ERASED,
    GONE_EVICTED,
    GONE_THINNED,
    GONE_RESET /* with its slot or process */
};

struct ckpt {
    int64_t pos; /* state after token pos: covers pos + 1 tokens */
    int64_t id;  /* holdfast's number of it, or -1 */
    double bytes;
    int64_t made_task, gone_task; /* -1 unknown */
    uint64_t made_line, gone_line;
    uint32_t made_file, gone_file;
    uint64_t made_seq, gone_seq; /* turns */
    double made_t, gone_t;       /* NaN without times */
    uint32_t hits;
    enum gone gone;
};

/* A sequence the slot held once, and its checkpoints, all gone since. */
struct lineage {
    int64_t held, deepest; /* tokens; deepest checkpoint's pos */
    int64_t by_task;       /* the turn that replaced it */
    uint64_t by_line;      /* its first erased line, or its launch */
    uint32_t by_file, n_ckpts;
    uint64_t seq;
};

enum { RING_MAX = 256, N_LINEAGES = 8 };
struct slot_state {
    uint32_t id;
    int64_t held; /* tokens in it; -1 unknown */
    /* every checkpoint of the present sequence was seen being made */
    bool lineage_whole;
    struct ckpt *ring, *ring0,
        *ghost; /* [RING_MAX]: now, at the launch, gone but on the present sequence */
    uint32_t n_ring, n_ring0, n_ghost;
    bool lineage_whole0;
    struct lineage old[N_LINEAGES];
    uint32_t n_old;
    bool open; /* turn below is not handed out yet */
    struct turn turn;
    uint64_t released_at; /* lines */
    /* slot choice, said before the launch */
    double pick_sim, pick_keep, t_last;
    bool picked_lru;
    int64_t sim_lcp, sim_prompt;
};

/* Tokens of the prompt that were not evaluated; -1 unknown. */
int64_t turn_reused(const struct turn *t);
/* What could have been reused: min(lcp, prompt - 1); the last token is always evaluated.  -1 unknown. */
int64_t turn_reach(const struct turn *t);
/* Shared tokens that were evaluated again: max(0, reach - reused); -1 unknown. */
int64_t turn_lost(const struct turn *t);

/* What is reported as it happens. */
enum turn_event {
    EV_FORCED,
    EV_RESTORED,
    EV_CREATED,
    EV_ERASED,
    EV_EVICTED,
    EV_THINNED,
    EV_CLEARED,
    EV_N
};

struct turn_sink {
    void *ctx;
    /* in launch order */
    void (*turn)(void *ctx, const struct turn *t);
    /* in log order: an event line, with bytes and milliseconds where printed (else NaN) */
    void (*event)(void *ctx, enum turn_event e, uint32_t file, uint32_t process, uint32_t slot,
                  const struct unwrapped *at, double bytes, double ms, int64_t pos);
    /* a printed common prefix */
    void (*lcp)(void *ctx, uint32_t slot, int64_t task, int64_t lcp, int64_t held,
                enum lcp_from from);
    /* a checkpoint's life is over, or the log is */
    void (*ckpt)(void *ctx, uint32_t process, uint32_t slot, const struct ckpt *c);
    /* a timing whose launch is not in the log; slot -1 where that is not said */
    void (*orphan)(void *ctx, uint32_t file, uint64_t line, int64_t slot, int64_t task, double ms,
                   int64_t n_tokens);
};

struct turns;
NODISCARD enum rc turns_new(const struct turn_sink *sink, struct turns **out, struct err *err);
void turns_free(struct turns *t);

/* One line; l NULL or LINE_UNKNOWN for a line no dialect knows.  False when the line was taken as quoted
 * prompt text.  RC_NOMEM only loses precision: a slot more than the table holds is not followed. */
bool turns_line(struct turns *t, uint32_t file, uint64_t line_no, const struct unwrapped *at,
                const struct line *l);
/* joined: the next file continues this one (rotation); else every process ends here. */
void turns_file_ends(struct turns *t, bool joined);
void turns_finish(struct turns *t);

uint32_t turns_n_processes(const struct turns *t);
const char *turns_process_name(const struct turns *t, uint32_t process);
/* Lines that were taken as quoted prompt text. */
uint64_t turns_n_echo(const struct turns *t);

/* Fills in lost, cause, cause_* and evidence from the turn and the slot as it stood at its launch.
 * cause.c. */
void cause_find(const struct slot_state *s, struct turn *t);

#endif
