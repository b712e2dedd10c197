#include "engine/turn.h"

static void add_rate(struct buf *out, uint32_t n, double ms)
{
    buf_addf(out, "%u in %.2f s", n, ms * 1e-3);
    if (n && ms > 0)
        buf_addf(out, " (%.1f tok/s)", n * 1e3 / ms);
}

static void add_reused(struct buf *out, const struct turn *t)
{
    buf_addf(out, ", reused %u", t->t.n_reused);
    const uint32_t restored = t->t.n_reused - t->t.n_shared;
    const char *tier = t->plan.fetch ? "disk" : "RAM";
    if (restored && t->t.n_shared)
        buf_addf(out, " (%u %s, %s; %u from a request in flight)", restored,
                 cut_kind_name(t->plan.restore_kind), tier, t->t.n_shared);
    else if (restored)
        buf_addf(out, " (%s, %s)", cut_kind_name(t->plan.restore_kind), tier);
    else if (t->t.n_shared)
        buf_addf(out, " (from a request in flight)");
}

/* Tokens known from an earlier request that had to be evaluated again, by cause. */
static void add_losses(struct buf *out, const struct turn *t)
{
    const struct plan *p = &t->plan;
    const uint32_t lost = p->lcp - p->start;
    if (lost == 0 || t->t.n_shared)
        return;
    buf_addf(out, "; %u of %u common tokens evaluated again:", lost, p->lcp);
    const struct {
        const char *name;
        uint32_t n;
        bool dated;
    } causes[] = {{"no snapshot placed", p->lost_placement, false},
                  {"not admitted", p->lost_rejected, false},
                  {p->unreadable ? "unreadable on disk" : "evicted", p->lost_evicted, true},
                  {"too few to keep", p->lost_minimum, false},
                  {"for the last token", p->lost_last, false}};
    const char *sep = " ";
    for (size_t i = 0; i < COUNT_OF(causes); i++) {
        if (!causes[i].n)
            continue;
        buf_addf(out, "%s%s %u", sep, causes[i].name, causes[i].n);
        if (causes[i].dated && p->evicted_ns && p->evicted_ns <= t->now_ns)
            buf_addf(out, " (%.0f s ago)", (double)(t->now_ns - p->evicted_ns) * 1e-9);
        sep = ", ";
    }
}

/* Tokens that a file has, but not for us. */
static void add_foreign(struct buf *out, const struct turn *t)
{
    const struct foreign_state *f = &t->foreign;
    if (f->pos > t->t.n_reused)
        buf_addf(out, "; %u tokens are on disk for another fingerprint (KV %s, kernels %s)", f->pos,
                 f->by.kv_type, f->by.kernels);
}

void turn_line(const struct turn *t, struct buf *out)
{
    buf_addf(out, "request %" PRIu64 ": prompt %u", t->id, t->t.n_prompt);
    add_reused(out, t);
    buf_adds(out, ", evaluated ");
    add_rate(out, t->t.n_evaluated, t->t.prompt_ms);
    buf_adds(out, ", generated ");
    add_rate(out, t->t.n_predicted, t->t.predicted_ms);
    buf_addf(out, ", stop %s", stop_kind_name(t->stop));
    if (t->stop == STOP_ERROR)
        buf_addf(out, " (%s)", t->error);
    add_losses(out, t);
    add_foreign(out, t);
}
