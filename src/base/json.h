/* json.h - thin helpers over jansson: typed reads that name the field, and a streaming writer.
 *
 * jansson's own prefix is json_; ours are jread_ and jwrite_.
 */
#ifndef HOLDFAST_BASE_JSON_H
#define HOLDFAST_BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

/* Parses s[n] (any value, no repeated keys, jansson's depth limit of 2048); RC_FORMAT names line and
 * column.  Strings may hold \u0000: use json_string_length.  *out is owned (json_decref). */
NODISCARD enum rc jread_parse(const char *s, size_t n, json_t **out, struct err *err);

/* Optional fields: absent or null leaves *out alone and returns RC_OK.  A wrong type or a value
 * outside [min, max] is RC_ARG and the message begins with the field's name. */
NODISCARD enum rc jread_i64(const json_t *o, const char *key, int64_t min, int64_t max,
                            int64_t *out, struct err *err);
NODISCARD enum rc jread_f64(const json_t *o, const char *key, double min, double max, double *out,
                            struct err *err);
NODISCARD enum rc jread_bool(const json_t *o, const char *key, bool *out, struct err *err);
/* *out borrows from o.  A string with \u0000 in it is RC_ARG. */
NODISCARD enum rc jread_str(const json_t *o, const char *key, const char **out, struct err *err);

/* Streaming writer: commas and escapes are its business, nesting is the caller's (depth <= 63).
 * Inside an object every value is preceded by its key; NULL key inside arrays and at top level. */
struct jwrite {
    struct buf *b;
    uint64_t first; /* bit d: nothing written yet at depth d */
    int depth;
};

void jwrite_init(struct jwrite *w, struct buf *b);
void jwrite_obj(struct jwrite *w, const char *key);
void jwrite_arr(struct jwrite *w, const char *key);
void jwrite_end_obj(struct jwrite *w);
void jwrite_end_arr(struct jwrite *w);
void jwrite_str(struct jwrite *w, const char *key, const char *s);
/* Bytes that are not UTF-8 become U+FFFD. */
void jwrite_strn(struct jwrite *w, const char *key, const char *s, size_t n);
void jwrite_i64(struct jwrite *w, const char *key, int64_t v);
void jwrite_u64(struct jwrite *w, const char *key, uint64_t v);
/* Shortest of %.17g that reads back; inf and nan become null. */
void jwrite_f64(struct jwrite *w, const char *key, double v);
/* Fixed decimals, for times and rates. */
void jwrite_fixed(struct jwrite *w, const char *key, double v, int decimals);
void jwrite_bool(struct jwrite *w, const char *key, bool v);
void jwrite_null(struct jwrite *w, const char *key);
/* A jansson value, as is. */
void jwrite_json(struct jwrite *w, const char *key, const json_t *v);
/* Already serialised JSON. */
void jwrite_raw(struct jwrite *w, const char *key, const char *json);

#endif
