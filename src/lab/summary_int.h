/* summary_int.h - reading a summary's JSON: what is not there is NULL, NaN or empty. */
#ifndef HOLDFAST_LAB_SUMMARY_INT_H
#define HOLDFAST_LAB_SUMMARY_INT_H

#include <jansson.h>
#include <math.h>

static inline const json_t *at(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

static inline double num(const json_t *o, const char *key)
{
    const json_t *v = at(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static inline const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(at(o, key));
    return s ? s : "";
}

#endif
