/* shape.h - how much state a sequence has: bytes per token of KV, bytes per recurrent snapshot. */
#ifndef HOLDFAST_STATE_SHAPE_H
#define HOLDFAST_STATE_SHAPE_H

#include "base/err.h"

enum { KV_PAGE = 64 }; /* tokens in a KV page; also the attention block (absolute positions) */

/* Numbered as on disk (docs/formats/cache-dir.md).  i16: int16 multiples of a step that each row has. */
enum kv_type { KV_F16, KV_F32, KV_Q8_0, KV_I16, KV_DEFAULT = KV_I16 };
const char *kv_type_name(enum kv_type t); /* "?" when there is none */
/* Of a name in either case; false when there is none, and *out is left alone. */
bool kv_type_parse(const char *name, enum kv_type *out);

struct shape {
    uint32_t n_attn;  /* full-attention layers */
    uint32_t n_delta; /* gated-delta-net layers */
    uint32_t n_kv_heads, head_dim;
    enum kv_type kv_type;
    uint32_t conv_taps;            /* K: the conv state holds K - 1 columns */
    uint32_t conv_channels;        /* C */
    uint32_t n_v_heads, state_dim; /* S is [n_v_heads][state_dim][state_dim] */
    uint64_t fingerprint;          /* of model, layout and arithmetic; set by the model */
};

/* One row of K or V: head_dim elements of the kv_type; q8_0 takes an f16 scale and 32 int8 for each 32
 * elements (head_dim % 32 == 0), i16 an f32 and head_dim int16. */
uint64_t shape_row_bytes(const struct shape *s);
/* K and V of one token over all attention layers. */
uint64_t shape_token_bytes(const struct shape *s);
/* One page: KV_PAGE tokens of every attention layer. */
uint64_t shape_page_bytes(const struct shape *s);
/* Floats of one delta layer: conv state, then S. */
uint64_t shape_conv_floats(const struct shape *s);
uint64_t shape_s_floats(const struct shape *s);
/* Conv state and S of every delta layer. */
uint64_t shape_snap_bytes(const struct shape *s);

#endif
