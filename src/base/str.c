#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

ptrdiff_t str_find(struct str hay, struct str needle, size_t from)
{
    if (from > hay.n)
        return -1;
    if (!needle.n)
        return (ptrdiff_t)from;
    const char *p = hay.n - from ? memmem(hay.p + from, hay.n - from, needle.p, needle.n) : NULL;
    return p ? p - hay.p : -1;
}

bool str_to_i64(const char *s, int64_t *out)
{
    char *end;
    if (!((*s >= '0' && *s <= '9') || ((*s == '-' || *s == '+') && s[1] >= '0' && s[1] <= '9')))
        return false;
    errno = 0;
    const long long v = strtoll(s, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

bool str_to_u64(const char *s, uint64_t *out)
{
    char *end;
    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    const unsigned long long v = strtoull(s, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

bool str_to_f64(const char *s, double *out)
{
    char *end;
    if (!*s || *s == ' ')
        return false;
    errno = 0;
    const double v = strtod(s, &end);
    if (errno == ERANGE || end == s || *end || !isfinite(v))
        return false;
    *out = v;
    return true;
}

bool str_to_bytes(const char *s, uint64_t *out)
{
    char *end;
    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    const double v = strtod(s, &end);
    static const struct {
        const char *unit;
        int shift;
    } units[] = {{"", 0},     {"B", 0},   {"K", 10},   {"KB", 10}, {"KiB", 10},
                 {"M", 20},   {"MB", 20}, {"MiB", 20}, {"G", 30},  {"GB", 30},
                 {"GiB", 30}, {"T", 40},  {"TB", 40},  {"TiB", 40}};
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (strcasecmp(end, units[i].unit) != 0)
            continue;
        const double bytes = ldexp(v, units[i].shift);
        if (!(bytes < 0x1p63))
            return false;
        *out = (uint64_t)bytes;
        return true;
    }
    return false;
}

void str_from_bytes(uint64_t n, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    unsigned u = 0;
    while (v >= 1024 && u + 1 < COUNT_OF(units)) {
        v /= 1024;
        u++;
    }
    snprintf(out, 16, u ? "%.1f %s" : "%.0f %s", v, units[u]);
}
