"""The pictures of the report as inline SVG: a roofline with all layers and libraries, and a bar chart of speedups.

Horizontal positions are percentages, so that the plot area fills the width of the page and text has the same size on every
screen. Labels are in the margins that `page.STYLE` leaves around the plot area. Marks show their values on hover.
"""

from __future__ import annotations

import math
from html import escape
from statistics import geometric_mean
from typing import NamedTuple

from .machine import Limits
from .palette import colour, library
from .record import best_rival, ours, ratio
from .rounds import Result

SHAPES = (  # outlines of marks around the origin, one for each way to run a library
    "M-4.5,0a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0z",
    "M-3.5,-3.5h7v7h-7z",
    "M0,-5L5,0L0,5L-5,0z",
    "M0,5L4.6,-3.5h-9.2z",
    "M0,-5L4.6,3.5h-9.2z",
    "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M0,-2L3,-5L5,-3L2,0L5,3L3,5L0,2L-3,5L-5,3L-2,0L-5,-3L-3,-5z",
    "M-5,-2h10v4h-10z",
)
SWATCH = "M-5,-5h10v10h-10z"
HEIGHT, BAR, LINE = 440, 18, 12  # pixels: the roofline, a layer of the bar chart, a line of small text
WIDTHS = {"wide": 900, "narrow": 290}  # least pixels of a plot area by class of screen
LONGEST = 26  # characters of a layer's name in the bar chart


class Axis(NamedTuple):
    """A logarithmic axis."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return the position of a value in percent."""
        return 100 * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Return round values, fewer of each decade on a long axis."""
        decades = math.log10(self.high / self.low)
        steps = (1, 1.5, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2 else (1, 3) if decades < 4 else (1,)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))
        return [value for power in powers for step in steps if self.low <= (value := step * 10.0**power) <= self.high]


def _line(kind: str, x1: float, y1: str, x2: float, y2: str) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}%" y1="{y1}" x2="{x2:.2f}%" y2="{y2}"/>'


def _text(x: str, y: str, text: str, attributes: str = "") -> str:
    return f'<text x="{x}" y="{y}" {attributes}>{text}</text>'


def _legend(shapes: dict[str, str]) -> str:
    marks = (
        f'<li><svg class="mark"><path d="{shape}" fill="{colour(name)}"/></svg>{escape(name)}</li>'
        for name, shape in shapes.items()
    )
    return f'<ul class="legend">{"".join(marks)}</ul>'


def _figure(caption: str, legend: str, kind: str, style: str, parts: list[str]) -> str:
    caption = escape(caption)
    plot = f'<svg class="plot {kind}" style="{style}" role="img" aria-label="{caption}">\n' + "\n".join(parts) + "\n</svg>"
    return f"<figure>\n<figcaption>{caption}</figcaption>\n{legend}\n{plot}\n</figure>\n"


def _label_rows(labels: list[tuple[float, str]], width: int) -> list[int]:
    """Return a row for each label, given positions in percent in ascending order, so that the labels of a row do not touch."""
    ends, rows = [], []
    for x, text in labels:
        left = x / 100 * width
        row = next((row for row, end in enumerate(ends) if end <= left), len(ends))
        ends[row : row + 1] = [left + 7 * len(text) + 3]
        rows.append(row)
    return rows


def roofline(problems: list[list[Result]], limits: Limits, dtype: str) -> str:
    """Draw GFLOP/s over arithmetic intensity, with the limits of bandwidth and peak. Points are numbered by layer.

    Return an empty string if there is no time.
    """
    layers = []  # intensity, number, results with a time
    for number, rivals in enumerate(problems, 1):
        if timed := [result for result in rivals if result.seconds]:
            problem = timed[0].problem
            layers.append((problem.layer.flops / problem.bytes, str(number), timed))
    if not layers:
        return ""
    layers.sort(key=lambda layer: layer[0])
    speeds = [result.gflops for *_, timed in layers for result in timed]
    peak = limits.peaks.get(dtype, math.inf)
    top = max([*speeds, *([peak] if dtype in limits.peaks else [])])
    x, y = Axis(layers[0][0] / 1.5, layers[-1][0] * 1.5), Axis(min(speeds) / 1.3, top * 1.3)
    high = lambda value: f"{100 - y.at(value):.2f}%"  # noqa: E731
    names = dict.fromkeys(result.peer for rivals in problems for result in rivals if result.seconds)
    shapes = {name: SHAPES[n % len(SHAPES)] for n, name in enumerate(names)}

    parts = [_line("grid", x.at(tick), "0", x.at(tick), "100%") for tick in x.ticks()]
    parts += [_line("grid", 0, high(tick), 100, high(tick)) for tick in y.ticks()]
    parts += [_text(f"{x.at(tick):.2f}%", f"{HEIGHT + 16}", f"{tick:g}", 'class="middle"') for tick in x.ticks()]
    parts += [_text("-6", high(tick), f"{tick:g}", 'class="end" dy="4"') for tick in y.ticks()]
    parts.append(_text("50%", f"{HEIGHT + 34}", "operations per byte", 'class="middle"'))
    parts.append(_text("-6", "-6", "GFLOP/s", 'class="end"'))
    start, ridge = max(x.low, y.low / limits.copy_gbs), min(x.high, max(x.low, min(peak, y.high) / limits.copy_gbs))
    if start < ridge:
        parts.append(_line("roof", x.at(start), high(start * limits.copy_gbs), x.at(ridge), high(ridge * limits.copy_gbs)))
    if ridge < x.high and math.isfinite(peak):
        parts.append(_line("roof", x.at(ridge), high(peak), 100, high(peak)))

    labels = [(x.at(intensity), number) for intensity, number, _ in layers]
    style = ""
    for kind, width in WIDTHS.items():
        rows = _label_rows(labels, width)
        style += f"--{kind}: {(max(rows) + 2) * LINE}px; "
        for (at, number), row, (*_, timed) in zip(labels, rows, layers, strict=True):
            name = f"<title>{escape(timed[0].problem.layer.name)}</title>{number}"
            parts.append(_text(f"{at:.2f}%", f"{-6 - row * LINE}", name, f'class="middle small {kind}"'))
    marks = []
    for intensity, number, timed in layers:
        at = x.at(intensity)
        parts.append(_line("layer", at, "0", at, high(min(result.gflops for result in timed))))
        for result in timed:
            title = f"{number} {_time_text(result)}, {result.gflops:.1f} GFLOP/s{_ratio_text(result, timed)}"
            marks.append((
                result.peer == "convt",
                f'<svg x="{at:.2f}%" y="{high(result.gflops)}"><path d="{shapes[result.peer]}" fill="{colour(result.peer)}">'
                f"<title>{escape(title)}</title></path></svg>",
            ))  # fmt: skip
    parts += [mark for _, mark in sorted(marks, key=lambda mark: mark[0])]  # convt on top
    peak_text = f"{dtype} peak {peak:.0f} GFLOP/s, " if dtype in limits.peaks else ""
    caption = f"Roofline: {peak_text}memory {limits.copy_gbs:.0f} GB/s; the numbers are those of the layers in the table"
    return _figure(caption, _legend(shapes), "roofline", f"{style}height: {HEIGHT}px", parts)


def _time_text(result: Result) -> str:
    return f"{result.problem.layer.name}, {result.peer}: {'*' * result.disturbed}{result.seconds * 1e3:.3f} ms"


def _ratio_text(result: Result, rivals: list[Result]) -> str:
    faster = ratio(result, rivals)
    return f", {faster:.2f}x of convt's time" if faster else ""


def ratios(problems: list[list[Result]]) -> str:
    """Draw the speedup of convt over the fastest other library on each layer. Return an empty string if there is none."""
    pairs = [(best, rivals) for rivals in problems if (best := best_rival(rivals)) and ratio(best, rivals)]
    if not pairs:
        return ""
    values = [ratio(best, rivals) for best, rivals in pairs]
    names = [best.problem.layer.name for best, _ in pairs]
    axis = Axis(min(1, *values) / 1.03, max(1.5, *values) * 1.05)
    height = BAR * len(pairs)
    parts = []
    for tick in axis.ticks():
        at = axis.at(tick)
        parts.append(_line("roof" if tick == 1 else "grid", at, "0", at, f"{height}"))
        parts += [_text(f"{at:.2f}%", place, f"{tick:g}", 'class="middle"') for place in ("-6", f"{height + 16}")]
    for n, (value, name, (best, rivals)) in enumerate(zip(values, names, pairs, strict=True)):
        left, right = sorted((axis.at(1), axis.at(value)))
        own = ours(rivals)
        star = "*" * (best.disturbed or own.disturbed)
        label = f'{value:.2f}{star}<tspan class="wide"> {escape(best.peer)}</tspan>'
        short = name if len(name) <= LONGEST else name[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
        title = f"{_time_text(best)}; convt: {own.seconds * 1e3:.3f} ms; speedup {value:.2f}{star}"
        place = f'x="{left:.2f}%" y="{BAR * n + 3}" width="{max(right - left, 0.2):.2f}%" height="{BAR - 6}"'
        parts += [
            f'<g><title>{escape(title)}</title><rect {place} fill="{colour(best.peer)}"/>',
            _text("-6", f"{BAR * n + 13}", escape(short), 'class="end"'),
            _text(f"{right:.2f}%", f"{BAR * n + 13}", label, 'dx="4" class="over"') + "</g>",
        ]
    libraries = dict.fromkeys((library(best.peer) for best, _ in pairs), SWATCH)
    caption = f"Speedup of convt over the fastest other library on each layer (geometric mean {geometric_mean(values):.2f})"
    style = f"--left: {10 + 6.6 * min(LONGEST, max(map(len, names))):.0f}px; height: {height}px"
    return _figure(caption, _legend(libraries), "bars", style, parts)
