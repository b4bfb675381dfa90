#!/usr/bin/env python3
"""Draws useful worker time over load, a line for each policy, from the rows of `waterwheel sim --output json`.

    waterwheel sim --load 0.5,0.7,0.85,1,1.2,1.5,2,3,4,6,10 --service exponential --seeds 20 --output json |
        python3 benches/plot.py > benches/goodput.svg

It needs nothing but Python. Each point is the mean over the seeds; the band around it is from the least to the most.
"""

import json
import math
import sys
from collections import defaultdict
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 48, 56
# Told apart by those who see few colours, too: Okabe and Ito.
LINES = {
    "ours": ("waterwheel", "#0072B2", ""),
    "half-budget": ("half-budget rule", "#009E73", "8 4"),
    "codel-lifo": ("CoDel + adaptive LIFO", "#E69F00", "2 3"),
    "fifo-expiry": ("FIFO with expiry", "#CC79A7", "10 3 2 3"),
    "fifo": ("bounded FIFO", "#D55E00", "5 3"),
}


def read(lines):
    """Useful shares by policy and load, and the names of service and arrivals."""
    shares = defaultdict(lambda: defaultdict(list))
    kinds = set()
    for line in lines:
        row = json.loads(line)
        shares[row["policy"]][row["load"]].append(row["useful_share"])
        kinds.add((row["service"], row["arrivals"]))
    if len(kinds) != 1:
        sys.exit("pass rows of one --service and one --arrivals")
    return shares, kinds.pop()


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
        """Names at the ends of their lines, moved apart where they would meet."""
        lines.sort(key=lambda line: line[3])
        y = TOP - 16
        for name, color, dash, end in lines:
            y = max(y + 18, end)
            x = WIDTH - RIGHT + 8
            self.add(f'<path d="M{x} {y:.1f}h22" stroke="{color}" stroke-width="2.5" fill="none"{dash}/>')
            self.text(x + 28, y + 4, name, "start")

    def svg(self):
        style = "text{font:13px system-ui,sans-serif;fill:#1f2328}"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        # A ground of its own, since a page may be dark.
        ground = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>'
        return "\n".join([head, f"<style>{style}</style>", ground, *self.parts, "</svg>", ""])


def main():
    shares, (service, arrivals) = read(sys.stdin)
    loads = sorted({load for by_load in shares.values() for load in by_load})
    seeds = max(len(values) for by_load in shares.values() for values in by_load.values())
    plot = Plot(loads)
    plot.text(LEFT, 20, "Worker time of jobs that end in time, of what could be had", "start", font_weight="600")
    plot.text(LEFT, 37, f"{service} service, {arrivals} arrivals, {seeds} seeds", "start", fill_opacity="0.7")
    plot.axes(loads)
    known = [policy for policy in LINES if policy in shares]
    others = [policy for policy in shares if policy not in LINES]
    # The first is drawn last, on top.
    plot.legend([plot.line(policy, shares[policy]) for policy in reversed(known + others)])
    sys.stdout.write(plot.svg())


if __name__ == "__main__":
    main()
