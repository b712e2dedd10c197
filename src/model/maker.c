/* Sizes and scales of the random models, and their writing.
 *
 * Where the numbers come from.  The embedding has rms 1, and all sub-layers together add about three
 * times its energy (`out` below), so that small differences are not blown up by depth.  Decay rates
 * ssm_a and ssm_dt are spread evenly over the logarithm, two decades each.  Logits get a standard
 * deviation of about 3; with a tied head, random signs in output_norm keep a token from predicting
 * itself.
 */
#include "model/maker.h"

#include <math.h>
#include <stdio.h>
#include <strings.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/rng.h"
#include "gguf/gguf_write.h"
#include "kern/quant.h"
#include "model/maker_int.h"

enum { INTERVAL = 4, CONV_TAPS = 4, MAX_LAYERS = 1024, MAX_TENSORS_PER_BLOCK = 20 };

struct preset {
    const char *name, *label;
    uint32_t layers, d, ff; /* ff = 0: experts */
    uint32_t heads, kv, hd, rot;
    int32_t sections[4];
    uint32_t heads_k, heads_v, state; /* of the gated-delta-net layers */
    uint32_t experts, used, ffe, ffs;
    uint32_t vocab, ctx;
    bool tied;
};

/* clang-format off */
static const struct preset presets[] = {
    {.name = "tiny", .label = "0.6M", .layers = 8, .d = 64, .ff = 192, .heads = 4, .kv = 2, .hd = 32,
     .rot = 16, .sections = {3, 3, 2, 0}, .heads_k = 2, .heads_v = 4, .state = 32, .vocab = 512,
     .ctx = 32768, .tied = true},
    {.name = "tiny-moe", .label = "0.8M", .layers = 8, .d = 64, .heads = 4, .kv = 2, .hd = 32,
     .rot = 16, .sections = {3, 3, 2, 0}, .heads_k = 2, .heads_v = 6, .state = 32, .experts = 8,
     .used = 3, .ffe = 32, .ffs = 32, .vocab = 512, .ctx = 32768},
    /* every row is a multiple of 256, so that all types apply */
    {.name = "mini", .label = "6M", .layers = 8, .d = 256, .ff = 512, .heads = 4, .kv = 2, .hd = 64,
     .rot = 16, .sections = {3, 3, 2, 0}, .heads_k = 4, .heads_v = 8, .state = 64, .vocab = 512,
     .ctx = 32768, .tied = true},
    {.name = "mini-moe", .label = "30M", .layers = 8, .d = 256, .heads = 4, .kv = 2, .hd = 64,
     .rot = 16, .sections = {3, 3, 2, 0}, .heads_k = 4, .heads_v = 8, .state = 64, .experts = 16,
     .used = 4, .ffe = 256, .ffs = 256, .vocab = 512, .ctx = 32768},
    /* the shapes of the published models */
    {.name = "0.8b", .label = "0.8B", .layers = 24, .d = 1024, .ff = 3584, .heads = 8, .kv = 2,
     .hd = 256, .rot = 64, .sections = {11, 11, 10, 0}, .heads_k = 16, .heads_v = 16, .state = 128,
     .vocab = 248320, .ctx = 262144, .tied = true},
    {.name = "35b-a3b", .label = "35B-A3B", .layers = 40, .d = 2048, .heads = 16, .kv = 2, .hd = 256,
     .rot = 64, .sections = {11, 11, 10, 0}, .heads_k = 16, .heads_v = 32, .state = 128,
     .experts = 256, .used = 8, .ffe = 512, .ffs = 512, .vocab = 248320, .ctx = 262144},
};
/* clang-format on */

const char *maker_preset(size_t i)
{
    return i < COUNT_OF(presets) ? presets[i].name : NULL;
}

/* ---- the list of tensors ---- */

enum role {              /* those up to ROLE_SIGNED are made from normal numbers */
            ROLE_LINEAR, /* normal, variance scale^2 / inputs */
            ROLE_ROUTER, /* the same, but never quantised */
            ROLE_EMBED,  /* normal, variance scale^2 */
            ROLE_CONV,   /* the same, never quantised */
            ROLE_NORM,   /* 1 + scale * normal */
            ROLE_SIGNED, /* +-scale (1 + normal / 10), random signs */
            ROLE_DECAY,  /* -exp of uniform: 0.05 .. 4 */
            ROLE_STEP    /* softplus of it is exp of uniform: 0.01 .. 0.3 */
};

struct tensor {
    char name[64];
    uint32_t n_dims;
    uint64_t ne[3], n; /* n: all elements */
    enum role role;
    float scale;
    enum dtype type;
};

struct plan {
    struct preset p; /* with the options applied */
    enum dtype type;
    bool medium;
    struct tensor *tensors;
    uint32_t n_tensors;
    uint64_t n_params;
};

static enum dtype stored_as(enum dtype wanted, enum role role, uint64_t row)
{
    if (role != ROLE_LINEAR && role != ROLE_EMBED)
        return DT_F32;
    if (row % dtype_info(wanted)->block_elems == 0)
        return wanted;
    return row % 32 == 0 ? DT_Q8_0 : DT_F16;
}

/* The types that make a q4_K file a Q4_K_M: what does most harm when it is coarse gets more bits, the
 * values and the last step of the FFN in the first and last eighth of the layers and every third between. */
static enum dtype medium_type(const struct plan *m, int block, const char *suffix)
{
    const int n = (int)m->p.layers, eighth = n / 8;
    if (!strcmp(suffix, "token_embd.weight"))
        return m->p.tied ? DT_Q6_K : DT_Q4_K;
    if (!strcmp(suffix, "output.weight"))
        return DT_Q6_K;
    if (!strcmp(suffix, "attn_qkv.weight"))
        return DT_Q5_K;
    if (strcmp(suffix, "attn_v.weight") != 0 && strncmp(suffix, "ffn_down", 8) != 0)
        return DT_Q4_K;
    const bool more = block < eighth || block >= 7 * n / 8 || (block - eighth) % 3 == 2;
    return more ? DT_Q6_K : DT_Q4_K;
}

/* block < 0: no prefix; ne1 = 0: a vector; ne2 = 0: a matrix. */
static void add(struct plan *m, int block, const char *suffix, uint64_t ne0, uint64_t ne1,
                uint64_t ne2, enum role role, double scale)
{
    struct tensor *const t = &m->tensors[m->n_tensors++];
    *t = (struct tensor){
        .n_dims = ne2   ? 3
                  : ne1 ? 2
                        : 1,
        .ne = {ne0, ne1, ne2},
        .n = ne0 * MAX(ne1, 1) * MAX(ne2, 1),
        .role = role,
        .scale = (float)scale,
        .type = stored_as(m->medium ? medium_type(m, block, suffix) : m->type, role, ne0)};
    if (block < 0)
        snprintf(t->name, sizeof t->name, "%s", suffix);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", block, suffix);
    m->n_params += t->n;
}

static void add_attention(struct plan *m, int i, double out)
{
    const struct preset *p = &m->p;
    const uint64_t d = p->d, q = (uint64_t)p->heads * p->hd, kv = (uint64_t)p->kv * p->hd;
    add(m, i, "attn_q.weight", d, 2 * q, 0, ROLE_LINEAR, 1);
    add(m, i, "attn_k.weight", d, kv, 0, ROLE_LINEAR, 1);
    add(m, i, "attn_v.weight", d, kv, 0, ROLE_LINEAR, 1);
    add(m, i, "attn_q_norm.weight", p->hd, 0, 0, ROLE_NORM, 0.1);
    add(m, i, "attn_k_norm.weight", p->hd, 0, 0, ROLE_NORM, 0.1);
    add(m, i, "attn_output.weight", q, d, 0, ROLE_LINEAR, 2 * out);
}

static void add_delta(struct plan *m, int i, double out)
{
    const struct preset *p = &m->p;
    const uint64_t d = p->d, kd = (uint64_t)p->heads_k * p->state;
    const uint64_t vd = (uint64_t)p->heads_v * p->state, channels = 2 * kd + vd;
    add(m, i, "attn_qkv.weight", d, channels, 0, ROLE_LINEAR, 1);
    add(m, i, "attn_gate.weight", d, vd, 0, ROLE_LINEAR, 1);
    add(m, i, "ssm_conv1d.weight", CONV_TAPS, channels, 0, ROLE_CONV, 0.5);
    add(m, i, "ssm_dt.bias", p->heads_v, 0, 0, ROLE_STEP, 0);
    add(m, i, "ssm_a", p->heads_v, 0, 0, ROLE_DECAY, 0);
    add(m, i, "ssm_beta.weight", d, p->heads_v, 0, ROLE_LINEAR, 1);
    add(m, i, "ssm_alpha.weight", d, p->heads_v, 0, ROLE_LINEAR, 1);
    add(m, i, "ssm_norm.weight", p->state, 0, 0, ROLE_NORM, 0.1);
    add(m, i, "ssm_out.weight", vd, d, 0, ROLE_LINEAR, out);
}

static void add_ffn(struct plan *m, int i, double out)
{
    const struct preset *p = &m->p;
    const uint64_t d = p->d, e = p->experts;
    if (p->ff) {
        add(m, i, "ffn_gate.weight", d, p->ff, 0, ROLE_LINEAR, 1);
        add(m, i, "ffn_up.weight", d, p->ff, 0, ROLE_LINEAR, 1);
        add(m, i, "ffn_down.weight", p->ff, d, 0, ROLE_LINEAR, out);
        return;
    }
    add(m, i, "ffn_gate_inp.weight", d, e, 0, ROLE_ROUTER, 3);
    add(m, i, "ffn_gate_exps.weight", d, p->ffe, e, ROLE_LINEAR, 1);
    add(m, i, "ffn_up_exps.weight", d, p->ffe, e, ROLE_LINEAR, 1);
    add(m, i, "ffn_down_exps.weight", p->ffe, d, e, ROLE_LINEAR, 1.4 * out);
    add(m, i, "ffn_gate_inp_shexp.weight", d, 0, 0, ROLE_ROUTER, 1);
    add(m, i, "ffn_gate_shexp.weight", d, p->ffs, 0, ROLE_LINEAR, 1);
    add(m, i, "ffn_up_shexp.weight", d, p->ffs, 0, ROLE_LINEAR, 1);
    add(m, i, "ffn_down_shexp.weight", p->ffs, d, 0, ROLE_LINEAR, 1.4 * out);
}

static void add_block(struct plan *m, int i, bool mtp)
{
    const struct preset *p = &m->p;
    const double out = sqrt(3.0 / (2 * p->layers)) / 0.6, head = 3 / sqrt(p->d);
    add(m, i, "attn_norm.weight", p->d, 0, 0, ROLE_NORM, 0.1);
    if (mtp || (i + 1) % INTERVAL == 0)
        add_attention(m, i, out);
    else
        add_delta(m, i, out);
    add(m, i, "post_attention_norm.weight", p->d, 0, 0, ROLE_NORM, 0.1);
    add_ffn(m, i, out);
    if (!mtp)
        return;
    add(m, i, "nextn.eh_proj.weight", 2 * (uint64_t)p->d, p->d, 0, ROLE_LINEAR, 1);
    add(m, i, "nextn.enorm.weight", p->d, 0, 0, ROLE_NORM, 0.1);
    add(m, i, "nextn.hnorm.weight", p->d, 0, 0, ROLE_NORM, 0.1);
    add(m, i, "nextn.shared_head_norm.weight", p->d, 0, 0, p->tied ? ROLE_SIGNED : ROLE_NORM,
        p->tied ? head : 0.1);
}

static void add_all(struct plan *m, bool mtp)
{
    const struct preset *p = &m->p;
    const double head = 3 / sqrt(p->d);
    add(m, -1, "token_embd.weight", p->d, p->vocab, 0, ROLE_EMBED, 1);
    for (uint32_t i = 0; i < p->layers; i++)
        add_block(m, (int)i, false);
    if (mtp)
        add_block(m, (int)p->layers, true);
    if (p->tied) {
        add(m, -1, "output_norm.weight", p->d, 0, 0, ROLE_SIGNED, head);
    } else {
        add(m, -1, "output_norm.weight", p->d, 0, 0, ROLE_NORM, 0.1);
        add(m, -1, "output.weight", p->d, p->vocab, 0, ROLE_EMBED, head);
    }
}

static enum rc plan_init(struct plan *m, const struct maker_opts *o, struct err *err)
{
    *m = (struct plan){.type = o->type, .medium = o->medium};
    for (size_t i = 0; i < COUNT_OF(presets); i++)
        if (o->preset && !strcasecmp(presets[i].name, o->preset))
            m->p = presets[i];
    if (!m->p.name)
        return err_set(err, RC_ARG, "no preset '%s'", o->preset ? o->preset : "");
    if (!dtype_info(o->type))
        return err_set(err, RC_ARG, "no type %d", (int)o->type);
    if (o->medium && o->type != DT_Q4_K)
        return err_set(err, RC_ARG, "only q4_K has a medium mixture of types");
    if (o->n_layers % INTERVAL || o->n_layers > MAX_LAYERS)
        return err_set(err, RC_ARG, "%" PRIu32 " layers: a multiple of %d up to %d is needed",
                       o->n_layers, INTERVAL, MAX_LAYERS);
    m->p.layers = o->n_layers ? o->n_layers : m->p.layers;
    m->p.vocab = o->n_vocab ? o->n_vocab : m->p.vocab;
    m->p.ctx = o->n_ctx ? o->n_ctx : m->p.ctx;
    m->tensors = mem_try_array((m->p.layers + 1) * MAX_TENSORS_PER_BLOCK + 3, sizeof *m->tensors);
    if (!m->tensors)
        return err_set(err, RC_NOMEM, "no memory for the plan of %" PRIu32 " layers", m->p.layers);
    add_all(m, o->mtp);
    return RC_OK;
}

/* ---- keys ---- */

static uint32_t file_type(enum dtype t)
{
    static const struct {
        enum dtype type;
        uint32_t id;
    } ids[] = {{DT_F32, 0},     {DT_F16, 1},     {DT_Q4_0, 2},  {DT_Q4_1, 3},
               {DT_Q8_0, 7},    {DT_Q5_0, 8},    {DT_Q5_1, 9},  {DT_Q2_K, 10},
               {DT_Q3_K, 12},   {DT_Q4_K, 15},   {DT_Q5_K, 17}, {DT_Q6_K, 18},
               {DT_IQ4_NL, 25}, {DT_IQ4_XS, 30}, {DT_BF16, 32}, {DT_MXFP4, 38}};
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        if (ids[i].type == t)
            return ids[i].id;
    return 0;
}

/* Keys below the architecture's name. */
static void arch_key(char key[96], const struct preset *p, const char *name)
{
    snprintf(key, 96, "%s.%s", p->ff ? "qwen35" : "qwen35moe", name);
}

static void arch_u32(struct gguf_writer *w, const struct preset *p, const char *name, uint32_t v)
{
    char key[96];
    arch_key(key, p, name);
    gguf_write_u32(w, key, v);
}

static void arch_f32(struct gguf_writer *w, const struct preset *p, const char *name, float v)
{
    char key[96];
    arch_key(key, p, name);
    gguf_write_f32(w, key, v);
}

static void write_keys(struct gguf_writer *w, const struct plan *m, const struct maker_opts *o)
{
    const struct preset *p = &m->p;
    char text[96];
    gguf_write_str(w, "general.architecture", p->ff ? "qwen35" : "qwen35moe");
    gguf_write_str(w, "general.type", "model");
    snprintf(text, sizeof text, "random %s seed %" PRIu64, p->name, o->seed);
    gguf_write_str(w, "general.name", text);
    gguf_write_str(w, "general.size_label", p->label);
    arch_u32(w, p, "block_count", p->layers + o->mtp);
    arch_u32(w, p, "context_length", p->ctx);
    arch_u32(w, p, "embedding_length", p->d);
    if (p->ff)
        arch_u32(w, p, "feed_forward_length", p->ff);
    arch_u32(w, p, "attention.head_count", p->heads);
    arch_u32(w, p, "attention.head_count_kv", p->kv);
    arch_key(text, p, "rope.dimension_sections");
    gguf_write_arr_i32(w, text, p->sections, 4);
    arch_f32(w, p, "rope.freq_base", 1e7f);
    arch_f32(w, p, "attention.layer_norm_rms_epsilon", 1e-6f);
    if (!p->ff) {
        arch_u32(w, p, "expert_count", p->experts);
        arch_u32(w, p, "expert_used_count", p->used);
        arch_u32(w, p, "expert_feed_forward_length", p->ffe);
        arch_u32(w, p, "expert_shared_feed_forward_length", p->ffs);
    }
    arch_u32(w, p, "attention.key_length", p->hd);
    arch_u32(w, p, "attention.value_length", p->hd);
    gguf_write_u32(w, "general.file_type", file_type(m->type));
    arch_u32(w, p, "ssm.conv_kernel", CONV_TAPS);
    arch_u32(w, p, "ssm.state_size", p->state);
    arch_u32(w, p, "ssm.group_count", p->heads_k);
    arch_u32(w, p, "ssm.time_step_rank", p->heads_v);
    arch_u32(w, p, "ssm.inner_size", p->heads_v * p->state);
    arch_u32(w, p, "full_attention_interval", INTERVAL);
    arch_u32(w, p, "rope.dimension_count", p->rot);
    if (o->mtp)
        arch_u32(w, p, "nextn_predict_layers", 1);
    gguf_write_u32(w, "general.quantization_version", 2);
}

static void write_vocab(struct gguf_writer *w, const struct maker_vocab *v)
{
    gguf_write_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_write_str(w, "tokenizer.ggml.pre", "qwen35");
    gguf_write_arr_str(w, "tokenizer.ggml.tokens", v->tokens, v->n);
    gguf_write_arr_i32(w, "tokenizer.ggml.token_type", v->types, v->n);
    gguf_write_arr_str(w, "tokenizer.ggml.merges", v->merges, v->n_merges);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", v->im_end);
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", v->endoftext);
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", v->endoftext);
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_write_str(w, "tokenizer.chat_template", maker_chat_template);
}

/* ---- weights ---- */

/* A tensor smaller than the bank is drawn number by number.  A larger one is a random sequence of
 * groups of GROUP numbers out of a bank of N_GROUPS, which is drawn once and multiplied and encoded
 * once per (type, scale): the 35B shape then costs a copy per group, whatever its type. */
enum {
    GROUP = 256,
    N_GROUPS = 1 << 14,
    BANK = N_GROUPS * GROUP,
    CHUNK = 1 << 16, /* numbers made at a time; a multiple of GROUP and of every block */
    N_QUANTILES = 1 << 16,
    N_CODED = 16
};

/* The bank in one type at one scale. */
struct coded {
    enum dtype type;
    float scale;
    uint8_t *p; /* [N_GROUPS][bytes of a group]; NULL: free */
};

struct source {
    uint64_t seed;
    float *quantiles; /* [N_QUANTILES] of the normal distribution, variance 1 */
    float *bank;      /* [N_GROUPS][GROUP]; NULL until a large tensor comes */
    float *numbers;   /* [CHUNK] */
    uint8_t *out;     /* CHUNK numbers in any type */
    struct coded coded[N_CODED];
    uint32_t n_coded; /* ever made: the oldest makes way */
};

/* Every tensor has a stream of its own, so that a change of the list moves no other tensor. */
static struct rng stream(const struct source *s, const char *name)
{
    return (struct rng){XXH3_64bits_withSeed(name, strlen(name), s->seed)};
}

/* 65,536 quantiles at once instead of a logarithm and a cosine per number. */
static void fill_quantiles(float *q)
{
    double x = 0, sum = 0;
    for (int i = N_QUANTILES / 2; i < N_QUANTILES; i++) {
        const double tail = 1 - (i + 0.5) / N_QUANTILES; /* beyond x */
        for (int step = 0; step < 20; step++) { /* Newton on the tail, from the one before */
            const double f = 0.5 * erfc(x / sqrt(2)) - tail;
            const double slope = exp(-x * x / 2) / sqrt(2 * 3.14159265358979323846);
            x += f / slope;
            if (fabs(f) < 1e-14)
                break;
        }
        q[i] = (float)x;
        sum += 2 * x * x;
    }
    const float norm = (float)(1 / sqrt(sum / N_QUANTILES));
    for (int i = N_QUANTILES / 2; i < N_QUANTILES; i++) {
        q[i] *= norm;
        q[N_QUANTILES - 1 - i] = -q[i];
    }
}

static void draw_normals(const struct source *s, struct rng *r, float *out, uint64_t n)
{
    uint64_t bits = 0;
    for (uint64_t i = 0; i < n; i++) {
        bits = i % 4 ? bits >> 16 : rng_u64(r);
        out[i] = s->quantiles[bits & (N_QUANTILES - 1)];
    }
}

static enum rc source_init(struct source *s, uint64_t seed, struct err *err)
{
    *s = (struct source){.seed = seed};
    s->quantiles = mem_try_array(N_QUANTILES, sizeof(float));
    s->numbers = mem_try_array(CHUNK, sizeof(float));
    s->out = mem_try_array(CHUNK, sizeof(float));
    if (!s->quantiles || !s->numbers || !s->out)
        return err_set(err, RC_NOMEM, "no memory for random numbers");
    fill_quantiles(s->quantiles);
    return RC_OK;
}

static void source_release(struct source *s)
{
    mem_free(s->quantiles);
    mem_free(s->bank);
    mem_free(s->numbers);
    mem_free(s->out);
    for (size_t i = 0; i < N_CODED; i++)
        mem_free(s->coded[i].p);
}

static size_t group_bytes(enum dtype t)
{
    const struct dtype_info *di = dtype_info(t);
    return (size_t)(GROUP / di->block_elems) * di->block_bytes;
}

static const float *drawn_bank(struct source *s)
{
    struct rng r = stream(s, "bank");
    if (!s->bank && (s->bank = mem_try_array(BANK, sizeof(float))))
        draw_normals(s, &r, s->bank, BANK);
    return s->bank;
}

/* NULL without memory. */
static const uint8_t *coded_bank(struct source *s, enum dtype type, float scale)
{
    const float *bank = drawn_bank(s);
    if (!bank)
        return NULL;
    for (size_t i = 0; i < N_CODED; i++)
        if (s->coded[i].p && s->coded[i].type == type && s->coded[i].scale == scale)
            return s->coded[i].p;
    struct coded *const c = &s->coded[s->n_coded++ % N_CODED];
    mem_free(c->p);
    *c = (struct coded){type, scale, mem_try(N_GROUPS * group_bytes(type))};
    for (uint64_t i = 0; c->p && i < N_GROUPS; i++) {
        float scaled[GROUP];
        for (int k = 0; k < GROUP; k++)
            scaled[k] = scale * bank[i * GROUP + (uint64_t)k];
        quant_encode(type, scaled, GROUP, c->p + i * group_bytes(type));
    }
    return c->p;
}

static float spread(const struct tensor *t)
{
    return t->role == ROLE_LINEAR || t->role == ROLE_ROUTER ? t->scale / sqrtf((float)t->ne[0])
                                                            : t->scale;
}

/* n numbers of t's distribution into s->numbers. */
static void draw(struct source *s, const struct tensor *t, struct rng *r, uint64_t n)
{
    float *const x = s->numbers;
    const float scale = spread(t);
    if (t->role <= ROLE_SIGNED)
        draw_normals(s, r, x, n);
    for (uint64_t i = 0; i < n; i++) {
        switch (t->role) {
        case ROLE_LINEAR:
        case ROLE_ROUTER:
        case ROLE_EMBED:
        case ROLE_CONV:
            x[i] *= scale;
            break;
        case ROLE_NORM:
            x[i] = 1 + scale * x[i];
            break;
        case ROLE_SIGNED:
            x[i] = scale * (1 + 0.1f * x[i]) * (rng_u64(r) & 1 ? 1 : -1);
            break;
        case ROLE_DECAY:
            x[i] = -(float)exp(log(0.05) + rng_f64(r) * log(4.0 / 0.05));
            break;
        case ROLE_STEP:
            x[i] = (float)log(expm1(exp(log(0.01) + rng_f64(r) * log(0.3 / 0.01))));
            break;
        }
    }
}

/* The next n <= CHUNK elements of t into s->out, encoded. */
static enum rc make_chunk(struct source *s, const struct tensor *t, struct rng *r, uint64_t n,
                          struct err *err)
{
    const bool from_bank = t->n > BANK && (t->role == ROLE_LINEAR || t->role == ROLE_EMBED);
    const uint64_t n_groups = from_bank ? n / GROUP : 0, rest = n - n_groups * GROUP;
    uint8_t *out = s->out;
    if (n_groups) {
        const size_t bytes = group_bytes(t->type);
        const uint8_t *bank = coded_bank(s, t->type, spread(t));
        if (!bank)
            return err_set(err, RC_NOMEM, "no memory for tensor %s", t->name);
        for (uint64_t i = 0; i < n_groups; i++, out += bytes)
            memcpy(out, bank + rng_below(r, N_GROUPS) * bytes, bytes);
    }
    draw(s, t, r, rest);
    quant_encode(t->type, s->numbers, rest, out);
    return RC_OK;
}

/* Stops early, with RC_OK, when the writer has failed: closing it says why. */
static enum rc write_weights(struct gguf_writer *w, struct source *s, const struct plan *m,
                             const struct maker_opts *o, struct err *err)
{
    struct progress progress;
    enum rc rc = RC_OK;
    uint64_t done = 0;
    progress_begin(&progress, o->lg, "writing");
    for (uint32_t i = 0; i < m->n_tensors && !rc; i++) {
        const struct tensor *t = &m->tensors[i];
        const struct dtype_info *di = dtype_info(t->type);
        struct rng r = stream(s, t->name);
        for (uint64_t at = 0; at < t->n && !rc; at += CHUNK) {
            const uint64_t n = MIN(t->n - at, (uint64_t)CHUNK);
            if (o->stop && atomic_load_explicit(o->stop, memory_order_relaxed))
                rc = err_set(err, RC_CANCELLED, "interrupted");
            else
                rc = make_chunk(s, t, &r, n, err);
            if (!rc && !gguf_write_data(w, s->out, n / di->block_elems * di->block_bytes))
                goto out;
            progress_at(&progress, done += n, m->n_params);
        }
    }
out:
    progress_end(&progress);
    return rc;
}

enum rc maker_write(const char *path, const struct maker_opts *o, struct maker_info *info,
                    struct err *err)
{
    struct plan m = {0};
    struct maker_vocab v = {0};
    struct source s = {0};
    struct gguf_writer *w = NULL;
    enum rc rc = plan_init(&m, o, err);
    if (!rc)
        rc = maker_vocab_init(&v, m.p.vocab, o->seed, err);
    if (!rc)
        rc = source_init(&s, o->seed, err);
    if (!rc)
        rc = gguf_writer_open(path, &w, err);
    if (rc)
        goto out;
    write_keys(w, &m, o);
    write_vocab(w, &v);
    for (uint32_t i = 0; i < m.n_tensors; i++)
        gguf_write_tensor(w, m.tensors[i].name, m.tensors[i].type, m.tensors[i].n_dims,
                          m.tensors[i].ne);
    rc = write_weights(w, &s, &m, o, err);
    if (rc)
        gguf_writer_abandon(w);
    else
        rc = gguf_writer_close(w, err);
    if (info)
        *info = (struct maker_info){m.n_tensors, m.n_params};
out:
    source_release(&s);
    maker_vocab_release(&v);
    mem_free(m.tensors);
    return rc;
}
