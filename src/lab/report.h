/* report.h - the findings for people: a page of text, Markdown, HTML.  All from the summary's JSON
 * (forensics_summary), so that each of them says the same. */
#ifndef HOLDFAST_LAB_REPORT_H
#define HOLDFAST_LAB_REPORT_H

#include "base/json.h"

void report_text(const json_t *summary, struct buf *out);
/* html: one self-contained page with plots; else Markdown. */
void report_document(const json_t *summary, struct buf *out, bool html);

#endif
