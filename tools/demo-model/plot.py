"""Draws the loss curve.

    python3 plot.py --csv DIR/loss.csv --out loss.svg

Means over a hundredth of the run, on a logarithmic axis: of all tokens as they are weighted in training, and of
those that the assistant says.
"""
import argparse
import csv
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 56, 16, 36, 44
TOKENS = 4  # column of the CSV: those seen so far
LINES = (("all tokens, weighted", 1, "#8a8f98"), ("what the assistant says", 2, "#1f77b4"))
STYLE = ("svg{background:#fff;font:13px sans-serif;fill:#24292f}.grid{stroke:#d0d7de}"
         "@media(prefers-color-scheme:dark){svg{background:#0d1117;fill:#e6edf3}.grid{stroke:#30363d}}")


def read(path):
    """The rows by step; where a run was resumed, the later row of a step counts."""
    rows = {}
    for row in csv.reader(open(path, encoding="utf-8")):
        if row and row[0].isdigit() and "nan" not in row:
            rows[int(row[0])] = [float(v) for v in row]
    return [rows[s] for s in sorted(rows)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--csv", required=True)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    rows = read(a.csv)
    last = rows[-1][TOKENS]
    groups = [[r for r in rows if i < r[TOKENS] * 100 / last <= i + 1] for i in range(100)]
    means = [[sum(r[k] for r in g) / len(g) for k in (TOKENS, *(k for _, k, _ in LINES))] for g in groups if g]
    low = math.log10(min(min(m[1:]) for m in means))
    high = math.log10(max(max(m[1:]) for m in means))

    def x(tokens):
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / last

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(loss)) / (high - low)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">' % (WIDTH, HEIGHT),
           "<title>Loss of the demo model</title><style>%s</style>" % STYLE]
    for loss in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        if low <= math.log10(loss) <= high:
            out.append('<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (LEFT, WIDTH - RIGHT, y(loss), y(loss)))
            out.append('<text x="%d" y="%.1f" text-anchor="end">%g</text>' % (LEFT - 6, y(loss) + 4, loss))
    for millions in range(0, int(last / 1e6) + 1):
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>' % (x(millions * 1e6), HEIGHT - BOTTOM + 18, millions))
    out.append('<text x="%d" y="%d" text-anchor="middle">millions of tokens; loss in nats a token</text>' %
               ((LEFT + WIDTH - RIGHT) // 2, HEIGHT - 8))
    for i, (name, _, colour) in enumerate(LINES):
        points = " ".join("%.1f,%.1f" % (x(m[0]), y(m[1 + i])) for m in means)
        out.append('<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>' % (colour, points))
        out.append('<text x="%d" y="20" style="fill:%s">%s</text>' % (LEFT + 180 * i, colour, name))
    open(a.out, "w", encoding="utf-8").write("\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    main()
