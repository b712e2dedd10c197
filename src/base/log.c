#include "base/log.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

void log_line(const struct logger *lg, enum log_level level, const char *fmt, ...)
{
    static const char tag[] = "EWID";
    if (!lg || !lg->out || level > lg->level)
        return;
    char line[2048];
    int n = 0;
    if (lg->times)
        n = snprintf(line, sizeof line, "%.3f ", (double)(clock_mono_ns() - lg->start_ns) * 1e-9);
    n += snprintf(line + n, sizeof line - (size_t)n, "%c ", tag[level]);
    va_list ap;
    va_start(ap, fmt);
    const int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    n = MIN(n + MAX(m, 0), (int)sizeof line - 2);
    line[n++] = '\n';
    /* one write a line, so that lines of several threads do not mix */
    fwrite(line, 1, (size_t)n, lg->out);
    fflush(lg->out);
}

void progress_begin(struct progress *p, const struct logger *lg, const char *what)
{
    *p = (struct progress){.lg = lg, .what = what};
}

void progress_at(struct progress *p, uint64_t done, uint64_t total)
{
    if (!p->lg || !p->lg->out || p->lg->level < LOG_INFO || !isatty(fileno(p->lg->out)))
        return;
    const uint64_t now = clock_mono_ns();
    if (p->drawn && now - p->shown_ns < 100000000 && done < total)
        return;
    p->shown_ns = now;
    p->drawn = true;
    fprintf(p->lg->out, "\r%s %3.0f %%", p->what,
            total ? 100.0 * (double)done / (double)total : 100.0);
    fflush(p->lg->out);
}

void progress_end(struct progress *p)
{
    if (!p->drawn)
        return;
    fprintf(p->lg->out, "\r\033[K");
    fflush(p->lg->out);
    p->drawn = false;
}
