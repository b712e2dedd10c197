/* hazard.h - how likely is a hit in the next request?  Learned from every entry, live or ghost.
 *
 * An entry's situation is (kind, hits so far, tip or not, age in requests); in each situation entries spend
 * time (exposure, one per entry and request) and now and then are hit.  Counts are kept over all traffic and
 * per family, and shrunk towards one another:
 *
 *     base = chance[kind] (1 + hits so far) / (1 + slope 4^class of age)
 *     p = base (H + 20) / (E + 20)                              before s itself was seen
 *     g = (hits[s] + 4) / (exposure[s] + 4 / p)                over all traffic
 *     h = (hits[f,s] + w g) / (exposure[f,s] + w)              in family f, w = 1 / g within 20 .. 1000
 *
 * so that a family seen once has the habits of all, and one seen often its own.  w is the time in which all
 * traffic would see one hit: with a fixed weight, one lucky hit of a conversation that returns every few
 * hundred requests makes its family look a hundred times better than it is.
 *
 * H are the hits of all entries of the kind, E is what base foretold (exposure times base), slope = .3 H / (H + 20).
 * base says more of how situations compare than of how high chances are, so the level is learned apart, by kind;
 * and what is foretold of a situation weighs 4 hits, however rare they are.  That chances fall with age is believed
 * as far as something of the kind has come back: from exposure alone what is old looks worse the longer nobody
 * comes back for anything, and what came just now would displace what is old and large, request by request
 * (sim_test: requests nobody comes back for).
 */
#ifndef HOLDFAST_CACHE_HAZARD_H
#define HOLDFAST_CACHE_HAZARD_H

#include "base/pack.h"
#include "cache/cache.h"

enum {
    HAZARD_AGES = 7, /* age 1..3, 4..15, .. 1024..4095, older */
    HAZARD_HITS = 3, /* 0, 1, more */
    HAZARD_SITUATIONS = CUT_N_KINDS * HAZARD_HITS * 2 * HAZARD_AGES,
    HAZARD_MAX_CELLS = 1 << 16 /* families' cells; the longest unused go first */
};

struct hazard_cell {
    uint64_t family;
    double hits, exposure;
    double rate;      /* as of epoch */
    uint32_t epoch;   /* request for which rate was computed */
    uint32_t touched; /* request that last booked here */
    uint32_t refs;    /* live entries in this situation */
    uint32_t situation;
};

struct hazard {
    struct hazard_cell *cells; /* [situation] all traffic, after those the families' */
    size_t cells_cap;
    uint32_t used, free, n_family;
    uint32_t *index; /* (family, situation) -> cell */
    uint32_t index_cap;
    struct {
        double level, slope;
    } kinds[CUT_N_KINDS]; /* as of hazard_begin */
};

NODISCARD bool hazard_init(struct hazard *z);
void hazard_release(struct hazard *z);
uint64_t hazard_bytes(const struct hazard *z);

/* A request begins: levels and slopes are what was counted until now. */
void hazard_begin(struct hazard *z);

/* Index of the age bucket, age in requests. */
uint32_t hazard_age(uint32_t age);
uint32_t hazard_situation(enum cut_kind kind, uint32_t hits, bool tip, uint32_t age);

/* A reference to the cell of family (0 = none) in a situation; when memory is out, all traffic's. */
uint32_t hazard_ref(struct hazard *z, uint64_t family, uint32_t situation, uint32_t now);
void hazard_unref(struct hazard *z, uint32_t cell);
/* h of the cell, the same throughout one request (now). */
double hazard_rate(struct hazard *z, uint32_t cell, uint32_t now);
/* h without a cell, as the counts are. */
double hazard_of(const struct hazard *z, uint64_t family, uint32_t situation);
/* Adds to the counts of all traffic and of the family. */
void hazard_book(struct hazard *z, uint64_t family, uint32_t situation, double hits,
                 double exposure, uint32_t now);

/* All counts; now: the request they are as of.  docs/formats/cache-dir.md has the bytes. */
void hazard_save(const struct hazard *z, uint32_t now, struct buf *b);
/* Into one just made, the requests so far being now again.  False, and z to be released, when the bytes are none of
 * hazard_save, of other situations, or memory is out. */
NODISCARD bool hazard_load(struct hazard *z, uint32_t now, struct unpack *u);

#endif
