#include "text/unicode.h"

#include "base/utf8.h"
#include "text/unicode_int.h"

enum unicode_class unicode_class(uint32_t cp)
{
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
