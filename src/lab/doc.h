/* doc.h - a report written once, as Markdown or as one self-contained HTML page.
 *
 * Text is plain: `code` in backquotes is the only markup.  A section says what its figures are: measured
 * (read from the log or a reply), mechanism (follows from an engine's rules), experiment (made under control, or
 * replayed), decision, unresolved.
 */
#ifndef HOLDFAST_LAB_DOC_H
#define HOLDFAST_LAB_DOC_H

#include "base/buf.h"

enum doc_mark {
    MARK_NONE,
    MARK_MEASURED,
    MARK_MECHANISM,
    MARK_EXPERIMENT,
    MARK_DECISION,
    MARK_UNRESOLVED
};

struct doc {
    struct buf *out;
    bool html;
    bool in_table, in_list, head_done;
    uint32_t numeric; /* bit i: column i of the table holds numbers */
};

void doc_begin(struct doc *d, struct buf *out, bool html, const char *title);
void doc_end(struct doc *d);
void doc_section(struct doc *d, const char *title, enum doc_mark mark);
void doc_text(struct doc *d, const char *fmt, ...) PRINTF_LIKE(2, 3);
void doc_item(struct doc *d, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Cells separated by '|', in the format; a header cell that begins with '>' is for numbers. */
void doc_table(struct doc *d, const char *header);
void doc_row(struct doc *d, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The caller writes an SVG to d->out when this returns true, then calls doc_plot_end. */
NODISCARD bool doc_plot(struct doc *d, const char *caption);
void doc_plot_end(struct doc *d);

#endif
