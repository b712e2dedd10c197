/* A log says the same whatever carried it: tests/logs in every wrapping, against itself without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include "base/file.h"
#include "base/mem.h"
#include "lab/forensics.h"

#include <cmocka.h>

static char *log_text(const char *name, size_t *n)
{
    char path[512], *text;
    struct err err;
    snprintf(path, sizeof path, "%s/tests/logs/%s", HOUSE_SOURCE_DIR, name);
    if (file_read_all(path, MIB, &text, n, &err))
        fail_msg("%s", err.msg);
    return text;
}

/* The totals of bytes, and the names of the processes. */
static json_t *totals(const void *p, size_t n, uint64_t *unknown)
{
    struct err err;
    struct forensics *f;
    json_t *s;
    assert_int_equal(forensics_new(&(struct forensics_opts){.now = 1.8e9}, &f, &err), 0);
    if (forensics_mem(f, "memory", p, n, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(forensics_end(f, &err), 0);
    assert_int_equal(forensics_summary(f, NULL, &s, &err), 0);
    json_t *t = json_incref(json_object_get(s, "totals"));
    if (unknown)
        *unknown = (uint64_t)json_integer_value(
            json_object_get(json_array_get(json_object_get(s, "files"), 0), "unknown_lines"));
    json_decref(s);
    forensics_free(f);
    return t;
}

static void same(const char *what, const void *p, size_t n, const json_t *want)
{
    json_t *got = totals(p, n, NULL);
    if (!json_equal(got, want)) {
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)want, key, v)
        {
            if (json_equal(v, json_object_get(got, key)))
                continue;
            char *a = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT),
                 *b = json_dumps(json_object_get(got, key), JSON_ENCODE_ANY | JSON_COMPACT);
            print_error("%s: %s is %s, should be %s\n", what, key, b, a);
            free(a);
            free(b);
        }
        json_decref(got);
        fail();
    }
    json_decref(got);
}

static void json_escape(struct buf *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] == '"' || p[i] == '\\')
            buf_addf(out, "\\%c", p[i]);
        else if ((uint8_t)p[i] < 0x20)
            buf_addf(out, "\\u%04x", (unsigned)p[i]);
        else
            buf_addc(out, p[i]);
}

/* One line, wrapped; i is its number. */
typedef void wrapper(struct buf *out, const char *p, size_t n, int i);

static void journald(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "May %2d 01:%02d:52 host start_server.sh[37450]: %.*s\n", 1 + i / 60, i % 60,
             (int)n, p);
}
static void journald_iso(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "2026-05-22T01:%02d:52+0200 host llama-server[37450]: %.*s\n", i % 60, (int)n, p);
}
static void journald_precise(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "May 22 01:%02d:52.123456 host llama[1]: %.*s\n", i % 60, (int)n, p);
}
static void journald_no_host(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "Sep 11 00:%02d:06   ollama[]: %.*s\n", i % 60, (int)n, p);
}
static void journald_full(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "Fri 2026-05-22 01:%02d:52 CEST host llama.service[37450]: %.*s\n", i % 60,
             (int)n, p);
}
static void journald_unix(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "17922240%02d.123456 host llama[37450]: %.*s\n", i % 60, (int)n, p);
}
static void rsyslog(struct buf *out, const char *p, size_t n, int i)
{
    if (!i)
        buf_adds(out, "2026-05-22T01:00:00.123456+02:00 host llama: starting\n");
    buf_addf(out, "2026-05-22T01:%02d:52.123456+02:00 host llama: %.*s\n", i % 60, (int)n, p);
}
static void journald_json(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "{\"__REALTIME_TIMESTAMP\":\"17922240%02d000000\",\"_PID\":\"77\",\"MESSAGE\":\"",
             i % 60);
    json_escape(out, p, n);
    buf_adds(out, "\"}\n");
}
static void journald_json_bytes(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_adds(out, "{\"_PID\":\"77\",\"MESSAGE\":[27,91,51,52,109");
    for (size_t k = 0; k < n; k++)
        buf_addf(out, ",%u", (uint8_t)p[k]);
    buf_adds(out, "],\"PRIORITY\":\"6\"}\n");
}
static void syslog_old(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "<134>May 22 01:%02d:52 host llama[37450]: %.*s\n", i % 60, (int)n, p);
}
static void syslog_new(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "<165>1 2026-05-22T01:%02d:52.003Z host llama 37450 - - %.*s\n", i % 60, (int)n,
             p);
}
static void compose(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_addf(out, "llama-1  | %.*s\n", (int)n, p);
}
static void compose_times(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "llama_1    | 2026-10-15T03:%02d:09.123456789Z %.*s\n", i % 60, (int)n, p);
}
static void docker_times(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "2026-10-15T03:%02d:09.123456789Z %.*s\n", i % 60, (int)n, p);
}
static void cri(struct buf *out, const char *p, size_t n, int i)
{
    const size_t half = i % 3 ? n / 2 : 0;
    if (half)
        buf_addf(out, "2026-10-15T03:%02d:09.1Z stderr P %.*s\n", i % 60, (int)half, p);
    buf_addf(out, "2026-10-15T03:%02d:09.2Z stderr F %.*s\n", i % 60, (int)(n - half), p + half);
}
static void docker_json(struct buf *out, const char *p, size_t n, int i)
{
    buf_adds(out, "{\"log\":\"");
    json_escape(out, p, n);
    buf_addf(out, "\\n\",\"stream\":\"stderr\",\"time\":\"2026-10-15T03:%02d:09.123456789Z\"}\n",
             i % 60);
}
static void docker_json_colour(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_adds(out, "{\"log\":\"\\u001b[32m");
    json_escape(out, p, n);
    buf_adds(out,
             "\\u001b[0m\\r\\n\",\"stream\":\"stdout\",\"time\":\"2026-10-15T03:11:09.1Z\"}\n");
}
static void pod(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_addf(out, "[pod/llama-7d9/server] %.*s\n", (int)n, p);
}
static void router(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_addf(out, "[57130] %.*s\n", (int)n, p);
}
static void router_short_port(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_addf(out, "[ 8081] %.*s\n", (int)n, p);
}
static void lmstudio(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "2026-05-05 15:%02d:36.138 [Info] %.*s\n", i % 60, (int)n, p);
}
static void lmstudio_old(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "[2025-10-24 12:%02d:40][DEBUG][qwen/qwen3-4b] %.*s\n", i % 60, (int)n, p);
}
static void lmstudio_heads(struct buf *out, const char *p, size_t n, int i)
{
    if (i % 4 == 0)
        buf_addf(out, "2026-06-03 11:%02d:46 [DEBUG]\n ", i % 60);
    buf_addf(out, "%.*s\n", (int)n, p);
}
static void clock_and_level(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "%d.%02d.964.457 W %.*s\n", 63 + i / 60, i % 60, (int)n, p);
}
static void colours(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "\033[34m%d.%02d.000.000\033[0m \033[32mI \033[0m%.*s\033[K\n", i / 60, i % 60,
             (int)n, p);
}
static void crlf(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_addf(out, "%.*s\r\n", (int)n, p);
}
static void overwritten(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "loading %d %%\r%.*s\n", i, (int)n, p);
}
static void python_logging(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "2026-05-22 01:%02d:52,123 - INFO - llama: %.*s\n", i % 60, (int)n, p);
}
static void unheard_of(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "box7 <<22 May, 01:%02d:52>> %.*s\n", i % 60, (int)n, p);
}
static void lost_escapes(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "[34m%d.%02d.000.000[0m [32mI [0m%.*s\n", i / 60, i % 60, (int)n, p);
}
static void indented(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_addf(out, "    %.*s\n", (int)n, p);
}
static void quoted(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "> %d.%02d.000.000 I %.*s\n", i / 60, i % 60, (int)n, p);
}
static void daemontools(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "2026-05-22_01:%02d:52.12345 %.*s\n", i % 60, (int)n, p);
}
static void moreutils_ts(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "May 22 01:%02d:52 %.*s\n", i % 60, (int)n, p);
}
static void stern(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "llama-7c9f-abcde llama 2026-05-22T01:%02d:52.123456789Z %.*s\n", i % 60, (int)n,
             p);
}
static void actions(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "serve\tRun\t2026-05-22T01:%02d:52.1234567Z %.*s\n", i % 60, (int)n, p);
}
static void fluentd(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "{\"stream\":\"stderr\",\"time\":\"2026-10-15T03:%02d:09.1Z\",\"log\":\"",
             i % 60);
    json_escape(out, p, n);
    buf_adds(out, "\\n\"}\n");
}
static void pm2(struct buf *out, const char *p, size_t n, int i)
{
    (void)i;
    buf_addf(out, "0|llama-server  | %.*s\n", (int)n, p);
}
static void all_at_once(struct buf *out, const char *p, size_t n, int i)
{
    buf_adds(out, "{\"log\":\"llama-1  | [57130] ");
    json_escape(out, "\033[34m", 5);
    buf_addf(out, "%d.%02d.000.000 ", i / 60, i % 60);
    json_escape(out, "\033[0mI ", 6);
    json_escape(out, p, n);
    buf_adds(out, "\\n\",\"stream\":\"stderr\",\"time\":\"2026-10-15T03:11:09.1Z\"}\r\n");
}
static void chatter(struct buf *out, const char *p, size_t n, int i)
{
    buf_addf(out, "llama_memory: some other line %d\n\n%.*s\n", i, (int)n, p);
    if (i % 7 == 0)
        buf_adds(
            out,
            "user wrote: slot update_slots: id  0 | task 0 | forcing full prompt re-processing\n"
            "log tail: erased invalidated context checkpoint (pos_min = 1, pos_max = 1)\n");
}

static const struct {
    const char *name;
    wrapper *f;
} wrappings[] = {
    {"journald", journald},
    {"journald short-iso", journald_iso},
    {"journald short-precise", journald_precise},
    {"journald, host hidden", journald_no_host},
    {"journald short-full", journald_full},
    {"journald short-unix", journald_unix},
    {"rsyslog, no number", rsyslog},
    {"journald json", journald_json},
    {"journald json, bytes", journald_json_bytes},
    {"syslog", syslog_old},
    {"syslog RFC 5424", syslog_new},
    {"compose", compose},
    {"compose with times", compose_times},
    {"docker times", docker_times},
    {"k8s CRI, in parts", cri},
    {"docker json-file", docker_json},
    {"docker json-file, colours and CR", docker_json_colour},
    {"kubectl --prefix", pod},
    {"router", router},
    {"router, port of four digits", router_short_port},
    {"LM Studio", lmstudio},
    {"LM Studio 2025", lmstudio_old},
    {"LM Studio, date lines", lmstudio_heads},
    {"server clock", clock_and_level},
    {"colours", colours},
    {"crlf", crlf},
    {"overwritten with CR", overwritten},
    {"python logging", python_logging},
    {"unheard of", unheard_of},
    {"pm2", pm2},
    {"colours, escape bytes lost", lost_escapes},
    {"indented", indented},
    {"quoted", quoted},
    {"svlogd", daemontools},
    {"ts", moreutils_ts},
    {"stern", stern},
    {"CI job", actions},
    {"docker json, other order", fluentd},
    {"all at once", all_at_once},
    {"between other lines", chatter},
};

static size_t line_length(const char *text, size_t n, size_t at)
{
    size_t k = 0;
    while (at + k < n && text[at + k] != '\n')
        k++;
    return k;
}

static void wrap(struct buf *out, wrapper *f, const char *text, size_t n)
{
    int i = 0;
    for (size_t at = 0; at < n; i++) {
        const size_t k = line_length(text, n, at);
        f(out, text + at, k, i);
        at += k + 1;
    }
}

static const char *const logs[] = {"mainline-plain.log", "pxa.log"};

static void every_wrapping_comes_off(void **state)
{
    (void)state;
    for (size_t l = 0; l < COUNT_OF(logs); l++) {
        size_t n;
        char *text = log_text(logs[l], &n);
        json_t *want = totals(text, n, NULL);
        assert_true(json_integer_value(json_object_get(want, "turns_timed")) >= 3);
        for (size_t w = 0; w < COUNT_OF(wrappings); w++) {
            char what[128];
            struct buf b = BUF_INIT;
            wrap(&b, wrappings[w].f, text, n);
            snprintf(what, sizeof what, "%s in %s", logs[l], wrappings[w].name);
            same(what, b.p, b.n, want);
            buf_release(&b);
        }
        json_decref(want);
        mem_free(text);
    }
}

static void packed_logs_are_read_directly(void **state)
{
    (void)state;
    size_t n;
    char *text = log_text(logs[0], &n);
    json_t *want = totals(text, n, NULL);
    /* gzip, in two members */
    uint8_t gz[65536];
    size_t gz_n = 0;
    for (int part = 0; part < 2; part++) {
        z_stream z = {0};
        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        const size_t half = n / 2;
        z.next_in = (Bytef *)text + (part ? half : 0);
        z.avail_in = (uInt)(part ? n - half : half);
        z.next_out = gz + gz_n;
        z.avail_out = (uInt)(sizeof gz - gz_n);
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        gz_n = sizeof gz - z.avail_out;
        deflateEnd(&z);
    }
    same("gzip", gz, gz_n, want);
    memset(gz + gz_n, 0, 512); /* as tapes pad */
    same("gzip with padding", gz, gz_n + 512, want);
    uint8_t zs[65536];
    size_t zs_n = ZSTD_compress(zs, sizeof zs, text, n / 3, 3);
    zs_n += ZSTD_compress(zs + zs_n, sizeof zs - zs_n, text + n / 3, n - n / 3, 3);
    same("zstd", zs, zs_n, want);

    struct err err;
    struct forensics *f;
    assert_int_equal(forensics_new(&(struct forensics_opts){.now = 1.8e9}, &f, &err), 0);
    assert_int_equal(forensics_mem(f, "cut.gz", gz, gz_n / 3, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "end in the middle"));
    gz[gz_n / 4] ^= 0x55;
    assert_int_equal(forensics_mem(f, "bad.gz", gz, gz_n, &err), RC_FORMAT);
    assert_int_equal(forensics_mem(f, "cut.zst", zs, zs_n / 4, &err), RC_FORMAT);
    zs[4] ^= 0x08; /* a bit of the frame header that must be 0 */
    assert_int_equal(forensics_mem(f, "bad.zst", zs, zs_n, &err), RC_FORMAT);
    forensics_free(f);
    json_decref(want);
    mem_free(text);
}

static void utf16_and_byte_order_marks_are_read(void **state)
{
    (void)state;
    size_t n;
    char *text = log_text(logs[0], &n);
    json_t *want = totals(text, n, NULL);
    struct buf le = BUF_INIT, be = BUF_INIT, mark = BUF_INIT;
    buf_add(&le, "\xff\xfe", 2);
    buf_add(&be, "\xfe\xff", 2);
    buf_add(&mark, "\xef\xbb\xbf", 3);
    buf_add(&mark, text, n);
    for (size_t i = 0; i < n; i++) {
        buf_add(&le, (const char[]){text[i], 0}, 2);
        buf_add(&be, (const char[]){0, text[i]}, 2);
    }
    same("UTF-16LE", le.p, le.n, want);
    same("UTF-16BE", be.p, be.n, want);
    same("UTF-8 with a mark", mark.p, mark.n, want);
    buf_release(&le);
    buf_release(&be);
    buf_release(&mark);
    json_decref(want);
    mem_free(text);
}

static void a_process_id_a_port_and_a_container_keep_servers_apart(void **state)
{
    (void)state;
    size_t n;
    char *text = log_text(logs[0], &n);
    struct buf b = BUF_INIT;
    for (size_t at = 0; at < n;) { /* two servers, line by line in turn */
        const size_t k = line_length(text, n, at);
        buf_addf(&b, "May 22 01:30:52 host llama[1]: %.*s\n", (int)k, text + at);
        buf_addf(&b, "May 22 01:30:52 host llama[2]: %.*s\n", (int)k, text + at);
        at += k + 1;
    }
    json_t *one = totals(text, n, NULL), *two = totals(b.p, b.n, NULL);
    static const char *const keys[] = {"turns", "turns_timed", "forced", "evaluated_tokens",
                                       "avoidable_tokens"};
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        assert_int_equal(json_integer_value(json_object_get(two, keys[i])),
                         2 * json_integer_value(json_object_get(one, keys[i])));
    json_decref(one);
    json_decref(two);
    buf_release(&b);
    mem_free(text);
}

static void a_restart_begins_with_empty_slots(void **state)
{
    (void)state;
    size_t n;
    uint64_t unknown;
    char *text = log_text(logs[0], &n);
    struct buf b = BUF_INIT;
    buf_add(&b, text, n);
    buf_add(&b, text, n);
    json_t *one = totals(text, n, NULL), *two = totals(b.p, b.n, &unknown);
    assert_int_equal(json_integer_value(json_object_get(two, "full_reprefill_turns")),
                     2 * json_integer_value(json_object_get(one, "full_reprefill_turns")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(two, "outcomes"), "cold")),
                     2);
    assert_int_equal(unknown, 0);
    json_decref(one);
    json_decref(two);
    buf_release(&b);
    mem_free(text);
}

static void overlong_and_binary_lines_are_survived(void **state)
{
    (void)state;
    size_t n;
    char *text = log_text(logs[0], &n);
    json_t *want = totals(text, n, NULL);
    struct buf b = BUF_INIT;
    for (int i = 0; i < 300; i++)
        buf_adds(&b, "a very long line without an end, a very long line without an end, ");
    for (int i = 0; i < 8; i++) {
        const size_t k = b.n;
        buf_add(&b, buf_str(&b), 0);
        for (size_t at = 0; at < k && b.n < (size_t)3 << 20; at += 1024)
            buf_add(&b, text, MIN((size_t)1024, n));
        for (size_t at = k; at < b.n; at++)
            if (b.p[at] == '\n')
                b.p[at] = ' ';
    }
    buf_addc(&b, '\n');
    buf_add(&b, "\0\0\0\xff\xfe binary \0\n", 15);
    buf_add(&b, text, n);
    same("behind a line of 3 MB", b.p, b.n, want);
    buf_release(&b);
    json_decref(want);
    mem_free(text);
}

static void rotated_files_come_oldest_first(void **state)
{
    (void)state;
    const char *p[] = {"a/server.log", "a/server.log.1", "a/server.log.10.gz", "a/server.log.2.zst",
                       "b.log",        "c.log-20260502", "c.log-20260501.gz",  "c.log"};
    bool joined[COUNT_OF(p)];
    forensics_order(p, joined, COUNT_OF(p));
    static const char *const want[] = {
        "a/server.log.10.gz", "a/server.log.2.zst", "a/server.log.1", "a/server.log", "b.log",
        "c.log-20260501.gz",  "c.log-20260502",     "c.log"};
    static const bool continues[] = {false, true, true, true, false, false, true, true};
    for (size_t i = 0; i < COUNT_OF(p); i++) {
        assert_string_equal(p[i], want[i]);
        assert_int_equal(joined[i], continues[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wrapping_comes_off),
        cmocka_unit_test(packed_logs_are_read_directly),
        cmocka_unit_test(utf16_and_byte_order_marks_are_read),
        cmocka_unit_test(a_process_id_a_port_and_a_container_keep_servers_apart),
        cmocka_unit_test(a_restart_begins_with_empty_slots),
        cmocka_unit_test(overlong_and_binary_lines_are_survived),
        cmocka_unit_test(rotated_files_come_oldest_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
