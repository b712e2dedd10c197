#include "lab/legacy_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

void legacy_defaults(struct legacy_opts *o, enum legacy_family family, int32_t date)
{
    *o = (struct legacy_opts){.family = family,
                              .date = date,
                              .batch = 2048,
                              .ubatch = 512,
                              .n_slots = 1,
                              .ring = 32,
                              .interval = 512,
                              .tolerance = 5,
                              .prompt_policy = family == LEGACY_PXA,
                              .hybrid_usable = family == LEGACY_PXA,
                              .cram_mib = 8192,
                              .snap_bytes =
                                  62809 * KIB + 832, /* 30 layers of the 35B-A3B geometry */
                              .token_bytes = 20480};
    if (family == LEGACY_PXA)
        o->cram_mib = 0; /* off for models with recurrent state unless asked for */
    if (family == LEGACY_LLAMA) {
        o->evict = EVICT_FIFO;
        o->ring = date < 20251009 ? 3 : date < 20260306 ? 8 : 32;
        o->min_step = date < 20260623 ? 256 : 8192;
        if (date < 20251009)
            o->cram_mib = 0;
    }
}

/* ---- rings ------------------------------------------------------------------------------------ */

uint64_t slot_bytes(const struct legacy *l, const struct slot *s)
{
    return (uint64_t)s->n * l->o.token_bytes + (uint64_t)(s->n_ring + 1) * l->o.snap_bytes;
}

void ring_erase_above(struct legacy *l, struct slot *s, int64_t limit)
{
    for (uint32_t i = 0; i < s->n_ring;) {
        if ((int64_t)s->ring[i].pos <= limit) {
            i++;
            continue;
        }
        slot_remove_mark(s, i);
        l->out->n_erased++;
    }
}

void note_made(struct legacy *l, uint32_t pos)
{
    if (l->out->n_made < LEGACY_MAX_MADE)
        l->out->made[l->out->n_made] = pos;
    l->out->n_made++;
}

enum rc ring_append(struct legacy *l, struct slot *s, uint32_t pos, struct err *err)
{
    if (!slot_add_mark(s, pos, l->request))
        return err_set(err, RC_NOMEM, "no memory for a checkpoint");
    note_made(l, pos);
    return RC_OK;
}

/* ---- RAM store ------------------------------------------------------------------------------- */

void parked_remove(struct legacy *l, size_t i)
{
    slot_release(&l->parked[i]);
    memmove(l->parked + i, l->parked + i + 1, (l->n_parked - i - 1) * sizeof *l->parked);
    l->n_parked--;
}

enum rc park(struct legacy *l, const struct slot *s, struct err *err)
{
    for (size_t i = 0; i < l->n_parked; i++) {
        const struct slot *p = &l->parked[i];
        if (p->n >= s->n && common_prefix(p->seq, p->n, s->seq, s->n) == s->n)
            return RC_OK;
    }
    for (size_t i = l->n_parked; i-- > 0;) {
        const struct slot *p = &l->parked[i];
        if (p->n < s->n && common_prefix(p->seq, p->n, s->seq, s->n) == p->n)
            parked_remove(l, i);
    }
    struct slot copy = {.n_ring = s->n_ring};
    enum rc rc = slot_set(&copy, s->seq, s->n, err);
    if (!rc && (!mem_grow(&copy.ring, &copy.ring_cap, MAX(s->n_ring, 1u), sizeof *copy.ring) ||
                !mem_grow(&l->parked, &l->parked_cap, l->n_parked + 1, sizeof *l->parked)))
        rc = err_set(err, RC_NOMEM, "no memory for a parked prompt");
    if (rc) {
        slot_release(&copy);
        return rc;
    }
    if (s->n_ring)
        memcpy(copy.ring, s->ring, s->n_ring * sizeof *s->ring);
    l->parked[l->n_parked++] = copy;
    l->out->saved = true;
    return RC_OK;
}

void parked_take(struct legacy *l, size_t i, struct slot *s)
{
    const uint64_t used = s->used;
    slot_release(s);
    *s = l->parked[i];
    s->used = used;
    l->parked[i] = (struct slot){0};
    parked_remove(l, i);
    l->out->swapped = true;
}

void parked_trim(struct legacy *l)
{
    uint64_t total = 0;
    for (size_t i = 0; i < l->n_parked; i++)
        total += slot_bytes(l, &l->parked[i]);
    while (l->n_parked > 1 && total > (uint64_t)l->o.cram_mib * MIB) {
        total -= slot_bytes(l, &l->parked[0]);
        parked_remove(l, 0);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

enum rc legacy_new(const struct legacy_opts *o, struct legacy **out, struct err *err)
{
    if (!o->n_slots || o->n_slots > 1024 || !o->batch || !o->ring)
        return err_set(err, RC_ARG, "slots, batch and ring must be at least 1");
    struct legacy *l = mem_try_zalloc(sizeof *l);
    if (l)
        l->slots = mem_try_array(o->n_slots, sizeof *l->slots);
    if (!l || !l->slots) {
        legacy_free(l);
        return err_set(err, RC_NOMEM, "no memory for %u slots", o->n_slots);
    }
    l->o = *o;
    *out = l;
    return RC_OK;
}

void legacy_free(struct legacy *l)
{
    if (!l)
        return;
    for (uint32_t i = 0; l->slots && i < l->o.n_slots; i++)
        slot_release(&l->slots[i]);
    while (l->n_parked)
        parked_remove(l, l->n_parked - 1);
    mem_free(l->slots);
    mem_free(l->parked);
    mem_free(l);
}

enum rc legacy_request(struct legacy *l, const token *seq, uint32_t n_prompt, uint32_t n_gen,
                       const struct cache_hint *hints, uint32_t n_hints, struct legacy_turn *out,
                       struct err *err)
{
    if (!n_prompt)
        return err_set(err, RC_ARG, "a prompt of no tokens");
    *out = (struct legacy_turn){.restored = -1};
    l->out = out;
    l->request++;
    struct slot *s;
    enum rc rc = l->o.family == LEGACY_LLAMA ? choose_llama(l, seq, n_prompt, &s, err)
                                             : choose_pxa(l, seq, n_prompt, &s, err);
    if (rc)
        return rc;
    s->used = l->request;
    out->slot = (uint32_t)(s - l->slots);
    out->held = s->n;
    out->lcp = common_prefix(s->seq, s->n, seq, n_prompt);
    rc = l->o.family == LEGACY_LLAMA ? serve_llama(l, s, seq, n_prompt, n_gen, hints, n_hints, err)
                                     : serve_pxa(l, s, seq, n_prompt, n_gen, err);
    out->processed = n_prompt - out->reused;
    return rc;
}

uint32_t legacy_ring(const struct legacy *l, uint32_t slot, uint32_t *pos, uint32_t max)
{
    if (slot >= l->o.n_slots)
        return 0;
    const struct slot *s = &l->slots[slot];
    for (uint32_t i = 0; i < s->n_ring && i < max; i++)
        pos[i] = s->ring[i].pos;
    return s->n_ring;
}

enum rc legacy_run(const struct trace *t, const struct legacy_opts *o, uint32_t *reused,
                   struct legacy_result *out, struct err *err)
{
    const uint64_t begin = clock_mono_ns();
    struct trace_tokens x = {0};
    struct legacy *l;
    *out = (struct legacy_result){0};
    enum rc rc = legacy_new(o, &l, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < t->n && !rc; i++) {
        struct legacy_turn turn;
        rc = trace_expand(t, i, 0, &x, err);
        if (!rc)
            rc = legacy_request(l, x.seq, x.n_prompt, x.n_gen, x.hints, x.n_hints, &turn, err);
        if (rc)
            break;
        out->prompt_tokens += x.n_prompt;
        out->reused_tokens += turn.reused;
        out->verdicts[turn.verdict]++;
        out->made += turn.n_made;
        out->erased += turn.n_erased;
        out->evicted += turn.n_evicted;
        out->thinned += turn.n_thinned;
        out->swaps += turn.swapped;
        if (reused)
            reused[i] = turn.reused;
    }
    trace_tokens_release(&x);
    legacy_free(l);
    out->seconds = (double)(clock_mono_ns() - begin) * 1e-9;
    return rc;
}

/* ---- names ----------------------------------------------------------------------------------- */

enum { NEWEST = 20260927 };

static const char *const names[] = {"pxa",
                                    "pxa-policy0",
                                    "pxa-end",
                                    "pxa-both",
                                    "pxa-policy0-cram",
                                    "ik",
                                    "ik-cram0",
                                    "llama",
                                    "llama-20251009",
                                    "llama-20260320",
                                    "llama-20260623",
                                    "llama-20260712"};

const char *legacy_name_at(size_t i)
{
    return i < COUNT_OF(names) ? names[i] : NULL;
}

bool legacy_by_name(const char *name, struct legacy_opts *o)
{
    char base[40];
    uint64_t slots = 1;
    const char *x = strrchr(name, 'x');
    size_t n = strlen(name);
    if (x && x > name && x[1] >= '1' && x[1] <= '9') {
        if (!str_to_u64(x + 1, &slots) || slots > 64)
            return false;
        n = (size_t)(x - name);
    }
    if (n >= sizeof base)
        return false;
    memcpy(base, name, n);
    base[n] = 0;
    if (!strncmp(base, "pxa", 3)) {
        legacy_defaults(o, LEGACY_PXA, 0);
        const char *lever = base + 3;
        if (!strcmp(lever, "-policy0") || !strcmp(lever, "-both") ||
            !strcmp(lever, "-policy0-cram"))
            o->prompt_policy = false;
        else if (strcmp(lever, "-end") != 0 && strcmp(lever, "-cram") != 0 && *lever)
            return false;
        o->prompt_end = !strcmp(lever, "-end") || !strcmp(lever, "-both");
        if (strstr(lever, "-cram"))
            o->cram_mib = 8192;
    } else if (!strcmp(base, "ik") || !strcmp(base, "ik-cram0")) {
        legacy_defaults(o, LEGACY_IK, 0);
        if (base[2])
            o->cram_mib = 0;
    } else if (!strcmp(base, "llama")) {
        legacy_defaults(o, LEGACY_LLAMA, NEWEST);
    } else if (!strncmp(base, "llama-", 6)) {
        int64_t date;
        if (!str_to_i64(base + 6, &date) || date < 20251003 || date > 20991231)
            return false;
        legacy_defaults(o, LEGACY_LLAMA, (int32_t)date);
    } else {
        return false;
    }
    o->n_slots = (uint32_t)slots;
    return true;
}
