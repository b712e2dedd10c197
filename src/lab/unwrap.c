#include "lab/unwrap.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum {
    PROCESS_MAX = 96,
    PARTIAL_MAX = 1 << 16, /* bytes of a line in parts that are kept */
    N_PARTIAL = 32         /* streams with a line in parts at the same time */
};

struct partial {
    char stream[PROCESS_MAX];
    char *p;
    size_t n;
    uint64_t used;
};

struct unwrap {
    double now;
    char *a, *b; /* scratch for texts that have to be rewritten: colours out, JSON unescaped */
    size_t a_cap, b_cap;
    char process[PROCESS_MAX];
    size_t process_n;
    char host[64]; /* seen last in front of a tag without a number */
    struct partial part[N_PARTIAL];
    uint64_t tick;
    /* days since 1970 of the date seen last: a log stays on one for long */
    int year, month, day;
    double day_s;
    /* LM Studio puts date and level on a line of its own: they hold for the lines that follow */
    double held_t;
    bool held;
};

enum rc unwrap_new(double now, struct unwrap **out, struct err *err)
{
    struct unwrap *u = mem_try_zalloc(sizeof *u);
    if (!u)
        return err_set(err, RC_NOMEM, "no memory to read a log");
    u->now = now;
    *out = u;
    return RC_OK;
}

void unwrap_free(struct unwrap *u)
{
    if (!u)
        return;
    for (size_t i = 0; i < N_PARTIAL; i++)
        mem_free(u->part[i].p);
    mem_free(u->a);
    mem_free(u->b);
    mem_free(u);
}

static const char *const wrap_name[WRAP_N] = {"ansi",
                                              "crlf",
                                              "journald",
                                              "journald json",
                                              "syslog",
                                              "docker compose",
                                              "timestamps",
                                              "k8s cri",
                                              "docker json",
                                              "router port",
                                              "bracketed front end",
                                              "pod prefix",
                                              "server clock",
                                              "other"};

void wrap_names(uint32_t wraps, char out[160])
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < WRAP_N; i++)
        if (wraps & 1u << i)
            n += (size_t)snprintf(out + n, 160 - MIN(n, (size_t)159), "%s%s", n ? " + " : "",
                                  wrap_name[i]);
    if (!n)
        memcpy(out, "none", 5);
}

/* ---- time ---------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Exactly w digits. */
static bool digits(const char *p, int w, int *out)
{
    int v = 0;
    for (int i = 0; i < w; i++) {
        if (!is_digit(p[i]))
            return false;
        v = v * 10 + (p[i] - '0');
    }
    *out = v;
    return true;
}

double time_from_civil(int year, int month, int day, int hour, int min, double sec)
{
    const int y = month <= 2 ? year - 1 : year;
    const int era = (y >= 0 ? y : y - 399) / 400;
    const int yoe = y - era * 400;
    const int doy = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    const int doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    return ((double)era * 146097 + doe - 719468) * 86400.0 + hour * 3600.0 + min * 60.0 + sec;
}

void time_hour_name(double t, char out[20])
{
    if (!(fabs(t) < 4e11)) {
        memcpy(out, "?", 2);
        return;
    }
    const int64_t h = (int64_t)floor(t / 3600);
    int64_t z = (h >= 0 ? h : h - 23) / 24;
    const int hour = (int)(h - z * 24);
    z += 719468;
    const int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    const int64_t doe = z - era * 146097;
    const int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    const int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    const int64_t mp = (5 * doy + 2) / 153;
    const int day = (int)(doy - (153 * mp + 2) / 5 + 1);
    const int month = (int)(mp < 10 ? mp + 3 : mp - 9);
    const int64_t year = yoe + era * 400 + (month <= 2);
    snprintf(out, 20, "%04d-%02d-%02dT%02d", (int)year, month, day, hour);
}

static double day_seconds(struct unwrap *u, int year, int month, int day)
{
    if (u->year != year || u->month != month || u->day != day) {
        u->year = year;
        u->month = month;
        u->day = day;
        u->day_s = time_from_civil(year, month, day, 0, 0, 0);
    }
    return u->day_s;
}

/* "HH:MM:SS[.frac|,frac]" at p[n]: its length, or 0. */
static size_t time_of_day(const char *p, size_t n, double *s)
{
    int h, m, sec;
    if (n < 8 || p[2] != ':' || p[5] != ':' || !digits(p, 2, &h) || !digits(p + 3, 2, &m) ||
        !digits(p + 6, 2, &sec) || h > 24 || m > 59 || sec > 60)
        return 0;
    size_t i = 8;
    double frac = 0;
    if (i + 1 < n && (p[i] == '.' || p[i] == ',') && is_digit(p[i + 1])) {
        double w = 0.1;
        for (i++; i < n && is_digit(p[i]); i++, w /= 10)
            frac += w * (p[i] - '0');
    }
    *s = h * 3600 + m * 60 + sec + frac;
    return i;
}

/* "2026-10-15T03:11:09.123456789Z", "2026/10/15 03:11:09", with an optional zone: its length, or 0. */
static size_t read_iso(const char *p, size_t n, int date[3], double *s)
{
    if (n < 19 || (p[4] != '-' && p[4] != '/') || p[7] != p[4] || !digits(p, 4, &date[0]) ||
        !digits(p + 5, 2, &date[1]) || !digits(p + 8, 2, &date[2]) || date[1] < 1 || date[1] > 12 ||
        date[2] < 1 || date[2] > 31 || (p[10] != 'T' && p[10] != ' ' && p[10] != '_'))
        return 0;
    size_t k = time_of_day(p + 11, n - 11, s);
    if (!k)
        return 0;
    k += 11;
    if (k < n && p[k] == 'Z')
        k++;
    else if (k + 5 <= n && (p[k] == '+' || p[k] == '-') && is_digit(p[k + 1]) && is_digit(p[k + 2]))
        k += k + 6 <= n && p[k + 3] == ':' ? 6 : 5;
    return k;
}

/* The zone is not applied: times are reported as the log prints them. */
static size_t iso_time(struct unwrap *u, const char *p, size_t n, double *t)
{
    int date[3];
    double s;
    const size_t k = read_iso(p, n, date, &s);
    if (k)
        *t = day_seconds(u, date[0], date[1], date[2]) + s;
    return k;
}

double time_from_text(const char *p, size_t n)
{
    int date[3];
    double s;
    return read_iso(p, n, date, &s) ? time_from_civil(date[0], date[1], date[2], 0, 0, s) : NAN;
}

/* "1792224000.123456 ": its length, or 0. */
static size_t unix_time(const char *p, size_t n, double *t)
{
    size_t i = 0;
    double s = 0, scale = 1;
    while (i < n && i < 10 && is_digit(p[i]))
        s = s * 10 + (p[i++] - '0');
    if (i < 9 || i >= n || p[i] != '.')
        return 0;
    for (i++; i < n && is_digit(p[i]); i++)
        s += (p[i] - '0') * (scale /= 10);
    if (i >= n || p[i] != ' ')
        return 0;
    *t = s;
    return i + 1;
}

/* "May 22 01:30:52", "May  2 01:30:52.123456": its length, or 0.  No year is printed: the latest that
 * does not lie in the future of the file. */
static size_t month_time(struct unwrap *u, const char *p, size_t n, double *t)
{
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    if (n < 15 || p[3] != ' ' || p[6] != ' ')
        return 0;
    int month = 0;
    for (size_t i = 0; i < 12; i++)
        if (!memcmp(names + 3 * i, p, 3))
            month = (int)i + 1;
    int day;
    if (!month || !is_digit(p[5]) || (p[4] != ' ' && !is_digit(p[4])))
        return 0;
    day = (p[4] == ' ' ? 0 : p[4] - '0') * 10 + (p[5] - '0');
    double s;
    const size_t k = time_of_day(p + 7, n - 7, &s);
    if (!k || day < 1 || day > 31)
        return 0;
    if (u->month == month && u->day == day) {
        *t = u->day_s + s;
        return 7 + k;
    }
    char now[20];
    time_hour_name(u->now, now);
    int year;
    if (!digits(now, 4, &year))
        year = 1970;
    *t = day_seconds(u, year, month, day) + s;
    if (*t > u->now + 86400)
        *t = day_seconds(u, year - 1, month, day) + s;
    return 7 + k;
}

/* ---- heads of lines ------------------------------------------------------------------------ */

static size_t spaces(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && (p[i] == ' ' || p[i] == '\t'))
        i++;
    return i;
}

bool head_of_server_line(const char *p, size_t n)
{
    if (n < 6)
        return false;
    if (!memcmp(p, "slot ", 5)) {
        /* "slot " function ": id " digits " | task " */
        const size_t w = MIN(n, (size_t)64);
        const char *c = memchr(p + 5, ':', w - 5);
        return c && (size_t)(c - p) + 5 < n && !memcmp(c, ": id ", 5);
    }
    if (!memcmp(p, "srv  ", 5) || !memcmp(p, "srv ", 4)) {
        const size_t at = 4 + spaces(p + 4, n - 4), w = MIN(n, (size_t)48);
        return at < w && memchr(p + at, ':', w - at);
    }
    if (n > 24 && p[5] == '[' && p[4] == ' ' &&
        (!memcmp(p, "INFO", 4) || !memcmp(p, "WARN", 4) || !memcmp(p, "VERB", 4)))
        return memchr(p + 6, ']', MIN(n - 6, (size_t)40));
    if (n > 24 && p[5] == '[' && !memcmp(p, " ERR ", 5))
        return memchr(p + 6, ']', MIN(n - 6, (size_t)40));
    return n > 15 && (!memcmp(p, "======== Cache:", 15) ||
                      (n > 22 && !memcmp(p, "======== Prompt cache:", 22)));
}

size_t second_head(struct str body)
{
    const bool first = head_of_server_line(body.p, body.n) ||
                       (body.n > 20 && memmem(body.p, 20, "eval time =", 11));
    for (size_t at = 1; at + 24 < body.n;) {
        const char *b = memchr(body.p + at, '[', body.n - at);
        if (!b)
            break;
        const size_t i = (size_t)(b - body.p);
        at = i + 1;
        /* "INFO [func] text | tid=": strict, since any text may stand before it */
        if (i > 5 && head_of_server_line(b - 5, body.n - i + 5) && b[-1] == ' ' &&
            memmem(b, body.n - i, " | tid=", 7))
            return i - 5;
    }
    if (!first)
        return 0;
    for (size_t at = 5; at + 24 < body.n;) {
        const char *b = memmem(body.p + at, body.n - at, "slot ", 5);
        if (!b)
            break;
        at = (size_t)(b - body.p) + 1;
        const char *id = memmem(b, MIN(body.n - at + 1, (size_t)48), ": id ", 5);
        if (id && memmem(id, MIN(body.n - (size_t)(id - body.p), (size_t)32), " | task ", 8))
            return at - 1;
    }
    const char *b = memmem(body.p + 1, body.n ? body.n - 1 : 0, "======== Cache:", 15);
    return b ? (size_t)(b - body.p) : 0;
}

/* ---- rewriting ----------------------------------------------------------------------------- */

static bool reserve(char **p, size_t *cap, size_t n)
{
    return mem_grow(p, cap, n, 1);
}

/* Escape sequences out of s.  Falls back to s when memory is out. */
static struct str without_ansi(struct unwrap *u, struct str s)
{
    if (!reserve(&u->a, &u->a_cap, s.n + 1))
        return s;
    size_t o = 0;
    for (size_t i = 0; i < s.n;) {
        const char *e = memchr(s.p + i, 0x1b, s.n - i);
        const size_t k = e ? (size_t)(e - s.p) - i : s.n - i;
        memcpy(u->a + o, s.p + i, k);
        o += k;
        i += k;
        if (!e)
            break;
        i++;
        if (i < s.n && s.p[i] == '[') { /* CSI: parameters, then one final byte */
            i++;
            while (i < s.n && (uint8_t)s.p[i] >= 0x20 && (uint8_t)s.p[i] < 0x40)
                i++;
            i += i < s.n;
        } else if (i < s.n && s.p[i] == ']') { /* OSC: up to BEL or ESC \ */
            while (i < s.n && s.p[i] != 0x07 && s.p[i] != 0x1b)
                i++;
            i += i < s.n && s.p[i] == 0x07;
        } else {
            i += i < s.n;
        }
    }
    return (struct str){u->a, o};
}

/* "[34m", "[1;31m": a colour whose escape byte was lost, in a paste for instance.  Its length, or 0. */
static size_t bare_colour(const char *p, size_t n)
{
    size_t i = 1;
    if (n < 3 || p[0] != '[')
        return 0;
    while (i < n && i < 12 && (is_digit(p[i]) || p[i] == ';'))
        i++;
    return i > 1 && i < n && p[i] == 'm' ? i + 1 : 0;
}

/* They out of s, which may lie in u->a already.  Falls back to s when memory is out. */
static struct str without_bare_colours(struct unwrap *u, struct str s)
{
    if (!reserve(&u->a, &u->a_cap, s.n + 1))
        return s;
    size_t o = 0;
    for (size_t i = 0; i < s.n;) {
        const size_t k = bare_colour(s.p + i, s.n - i);
        if (k)
            i += k;
        else
            u->a[o++] = s.p[i++];
    }
    return (struct str){u->a, o};
}

/* The JSON string that begins after the quote at s[at]: unescaped into u->b.  *end: after its closing
 * quote, or 0 when there is none. */
static struct str json_text(struct unwrap *u, struct str s, size_t at, size_t *end)
{
    *end = 0;
    if (!reserve(&u->b, &u->b_cap, s.n + 4))
        return (struct str){0};
    size_t o = 0;
    for (size_t i = at; i < s.n;) {
        const char c = s.p[i++];
        if (c == '"') {
            *end = i;
            break;
        }
        if (c != '\\' || i == s.n) {
            u->b[o++] = c;
            continue;
        }
        const char e = s.p[i++];
        uint32_t cp = 0;
        switch (e) {
        case 'n':
            u->b[o++] = '\n';
            break;
        case 't':
            u->b[o++] = '\t';
            break;
        case 'r':
            u->b[o++] = '\r';
            break;
        case 'b':
        case 'f':
            break;
        case 'u':
            for (int k = 0; k < 4 && i < s.n; k++, i++) {
                const char h = s.p[i];
                const int v = is_digit(h)            ? h - '0'
                              : h >= 'a' && h <= 'f' ? h - 'a' + 10
                              : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                                     : 0;
                cp = cp << 4 | (uint32_t)v;
            }
            if (cp >= 0xd800 && cp < 0xe000)
                cp = 0xfffd;
            o += utf8_encode(cp, u->b + o); /* six bytes of input for at most three */
            break;
        default:
            u->b[o++] = e;
        }
    }
    return (struct str){u->b, o};
}

/* Where the value of "key" begins in the flat JSON object s, below s.n; or 0. */
static size_t json_value(struct str s, const char *key)
{
    const size_t kn = strlen(key);
    for (size_t i = 0; i + kn + 3 < s.n;) {
        const char *q = memmem(s.p + i, s.n - i, key, kn);
        if (!q)
            return 0;
        const size_t at = (size_t)(q - s.p);
        i = at + 1;
        if (at && s.p[at - 1] == '"' && at + kn < s.n && s.p[at + kn] == '"') {
            size_t v = at + kn + 1;
            v += spaces(s.p + v, s.n - v);
            if (v < s.n && s.p[v] == ':') {
                v += 1 + spaces(s.p + v + 1, s.n - v - 1);
                return v < s.n ? v : 0;
            }
        }
    }
    return 0;
}

/* ---- the process that wrote a line --------------------------------------------------------- */

static void process_add(struct unwrap *u, const char *p, size_t n)
{
    if (u->process_n && u->process_n + 1 < PROCESS_MAX)
        u->process[u->process_n++] = '/';
    n = MIN(n, PROCESS_MAX - u->process_n);
    memcpy(u->process + u->process_n, p, n);
    u->process_n += n;
}

/* A line in parts: keeps p until the rest comes, or hands the whole out. */
static bool join_parts(struct unwrap *u, struct str *s, bool more)
{
    struct partial *slot = NULL, *oldest = &u->part[0];
    for (size_t i = 0; i < N_PARTIAL; i++) {
        struct partial *p = &u->part[i];
        if (p->p && strlen(p->stream) == u->process_n &&
            !memcmp(p->stream, u->process, u->process_n))
            slot = p;
        if (!p->p || (oldest->p && p->used < oldest->used))
            oldest = p;
    }
    if (!slot && !more)
        return true;
    if (!slot) {
        slot = oldest;
        if (!slot->p && !(slot->p = mem_try(PARTIAL_MAX)))
            return true;
        slot->n = 0;
        memcpy(slot->stream, u->process, u->process_n);
        slot->stream[MIN(u->process_n, (size_t)PROCESS_MAX - 1)] = 0;
    }
    const size_t k = MIN(s->n, PARTIAL_MAX - slot->n);
    memcpy(slot->p + slot->n, s->p, k);
    slot->n += k;
    slot->used = ++u->tick;
    if (more)
        return false;
    if (reserve(&u->b, &u->b_cap, slot->n + 4)) {
        memcpy(u->b, slot->p, slot->n);
        *s = (struct str){u->b, slot->n};
    }
    mem_free(slot->p);
    slot->p = NULL;
    return true;
}

/* ---- one layer ----------------------------------------------------------------------------- */

static void take_time(struct unwrapped *o, double t)
{
    if (o->time != TIME_WALL) {
        o->time = TIME_WALL;
        o->t = t;
    }
}

static void cut_front(struct str *s, size_t n)
{
    n += spaces(s->p + n, s->n - n);
    s->p += n;
    s->n -= n;
}

/* A zone's name in front of the host: "UTC ", "CEST ". */
static size_t zone_name(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && i < 6 && p[i] >= 'A' && p[i] <= 'Z')
        i++;
    return i >= 2 && i <= 5 && i < n && p[i] == ' ' ? i + 1 : 0;
}

/* "host tag[123]: " or "host tag: " behind a time.  An ISO time may also stand alone, so without a number the
 * host has to be one that was there before. */
static bool host_and_tag(struct unwrap *u, struct str *s, bool iso)
{
    if (head_of_server_line(s->p, s->n))
        return false;
    const size_t zone = iso ? zone_name(s->p, s->n) : 0;
    const size_t w = MIN(s->n, (size_t)160);
    for (size_t i = zone + 1; i + 1 < w; i++) {
        const char c = s->p[i];
        if (c == '|' || c == '=' || c == '"')
            return false;
        if (c != ':' || (i + 1 < s->n && s->p[i + 1] != ' '))
            continue;
        size_t tag = i;
        while (tag > zone && s->p[tag - 1] != ' ')
            tag--;
        const bool pid = s->p[i - 1] == ']';
        size_t words = 0, host_n = 0; /* before the tag: the host, or nothing */
        for (size_t k = zone; k < tag; k++) {
            words += s->p[k] != ' ' && (k == zone || s->p[k - 1] == ' ');
            host_n += s->p[k] != ' ';
        }
        if (tag == i || words > 1 || (!pid && !words))
            return false;
        if (!pid && iso) {
            const bool known = strlen(u->host) == host_n && !memcmp(u->host, s->p + zone, host_n);
            if (!known && host_n < sizeof u->host) {
                memcpy(u->host, s->p + zone, host_n);
                u->host[host_n] = 0;
            }
            if (!known)
                return false;
        }
        process_add(u, s->p + tag, i - tag);
        cut_front(s, i + 1);
        return true;
    }
    return false;
}

static bool is_level(char c)
{
    return c == 'I' || c == 'W' || c == 'E' || c == 'D';
}

/* "12.345.678.901 I ", llama.cpp's minutes.seconds.milli.micro; "754.321 I ", holdfast's seconds. */
static bool server_clock(struct str *s, struct unwrapped *o)
{
    size_t i = 0;
    double first = 0;
    while (i < s->n && i < 9 && is_digit(s->p[i]))
        first = first * 10 + (s->p[i++] - '0');
    const char *p = s->p + i;
    const size_t n = s->n - i;
    int sec, ms, us;
    size_t used;
    if (!i || n < 7 || p[0] != '.')
        return false;
    if (digits(p + 1, 3, &ms) && p[4] == ' ' && is_level(p[5]) && p[6] == ' ') {
        o->clock = first + ms / 1e3;
        used = 6;
    } else if (n >= 13 && digits(p + 1, 2, &sec) && p[3] == '.' && digits(p + 4, 3, &ms) &&
               p[7] == '.' && digits(p + 8, 3, &us) && p[11] == ' ' && is_level(p[12])) {
        o->clock = first * 60 + sec + ms / 1e3 + us / 1e6;
        used = 13;
    } else {
        return false;
    }
    if (o->time == TIME_NONE) {
        o->time = TIME_CLOCK;
        o->t = o->clock;
    }
    o->wraps |= WRAP_CLOCK;
    cut_front(s, i + used);
    return true;
}

static bool docker_json(struct unwrap *u, struct str *s, struct unwrapped *o, bool *more)
{
    const size_t log = json_value(*s, "log"), stream = json_value(*s, "stream");
    if (!log || !stream || s->p[log] != '"')
        return false;
    double t;
    const size_t at = json_value(*s, "time");
    if (at && s->n > at + 1 && iso_time(u, s->p + at + 1, s->n - at - 1, &t))
        take_time(o, t);
    size_t end;
    struct str text = json_text(u, *s, log + 1, &end);
    o->wraps |= WRAP_DOCKER_JSON;
    /* docker cuts at 16 KiB; whoever rewrote the file may have dropped the newlines */
    *more = end && text.n >= 16000 && text.p[text.n - 1] != '\n';
    while (text.n && (text.p[text.n - 1] == '\n' || text.p[text.n - 1] == '\r'))
        text.n--;
    *s = text;
    return true;
}

static bool journald_json(struct unwrap *u, struct str *s, struct unwrapped *o)
{
    const size_t msg = json_value(*s, "MESSAGE");
    if (!msg || msg >= s->n)
        return false;
    const size_t at = json_value(*s, "__REALTIME_TIMESTAMP");
    if (at) {
        double us = 0;
        size_t i = at + (s->p[at] == '"');
        while (i < s->n && is_digit(s->p[i]) && us < 1e18)
            us = us * 10 + (s->p[i++] - '0');
        take_time(o, us / 1e6);
    }
    const size_t pid = json_value(*s, "_PID");
    if (pid) {
        size_t i = pid + (s->p[pid] == '"'), n = 0;
        while (i + n < s->n && is_digit(s->p[i + n]))
            n++;
        process_add(u, s->p + i, n);
    }
    o->wraps |= WRAP_JOURNALD_JSON;
    size_t end;
    if (s->p[msg] == '"') {
        *s = json_text(u, *s, msg + 1, &end);
        return true;
    }
    if (s->p[msg] != '[' || !reserve(&u->b, &u->b_cap, s->n + 4))
        return false;
    size_t o_n = 0; /* bytes as numbers: how journald writes a line with colours */
    for (size_t i = msg + 1; i < s->n && s->p[i] != ']';) {
        int v = 0;
        const size_t from = i;
        while (i < s->n && is_digit(s->p[i]) && v < 256)
            v = v * 10 + (s->p[i++] - '0');
        if (i > from)
            u->b[o_n++] = (char)v;
        else
            i++;
    }
    *s = (struct str){u->b, o_n};
    return true;
}

/* [57130] [INFO] [pod/a/b] [qwen/qwen3-4b] [2026-05-05 15:21:36] in front */
static bool bracket(struct unwrap *u, struct str *s, struct unwrapped *o)
{
    const char *c = memchr(s->p, ']', MIN(s->n, (size_t)96));
    if (!c)
        return false;
    const size_t in = (size_t)(c - s->p) - 1;
    const char *p = s->p + 1;
    size_t after = in + 2;
    if (!in || (after < s->n && s->p[after] != ' ' && s->p[after] != '[' && s->p[after] != ':'))
        return false;
    if (in == 3 && !memcmp(p, "GIN", 3))
        return false;
    if (in > 10 && !memcmp(p + in - 9, "blob data", 9)) {
        o->blob = true;
        return false;
    }
    double t;
    size_t k = iso_time(u, p, in, &t);
    if (k) {
        take_time(o, t);
        o->wraps |= WRAP_TIME;
    } else if (in > 4 && !memcmp(p, "pod/", 4)) {
        process_add(u, p + 4, in - 4);
        o->wraps |= WRAP_POD;
    } else {
        size_t d = spaces(p, in);
        const size_t from = d;
        while (d < in && is_digit(p[d]))
            d++;
        if (d == in && d <= 5 && d > from) {
            process_add(u, p + from, in - from);
            o->wraps |= WRAP_ROUTER;
        } else {
            o->wraps |= WRAP_BRACKET;
        }
    }
    if (after < s->n && s->p[after] == ':')
        after++;
    cut_front(s, after);
    return true;
}

/* "name-1  | ", "0|app  | " */
static bool compose(struct unwrap *u, struct str *s, struct unwrapped *o)
{
    const size_t w = MIN(s->n, (size_t)128);
    size_t i = 0;
    while (i < w && s->p[i] != ' ' && s->p[i] != ':' && s->p[i] != '=' && s->p[i] != '(' &&
           s->p[i] != '"')
        i++;
    if (!i || i >= w || s->p[i] != ' ')
        return false;
    const size_t name = i;
    i += spaces(s->p + i, w - i);
    if (i + 1 > w || i >= s->n || s->p[i] != '|' || (i + 1 < s->n && s->p[i + 1] != ' '))
        return false;
    process_add(u, s->p, name);
    o->wraps |= WRAP_COMPOSE;
    /* exactly one space belongs to the wrapping: a timing line begins with more */
    const size_t k = MIN(i + 2, s->n);
    s->p += k;
    s->n -= k;
    return true;
}

static bool layer(struct unwrap *u, struct str *s, struct unwrapped *o, bool *more)
{
    if (!s->n)
        return false;
    const char c = s->p[0];
    double t;
    size_t k;
    if (c == '[' && bare_colour(s->p, s->n)) {
        *s = without_bare_colours(u, *s);
        o->wraps |= WRAP_ANSI;
        return true;
    }
    if (c == '[')
        return bracket(u, s, o);
    if (c == '{') {
        if (o->wraps & (WRAP_DOCKER_JSON | WRAP_JOURNALD_JSON))
            return false; /* one of them, once: the engine itself may write JSON */
        if (memmem(s->p, s->n, "\"log\":", 6) && docker_json(u, s, o, more))
            return true;
        return memmem(s->p, s->n, "\"MESSAGE\"", 9) && journald_json(u, s, o);
    }
    if (c == '>' && s->n > 2 && s->p[1] == ' ') { /* quoted in a reply */
        o->wraps |= WRAP_OTHER;
        cut_front(s, 2);
        return true;
    }
    if (c == '<' && s->n > 4) { /* syslog priority, with RFC 5424's version behind it */
        size_t i = 1;
        while (i < 4 && is_digit(s->p[i]))
            i++;
        if (i == 1 || s->p[i] != '>')
            return false;
        i++;
        if (i + 1 < s->n && s->p[i] == '1' && s->p[i + 1] == ' ' &&
            (k = iso_time(u, s->p + i + 2, s->n - i - 2, &t))) {
            /* host app pid msgid structured-data message */
            take_time(o, t);
            cut_front(s, i + 2 + k);
            const char *app = NULL;
            size_t app_n = 0;
            for (int f = 0; f < 5 && s->n; f++) {
                size_t n = 0;
                if (f == 4 && s->p[0] == '[') {
                    const char *e = memchr(s->p, ']', s->n);
                    n = e ? (size_t)(e - s->p) + 1 : 0;
                }
                while (n < s->n && s->p[n] != ' ')
                    n++;
                if (f == 1) {
                    app = s->p;
                    app_n = n;
                }
                if (f == 2 && app) {
                    process_add(u, app, app_n);
                    process_add(u, s->p, n);
                }
                cut_front(s, n);
            }
        } else {
            cut_front(s, i);
        }
        o->wraps |= WRAP_SYSLOG;
        return true;
    }
    if (c >= '0' && c <= '9') {
        if (server_clock(s, o))
            return true;
        k = unix_time(s->p, s->n, &t);
        if (k && s->n > k) { /* journald short-unix */
            struct str rest = {s->p + k, s->n - k};
            if (host_and_tag(u, &rest, true)) {
                *s = rest;
                take_time(o, t);
                o->wraps |= WRAP_JOURNALD;
                return true;
            }
        }
        k = iso_time(u, s->p, s->n, &t);
        if (k) {
            take_time(o, t);
            o->wraps |= WRAP_TIME;
            cut_front(s, k);
            if (s->n > 9 && (!memcmp(s->p, "stderr ", 7) || !memcmp(s->p, "stdout ", 7)) &&
                (s->p[7] == 'F' || s->p[7] == 'P') && s->p[8] == ' ') {
                *more = s->p[7] == 'P';
                o->wraps |= WRAP_CRI;
                s->p += 9; /* the text's own blanks stay */
                s->n -= 9;
            } else if (host_and_tag(u, s, true)) {
                o->wraps |= WRAP_JOURNALD;
            }
            return true;
        }
    } else if (is_level(c) && s->n > 2 && s->p[1] == ' ' &&
               head_of_server_line(s->p + 2, s->n - 2)) {
        cut_front(s, 2); /* llama.cpp's prefix without its clock */
        o->wraps |= WRAP_OTHER;
        return true;
    } else if (c >= 'A' && c <= 'Z') {
        if (s->n > 24 && s->p[3] == ' ' && is_digit(s->p[4]) && s->p[8] == '-' &&
            memmem("SunMonTueWedThuFriSat", 21, s->p, 3)) {
            cut_front(s, 4); /* "Fri 2026-05-22 01:30:52 UTC ": journald short-full */
            return true;
        }
        k = month_time(u, s->p, s->n, &t);
        if (k) {
            take_time(o, t);
            cut_front(s, k);
            o->wraps |= host_and_tag(u, s, false) ? WRAP_JOURNALD : WRAP_TIME;
            return true;
        }
    }
    return compose(u, s, o);
}

/* Lines without a head that matter: the timings of some eras, and the one before quoted prompt text. */
static bool starts_bare_line(const char *p, size_t n)
{
    return n > 20 && (!memcmp(p, "prompt eval time =", 18) || !memcmp(p, "eval time =", 11) ||
                      !memcmp(p, "Common part does not", 20));
}

/* Something unknown in front of the head of a server line: taken off when it holds a time of day, or, in
 * a line whose time is known already, a level.  Quoted log lines in prose have neither. */
static bool unknown_layer(struct str *s, struct unwrapped *o)
{
    const size_t w = MIN(s->n, (size_t)200);
    bool sign = false;
    for (size_t i = 1; i + 8 < w; i++) {
        const char c = s->p[i];
        double t;
        if (c == ':' && i >= 2 && o->time == TIME_NONE)
            sign |= time_of_day(s->p + i - 2, s->n - i + 2, &t) > 0;
        else if (o->time != TIME_NONE && i >= 4 && (c == ' ' || c == ':' || c == ']' || c == '|'))
            sign |= !memcmp(s->p + i - 4, "INFO", 4) || !memcmp(s->p + i - 4, "WARN", 4) ||
                    !memcmp(s->p + i - 4, "EBUG", 4) || !memcmp(s->p + i - 4, "RROR", 4);
        if (sign && strchr(" :]|>\t-", s->p[i - 1]) && c && strchr("sIWepC=", c) &&
            (head_of_server_line(s->p + i, s->n - i) || starts_bare_line(s->p + i, s->n - i))) {
            o->wraps |= WRAP_OTHER;
            s->p += i;
            s->n -= i;
            return true;
        }
    }
    return false;
}

bool unwrap_line(struct unwrap *u, struct str line, struct unwrapped *out)
{
    *out = (struct unwrapped){.clock = NAN};
    u->process_n = 0;
    struct str s = line;
    while (s.n && s.p[s.n - 1] == '\r') {
        s.n--;
        out->wraps |= WRAP_CR;
    }
    if (s.n && memchr(s.p, 0x1b, s.n)) {
        s = without_ansi(u, s);
        out->wraps |= WRAP_ANSI;
    }
    if (u->held)
        cut_front(&s, 0);
    for (int depth = 0; depth < 8; depth++) {
        const uint32_t before = out->wraps;
        bool more = false;
        if (!layer(u, &s, out, &more))
            break;
        const uint32_t taken = out->wraps & ~before;
        /* what lies below is whole only when its parts are together */
        if ((taken & (WRAP_CRI | WRAP_DOCKER_JSON)) && !join_parts(u, &s, more))
            return false;
        if ((taken & (WRAP_DOCKER_JSON | WRAP_JOURNALD_JSON)) && s.n && memchr(s.p, 0x1b, s.n)) {
            s = without_ansi(u, s);
            out->wraps |= WRAP_ANSI;
        }
    }
    /* what overwrites a line on a terminal stands behind a carriage return */
    const char *cr = s.n ? memrchr(s.p, '\r', s.n) : NULL;
    if (cr) {
        s.n -= (size_t)(cr + 1 - s.p);
        s.p = cr + 1;
        out->wraps |= WRAP_CR;
    }
    if (s.n > 20 && !head_of_server_line(s.p, s.n)) {
        const size_t k = spaces(s.p, s.n); /* an indented paste */
        if (k && head_of_server_line(s.p + k, s.n - k)) {
            s.p += k;
            s.n -= k;
        } else {
            (void)unknown_layer(&s, out);
        }
    }
    if (out->time == TIME_WALL) {
        u->held = !s.n && (out->wraps & WRAP_BRACKET);
        u->held_t = out->t;
    } else if (u->held) {
        out->time = TIME_WALL;
        out->t = u->held_t;
        out->wraps |= WRAP_BRACKET;
    }
    out->body = s;
    out->process = (struct str){u->process, u->process_n};
    return true;
}
