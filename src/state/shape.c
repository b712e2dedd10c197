#include "state/shape.h"

#include <strings.h>

static_assert(KV_PAGE % 32 == 0, "kernels walk a page in groups of 32 rows");

static const char *const kv_names[] = {
    [KV_F16] = "f16", [KV_F32] = "f32", [KV_Q8_0] = "q8_0", [KV_I16] = "i16"};

const char *kv_type_name(enum kv_type t)
{
    return (size_t)t < COUNT_OF(kv_names) ? kv_names[t] : "?";
}

bool kv_type_parse(const char *name, enum kv_type *out)
{
    for (size_t i = 0; i < COUNT_OF(kv_names); i++)
        if (!strcasecmp(name, kv_names[i])) {
            *out = (enum kv_type)i;
            return true;
        }
    return false;
}

uint64_t shape_row_bytes(const struct shape *s)
{
    if (s->kv_type == KV_F32)
        return 4 * (uint64_t)s->head_dim;
    if (s->kv_type == KV_F16)
        return 2 * (uint64_t)s->head_dim;
    if (s->kv_type == KV_I16)
        return 4 + 2 * (uint64_t)s->head_dim;
    assert(s->kv_type == KV_Q8_0 && s->head_dim % 32 == 0);
    return 34 * ((uint64_t)s->head_dim / 32); /* f16 scale and 32 int8 per block */
}

uint64_t shape_token_bytes(const struct shape *s)
{
    return 2 * (uint64_t)s->n_attn * s->n_kv_heads * shape_row_bytes(s);
}

uint64_t shape_page_bytes(const struct shape *s)
{
    return KV_PAGE * shape_token_bytes(s);
}

uint64_t shape_conv_floats(const struct shape *s)
{
    return s->n_delta == 0 ? 0 : (uint64_t)(s->conv_taps - 1) * s->conv_channels;
}

uint64_t shape_s_floats(const struct shape *s)
{
    return (uint64_t)s->n_v_heads * s->state_dim * s->state_dim;
}

uint64_t shape_snap_bytes(const struct shape *s)
{
    return s->n_delta * (shape_conv_floats(s) + shape_s_floats(s)) * sizeof(float);
}
