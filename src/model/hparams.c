#include "model/hparams.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "kern/seq.h"
#include "nn/moe.h"
#include "nn/rope.h"

/* Widths beyond these are no model of today; within them products of three fit 64 bits. */
enum { MAX_WIDTH = 1 << 20, MAX_HEADS = 4096 };

struct reader {
    const struct gguf *g;
    const char *arch;
    struct err *err;
};

struct key {
    char s[96];
};

static struct key key(const struct reader *r, const char *name)
{
    struct key k;
    snprintf(k.s, sizeof k.s, "%s.%s", r->arch, name);
    return k;
}

/* Absent: *out keeps its value, unless that is 0: then the key is required. */
static enum rc count(const struct reader *r, const char *name, uint32_t max, uint32_t *out)
{
    const struct key k = key(r, name);
    enum rc rc = gguf_get_u32(r->g, k.s, *out == 0, out, r->err);
    if (!rc && (*out == 0 || *out > max))
        rc = err_set(r->err, RC_FORMAT, "%s is %" PRIu32 ", not in 1..%" PRIu32, k.s, *out, max);
    return rc;
}

static enum rc mismatch(const struct reader *r, const char *name, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static enum rc mismatch(const struct reader *r, const char *name, const char *fmt, ...)
{
    char why[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err_set(r->err, RC_FORMAT, "%s %s", key(r, name).s, why);
}

/* Head counts may be an array, one per block; the attention blocks must agree. */
static enum rc head_count(const struct reader *r, const struct hparams *hp, const char *name,
                          uint32_t *out)
{
    const struct key k = key(r, name);
    const struct gguf_key *v = gguf_find_key(r->g, k.s);
    if (!v || v->kind != GGUF_ARR)
        return count(r, name, MAX_HEADS, out);
    if (v->n < hp->n_layer)
        return mismatch(r, name, "has %" PRIu64 " values for %" PRIu32 " blocks", v->n,
                        hp->n_layer);
    int64_t all = 0;
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        int64_t x;
        if (!gguf_arr_i64(v, i, &x))
            return mismatch(r, name, "is no array of integers");
        if (hp->recurrent[i])
            continue;
        if (x < 1 || x > MAX_HEADS)
            return mismatch(r, name, "[%" PRIu32 "] is %" PRId64, i, x);
        if (all && x != all)
            return err_set(r->err, RC_UNSUPPORTED, "%s differs between attention blocks", k.s);
        all = x;
    }
    if (all)
        *out = (uint32_t)all;
    return *out ? RC_OK : mismatch(r, name, "names no attention block's heads");
}

static enum rc read_blocks(const struct reader *r, struct hparams *hp)
{
    uint32_t blocks = 0, interval = 4;
    enum rc rc = count(r, "block_count", MAX_LAYERS, &blocks);
    if (!rc)
        rc = gguf_get_u32(r->g, key(r, "nextn_predict_layers").s, false, &hp->n_mtp, r->err);
    if (!rc && hp->n_mtp >= blocks)
        rc = mismatch(r, "nextn_predict_layers", "is %" PRIu32 " of %" PRIu32 " blocks", hp->n_mtp,
                      blocks);
    if (!rc)
        rc = count(r, "full_attention_interval", MAX_LAYERS, &interval);
    if (rc)
        return rc;
    hp->n_layer = blocks - hp->n_mtp;
    const struct gguf_key *flags = gguf_find_key(r->g, key(r, "attention.recurrent_layers").s);
    if (flags && flags->n != 1 && flags->n < hp->n_layer)
        return mismatch(r, "attention.recurrent_layers",
                        "has %" PRIu64 " values for %" PRIu32 " blocks", flags->n, hp->n_layer);
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        int64_t flag = (i + 1) % interval != 0;
        if (flags && !gguf_arr_i64(flags, flags->n == 1 ? 0 : i, &flag))
            return mismatch(r, "attention.recurrent_layers", "is no array of flags");
        hp->recurrent[i] = flag != 0;
    }
    return RC_OK;
}

static enum rc read_attention(const struct reader *r, struct hparams *hp)
{
    enum rc rc = head_count(r, hp, "attention.head_count", &hp->n_heads);
    if (rc)
        return rc;
    hp->n_kv_heads = hp->n_heads;
    if ((rc = head_count(r, hp, "attention.head_count_kv", &hp->n_kv_heads)))
        return rc;
    if (hp->n_heads % hp->n_kv_heads)
        return mismatch(r, "attention.head_count",
                        "%" PRIu32 " is no multiple of %" PRIu32 " key/value heads", hp->n_heads,
                        hp->n_kv_heads);
    hp->head_dim = hp->n_embd / hp->n_heads;
    if ((rc = count(r, "attention.key_length", MAX_WIDTH, &hp->head_dim)))
        return rc;
    uint32_t value = hp->head_dim;
    if ((rc = count(r, "attention.value_length", MAX_WIDTH, &value)))
        return rc;
    if (value != hp->head_dim)
        return mismatch(r, "attention.value_length", "%" PRIu32 " differs from key_length %" PRIu32,
                        value, hp->head_dim);
    if (hp->head_dim % SEQ_KV_STEP || hp->head_dim > SEQ_MAX_DIM)
        return err_set(r->err, RC_UNSUPPORTED,
                       "attention heads of %" PRIu32 " are not done: multiples of %d up to %d are",
                       hp->head_dim, SEQ_KV_STEP, SEQ_MAX_DIM);
    return RC_OK;
}

static enum rc read_rope(const struct reader *r, struct hparams *hp)
{
    hp->rot = hp->head_dim;
    hp->rope_base = 1e4f;
    enum rc rc = count(r, "rope.dimension_count", MAX_WIDTH, &hp->rot);
    if (rc)
        return rc;
    if (hp->rot % 2 || hp->rot > hp->head_dim || hp->rot > ROPE_MAX)
        return mismatch(r, "rope.dimension_count",
                        "is %" PRIu32 ", not even or more than heads of %" PRIu32, hp->rot,
                        hp->head_dim);
    if ((rc = gguf_get_f32(r->g, key(r, "rope.freq_base").s, false, &hp->rope_base, r->err)))
        return rc;
    if (!(hp->rope_base > 0 && isfinite(hp->rope_base)))
        return mismatch(r, "rope.freq_base", "is %g", (double)hp->rope_base);

    const struct gguf_key *s = gguf_find_key(r->g, key(r, "rope.dimension_sections").s);
    if (!s)
        return mismatch(r, "rope.dimension_sections", "is missing");
    uint64_t sum = 0;
    for (uint64_t i = 0; i < MIN(s->n, 4); i++) {
        int64_t x;
        if (!gguf_arr_i64(s, i, &x) || x < 0 || x > MAX_WIDTH)
            return mismatch(r, "rope.dimension_sections", "[%" PRIu64 "] is no count", i);
        sum += hp->sections[i] = (uint32_t)x;
    }
    if (sum == 0)
        return mismatch(r, "rope.dimension_sections", "sum to 0");

    struct str type = {NULL, 0};
    float factor = 1;
    if ((rc = gguf_get_str(r->g, key(r, "rope.scaling.type").s, false, &type, r->err)) ||
        (rc = gguf_get_f32(r->g, key(r, "rope.scaling.factor").s, false, &factor, r->err)))
        return rc;
    const bool plain = factor == 0 || factor == 1 || str_is(type, "none");
    if (!plain)
        return err_set(r->err, RC_UNSUPPORTED,
                       "%s is \"%.*s\" with factor %g: scaled positions are "
                       "not done",
                       key(r, "rope.scaling.type").s, (int)MIN(type.n, 32), type.p, (double)factor);
    return RC_OK;
}

static enum rc read_delta(const struct reader *r, struct hparams *hp)
{
    uint32_t inner = 0;
    enum rc rc;
    if ((rc = count(r, "ssm.conv_kernel", MAX_WIDTH, &hp->conv_taps)) ||
        (rc = count(r, "ssm.state_size", MAX_WIDTH, &hp->state_dim)) ||
        (rc = count(r, "ssm.group_count", MAX_HEADS, &hp->n_k_heads)) ||
        (rc = count(r, "ssm.time_step_rank", MAX_HEADS, &hp->n_v_heads)) ||
        (rc = count(r, "ssm.inner_size", UINT32_MAX, &inner)))
        return rc;
    if (hp->conv_taps < 2)
        return mismatch(r, "ssm.conv_kernel", "is 1: a convolution has 2 taps or more");
    if (hp->n_v_heads % hp->n_k_heads)
        return mismatch(r, "ssm.time_step_rank",
                        "%" PRIu32 " is no multiple of %" PRIu32 " key heads", hp->n_v_heads,
                        hp->n_k_heads);
    if (inner != (uint64_t)hp->n_v_heads * hp->state_dim)
        return mismatch(r, "ssm.inner_size", "%" PRIu32 " is not %" PRIu32 " heads of %" PRIu32,
                        inner, hp->n_v_heads, hp->state_dim);
    if (hp->state_dim % SEQ_STATE_STEP || hp->state_dim > SEQ_MAX_DIM ||
        hp->conv_taps > SEQ_MAX_TAPS)
        return err_set(r->err, RC_UNSUPPORTED,
                       "delta heads of %" PRIu32 " with %" PRIu32
                       " taps are not done: multiples of %d up to %d, at most %d taps are",
                       hp->state_dim, hp->conv_taps, SEQ_STATE_STEP, SEQ_MAX_DIM, SEQ_MAX_TAPS);
    return RC_OK;
}

static enum rc read_experts(const struct reader *r, struct hparams *hp)
{
    enum rc rc;
    if ((rc = count(r, "expert_count", MAX_HEADS, &hp->n_experts)) ||
        (rc = count(r, "expert_used_count", MAX_HEADS, &hp->n_used)) ||
        (rc = count(r, "expert_feed_forward_length", MAX_WIDTH, &hp->n_ff_exp)) ||
        (rc = count(r, "expert_shared_feed_forward_length", MAX_WIDTH, &hp->n_ff_shexp)))
        return rc;
    if (hp->n_used > hp->n_experts)
        return mismatch(r, "expert_used_count", "is %" PRIu32 " of %" PRIu32 " experts", hp->n_used,
                        hp->n_experts);
    if (hp->n_used > MOE_MAX_USED)
        return err_set(r->err, RC_UNSUPPORTED,
                       "%" PRIu32 " experts at once are not done: up to %d are", hp->n_used,
                       MOE_MAX_USED);
    return RC_OK;
}

static enum rc read_vocab(const struct reader *r, struct hparams *hp)
{
    const struct gguf_tensor *t = gguf_find_tensor(r->g, "token_embd.weight");
    if (!t)
        return err_set(r->err, RC_FORMAT, "tensor token_embd.weight is missing");
    if (t->ne[1] == 0 || t->ne[1] > INT32_MAX)
        return err_set(r->err, RC_FORMAT, "token_embd.weight has %" PRIu64 " rows", t->ne[1]);
    hp->n_vocab = (uint32_t)t->ne[1];
    return RC_OK;
}

enum rc hparams_read(const struct gguf *g, const char *arch, bool moe, struct hparams *hp,
                     struct err *err)
{
    const struct reader r = {g, arch, err};
    *hp = (struct hparams){.moe = moe};
    enum rc rc;
    if ((rc = count(&r, "context_length", INT32_MAX, &hp->n_ctx)) ||
        (rc = count(&r, "embedding_length", MAX_WIDTH, &hp->n_embd)) ||
        (rc = gguf_get_f32(g, key(&r, "attention.layer_norm_rms_epsilon").s, true, &hp->eps, err)))
        return rc;
    if (!(hp->eps > 0 && hp->eps < 1))
        return mismatch(&r, "attention.layer_norm_rms_epsilon", "is %g", (double)hp->eps);
    hp->n_ctx = MIN(hp->n_ctx, (uint32_t)MAX_CTX);
    if ((rc = read_blocks(&r, hp)) || (rc = read_attention(&r, hp)) || (rc = read_rope(&r, hp)) ||
        (rc = read_delta(&r, hp)))
        return rc;
    if ((rc = moe ? read_experts(&r, hp) : count(&r, "feed_forward_length", MAX_WIDTH, &hp->n_ff)))
        return rc;
    return read_vocab(&r, hp);
}

struct shape hparams_shape(const struct hparams *hp, enum kv_type kv_type)
{
    struct shape s = {.n_kv_heads = hp->n_kv_heads,
                      .head_dim = hp->head_dim,
                      .kv_type = kv_type,
                      .conv_taps = hp->conv_taps,
                      .conv_channels = hparams_conv_channels(hp),
                      .n_v_heads = hp->n_v_heads,
                      .state_dim = hp->state_dim};
    for (uint32_t i = 0; i < hp->n_layer; i++)
        *(hp->recurrent[i] ? &s.n_delta : &s.n_attn) += 1;
    return s;
}
