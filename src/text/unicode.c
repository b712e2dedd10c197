#include "text/unicode.h"

#include "base/utf8.h"
#include "text/unicode_int.h"

enum unicode_class unicode_class(uint32_t cp)
{
    if (cp > 0x10ffff)
        return UNICODE_OTHER;
    return (enum unicode_class)unicode_classes[(size_t)unicode_page[cp >> 8] * 256 + (cp & 255)];
}

size_t unicode_decode(const char *s, size_t n, uint32_t *cp)
{
    const uint8_t b = (uint8_t)s[0];
    if (b < 0x80) {
        *cp = b;
        return 1;
    }
    const size_t len = b < 0xc0 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf8 ? 4 : 0;
    uint32_t v = b & (0x7fu >> len);
    size_t i = 1;
    while (i < len && i < n && ((uint8_t)s[i] & 0xc0) == 0x80)
        v = v << 6 | ((uint8_t)s[i++] & 0x3f);
    if (i != len || v > 0x10ffff) {
        *cp = 0xfffd;
        return 1;
    }
    *cp = v;
    return len;
}

bool unicode_is_clean(struct str s)
{
    for (size_t i = 0; i < s.n;) {
        if ((uint8_t)s.p[i] < 0x80) {
            i++;
            continue;
        }
        uint32_t cp;
        char again[4];
        const size_t len = unicode_decode(s.p + i, s.n - i, &cp);
        if (utf8_encode(cp, again) != len || memcmp(again, s.p + i, len) != 0)
            return false;
        i += len;
    }
    return true;
}

void unicode_clean(struct str s, struct buf *out)
{
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        char c[4];
        i += unicode_decode(s.p + i, s.n - i, &cp);
        buf_add(out, c, utf8_encode(cp, c));
    }
}

static size_t to_case(uint32_t cp, uint32_t to[3], const struct unicode_run *run, size_t n_runs,
                      const struct unicode_many *many, size_t n_many)
{
    for (size_t i = 0; cp >= 0x80 && i < n_many; i++)
        if (many[i].cp == cp) {
            memcpy(to, many[i].to, sizeof many[i].to);
            return to[2] ? 3 : 2;
        }
    size_t lo = 0, hi = n_runs; /* the first run that ends at cp or later */
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (run[mid].last < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    to[0] = cp;
    if (lo < n_runs && cp >= run[lo].first && (cp - run[lo].first) % run[lo].step == 0)
        to[0] = (uint32_t)((int64_t)cp + run[lo].delta);
    return 1;
}

size_t unicode_to_upper(uint32_t cp, uint32_t to[3])
{
    return to_case(cp, to, unicode_upper, n_unicode_upper, unicode_upper_many,
                   n_unicode_upper_many);
}

size_t unicode_to_lower(uint32_t cp, uint32_t to[3])
{
    return to_case(cp, to, unicode_lower, n_unicode_lower, unicode_lower_many,
                   n_unicode_lower_many);
}

bool unicode_is_printable(uint32_t cp)
{
    size_t lo = 0, hi = n_unicode_hidden;
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (unicode_hidden[mid].last < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo == n_unicode_hidden || cp < unicode_hidden[lo].first;
}

bool unicode_is_python_space(uint32_t cp)
{
    return (cp >= 0x1c && cp <= 0x1f) || unicode_class(cp) == UNICODE_SPACE;
}
