#include "lab/doc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lab/plot.h"

enum { MAX_COLUMNS = 24 };

static const char *const mark_name[] = {"",           "measured", "mechanism",
                                        "experiment", "decision", "unresolved"};

static const char css[] =
    ":root{color-scheme:light "
    "dark;--bg:#fff;--fg:#1c2230;--muted:#5c6577;--grid:#e3e6ec;--panel:#f6f7f9;"
    "--s1:#2a6fbb;--s2:#d97a21;--s3:#2e8b6f;--s4:#c2413c;--s5:#8a909c}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#12151c;--fg:#e4e8f0;--muted:#9aa4b6;--grid:#"
    "2a303c;"
    "--panel:#1a1f29;--s1:#6aa9ec;--s2:#f0a35a;--s3:#5fc7a4;--s4:#f08580;--s5:#8f97a6}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);"
    "font:15px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
    "main{max-width:880px;margin:0 auto;padding:32px 20px 64px}h1{font-size:26px;margin:0 0 4px}"
    "h2{font-size:19px;margin:36px 0 8px;padding-top:10px;border-top:1px solid var(--grid)}\n"
    ".mark-name{font-size:11px;font-weight:600;letter-spacing:.04em;text-transform:uppercase;"
    "vertical-align:2px;margin-left:10px;padding:2px 8px;border-radius:10px;border:1px solid "
    "var(--muted);"
    "color:var(--muted)}\n"
    ".m-measured{color:var(--s1);border-color:var(--s1)}.m-mechanism{color:var(--s3);border-color:"
    "var(--s3)}"
    ".m-experiment{color:var(--s2);border-color:var(--s2)}.m-unresolved{color:var(--s4);border-"
    "color:var(--s4)}\n"
    "table{border-collapse:collapse;width:100%;margin:10px 0 14px;font-size:13.5px}"
    "th,td{text-align:left;padding:5px 8px;border-bottom:1px solid var(--grid);vertical-align:top}"
    "th{color:var(--muted);font-weight:600}td:first-child{min-width:7.5em}.n{text-align:right;font-"
    "variant-numeric:tabular-nums;"
    "white-space:nowrap}th.n{white-space:normal}\n"
    ".wide{overflow-x:auto;width:fit-content;min-width:100%;max-width:calc(100vw - 40px);"
    "margin-left:50%;transform:translateX(-50%)}code{font:13px ui-monospace,'DejaVu Sans "
    "Mono',monospace;background:var(--panel);"
    "padding:1px 5px;border-radius:4px}figure{margin:14px 0;padding:12px;background:var(--panel);"
    "border-radius:8px}figcaption{color:var(--muted);font-size:13px;margin-top:6px}\n"
    ".plot{width:100%;height:auto;display:block}.plot text{fill:var(--fg);font:11px "
    "system-ui,sans-serif}"
    ".plot .tick{fill:var(--muted)}.plot .axis{fill:var(--muted);font-size:12px}.plot "
    ".value{font-weight:600}"
    ".grid{stroke:var(--grid);stroke-width:1}\n"
    ".s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}.s4{fill:var(--s4)}.s5{fill:var(--s5)"
    "}"
    ".l1{stroke:var(--s1)}.l2{stroke:var(--s2)}.l3{stroke:var(--s3)}.l4{stroke:var(--s4)}.l5{"
    "stroke:var(--s5)}"
    ".l1,.l2,.l3,.l4,.l5{stroke-width:1.6;opacity:.8}.hit{fill:none;stroke:var(--fg);stroke-width:"
    "1.2}\n"
    "@media "
    "print{:root{--bg:#fff;--fg:#000;--muted:#444;--grid:#ccc;--panel:#fff;--s1:#2a6fbb;--s2:#"
    "d97a21;"
    "--s3:#2e8b6f;--s4:#c2413c;--s5:#8a909c}body{font-size:11px}main{max-width:none;padding:0}"
    ".wide{overflow:visible;width:auto;max-width:none;margin-left:0;transform:none}"
    ".wide table{font-size:9px}th,td{padding:3px 4px}td:first-child{min-width:0}"
    "figure,tr,h2{break-inside:avoid}h2{break-after:avoid}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}\n";

/* s[n], `code` marked up. */
static void inline_text(struct doc *d, const char *s, size_t n)
{
    if (!d->html) {
        buf_add(d->out, s, n);
        return;
    }
    bool code = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '`') {
            buf_adds(d->out, code ? "</code>" : "<code>");
            code = !code;
        } else {
            html_escape(d->out, (const char[]){s[i], 0});
        }
    }
    if (code)
        buf_adds(d->out, "</code>");
}

static void close_open(struct doc *d)
{
    if (d->in_table)
        buf_adds(d->out, d->html ? "</tbody></table></div>\n" : "\n");
    if (d->in_list)
        buf_adds(d->out, d->html ? "</ul>\n" : "\n");
    d->in_table = d->in_list = false;
}

void doc_begin(struct doc *d, struct buf *out, bool html, const char *title)
{
    *d = (struct doc){.out = out, .html = html};
    if (!html) {
        buf_addf(out, "# %s\n\n", title);
        return;
    }
    buf_adds(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>");
    html_escape(out, title);
    buf_addf(out, "</title><style>\n%s</style></head><body><main>\n<h1>", css);
    html_escape(out, title);
    buf_adds(out, "</h1>\n");
}

void doc_end(struct doc *d)
{
    close_open(d);
    if (d->html)
        buf_adds(d->out, "</main></body></html>\n");
}

void doc_section(struct doc *d, const char *title, enum doc_mark mark)
{
    close_open(d);
    if (d->html) {
        buf_adds(d->out, "<h2>");
        html_escape(d->out, title);
        if (mark)
            buf_addf(d->out, "<span class=\"mark-name m-%s\">%s</span>", mark_name[mark],
                     mark_name[mark]);
        buf_adds(d->out, "</h2>\n");
    } else if (mark) {
        buf_addf(d->out, "## %s [%s]\n\n", title, mark_name[mark]);
    } else {
        buf_addf(d->out, "## %s\n\n", title);
    }
}

PRINTF_LIKE(2, 0)
static void format(struct doc *d, const char *fmt, va_list ap, const char *before,
                   const char *after)
{
    char text[4096];
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    buf_adds(d->out, before);
    inline_text(d, text, MIN((size_t)MAX(n, 0), sizeof text - 1));
    buf_adds(d->out, after);
}

void doc_text(struct doc *d, const char *fmt, ...)
{
    va_list ap;
    close_open(d);
    va_start(ap, fmt);
    format(d, fmt, ap, d->html ? "<p>" : "", d->html ? "</p>\n" : "\n\n");
    va_end(ap);
}

void doc_item(struct doc *d, const char *fmt, ...)
{
    va_list ap;
    if (!d->in_list) {
        close_open(d);
        if (d->html)
            buf_adds(d->out, "<ul>\n");
        d->in_list = true;
    }
    va_start(ap, fmt);
    format(d, fmt, ap, d->html ? "<li>" : "- ", d->html ? "</li>\n" : "\n");
    va_end(ap);
}

static void row(struct doc *d, const char *text)
{
    const char *tag = d->head_done ? "td" : "th";
    buf_adds(d->out, d->html ? "<tr>" : "|");
    for (size_t i = 0; i < MAX_COLUMNS; i++) {
        const size_t n = strcspn(text, "|");
        if (!d->head_done && text[0] == '>')
            d->numeric |= 1u << i;
        const bool num = d->numeric & 1u << i;
        const size_t skip = !d->head_done && num;
        if (d->html)
            buf_addf(d->out, num ? "<%s class=\"n\">" : "<%s>", tag);
        else
            buf_addc(d->out, ' ');
        inline_text(d, text + skip, n - skip);
        if (d->html)
            buf_addf(d->out, "</%s>", tag);
        else
            buf_adds(d->out, " |");
        text += n;
        if (!*text)
            break;
        text++;
    }
    buf_adds(d->out, d->html ? "</tr>\n" : "\n");
}

void doc_table(struct doc *d, const char *header)
{
    close_open(d);
    d->in_table = true;
    d->head_done = false;
    d->numeric = 0;
    if (d->html)
        buf_adds(d->out, "<div class=\"wide\"><table><thead>");
    row(d, header);
    if (d->html) {
        buf_adds(d->out, "</thead><tbody>\n");
    } else {
        buf_adds(d->out, "|");
        for (const char *p = header;;) {
            buf_adds(d->out, *p == '>' ? "---:|" : "---|");
            p += strcspn(p, "|");
            if (!*p++)
                break;
        }
        buf_addc(d->out, '\n');
    }
    d->head_done = true;
}

void doc_row(struct doc *d, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    row(d, text);
}

bool doc_plot(struct doc *d, const char *caption)
{
    close_open(d);
    if (!d->html)
        return false;
    buf_adds(d->out, "<figure><figcaption>");
    inline_text(d, caption, strlen(caption));
    buf_adds(d->out, "</figcaption>\n");
    return true;
}

void doc_plot_end(struct doc *d)
{
    buf_adds(d->out, "</figure>\n");
}
