/* unicode.h - what the pre-tokenisers need to know of a code point, and of text that is not UTF-8. */
#ifndef HOLDFAST_TEXT_UNICODE_H
#define HOLDFAST_TEXT_UNICODE_H

#include "base/buf.h"
#include "base/str.h"

enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER, /* \p{L} */
    UNICODE_MARK,   /* \p{M} */
    UNICODE_NUMBER, /* \p{N} */
    UNICODE_SPACE   /* \s, the regex class: also U+0085, U+00A0, U+3000 */
};

/* cp <= 0x10FFFF. */
enum unicode_class unicode_class(uint32_t cp);

/* Decodes one code point of s[n], n > 0; returns the bytes it took and sets *cp.
 *
 * Lenient, as llama.cpp reads prompts: overlong forms and surrogates pass, and a byte that begins no
 * sequence takes 1 and gives U+FFFD.  So the same bytes give the same tokens there and here. */
size_t unicode_decode(const char *s, size_t n, uint32_t *cp);

/* True when encoding what unicode_decode yields gives s back, byte for byte. */
bool unicode_is_clean(struct str s);
/* Appends s as unicode_decode reads it: each stray byte becomes U+FFFD, overlong forms the shortest. */
void unicode_clean(struct str s, struct buf *out);

#endif
