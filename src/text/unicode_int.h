/* unicode_int.h - the generated tables behind unicode.h. */
#ifndef HOLDFAST_TEXT_UNICODE_INT_H
#define HOLDFAST_TEXT_UNICODE_INT_H

#include "base/base.h"

extern const uint8_t unicode_page[0x1100]; /* [cp >> 8] */
extern const uint8_t unicode_classes[];    /* [page * 256 + (cp & 255)]: enum unicode_class */

/* Sorted.  first, first + step, ... last are mapped by adding delta. */
struct unicode_run {
    uint32_t first, last, step;
    int32_t delta;
};
struct unicode_many { /* one code point that becomes several; 0-filled */
    uint32_t cp, to[3];
};
struct unicode_range {
    uint32_t first, last;
};
extern const struct unicode_run unicode_upper[], unicode_lower[];
extern const struct unicode_many unicode_upper_many[], unicode_lower_many[];
extern const struct unicode_range unicode_hidden[]; /* what repr() escapes */
extern const size_t n_unicode_upper, n_unicode_lower, n_unicode_upper_many, n_unicode_lower_many,
    n_unicode_hidden;

#endif
