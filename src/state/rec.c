#include "state/rec.h"

#include "base/mem.h"

#include <string.h>

struct rec {
    struct shape shape;
    uint64_t slot_bytes; /* snap_bytes, rounded up to 64 */
    uint64_t layer_floats;
    uint32_t n_slots;
    uint8_t *mem;
    bool *taken; /* [n_slots] */
};

enum rc rec_new(const struct shape *s, uint32_t n_slots, struct rec **out, struct err *err)
{
    struct rec *r = mem_zalloc(sizeof *r);
    r->shape = *s;
    r->layer_floats = shape_conv_floats(s) + shape_s_floats(s);
    r->slot_bytes = round_up(MAX(shape_snap_bytes(s), 1), 64);
    r->n_slots = n_slots;
    uint64_t total;
    if (n_slots == UINT32_MAX || !mul_u64(r->slot_bytes, MAX(n_slots, 1), &total) ||
        !(r->mem = mem_try_huge(total)) ||
        !(r->taken = mem_try_array(MAX(n_slots, 1), sizeof *r->taken))) {
        const enum rc rc = err_set(
            err, RC_NOMEM, "no memory for %" PRIu32 " recurrent states of %" PRIu64 " bytes",
            n_slots, r->slot_bytes);
        rec_free(r);
        return rc;
    }
    *out = r;
    return RC_OK;
}

void rec_free(struct rec *r)
{
    if (!r)
        return;
    mem_free(r->mem);
    mem_free(r->taken);
    mem_free(r);
}

rec_slot rec_take(struct rec *r)
{
    for (uint32_t i = 0; i < r->n_slots; i++)
        if (!r->taken[i]) {
            r->taken[i] = true;
            memset(rec_bytes(r, i + 1), 0, r->slot_bytes);
            return i + 1;
        }
    return 0;
}

void rec_give(struct rec *r, rec_slot s)
{
    CHECK(s != 0 && s <= r->n_slots && r->taken[s - 1]);
    r->taken[s - 1] = false;
}

void *rec_bytes(struct rec *r, rec_slot s)
{
    CHECK(s != 0 && s <= r->n_slots && r->taken[s - 1]);
    return r->mem + (s - 1) * r->slot_bytes;
}

float *rec_conv(struct rec *r, rec_slot s, uint32_t delta_layer)
{
    assert(delta_layer < r->shape.n_delta);
    return (float *)rec_bytes(r, s) + delta_layer * r->layer_floats;
}

float *rec_s(struct rec *r, rec_slot s, uint32_t delta_layer)
{
    return rec_conv(r, s, delta_layer) + shape_conv_floats(&r->shape);
}
