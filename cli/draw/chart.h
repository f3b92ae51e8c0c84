/*
 * Line charts as SVG text. Colours come from classes that the page or chart_style defines, so that
 * one chart serves a light and a dark page.
 */
#ifndef CLI_DRAW_CHART_H
#define CLI_DRAW_CHART_H

#include <stdbool.h>
#include <stdio.h>

#define CHART_SERIES 32

typedef struct chart_series {
    const char *name;    /* in the legend; NULL: not there */
    const double *x, *y; /* [count]; a number that is not finite breaks the line */
    int count;
    int colour; /* 0 to 7 */
    bool dots;  /* a dot at every point */
    bool faint; /* thin and pale: what a smoother line is drawn over */
    bool dashed;
} chart_series;

typedef struct chart {
    const char *title, *x_label, *y_label;
    bool log_x, log_y;
    bool x_points; /* ticks at the points of the first line */
    chart_series series[CHART_SERIES];
    int count;
} chart;

/* An <svg> element; nothing but its name if there is nothing to draw. */
void chart_write(FILE *out, const chart *c);

/* The rules for a page that holds charts, light and dark, without <style> around them. */
void chart_style(FILE *out);

/* A <script> that shows the numbers under the pointer; the page works without it. */
void chart_script(FILE *out);

/* A whole file with one chart. */
void chart_file(FILE *out, const chart *c);

#endif
