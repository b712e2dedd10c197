#include "cache/hazard.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* What a kind is worth before anything is known, per request at the age of one. */
static const double prior_of_kind[CUT_N_KINDS] = {
    [CUT_BRANCH] = .08, [CUT_SIGNATURE] = .04, [CUT_GEN_END] = .06, [CUT_PROMPT] = .06,
    [CUT_SYSTEM] = .04, [CUT_MESSAGE] = .012,  [CUT_LADDER] = .012, [CUT_GRID] = .004,
    [CUT_PINNED] = .08, [CUT_STOPPED] = .06,
};
static const double age_slope = .3; /* of a kind that comes back */
static const double slope_weight = 20, level_weight = 20, prior_weight = 4; /* in hits */
static const double family_weight_min = 20, family_weight_max = 1000;       /* in exposure */

uint32_t hazard_age(uint32_t age)
{
    const uint32_t octave = age ? 31 - (uint32_t)__builtin_clz(age) : 0;
    return MIN(octave / 2, HAZARD_AGES - 1);
}

uint32_t hazard_situation(enum cut_kind kind, uint32_t hits, bool tip, uint32_t age)
{
    const uint32_t h = MIN(hits, HAZARD_HITS - 1);
    return (((uint32_t)kind * HAZARD_HITS + h) * 2 + tip) * HAZARD_AGES + hazard_age(age);
}

static enum cut_kind kind_of(uint32_t situation)
{
    return situation / (HAZARD_AGES * 2 * HAZARD_HITS);
}

static double base(const struct hazard *z, uint32_t situation)
{
    const enum cut_kind k = kind_of(situation);
    const uint32_t age = situation % HAZARD_AGES;
    const uint32_t hits = situation / (HAZARD_AGES * 2) % HAZARD_HITS;
    return prior_of_kind[k] * (1 + hits) / (1 + z->kinds[k].slope * (double)(1u << 2 * age));
}

void hazard_begin(struct hazard *z)
{
    double hits[CUT_N_KINDS] = {0}, expected[CUT_N_KINDS] = {0};
    for (uint32_t s = 0; s < HAZARD_SITUATIONS; s++)
        hits[kind_of(s)] += z->cells[s].hits;
    for (uint32_t k = 0; k < CUT_N_KINDS; k++)
        z->kinds[k].slope = age_slope * hits[k] / (hits[k] + slope_weight);
    for (uint32_t s = 0; s < HAZARD_SITUATIONS; s++)
        expected[kind_of(s)] += z->cells[s].exposure * base(z, s);
    for (uint32_t k = 0; k < CUT_N_KINDS; k++)
        z->kinds[k].level = (hits[k] + level_weight) / (expected[k] + level_weight);
}

bool hazard_init(struct hazard *z)
{
    *z = (struct hazard){.used = HAZARD_SITUATIONS, .index_cap = 1024};
    z->index = mem_try_array(z->index_cap, sizeof *z->index);
    if (!z->index || !mem_grow(&z->cells, &z->cells_cap, HAZARD_SITUATIONS, sizeof *z->cells)) {
        hazard_release(z);
        return false;
    }
    memset(z->cells, 0, HAZARD_SITUATIONS * sizeof *z->cells);
    for (uint32_t s = 0; s < HAZARD_SITUATIONS; s++)
        z->cells[s].situation = s;
    hazard_begin(z);
    return true;
}

void hazard_release(struct hazard *z)
{
    mem_free(z->cells);
    mem_free(z->index);
    *z = (struct hazard){0};
}

uint64_t hazard_bytes(const struct hazard *z)
{
    return z->cells_cap * sizeof *z->cells + z->index_cap * sizeof *z->index;
}

static uint32_t slot_of(const struct hazard *z, uint64_t family, uint32_t situation)
{
    const uint32_t mask = z->index_cap - 1;
    uint64_t x = (family + situation) * UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t s = (uint32_t)(x ^ x >> 32) & mask;; s = (s + 1) & mask) {
        const uint32_t id = z->index[s];
        if (!id || (z->cells[id].family == family && z->cells[id].situation == situation))
            return s;
    }
}

static void reindex(struct hazard *z)
{
    memset(z->index, 0, z->index_cap * sizeof *z->index);
    for (uint32_t i = HAZARD_SITUATIONS; i < z->used; i++)
        if (z->cells[i].family)
            z->index[slot_of(z, z->cells[i].family, z->cells[i].situation)] = i;
}

/* Forgets cells no live entry is in, longest unused first, until a quarter is free or none is left. */
static void forget(struct hazard *z, uint32_t now)
{
    uint32_t oldest = now;
    for (uint32_t i = HAZARD_SITUATIONS; i < z->used; i++)
        if (z->cells[i].family && !z->cells[i].refs)
            oldest = MIN(oldest, z->cells[i].touched);
    for (uint32_t keep = now - oldest; z->n_family > HAZARD_MAX_CELLS / 4 * 3; keep /= 2) {
        for (uint32_t i = HAZARD_SITUATIONS; i < z->used; i++) {
            struct hazard_cell *x = &z->cells[i];
            if (!x->family || x->refs || now - x->touched < keep)
                continue;
            *x = (struct hazard_cell){.situation = z->free};
            z->free = i;
            z->n_family--;
        }
        if (!keep)
            break;
    }
    reindex(z);
}

/* The family's cell, made when there is none; 0 when it cannot be. */
static uint32_t family_cell(struct hazard *z, uint64_t family, uint32_t situation, uint32_t now)
{
    uint32_t id = z->index[slot_of(z, family, situation)];
    if (id)
        return id;
    if (z->n_family >= HAZARD_MAX_CELLS)
        forget(z, now);
    if (z->n_family >= HAZARD_MAX_CELLS)
        return 0;
    if ((z->n_family + 1) * 2 > z->index_cap) {
        uint32_t *bigger = mem_try_array((size_t)z->index_cap * 2, sizeof *bigger);
        if (!bigger)
            return 0;
        mem_free(z->index);
        z->index = bigger;
        z->index_cap *= 2;
        reindex(z);
    }
    id = z->free;
    if (id) {
        z->free = z->cells[id].situation;
    } else {
        if (!mem_grow(&z->cells, &z->cells_cap, (size_t)z->used + 1, sizeof *z->cells))
            return 0;
        id = z->used++;
    }
    z->cells[id] = (struct hazard_cell){.family = family, .situation = situation, .touched = now};
    z->n_family++;
    z->index[slot_of(z, family, situation)] = id;
    return id;
}

uint32_t hazard_ref(struct hazard *z, uint64_t family, uint32_t situation, uint32_t now)
{
    uint32_t id = family ? family_cell(z, family, situation, now) : 0;
    if (!id)
        id = situation;
    z->cells[id].refs++;
    return id;
}

void hazard_unref(struct hazard *z, uint32_t cell)
{
    z->cells[cell].refs--;
}

static double rate_of_all(const struct hazard *z, uint32_t situation)
{
    const struct hazard_cell *x = &z->cells[situation];
    const double p = base(z, situation) * z->kinds[kind_of(situation)].level;
    return (x->hits + prior_weight) / (x->exposure + prior_weight / p);
}

static double rate_in(const struct hazard_cell *x, double all)
{
    const double w = fmin(fmax(1 / all, family_weight_min), family_weight_max);
    return (x->hits + w * all) / (x->exposure + w);
}

double hazard_of(const struct hazard *z, uint64_t family, uint32_t situation)
{
    const double all = rate_of_all(z, situation);
    const uint32_t id = family ? z->index[slot_of(z, family, situation)] : 0;
    return id ? rate_in(&z->cells[id], all) : all;
}

double hazard_rate(struct hazard *z, uint32_t cell, uint32_t now)
{
    struct hazard_cell *x = &z->cells[cell];
    if (x->epoch != now) {
        x->epoch = now;
        x->rate = rate_of_all(z, x->situation);
        if (x->family)
            x->rate = rate_in(x, x->rate);
    }
    return x->rate;
}

void hazard_book(struct hazard *z, uint64_t family, uint32_t situation, double hits,
                 double exposure, uint32_t now)
{
    struct hazard_cell *x = &z->cells[situation];
    x->hits += hits;
    x->exposure += exposure;
    const uint32_t id = family ? family_cell(z, family, situation, now) : 0;
    if (!id)
        return;
    x = &z->cells[id];
    x->hits += hits;
    x->exposure += exposure;
    x->touched = now;
}

/* -- for the next start ---------------------------------------------------------------------- */

enum { CELL_BYTES = 32, COUNTS_BYTES = 16 };

void hazard_save(const struct hazard *z, uint32_t now, struct buf *b)
{
    pack_u32(b, CUT_N_KINDS);
    pack_u32(b, HAZARD_HITS);
    pack_u32(b, HAZARD_AGES);
    pack_u32(b, z->n_family);
    for (uint32_t i = 0; i < z->used; i++) {
        const struct hazard_cell *x = &z->cells[i];
        if (i >= HAZARD_SITUATIONS) {
            if (!x->family)
                continue;
            pack_u64(b, x->family);
            pack_u32(b, x->situation);
            pack_u32(b, now - x->touched);
        }
        pack_f64(b, x->hits);
        pack_f64(b, x->exposure);
    }
}

static bool load_counts(struct unpack *u, struct hazard_cell *x)
{
    x->hits = unpack_f64(u);
    x->exposure = unpack_f64(u);
    return isfinite(x->hits) && isfinite(x->exposure) && x->hits >= 0 && x->exposure >= 0;
}

bool hazard_load(struct hazard *z, uint32_t now, struct unpack *u)
{
    const uint32_t kinds = unpack_u32(u), hits = unpack_u32(u), ages = unpack_u32(u);
    const bool ours = kinds == CUT_N_KINDS && hits == HAZARD_HITS && ages == HAZARD_AGES;
    const uint32_t n = unpack_u32(u);
    if (!ours || n > HAZARD_MAX_CELLS || !unpack_fits(u, HAZARD_SITUATIONS, COUNTS_BYTES))
        return false;
    for (uint32_t s = 0; s < HAZARD_SITUATIONS; s++)
        if (!load_counts(u, &z->cells[s]))
            return false;
    if (!unpack_fits(u, n, CELL_BYTES))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t family = unpack_u64(u);
        const uint32_t situation = unpack_u32(u), age = unpack_u32(u);
        if (!family || situation >= HAZARD_SITUATIONS)
            return false;
        const uint32_t id = family_cell(z, family, situation, now - MIN(age, now));
        if (!id || !load_counts(u, &z->cells[id]))
            return false;
    }
    hazard_begin(z);
    return true;
}
