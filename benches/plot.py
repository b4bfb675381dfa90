#!/usr/bin/env python3
"""Draws the useful worker time and the missed jobs of each policy by load, from the rows of a test.

    cargo test --release --lib -- --ignored --nocapture figures_of_five_policies | grep '^{' |
        python3 benches/plot.py > benches/goodput.svg

It needs only Python. Each point is the mean of all seeds, and the band around it reaches from the lowest to the highest.
"""

import json
import math
import sys
from collections import defaultdict
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 36, 56
# Colours that colour-blind readers can distinguish (Okabe and Ito).
LINES = {
    "ours": ("waterwheel", "#0072B2", ""),
    "half-budget": ("half-budget rule", "#009E73", "8 4"),
    "codel-lifo": ("CoDel + adaptive LIFO", "#E69F00", "2 3"),
    "fifo-expiry": ("FIFO with expiry", "#CC79A7", "10 3 2 3"),
    "fifo": ("bounded FIFO", "#D55E00", "5 3"),
}


def read(lines):
    """The rows, and the names of service and arrivals."""
    rows = [json.loads(line) for line in lines]
    kinds = {(row["service"], row["arrivals"]) for row in rows}
    if len(kinds) != 1:
        sys.exit("pass rows of one --service and one --arrivals")
    return rows, kinds.pop()


def by_policy(rows, figure):
    """The values of a figure by policy and load, one per seed."""
    values = defaultdict(lambda: defaultdict(list))
    for row in rows:
        values[row["policy"]][row["load"]].append(row[figure])
    return values


class Plot:
    def __init__(self, loads):
        self.least, self.most = math.log(min(loads)), math.log(max(loads))
        self.parts = []

    def x(self, load):
        share = (math.log(load) - self.least) / ((self.most - self.least) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, share):
        return HEIGHT - BOTTOM - min(share, 1) * (HEIGHT - TOP - BOTTOM)

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, text, anchor="middle", **more):
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>')

    def axes(self, loads):
        for percent in range(0, 101, 20):
            y = self.y(percent / 100)
            self.add(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#8886" fill="none"/>')
            self.text(LEFT - 8, y + 4, f"{percent} %", "end")
        ticks = [load for load in (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 10, 20, 50, 100) if min(loads) <= load <= max(loads)]
        for load in ticks:
            x = self.x(load)
            self.add(f'<path d="M{x:.1f} {self.y(0):.1f}v5" stroke="#888" fill="none"/>')
            self.text(x, self.y(0) + 20, f"{load:g}×")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "load, as a multiple of what the workers can do")

    def line(self, policy, shares):
        name, color, dashes = LINES.get(policy, (policy, "#555555", "1 2"))
        loads = sorted(shares)
        most = " ".join(f"{self.x(load):.1f},{self.y(max(shares[load])):.1f}" for load in loads)
        least = " ".join(f"{self.x(load):.1f},{self.y(min(shares[load])):.1f}" for load in reversed(loads))
        self.add(f'<polygon points="{most} {least}" fill="{color}" fill-opacity="0.15"/>')
        means = [(self.x(load), self.y(sum(shares[load]) / len(shares[load]))) for load in loads]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in means)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.add(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"{dash}/>')
        return name, color, dash, means[-1][1]

    def legend(self, lines):
        """Draws the names at the ends of their lines, moved apart if they would overlap."""
        lines.sort(key=lambda line: line[3])
        places = [end for *_, end in lines]
        for at in range(1, len(places)):
            places[at] = max(places[at], places[at - 1] + 18)
        # The last name must stay within the chart, and the names above it move up.
        places[-1] = min(places[-1], self.y(0) - 4)
        for at in reversed(range(len(places) - 1)):
            places[at] = min(places[at], places[at + 1] - 18)
        for (name, color, dash, _), y in zip(lines, places):
            x = WIDTH - RIGHT + 8
            self.add(f'<path d="M{x} {y:.1f}h22" stroke="{color}" stroke-width="2.5" fill="none"{dash}/>')
            self.text(x + 28, y + 4, name, "start")

    def panel(self, rows, figure, title, below):
        values = by_policy(rows, figure)
        loads = sorted({row["load"] for row in rows})
        self.add(f'<g transform="translate(0 {below})">')
        self.text(LEFT, 20, title, "start", font_weight="600")
        self.axes(loads)
        known = [policy for policy in LINES if policy in values]
        others = [policy for policy in values if policy not in LINES]
        # The first line is drawn last, above the others.
        self.legend([self.line(policy, values[policy]) for policy in reversed(known + others)])
        self.add("</g>")

    def svg(self, height):
        style = "text{font:13px system-ui,sans-serif;fill:#1f2328}"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        # A white background, because the page may be dark.
        ground = f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>'
        return "\n".join([head, f"<style>{style}</style>", ground, *self.parts, "</svg>", ""])


def main():
    rows, (service, arrivals) = read(sys.stdin)
    seeds = len({row["seed"] for row in rows})
    plot = Plot({row["load"] for row in rows})
    plot.panel(rows, "useful_share", "Worker time of jobs that end in time, of what could be had", 0)
    plot.panel(rows, "admitted_then_missed", "Accepted jobs that do not end in time", HEIGHT)
    note = f"{service} service, {arrivals} arrivals, mean of {seeds} seeds and range"
    plot.text(WIDTH - 16, 2 * HEIGHT + 8, note, "end", fill_opacity="0.7")
    sys.stdout.write(plot.svg(2 * HEIGHT + 20))


if __name__ == "__main__":
    main()
