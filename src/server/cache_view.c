/* cache_view.c - GET /cache: what is kept, what it costs, what it was good for; DELETE /cache/{id}.
 *
 * An entry is the state after `position` tokens: a recurrent snapshot and the KV below it.  gap is what
 * would have to be evaluated again if the entry alone were gone.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "server/reply.h"
#include "server/route.h"

static int by_id(const void *a, const void *b)
{
    const struct cache_entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static uint32_t gap_of(const struct engine_view *v, const struct cache_entry *e)
{
    const struct cache_entry key = {.id = e->above};
    const struct cache_entry *above =
        e->above ? bsearch(&key, v->entries, v->n_entries, sizeof key, by_id) : NULL;
    return e->pos - (above ? above->pos : 0);
}

static double seconds_since(uint64_t then_ns, uint64_t now_ns)
{
    return then_ns < now_ns ? (double)(now_ns - then_ns) * 1e-9 : 0;
}

static void write_entry(struct jwrite *w, const struct engine_view *v, const struct cache_entry *e,
                        uint64_t now_ns)
{
    jwrite_obj(w, NULL);
    jwrite_u64(w, "id", e->id);
    jwrite_u64(w, "position", e->pos);
    jwrite_u64(w, "gap", gap_of(v, e));
    jwrite_str(w, "kind", cut_kind_name(e->kind));
    jwrite_u64(w, "bytes", e->bytes);
    jwrite_u64(w, "hits", e->hits);
    jwrite_u64(w, "pins", e->pins);
    jwrite_bool(w, "pinned", e->user_pin);
    jwrite_f64(w, "value", e->value);
    jwrite_bool(w, "in_ram", e->in_ram);
    jwrite_bool(w, "on_disk", e->on_disk);
    jwrite_fixed(w, "age_s", seconds_since(e->made_ns, now_ns), 3);
    jwrite_fixed(w, "idle_s", seconds_since(e->used_ns, now_ns), 3);
    if (e->above)
        jwrite_u64(w, "above", e->above);
    else
        jwrite_null(w, "above");
    jwrite_end_obj(w);
}

static void write_totals(struct jwrite *w, const struct call *c, const struct engine_view *v)
{
    const struct cache_stats *s = &v->cache;
    jwrite_str(w, "policy", c->m->cache_policy);
    jwrite_u64(w, "budget_bytes", s->budget);
    jwrite_u64(w, "bytes", s->bytes);
    jwrite_u64(w, "tree_bytes", s->tree_bytes);
    jwrite_u64(w, "tree_tokens", s->n_tokens);
    jwrite_u64(w, "kv_bytes", v->kv_bytes);
    jwrite_u64(w, "snapshot_bytes", v->snap_bytes);
    jwrite_u64(w, "bytes_per_snapshot", v->bytes_per_snap);
    jwrite_u64(w, "bytes_per_token", v->bytes_per_token);
    jwrite_u64(w, "page_tokens", v->page_tokens);
    jwrite_u64(w, "step", v->cache_step);
    jwrite_u64(w, "n_entries", s->n_snaps);
    jwrite_u64(w, "n_pinned", s->n_pinned);
    jwrite_u64(w, "requests", s->requests);
    jwrite_u64(w, "prompt_tokens", s->prompt_tokens);
    jwrite_u64(w, "common_tokens", s->lcp_tokens);
    jwrite_u64(w, "reused_tokens", s->reused_tokens);
    jwrite_obj(w, "lost_tokens"); /* common, but evaluated again */
    jwrite_u64(w, "placement", s->lost_placement);
    jwrite_u64(w, "rejected", s->lost_rejected);
    jwrite_u64(w, "evicted", s->lost_evicted);
    jwrite_u64(w, "minimum", s->lost_minimum);
    jwrite_u64(w, "last", s->lost_last);
    jwrite_end_obj(w);
    jwrite_u64(w, "offers", s->offers);
    jwrite_u64(w, "rejected", s->rejected);
    jwrite_u64(w, "commits", s->commits);
    jwrite_u64(w, "evictions", s->evictions);
}

static void write_disk(struct jwrite *w, const struct engine_view *v)
{
    const struct disk_stats *d = &v->disk;
    if (!v->has_disk) {
        jwrite_null(w, "disk");
        return;
    }
    jwrite_obj(w, "disk");
    jwrite_u64(w, "budget_bytes", d->max_bytes);
    jwrite_u64(w, "bytes", d->bytes);
    jwrite_u64(w, "n_files", d->n_files);
    jwrite_u64(w, "n_entries", d->n_entries);
    jwrite_u64(w, "n_only_here", v->cache.n_disk_only);
    jwrite_u64(w, "writes", d->writes);
    jwrite_u64(w, "written_bytes", d->write_bytes);
    jwrite_fixed(w, "write_s", (double)d->write_ns * 1e-9, 3);
    jwrite_u64(w, "reads", d->reads);
    jwrite_u64(w, "read_bytes", d->read_bytes);
    jwrite_fixed(w, "read_s", (double)d->read_ns * 1e-9, 3);
    jwrite_u64(w, "failed_writes", d->failed_writes);
    jwrite_u64(w, "failed_reads", d->failed_reads);
    jwrite_bool(w, "writes_off", d->writes_off);
    jwrite_end_obj(w);
}

/* What slots keep, where they do. */
static void write_slots(struct jwrite *w, const struct engine_view *v)
{
    if (!v->held) {
        jwrite_null(w, "slots");
        return;
    }
    jwrite_arr(w, "slots");
    for (uint32_t i = 0; i < v->n_slots; i++) {
        const struct held_view *h = &v->held[i];
        const uint64_t pages = ceil_div(h->n_tokens, v->page_tokens);
        jwrite_obj(w, NULL);
        jwrite_u64(w, "id", i);
        jwrite_bool(w, "busy", h->busy);
        jwrite_u64(w, "tokens", h->n_tokens);
        jwrite_u64(w, "bytes",
                   (1 + (uint64_t)h->n) * v->bytes_per_snap +
                       pages * v->page_tokens * v->bytes_per_token);
        jwrite_arr(w, "checkpoints");
        for (uint32_t k = h->first; k < h->first + h->n; k++) {
            jwrite_obj(w, NULL);
            jwrite_u64(w, "position", v->states[k].pos);
            jwrite_str(w, "kind", cut_kind_name(v->states[k].kind));
            jwrite_u64(w, "hits", v->states[k].hits);
            jwrite_end_obj(w);
        }
        jwrite_end_arr(w);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
}

void cache_view_get(struct call *c)
{
    struct engine_view v;
    struct err err;
    if (engine_view(c->m->engine, true, &v, &err)) {
        reply_error(c, &err);
        return;
    }
    const uint64_t now = clock_wall_ns();
    struct buf b = BUF_INIT;
    struct jwrite w;
    if (v.n_entries)
        qsort(v.entries, v.n_entries, sizeof *v.entries, by_id);
    jwrite_init(&w, &b);
    jwrite_obj(&w, NULL);
    write_totals(&w, c, &v);
    write_disk(&w, &v);
    jwrite_arr(&w, "entries");
    for (uint32_t i = 0; i < v.n_entries; i++)
        write_entry(&w, &v, &v.entries[i], now);
    jwrite_end_arr(&w);
    write_slots(&w, &v);
    jwrite_end_obj(&w);
    reply_json(c, 200, &b);
    buf_release(&b);
    engine_view_release(&v);
}

void cache_view_delete(struct call *c)
{
    uint64_t id;
    if (!str_to_u64(c->tail, &id) || !id || id > UINT32_MAX ||
        !engine_drop(c->m->engine, (snap_id)id)) {
        reply_refuse(c, 404, "not_found_error", "no entry of that id, or it is in use");
        return;
    }
    struct buf b = BUF_INIT;
    buf_addf(&b, "{\"id\":%" PRIu64 ",\"deleted\":true}", id);
    reply_json(c, 200, &b);
    buf_release(&b);
}
