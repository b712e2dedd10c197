#include "lab/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 720, LEFT = 64, RIGHT = 16, TOP = 14, PLOT_H = 220 };

void html_escape(struct buf *out, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&':
            buf_adds(out, "&amp;");
            break;
        case '<':
            buf_adds(out, "&lt;");
            break;
        case '>':
            buf_adds(out, "&gt;");
            break;
        case '"':
            buf_adds(out, "&quot;");
            break;
        default:
            buf_addc(out, *s);
        }
}

static void open_svg(struct buf *out, const char *name, int height)
{
    buf_addf(out, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
             height);
    html_escape(out, name);
    buf_adds(out, "\">\n");
}

static void text(struct buf *out, double x, double y, const char *anchor, const char *class,
                 const char *s)
{
    buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor,
             class);
    html_escape(out, s);
    buf_adds(out, "</text>\n");
}

static void title(struct buf *out, const char *s)
{
    buf_adds(out, "<title>");
    html_escape(out, s);
    buf_adds(out, "</title>");
}

/* 12, 3.4k, 1.2M */
static void short_number(double v, char out[24])
{
    const double a = fabs(v);
    if (a >= 1e9)
        snprintf(out, 24, "%.3gG", v / 1e9);
    else if (a >= 1e6)
        snprintf(out, 24, "%.3gM", v / 1e6);
    else if (a >= 1e4)
        snprintf(out, 24, "%.3gk", v / 1e3);
    else
        snprintf(out, 24, "%.4g", v);
}

/* A step of 1, 2 or 5 times a power of ten that gives about n ticks up to max. */
static double nice_step(double max, int n)
{
    if (!(max > 0) || isinf(max))
        return 1;
    const double raw = max / n, p = pow(10, floor(log10(raw))), r = raw / p;
    return p * (r <= 1 ? 1 : r <= 2 ? 2 : r <= 5 ? 5 : 10);
}

static double y_axis(struct buf *out, double max, const char *label)
{
    const double step = nice_step(max, 4), top = MAX(ceil(max / step), 1) * step;
    for (int i = 0; i * step <= top * 1.0001; i++) {
        const double v = i * step;
        const double y = TOP + PLOT_H * (1 - v / top);
        char s[24];
        short_number(v, s);
        buf_addf(out, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LEFT,
                 y, WIDTH - RIGHT, y);
        text(out, LEFT - 6, y + 4, "end", "tick", s);
    }
    buf_addf(
        out,
        "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 %.1f) rotate(-90)\">",
        TOP + PLOT_H / 2.0);
    html_escape(out, label);
    buf_adds(out, "</text>\n");
    return top;
}

static void x_axis(struct buf *out, double from, double to, const char *label)
{
    const double span = to > from ? to - from : 1, step = nice_step(span, 7);
    const double first = ceil(from / step) * step;
    for (int i = 0; first + i * step <= to + step * 1e-6; i++) {
        const double v = first + i * step;
        char s[24];
        short_number(v, s);
        text(out, LEFT + (WIDTH - LEFT - RIGHT) * (v - from) / span, TOP + PLOT_H + 16, "middle",
             "tick", s);
    }
    text(out, (LEFT + WIDTH - RIGHT) / 2.0, TOP + PLOT_H + 34, "middle", "axis", label);
}

static void legend(struct buf *out, double y, const struct plot_key *keys, size_t n)
{
    double x = LEFT;
    for (size_t i = 0; i < n; i++) {
        buf_addf(
            out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\" rx=\"2\" class=\"s%d\"/>\n", x,
            y - 9, keys[i].series);
        text(out, x + 16, y, "start", "tick", keys[i].label);
        x += 34 + 6.6 * (double)strlen(keys[i].label);
    }
}

void plot_columns(struct buf *out, const char *name, const char *x_label, const char *y_label,
                  const struct plot_bar *bars, size_t n)
{
    double max = 0;
    for (size_t i = 0; i < n; i++)
        max = MAX(max, bars[i].value);
    open_svg(out, name, TOP + PLOT_H + 44);
    const double top = y_axis(out, max, y_label);
    const double slot = (double)(WIDTH - LEFT - RIGHT) / (double)MAX(n, (size_t)1);
    for (size_t i = 0; i < n; i++) {
        const double h = PLOT_H * bars[i].value / top, x = LEFT + slot * (double)i;
        char s[160];
        snprintf(s, sizeof s, "%s: %g", bars[i].label, bars[i].value);
        if (bars[i].value > 0) {
            buf_addf(out,
                     "<rect class=\"mark s%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                     "height=\"%.1f\" rx=\"2\">",
                     bars[i].series, x + 1, TOP + PLOT_H - MAX(h, 1), slot - 2, MAX(h, 1));
            title(out, bars[i].title ? bars[i].title : s);
            buf_adds(out, "</rect>\n");
        }
        if (slot > 26 || i % 2 == 0)
            text(out, x + slot / 2, TOP + PLOT_H + 16, "middle", "tick", bars[i].label);
    }
    text(out, (LEFT + WIDTH - RIGHT) / 2.0, TOP + PLOT_H + 36, "middle", "axis", x_label);
    buf_adds(out, "</svg>\n");
}

void plot_bars(struct buf *out, const char *name, const char *unit, const struct plot_bar *bars,
               size_t n)
{
    enum { ROW = 24, LABELS = 270, VALUES = 96 };
    double max = 0;
    for (size_t i = 0; i < n; i++)
        max = MAX(max, bars[i].value);
    open_svg(out, name, (int)n * ROW + 10);
    for (size_t i = 0; i < n; i++) {
        const double y = 4 + ROW * (double)i,
                     w = max > 0 ? (WIDTH - LABELS - VALUES) * bars[i].value / max : 0;
        char num[24], s[200];
        short_number(bars[i].value, num);
        text(out, LABELS - 8, y + 16, "end", "tick", bars[i].label);
        buf_addf(
            out,
            "<rect class=\"mark s%d\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"3\">",
            bars[i].series, LABELS, y + 3, MAX(w, 1.5), ROW - 6);
        snprintf(s, sizeof s, "%s: %s%s", bars[i].label, num, unit);
        title(out, bars[i].title ? bars[i].title : s);
        buf_adds(out, "</rect>\n");
        snprintf(s, sizeof s, "%s%s", num, unit);
        text(out, LABELS + MAX(w, 1.5) + 7, y + 16, "start", "value", s);
    }
    buf_adds(out, "</svg>\n");
}

void plot_stacks(struct buf *out, const char *name, const char *x_label, const char *y_label,
                 const char *lower, const char *upper, const struct plot_stack *v, size_t n)
{
    double max = 0, from = n ? v[0].x : 0, to = from;
    for (size_t i = 0; i < n; i++) {
        max = MAX(max, v[i].lower + v[i].upper);
        to = MAX(to, v[i].x + v[i].width);
    }
    open_svg(out, name, TOP + PLOT_H + 62);
    const double top = y_axis(out, max, y_label), span = to > from ? to - from : 1;
    for (size_t i = 0; i < n; i++) {
        const double x = LEFT + (WIDTH - LEFT - RIGHT) * (v[i].x - from) / span,
                     w = MAX((WIDTH - LEFT - RIGHT) * v[i].width / span - 0.6, 0.8),
                     h1 = PLOT_H * v[i].lower / top, h2 = PLOT_H * v[i].upper / top;
        buf_adds(out, "<g class=\"mark\">");
        title(out, v[i].title ? v[i].title : "");
        buf_addf(out,
                 "<rect class=\"s1\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>"
                 "<rect class=\"s2\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/></g>\n",
                 x, TOP + PLOT_H - h1, w, h1, x, TOP + PLOT_H - h1 - h2, w, h2);
    }
    x_axis(out, from, to, x_label);
    legend(out, TOP + PLOT_H + 54, (const struct plot_key[]){{1, lower}, {2, upper}}, 2);
    buf_adds(out, "</svg>\n");
}

void plot_lives(struct buf *out, const char *name, const char *x_label, const char *y_label,
                const struct plot_life *v, size_t n, const struct plot_key *keys, size_t n_keys)
{
    double max = 0, from = n ? v[0].from : 0, to = from;
    for (size_t i = 0; i < n; i++) {
        max = MAX(max, v[i].y);
        from = MIN(from, v[i].from);
        to = MAX(to, v[i].to);
    }
    open_svg(out, name, TOP + PLOT_H + 62);
    const double top = y_axis(out, max, y_label), span = to > from ? to - from : 1;
    for (size_t i = 0; i < n; i++) {
        const double w = WIDTH - LEFT - RIGHT, x1 = LEFT + w * (v[i].from - from) / span,
                     x2 = MAX(LEFT + w * (v[i].to - from) / span, x1 + 2),
                     y = TOP + PLOT_H * (1 - v[i].y / top);
        buf_adds(out, "<g class=\"mark\">");
        title(out, v[i].title ? v[i].title : "");
        buf_addf(out,
                 "<line class=\"l%d\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
                 "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>",
                 v[i].series, x1, y, x2, y, v[i].series, x2, y);
        for (uint32_t h = 0; h < MIN(v[i].hits, 4u); h++)
            buf_addf(out, "<circle class=\"hit\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>",
                     x1 + (x2 - x1) * (h + 1) / (MIN(v[i].hits, 4u) + 1), y, 4.2);
        buf_adds(out, "</g>\n");
    }
    x_axis(out, from, to, x_label);
    legend(out, TOP + PLOT_H + 54, keys, n_keys);
    buf_adds(out, "</svg>\n");
}
