/* lines.h - the lines of a log, whatever the file is packed in.
 *
 * Plain text, gzip and zstd are told by their first bytes, not by the name; several compressed members
 * one after the other are one file, as rotation writes them.  UTF-16 with a byte order mark (what
 * PowerShell's > writes) becomes UTF-8.  Memory does not grow with the file: a line longer than
 * LINES_MAX is handed out cut and the rest of it is skipped.
 */
#ifndef HOLDFAST_LAB_LINES_H
#define HOLDFAST_LAB_LINES_H

#include "base/err.h"
#include "base/str.h"

struct lines;

enum { LINES_MAX = 1 << 20 }; /* bytes of a line that are kept */

enum lines_got {
    LINES_LINE, /* *line is set, without its terminator, valid until the next call */
    LINES_IDLE, /* only with follow: nothing new for a while; call again */
    LINES_END,
    LINES_ERROR /* *err says why; what came before it stands */
};

/* path "-" is standard input.  With follow, the end of a plain file is waited at, and the file is opened
 * again when it was rotated or truncated.  RC_IO, RC_NOMEM. */
NODISCARD enum rc lines_open(const char *path, bool follow, struct lines **out, struct err *err);
/* The same over bytes in memory, borrowed. */
NODISCARD enum rc lines_open_mem(const void *p, size_t n, struct lines **out, struct err *err);
void lines_close(struct lines *l);

enum lines_got lines_next(struct lines *l, struct str *line, struct err *err);

/* So far: lines handed out (the last one's number, from 1), bytes of log text, lines that were cut. */
uint64_t lines_n(const struct lines *l);
uint64_t lines_bytes(const struct lines *l);
uint64_t lines_n_cut(const struct lines *l);

#endif
