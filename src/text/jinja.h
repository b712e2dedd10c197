/* jinja.h - the part of Jinja2 that chat templates use, interpreted.
 *
 * Behaves like jinja2's ImmutableSandboxedEnvironment as Hugging Face sets it up for chat templates:
 * trim_blocks, lstrip_blocks, loop controls, {% generation %}, tojson without HTML escapes,
 * raise_exception, strftime_now.  README.md lists what differs.
 */
#ifndef HOLDFAST_TEXT_JINJA_H
#define HOLDFAST_TEXT_JINJA_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

struct jinja; /* a compiled template; read-only afterwards, so any thread may render it */

/* Messages of both begin with "line L, column C: ".  source is copied. */
NODISCARD enum rc jinja_compile(struct str source, struct jinja **out, struct err *err);
void jinja_free(struct jinja *t);

/* Output [begin, end) comes from the input value `source`. */
struct jinja_mark {
    size_t begin, end; /* bytes of the output */
    uint32_t source;
};

/* Where text is to be followed to: strings in and below `value` are marked `id` in the output, unless
 * a deeper entry says otherwise; when `value` is an object and a loop runs over it, so is all that the
 * loop writes for it (with JINJA_LOOP set). */
struct jinja_source {
    const json_t *value;
    uint32_t id; /* not 0, below JINJA_LOOP */
};
#define JINJA_LOOP (UINT32_C(1) << 31)

struct jinja_opts { /* zero means default */
    const struct jinja_source *sources;
    size_t n_sources;
    int64_t now;        /* seconds since 1970, for strftime_now (local time) */
    uint64_t max_steps; /* 20 million: nodes evaluated, and a share per byte copied */
    size_t max_output;  /* 64 MiB */
    size_t max_memory;  /* 512 MiB */
    uint32_t max_depth; /* 800: nesting of expressions, blocks, macro calls and values */
};

struct jinja_result { /* zero-initialise */
    struct buf text;
    struct jinja_mark *marks; /* in the order of their ends */
    size_t n_marks, marks_cap;
};
void jinja_result_release(struct jinja_result *r);

/* Renders with the variables of the object vars, which is borrowed for the call.
 * RC_ARG: the template raised an error or used a value wrongly; RC_LIMIT: a limit was met. */
NODISCARD enum rc jinja_render(const struct jinja *t, const json_t *vars,
                               const struct jinja_opts *o, struct jinja_result *out,
                               struct err *err);

#endif
