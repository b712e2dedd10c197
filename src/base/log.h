/* log.h - lines for people, on stderr.  Events for programs are event.h.
 *
 * Any thread may log; a line is written whole.  No prompt text in any line.
 */
#ifndef HOLDFAST_BASE_LOG_H
#define HOLDFAST_BASE_LOG_H

#include "base/base.h"

#include <stdio.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

struct logger {
    enum log_level level; /* lines above it are dropped */
    FILE *out;            /* NULL: silent */
    bool times;           /* prefix with seconds since start */
    uint64_t start_ns;
};

void log_line(const struct logger *lg, enum log_level level, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

#define log_error(lg, ...) log_line((lg), LOG_ERROR, __VA_ARGS__)
#define log_warn(lg, ...) log_line((lg), LOG_WARN, __VA_ARGS__)
#define log_info(lg, ...) log_line((lg), LOG_INFO, __VA_ARGS__)
#define log_debug(lg, ...) log_line((lg), LOG_DEBUG, __VA_ARGS__)

/* One line that is drawn over itself while something long runs ("loading 43 %").  Draws nothing
 * when the logger's stream is no terminal. */
struct progress {
    const struct logger *lg;
    const char *what; /* borrowed */
    uint64_t shown_ns;
    bool drawn;
};

void progress_begin(struct progress *p, const struct logger *lg, const char *what);
void progress_at(struct progress *p, uint64_t done, uint64_t total);
void progress_end(struct progress *p);

#endif
