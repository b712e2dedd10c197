#include "model/model.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kern/kern.h"
#include "kern/pick.h"
#include "model/model_int.h"
#include "nn/mat_heap.h"

static const struct arch *const archs[] = {&arch_qwen35, &arch_qwen35moe};

enum { DEFAULT_BATCH = 512, MAX_BATCH = 1 << 16 };

/* ---- what a file holds ---- */

static enum rc find_arch(const struct gguf *g, const struct arch **out, struct err *err)
{
    struct str type = {NULL, 0}, name;
    enum rc rc = gguf_get_str(g, "general.type", false, &type, err);
    if (!rc && type.n && !str_is(type, "model"))
        rc = err_set(err, RC_UNSUPPORTED, "general.type is \"%.*s\": the file is no model",
                     (int)MIN(type.n, 64), type.p);
    if (!rc)
        rc = gguf_get_str(g, "general.architecture", true, &name, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < COUNT_OF(archs); i++)
        if (str_is(name, archs[i]->name)) {
            *out = archs[i];
            return RC_OK;
        }
    return err_set(err, RC_UNSUPPORTED,
                   "architecture \"%.*s\" is not done: qwen35 and qwen35moe are",
                   (int)MIN(name.n, 64), name.p);
}

/* Checks, or loads, all tensors of the trunk.  layers and the rest of m are filled with load only. */
static enum rc bind_all(struct bind *b, const struct hparams *hp, const struct arch *arch,
                        struct model *m, struct err *err)
{
    const uint64_t E = hp->n_embd, V = hp->n_vocab;
    const bool tied = !bind_has(b, "output.weight");
    struct model nobody = {0};
    m = m ? m : &nobody;
    enum rc rc;
    if ((rc = tied ? bind_mat(b, "token_embd.weight", E, V, 1, &m->embd, err)
                   : bind_rows(b, "token_embd.weight", E, V, &m->embd, err)))
        return rc;
    if (tied)
        m->head = m->embd;
    else if ((rc = bind_mat(b, "output.weight", E, V, 1, &m->head, err)))
        return rc;
    if ((rc = bind_vec(b, "output_norm.weight", E, &m->out_norm, err)))
        return rc;
    uint32_t n[2] = {0};
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        struct layer unused = {0}, *l = m->layers ? &m->layers[i] : &unused;
        l->index = n[hp->recurrent[i]]++;
        if ((rc = qwen35_bind_layer(b, hp, i, arch, l, err)))
            return rc;
    }
    return RC_OK;
}

static void fill_info(const struct arch *arch, const struct hparams *hp, const struct bind *b,
                      enum kv_type kv_type, struct model_info *info)
{
    *info = (struct model_info){.arch = arch->name,
                                .name = "",
                                .isa = "",
                                .n_layer = hp->n_layer,
                                .n_embd = hp->n_embd,
                                .n_vocab = hp->n_vocab,
                                .n_ctx_train = hp->n_ctx,
                                .n_params = b->n_params,
                                .weight_bytes = b->weight_bytes,
                                .shape = hparams_shape(hp, kv_type)};
}

enum rc model_describe(const struct gguf *g, enum kv_type kv_type, struct model_info *out,
                       struct err *err)
{
    const struct arch *arch;
    struct hparams hp;
    struct bind b = {0};
    enum rc rc;
    if ((rc = find_arch(g, &arch, err)) ||
        (rc = hparams_read(g, arch->name, arch->moe, &hp, err)) ||
        (rc = bind_init(&b, g, NULL, err)))
        return rc;
    if (!(rc = bind_all(&b, &hp, arch, NULL, err)) && !(rc = bind_rest(&b, hp.n_layer, err)))
        fill_info(arch, &hp, &b, kv_type, out);
    bind_release(&b);
    return rc;
}

/* ---- fingerprint ---- */

static void hash_u64(XXH3_state_t *h, uint64_t x)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(x >> 8 * i);
    XXH3_64bits_update(h, le, sizeof le);
}

static void hash_str(XXH3_state_t *h, struct str s)
{
    hash_u64(h, s.n);
    XXH3_64bits_update(h, s.p, s.n);
}

/* A trained model differs from another in every matrix, so three samples of each will tell. */
static void hash_tensor(XXH3_state_t *h, const struct gguf_tensor *t)
{
    enum { SAMPLE = 256 };
    hash_str(h, t->name);
    hash_u64(h, t->type);
    for (int i = 0; i < 4; i++)
        hash_u64(h, t->ne[i]);
    const uint64_t n = MIN(t->bytes, SAMPLE);
    XXH3_64bits_update(h, t->data, n);
    XXH3_64bits_update(h, t->data + (t->bytes - n) / 2, n);
    XXH3_64bits_update(h, t->data + (t->bytes - n), n);
}

/* Of everything the bits of KV and state depend on: numbers, weights, arithmetic, layout. */
static uint64_t fingerprint(const struct gguf *g, const struct hparams *hp, const struct rope *rope,
                            const char *isa, enum kv_type kv_type)
{
    enum { LAYOUT = 1 }; /* of pages and slots; another arithmetic of a table counts too */
    XXH3_state_t *h = XXH3_createState();
    CHECK(h);
    XXH3_64bits_reset(h);
    hash_u64(h, LAYOUT);
    hash_str(h, str_of(isa));
    hash_u64(h, kv_type);
    const uint64_t numbers[] = {
        hp->moe,    hp->n_layer,   hp->n_embd,     hp->n_vocab,   hp->n_ff,       hp->n_experts,
        hp->n_used, hp->n_ff_exp,  hp->n_ff_shexp, hp->n_heads,   hp->n_kv_heads, hp->head_dim,
        hp->rot,    hp->conv_taps, hp->state_dim,  hp->n_k_heads, hp->n_v_heads};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        hash_u64(h, numbers[i]);
    for (uint32_t i = 0; i < hp->n_layer; i++)
        hash_u64(h, hp->recurrent[i]);
    XXH3_64bits_update(h, rope->freq, rope->rot / 2 * sizeof *rope->freq);
    XXH3_64bits_update(h, &hp->eps, sizeof hp->eps);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        hash_tensor(h, gguf_tensor_at(g, i));
    const uint64_t f = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return f;
}

/* ---- open ---- */

static enum rc make_scratch(struct model *m, const struct rope *rope, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const uint64_t B = m->info.max_batch, E = hp->n_embd;
    const uint64_t wide = qwen35_wide(hp);
    m->mem = mem_try_huge(B * (3 * E + wide) * sizeof(float));
    m->runs = mem_try_array(B, sizeof *m->runs);
    m->tokens = mem_try_array(B, sizeof *m->tokens);
    m->wanted = mem_try_array(B, sizeof *m->wanted);
    m->n_silent = mem_try_array(B, sizeof *m->n_silent);
    m->logits = mem_try_array(B, sizeof *m->logits);
    if (!m->mem || !m->runs || !m->tokens || !m->wanted || !m->n_silent || !m->logits)
        return err_set(err, RC_NOMEM, "no memory for batches of %" PRIu64 " rows", B);
    m->x = m->mem;
    m->h = m->x + B * E;
    m->y = m->h + B * E;
    m->wide = m->y + B * E;

    const struct attn_shape as = {.n_heads = hp->n_heads,
                                  .n_kv_heads = hp->n_kv_heads,
                                  .head_dim = hp->head_dim,
                                  .kv_type = m->info.shape.kv_type,
                                  .eps = hp->eps,
                                  .max_rows = (uint32_t)B};
    const struct delta_shape ds = {.n_k_heads = hp->n_k_heads,
                                   .n_v_heads = hp->n_v_heads,
                                   .dim = hp->state_dim,
                                   .n_taps = hp->conv_taps,
                                   .eps = hp->eps};
    const uint64_t vd = (uint64_t)hp->n_v_heads * hp->state_dim;
    const uint64_t hidden = MAX(hp->n_ff, hp->n_ff_shexp);
    const uint64_t mixed = MAX((uint64_t)hp->n_heads * hp->head_dim, vd);
    enum rc rc;
    if ((rc = attn_new(m->kern, m->pool, &as, rope, &m->attn, err)) ||
        (rc = delta_new(m->kern, m->pool, &ds, &m->delta, err)) ||
        (rc = act_new(m->kern, (uint32_t)B, MAX(MAX(E, mixed), hidden), &m->act, err)))
        return rc;
    if (!hp->moe)
        return RC_OK;
    const struct moe_shape ms = {.n_experts = hp->n_experts,
                                 .n_used = hp->n_used,
                                 .n_embd = hp->n_embd,
                                 .n_ff = hp->n_ff_exp,
                                 .n_ff_shared = hp->n_ff_shexp,
                                 .max_rows = (uint32_t)B};
    return moe_new(m->kern, m->pool, &ms, &m->moe, err);
}

static enum rc load(struct model *m, const struct gguf *g, const struct model_opts *o,
                    struct err *err)
{
    struct bind b = {0};
    enum rc rc = bind_init(&b, g, o->lg, err);
    if (rc)
        return rc;
    if ((rc = bind_all(&b, &m->hp, m->arch, NULL, err)) || (rc = bind_rest(&b, m->hp.n_layer, err)))
        goto out;
    fill_info(m->arch, &m->hp, &b, o->kv_type, &m->info);
    bind_load(&b, m->kern, m->pool, o->no_repack, m->heap, &m->arena);
    rc = bind_all(&b, &m->hp, m->arch, m, err);
out:
    bind_release(&b);
    return rc;
}

/* Pages that are in memory now or come in later; the mapped file's dropped pages stay out. */
static void lock_memory(const struct logger *lg)
{
    if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) {
        struct err err;
        struct rlimit limit = {0};
        err_sys(&err, "memory is not locked");
        (void)getrlimit(RLIMIT_MEMLOCK, &limit);
        log_warn(lg, "%s (ulimit -l allows %" PRIu64 " KiB)", err.msg,
                 (uint64_t)limit.rlim_cur / 1024);
    }
}

static enum rc copy_name(struct model *m, const struct gguf *g, struct err *err)
{
    struct str name = {NULL, 0};
    const enum rc rc = gguf_get_str(g, "general.name", false, &name, err);
    if (rc)
        return rc;
    char *copy = arena_strndup(&m->arena, name.p, MIN(name.n, 255));
    if (!copy)
        return err_set(err, RC_NOMEM, "no memory for the model's name");
    m->info.name = copy;
    return RC_OK;
}

enum rc model_open(struct gguf *g, const struct model_opts *o, struct model **out, struct err *err)
{
    const uint32_t max_batch = o->max_batch ? o->max_batch : DEFAULT_BATCH;
    if (max_batch > MAX_BATCH)
        return err_set(err, RC_ARG, "batches of %" PRIu32 " rows are too large: at most %d",
                       max_batch, MAX_BATCH);
    struct model *m = mem_zalloc(sizeof *m);
    m->pool = o->pool;
    arena_init(&m->arena, 0);
    m->heap = mat_heap_new();
    enum rc rc;
    if ((rc = kern_pick(o->isa, &m->kern, err)) || (rc = find_arch(g, &m->arch, err)) ||
        (rc = hparams_read(g, m->arch->name, m->arch->moe, &m->hp, err)))
        goto fail;
    m->layers = mem_try_array(m->hp.n_layer, sizeof *m->layers);
    if (!m->layers) {
        rc = err_set(err, RC_NOMEM, "no memory for %" PRIu32 " layers", m->hp.n_layer);
        goto fail;
    }
    struct rope rope;
    rope_init(&rope, m->hp.rot, (double)m->hp.rope_base, m->hp.sections);
    /* before loading, which gives the file's pages back */
    const uint64_t print = fingerprint(g, &m->hp, &rope, m->kern->name, o->kv_type);
    if ((rc = load(m, g, o, err)))
        goto fail;
    m->info.isa = m->kern->name;
    m->info.max_batch = max_batch;
    m->info.shape.fingerprint = print;
    if ((rc = copy_name(m, g, err)) || (rc = make_scratch(m, &rope, err)))
        goto fail;
    if (o->mlock)
        lock_memory(o->lg);
    *out = m;
    return RC_OK;
fail:
    model_close(m);
    return rc;
}

static void free_layer(struct layer *l)
{
    struct mat *const mats[] = {l->out,    l->q,     l->k,      l->v,      l->qkv,  l->z,
                                l->beta,   l->alpha, l->gate,   l->up,     l->down, l->router,
                                l->gate_e, l->up_e,  l->down_e, l->gate_s, l->up_s, l->down_s};
    for (size_t i = 0; i < COUNT_OF(mats); i++)
        mat_free(mats[i]);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; m->layers && i < m->hp.n_layer; i++)
        free_layer(&m->layers[i]);
    mem_free(m->layers);
    if (m->head != m->embd)
        mat_free(m->head);
    mat_free(m->embd);
    mat_heap_free(m->heap);
    attn_free(m->attn);
    delta_free(m->delta);
    moe_free(m->moe);
    act_free(m->act);
    mem_free(m->mem);
    mem_free(m->runs);
    mem_free(m->tokens);
    mem_free(m->wanted);
    mem_free(m->n_silent);
    mem_free(m->logits);
    arena_release(&m->arena);
    mem_free(m);
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}

/* ---- forward ---- */

void model_forward(struct model *m, struct kv *kv, struct rec *rec, const struct run *runs,
                   uint32_t n_runs)
{
    struct batch b = {.kv = kv,
                      .rec = rec,
                      .runs = m->runs,
                      .n_silent = m->n_silent,
                      .wanted = m->wanted,
                      .logits = m->logits};
    for (uint32_t i = 0; i < n_runs; i++) {
        const struct run *r = &runs[i];
        if (r->n == 0)
            continue;
        CHECK(r->n <= m->info.max_batch - b.n && r->n_logits <= r->n);
        CHECK(r->pos <= MAX_CTX - r->n && r->pos + r->n <= (uint64_t)r->kv->n * KV_PAGE);
        for (uint32_t t = 0; t < r->n; t++) {
            CHECK(r->tokens[t] >= 0 && (uint32_t)r->tokens[t] < m->hp.n_vocab);
            m->tokens[b.n + t] = r->tokens[t];
        }
        m->n_silent[b.n_runs] = r->n - r->n_logits;
        m->runs[b.n_runs++] =
            (struct stretch){.row = b.n, .n = r->n, .pos = r->pos, .kv = r->kv, .rec = r->rec};
        for (uint32_t t = 0; t < r->n_logits; t++) {
            m->wanted[b.n_wanted] = b.n + r->n - r->n_logits + t;
            m->logits[b.n_wanted++] = r->logits + (uint64_t)t * m->hp.n_vocab;
        }
        b.n += r->n;
    }
    if (b.n)
        qwen35_forward(m, &b);
}

/* ---- profile ---- */

const char *model_op_name(enum model_op op)
{
    static const char *const names[] = {"embed", "norm", "proj", "attn", "delta", "ffn", "head"};
    static_assert(COUNT_OF(names) == MODEL_N_OPS, "one name for each");
    return names[op];
}

void model_set_profile(struct model *m, struct model_profile *p)
{
    m->profile = p;
}

void stage_end(struct stage *s)
{
    if (s->p && s->since_ns)
        s->p->ns[s->op] += clock_mono_ns() - s->since_ns;
    s->since_ns = 0;
}

void stage_next(struct stage *s, enum model_op op)
{
    if (!s->p)
        return;
    stage_end(s);
    s->op = op;
    s->since_ns = clock_mono_ns();
}
