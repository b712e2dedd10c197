/* unwrap.h - takes the wrapping off a log line: what carried the log added it, not the engine.
 *
 *   May 22 01:30:52 host llama-server[37450]: 0.12.082.223 I slot release: id  0 | task 5 | ...
 *   \________ journald, syslog _____________/ \_ clock __/ \_______________ body _____________/
 *
 * Known, in any order and nested: journald (short, iso, precise, json) and syslog; docker compose, docker
 * timestamps, json-file; k8s CRI with partial lines; kubectl --prefix; a router's [port]; LM Studio's
 * "date [LEVEL]" on a line of its own or before the text; other dates in front of a line; the server's own
 * clock and level letter; ANSI colours; carriage returns.  A wrapping is told line by line, since files are
 * cut, joined and interleaved.
 *
 * An unknown wrapping is taken off too where it ends in the head of a server line and holds a time of
 * day; anything else stays in the body, and a phrase in the middle of a body is no event.
 */
#ifndef HOLDFAST_LAB_UNWRAP_H
#define HOLDFAST_LAB_UNWRAP_H

#include "base/err.h"
#include "base/str.h"

enum wrap {
    WRAP_ANSI = 1 << 0,
    WRAP_CR = 1 << 1,
    WRAP_JOURNALD = 1 << 2,
    WRAP_JOURNALD_JSON = 1 << 3,
    WRAP_SYSLOG = 1 << 4, /* <priority> in front */
    WRAP_COMPOSE = 1 << 5,
    WRAP_TIME = 1 << 6, /* a date and time in front */
    WRAP_CRI = 1 << 7,
    WRAP_DOCKER_JSON = 1 << 8,
    WRAP_ROUTER = 1 << 9,
    WRAP_BRACKET = 1 << 10, /* [level], [model]: LM Studio and other front ends */
    WRAP_POD = 1 << 11,
    WRAP_CLOCK = 1 << 12, /* the server's M.SS.mmm.uuu L */
    WRAP_OTHER = 1 << 13,
    WRAP_N = 14
};
/* "journald + server clock"; out has room for 160. */
void wrap_names(uint32_t wraps, char out[160]);

enum time_kind {
    TIME_NONE,
    TIME_CLOCK /* since the process began */,
    TIME_WALL /* since 1970, as printed */
};

struct unwrapped {
    struct str body;
    struct str process; /* container, host tag[pid], router port: who wrote it; may be empty */
    uint32_t wraps;
    enum time_kind time;
    double t;     /* seconds; the outermost one */
    double clock; /* the server's own clock, seconds, or NaN */
    bool blob;    /* journald hid the text ("[123B blob data]") */
};

struct unwrap;
/* now: seconds since 1970 no line is later than, to find the year where a log prints none. */
NODISCARD enum rc unwrap_new(double now, struct unwrap **out, struct err *err);
void unwrap_free(struct unwrap *u);
/* False when the line is only a part: the rest comes with a later one.  out is valid until the next
 * call. */
bool unwrap_line(struct unwrap *u, struct str line, struct unwrapped *out);

/* Seconds since 1970 of a date in the proleptic Gregorian calendar, and back to "2026-05-22T01" (hour). */
double time_from_civil(int year, int month, int day, int hour, int min, double sec);
void time_hour_name(double t, char out[20]);

/* "2026-08-19T19:37:11.287+02:00" at p[n] to seconds since 1970, the zone not applied; NaN when it is none. */
double time_from_text(const char *p, size_t n);

/* Two lines run together, as stdout and stderr in one file do: where in body the head of the second begins,
 * or 0. */
size_t second_head(struct str body);

/* True where p[n] begins with the head of a server's line: "slot f: id N | task M | ", "srv  f: ",
 * "INFO [f] ", "======== Cache". */
bool head_of_server_line(const char *p, size_t n);

#endif
