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

/* What is no code point is UNICODE_OTHER. */
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

/* Upper or lower case of cp, written to to[3]; returns how many code points (1 to 3). */
size_t unicode_to_upper(uint32_t cp, uint32_t to[3]);
size_t unicode_to_lower(uint32_t cp, uint32_t to[3]);
/* False for control, format, private, unassigned code points and separators other than a space. */
bool unicode_is_printable(uint32_t cp);
/* White space as Python's str.isspace has it: UNICODE_SPACE and U+001C to U+001F. */
bool unicode_is_python_space(uint32_t cp);

#endif
