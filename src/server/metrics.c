/* metrics.c - GET /metrics in Prometheus' text format.
 *
 * The llamacpp: names mean what they mean in llama-server (prompt tokens are those evaluated); what only
 * we have is under holdfast_.
 */
#include "server/reply.h"
#include "server/route.h"

static void metric(struct buf *b, const char *type, const char *name, const char *help, double v)
{
    buf_addf(b, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, v);
}

static void counter(struct buf *b, const char *name, const char *help, double v)
{
    metric(b, "counter", name, help, v);
}

static void gauge(struct buf *b, const char *name, const char *help, double v)
{
    metric(b, "gauge", name, help, v);
}

static double rate(uint64_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

static void llama_names(struct buf *b, const struct engine_view *v)
{
    uint32_t busy = 0;
    for (uint32_t i = 0; i < v->n_slots; i++)
        busy += v->slots[i].job != 0;
    counter(b, "llamacpp:prompt_tokens_total", "Prompt tokens evaluated.",
            (double)v->prompt_tokens_total);
    counter(b, "llamacpp:prompt_seconds_total", "Seconds spent on prompts.",
            v->prompt_seconds_total);
    counter(b, "llamacpp:tokens_predicted_total", "Tokens generated.",
            (double)v->predicted_tokens_total);
    counter(b, "llamacpp:tokens_predicted_seconds_total", "Seconds spent generating.",
            v->predicted_seconds_total);
    counter(b, "llamacpp:n_decode_total", "Forward passes.", (double)v->steps_total);
    gauge(b, "llamacpp:prompt_tokens_seconds", "Mean prompt tokens a second.",
          rate(v->prompt_tokens_total, v->prompt_seconds_total));
    gauge(b, "llamacpp:predicted_tokens_seconds", "Mean generated tokens a second.",
          rate(v->predicted_tokens_total, v->predicted_seconds_total));
    gauge(b, "llamacpp:requests_processing", "Requests running.", busy);
    gauge(b, "llamacpp:requests_deferred", "Requests waiting for a place.", v->n_queued);
}

static void cache_names(struct buf *b, const struct engine_view *v)
{
    const struct cache_stats *s = &v->cache;
    const struct {
        const char *why;
        uint64_t n;
    } lost[] = {{"placement", s->lost_placement},
                {"rejected", s->lost_rejected},
                {"evicted", s->lost_evicted},
                {"minimum", s->lost_minimum},
                {"last", s->lost_last}};
    counter(b, "holdfast_requests_total", "Requests finished.", (double)v->jobs_total);
    counter(b, "holdfast_reused_tokens_total", "Prompt tokens not evaluated because of the cache.",
            (double)v->reused_tokens_total);
    counter(b, "holdfast_common_tokens_total",
            "Prompt tokens that an earlier request had in common.", (double)s->lcp_tokens);
    buf_adds(b, "# HELP holdfast_lost_tokens_total Common tokens evaluated again, by cause.\n"
                "# TYPE holdfast_lost_tokens_total counter\n");
    for (size_t i = 0; i < COUNT_OF(lost); i++)
        buf_addf(b, "holdfast_lost_tokens_total{why=\"%s\"} %" PRIu64 "\n", lost[i].why, lost[i].n);
    counter(b, "holdfast_cache_commits_total", "Snapshots taken.", (double)s->commits);
    counter(b, "holdfast_cache_rejected_total", "Snapshots not worth their bytes.",
            (double)s->rejected);
    counter(b, "holdfast_cache_evictions_total", "Snapshots evicted.", (double)s->evictions);
    buf_adds(b, "# HELP holdfast_cache_dropped_total Snapshots gone, by cause.\n"
                "# TYPE holdfast_cache_dropped_total counter\n");
    for (enum drop_why why = 0; why < DROP_SHUTDOWN; why++)
        buf_addf(b, "holdfast_cache_dropped_total{why=\"%s\"} %" PRIu64 "\n", drop_name(why),
                 v->evicted[why]);
    buf_adds(b,
             "# HELP holdfast_restores_total Requests that went on from a snapshot, by its kind.\n"
             "# TYPE holdfast_restores_total counter\n");
    for (enum cut_kind k = CUT_NONE + 1; k < CUT_N_KINDS; k++)
        buf_addf(b, "holdfast_restores_total{kind=\"%s\"} %" PRIu64 "\n", cut_kind_name(k),
                 v->restores[k]);
    counter(b, "holdfast_restores_from_disk_total", "Of these, read from disk.",
            (double)v->restores_from_disk);
    counter(b, "holdfast_restore_seconds_total",
            "Seconds spent restoring, waiting for disk included.", v->restore_seconds_total);
    counter(b, "holdfast_avoidable_tokens_total",
            "Prompt tokens evaluated though an earlier request had them in common.",
            (double)(s->lcp_tokens > s->reused_tokens ? s->lcp_tokens - s->reused_tokens : 0));
    gauge(b, "holdfast_tree_bytes", "Bytes of the token tree.", (double)s->tree_bytes);
    buf_adds(b, "# HELP holdfast_audits_total Restored states evaluated again, by result.\n"
                "# TYPE holdfast_audits_total counter\n");
    buf_addf(b,
             "holdfast_audits_total{result=\"equal\"} %" PRIu64 "\n"
             "holdfast_audits_total{result=\"different\"} %" PRIu64 "\n"
             "holdfast_audits_total{result=\"skipped\"} %" PRIu64 "\n",
             v->audits_equal, v->audits_different, v->audits_skipped);
    gauge(b, "holdfast_cache_entries", "Snapshots kept.", s->n_snaps);
    gauge(b, "holdfast_cache_bytes", "Bytes of cached state.", (double)s->bytes);
    gauge(b, "holdfast_cache_budget_bytes", "--cache-ram.", (double)s->budget);
    gauge(b, "holdfast_kv_bytes", "Bytes of KV pages, running and cached.", (double)v->kv_bytes);
    gauge(b, "holdfast_snapshot_bytes", "Bytes of recurrent snapshots.", (double)v->snap_bytes);
}

static void disk_names(struct buf *b, const struct engine_view *v)
{
    const struct cache_stats *s = &v->cache;
    const struct disk_stats *d = &v->disk;
    if (!v->has_disk)
        return;
    gauge(b, "holdfast_disk_entries", "Snapshots on disk.", d->n_entries);
    gauge(b, "holdfast_disk_only_entries", "Snapshots on disk and not in memory.", s->n_disk_only);
    gauge(b, "holdfast_disk_bytes", "Bytes of files in --cache-dir.", (double)d->bytes);
    gauge(b, "holdfast_disk_budget_bytes", "--cache-disk.", (double)d->max_bytes);
    counter(b, "holdfast_disk_evictions_total", "Snapshots evicted from disk.",
            (double)s->disk_evictions);
    counter(b, "holdfast_disk_writes_total", "Snapshots written.", (double)d->writes);
    counter(b, "holdfast_disk_written_bytes_total", "Bytes written.", (double)d->write_bytes);
    counter(b, "holdfast_disk_write_seconds_total", "Seconds spent writing.",
            (double)d->write_ns * 1e-9);
    counter(b, "holdfast_disk_reads_total", "Snapshots read back.", (double)d->reads);
    counter(b, "holdfast_disk_read_bytes_total", "Bytes read back.", (double)d->read_bytes);
    counter(b, "holdfast_disk_read_seconds_total", "Seconds spent reading.",
            (double)d->read_ns * 1e-9);
    counter(b, "holdfast_disk_failed_writes_total", "Writes that failed.",
            (double)d->failed_writes);
    counter(b, "holdfast_disk_failed_reads_total", "Snapshots that were damaged, and lost.",
            (double)d->failed_reads);
}

void metrics_get(struct call *c)
{
    struct engine_view v;
    struct err err;
    if (engine_view(c->m->engine, false, &v, &err)) {
        reply_error(c, &err);
        return;
    }
    struct buf b = BUF_INIT;
    llama_names(&b, &v);
    cache_names(&b, &v);
    disk_names(&b, &v);
    if (b.failed) {
        err_set(&err, RC_NOMEM, "out of memory for the metrics");
        reply_error(c, &err);
    } else {
        http_reply(c->r, 200, "text/plain; version=0.0.4", b.p, b.n);
    }
    buf_release(&b);
    engine_view_release(&v);
}
