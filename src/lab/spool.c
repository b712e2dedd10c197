#include "lab/spool.h"

enum { SPOOL_MEMORY = 256 * 1024 };

void spool_init(struct spool *s)
{
    *s = (struct spool){0};
    buf_init(&s->b);
}

void spool_release(struct spool *s)
{
    buf_release(&s->b);
    if (s->f)
        fclose(s->f);
    s->f = NULL;
}

void spool_turn_over(struct spool *s)
{
    s->n_items++;
    if (s->b.failed && !s->err.rc)
        (void)err_set(&s->err, RC_NOMEM, "no memory for the list of turns");
    if (s->b.n < SPOOL_MEMORY || s->err.rc)
        return;
    if (!s->f && !(s->f = tmpfile())) {
        (void)err_sys(&s->err, "no temporary file");
        return;
    }
    if (fwrite(s->b.p, 1, s->b.n, s->f) != s->b.n)
        (void)err_sys(&s->err, "temporary file");
    buf_clear(&s->b);
}

enum rc spool_copy(struct spool *s, FILE *out, struct err *err)
{
    if (s->err.rc) {
        if (err)
            *err = s->err;
        return s->err.rc;
    }
    if (s->f) {
        char chunk[16 * 1024];
        size_t n;
        rewind(s->f);
        while ((n = fread(chunk, 1, sizeof chunk, s->f)) > 0)
            if (fwrite(chunk, 1, n, out) != n)
                return err_sys(err, "writing the report");
        if (ferror(s->f))
            return err_sys(err, "temporary file");
        fseek(s->f, 0, SEEK_END);
    }
    if (s->b.n && fwrite(s->b.p, 1, s->b.n, out) != s->b.n)
        return err_sys(err, "writing the report");
    return RC_OK;
}
