#include "base/event.h"

#include <errno.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

struct event_log {
    FILE *f;
    uint64_t start_ns;
};

enum rc event_log_open(const char *path, struct event_log **out, struct err *err)
{
    FILE *f = fopen(path, "ae");
    if (!f)
        return err_sys(err, "cannot open event log %s", path);
    struct event_log *l = mem_zalloc(sizeof *l);
    *l = (struct event_log){.f = f, .start_ns = clock_mono_ns()};
    *out = l;
    return RC_OK;
}

void event_log_close(struct event_log *l)
{
    if (!l)
        return;
    fclose(l->f);
    mem_free(l);
}

static void write_u32(struct jwrite *w, const char *key, uint32_t v)
{
    jwrite_u64(w, key, v);
}

static void write_u64(struct jwrite *w, const char *key, uint64_t v)
{
    jwrite_u64(w, key, v);
}

static void write_f64(struct jwrite *w, const char *key, double v)
{
    jwrite_fixed(w, key, v, 3);
}

static void write_str(struct jwrite *w, const char *key, const char *v)
{
    jwrite_str(w, key, v);
}

static void begin(struct jwrite *w, struct buf *b, const struct event_log *l, const char *name)
{
    jwrite_init(w, b);
    jwrite_obj(w, NULL);
    jwrite_fixed(w, "t", (double)(clock_mono_ns() - l->start_ns) * 1e-9, 6);
    jwrite_str(w, "ev", name);
}

/* One write a line: stdio locks the stream, so lines of several threads do not mix. */
static void end(struct jwrite *w, struct buf *b, struct event_log *l)
{
    jwrite_end_obj(w);
    buf_addc(b, '\n');
    if (!b->failed) {
        fwrite(b->p, 1, b->n, l->f);
        fflush(l->f);
    }
    buf_release(b);
}

#define F(kind, name) write_##kind(&w, #name, e->name);
#define EVENT(name, fields)                                                                        \
    void event_##name(struct event_log *l, const struct event_##name *e)                           \
    {                                                                                              \
        if (!l)                                                                                    \
            return;                                                                                \
        struct buf b = BUF_INIT;                                                                   \
        struct jwrite w;                                                                           \
        begin(&w, &b, l, #name);                                                                   \
        fields end(&w, &b, l);                                                                     \
    }
#include "base/event.def"
#undef EVENT
#undef F
