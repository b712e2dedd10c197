/* utf8.h - code points in and out. */
#ifndef HOLDFAST_BASE_UTF8_H
#define HOLDFAST_BASE_UTF8_H

#include "base/base.h"

/* Decodes one code point of s[n], n > 0.  Returns the bytes it took (1..4) and sets *cp; an invalid
 * byte takes 1 and gives *cp = UINT32_MAX.  Strict: no overlong forms, no surrogates. */
size_t utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes cp (<= 0x10FFFF) to out; returns 1..4. */
size_t utf8_encode(uint32_t cp, char out[4]);
/* Length of the longest prefix of s[n] that does not end inside a sequence which more bytes could
 * still complete.  Invalid bytes count as complete. */
size_t utf8_complete(const char *s, size_t n);
bool utf8_valid(const char *s, size_t n);

#endif
