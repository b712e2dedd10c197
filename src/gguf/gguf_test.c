/* The files under test are put together byte by byte here, so that the reader is not tested against
 * the project's own writer alone. */
#include "gguf/gguf.h"
#include "gguf/gguf_write.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <cmocka.h>

/* ---- building files ---- */

static void u8(struct buf *b, uint8_t v)
{
    buf_addc(b, (char)v);
}

static void u16(struct buf *b, uint16_t v)
{
    u8(b, (uint8_t)v);
    u8(b, (uint8_t)(v >> 8));
}

static void u32(struct buf *b, uint32_t v)
{
    u16(b, (uint16_t)v);
    u16(b, (uint16_t)(v >> 16));
}

static void u64(struct buf *b, uint64_t v)
{
    u32(b, (uint32_t)v);
    u32(b, (uint32_t)(v >> 32));
}

static void f64(struct buf *b, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    u64(b, bits);
}

static void f32(struct buf *b, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    u32(b, bits);
}

static void text(struct buf *b, const char *s)
{
    u64(b, strlen(s));
    buf_adds(b, s);
}

static void head(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    buf_adds(b, "GGUF");
    u32(b, version);
    u64(b, n_tensors);
    u64(b, n_keys);
}

static void key(struct buf *b, const char *name, uint32_t kind)
{
    text(b, name);
    u32(b, kind);
}

static void key_u32(struct buf *b, const char *name, uint32_t v)
{
    key(b, name, GGUF_U32);
    u32(b, v);
}

static void info(struct buf *b, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type,
                 uint64_t offset)
{
    text(b, name);
    u32(b, 2);
    u64(b, ne0);
    u64(b, ne1);
    u32(b, type);
    u64(b, offset);
}

/* Zeros up to a multiple of align, then n bytes 1, 2, 3 ... */
static void data(struct buf *b, uint64_t align, uint64_t n)
{
    while (b->n % align)
        u8(b, 0);
    for (uint64_t i = 0; i < n; i++)
        u8(b, (uint8_t)(i + 1));
}

/* Every kind of key and three tensors; ends with the last tensor's last byte. */
static void sample(struct buf *b, uint32_t version)
{
    buf_init(b);
    head(b, version, 3, 19);
    key(b, "general.architecture", GGUF_STR), text(b, "qwen35");
    key(b, "k.u8", GGUF_U8), u8(b, 200);
    key(b, "k.i8", GGUF_I8), u8(b, 0x80);
    key(b, "k.u16", GGUF_U16), u16(b, 65535);
    key(b, "k.i16", GGUF_I16), u16(b, 0x8000);
    key_u32(b, "k.u32", 4000000000u);
    key(b, "k.i32", GGUF_I32), u32(b, 0xfffffffeu);
    key(b, "k.f32", GGUF_F32), f32(b, 1e-6f);
    key(b, "k.bool", GGUF_BOOL), u8(b, 1);
    key(b, "k.u64", GGUF_U64), u64(b, UINT64_MAX);
    key(b, "k.i64", GGUF_I64), u64(b, 7);
    key(b, "k.f64", GGUF_F64), f64(b, 1e300);
    key(b, "a.i32", GGUF_ARR), u32(b, GGUF_I32), u64(b, 4);
    u32(b, 11), u32(b, 11), u32(b, 10), u32(b, 0xffffffffu);
    key(b, "a.str", GGUF_ARR), u32(b, GGUF_STR), u64(b, 3);
    text(b, "a"), text(b, ""), text(b, "long one");
    key(b, "a.f64", GGUF_ARR), u32(b, GGUF_F64), u64(b, 2), f64(b, 0.5), f64(b, -2);
    key(b, "a.bool", GGUF_ARR), u32(b, GGUF_BOOL), u64(b, 2), u8(b, 0), u8(b, 1);
    key(b, "a.none", GGUF_ARR), u32(b, GGUF_U64), u64(b, 0);
    key(b, "s.none", GGUF_STR), text(b, "");
    key_u32(b, "general.alignment", 64);
    info(b, "token_embd.weight", 32, 2, DT_Q8_0, 64); /* 68 bytes */
    info(b, "output_norm.weight", 4, 1, DT_F32, 0);   /* 16 bytes */
    info(b, "blk.0.w", 256, 1, DT_Q4_K, 192);         /* 144 bytes */
    data(b, 64, 192 + 144);
}

static volatile uint64_t sink; /* keeps the reads */

/* gguf_open_mem on a copy of exactly n bytes, so that the sanitizer sees one byte too far.  On
 * success everything the reader hands out is read. */
static enum rc open_copy(const void *p, size_t n, struct err *err)
{
    struct gguf *g = NULL;
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    if (n)
        memcpy(copy, p, n);
    const enum rc rc = gguf_open_mem(copy, n, &g, err);
    uint64_t sum = 0;
    for (uint64_t i = 0; !rc && i < gguf_n_keys(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        uint64_t off = 0;
        struct str s;
        for (uint64_t j = 0; j < k->bytes; j++)
            sum += k->data[j];
        while (gguf_arr_next_str(k, &off, &s))
            sum += s.n ? (uint8_t)s.p[s.n - 1] : 0;
    }
    for (uint64_t i = 0; !rc && i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sum += (uint64_t)t->data[0] + t->data[t->bytes - 1] + (uint8_t)t->name.p[t->name.n - 1];
    }
    sink = sum;
    (void)sink;
    gguf_close(g);
    free(copy);
    return rc;
}

/* ---- reading ---- */

static int64_t int_of(const struct gguf *g, const char *name, uint64_t i)
{
    int64_t v = 0;
    assert_true(gguf_arr_i64(gguf_find_key(g, name), i, &v));
    return v;
}

static void every_kind_of_key_reads_back(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct buf b;
        struct gguf *g;
        struct err err;
        sample(&b, version);
        assert_int_equal(gguf_open_mem(b.p, b.n, &g, &err), RC_OK);
        assert_int_equal(gguf_version(g), version);
        assert_int_equal(gguf_n_parts(g), 1);
        assert_int_equal(gguf_n_keys(g), 19);
        assert_int_equal(gguf_file_bytes(g), b.n);
        assert_int_equal(int_of(g, "k.u8", 0), 200);
        assert_int_equal(int_of(g, "k.i8", 0), -128);
        assert_int_equal(int_of(g, "k.u16", 0), 65535);
        assert_int_equal(int_of(g, "k.i16", 0), -32768);
        assert_true(int_of(g, "k.u32", 0) == INT64_C(4000000000));
        assert_int_equal(int_of(g, "k.i32", 0), -2);
        assert_int_equal(int_of(g, "k.i64", 0), 7);
        assert_int_equal(int_of(g, "k.bool", 0), 1);
        assert_int_equal(int_of(g, "a.i32", 2), 10);
        assert_int_equal(int_of(g, "a.i32", 3), -1);
        assert_int_equal(int_of(g, "a.bool", 1), 1);
        int64_t i;
        double d;
        assert_false(gguf_arr_i64(gguf_find_key(g, "k.u64"), 0, &i)); /* beyond int64 */
        assert_false(gguf_arr_i64(gguf_find_key(g, "k.f32"), 0, &i));
        assert_true(gguf_arr_f64(gguf_find_key(g, "a.f64"), 1, &d));
        assert_true(d == -2);
        assert_int_equal(gguf_find_key(g, "a.none")->n, 0);
        assert_null(gguf_find_key(g, "k.u"));
        assert_null(gguf_find_key(g, ""));

        static const char *const want[] = {"a", "", "long one"};
        uint64_t off = 0;
        struct str s;
        for (size_t n = 0; n < 3; n++) {
            assert_true(gguf_arr_next_str(gguf_find_key(g, "a.str"), &off, &s));
            assert_true(str_is(s, want[n]));
        }
        assert_false(gguf_arr_next_str(gguf_find_key(g, "a.str"), &off, &s));
        gguf_close(g);
        buf_release(&b);
    }
}

static void tensors_lie_where_their_offsets_say(void **state)
{
    (void)state;
    struct buf b;
    struct gguf *g;
    struct err err;
    sample(&b, 3);
    assert_int_equal(gguf_open_mem(b.p, b.n, &g, &err), RC_OK);
    assert_int_equal(gguf_n_tensors(g), 3);
    const struct gguf_tensor *t = gguf_find_tensor(g, "token_embd.weight");
    assert_ptr_equal(t, gguf_tensor_at(g, 0));
    assert_int_equal(t->type, DT_Q8_0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->ne[0], 32);
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[2] * t->ne[3], 1);
    assert_int_equal(t->bytes, 68);
    assert_int_equal(t->data[0], 65); /* offset 64 of the bytes 1, 2, 3 ... */
    assert_int_equal(gguf_find_tensor(g, "output_norm.weight")->data[0], 1);
    assert_int_equal(gguf_find_tensor(g, "blk.0.w")->bytes, 144);
    assert_int_equal(gguf_find_tensor(g, "blk.0.w")->data[0], 193);
    assert_null(gguf_find_tensor(g, "blk.0.ww"));
    gguf_close(g);
    buf_release(&b);
}

static void typed_reads_convert_or_name_the_key(void **state)
{
    (void)state;
    struct buf b;
    struct gguf *g;
    struct err err;
    uint32_t u = 5;
    float f = 5;
    bool on = false;
    struct str s = {"x", 1};
    sample(&b, 3);
    assert_int_equal(gguf_open_mem(b.p, b.n, &g, &err), RC_OK);

    static const char *const ints[] = {"k.u8", "k.u16", "k.u32", "k.i64"};
    for (size_t i = 0; i < COUNT_OF(ints); i++)
        assert_int_equal(gguf_get_u32(g, ints[i], true, &u, &err), RC_OK);
    assert_int_equal(u, 7);
    assert_int_equal(gguf_get_u32(g, "absent", false, &u, &err), RC_OK);
    assert_int_equal(u, 7);
    static const char *const bad[] = {"k.i8",   "k.i32", "k.u64",  "k.f32",
                                      "k.bool", "a.i32", "s.none", "absent"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(gguf_get_u32(g, bad[i], true, &u, &err), RC_FORMAT);
        assert_non_null(strstr(err.msg, bad[i]));
    }
    assert_int_equal(gguf_get_f32(g, "k.f32", true, &f, &err), RC_OK);
    assert_true(f == 1e-6f);
    assert_int_equal(gguf_get_f32(g, "k.f64", true, &f, &err), RC_FORMAT); /* 1e300 */
    assert_int_equal(gguf_get_f32(g, "k.u32", true, &f, &err), RC_FORMAT);
    assert_int_equal(gguf_get_f32(g, "absent", true, &f, &err), RC_FORMAT);
    assert_int_equal(gguf_get_bool(g, "k.bool", true, &on, &err), RC_OK);
    assert_true(on);
    assert_int_equal(gguf_get_bool(g, "k.f32", true, &on, &err), RC_FORMAT);
    assert_int_equal(gguf_get_str(g, "general.architecture", true, &s, &err), RC_OK);
    assert_true(str_is(s, "qwen35"));
    assert_int_equal(gguf_get_str(g, "s.none", true, &s, &err), RC_OK);
    assert_int_equal(s.n, 0);
    assert_int_equal(gguf_get_str(g, "a.str", true, &s, &err), RC_FORMAT);
    gguf_close(g);
    buf_release(&b);
}

static void numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        struct buf b = BUF_INIT;
        struct gguf *g;
        struct err err;
        float f = 0;
        head(&b, 3, 0, 1);
        key(&b, "eps", GGUF_F32), f32(&b, values[i]);
        assert_int_equal(gguf_open_mem(b.p, b.n, &g, &err), RC_OK);
        assert_int_equal(gguf_get_f32(g, "eps", true, &f, &err), RC_FORMAT);
        gguf_close(g);
        buf_release(&b);
    }
}

static void a_thousand_keys_and_tensors_are_found_by_name(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct buf b = BUF_INIT;
    struct gguf *g;
    struct err err;
    char name[32];
    head(&b, 3, N, N);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%" PRIu32, i);
        key_u32(&b, name, i);
    }
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".w", i);
        info(&b, name, 8, 1, DT_F32, i * 32);
    }
    data(&b, 32, N * 32);
    assert_int_equal(gguf_open_mem(b.p, b.n, &g, &err), RC_OK);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%" PRIu32, i);
        assert_int_equal(int_of(g, name, 0), i);
        snprintf(name, sizeof name, "blk.%" PRIu32 ".w", i);
        assert_ptr_equal(gguf_find_tensor(g, name), gguf_tensor_at(g, i));
    }
    gguf_close(g);
    buf_release(&b);
}

static void a_file_without_tensors_needs_no_data(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct err err;
    head(&b, 3, 0, 1);
    key_u32(&b, "k", 1);
    assert_int_equal(open_copy(b.p, b.n, &err), RC_OK);
    buf_release(&b);
}

/* ---- hostile files ---- */

static void a_file_cut_at_any_byte_names_where(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct buf b;
        struct err err;
        sample(&b, version);
        assert_int_equal(open_copy(b.p, b.n, &err), RC_OK);
        for (size_t n = 0; n < b.n; n++) {
            err.msg[0] = 0;
            assert_int_equal(open_copy(b.p, n, &err), RC_FORMAT);
            if (n >= 24 && !strstr(err.msg, "key") && !strstr(err.msg, "tensor"))
                fail_msg("cut at %zu: %s", n, err.msg);
            assert_true(err.msg[0]);
        }
        buf_release(&b);
    }
}

static void any_header_byte_may_hold_any_value(void **state)
{
    (void)state;
    struct buf b;
    struct err err;
    sample(&b, 3);
    const size_t n_head = b.n - 192 - 144;
    size_t refused = 0;
    for (size_t i = 0; i < n_head; i++) {
        const char old = b.p[i];
        for (int v = 0; v < 256; v++) {
            b.p[i] = (char)v;
            refused += open_copy(b.p, b.n, &err) != RC_OK;
        }
        b.p[i] = old;
    }
    assert_true(refused > n_head); /* many changes are harmless (texts, values), many are not */
    buf_release(&b);
}

/* 64-bit fields set to what overflows a careless sum or product. */
static void any_header_field_may_be_huge(void **state)
{
    (void)state;
    static const uint64_t values[] = {0,
                                      1,
                                      UINT64_MAX,
                                      UINT64_MAX - 7,
                                      UINT64_MAX / 2,
                                      UINT64_MAX / 2 + 1,
                                      UINT64_C(1) << 62,
                                      UINT64_C(1) << 32,
                                      UINT32_MAX,
                                      UINT64_C(0x2000000000000000),
                                      UINT64_C(0xffffffff00000000)};
    struct buf b;
    struct err err;
    sample(&b, 3);
    const size_t n_head = b.n - 192 - 144;
    for (size_t i = 0; i + 8 <= n_head; i++) {
        char old[8];
        memcpy(old, b.p + i, 8);
        for (size_t v = 0; v < COUNT_OF(values); v++) {
            for (int k = 0; k < 8; k++)
                b.p[i + (size_t)k] = (char)(values[v] >> 8 * k);
            (void)!open_copy(b.p, b.n, &err);
        }
        memcpy(b.p + i, old, 8);
    }
    assert_int_equal(open_copy(b.p, b.n, &err), RC_OK);
    buf_release(&b);
}

/* One broken file per row: made by `make`, refused with `rc` and a message that has `says`. */
static void bad_magic(struct buf *b)
{
    buf_adds(b, "PK\3\4 is a zip file, not one of ours");
}

static void version_1(struct buf *b)
{
    head(b, 1, 0, 0);
}

static void version_4(struct buf *b)
{
    head(b, 4, 0, 0);
}

static void big_endian(struct buf *b)
{
    head(b, 0x03000000, 0, 0);
}

static void too_many_keys(struct buf *b)
{
    head(b, 3, 0, UINT64_MAX);
}

static void too_many_tensors(struct buf *b)
{
    head(b, 3, UINT64_C(1) << 60, 0);
}

static void empty_key(struct buf *b)
{
    head(b, 3, 0, 1);
    key_u32(b, "", 1);
}

static void key_twice(struct buf *b)
{
    head(b, 3, 0, 3);
    key_u32(b, "general.name", 1);
    key_u32(b, "between", 1);
    key_u32(b, "general.name", 1);
}

static void kind_13(struct buf *b)
{
    head(b, 3, 0, 1);
    key(b, "odd.key", 13), u32(b, 0);
}

static void nested_array(struct buf *b)
{
    head(b, 3, 0, 1);
    key(b, "deep", GGUF_ARR), u32(b, GGUF_ARR), u64(b, 1), u32(b, GGUF_U8), u64(b, 0);
}

static void elem_13(struct buf *b)
{
    head(b, 3, 0, 1);
    key(b, "odd.array", GGUF_ARR), u32(b, 13), u64(b, 0);
}

static void long_array(struct buf *b)
{
    head(b, 3, 0, 1);
    key(b, "long", GGUF_ARR), u32(b, GGUF_U8), u64(b, UINT64_C(1) << 31);
}

static void array_past_end(struct buf *b)
{
    head(b, 3, 0, 1);
    key(b, "cut.array", GGUF_ARR), u32(b, GGUF_F64), u64(b, 100), u64(b, 0);
}

static void string_past_end(struct buf *b)
{
    head(b, 3, 0, 1);
    key(b, "cut.str", GGUF_ARR), u32(b, GGUF_STR), u64(b, 2), text(b, "fine"), u64(b, 1), u64(b, 9);
    b->n -= 8;
}

static void align_not_power_of_two(struct buf *b)
{
    head(b, 3, 0, 1);
    key_u32(b, "general.alignment", 48);
}

static void align_too_small(struct buf *b)
{
    head(b, 3, 0, 1);
    key_u32(b, "general.alignment", 4);
}

static void align_a_string(struct buf *b)
{
    head(b, 3, 0, 1);
    key(b, "general.alignment", GGUF_STR), text(b, "32");
}

static void tensor_twice(struct buf *b)
{
    head(b, 3, 2, 0);
    info(b, "same.weight", 8, 1, DT_F32, 0);
    info(b, "same.weight", 8, 1, DT_F32, 32);
    data(b, 32, 64);
}

static void tensor_without_name(struct buf *b)
{
    head(b, 3, 2, 0);
    info(b, "first.weight", 8, 1, DT_F32, 0);
    info(b, "", 8, 1, DT_F32, 32);
    data(b, 32, 64);
}

static void tensor_long_name(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "0123456789012345678901234567890123456789012345678901234567890123", 8, 1, DT_F32, 0);
    data(b, 32, 64);
}

static void tensor_type_137(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "blk.3.ffn_up.weight", 256, 1, 137, 0);
    data(b, 32, 256);
}

static void tensor_half_block(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "half.weight", 48, 1, DT_Q8_0, 0);
    data(b, 32, 256);
}

static void tensor_no_dims(struct buf *b)
{
    head(b, 3, 1, 0);
    text(b, "flat.weight"), u32(b, 0), u32(b, DT_F32), u64(b, 0), u64(b, 0);
    data(b, 32, 64);
}

static void tensor_five_dims(struct buf *b)
{
    head(b, 3, 1, 0);
    text(b, "five.weight"), u32(b, 5);
    for (int i = 0; i < 5; i++)
        u64(b, 1);
    u32(b, DT_F32), u64(b, 0);
    data(b, 32, 64);
}

static void tensor_zero_dim(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "zero.weight", 8, 0, DT_F32, 0);
    data(b, 32, 64);
}

static void tensor_overflow(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "wide.weight", UINT64_C(1) << 32, UINT64_C(1) << 32, DT_F32, 0);
    data(b, 32, 64);
}

static void tensor_bytes_overflow(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "big.weight", UINT64_C(1) << 31, UINT64_C(1) << 31, DT_F32, 0);
    data(b, 32, 64);
}

static void tensor_offset_overflow(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "far.weight", 8, 1, DT_F32, UINT64_MAX - 31);
    data(b, 32, 64);
}

static void tensor_odd_offset(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "odd.weight", 8, 1, DT_F32, 8);
    data(b, 32, 64);
}

static void tensor_past_end(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "cut.weight", 8, 3, DT_F32, 0);
    data(b, 32, 95);
}

static void tensors_overlap(struct buf *b)
{
    head(b, 3, 2, 0);
    info(b, "second.weight", 8, 1, DT_F32, 32);
    info(b, "first.weight", 8, 2, DT_F32, 0);
    data(b, 32, 64);
}

static void tensors_at_one_place(struct buf *b)
{
    head(b, 3, 2, 0);
    info(b, "one.weight", 8, 1, DT_F32, 0);
    info(b, "two.weight", 8, 1, DT_F32, 0);
    data(b, 32, 64);
}

static void name_with_controls(struct buf *b)
{
    head(b, 3, 1, 0);
    info(b, "\x1b[2Jevil", 8, 1, 99, 0);
    data(b, 32, 64);
}

static void part_of_three(struct buf *b)
{
    head(b, 3, 0, 2);
    key(b, "split.count", GGUF_U16), u16(b, 3);
    key(b, "split.no", GGUF_U16), u16(b, 0);
}

static void every_refusal_says_what_and_where(void **state)
{
    (void)state;
    static const struct {
        void (*make)(struct buf *b);
        enum rc rc;
        const char *says;
    } rows[] = {
        {bad_magic, RC_FORMAT, "50 4b 03 04"},
        {version_1, RC_UNSUPPORTED, "version 1"},
        {version_4, RC_UNSUPPORTED, "version 4"},
        {big_endian, RC_UNSUPPORTED, "big-endian"},
        {too_many_keys, RC_FORMAT, "18446744073709551615 keys"},
        {too_many_tensors, RC_FORMAT, "1152921504606846976 tensors"},
        {empty_key, RC_FORMAT, "key 1 of 1"},
        {key_twice, RC_FORMAT, "key general.name occurs twice"},
        {kind_13, RC_FORMAT, "key odd.key"},
        {nested_array, RC_UNSUPPORTED, "key deep"},
        {elem_13, RC_FORMAT, "key odd.array"},
        {long_array, RC_LIMIT, "key long"},
        {array_past_end, RC_FORMAT, "key cut.array: 100 x f64"},
        {string_past_end, RC_FORMAT, "key cut.str: string 2 of 2"},
        {align_not_power_of_two, RC_FORMAT, "general.alignment is 48"},
        {align_too_small, RC_FORMAT, "general.alignment is 4"},
        {align_a_string, RC_FORMAT, "general.alignment is string"},
        {tensor_twice, RC_FORMAT, "tensor same.weight occurs twice"},
        {tensor_without_name, RC_FORMAT, "tensor 2 of 2, after first.weight"},
        {tensor_long_name, RC_FORMAT, "tensor 1 of 1: a name of 64 bytes"},
        {tensor_type_137, RC_UNSUPPORTED, "tensor blk.3.ffn_up.weight: unknown type 137"},
        {tensor_half_block, RC_FORMAT, "tensor half.weight"},
        {tensor_no_dims, RC_FORMAT, "tensor flat.weight: 0 dim"},
        {tensor_five_dims, RC_FORMAT, "tensor five.weight: 5 dim"},
        {tensor_zero_dim, RC_FORMAT, "tensor zero.weight: dimension 1 is 0"},
        {tensor_overflow, RC_FORMAT, "tensor wide.weight"},
        {tensor_bytes_overflow, RC_FORMAT, "tensor big.weight"},
        {tensor_offset_overflow, RC_FORMAT, "tensor far.weight"},
        {tensor_odd_offset, RC_FORMAT, "tensor odd.weight: offset 8"},
        {tensor_past_end, RC_FORMAT, "tensor cut.weight ends at byte 192, but the file has 191"},
        {tensors_overlap, RC_FORMAT, "tensors first.weight and second.weight overlap"},
        {tensors_at_one_place, RC_FORMAT, "overlap at offset 0"},
        {name_with_controls, RC_UNSUPPORTED, "tensor ?[2Jevil"},
        {part_of_three, RC_UNSUPPORTED, "one of 3 files"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buf b = BUF_INIT;
        struct err err = {0};
        rows[i].make(&b);
        const enum rc rc = open_copy(b.p, b.n, &err);
        if (rc != rows[i].rc || err.rc != rc || !strstr(err.msg, rows[i].says))
            fail_msg("row %zu: rc %d, \"%s\", wanted \"%s\"", i, rc, err.msg, rows[i].says);
        buf_release(&b);
    }
}

static void running_out_of_memory_is_an_error_without_leaks(void **state)
{
    (void)state;
    struct buf b;
    struct err err;
    enum rc rc = RC_NOMEM;
    sample(&b, 3);
    uint64_t n = 0;
    while (rc && n < 100) {
        mem_fail_after(++n);
        rc = open_copy(b.p, b.n, &err);
        mem_fail_after(0);
        assert_true(rc == RC_OK || rc == RC_NOMEM);
    }
    assert_int_equal(rc, RC_OK);
    assert_true(n > 4);
    buf_release(&b);
}

/* ---- files on disk ---- */

struct dir {
    char path[64];
};

static int make_dir(void **state)
{
    struct dir *d = mem_zalloc(sizeof *d);
    snprintf(d->path, sizeof d->path, "/tmp/holdfast-gguf-XXXXXX");
    *state = d;
    return !mkdtemp(d->path);
}

static int remove_dir(void **state)
{
    struct dir *d = *state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", d->path);
    const int bad = system(cmd);
    mem_free(d);
    return bad;
}

static const char *in_dir(const struct dir *d, const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", d->path, name);
    return out;
}

/* Part no of n with two tensors a<no>, b<no>; total is split.tensors.count (only in the first). */
static void write_part(const struct dir *d, uint16_t no, uint16_t n, uint16_t says_no,
                       int32_t total)
{
    struct buf b = BUF_INIT;
    struct err err;
    char name[64], path[128];
    head(&b, 3, 2, 3);
    key(&b, "split.no", GGUF_U16), u16(&b, says_no);
    key(&b, "split.count", GGUF_U16), u16(&b, n);
    key(&b, "split.tensors.count", GGUF_I32), u32(&b, (uint32_t)total);
    snprintf(name, sizeof name, "a%d", no);
    info(&b, name, 8, 1, DT_F32, 0);
    snprintf(name, sizeof name, "b%d", no);
    info(&b, name, 32, 1, DT_Q8_0, 32);
    data(&b, 32, 32 + 34);
    snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", no + 1, n);
    assert_int_equal(file_write_atomically(in_dir(d, name, path), b.p, b.n, &err), RC_OK);
    buf_release(&b);
}

static void check_split(const char *path,
                        enum rc (*open)(const char *, struct gguf **, struct err *))
{
    struct gguf *g;
    struct err err;
    assert_int_equal(open(path, &g, &err), RC_OK);
    assert_int_equal(gguf_n_tensors(g), 6);
    assert_int_equal(gguf_n_parts(g), 3);
    assert_int_equal(gguf_n_keys(g), 3);
    for (uint32_t i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "b%" PRIu32, i);
        const struct gguf_tensor *t = gguf_find_tensor(g, name);
        assert_non_null(t);
        assert_int_equal(t->part, i);
        assert_int_equal(t->data[0], 33);
        gguf_drop_tensor(g, t);
        assert_int_equal(t->data[33], 66);
    }
    gguf_close(g);
}

static void a_split_file_is_opened_by_its_first_part(void **state)
{
    char path[128];
    for (uint16_t i = 0; i < 3; i++)
        write_part(*state, i, 3, i, 6);
    in_dir(*state, "m-00001-of-00003.gguf", path);
    check_split(path, gguf_open);
    check_split(path, gguf_open_copy);
}

static void a_split_file_that_does_not_fit_together_is_refused(void **state)
{
    static const struct {
        const char *open, *says;
        enum rc rc;
        uint16_t n_written, second_says;
        int32_t total;
    } rows[] = {
        {"m-00002-of-00003.gguf", "part 2 of 3", RC_ARG, 3, 1, 6},
        {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf", RC_IO, 2, 1, 6},
        {"m-00001-of-00003.gguf", "part 2 of 3: key split.no", RC_FORMAT, 3, 2, 6},
        {"m-00001-of-00003.gguf", "split.tensors.count is 7", RC_FORMAT, 3, 1, 7},
        {"other.gguf", "must end in -00001-of-00003.gguf", RC_ARG, 3, 1, 6},
    };
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        struct gguf *g = NULL;
        struct err err = {0};
        char path[128], other[128];
        (void)unlink(in_dir(*state, "m-00003-of-00003.gguf", path));
        for (uint16_t i = 0; i < rows[r].n_written; i++)
            write_part(*state, i, 3, i == 1 ? rows[r].second_says : i, rows[r].total);
        if (!strcmp(rows[r].open, "other.gguf"))
            assert_int_equal(rename(in_dir(*state, "m-00001-of-00003.gguf", path),
                                    in_dir(*state, "other.gguf", other)),
                             0);
        const enum rc rc = gguf_open(in_dir(*state, rows[r].open, path), &g, &err);
        if (rc != rows[r].rc || !strstr(err.msg, rows[r].says))
            fail_msg("row %zu: rc %d, \"%s\"", r, rc, err.msg);
    }
}

static void parts_may_not_share_a_tensor(void **state)
{
    struct gguf *g = NULL;
    struct err err = {0};
    char from[128], to[128];
    write_part(*state, 0, 2, 1, 4); /* a0, b0, and says that it is the second */
    assert_int_equal(rename(in_dir(*state, "m-00001-of-00002.gguf", from),
                            in_dir(*state, "m-00002-of-00002.gguf", to)),
                     0);
    write_part(*state, 0, 2, 0, 4);
    assert_int_equal(gguf_open(from, &g, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "tensor a0 occurs twice"));
}

static void what_is_no_model_file_is_refused_with_its_path(void **state)
{
    struct gguf *g = NULL;
    struct err err = {0};
    char path[128];
    assert_int_equal(gguf_open(in_dir(*state, "absent.gguf", path), &g, &err), RC_IO);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(file_write_atomically(in_dir(*state, "empty.gguf", path), "", 0, &err), RC_OK);
    assert_int_equal(gguf_open(path, &g, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, path));
    const struct dir *d = *state;
    assert_int_not_equal(gguf_open(d->path, &g, &err), RC_OK);
}

/* ---- the writer ---- */

static void what_the_writer_writes_reads_back(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct err err;
    char path[128];
    uint8_t big[3000];
    static const uint64_t ne_a[] = {5, 3}, ne_b[] = {256, 2, 2}, ne_c[] = {1};
    static const int32_t ints[] = {3, -3, 2};
    const struct str strs[] = {str_of("x"), str_of(""), str_of("\xc4\xa0yz")};
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (uint8_t)(i * 7);
    assert_int_equal(gguf_writer_open(in_dir(*state, "w.gguf", path), &w, &err), RC_OK);
    gguf_write_str(w, "general.architecture", "qwen35");
    gguf_write_u32(w, "u", 77);
    gguf_write_f32(w, "f", 0.25f);
    gguf_write_bool(w, "b", true);
    gguf_write_arr_i32(w, "ai", ints, 3);
    gguf_write_arr_str(w, "as", strs, 3);
    gguf_write_tensor(w, "a", DT_F32, 2, ne_a);
    gguf_write_tensor(w, "b", DT_Q8_0, 3, ne_b);
    gguf_write_tensor(w, "c", DT_BF16, 1, ne_c);
    gguf_write_data(w, big, 7); /* in odd pieces, across tensors */
    gguf_write_data(w, big + 7, 60 - 7 + 100);
    gguf_write_data(w, big + 160, 1088 + 2 - 100);
    assert_int_equal(gguf_writer_close(w, &err), RC_OK);

    assert_int_equal(gguf_open(path, &g, &err), RC_OK);
    uint32_t u = 0;
    float f = 0;
    bool on = false;
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_get_u32(g, "u", true, &u, &err), RC_OK);
    assert_int_equal(u, 77);
    assert_int_equal(gguf_get_f32(g, "f", true, &f, &err), RC_OK);
    assert_true(f == 0.25f);
    assert_int_equal(gguf_get_bool(g, "b", true, &on, &err), RC_OK);
    assert_true(on);
    assert_int_equal(int_of(g, "ai", 1), -3);
    struct str s;
    uint64_t off = 0;
    for (size_t i = 0; i < 3; i++) {
        assert_true(gguf_arr_next_str(gguf_find_key(g, "as"), &off, &s));
        assert_true(str_eq(s, strs[i]));
    }
    const struct gguf_tensor *a = gguf_find_tensor(g, "a"), *b = gguf_find_tensor(g, "b"),
                             *c = gguf_find_tensor(g, "c");
    assert_int_equal(a->bytes, 60);
    assert_int_equal(b->bytes, 1088);
    assert_int_equal(b->ne[2], 2);
    assert_int_equal(c->bytes, 2);
    assert_memory_equal(a->data, big, 60);
    assert_memory_equal(b->data, big + 60, 1088);
    assert_memory_equal(c->data, big + 60 + 1088, 2);
    /* consecutive and padded, as other readers insist */
    assert_ptr_equal(b->data, a->data + 64);
    assert_ptr_equal(c->data, b->data + 1088);
    assert_int_equal(gguf_file_bytes(g) % 32, 0);
    gguf_close(g);
}

static void a_failed_write_leaves_the_old_file(void **state)
{
    struct gguf_writer *w;
    struct err err = {0};
    char path[128], *text_now;
    size_t n;
    static const uint64_t ne[] = {8}, ne_odd[] = {33};
    in_dir(*state, "keep.gguf", path);
    assert_int_equal(file_write_atomically(path, "old", 3, &err), RC_OK);
    for (int slip = 0; slip < 5; slip++) {
        uint8_t zeros[64] = {0};
        assert_int_equal(gguf_writer_open(path, &w, &err), RC_OK);
        gguf_write_u32(w, "k", 1);
        gguf_write_tensor(w, "t", DT_F32, 1, ne);
        if (slip == 0)
            gguf_write_tensor(w, "odd", DT_Q8_0, 1, ne_odd);
        gguf_write_data(w, zeros, slip == 1 ? 31 : 32);
        if (slip == 2)
            gguf_write_data(w, zeros, 1);
        if (slip == 3)
            gguf_write_u32(w, "late", 1);
        if (slip == 4)
            gguf_write_tensor(w, "late", DT_F32, 1, ne);
        assert_int_equal(gguf_writer_close(w, &err), RC_ARG);
        assert_non_null(strstr(err.msg, path));
        assert_int_equal(file_read_all(path, 100, &text_now, &n, &err), RC_OK);
        assert_string_equal(text_now, "old");
        mem_free(text_now);
    }
    /* and no temporary file either: only keep.gguf is in the directory */
    char cmd[256];
    const struct dir *d = *state;
    snprintf(cmd, sizeof cmd, "test \"$(ls %s/keep*)\" = %s", d->path, path);
    assert_int_equal(system(cmd), 0);
}

static void the_writer_replaces_no_device_and_no_directory(void **state)
{
    struct gguf_writer *w;
    struct err err = {0};
    char path[128];
    const struct dir *d = *state;
    assert_int_equal(gguf_writer_open("/dev/null", &w, &err), RC_ARG);
    assert_int_equal(gguf_writer_open(d->path, &w, &err), RC_ARG);
    assert_int_equal(gguf_writer_open(in_dir(d, "no/such/dir.gguf", path), &w, &err), RC_IO);
    assert_non_null(strstr(err.msg, "no/such/dir.gguf"));
}

/* ---- files made by another writer ---- */

static void the_golden_models_open_with_the_expected_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *name, *arch;
        uint64_t n_tensors;
        uint32_t n_blocks;
    } models[] = {{"tiny", "qwen35", 108, 8},
                  {"tiny-moe", "qwen35moe", 149, 8},
                  {"tiny-mtp", "qwen35", 123, 9}};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct gguf *g;
        struct err err = {0};
        char path[256], name[64];
        struct str arch = {0};
        uint32_t n = 0;
        snprintf(path, sizeof path, "%s/golden/%s.gguf", HOUSE_SHARED_DIR, models[i].name);
        if (access(path, R_OK)) {
            print_message("%s is not there\n", path);
            skip();
        }
        assert_int_equal(gguf_open(path, &g, &err), RC_OK);
        assert_int_equal(gguf_n_tensors(g), models[i].n_tensors);
        assert_int_equal(gguf_get_str(g, "general.architecture", true, &arch, &err), RC_OK);
        assert_true(str_is(arch, models[i].arch));
        snprintf(name, sizeof name, "%s.block_count", models[i].arch);
        assert_int_equal(gguf_get_u32(g, name, true, &n, &err), RC_OK);
        assert_int_equal(n, models[i].n_blocks);
        const struct gguf_key *tokens = gguf_find_key(g, "tokenizer.ggml.tokens");
        assert_int_equal(tokens->n, 512);
        uint64_t off = 0, n_str = 0;
        struct str s;
        while (gguf_arr_next_str(tokens, &off, &s))
            n_str++;
        assert_int_equal(n_str, 512);
        assert_int_equal(gguf_find_tensor(g, "token_embd.weight")->ne[1], 512);
        gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_key_reads_back),
        cmocka_unit_test(tensors_lie_where_their_offsets_say),
        cmocka_unit_test(typed_reads_convert_or_name_the_key),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(a_thousand_keys_and_tensors_are_found_by_name),
        cmocka_unit_test(a_file_without_tensors_needs_no_data),
        cmocka_unit_test(a_file_cut_at_any_byte_names_where),
        cmocka_unit_test(any_header_byte_may_hold_any_value),
        cmocka_unit_test(any_header_field_may_be_huge),
        cmocka_unit_test(every_refusal_says_what_and_where),
        cmocka_unit_test(running_out_of_memory_is_an_error_without_leaks),
        cmocka_unit_test_setup_teardown(a_split_file_is_opened_by_its_first_part, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_split_file_that_does_not_fit_together_is_refused,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(parts_may_not_share_a_tensor, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_is_no_model_file_is_refused_with_its_path, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(what_the_writer_writes_reads_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_failed_write_leaves_the_old_file, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_writer_replaces_no_device_and_no_directory, make_dir,
                                        remove_dir),
        cmocka_unit_test(the_golden_models_open_with_the_expected_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
