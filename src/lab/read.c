#include "lab/line.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "lab/unwrap.h"

static const char *const kind_name[LINE_N_KINDS] = {
    [LINE_UNKNOWN] = "unknown", [LINE_NOISE] = "noise",       [LINE_BEGIN] = "begin",
    [LINE_LAUNCH] = "launch",   [LINE_PROMPT] = "prompt",     [LINE_DIVERGE] = "diverge",
    [LINE_CACHE] = "cache",     [LINE_OFFER] = "offer",       [LINE_FORCE] = "force",
    [LINE_CHECK] = "check",     [LINE_RESTORE] = "restore",   [LINE_REFUSED] = "refused",
    [LINE_CREATE] = "create",   [LINE_ERASE] = "erase",       [LINE_EVICT] = "evict",
    [LINE_THIN] = "thin",       [LINE_CLEAR] = "clear",       [LINE_REENTRY] = "reentry",
    [LINE_REWIND] = "rewind",   [LINE_PROGRESS] = "progress", [LINE_TIMING] = "timing",
    [LINE_EVAL] = "eval",       [LINE_DECODE] = "decode",     [LINE_RELEASE] = "release",
    [LINE_CANCEL] = "cancel",   [LINE_PICK_LCP] = "pick-lcp", [LINE_PICK_LRU] = "pick-lru",
    [LINE_PICK] = "pick",       [LINE_PICK_SIM] = "pick-sim", [LINE_PARK] = "park",
    [LINE_SWAP] = "swap",       [LINE_FREED] = "freed",       [LINE_TURN] = "turn",
    [LINE_HTTP] = "http",       [LINE_ECHO] = "echo"};

const char *line_kind_name(enum line_kind k)
{
    return (unsigned)k < LINE_N_KINDS ? kind_name[k] : "?";
}

void engine_names(uint32_t engines, char out[96])
{
    static const char *const name[ENG_N] = {"llama.cpp", "ik_llama.cpp", "PXA",
                                            "Ollama",    "LM Studio",    "holdfast"};
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < ENG_N; i++)
        if (engines & 1u << i)
            n += (size_t)snprintf(out + n, 96 - MIN(n, (size_t)95), "%s%s", n ? " or " : "",
                                  name[i]);
    if (!n)
        memcpy(out, "unknown", 8);
}

/* ---- fields by name ------------------------------------------------------------------------- */

struct key {
    const char *name;
    uint16_t off;
    bool real; /* double; else int64 */
};
#define I(field) offsetof(struct line, field), false
#define D(field) offsetof(struct line, field), true

/* In patterns. */
static const struct key pattern_key[] = {{"n_prompt", I(n_prompt)},
                                         {"n_past", I(n_past)},
                                         {"held", I(held)},
                                         {"pos_min", I(pos_min)},
                                         {"pos_max", I(pos_max)},
                                         {"n_tokens", I(n_tokens)},
                                         {"n", I(n)},
                                         {"max", I(max)},
                                         {"lcp", I(lcp0)},
                                         {"task", I(task)},
                                         {"ms", D(ms)},
                                         {"mib", D(mib)},
                                         {"sim", D(sim)},
                                         {"keep", D(keep)},
                                         {"t_last", D(t_last)}};

/* In "key = value" pairs of any dialect.  Where one name means two things the line's kind decides
 * (settle() below). */
static const struct key pair_key[] = {
    /* slot lines */
    {"pos_min", I(pos_min)},
    {"pos_max", I(pos_max)},
    {"pos_next", I(pos_next)},
    {"n_tokens", I(n_tokens)},
    {"n_past", I(n_past)},
    {"size", D(mib)},
    {"task.n_tokens", I(n_prompt)},
    {"n_prompt_tokens", I(n_prompt)},
    {"slot.prompt.tokens.size()", I(held)},
    {"cache_tokens.size()", I(held)},
    {"total", I(n_prompt)},
    {"sim_best", D(sim)},
    {"f_sim_best", D(sim)},
    {"f_sim", D(sim)},
    {"sim", D(sim)},
    {"similarity", D(sim)},
    {"f_keep", D(keep)},
    {"progress", D(sim)},
    /* ik and PXA */
    {"p0", I(n_past)},
    {"n_cache_tokens", I(held)},
    {"max_lcp_len", I(lcp0)},
    {"timestamp", D(unix_s)},
    {"n_prompt_tokens_processed", I(n_tokens)},
    {"t_prompt_processing", D(ms)},
    {"n_decoded", I(n_tokens)},
    {"n_slots", I(n)},
    {"prefix", I(n_past)},
    /* Ollama */
    {"cache", I(held)},
    {"prompt", I(n_prompt)},
    {"used", I(n_past)},
    {"remaining", I(n_tokens)},
    {"matched", I(lcp0)},
    {"cached", I(n_past)},
    {"left", I(n_tokens)},
    {"processed", I(n_tokens)},
    /* holdfast */
    {"n_prompt", I(n_prompt)},
    {"lcp", I(lcp0)},
    {"start", I(n_past)},
    {"n_reused", I(n_past)},
    {"reused", I(n_past)},
    {"n_evaluated", I(n_tokens)},
    {"evaluated", I(n_tokens)},
    {"n_generated", I(n)},
    {"generated", I(n)},
    {"prefill_ms", D(ms)},
    {"decode_ms", D(ms2)},
    {"ms", D(ms)},
    {"pos", I(pos_max)},
    {"bytes", D(mib)},
    {"snap", I(max)},
    {"t", D(unix_s)},
};
enum { KEY_MAX = 32, KEY_SLOTS = 8 };

/* Names by length, and whose turn it is in each pattern bucket: filled once. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint8_t by_len[KEY_MAX][KEY_SLOTS]; /* index + 1 into pair_key */
enum { BUCKET_MAX = 48 };
static const struct shape *bucket[FORM_N][128][BUCKET_MAX];

static void add_dialect(const struct dialect *d, size_t n_tables)
{
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < d[t].n; i++) {
            const struct shape *s = &d[t].shapes[i];
            uint8_t c = (uint8_t)s->pattern[0];
            if (c == '{')
                c = '0';
            size_t k = 0;
            while (k < BUCKET_MAX && bucket[d[t].form][c][k])
                k++;
            CHECK(c < 128 && k < BUCKET_MAX);
            bucket[d[t].form][c][k] = s;
        }
}

static void prepare(void)
{
    for (size_t i = 0; i < COUNT_OF(pair_key); i++) {
        const size_t n = strlen(pair_key[i].name);
        size_t k = 0;
        while (k < KEY_SLOTS && by_len[n][k])
            k++;
        CHECK(n < KEY_MAX && k < KEY_SLOTS);
        by_len[n][k] = (uint8_t)(i + 1);
    }
    /* the more special wording first */
    add_dialect(dialect_pxa, COUNT_OF(dialect_pxa));
    add_dialect(dialect_ik, COUNT_OF(dialect_ik));
    add_dialect(dialect_llama, COUNT_OF(dialect_llama));
    add_dialect(dialect_ollama, COUNT_OF(dialect_ollama));
    add_dialect(dialect_lmstudio, COUNT_OF(dialect_lmstudio));
    add_dialect(dialect_holdfast, COUNT_OF(dialect_holdfast));
}

/* "-12.5" at p[n]: its length, or 0. */
static size_t number(const char *p, size_t n, double *real, int64_t *whole)
{
    size_t i = 0;
    const bool minus = n && p[0] == '-';
    if (minus)
        i++;
    const size_t from = i;
    int64_t w = 0;
    while (i < n && p[i] >= '0' && p[i] <= '9') {
        if (w > (INT64_MAX - 9) / 10)
            return 0;
        w = w * 10 + (p[i++] - '0');
    }
    if (i == from)
        return 0;
    double r = (double)w;
    if (i + 1 < n && p[i] == '.' && p[i + 1] >= '0' && p[i + 1] <= '9') {
        double scale = 1, frac = 0;
        for (i++; i < n && p[i] >= '0' && p[i] <= '9'; i++) {
            if (scale < 1e15) {
                frac = frac * 10 + (p[i] - '0');
                scale *= 10;
            }
        }
        r = (r * scale + frac) / scale;
    }
    *whole = minus ? -w : w;
    *real = minus ? -r : r;
    return i;
}

static void set_field(struct line *l, const struct key *k, double real, int64_t whole)
{
    if (k->real)
        memcpy((char *)l + k->off, &real, sizeof real);
    else
        memcpy((char *)l + k->off, &whole, sizeof whole);
}

static void set_pair(struct line *l, const char *key, size_t n, const char *val, size_t val_n)
{
    double real;
    int64_t whole;
    if (n >= KEY_MAX || !n || !number(val, val_n, &real, &whole))
        return;
    for (size_t k = 0; k < KEY_SLOTS && by_len[n][k]; k++) {
        const struct key *e = &pair_key[by_len[n][k] - 1];
        if (e->name[0] == key[0] && !memcmp(e->name, key, n)) {
            set_field(l, e, real, whole);
            return;
        }
    }
    /* ids: a slot of nonsense size is no slot */
    if (whole < 0 || whole > INT32_MAX)
        return;
    if ((n == 7 && (!memcmp(key, "id_slot", 7) || !memcmp(key, "slot_id", 7))) ||
        (n == 2 && !memcmp(key, "id", 2) && l->slot < 0))
        l->slot = (int32_t)whole;
    if ((n == 7 && (!memcmp(key, "id_task", 7) || !memcmp(key, "task_id", 7))))
        l->task = whole;
}

/* "key = value, key = value": keys end at '=', values begin after it. */
static void read_pairs(struct line *l, struct str s)
{
    size_t at = 0;
    while (at < s.n) {
        const char *eq = memchr(s.p + at, '=', s.n - at);
        if (!eq)
            break;
        size_t e = (size_t)(eq - s.p), v = e + 1;
        while (e > at && s.p[e - 1] == ' ')
            e--;
        size_t k = e;
        while (k > at && s.p[k - 1] != ' ' && s.p[k - 1] != ',' && s.p[k - 1] != '|' &&
               (s.p[k - 1] != '(' || (k < s.n && s.p[k] == ')')))
            k--;
        while (v < s.n && (s.p[v] == ' ' || s.p[v] == '"'))
            v++;
        set_pair(l, s.p + k, e - k, s.p + v, s.n - v);
        at = (size_t)(eq - s.p) + 1;
    }
}

/* ---- patterns ------------------------------------------------------------------------------- */

bool shape_match(const char *pattern, struct str msg, struct line *out, struct str *rest)
{
    const char *p = pattern;
    size_t i = 0;
    while (*p) {
        if (*p == ' ') {
            while (*p == ' ')
                p++;
            while (i < msg.n && msg.p[i] == ' ')
                i++;
            continue;
        }
        if (*p != '{') {
            if (i >= msg.n || msg.p[i] != *p)
                return false;
            i++;
            p++;
            continue;
        }
        const char *end = strchr(p, '}');
        double real;
        int64_t whole;
        const size_t n = i < msg.n ? number(msg.p + i, msg.n - i, &real, &whole) : 0;
        if (!n)
            return false;
        i += n;
        const size_t name_n = (size_t)(end - p) - 1;
        if (name_n == 4 && !memcmp(p + 1, "slot", 4))
            out->slot = whole >= 0 && whole <= INT32_MAX ? (int32_t)whole : -1;
        else
            for (size_t k = 0; k < COUNT_OF(pattern_key); k++)
                if (strlen(pattern_key[k].name) == name_n &&
                    !memcmp(pattern_key[k].name, p + 1, name_n))
                    set_field(out, &pattern_key[k], real, whole);
        p = end + 1;
    }
    *rest = (struct str){msg.p + i, msg.n - i};
    return true;
}

static struct str trim_front(struct str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s.p++;
        s.n--;
    }
    return s;
}

static bool has(struct str s, const char *what)
{
    return s.n && memmem(s.p, s.n, what, strlen(what));
}

/* The rest of holdfast's line about a request. */
static void read_request(struct line *l, struct str s)
{
    static const char *const parts[] = {"evaluated {n_tokens} in {ms} s",
                                        "generated {n} in {ms2} s",
                                        "of {lcp} common tokens again:"};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const size_t head = strcspn(parts[i], "{");
        for (size_t at = 0; at < s.n;) {
            const char *p = memmem(s.p + at, s.n - at, parts[i], head);
            if (!p)
                break;
            at = (size_t)(p - s.p) + 1;
            if (shape_match(parts[i], (struct str){p, s.n - at + 1}, l, &l->why))
                break;
        }
    }
    if (l->lcp0 < 0)
        l->why = (struct str){0};
    l->ms *= 1000;
    l->ms2 *= 1000;
}

/* What the pairs leave open: which engine's wording it was, and milliseconds written as "took F ms". */
static void settle(struct line *l, struct str rest)
{
    switch (l->kind) {
    case LINE_DIVERGE:
        if (has(rest, "state_pos"))
            l->engines &= ENG_PXA;
        else if (has(rest, "n_swa"))
            l->engines &= ENG_LLAMA;
        else if (has(rest, "pos_min"))
            l->engines &= ENG_IK;
        break;
    case LINE_CREATE: {
        const char *took = rest.n ? memmem(rest.p, rest.n, "took ", 5) : NULL;
        if (took) {
            int64_t whole;
            (void)number(took + 5, rest.n - (size_t)(took + 5 - rest.p), &l->ms, &whole);
            l->engines &= ENG_KV;
        } else if (has(rest, "MiB")) {
            l->engines &= ENG_LLAMA;
        }
        l->prompt_end = has(rest, "prompt-end");
        if (l->prompt_end)
            l->engines &= ENG_PXA;
        if (l->engines == ENG_LLAMA && l->n_tokens >= 0)
            l->since = MAX(l->since, 20260225);
        else if (l->engines == ENG_LLAMA && has(rest, "MiB"))
            l->until = l->until ? MIN(l->until, 20260224) : 20260224;
        break;
    }
    case LINE_RESTORE:
        if (l->engines == ENG_LLAMA && l->n_past >= 0)
            l->since = MAX(l->since, 20260309);
        break;
    case LINE_ERASE:
        if (has(rest, "n_swa")) {
            l->engines &= ENG_LLAMA;
            if (l->pos_next >= 0)
                l->since = MAX(l->since, 20260317);
            else if (l->n_tokens >= 0)
                l->since = MAX(l->since, 20260225);
        } else if (has(rest, "MiB")) {
            l->engines &= ENG_KV;
        }
        break;
    case LINE_EVICT:
        if (has(rest, "replay_hits"))
            l->engines &= ENG_PXA;
        l->boundary = has(rest, "boundary");
        l->prompt_end = has(rest, "prompt-end");
        break;
    case LINE_TURN:
        if (l->engines == ENG_HOLDFAST && rest.n)
            read_request(l, rest);
        break;
    default:
        break;
    }
}

static bool read_message(enum form form, struct str msg, struct line *out)
{
    msg = trim_front(msg);
    if (!msg.n)
        return false;
    uint8_t c = (uint8_t)msg.p[0];
    if (c >= '0' && c <= '9')
        c = '0';
    if (c >= 128)
        return false;
    for (size_t k = 0; k < BUCKET_MAX && bucket[form][c][k]; k++) {
        const struct shape *s = bucket[form][c][k];
        struct line try = *out;
        struct str rest;
        if (!shape_match(s->pattern, msg, &try, &rest))
            continue;
        *out = try;
        out->kind = s->kind;
        out->task = MAX(out->task, -1);
        out->engines &= s->engines;
        if (!out->engines)
            out->engines = s->engines;
        out->since = s->since;
        out->until = s->until;
        if (s->pairs)
            read_pairs(out, rest);
        settle(out, rest);
        return true;
    }
    return false;
}

/* ---- forms ---------------------------------------------------------------------------------- */

/* "slot <func>: id <n> | task <m> | <message>" */
static bool read_slot(struct str s, struct line *out)
{
    const char *c = memchr(s.p + 5, ':', MIN(s.n - 5, (size_t)48));
    if (!c)
        return false;
    struct str rest, head = {c, s.n - (size_t)(c - s.p)};
    if (!shape_match(": id {slot} | task {task} |", head, out, &rest))
        return false;
    out->task = MAX(out->task, -1);
    out->engines = ENG_SLOTS;
    if (!trim_front(rest).n) {
        /* "print_timing: id 0 | task 5 | " with nothing behind it: the timings follow */
        if (memmem(s.p + 5, (size_t)(c - s.p) - 5, "print_timin", 11))
            out->kind = LINE_TIMING;
        return out->kind != LINE_UNKNOWN;
    }
    return read_message(FORM_SLOT, rest, out);
}

/* "INFO [func] message | tid="..." timestamp=... key=value" */
static bool read_kv(struct str s, struct line *out)
{
    const char *b = memchr(s.p, ']', MIN(s.n, (size_t)64));
    if (!b)
        return false;
    struct str msg = {b + 1, s.n - (size_t)(b + 1 - s.p)};
    const char *bar = msg.n ? memmem(msg.p, msg.n, " | tid=", 7) : NULL;
    if (!bar)
        return false;
    out->engines = ENG_KV | ENG_LLAMA; /* llama.cpp wrote so until May 2024 */
    read_pairs(out, (struct str){bar, msg.n - (size_t)(bar - msg.p)});
    msg.n = (size_t)(bar - msg.p);
    return read_message(FORM_KV, msg, out);
}

/* One flat JSON object: the numbers by key, "msg" or "ev" as the message.  Nested values are skipped. */
static bool read_object(struct str s, struct line *out)
{
    struct str msg = {0};
    bool event = false;
    int depth = 0;
    for (size_t i = 0; i < s.n;) {
        const char c = s.p[i];
        if (c == '{' || c == '[') {
            depth++;
            i++;
            continue;
        }
        if (c == '}' || c == ']') {
            depth--;
            i++;
            continue;
        }
        if (c != '"') {
            i++;
            continue;
        }
        const size_t key = ++i;
        while (i < s.n && s.p[i] != '"')
            i += s.p[i] == '\\' ? 2 : 1;
        if (i >= s.n)
            return false;
        const size_t key_n = i++ - key;
        if (i >= s.n || s.p[i] != ':')
            continue; /* a string in an array */
        i++;
        while (i < s.n && s.p[i] == ' ')
            i++;
        if (i < s.n && s.p[i] == '"') {
            const size_t val = ++i;
            while (i < s.n && s.p[i] != '"')
                i += s.p[i] == '\\' ? 2 : 1;
            if (i >= s.n)
                return false;
            const struct str v = {s.p + val, i++ - val};
            if (depth != 1)
                continue;
            if (key_n == 3 && !memcmp(s.p + key, "msg", 3))
                msg = v;
            else if (key_n == 2 && !memcmp(s.p + key, "ev", 2)) {
                msg = v;
                event = true;
            } else if ((key_n == 3 && !memcmp(s.p + key, "why", 3)) ||
                       (key_n == 4 && !memcmp(s.p + key, "kind", 4) && !out->why.p))
                out->why = v;
            continue;
        }
        if (depth == 1 && i < s.n)
            set_pair(out, s.p + key, key_n, s.p + i, s.n - i);
    }
    if (!msg.n)
        return false;
    out->engines = event ? ENG_HOLDFAST : ENG_KV | ENG_LLAMA;
    if (event) { /* "id" is a request's number there; it has no slots */
        out->task = out->slot;
        out->slot = -1;
    }
    return read_message(event ? FORM_EVENT : FORM_KV, msg, out);
}

/* time=2026-08-19T19:37:11.287+02:00 level=INFO source=file.go:124 msg="cache miss" total=24809 ... */
static bool read_slog(struct str s, struct line *out)
{
    const char *m = memmem(s.p, s.n, " msg=", 5);
    if (!m)
        return false;
    struct str msg = {m + 5, s.n - (size_t)(m + 5 - s.p)}, rest;
    const bool quoted = msg.n && msg.p[0] == '"';
    if (quoted) {
        msg.p++;
        msg.n--;
    }
    const char *end = msg.n ? memchr(msg.p, quoted ? '"' : ' ', msg.n) : NULL;
    rest = (struct str){end ? end : msg.p + msg.n, 0};
    rest.n = msg.n - (size_t)(rest.p - msg.p);
    msg.n -= rest.n;
    out->engines = ENG_OLLAMA;
    out->unix_s = time_from_text(s.p + 5, s.n - 5);
    read_pairs(out, rest);
    return read_message(FORM_SLOG, msg, out);
}

bool line_read(struct str s, struct line *out)
{
    pthread_once(&once, prepare);
    *out = (struct line){.slot = -1,
                         .task = -1,
                         .n_prompt = -1,
                         .n_past = -1,
                         .held = -1,
                         .pos_min = -1,
                         .pos_max = -1,
                         .n_tokens = -1,
                         .n = -1,
                         .max = -1,
                         .pos_next = -1,
                         .lcp0 = -1,
                         .ms = NAN,
                         .mib = NAN,
                         .sim = NAN,
                         .keep = NAN,
                         .t_last = NAN,
                         .unix_s = NAN,
                         .ms2 = NAN};
    if (!s.n)
        return false;
    if (s.p[0] == '{' && s.n > 12)
        return read_object(s, out);
    if (s.n > 12 && s.p[0] == 's') {
        if (!memcmp(s.p, "slot ", 5) && head_of_server_line(s.p, s.n))
            return read_slot(s, out);
        if (!memcmp(s.p, "srv ", 4) && head_of_server_line(s.p, s.n)) {
            const char *c = memchr(s.p + 4, ':', s.n - 4);
            out->engines = ENG_LLAMA;
            return read_message(FORM_SRV, (struct str){c + 1, s.n - (size_t)(c + 1 - s.p)}, out);
        }
    }
    if (s.n > 24 && (s.p[5] == '[' && s.p[4] == ' ') && head_of_server_line(s.p, s.n))
        return read_kv(s, out);
    if (s.n > 24 && !memcmp(s.p, "time=", 5))
        return read_slog(s, out);
    out->engines = ~0u;
    return read_message(FORM_RAW, s, out);
}
