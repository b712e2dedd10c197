#define ERR_C
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void check_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "holdfast: broken promise: %s (%s:%d)\n", cond, file, line);
    abort();
}

enum rc err_set(struct err *err, enum rc rc, const char *fmt, ...)
{
    if (!err)
        return rc;
    err->rc = rc;
    err->sys = 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return rc;
}

enum rc err_sys(struct err *err, const char *fmt, ...)
{
    const int sys = errno;
    if (!err)
        return RC_IO;
    err->rc = RC_IO;
    err->sys = sys;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    const size_t n = strlen(err->msg);
    snprintf(err->msg + n, sizeof err->msg - n, ": %s", strerror(sys));
    return RC_IO;
}

enum rc err_wrap(struct err *err, enum rc rc, const char *fmt, ...)
{
    if (rc == RC_OK || !err)
        return rc;
    char inner[sizeof err->msg];
    memcpy(inner, err->msg, sizeof inner);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    const size_t n = strlen(err->msg);
    snprintf(err->msg + n, sizeof err->msg - n, ": %s", inner);
    return rc;
}

const char *rc_name(enum rc rc)
{
    static const char *const names[] = {"ok",     "out of memory", "input/output",
                                        "format", "unsupported",   "argument",
                                        "limit",  "stale",         "cancelled"};
    return (unsigned)rc < COUNT_OF(names) ? names[rc] : "?";
}
