/* unicode_int.h - the generated tables behind unicode.h. */
#ifndef HOLDFAST_TEXT_UNICODE_INT_H
#define HOLDFAST_TEXT_UNICODE_INT_H

#include "base/base.h"

extern const uint8_t unicode_page[0x1100]; /* [cp >> 8] */
extern const uint8_t unicode_classes[];    /* [page * 256 + (cp & 255)]: enum unicode_class */

#endif
