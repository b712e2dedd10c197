/* slots.c - POST /slots/{id}?action=save|restore|erase, llama-server's shape, mapped onto the cache.
 *
 * A slot here holds nothing of its own: what is saved is the deepest state kept of the request that ended in that place
 * last; what is restored becomes an entry of the cache, which any request finds.
 */
#include <string.h>

#include "base/clock.h"
#include "server/reply.h"
#include "server/route.h"

enum { MAX_NAME = 200 };

/* A name within the directory: no way out of it, nothing hidden, nothing that a temporary file is called. */
static bool is_plain_name(const char *s)
{
    const size_t n = strlen(s);
    if (!n || n > MAX_NAME || s[0] == '.' || (n > 4 && !strcmp(s + n - 4, ".tmp")))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' || strchr("/\\:*?\"<>|\x7f", s[i]))
            return false;
    return true;
}

static enum rc read_path(struct call *c, const char **name, struct buf *path, struct err *err)
{
    *name = NULL;
    const struct str body = http_body(c->r); /* erase may come without one */
    enum rc rc = body.n ? jread_parse(body.p, body.n, &c->body, err) : RC_OK;
    if (!rc)
        rc = jread_str(c->body, "filename", name, err);
    if (rc)
        return rc;
    if (!*name || !is_plain_name(*name))
        return err_set(err, RC_ARG,
                       "filename must be a name without directory, of at most %d characters",
                       MAX_NAME);
    buf_addf(path, "%s/%s", c->s->o.slot_save_path, *name);
    return path->failed ? err_set(err, RC_NOMEM, "out of memory for a path") : RC_OK;
}

static void reply_file(struct call *c, uint32_t slot, bool save)
{
    const char *name;
    struct buf path = BUF_INIT;
    struct slot_file f;
    struct err err;
    const uint64_t begun = clock_mono_ns();
    enum rc rc = read_path(c, &name, &path, &err);
    if (!rc)
        rc = save ? engine_slot_save(c->m->engine, slot, buf_str(&path), &f, &err)
                  : engine_slot_restore(c->m->engine, slot, buf_str(&path), &f, &err);
    if (rc == RC_FORMAT || rc == RC_STALE || rc == RC_LIMIT || rc == RC_UNSUPPORTED ||
        (rc == RC_IO && !save)) {
        reply_refuse(c, 400, "invalid_request_error", err.msg);
    } else if (rc) {
        reply_error(c, &err);
    } else {
        struct buf b = BUF_INIT;
        struct jwrite w;
        jwrite_init(&w, &b);
        jwrite_obj(&w, NULL);
        jwrite_u64(&w, "id_slot", slot);
        jwrite_str(&w, "filename", name);
        jwrite_u64(&w, save ? "n_saved" : "n_restored", f.n_tokens);
        jwrite_u64(&w, save ? "n_written" : "n_read", f.n_bytes);
        jwrite_obj(&w, "timings");
        jwrite_fixed(&w, save ? "save_ms" : "restore_ms", (double)(clock_mono_ns() - begun) * 1e-6,
                     3);
        jwrite_end_obj(&w);
        jwrite_end_obj(&w);
        reply_json(c, 200, &b);
        buf_release(&b);
    }
    buf_release(&path);
}

static void reply_erase(struct call *c, uint32_t slot)
{
    struct buf b = BUF_INIT;
    buf_addf(&b, "{\"id_slot\":%u,\"n_erased\":%u}", slot, engine_slot_erase(c->m->engine, slot));
    reply_json(c, 200, &b);
    buf_release(&b);
}

void slots_action(struct call *c)
{
    uint64_t slot;
    const char *action = http_query(c->r, "action");
    struct err err;
    if (!c->s->o.slot_save_path) {
        reply_refuse(c, 501, "not_supported_error",
                     "this server does not save slots: start it with --slot-save-path. What it "
                     "keeps is in GET /cache");
        return;
    }
    if (!str_to_u64(c->tail, &slot) || slot >= c->m->n_parallel)
        err_set(&err, RC_ARG, "no slot %.20s: there are 0 to %u", c->tail, c->m->n_parallel - 1);
    else if (!action)
        err_set(&err, RC_ARG, "action is missing: save, restore or erase");
    else if (!strcmp(action, "save") || !strcmp(action, "restore")) {
        reply_file(c, (uint32_t)slot, !strcmp(action, "save"));
        return;
    } else if (!strcmp(action, "erase")) {
        reply_erase(c, (uint32_t)slot);
        return;
    } else
        err_set(&err, RC_ARG, "action must be save, restore or erase");
    reply_error(c, &err);
}
