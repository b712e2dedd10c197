/* plot.h - charts as plain SVG, coloured by the page's CSS variables so that one drawing serves light, dark
 * and paper.  Every mark carries class "mark" and a <title> with its numbers.
 *
 * The page defines --fg, --muted, --grid and --s1 .. --s5.  Text is escaped here.
 */
#ifndef HOLDFAST_LAB_PLOT_H
#define HOLDFAST_LAB_PLOT_H

#include "base/buf.h"

struct plot_bar {
    const char *label;
    double value;
    int series;        /* colour 1..5 */
    const char *title; /* of the mark; NULL: label and value */
};

/* Upright columns with their labels below, as a histogram. */
void plot_columns(struct buf *out, const char *name, const char *x_label, const char *y_label,
                  const struct plot_bar *bars, size_t n);
/* Lying bars, the label in front, the value and unit behind. */
void plot_bars(struct buf *out, const char *name, const char *unit, const struct plot_bar *bars,
               size_t n);

/* Stacked columns over a numeric x: lower and upper part, with a legend. */
struct plot_stack {
    double x, width, lower, upper;
    const char *title;
};
void plot_stacks(struct buf *out, const char *name, const char *x_label, const char *y_label,
                 const char *lower, const char *upper, const struct plot_stack *v, size_t n);

/* Lives: a line from birth to end at height y, its end marked by series, a ring for each hit. */
struct plot_life {
    double from, to, y;
    int series; /* how it ended: colour of line and end mark */
    uint32_t hits;
    const char *title;
};
struct plot_key {
    int series;
    const char *label;
};
void plot_lives(struct buf *out, const char *name, const char *x_label, const char *y_label,
                const struct plot_life *v, size_t n, const struct plot_key *keys, size_t n_keys);

/* & < > " of s, for HTML and SVG. */
void html_escape(struct buf *out, const char *s);

#endif
