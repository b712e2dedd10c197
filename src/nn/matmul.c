/* matmul.c - matrices as packed tiles, activations as rows, and the cutting of a product into parts.
 *
 * A part is some rows of matrices laid end to end, times some of the activation rows.  Neither cut
 * touches a sum (a lane is an output row, a token its own register), so parts are cut for speed alone:
 * small enough that the workers finish together, large enough to be worth handing out.
 */
#include "nn/matmul.h"

#include <string.h>

#include "base/mem.h"
#include "kern/kern.h"
#include "kern/quant.h"
#include "nn/mat_heap.h"

enum {
    PANEL_ROWS = 32, /* the rows a kernel takes at a time; divides every cut */
    MAX_JOBS = 32,
    MAX_MATS = 4096, /* experts in one tensor */
    TOKENS_A_PART = 240,
    PACK_TILES = 8,        /* tiles packed in one part */
    PACK_BYTES = 16 << 20, /* about so much is packed before the source is given back */
};

struct mat {
    const struct kern *kern;
    enum dtype type;
    enum pack pack;
    uint64_t cols, rows;
    uint32_t n_mats;
    uint64_t tile_bytes, tiles; /* bytes of a tile, tiles of one matrix */
    uint64_t row_bytes;         /* in the file's layout */
    bool in_heap;               /* packed is the heap's */
    uint8_t *packed;            /* [n_mats][tiles][tile_bytes]; NULL: raw is used */
    uint64_t packed_bytes;
    const uint8_t *raw; /* borrowed */
};

struct act {
    const struct kern *kern;
    uint32_t max_rows;
    uint64_t max_cols;
    const float *x; /* borrowed, [n][cols], stride ldx */
    uint32_t n;
    uint64_t cols, ldx;
    struct act32 *q32; /* [n][chunks]; valid when has32 */
    struct act256 *q256;
    bool has32, has256;
};

/* ---- matrices ---- */

struct packing {
    const struct mat *m;
    const uint8_t *src;
    uint64_t first, end; /* tiles */
};

static void pack_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    const struct packing *p = ctx;
    const struct mat *m = p->m;
    const uint64_t first = p->first + (uint64_t)part * PACK_TILES;
    const uint64_t end = MIN(first + PACK_TILES, p->end);
    for (uint64_t i = first; i < end; i++) {
        const uint64_t row = i % m->tiles * TILE_ROWS;
        const uint32_t n = (uint32_t)MIN(m->rows - row, (uint64_t)TILE_ROWS);
        const uint8_t *src = p->src + (i / m->tiles * m->rows + row) * m->row_bytes;
        uint8_t *out = m->packed + i * m->tile_bytes;
        const uint32_t chunk_bytes = pack_chunk(m->pack, CHUNK_COLS).bytes;
        for (uint64_t c = 0; c * CHUNK_COLS < m->cols; c++, out += chunk_bytes)
            pack_chunk_from(m->type, src, m->row_bytes, n, m->cols, c, out);
    }
}

/* Bytes of the source that tiles [0, n) are made of. */
static uint64_t source_bytes(const struct mat *m, uint64_t n)
{
    return (n / m->tiles * m->rows + n % m->tiles * TILE_ROWS) * m->row_bytes;
}

static enum rc pack_all(struct mat *m, struct pool *pool, const struct mat_src *src,
                        const struct mat_opts *o, struct err *err)
{
    uint64_t bytes;
    if (!mul_u64(m->tiles * m->n_mats, m->tile_bytes, &bytes) || bytes > SIZE_MAX / 2)
        return err_set(err, RC_LIMIT, "%s: its packed size does not fit", src->name);
    m->in_heap = o && o->heap;
    m->packed = m->in_heap ? mat_heap_try(o->heap, bytes) : mem_try_huge(round_up(bytes, 64));
    if (!m->packed)
        return err_set(err, RC_NOMEM, "%s: no memory for %" PRIu64 " bytes of packed weights",
                       src->name, bytes);
    m->packed_bytes = bytes;
    const uint64_t all = m->tiles * m->n_mats, step = MAX(PACK_BYTES / m->tile_bytes, 1);
    struct packing p = {m, src->data, 0, 0};
    for (; p.first < all; p.first = p.end) {
        p.end = MIN(p.first + step, all);
        pool_run(pool, (uint32_t)ceil_div(p.end - p.first, PACK_TILES), pack_part, &p);
        const uint64_t from = source_bytes(m, p.first), to = source_bytes(m, p.end);
        if (o && o->packed)
            o->packed(o->ctx, from, to - from);
    }
    return RC_OK;
}

enum rc mat_new(const struct kern *k, struct pool *pool, const struct mat_src *src,
                const struct mat_opts *o, struct mat **out, struct err *err)
{
    const struct dtype_info *info = dtype_info(src->type);
    CHECK(info);
    uint64_t elems, all;
    if (src->cols == 0 || src->rows == 0 || src->n_mats == 0 || src->n_mats > MAX_MATS ||
        src->cols > UINT32_MAX || src->rows > UINT32_MAX ||
        !mul_u64(src->cols, src->rows, &elems) || !mul_u64(elems, (uint64_t)src->n_mats * 4, &all))
        return err_set(err, RC_LIMIT,
                       "%s: %u matrices of %" PRIu64 " x %" PRIu64 " are outside what is supported",
                       src->name, src->n_mats, src->cols, src->rows);
    if (src->cols % info->block_elems)
        return err_set(err, RC_FORMAT,
                       "%s: rows of %" PRIu64 " elements do not fit %s's blocks of %u", src->name,
                       src->cols, info->name, info->block_elems);
    struct mat *m = mem_zalloc(sizeof *m);
    *m = (struct mat){.kern = k,
                      .type = src->type,
                      .pack = pack_of(src->type),
                      .cols = src->cols,
                      .rows = src->rows,
                      .n_mats = src->n_mats,
                      .tiles = ceil_div(src->rows, TILE_ROWS),
                      .row_bytes = src->cols / info->block_elems * info->block_bytes,
                      .raw = src->data};
    m->tile_bytes = pack_tile_bytes(m->pack, m->cols);
    if (!o || !o->no_repack) {
        const enum rc rc = pack_all(m, pool, src, o, err);
        if (rc) {
            mat_free(m);
            return rc;
        }
        m->raw = NULL;
    }
    *out = m;
    return RC_OK;
}

void mat_free(struct mat *m)
{
    if (!m)
        return;
    if (!m->in_heap)
        mem_free(m->packed);
    mem_free(m);
}

uint64_t mat_rows(const struct mat *m)
{
    return m->rows;
}

uint64_t mat_cols(const struct mat *m)
{
    return m->cols;
}

uint64_t mat_bytes(const struct mat *m)
{
    return m->packed_bytes;
}

bool mat_owns_data(const struct mat *m)
{
    return m->packed != NULL;
}

void mat_row(const struct mat *m, uint64_t r, float *out)
{
    assert(r < m->rows);
    if (m->packed)
        pack_row(m->pack, m->packed + r / TILE_ROWS * m->tile_bytes, m->cols,
                 (uint32_t)(r % TILE_ROWS), out);
    else
        quant_decode(m->type, m->raw + r * m->row_bytes, m->cols, out);
}

/* ---- activations ---- */

enum rc act_new(const struct kern *k, uint32_t max_rows, uint64_t max_cols, struct act **out,
                struct err *err)
{
    struct act *a = mem_zalloc(sizeof *a);
    *a = (struct act){.kern = k, .max_rows = max_rows, .max_cols = max_cols};
    uint64_t n32, n256;
    if (mul_u64(max_rows, ceil_div(max_cols, CHUNK_COLS) * sizeof *a->q32, &n32) &&
        mul_u64(max_rows, ceil_div(max_cols, CHUNK_COLS) * sizeof *a->q256, &n256)) {
        a->q32 = mem_try_huge(round_up(n32, 64));
        a->q256 = mem_try_huge(round_up(n256, 64));
    }
    if (!a->q32 || !a->q256) {
        act_free(a);
        return err_set(err, RC_NOMEM, "no memory for %u rows of %" PRIu64 " activations", max_rows,
                       max_cols);
    }
    *out = a;
    return RC_OK;
}

void act_free(struct act *a)
{
    if (!a)
        return;
    mem_free(a->q32);
    mem_free(a->q256);
    mem_free(a);
}

void act_set(struct act *a, const float *x, uint32_t n, uint64_t cols, uint64_t ldx)
{
    assert(n <= a->max_rows && cols <= a->max_cols);
    a->x = x;
    a->n = n;
    a->cols = cols;
    a->ldx = ldx;
    a->has32 = a->has256 = false;
}

struct quantising {
    struct act *a;
    bool want32, want256;
};

enum { QUANT_ROWS = 8 };

static void quant_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    const struct quantising *q = ctx;
    struct act *a = q->a;
    const uint64_t chunks = ceil_div(a->cols, CHUNK_COLS);
    const uint32_t end = MIN(a->n, (part + 1) * QUANT_ROWS);
    for (uint32_t i = part * QUANT_ROWS; i < end; i++) {
        const float *x = a->x + i * a->ldx;
        if (q->want32)
            a->kern->act32(x, a->cols, a->q32 + i * chunks);
        if (q->want256)
            a->kern->act256(x, a->cols, a->q256 + i * chunks);
    }
}

/* The copies that matrix w asks for and that were not made since act_set. */
static void want(const struct mat *w, struct quantising *q)
{
    if (pack_is_float(w->pack))
        return;
    if (pack_is_act256(w->pack))
        q->want256 |= !q->a->has256;
    else
        q->want32 |= !q->a->has32;
}

static void quantise(struct pool *pool, struct quantising *q)
{
    if (!q->want32 && !q->want256)
        return;
    pool_run(pool, (uint32_t)ceil_div(q->a->n, QUANT_ROWS), quant_part, q);
    q->a->has32 |= q->want32;
    q->a->has256 |= q->want256;
}

/* What the kernel needs to know of w and a; rows and tokens are still to be set. */
static struct kern_mul mul_of(const struct mat *w, uint32_t index, const struct act *a)
{
    assert(w->cols == a->cols && index < w->n_mats);
    struct kern_mul k = {.pack = w->pack,
                         .n_cols = w->cols,
                         .n_rows = w->rows,
                         .tile_bytes = w->tile_bytes,
                         .type = w->type,
                         .row_bytes = w->row_bytes};
    if (w->packed)
        k.tiles = w->packed + index * w->tiles * w->tile_bytes;
    else
        k.raw = w->raw + index * w->rows * w->row_bytes;
    const uint64_t chunks = ceil_div(a->cols, CHUNK_COLS);
    if (pack_is_float(w->pack)) {
        k.x = a->x;
        k.x_stride = a->ldx * sizeof *a->x;
    } else if (pack_is_act256(w->pack)) {
        k.x = a->q256;
        k.x_stride = chunks * sizeof *a->q256;
    } else {
        k.x = a->q32;
        k.x_stride = chunks * sizeof *a->q32;
    }
    return k;
}

/* ---- products ---- */

/* Up to here memory sets the time. */
enum { FEW_TOKENS = 16 };

/* How rows are cut.  Many tokens: equal parts of some tens of microseconds of arithmetic.
 *
 * Few tokens: a part's memory must first begin to flow, so that parts of 64 KiB get but 80 % of what long
 * ones do.  In a round each thread gets an equal part of two thirds of what is left, and of all that is
 * left in the last.  (Three quarters: once in ten times a thread waits 27 us for the other; half: never, but
 * there are more parts.)
 *
 *     | thread 0         | thread 1         | 0   | 1   | 0 | 1 |
 */
struct cut {
    uint64_t rows; /* of all matrices, each filled up to PANEL_ROWS */
    uint64_t step; /* rows of a part; 0: rounds */
    uint32_t n_threads, n_rounds;
    uint32_t n_parts;
};

enum { LEAVE = 3, LAST_PART = 16 << 10 }; /* bytes; about what the threads' ends may lie apart */

/* rows with so many bytes of weights, times n tokens. */
static struct cut cut_make(const struct pool *pool, uint64_t rows, uint64_t bytes, uint64_t cols,
                           uint32_t n)
{
    struct cut c = {.rows = rows, .n_threads = pool_n_threads(pool), .n_rounds = 1};
    if (n > FEW_TOKENS) {
        c.step = round_up(MAX((2 << 20) / (cols * MIN(n, TOKENS_A_PART)), 1), PANEL_ROWS);
        c.n_parts = (uint32_t)ceil_div(rows, c.step);
        return c;
    }
    for (uint64_t left = bytes / c.n_threads; c.n_threads > 1 && left > (uint64_t)LEAVE * LAST_PART;
         left /= LEAVE)
        c.n_rounds++;
    c.n_parts = c.n_threads * c.n_rounds;
    return c;
}

/* The first row of a part; of part n_parts the end. */
static uint64_t cut_begin(const struct cut *c, uint32_t part)
{
    if (c->step)
        return MIN(part * c->step, c->rows);
    const uint32_t round = part / c->n_threads;
    uint64_t left = c->rows;
    for (uint32_t r = 0; r < MIN(round, c->n_rounds); r++)
        left = r + 1 < c->n_rounds ? left / LEAVE : 0;
    const uint64_t take = round + 1 < c->n_rounds ? left - left / LEAVE : left;
    const uint64_t begin = c->rows - left + take * (part % c->n_threads) / c->n_threads;
    return MIN(round_up(begin, PANEL_ROWS), c->rows);
}

struct product {
    const struct matmul_job *jobs;
    const struct act *a;
    uint32_t n_jobs;
    struct cut cut;
    uint64_t first[MAX_JOBS + 1]; /* job j has rows [first[j], first[j + 1]) of the cut */
};

/* Rows [begin, end) of a job times tokens from t0 on. */
static void job_rows(const struct product *p, const struct matmul_job *job, uint64_t begin,
                     uint64_t end, uint32_t t0)
{
    /* of a block of outputs; those of one token follow one another */
    const uint64_t width = job->block && p->a->n > 1 ? job->block : job->w->rows;
    struct kern_mul k = mul_of(job->w, 0, p->a);
    k.x = (const char *)k.x + t0 * k.x_stride;
    k.n = MIN(p->a->n - t0, (uint32_t)TOKENS_A_PART);
    k.ldy = job->block ? job->block : job->ldy;
    for (k.row_begin = begin; k.row_begin < end; k.row_begin = k.row_end) {
        const uint64_t b = k.row_begin / width;
        k.row_end = MIN(end, (b + 1) * width);
        /* the kernel counts outputs from the matrix' first row: b blocks of width before this one's */
        k.y = job->y + b * (p->a->n - 1) * width + t0 * k.ldy;
        job->w->kern->mul(&k);
    }
}

static void product_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    const struct product *p = ctx;
    const uint32_t block = part / p->cut.n_parts, at = part % p->cut.n_parts;
    const uint64_t begin = cut_begin(&p->cut, at), end = cut_begin(&p->cut, at + 1);
    for (uint32_t j = 0; j < p->n_jobs; j++) {
        const uint64_t first = p->first[j], from = MAX(begin, first);
        const uint64_t to = MIN(end, first + p->jobs[j].w->rows);
        if (from < to)
            job_rows(p, &p->jobs[j], from - first, to - first, block * TOKENS_A_PART);
    }
}

void matmul_many(struct pool *pool, const struct matmul_job *jobs, uint32_t n_jobs, struct act *a)
{
    CHECK(n_jobs <= MAX_JOBS);
    for (uint32_t j = 0; j < n_jobs; j++)
        assert(jobs[j].block % TILE_ROWS == 0);
    if (a->n == 0 || n_jobs == 0)
        return;
    struct quantising q = {.a = a};
    struct product p = {.jobs = jobs, .a = a, .n_jobs = n_jobs};
    uint64_t bytes = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        want(jobs[j].w, &q);
        p.first[j + 1] = p.first[j] + round_up(jobs[j].w->rows, PANEL_ROWS);
        bytes += jobs[j].w->tiles * jobs[j].w->tile_bytes;
    }
    p.cut = cut_make(pool, p.first[n_jobs], bytes, a->cols, a->n);
    quantise(pool, &q);
    pool_run(pool, p.cut.n_parts * (uint32_t)ceil_div(a->n, TOKENS_A_PART), product_part, &p);
}

void matmul(struct pool *pool, const struct mat *w, struct act *a, float *y, uint64_t ldy)
{
    const struct matmul_job job = {.w = w, .y = y, .ldy = ldy};
    matmul_many(pool, &job, 1, a);
}

/* ---- experts ---- */

struct experts {
    const struct mat *w;
    const struct act *a;
    const uint32_t *row;
    float *y;
    uint64_t ldy;
    uint32_t n_runs;
    struct cut cut; /* of all runs' rows, run after run */
    struct {
        uint32_t expert, begin, end; /* pairs [begin, end) */
    } runs[MAX_MATS];
};

static void experts_part(void *ctx, uint32_t part, uint32_t worker)
{
    (void)worker;
    const struct experts *e = ctx;
    const uint64_t rows = round_up(e->w->rows, PANEL_ROWS);
    const uint64_t begin = cut_begin(&e->cut, part), end = cut_begin(&e->cut, part + 1);
    for (uint64_t at = begin; at < end; at = (at / rows + 1) * rows) {
        const uint32_t run = (uint32_t)(at / rows);
        struct kern_mul k = mul_of(e->w, e->runs[run].expert, e->a);
        k.row_begin = at - run * rows;
        k.row_end = MIN(end - run * rows, e->w->rows);
        k.rows = e->row + e->runs[run].begin;
        k.n = e->runs[run].end - e->runs[run].begin;
        k.y = e->y + e->runs[run].begin * e->ldy;
        k.ldy = e->ldy;
        e->w->kern->mul(&k);
    }
}

void matmul_experts(struct pool *pool, const struct mat *w, struct act *a, const uint32_t *expert,
                    const uint32_t *row, uint32_t n_pairs, float *y, uint64_t ldy)
{
    if (n_pairs == 0)
        return;
    struct quantising q = {.a = a};
    want(w, &q);
    quantise(pool, &q);
    struct experts e; /* not zeroed: runs is large */
    e.w = w;
    e.a = a;
    e.row = row;
    e.y = y;
    e.ldy = ldy;
    e.n_runs = 0;
    for (uint32_t i = 0; i < n_pairs; i++) {
        assert(expert[i] < w->n_mats && row[i] < a->n && (i == 0 || expert[i - 1] <= expert[i]));
        if (i == 0 || expert[i] != expert[i - 1]) {
            e.runs[e.n_runs].expert = expert[i];
            e.runs[e.n_runs++].begin = i;
        }
        e.runs[e.n_runs - 1].end = i + 1;
    }
    e.cut = cut_make(pool, e.n_runs * round_up(w->rows, PANEL_ROWS),
                     e.n_runs * w->tiles * w->tile_bytes, w->cols,
                     (uint32_t)ceil_div(n_pairs, e.n_runs));
    pool_run(pool, e.cut.n_parts, experts_part, &e);
}
