/* holdfast inspect FILE: what a model file holds, for people or as JSON. */
#include "cli/cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/json.h"
#include "base/str.h"
#include "base/utf8.h"
#include "cli/opts.h"
#include "gguf/gguf.h"
#include "model/model.h"

enum { N_SHOWN = 8, TEXT_SHOWN = 64 }; /* elements of an array, bytes of a text */

struct inspect {
    const char *path;
    enum kv_type kv_type;
    const struct gguf *g;
    bool is_model; /* else err says why not */
    struct model_info model;
    struct err err;
};

/* Totals by type. */
struct totals {
    uint64_t n_tensors, n_elems, bytes;
};

static uint64_t n_elems_of(const struct gguf_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static struct totals totals_of(const struct gguf *g, enum dtype type)
{
    struct totals s = {0};
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->type != type)
            continue;
        s.n_tensors++;
        s.n_elems += n_elems_of(t);
        s.bytes += t->bytes;
    }
    return s;
}

enum { MAX_TYPE = 256 }; /* ids of types are below */

/* ---- values ---- */

/* A number of a key as text that reads back to the same value. */
struct number {
    char s[40];
};

static struct number number_at(const struct gguf_key *k, uint64_t i)
{
    struct number o;
    int64_t v;
    double d;
    if (gguf_arr_i64(k, i, &v)) {
        if (k->elem == GGUF_BOOL)
            snprintf(o.s, sizeof o.s, "%s", v ? "true" : "false");
        else
            snprintf(o.s, sizeof o.s, "%" PRId64, v);
    } else if (gguf_arr_f64(k, i, &d)) {
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(o.s, sizeof o.s, "%.*g", digits, d);
            const double back = strtod(o.s, NULL);
            if (k->elem == GGUF_F32 ? (float)back == (float)d : back == d)
                break;
        }
    } else { /* a u64 beyond int64_t */
        uint64_t u = 0;
        for (int b = 0; b < 8; b++)
            u |= (uint64_t)k->data[i * 8 + (uint64_t)b] << 8 * b;
        snprintf(o.s, sizeof o.s, "%" PRIu64, u);
    }
    return o;
}

/* The first max bytes or so of a text, with escapes for what would disturb a terminal. */
static void add_text(struct buf *b, struct str s, size_t max, bool quoted)
{
    if (quoted)
        buf_addc(b, '"');
    size_t i = 0;
    while (i < s.n && i < max) {
        uint32_t c;
        const size_t n = utf8_decode(s.p + i, s.n - i, &c);
        if (c == '\n')
            buf_adds(b, "\\n");
        else if (c == '\t')
            buf_adds(b, "\\t");
        else if (quoted && (c == '"' || c == '\\'))
            buf_addf(b, "\\%c", (char)c);
        else if (c == UINT32_MAX || c < 0x20 || (c >= 0x7f && c < 0xa0))
            buf_addf(b, "\\x%02x", (uint8_t)s.p[i]);
        else
            buf_add(b, s.p + i, n);
        /* an escape above stands for one byte, and C1 controls have two */
        i += c >= 0x7f && c < 0xa0 ? 1 : n;
    }
    if (i < s.n)
        buf_adds(b, "...");
    if (quoted)
        buf_addc(b, '"');
    else if (i < s.n)
        buf_addf(b, " (%zu bytes)", s.n);
}

static void add_value(struct buf *b, const struct gguf_key *k)
{
    const bool is_array = k->kind == GGUF_ARR;
    uint64_t off = 0;
    struct str s;
    for (uint64_t i = 0; i < MIN(k->n, (uint64_t)N_SHOWN); i++) {
        if (i)
            buf_adds(b, ", ");
        if (k->elem != GGUF_STR) {
            buf_adds(b, number_at(k, i).s);
        } else if (gguf_arr_next_str(k, &off, &s)) {
            add_text(b, s, is_array ? 16 : TEXT_SHOWN, is_array);
        }
    }
    if (k->n > N_SHOWN)
        buf_adds(b, ", ...");
}

/* --key: nothing but the value, an element a line. */
static int print_key(const struct inspect *in, const char *name)
{
    const struct gguf_key *k = gguf_find_key(in->g, name);
    uint64_t off = 0;
    struct str s;
    if (!k) {
        fprintf(stderr, "holdfast inspect: %s has no key %s\n", in->path, name);
        return 1;
    }
    for (uint64_t i = 0; i < k->n && k->elem != GGUF_STR; i++)
        puts(number_at(k, i).s);
    while (gguf_arr_next_str(k, &off, &s)) {
        fwrite(s.p, 1, s.n, stdout);
        putchar('\n');
    }
    return 0;
}

/* ---- for people ---- */

struct size_text {
    char s[16];
};

static struct size_text size_text(uint64_t bytes)
{
    struct size_text t;
    str_from_bytes(bytes, t.s);
    return t;
}

static void add_keys(struct buf *b, const struct gguf *g)
{
    size_t width = 0;
    for (uint64_t i = 0; i < gguf_n_keys(g); i++)
        width = MAX(width, MIN(gguf_key_at(g, i)->name.n, (size_t)TEXT_SHOWN));
    buf_adds(b, "\nkeys\n");
    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        char kind[40];
        const size_t from = b->n;
        snprintf(kind, sizeof kind, k->kind == GGUF_ARR ? "%s[%" PRIu64 "]" : "%s",
                 gguf_kind_name(k->elem), k->n);
        buf_adds(b, "  ");
        add_text(b, k->name, TEXT_SHOWN, false);
        buf_addf(b, "%*s", (int)MAX(0, (int)width + 2 - (int)(b->n - from)), "");
        buf_addf(b, "  %-14s  ", kind);
        add_value(b, k);
        buf_addc(b, '\n');
    }
}

static void add_tensors(struct buf *b, const struct gguf *g)
{
    buf_addf(b, "\n%-40s%-8s%-26s%12s\n", "tensors", "type", "shape", "size");
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char shape[96];
        int n = 0;
        for (uint32_t d = 0; d < t->n_dims; d++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, d ? " x %" PRIu64 : "%" PRIu64,
                          t->ne[d]);
        const size_t from = b->n;
        buf_adds(b, "  ");
        add_text(b, t->name, TEXT_SHOWN, false);
        buf_addf(b, "%*s", (int)MAX(1, 40 - (int)(b->n - from)), "");
        buf_addf(b, "%-8s%-26s%12s\n", dtype_info(t->type)->name, shape, size_text(t->bytes).s);
    }
}

static void add_totals(struct buf *b, const struct gguf *g)
{
    buf_addf(b, "\n%-12s%8s%18s%14s\n", "types", "tensors", "weights", "size");
    for (uint32_t id = 0; id < MAX_TYPE; id++) {
        const struct dtype_info *di = dtype_info(id);
        if (!di)
            continue;
        const struct totals s = totals_of(g, di->type);
        if (s.n_tensors)
            buf_addf(b, "  %-10s%8" PRIu64 "%18" PRIu64 "%14s\n", di->name, s.n_tensors, s.n_elems,
                     size_text(s.bytes).s);
    }
}

static void add_cost(struct buf *b, const struct inspect *in)
{
    if (!in->is_model) {
        buf_addf(b, "\nno model that can be served: %s\n", in->err.msg);
        return;
    }
    const struct model_info *m = &in->model;
    const struct shape *s = &m->shape;
    const uint64_t token_bytes = shape_token_bytes(s);
    const bool big = m->n_params >= 1000000000;
    buf_addf(b,
             "\nmodel       %s, %" PRIu32 " layers (%" PRIu32 " attention, %" PRIu32
             " delta net), %.3g %s weights\n",
             m->arch, m->n_layer, s->n_attn, s->n_delta, (double)m->n_params * (big ? 1e-9 : 1e-6),
             big ? "billion" : "million");
    buf_addf(b, "weights     %s\n", size_text(m->weight_bytes).s);
    buf_addf(b, "snapshot    %s for the recurrent state at one position\n",
             size_text(shape_snap_bytes(s)).s);
    buf_addf(b, "KV (%s)%*s%s a token, in pages of %d tokens (%s)\n", kv_type_name(in->kv_type),
             (int)(7 - strlen(kv_type_name(in->kv_type))), "", size_text(token_bytes).s, KV_PAGE,
             size_text(shape_page_bytes(s)).s);
    buf_addf(b, "            %s for the trained context of %" PRIu32 " tokens\n",
             size_text(token_bytes * m->n_ctx_train).s, m->n_ctx_train);
}

static void add_report(struct buf *b, const struct inspect *in, bool with_tensors)
{
    const struct gguf *g = in->g;
    buf_addf(b, "%s: GGUF v%" PRIu32 ", %s", in->path, gguf_version(g),
             size_text(gguf_file_bytes(g)).s);
    if (gguf_n_parts(g) > 1)
        buf_addf(b, " in %" PRIu32 " files", gguf_n_parts(g));
    buf_addf(b, ", %" PRIu64 " keys, %" PRIu64 " tensors\n", gguf_n_keys(g), gguf_n_tensors(g));
    add_keys(b, g);
    if (with_tensors)
        add_tensors(b, g);
    add_totals(b, g);
    add_cost(b, in);
}

/* ---- JSON ---- */

static void json_value(struct jwrite *w, const char *key, const struct gguf_key *k, uint64_t i,
                       uint64_t *off)
{
    struct str s;
    double d;
    if (k->elem == GGUF_STR) {
        if (gguf_arr_next_str(k, off, &s))
            jwrite_strn(w, key, s.p, s.n);
    } else if (gguf_arr_f64(k, i, &d)) {
        jwrite_f64(w, key, isfinite(d) ? strtod(number_at(k, i).s, NULL) : d);
    } else {
        jwrite_raw(w, key, number_at(k, i).s);
    }
}

static void json_keys(struct jwrite *w, const struct gguf *g)
{
    jwrite_arr(w, "keys");
    for (uint64_t i = 0; i < gguf_n_keys(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        uint64_t off = 0;
        jwrite_obj(w, NULL);
        jwrite_strn(w, "name", k->name.p, k->name.n);
        jwrite_str(w, "type", gguf_kind_name(k->kind));
        if (k->kind == GGUF_ARR) {
            jwrite_str(w, "elem", gguf_kind_name(k->elem));
            jwrite_u64(w, "n", k->n);
            jwrite_arr(w, "value");
            for (uint64_t j = 0; j < MIN(k->n, (uint64_t)N_SHOWN); j++)
                json_value(w, NULL, k, j, &off);
            jwrite_end_arr(w);
        } else {
            json_value(w, "value", k, 0, &off);
        }
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
}

static void json_tensors(struct jwrite *w, const struct gguf *g)
{
    jwrite_arr(w, "tensors");
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        jwrite_obj(w, NULL);
        jwrite_strn(w, "name", t->name.p, t->name.n);
        jwrite_str(w, "type", dtype_info(t->type)->name);
        jwrite_arr(w, "shape");
        for (uint32_t d = 0; d < t->n_dims; d++)
            jwrite_u64(w, NULL, t->ne[d]);
        jwrite_end_arr(w);
        jwrite_u64(w, "bytes", t->bytes);
        jwrite_u64(w, "part", t->part);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
}

static void json_totals(struct jwrite *w, const struct gguf *g)
{
    jwrite_arr(w, "types");
    for (uint32_t id = 0; id < MAX_TYPE; id++) {
        const struct dtype_info *di = dtype_info(id);
        const struct totals s = di ? totals_of(g, di->type) : (struct totals){0};
        if (!s.n_tensors)
            continue;
        jwrite_obj(w, NULL);
        jwrite_str(w, "type", di->name);
        jwrite_u64(w, "tensors", s.n_tensors);
        jwrite_u64(w, "weights", s.n_elems);
        jwrite_u64(w, "bytes", s.bytes);
        jwrite_end_obj(w);
    }
    jwrite_end_arr(w);
}

static void json_model(struct jwrite *w, const struct inspect *in)
{
    if (!in->is_model) {
        jwrite_null(w, "model");
        jwrite_str(w, "model_error", in->err.msg);
        return;
    }
    const struct model_info *m = &in->model;
    jwrite_obj(w, "model");
    jwrite_str(w, "arch", m->arch);
    jwrite_u64(w, "n_layer", m->n_layer);
    jwrite_u64(w, "n_attention", m->shape.n_attn);
    jwrite_u64(w, "n_delta", m->shape.n_delta);
    jwrite_u64(w, "n_embd", m->n_embd);
    jwrite_u64(w, "n_vocab", m->n_vocab);
    jwrite_u64(w, "n_ctx_train", m->n_ctx_train);
    jwrite_u64(w, "n_params", m->n_params);
    jwrite_u64(w, "weight_bytes", m->weight_bytes);
    jwrite_u64(w, "snapshot_bytes", shape_snap_bytes(&m->shape));
    jwrite_str(w, "kv_type", kv_type_name(in->kv_type));
    jwrite_u64(w, "kv_token_bytes", shape_token_bytes(&m->shape));
    jwrite_u64(w, "kv_page_tokens", KV_PAGE);
    jwrite_end_obj(w);
}

static void add_json(struct buf *b, const struct inspect *in, bool with_tensors)
{
    struct jwrite w;
    jwrite_init(&w, b);
    jwrite_obj(&w, NULL);
    jwrite_str(&w, "file", in->path);
    jwrite_u64(&w, "version", gguf_version(in->g));
    jwrite_u64(&w, "parts", gguf_n_parts(in->g));
    jwrite_u64(&w, "bytes", gguf_file_bytes(in->g));
    json_keys(&w, in->g);
    if (with_tensors)
        json_tensors(&w, in->g);
    json_totals(&w, in->g);
    json_model(&w, in);
    jwrite_end_obj(&w);
    buf_addc(b, '\n');
}

/* ---- the command ---- */

static int print_report(struct inspect *in, bool json, bool with_tensors)
{
    struct buf b = BUF_INIT;
    in->is_model = model_describe(in->g, in->kv_type, &in->model, &in->err) == RC_OK;
    if (json)
        add_json(&b, in, with_tensors);
    else
        add_report(&b, in, with_tensors);
    if (b.failed)
        fprintf(stderr, "holdfast inspect: no memory for the report\n");
    else
        fwrite(buf_str(&b), 1, b.n, stdout);
    const int status = b.failed ? 1 : 0;
    buf_release(&b);
    return status;
}

int cmd_inspect(int argc, char **argv)
{
    struct inspect in = {0};
    const char *kv = kv_type_name(KV_DEFAULT), *key = NULL;
    bool json = false, tensors = true;
    const struct opt table[] = {
        {"--json", OPT_FLAG, &json, .help = "one JSON object instead of text"},
        {"--tensors !--no-tensors", OPT_FLAG, &tensors, .help = "list every tensor (default: yes)"},
        {"--key", OPT_STR, &key, .arg = "NAME", .help = "only this key, its whole value"},
        {"-ctk --cache-type-k", OPT_STR, &kv, .arg = "TYPE",
         .help = "KV cache type to reckon with: i16, f16, f32 or q8_0 (i16)"},
    };
    const struct opts o = {
        .command = "inspect",
        .operands_help = "FILE",
        .intro = "Print what a GGUF model file holds: keys, tensors, sizes, and what a token of\n"
                 "KV cache and a snapshot of the recurrent state will cost.",
        .table = table,
        .n = COUNT_OF(table),
        .operands = &in.path,
        .min_operands = 1,
        .max_operands = 1};
    const enum opts_result parsed = opts_parse(&o, argc, argv, stderr);
    if (parsed)
        return opts_status(parsed);
    if (!kv_type_parse(kv, &in.kv_type)) {
        fprintf(stderr, "holdfast inspect: --cache-type-k is i16, f16, f32 or q8_0, not '%s'\n",
                kv);
        return 2;
    }
    struct gguf *g;
    if (gguf_open(in.path, &g, &in.err)) {
        fprintf(stderr, "holdfast inspect: %s\n", in.err.msg);
        return 1;
    }
    in.g = g;
    int status = key ? print_key(&in, key) : print_report(&in, json, tensors);
    gguf_close(g);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "holdfast inspect: cannot write the report\n");
        status = 1;
    }
    return status;
}
