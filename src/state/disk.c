#include "state/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/queue.h"
#include "state/io.h"
#include "state/learned.h"

enum { SAY_AT_MOST = 5 };                             /* lines at start about files of one sort */
static const uint64_t off_ns = UINT64_C(60000000000); /* after a write that failed */

struct file {
    struct segment_head head; /* id 0: this place is free */
    disk_ref parent;
    uint32_t pages; /* of its own that are there */
    token *tokens;  /* [pos - from] */
    bool entry;     /* has a snapshot that is wanted */
    bool bad;       /* not to be gone on from: damaged, or could not be written */
    uint64_t bytes; /* of the file; 0: it is not there */
    uint32_t mark;  /* common is of this search */
    uint32_t common;
};

/* One file's share of a read. */
struct piece {
    uint64_t id;
    disk_ref ref;
    uint32_t first, n; /* pages of its own */
    void *const *dst;
};

struct job {
    struct qmsg q;
    enum job_kind { JOB_WRITE, JOB_READ, JOB_SHORTEN, JOB_REMOVE, JOB_KEEP, JOB_QUIT } kind;
    struct disk_done done;
    struct segment_head head;
    /* write */
    token *seq;
    const void **pages;
    void *last_page;
    const void *snap;
    /* read */
    struct piece *pieces;
    uint32_t n_pieces;
    void **dst;
    void *into_snap;
    disk_ref bad; /* whose file it was */
    /* shorten */
    uint32_t n_pages;
    /* keep */
    void *kept;
    size_t n_kept;
};

struct disk {
    struct disk_opts o;
    char *dir;
    int lock;
    struct queue to_write, to_read, done;
    pthread_t writer, reader;
    bool writer_runs, reader_runs;
    /* the owner's */
    struct file *files; /* [0] unused */
    size_t n, cap;
    uint64_t next_id;
    uint32_t mark;
    uint32_t n_jobs;
    uint64_t off_until_ns;
    disk_ref *by_use; /* what start found */
    uint32_t n_by_use;
    uint8_t *kept; /* the same */
    uint64_t n_kept;
    struct foreign *foreign;
    bool keeps_nothing; /* what is there is another program's */
    struct disk_stats stats;
    /* the writing thread's */
    bool keep_failed; /* and said so */
    /* both: JOB_KEEPs given and not done; relaxed, it guards nothing */
    atomic_uint keeping;
};

static struct file *file_at(const struct disk *d, disk_ref r)
{
    CHECK(r && r < d->n && d->files[r].head.id);
    return &d->files[r];
}

static void path_of(const struct disk *d, uint64_t id, char path[PATH_MAX])
{
    const int n = snprintf(path, PATH_MAX, "%s/%016" PRIx64 ".seg", d->dir, id);
    CHECK(n > 0 && n < PATH_MAX); /* disk_open looked at the length */
}

static void learned_path_of(const struct disk *d, char path[PATH_MAX])
{
    const int n =
        snprintf(path, PATH_MAX, "%s/%016" PRIx64 ".learned", d->dir, d->o.shape.fingerprint);
    CHECK(n > 0 && n < PATH_MAX);
}

/* ---- the tree of files ----------------------------------------------------------------------- */

/* The path's page that is its own first one. */
static uint32_t first_page(const struct file *f)
{
    return (uint32_t)ceil_div(f->head.from, KV_PAGE);
}

static disk_ref new_file(struct disk *d)
{
    for (size_t i = 1; i < d->n; i++)
        if (!d->files[i].head.id)
            return (disk_ref)i;
    if (!mem_grow(&d->files, &d->cap, MAX(d->n, 1) + 1, sizeof *d->files))
        return 0;
    d->n = MAX(d->n, 1) + 1;
    d->files[d->n - 1] = (struct file){0};
    return (disk_ref)(d->n - 1);
}

static void count(struct disk *d, const struct file *f, int by)
{
    d->stats.n_files += (uint32_t)by;
    d->stats.n_entries += f->entry ? (uint32_t)by : 0;
    d->stats.bytes += (uint64_t)by * f->bytes;
}

static void forget(struct disk *d, struct file *f)
{
    count(d, f, -1);
    mem_free(f->tokens);
    *f = (struct file){0};
}

static void submit(struct queue *q, struct job *j)
{
    CHECK(queue_put(q, &j->q));
}

/* Pages of r that an entry or a child needs. */
static uint32_t pages_needed(const struct disk *d, disk_ref r)
{
    const struct file *f = &d->files[r];
    if (f->entry)
        return f->pages;
    uint32_t n = 0;
    for (size_t i = 1; i < d->n; i++)
        if (d->files[i].head.id && d->files[i].parent == r)
            n = MAX(n, first_page(&d->files[i]) - first_page(f));
    return n;
}

/* What nobody needs of r goes, here and up its path. */
static void trim(struct disk *d, disk_ref r)
{
    while (r) {
        struct file *f = file_at(d, r);
        if (f->entry)
            return;
        const uint32_t n = pages_needed(d, r);
        const uint64_t bytes = n ? segment_bytes(&d->o.shape, &f->head, n) : 0;
        if (bytes < f->bytes) {
            struct job *j = mem_alloc(sizeof *j);
            *j = (struct job){.kind = n ? JOB_SHORTEN : JOB_REMOVE, .head = f->head, .n_pages = n};
            submit(&d->to_write, j);
            d->stats.bytes -= f->bytes - bytes;
            f->bytes = bytes;
            f->pages = n;
        }
        if (n)
            return;
        r = f->parent;
        forget(d, f);
    }
}

/* Tokens that seq [n] and the path of r have in common. */
static uint32_t common(struct disk *d, disk_ref r, const token *seq, uint32_t n)
{
    struct file *f = &d->files[r];
    if (f->mark == d->mark)
        return f->common;
    const uint32_t from = f->head.from;
    uint32_t c = f->parent ? common(d, f->parent, seq, n) : 0;
    if (f->bad) {
        c = MIN(c, from);
    } else if (c >= from) {
        const uint32_t to = MIN(n, f->head.pos);
        for (c = from; c < to && f->tokens[c - from] == seq[c]; c++)
            continue;
    }
    f->mark = d->mark;
    f->common = MIN(c, n);
    return f->common;
}

/* The file to go on from: most tokens whose KV it and its parents have.  *from: as segment_head has it. */
static disk_ref best_parent(struct disk *d, const token *seq, uint32_t pos, uint32_t *from)
{
    disk_ref best = 0;
    uint32_t most = 0;
    d->mark++;
    for (disk_ref r = 1; r < d->n; r++) {
        const struct file *f = &d->files[r];
        if (!f->head.id || !f->pages)
            continue;
        const uint32_t has = MIN(f->head.pos, (first_page(f) + f->pages) * KV_PAGE);
        const uint32_t c = MIN(common(d, r, seq, pos), has);
        if (c > most) {
            most = c;
            best = r;
        }
    }
    *from = most >= pos ? pos : most / KV_PAGE * KV_PAGE;
    while (best && ceil_div(*from, KV_PAGE) <= first_page(&d->files[best]))
        best = d->files[best].parent;
    return best;
}

/* ---- the threads ----------------------------------------------------------------------------- */

static enum rc run_write(struct disk *d, struct job *j)
{
    char path[PATH_MAX];
    struct err *err = &j->done.err;
    if (j->head.parent) { /* (3): it is there, unless it could not be written */
        path_of(d, j->head.parent, path);
        if (access(path, F_OK))
            return err_set(err, RC_STALE, "%s, which it goes on from, is not there", path);
    }
    path_of(d, j->head.id, path);
    const enum rc rc =
        segment_write(path, &d->o.shape, d->o.kernels, &j->head, j->seq, j->pages, j->snap, err);
    if (rc)
        (void)io_unlink(path, NULL); /* it is there when only syncing the directory failed */
    return rc;
}

static enum rc run_read(struct disk *d, struct job *j)
{
    for (uint32_t i = 0; i < j->n_pieces; i++) {
        const struct piece *p = &j->pieces[i];
        char path[PATH_MAX];
        struct segment *g;
        path_of(d, p->id, path);
        enum rc rc = segment_open(path, &d->o.shape, d->o.kernels, &g, &j->done.err);
        if (!rc) {
            rc = segment_read(g, p->first, p->n, p->dst, i ? NULL : j->into_snap, &j->done.err);
            segment_close(g);
        }
        if (rc) {
            j->bad = rc == RC_NOMEM ? 0 : p->ref;
            return rc;
        }
    }
    return RC_OK;
}

static void run_keep(struct disk *d, const struct job *j)
{
    char path[PATH_MAX];
    struct err err;
    learned_path_of(d, path);
    if (!learned_write(path, d->o.shape.fingerprint, j->kept, j->n_kept, &err))
        d->keep_failed = false;
    else if (!d->keep_failed) {
        d->keep_failed = true; /* the next ones say no more */
        log_warn(d->o.lg, "cache directory: %s; what was learned is not kept", err.msg);
    }
    atomic_fetch_sub_explicit(&d->keeping, 1, memory_order_relaxed);
}

static void free_job(struct job *j)
{
    mem_free(j->kept);
    mem_free(j->seq);
    mem_free(j->pages);
    mem_free(j->last_page);
    mem_free(j->pieces);
    mem_free(j->dst);
    mem_free(j);
}

/* False after JOB_QUIT. */
static bool run(struct disk *d, struct job *j)
{
    const uint64_t start = clock_mono_ns();
    struct err err = {0};
    char path[PATH_MAX];
    switch (j->kind) {
    case JOB_WRITE:
    case JOB_READ:
        j->done.rc = j->kind == JOB_WRITE ? run_write(d, j) : run_read(d, j);
        j->done.ns = clock_mono_ns() - start;
        CHECK(queue_put(&d->done, &j->q));
        if (d->o.wake)
            d->o.wake(d->o.ctx);
        return true;
    case JOB_SHORTEN:
        path_of(d, j->head.id, path);
        if (segment_shorten(path, &d->o.shape, &j->head, j->n_pages, &err))
            log_warn(d->o.lg, "cache directory: %s", err.msg);
        break;
    case JOB_REMOVE:
        path_of(d, j->head.id, path);
        if (io_unlink(path, &err))
            log_warn(d->o.lg, "cache directory: %s", err.msg);
        break;
    case JOB_KEEP:
        run_keep(d, j);
        break;
    case JOB_QUIT:
        free_job(j);
        return false;
    }
    free_job(j);
    return true;
}

static void serve(struct disk *d, struct queue *q)
{
    for (bool on = true; on;) {
        struct job *j = (struct job *)queue_get(q, UINT64_MAX);
        if (j)
            on = run(d, j);
    }
}

static void *writer_main(void *arg)
{
    struct disk *d = arg;
    serve(d, &d->to_write);
    return NULL;
}

static void *reader_main(void *arg)
{
    struct disk *d = arg;
    serve(d, &d->to_read);
    return NULL;
}

/* ---- start ----------------------------------------------------------------------------------- */

static enum rc lock_dir(struct disk *d, struct err *err)
{
    char path[PATH_MAX];
    if (strlen(d->dir) > PATH_MAX - 64)
        return err_set(err, RC_ARG, "the path of the cache directory is too long");
    if (mkdir(d->dir, 0700) && errno != EEXIST)
        return err_sys(err, "cannot make the cache directory %s", d->dir);
    snprintf(path, sizeof path, "%s/lock", d->dir);
    d->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->lock < 0)
        return err_sys(err, "cannot write to the cache directory: %s", path);
    if (flock(d->lock, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK
                   ? err_set(err, RC_LIMIT, "cache directory %s is in use by another process",
                             d->dir)
                   : err_sys(err, "cannot lock %s", path);
    if (access(d->dir, W_OK))
        return err_sys(err, "cannot write to the cache directory %s", d->dir);
    return RC_OK;
}

/* What start met, for at most a few lines each. */
struct found {
    uint32_t n_left, n_removed;
};

static void say_left(struct disk *d, struct found *f, const char *why)
{
    if (f->n_left++ < SAY_AT_MOST)
        log_warn(d->o.lg, "cache directory: %s; left alone", why);
}

static void say_removed(struct disk *d, struct found *f, const char *why)
{
    if (f->n_removed++ < SAY_AT_MOST)
        log_warn(d->o.lg, "cache directory: %s; removed", why);
}

enum name { NAME_OTHER, NAME_SEGMENT, NAME_LEARNED, NAME_TEMPORARY };

/* "0123456789abcdef.seg" and the like; *id is the number. */
static enum name name_of(const char *name, uint64_t *id)
{
    if (strspn(name, "0123456789abcdef") != 16)
        return NAME_OTHER;
    *id = strtoull(name, NULL, 16);
    const char *end = name + 16;
    if (!strcmp(end, ".seg"))
        return *id && *id < UINT64_MAX ? NAME_SEGMENT : NAME_OTHER;
    if (!strcmp(end, ".learned"))
        return NAME_LEARNED;
    return !strcmp(end, ".seg.tmp") || !strcmp(end, ".learned.tmp") ? NAME_TEMPORARY : NAME_OTHER;
}

static void note_foreign(struct disk *d, const char *path, uint64_t id)
{
    struct segment_head h;
    struct segment_maker by;
    bool has_snap;
    if (!segment_peek(path, &h, &by, &has_snap, NULL) && h.id == id)
        foreign_add(d->foreign, &h, &by, has_snap);
}

static enum rc take_file(struct disk *d, uint64_t id, struct found *found, struct err *err)
{
    char path[PATH_MAX];
    struct segment *g;
    struct err why;
    path_of(d, id, path);
    d->next_id = MAX(d->next_id, id + 1);
    const enum rc rc = segment_open(path, &d->o.shape, d->o.kernels, &g, &why);
    if (rc == RC_NOMEM)
        return err_set(err, rc, "%s", why.msg);
    if (rc == RC_FORMAT) {
        say_removed(d, found, why.msg);
        (void)io_unlink(path, NULL);
        return RC_OK;
    }
    if (rc) {
        say_left(d, found, why.msg);
        if (rc == RC_STALE)
            note_foreign(d, path, id);
        return RC_OK;
    }
    enum rc ok = RC_OK;
    const struct segment_head *h = segment_head(g);
    const size_t n = (h->pos - h->from) * sizeof(token);
    const disk_ref r = new_file(d);
    token *tokens = mem_try(n);
    if (h->id != id) {
        err_set(&why, RC_UNSUPPORTED, "%s was written under another name", path);
        say_left(d, found, why.msg);
        mem_free(tokens);
    } else if (!r || !tokens) {
        ok = err_set(err, RC_NOMEM, "no memory for the index of %s", path);
        mem_free(tokens);
    } else {
        memcpy(tokens, segment_tokens(g), n);
        d->files[r] = (struct file){.head = *h,
                                    .pages = segment_pages_left(g),
                                    .tokens = tokens,
                                    .bytes = segment_file_bytes(g),
                                    .entry = segment_has_snap(g)};
        count(d, &d->files[r], 1);
    }
    segment_close(g);
    return ok;
}

static enum rc scan(struct disk *d, struct found *found, struct err *err)
{
    DIR *dir = opendir(d->dir);
    if (!dir)
        return err_sys(err, "cannot read the cache directory %s", d->dir);
    enum rc rc = RC_OK;
    for (const struct dirent *e; !rc && (e = readdir(dir));) {
        uint64_t id;
        char path[PATH_MAX];
        struct err why;
        switch (name_of(e->d_name, &id)) {
        case NAME_SEGMENT:
            rc = take_file(d, id, found, err);
            break;
        case NAME_TEMPORARY:
            if (snprintf(path, sizeof path, "%s/%s", d->dir, e->d_name) < (int)sizeof path)
                (void)io_unlink(path, NULL);
            break;
        case NAME_LEARNED: /* ours is read later, the others are other models' */
            break;
        case NAME_OTHER:
            if (e->d_name[0] == '.' || !strcmp(e->d_name, "lock"))
                break;
            err_set(&why, RC_UNSUPPORTED, "%.100s is no file of ours", e->d_name);
            say_left(d, found, why.msg);
        }
    }
    closedir(dir);
    return rc;
}

struct order {
    uint64_t key;
    disk_ref ref;
};

static int by_key(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key)
                            : (x->ref > y->ref) - (x->ref < y->ref);
}

static disk_ref find_id(const struct order *o, size_t n, uint64_t id)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (o[mid].key < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && o[lo].key == id ? o[lo].ref : 0;
}

/* Whether f goes on from a file that is there, has the KV it needs and the tokens it was written after. */
static enum rc check_parent(const struct disk *d, const struct file *f, token *path,
                            struct err *err)
{
    const struct segment_head *h = &f->head;
    const struct file *p = f->parent ? &d->files[f->parent] : NULL;
    if (h->parent && (!p || h->parent >= h->id))
        return err_set(err, RC_FORMAT,
                       "%016" PRIx64 ".seg goes on from %016" PRIx64 ".seg, which is lost", h->id,
                       h->parent);
    if (p && (p->head.pos < h->from || first_page(p) + p->pages < first_page(f)))
        return err_set(err, RC_FORMAT,
                       "%016" PRIx64 ".seg goes on at token %" PRIu32
                       ", but the file before it ends earlier",
                       h->id, h->from);
    if (p) {
        token *end = path + h->from;
        for (uint32_t to = h->from; p; p = p->parent ? &d->files[p->parent] : NULL) {
            end -= to - MIN(to, p->head.from);
            memcpy(end, p->tokens, (to - MIN(to, p->head.from)) * sizeof *path);
            to = MIN(to, p->head.from);
        }
    }
    memcpy(path + h->from, f->tokens, (h->pos - h->from) * sizeof *path);
    if (segment_hash(path, h->from) != h->from_hash || segment_hash(path, h->pos) != h->path_hash)
        return err_set(err, RC_FORMAT, "%016" PRIx64 ".seg does not go on from what lies before it",
                       h->id);
    return RC_OK;
}

static enum rc link_files(struct disk *d, struct found *found, struct err *err)
{
    uint32_t longest = 0, n = 0;
    struct order *o = mem_try_array(d->n, sizeof *o);
    for (disk_ref r = 1; o && r < d->n; r++) {
        longest = MAX(longest, d->files[r].head.pos);
        o[n++] = (struct order){d->files[r].head.id, r};
    }
    token *path = mem_try_array(longest, sizeof *path);
    d->by_use = mem_try_array(d->n, sizeof *d->by_use);
    if (!o || !path || !d->by_use) {
        mem_free(o);
        mem_free(path);
        return err_set(err, RC_NOMEM, "no memory for the cache directory's %" PRIu32 " files", n);
    }
    qsort(o, n, sizeof *o, by_key);
    for (uint32_t i = 0; i < n; i++) {
        struct file *f = &d->files[o[i].ref];
        struct err why;
        f->parent = f->head.parent ? find_id(o, i, f->head.parent) : 0;
        if (f->parent && !d->files[f->parent].head.id)
            f->parent = 0; /* removed just now */
        if (check_parent(d, f, path, &why)) {
            char name[PATH_MAX];
            say_removed(d, found, why.msg);
            path_of(d, f->head.id, name);
            (void)io_unlink(name, NULL);
            forget(d, f);
        }
    }
    for (uint32_t i = n; i-- > 0;)
        if (d->files[o[i].ref].head.id)
            trim(d, o[i].ref);
    for (uint32_t i = 0; i < n; i++)
        o[i].key = d->files[o[i].ref].head.used_ns;
    qsort(o, n, sizeof *o, by_key);
    for (uint32_t i = 0; i < n; i++)
        if (d->files[o[i].ref].entry)
            d->by_use[d->n_by_use++] = o[i].ref;
    mem_free(o);
    mem_free(path);
    return RC_OK;
}

/* What was learned is worth a line, not a refusal. */
static enum rc read_learned(struct disk *d, struct err *err)
{
    char path[PATH_MAX];
    struct err why;
    learned_path_of(d, path);
    const enum rc rc = learned_read(path, d->o.shape.fingerprint, &d->kept, &d->n_kept, &why);
    if (rc == RC_NOMEM)
        return err_set(err, rc, "%s", why.msg);
    d->keeps_nothing = rc == RC_UNSUPPORTED;
    if (rc)
        log_warn(d->o.lg, "cache directory: %s; begun without what was learned%s", why.msg,
                 d->keeps_nothing ? ", and left alone" : "");
    return RC_OK;
}

static enum rc start_threads(struct disk *d, struct err *err)
{
    int failed = pthread_create(&d->writer, NULL, writer_main, d);
    d->writer_runs = !failed;
    if (!failed) {
        failed = pthread_create(&d->reader, NULL, reader_main, d);
        d->reader_runs = !failed;
    }
    if (failed)
        return err_set(err, RC_IO, "no thread for the cache directory: %s", strerror(failed));
    pthread_setname_np(d->writer, "disk-write");
    pthread_setname_np(d->reader, "disk-read");
    return RC_OK;
}

enum rc disk_open(const struct disk_opts *o, struct disk **out, struct err *err)
{
    struct disk *d = mem_zalloc(sizeof *d);
    d->o = *o;
    d->dir = mem_strdup(o->dir);
    d->lock = -1;
    d->next_id = 1;
    d->stats.max_bytes = o->max_bytes;
    queue_init(&d->to_write);
    queue_init(&d->to_read);
    queue_init(&d->done);
    d->foreign = foreign_new();
    struct found found = {0};
    enum rc rc = lock_dir(d, err);
    if (!rc)
        rc = scan(d, &found, err);
    foreign_ready(d->foreign);
    if (!rc)
        rc = link_files(d, &found, err);
    if (!rc)
        rc = read_learned(d, err);
    if (found.n_left > SAY_AT_MOST)
        log_warn(o->lg, "cache directory: and %" PRIu32 " more files that are left alone",
                 found.n_left - SAY_AT_MOST);
    if (found.n_removed > SAY_AT_MOST)
        log_warn(o->lg, "cache directory: and %" PRIu32 " more files that are removed",
                 found.n_removed - SAY_AT_MOST);
    if (!rc)
        rc = start_threads(d, err);
    if (rc) {
        disk_close(d);
        return rc;
    }
    *out = d;
    return RC_OK;
}

static void quit(struct queue *q, pthread_t t)
{
    struct job *j = mem_alloc(sizeof *j);
    *j = (struct job){.kind = JOB_QUIT};
    submit(q, j);
    pthread_join(t, NULL);
}

static void drain(struct queue *q)
{
    for (struct qmsg *m; (m = queue_get(q, 0));)
        free_job((struct job *)m);
    queue_release(q);
}

void disk_close(struct disk *d)
{
    if (!d)
        return;
    if (d->writer_runs)
        quit(&d->to_write, d->writer);
    if (d->reader_runs)
        quit(&d->to_read, d->reader);
    drain(&d->to_write);
    drain(&d->to_read);
    drain(&d->done);
    for (disk_ref r = 1; r < d->n; r++)
        mem_free(d->files[r].tokens);
    mem_free(d->files);
    mem_free(d->by_use);
    mem_free(d->kept);
    foreign_free(d->foreign);
    if (d->lock >= 0)
        close(d->lock);
    mem_free(d->dir);
    mem_free(d);
}

/* ---- the owner's calls ----------------------------------------------------------------------- */

disk_ref disk_at(const struct disk *d, uint32_t i)
{
    return i < d->n_by_use ? d->by_use[i] : 0;
}

const struct segment_head *disk_head(const struct disk *d, disk_ref r)
{
    return &file_at(d, r)->head;
}

uint64_t disk_bytes_of(const struct disk *d, disk_ref r)
{
    return file_at(d, r)->bytes;
}

void disk_path(const struct disk *d, disk_ref r, token *out)
{
    const struct file *f = file_at(d, r);
    for (uint32_t to = f->head.pos;; f = &d->files[f->parent]) {
        const uint32_t from = f->head.from;
        if (from < to) {
            memcpy(out + from, f->tokens, (to - from) * sizeof *out);
            to = from;
        }
        if (!f->parent)
            return;
    }
}

struct foreign_state disk_foreign(const struct disk *d, const token *seq, uint32_t n, uint32_t from)
{
    return foreign_find(d->foreign, seq, n, from);
}

disk_ref disk_write(struct disk *d, const struct segment_head *h, const token *seq,
                    const void *const *pages, const void *snap, uint64_t tag)
{
    if (clock_mono_ns() < d->off_until_ns)
        return 0;
    struct file f = {.head = *h, .entry = true};
    f.head.id = d->next_id;
    f.parent = best_parent(d, seq, h->pos, &f.head.from);
    f.head.parent = f.parent ? file_at(d, f.parent)->head.id : 0;
    f.pages = segment_n_pages(&f.head);
    f.bytes = segment_whole_bytes(&d->o.shape, &f.head);
    if (d->stats.bytes + f.bytes > d->o.max_bytes) {
        log_debug(d->o.lg,
                  "cache directory: %" PRIu64 " of %" PRIu64 " bytes used, %" PRIu64
                  " more do not fit",
                  d->stats.bytes, d->o.max_bytes, f.bytes);
        return 0;
    }
    const uint32_t n_own = h->pos - f.head.from, part = h->pos % KV_PAGE;
    const uint64_t page_bytes = shape_page_bytes(&d->o.shape);
    const disk_ref r = new_file(d);
    struct job *j = mem_alloc(sizeof *j);
    *j = (struct job){.kind = JOB_WRITE, .head = f.head, .snap = snap};
    j->done = (struct disk_done){.write = true, .ref = r, .tag = tag};
    j->done.bytes = f.bytes;
    j->seq = mem_try_array(h->pos, sizeof *j->seq);
    j->pages = mem_try_array(f.pages, sizeof *j->pages);
    j->last_page = f.pages && part ? mem_try(page_bytes) : NULL;
    f.tokens = mem_try_array(n_own, sizeof *f.tokens);
    if (!r || !j->seq || !j->pages || (f.pages && part && !j->last_page) || !f.tokens) {
        free_job(j);
        mem_free(f.tokens);
        return 0;
    }
    memcpy(j->seq, seq, h->pos * sizeof *seq);
    memcpy(f.tokens, seq + f.head.from, n_own * sizeof *seq);
    for (uint32_t i = 0; i < f.pages; i++)
        j->pages[i] = pages[first_page(&f) + i];
    if (j->last_page) { /* a running sequence may go on writing its other rows */
        memcpy(j->last_page, j->pages[f.pages - 1], page_bytes);
        j->pages[f.pages - 1] = j->last_page;
    }
    d->next_id++;
    d->files[r] = f;
    count(d, &d->files[r], 1);
    d->n_jobs++;
    submit(&d->to_write, j);
    return r;
}

bool disk_read(struct disk *d, disk_ref r, uint32_t first, void *const *dst, void *snap,
               uint64_t tag)
{
    const struct file *f = file_at(d, r);
    const uint32_t n = (uint32_t)ceil_div(f->head.pos, KV_PAGE);
    uint32_t depth = 1;
    for (const struct file *p = f; p->parent; p = &d->files[p->parent])
        depth++;
    struct job *j = mem_alloc(sizeof *j);
    *j = (struct job){.kind = JOB_READ, .into_snap = snap};
    j->done = (struct disk_done){.ref = r, .tag = tag};
    j->pieces = mem_try_array(depth, sizeof *j->pieces);
    j->dst = mem_try_array(n - first, sizeof *j->dst);
    if (!j->pieces || !j->dst) {
        free_job(j);
        return false;
    }
    if (n > first)
        memcpy(j->dst, dst, (n - first) * sizeof *dst);
    uint32_t to = n;
    for (disk_ref at = r; at && (at == r || to > first); at = f->parent) {
        f = &d->files[at];
        const uint32_t lo = MIN(MAX(first_page(f), first), to);
        j->pieces[j->n_pieces++] = (struct piece){
            .id = f->head.id,
            .ref = at,
            .first = lo - MIN(first_page(f), lo),
            .n = to - lo,
            .dst = j->dst + (lo - MIN(first, lo)),
        };
        to = lo;
    }
    CHECK(to <= first);
    j->done.bytes = (n - first) * shape_page_bytes(&d->o.shape) + shape_snap_bytes(&d->o.shape);
    d->n_jobs++;
    submit(&d->to_read, j);
    return true;
}

void disk_drop(struct disk *d, disk_ref r)
{
    struct file *f = file_at(d, r);
    f->entry = false;
    d->stats.n_entries--;
    trim(d, r);
}

void disk_keep(struct disk *d, void *p, size_t n)
{
    if (d->keeps_nothing) {
        mem_free(p);
        return;
    }
    mem_free(d->kept);
    d->kept = NULL;
    d->n_kept = 0;
    atomic_fetch_add_explicit(&d->keeping, 1, memory_order_relaxed);
    struct job *j = mem_alloc(sizeof *j);
    *j = (struct job){.kind = JOB_KEEP, .kept = p, .n_kept = n};
    submit(&d->to_write, j);
}

bool disk_is_keeping(const struct disk *d)
{
    return atomic_load_explicit(&d->keeping, memory_order_relaxed);
}

const void *disk_kept(const struct disk *d, size_t *n)
{
    *n = d->n_kept;
    return d->kept;
}

static void wrote(struct disk *d, const struct job *j)
{
    struct disk_stats *s = &d->stats;
    if (!j->done.rc) {
        s->writes++;
        s->write_bytes += j->done.bytes;
        s->write_ns += j->done.ns;
        return;
    }
    s->failed_writes++;
    if (j->done.rc == RC_IO) {
        if (clock_mono_ns() >= d->off_until_ns)
            log_warn(d->o.lg, "cache directory: %s; nothing is written for a minute",
                     j->done.err.msg);
        d->off_until_ns = clock_mono_ns() + off_ns;
    } else {
        log_debug(d->o.lg, "cache directory: %s", j->done.err.msg);
    }
    struct file *f = file_at(d, j->done.ref);
    f->bad = true;
    d->stats.bytes -= f->bytes;
    f->bytes = 0;
    disk_drop(d, j->done.ref);
}

static void was_read(struct disk *d, const struct job *j)
{
    struct disk_stats *s = &d->stats;
    if (!j->done.rc) {
        s->reads++;
        s->read_bytes += j->done.bytes;
        s->read_ns += j->done.ns;
        return;
    }
    s->failed_reads++;
    if (j->bad)
        file_at(d, j->bad)->bad = true;
    log_warn(d->o.lg, "cache directory: %s; the entry at token %" PRIu32 " is lost",
             j->done.err.msg, file_at(d, j->done.ref)->head.pos);
}

bool disk_poll(struct disk *d, uint64_t timeout_ns, struct disk_done *out)
{
    struct job *j = (struct job *)queue_get(&d->done, timeout_ns);
    if (!j)
        return false;
    d->n_jobs--;
    if (j->kind == JOB_WRITE)
        wrote(d, j);
    else
        was_read(d, j);
    *out = j->done;
    free_job(j);
    return true;
}

uint32_t disk_n_jobs(const struct disk *d)
{
    return d->n_jobs;
}

void disk_stats(const struct disk *d, struct disk_stats *out)
{
    *out = d->stats;
    out->writes_off = clock_mono_ns() < d->off_until_ns;
}
