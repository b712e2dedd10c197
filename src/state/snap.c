#include "state/snap.h"

#include "base/mem.h"

#include <string.h>

struct snap {
    void *data; /* 64-byte aligned */
    uint64_t bytes;
};

struct snap_store {
    uint64_t bytes; /* of one snapshot */
    uint64_t n;     /* live */
    /* One payload kept for the next snap_take: under a full budget every take follows a free, and memory
     * fresh from the system costs page faults as long as the copy itself. */
    void *spare;
};

enum rc snap_store_new(const struct shape *s, struct snap_store **out, struct err *err)
{
    (void)err;
    struct snap_store *st = mem_zalloc(sizeof *st);
    st->bytes = shape_snap_bytes(s);
    *out = st;
    return RC_OK;
}

void snap_store_free(struct snap_store *st)
{
    if (!st)
        return;
    CHECK(st->n == 0);
    mem_free(st->spare);
    mem_free(st);
}

uint64_t snap_store_bytes(const struct snap_store *st)
{
    return st->n * st->bytes;
}

enum rc snap_blank(struct snap_store *st, struct snap **out, struct err *err)
{
    void *data = st->spare;
    if (!data)
        data = mem_try_huge(st->bytes);
    if (!data)
        return err_set(err, RC_NOMEM, "no memory for a snapshot of %" PRIu64 " bytes", st->bytes);
    st->spare = NULL;
    struct snap *sn = mem_alloc(sizeof *sn);
    *sn = (struct snap){data, st->bytes};
    st->n++;
    *out = sn;
    return RC_OK;
}

enum rc snap_take(struct snap_store *st, struct rec *r, rec_slot slot, struct snap **out,
                  struct err *err)
{
    const enum rc rc = snap_blank(st, out, err);
    if (!rc)
        memcpy((*out)->data, rec_bytes(r, slot), st->bytes);
    return rc;
}

void *snap_fill(struct snap *sn)
{
    return sn->data;
}

void snap_restore(const struct snap *sn, struct rec *r, rec_slot slot)
{
    memcpy(rec_bytes(r, slot), sn->data, sn->bytes);
}

void snap_free(struct snap_store *st, struct snap *sn)
{
    if (!sn)
        return;
    CHECK(st->n != 0);
    st->n--;
    if (st->spare)
        mem_free(sn->data);
    else
        st->spare = sn->data;
    mem_free(sn);
}

const void *snap_data(const struct snap *sn)
{
    return sn->data;
}
