/* err.h - what went wrong: a code for programs, one sentence for people.
 *
 * The sentence is made where the facts are (err_set), callers add where (err_wrap).
 */
#ifndef HOLDFAST_BASE_ERR_H
#define HOLDFAST_BASE_ERR_H

#include "base/base.h"

enum rc {
    RC_OK = 0,
    RC_NOMEM,       /* memory or a budget is exhausted; trying again may work */
    RC_IO,          /* the operating system said no; err.sys has errno */
    RC_FORMAT,      /* the input is not what it claims to be */
    RC_UNSUPPORTED, /* well-formed, but not something we do */
    RC_ARG,         /* the caller's or the user's value is out of range */
    RC_LIMIT,       /* larger than a limit that was set */
    RC_STALE,       /* state of another model, layout or arithmetic */
    RC_CANCELLED
};

struct err {
    enum rc rc;
    int sys; /* errno, for RC_IO */
    char msg[256];
};

/* Each returns the rc, so that it can end a function; err may be NULL. */
enum rc err_set(struct err *err, enum rc rc, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* RC_IO with strerror(errno) appended. */
enum rc err_sys(struct err *err, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Puts "prefix: " before the message; RC_OK passes through untouched. */
enum rc err_wrap(struct err *err, enum rc rc, const char *fmt, ...) PRINTF_LIKE(3, 4);

const char *rc_name(enum rc rc);

#if defined(__clang_analyzer__) && !defined(ERR_C)
/* It does not look into err.c, so it is told which rc comes back. */
#define SAME_RC(f, err, code, ...)                                                                 \
    ({                                                                                             \
        const enum rc same_ = (code);                                                              \
        (void)f((err), same_, __VA_ARGS__);                                                        \
        same_;                                                                                     \
    })
#define err_set(err, code, ...) SAME_RC(err_set, err, code, __VA_ARGS__)
#define err_wrap(err, code, ...) SAME_RC(err_wrap, err, code, __VA_ARGS__)
#define err_sys(...) ((void)err_sys(__VA_ARGS__), RC_IO)
#endif

#endif
