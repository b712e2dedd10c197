#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/seq.h"

/* While someone decodes, a forward that also prefills is kept about this long, so that a long prompt
 * beside it does not make an answer stutter. */
static const uint64_t step_ns = UINT64_C(250000000);
enum { MIN_PREFILL_ROWS = 32 };
static const uint64_t idle_ns = UINT64_C(500000000); /* then what is only in memory is written */
static const uint64_t fetch_poll_ns =
    UINT64_C(5000000); /* looks at cancels while the disk is at work */
static const uint64_t flush_ns = UINT64_C(20000000000); /* for writing the rest at the end */

struct engine {
    /* set before the thread starts, read by any thread */
    struct model *model;
    struct job_limits limits;
    uint32_t n_seqs, n_rows; /* sequences at once; rows of a step */
    uint32_t cache_step;

    struct queue inbox;
    struct msg disk_msg; /* the disk is done with something; in the inbox while disk_told */
    atomic_bool disk_told;
    uint64_t idle_ns; /* 0: without a disk tier */
    atomic_uint_fast64_t next_id;
    pthread_t thread;

    /* the engine thread's own */
    struct seq_env env;
    struct seq *seqs;         /* [n_seqs] */
    struct sched_row *rows;   /* [n_seqs] */
    struct run *runs;         /* [n_seqs] */
    uint32_t *run_seq;        /* [n_seqs] whose run it is */
    float *logits;            /* [n_seqs][n_vocab] */
    struct job *first, *last; /* waiting for a place, in order of arrival; linked by msg.q.next */
    uint32_t n_queued;
    uint32_t turn;       /* whose row comes first, counted up from step to step */
    uint64_t idle_at_ns; /* then is idle time */
    bool unwritten;      /* there may be entries worth writing when idle */
    bool stopping;
    uint64_t stop_at_ns;
};

/* ---- messages -------------------------------------------------------------------------------- */

/* A question that the engine thread answers between two steps, on the asker's stack. */
struct call {
    struct msg msg;
    void (*fn)(struct engine *e, void *ctx);
    void *ctx;
    struct queue done;
};

struct stop_msg {
    struct msg msg;
    uint64_t drain_ns;
};

/* False when the engine has stopped. */
static bool call(struct engine *e, void (*fn)(struct engine *e, void *ctx), void *ctx)
{
    struct call c = {.msg = {.kind = MSG_CALL}, .fn = fn, .ctx = ctx};
    queue_init(&c.done);
    const bool ok = queue_put(&e->inbox, &c.msg.q);
    while (ok && !queue_get(&c.done, UINT64_MAX))
        continue;
    queue_release(&c.done);
    return ok;
}

static void enqueue(struct engine *e, struct job *j)
{
    j->msg.q.next = NULL;
    if (e->last)
        e->last->msg.q.next = &j->msg.q;
    else
        e->first = j;
    e->last = j;
    e->n_queued++;
}

static void handle(struct engine *e, struct msg *m)
{
    switch (m->kind) {
    case MSG_DISK:
        /* before looking: what comes in between tells again */
        atomic_store_explicit(&e->disk_told, false, memory_order_release);
        reuse_poll(e->env.reuse);
        e->unwritten = true;
        break;
    case MSG_JOB:
        e->unwritten = true;
        enqueue(e, (struct job *)m);
        break;
    case MSG_CALL: {
        struct call *c = (struct call *)m;
        c->fn(e, c->ctx);
        CHECK(queue_put(&c->done, &m->q));
        break;
    }
    case MSG_STOP:
        e->stopping = true;
        if (!add_u64(clock_mono_ns(), ((struct stop_msg *)m)->drain_ns, &e->stop_at_ns))
            e->stop_at_ns = UINT64_MAX;
        break;
    }
}

/* On a thread of the disk's. */
static void wake(void *ctx)
{
    struct engine *e = ctx;
    if (!atomic_exchange_explicit(&e->disk_told, true, memory_order_acq_rel))
        (void)!queue_put(&e->inbox, &e->disk_msg.q); /* closed: nobody needs to know */
}

/* ---- jobs to sequences ----------------------------------------------------------------------- */

static bool is_running(const struct engine *e)
{
    for (uint32_t i = 0; i < e->n_seqs; i++)
        if (e->seqs[i].state != SEQ_FREE)
            return true;
    return false;
}

static struct seq *find_free(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_seqs; i++)
        if (e->seqs[i].state == SEQ_FREE)
            return &e->seqs[i];
    return NULL;
}

static struct seq *find_ticket(struct engine *e, uint64_t ticket)
{
    for (uint32_t i = 0; i < e->n_seqs; i++)
        if (e->seqs[i].state >= SEQ_FETCH && e->seqs[i].live.plan.ticket == ticket)
            return &e->seqs[i];
    return NULL;
}

static bool has_cut(const struct plan *p, uint32_t pos)
{
    for (uint32_t i = 0; i < p->n_cuts; i++)
        if (p->cuts[i].pos == pos)
            return true;
    return false;
}

/* s waits for another sequence to reach a position: makes that one stop there.  False when it will
 * not. */
static bool can_wait(struct engine *e, const struct seq *s)
{
    struct seq *on = find_ticket(e, s->live.plan.wait_ticket);
    const uint32_t pos = s->live.plan.wait_pos;
    return on && on->state != SEQ_DECODE && on->live.pos < pos &&
           (has_cut(&on->live.plan, pos) || plan_add_cut(&on->live.plan, pos, CUT_BRANCH));
}

static void start(struct engine *e, struct seq *s, struct job *j)
{
    seq_start(s, &e->env, j);
    if (s->state == SEQ_WAIT && !can_wait(e, s))
        seq_resume(s, &e->env, NULL, false);
}

/* Those whose wait is over go on. */
static void resume_waiting(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        struct seq *s = &e->seqs[i];
        if (s->state != SEQ_WAIT)
            continue;
        const struct seq *on = find_ticket(e, s->live.plan.wait_ticket);
        if (on && on->state != SEQ_DECODE && on->live.pos < s->live.plan.wait_pos)
            continue;
        /* with the one it waited for gone, the next of several waiting may lead the others */
        seq_resume(s, &e->env, on && on->live.pos == s->live.plan.wait_pos ? on : NULL, !on);
        if (s->state == SEQ_WAIT && !can_wait(e, s))
            seq_resume(s, &e->env, NULL, false);
    }
}

/* Those whose state has been read go on. */
static void resume_fetching(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        struct seq *s = &e->seqs[i];
        if (s->state != SEQ_FETCH)
            continue;
        seq_fetched(s, &e->env);
        if (s->state == SEQ_WAIT && !can_wait(e, s))
            seq_resume(s, &e->env, NULL, false);
    }
}

static struct job *unqueue(struct engine *e, struct job *before)
{
    struct job *j = before ? (struct job *)before->msg.q.next : e->first;
    struct job *next = (struct job *)j->msg.q.next;
    if (before)
        before->msg.q.next = j->msg.q.next;
    else
        e->first = next;
    if (e->last == j)
        e->last = before;
    e->n_queued--;
    return j;
}

/* A job that never got a place. */
static void end_queued(struct engine *e, struct job *j)
{
    struct seq s = {.state = SEQ_WAIT,
                    .job = j,
                    .live.slot = LIVE_NO_SLOT,
                    .stop_word = -1,
                    .n_tokens = j->d.n_prompt};
    stopper_init(&s.stopper, j->d.stop, j->d.n_stop);
    seq_end(&s, &e->env, STOP_CANCELLED, NULL);
}

static void reap(struct engine *e, bool all)
{
    struct job *before = NULL;
    for (struct job *j = e->first, *next; j; j = next) {
        next = (struct job *)j->msg.q.next;
        if (all || job_is_cancelled(j))
            end_queued(e, unqueue(e, before));
        else
            before = j;
    }
    for (uint32_t i = 0; i < e->n_seqs; i++)
        if (e->seqs[i].state != SEQ_FREE && (all || job_is_cancelled(e->seqs[i].job)))
            seq_end(&e->seqs[i], &e->env, STOP_CANCELLED, NULL);
}

static void admit(struct engine *e)
{
    for (struct seq *s; e->first && (s = find_free(e));)
        start(e, s, unqueue(e, NULL));
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void step(struct engine *e)
{
    uint32_t n = 0, n_runs = 0, n_rows = 0, n_wanted = 0;
    bool decodes = false;
    for (uint32_t i = 0; i < e->n_seqs; i++)
        if (e->seqs[i].state >= SEQ_PREFILL) {
            e->run_seq[n] = i;
            e->rows[n] = seq_row(&e->seqs[i]);
            decodes |= e->rows[n++].decode;
        }
    if (n == 0)
        return;
    const uint32_t max_prefill =
        decodes ? meter_rows_in(&e->env.meter, step_ns, MIN_PREFILL_ROWS, e->n_rows) : e->n_rows;
    sched_share(e->rows, n, e->n_rows, max_prefill, e->turn++ % n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t take = e->rows[i].take;
        if (!take)
            continue;
        /* the rows that are wanted without gaps: the model then reads its head once for all */
        float *logits = e->logits + (size_t)n_wanted * e->limits.n_vocab;
        if (seq_run(&e->seqs[e->run_seq[i]], &e->env, take, logits, &e->runs[n_runs])) {
            n_wanted += e->runs[n_runs].n_logits;
            e->run_seq[n_runs++] = e->run_seq[i];
            n_rows += take;
        }
    }
    if (n_runs == 0)
        return;
    const uint64_t before = clock_mono_ns();
    model_forward(e->model, reuse_kv(e->env.reuse), reuse_rec(e->env.reuse), e->runs, n_runs);
    const uint64_t took = clock_mono_ns() - before;
    meter_step(&e->env.meter, n_rows, took);
    if (!decodes)
        reuse_prefilled(e->env.reuse, n_rows, took);
    for (uint32_t i = 0; i < n_runs; i++)
        seq_ran(&e->seqs[e->run_seq[i]], &e->env, &e->runs[i]);
}

/* How long the thread may sleep for want of messages. */
static uint64_t patience(const struct engine *e)
{
    bool reads = false;
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        if (e->seqs[i].state >= SEQ_PREFILL)
            return 0;
        reads |= e->seqs[i].state == SEQ_FETCH;
    }
    if (reads)
        return fetch_poll_ns;
    if (is_running(e) || e->first || e->stopping || audit_wants(e->env.audit))
        return 0;
    if (!e->idle_ns || !e->unwritten)
        return UINT64_MAX;
    const uint64_t now = clock_mono_ns();
    return now < e->idle_at_ns ? e->idle_at_ns - now : 0;
}

/* Without jobs for a while, what is only in memory is written, an entry at a time. */
static void use_idle_time(struct engine *e, bool busy)
{
    const uint64_t now = clock_mono_ns();
    if (!busy && now < e->idle_at_ns)
        return;
    e->idle_at_ns = now + e->idle_ns;
    if (!busy && e->unwritten)
        e->unwritten = reuse_idle(e->env.reuse);
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    for (;;) {
        const bool busy = is_running(e) || e->first;
        if (e->stopping && (!busy || clock_mono_ns() >= e->stop_at_ns))
            break;
        struct qmsg *m = queue_get(&e->inbox, patience(e));
        if (e->idle_ns && !e->stopping)
            use_idle_time(e, busy);
        for (; m; m = queue_get(&e->inbox, 0))
            handle(e, (struct msg *)m);
        resume_fetching(e);
        resume_waiting(e); /* first: the one waited for still stands where it is waited for */
        reap(e, false);
        admit(e);
        step(e);
        if (!is_running(e) && !e->first && !e->stopping && audit_wants(e->env.audit))
            audit_step(e->env.audit);
    }
    queue_close(&e->inbox); /* whoever comes later is told so */
    for (struct qmsg *m; (m = queue_get(&e->inbox, 0));)
        handle(e, (struct msg *)m);
    reap(e, true);
    reuse_flush(e->env.reuse, clock_mono_ns() + flush_ns);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* Tokens that no request may get: unused ones, and rows of the matrix that are no token. */
static enum rc new_room(const struct engine_opts *o, uint32_t n_vocab, struct sample_room **out,
                        struct err *err)
{
    token *forbidden = mem_try_array(n_vocab, sizeof *forbidden);
    token *eog = mem_try_array(n_vocab, sizeof *eog);
    enum rc rc;
    if (forbidden && eog) {
        uint32_t n_forbidden = 0, n_eog = 0;
        for (token t = 0; (uint32_t)t < n_vocab; t++) {
            if ((uint32_t)t >= vocab_size(o->vocab) || vocab_type(o->vocab, t) == TOKEN_UNUSED)
                forbidden[n_forbidden++] = t;
            else if (vocab_is_eog(o->vocab, t))
                eog[n_eog++] = t;
        }
        rc = sample_room_new(n_vocab, forbidden, n_forbidden, eog, n_eog, out, err);
    } else {
        rc = err_set(err, RC_NOMEM, "no memory for a vocabulary of %u", n_vocab);
    }
    mem_free(forbidden);
    mem_free(eog);
    return rc;
}

static void free_engine(struct engine *e)
{
    sample_room_free(e->env.room);
    audit_free(e->env.audit);
    reuse_free(e->env.reuse);
    mem_free(e->env.kept);
    mem_free(e->seqs);
    mem_free(e->rows);
    mem_free(e->runs);
    mem_free(e->run_seq);
    mem_free(e->logits);
    queue_release(&e->inbox);
    mem_free(e);
}

static enum rc set_up(struct engine *e, const struct engine_opts *o, struct err *err)
{
    const struct model_info *info = model_info(o->model);
    CHECK(info->max_batch > 0);
    e->n_seqs = o->n_parallel ? o->n_parallel : 4;
    e->cache_step = o->cache_step;
    e->n_rows = o->n_batch ? MIN(o->n_batch, info->max_batch) : info->max_batch;
    e->limits = (struct job_limits){.n_vocab = info->n_vocab,
                                    .n_ctx = o->n_ctx ? o->n_ctx : info->n_ctx_train};
    if (vocab_size(o->vocab) > info->n_vocab)
        return err_set(err, RC_FORMAT, "the tokenizer has %u tokens, the model only %u",
                       vocab_size(o->vocab), info->n_vocab);
    if (e->limits.n_ctx > info->n_ctx_train)
        log_warn(o->lg, "a context of %u is more than the %u the model was trained for",
                 e->limits.n_ctx, info->n_ctx_train);
    e->seqs = mem_try_array(e->n_seqs, sizeof *e->seqs);
    e->rows = mem_try_array(e->n_seqs, sizeof *e->rows);
    e->runs = mem_try_array(e->n_seqs, sizeof *e->runs);
    e->run_seq = mem_try_array(e->n_seqs, sizeof *e->run_seq);
    e->logits = mem_try_array((size_t)e->n_seqs * info->n_vocab, sizeof *e->logits);
    e->env.kept = mem_try_array(e->n_seqs, sizeof *e->env.kept);
    if (!e->env.kept || !e->seqs || !e->rows || !e->runs || !e->run_seq || !e->logits)
        return err_set(err, RC_NOMEM, "no memory for %u sequences at once", e->n_seqs);
    for (uint32_t i = 0; i < e->n_seqs; i++)
        e->seqs[i].place = i;
    enum rc rc = new_room(o, info->n_vocab, &e->env.room, err);
    if (rc)
        return rc;
    const struct reuse_opts ro = {.shape = info->shape,
                                  .n_slots = e->n_seqs + (o->audit_restores > 0),
                                  .kv_max_bytes = o->kv_max_bytes,
                                  .cache_ram_bytes = o->cache_ram_bytes,
                                  .cache_dir = o->cache_dir,
                                  .cache_disk_bytes = o->cache_disk_bytes,
                                  .disk_read_rate = o->disk_read_rate,
                                  .kernels = info->isa,
                                  .wake = wake,
                                  .wake_ctx = e,
                                  .cache_step = o->cache_step,
                                  .cache_policy = o->cache_policy,
                                  .n_batch = o->n_batch,
                                  .n_ubatch = info->max_batch,
                                  .lg = o->lg,
                                  .events = o->events};
    rc = reuse_new(&ro, &e->env.reuse, err);
    struct disk_stats disk;
    if (!rc && reuse_disk(e->env.reuse, &disk))
        e->idle_ns = o->disk_idle_ns ? o->disk_idle_ns : idle_ns;
    if (!rc && o->audit_restores != 0)
        rc = audit_new(&(struct audit_opts){.share = o->audit_restores,
                                            .reuse = e->env.reuse,
                                            .model = o->model,
                                            .n_rows = e->n_rows,
                                            .lg = o->lg,
                                            .events = o->events},
                       &e->env.audit, err);
    return rc;
}

enum rc engine_check_policy(const char *name, struct err *err)
{
    return reuse_check_policy(name, err);
}

enum rc engine_start(const struct engine_opts *o, struct engine **out, struct err *err)
{
    struct engine *e = mem_zalloc(sizeof *e);
    e->model = o->model;
    e->env.vocab = o->vocab;
    e->env.lg = o->lg;
    e->env.events = o->events;
    queue_init(&e->inbox);
    e->disk_msg.kind = MSG_DISK;
    atomic_init(&e->disk_told, false);
    atomic_init(&e->next_id, 1);
    enum rc rc = set_up(e, o, err);
    if (!rc) {
        e->env.n_ctx = e->limits.n_ctx;
        e->env.say = o->say;
        e->env.say_ctx = o->say_ctx;
        const int failed = pthread_create(&e->thread, NULL, engine_main, e);
        if (failed)
            rc = err_set(err, RC_IO, "no engine thread: %s", strerror(failed));
    }
    if (rc) {
        free_engine(e);
        return rc;
    }
    pthread_setname_np(e->thread, "engine");
    *out = e;
    return RC_OK;
}

void engine_stop(struct engine *e, uint64_t drain_ns)
{
    if (!e)
        return;
    struct stop_msg stop = {.msg = {.kind = MSG_STOP}, .drain_ns = drain_ns};
    CHECK(queue_put(&e->inbox, &stop.msg.q));
    pthread_join(e->thread, NULL);
    free_engine(e);
}

/* ---- any thread ------------------------------------------------------------------------------ */

uint32_t engine_n_ctx(const struct engine *e)
{
    return e->limits.n_ctx;
}

enum rc engine_submit(struct engine *e, const struct job_desc *d, struct job **out, struct err *err)
{
    const uint64_t id = atomic_fetch_add_explicit(&e->next_id, 1, memory_order_relaxed);
    struct job *j;
    enum rc rc = job_new(d, &e->limits, id, &j, err);
    if (rc)
        return rc;
    job_ref(j); /* the engine's */
    if (!queue_put(&e->inbox, &j->msg.q)) {
        job_unref(j);
        job_unref(j);
        return err_set(err, RC_CANCELLED, "the engine has stopped");
    }
    *out = j;
    return RC_OK;
}

struct view_call {
    bool entries;
    struct engine_view *out;
    bool nomem;
};

static void view_slots(const struct engine *e, struct engine_view *v)
{
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        const struct seq *s = &e->seqs[i];
        v->slots[i] = (struct slot_view){.id = i};
        if (s->state == SEQ_FREE)
            continue;
        v->slots[i].job = s->job->id;
        v->slots[i].n_prompt = s->job->d.n_prompt;
        v->slots[i].n_done = MIN(s->live.pos, s->job->d.n_prompt);
        v->slots[i].n_predicted = (uint32_t)s->n_tokens - s->job->d.n_prompt;
        v->slots[i].prefill = s->state != SEQ_DECODE;
    }
    v->n_slots = e->n_seqs;
}

static void take_view(struct engine *e, void *ctx)
{
    struct view_call *c = ctx;
    struct engine_view *v = c->out;
    struct cache *cache = reuse_cache(e->env.reuse);
    const struct meter *m = &e->env.meter;
    cache_stats(cache, &v->cache);
    v->slots = mem_try_array(e->n_seqs, sizeof *v->slots);
    v->entries = c->entries ? mem_try_array(v->cache.n_snaps, sizeof *v->entries) : NULL;
    if (!v->slots || (c->entries && !v->entries)) {
        c->nomem = true;
        return;
    }
    view_slots(e, v);
    struct cache_entry entry;
    for (uint32_t i = 0; c->entries && cache_entry_at(cache, i, &entry); i++)
        if (cache_entry_get(cache, entry.id, &entry) && v->n_entries < v->cache.n_snaps)
            v->entries[v->n_entries++] = entry; /* but not those only planned */
    if (c->entries && !reuse_held(e->env.reuse, v)) {
        c->nomem = true;
        return;
    }
    v->n_queued = e->n_queued;
    v->kv_bytes = kv_bytes(reuse_kv(e->env.reuse));
    v->snap_bytes = reuse_snap_bytes(e->env.reuse);
    const struct shape *shape = &model_info(e->model)->shape;
    v->bytes_per_snap = shape_snap_bytes(shape);
    v->bytes_per_token = shape_token_bytes(shape);
    v->page_tokens = KV_PAGE;
    segment_maker_of(shape, model_info(e->model)->isa, &v->maker);
    v->cache_step = e->cache_step;
    v->has_disk = reuse_disk(e->env.reuse, &v->disk);
    v->jobs_total = m->jobs;
    v->prompt_tokens_total = m->prompt_tokens;
    v->reused_tokens_total = m->reused_tokens;
    v->predicted_tokens_total = m->predicted_tokens;
    v->prompt_seconds_total = (double)m->prompt_ns * 1e-9;
    v->predicted_seconds_total = (double)m->predicted_ns * 1e-9;
    v->steps_total = m->steps;
    struct reuse_counts counts;
    reuse_counts(e->env.reuse, &counts);
    memcpy(v->evicted, counts.evicted, sizeof v->evicted);
    memcpy(v->restores, counts.restores, sizeof v->restores);
    v->restores_from_disk = counts.from_disk;
    v->restore_seconds_total = (double)counts.restore_ns * 1e-9;
    struct audit_stats audits;
    audit_stats(e->env.audit, &audits);
    v->audits_equal = audits.equal;
    v->audits_different = audits.different;
    v->audits_skipped = audits.skipped;
}

enum rc engine_view(struct engine *e, bool entries, struct engine_view *out, struct err *err)
{
    *out = (struct engine_view){0};
    struct view_call c = {.entries = entries, .out = out};
    if (!call(e, take_view, &c))
        return err_set(err, RC_CANCELLED, "the engine has stopped");
    if (!c.nomem)
        return RC_OK;
    engine_view_release(out);
    return err_set(err, RC_NOMEM, "no memory for a view of the engine");
}

void engine_view_release(struct engine_view *v)
{
    mem_free(v->slots);
    mem_free(v->entries);
    mem_free(v->held);
    mem_free(v->states);
    *v = (struct engine_view){0};
}

struct drop_call {
    snap_id id;
    bool dropped;
};

static void drop_entry(struct engine *e, void *ctx)
{
    struct drop_call *c = ctx;
    c->dropped = reuse_drop(e->env.reuse, c->id);
}

bool engine_drop(struct engine *e, snap_id id)
{
    struct drop_call c = {.id = id};
    return call(e, drop_entry, &c) && c.dropped;
}

struct pin_call {
    snap_id id;
    bool on, done;
};

static void pin_entry(struct engine *e, void *ctx)
{
    struct pin_call *c = ctx;
    c->done = reuse_set_pin(e->env.reuse, c->id, c->on);
}

bool engine_pin(struct engine *e, snap_id id, bool on)
{
    struct pin_call c = {.id = id, .on = on};
    return call(e, pin_entry, &c) && c.done;
}

/* ---- a place's state by file ---- */

struct saved_call {
    uint32_t slot;
    struct saved s;
    snap_id id; /* what is kept of the slot */
    enum rc rc;
    struct err *err;
};

static snap_id kept_in(struct engine *e, uint32_t slot)
{
    const struct kept *k = &e->env.kept[slot];
    struct cache_entry entry;
    const bool there = k->id && cache_entry_get(reuse_cache(e->env.reuse), k->id, &entry) &&
                       entry.made_ns == k->made_ns;
    return there ? k->id : 0;
}

static void export_slot(struct engine *e, void *ctx)
{
    struct saved_call *c = ctx;
    c->id = kept_in(e, c->slot);
    if (c->id && reuse_export(e->env.reuse, c->id, &c->s))
        c->rc = RC_OK;
    else
        c->rc = err_set(c->err, RC_STALE,
                        "nothing is kept in memory of a request that ended in slot %u", c->slot);
}

static void import_slot(struct engine *e, void *ctx)
{
    struct saved_call *c = ctx;
    struct cache_entry entry;
    c->rc = reuse_import(e->env.reuse, &c->s, &c->id, c->err);
    if (!c->rc && cache_entry_get(reuse_cache(e->env.reuse), c->id, &entry))
        e->env.kept[c->slot] = (struct kept){c->id, entry.made_ns};
}

static void erase_slot(struct engine *e, void *ctx)
{
    struct saved_call *c = ctx;
    struct cache_entry entry;
    c->id = kept_in(e, c->slot);
    if (c->id && cache_entry_get(reuse_cache(e->env.reuse), c->id, &entry) &&
        reuse_drop(e->env.reuse, c->id))
        c->s.pos = entry.pos;
}

static enum rc check_slot(const struct engine *e, uint32_t slot, struct err *err)
{
    return slot < e->n_seqs ? RC_OK
                            : err_set(err, RC_ARG, "no slot %u, there are %u", slot, e->n_seqs);
}

enum rc engine_slot_save(struct engine *e, uint32_t slot, const char *path, struct slot_file *out,
                         struct err *err)
{
    struct saved_call c = {.slot = slot, .err = err};
    enum rc rc = check_slot(e, slot, err);
    if (!rc)
        rc = call(e, export_slot, &c) ? c.rc : err_set(err, RC_CANCELLED, "the engine has stopped");
    if (!rc)
        rc = saved_write(&c.s, reuse_shape(e->env.reuse), model_info(e->model)->isa, path,
                         &out->n_bytes, err);
    out->n_tokens = c.s.pos;
    saved_release(&c.s);
    return rc;
}

enum rc engine_slot_restore(struct engine *e, uint32_t slot, const char *path,
                            struct slot_file *out, struct err *err)
{
    struct saved_call c = {.slot = slot, .err = err};
    enum rc rc = check_slot(e, slot, err);
    if (!rc)
        rc = saved_read(&c.s, reuse_shape(e->env.reuse), model_info(e->model)->isa, e->limits.n_ctx,
                        path, &out->n_bytes, err);
    if (!rc)
        rc = call(e, import_slot, &c) ? c.rc : err_set(err, RC_CANCELLED, "the engine has stopped");
    out->n_tokens = c.s.pos;
    saved_release(&c.s);
    return rc;
}

uint32_t engine_slot_erase(struct engine *e, uint32_t slot)
{
    struct saved_call c = {.slot = slot};
    return slot < e->n_seqs && call(e, erase_slot, &c) ? c.s.pos : 0;
}

static void spoil(struct engine *e, void *ctx)
{
    struct drop_call *c = ctx;
    c->dropped = reuse_spoil(e->env.reuse, c->id);
}

bool engine_spoil(struct engine *e, snap_id id)
{
    struct drop_call c = {.id = id};
    return call(e, spoil, &c) && c.dropped;
}

static void check(struct engine *e, void *ctx)
{
    (void)ctx;
    reuse_check(e->env.reuse);
}

void engine_check(struct engine *e)
{
    CHECK(call(e, check, NULL));
}
