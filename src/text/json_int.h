/* json_int.h - jansson keeps the reference count inside a value, so what only counts or iterates takes
 * a pointer without const. */
#ifndef HOLDFAST_TEXT_JSON_INT_H
#define HOLDFAST_TEXT_JSON_INT_H

#include <jansson.h>

/* For calls that change at most the reference count. */
static inline json_t *json_unconst(const json_t *j)
{
    union {
        const json_t *in;
        json_t *out;
    } u = {.in = j};
    return u.out;
}

#endif
