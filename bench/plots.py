"""The pictures of the report: a roofline with all layers and libraries, and a bar chart of speedups.

Each picture has a wide and a narrow version, so that its text is readable on any screen.
"""

from __future__ import annotations

import base64
import io
from statistics import geometric_mean

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .machine import Limits
from .record import best_rival, ours, ratio
from .rounds import Result

BETTER, WORSE, INK, GRID = "#1b7f5c", "#c0492f", "#333333", "#dddddd"
COLOURS = ("#1b7f5c", "#3465a4", "#7ba7d9", "#c0492f", "#e8a08e", "#8b6bb1", "#d9a514", "#6b6b6b", "#b0b0b0")
MARKERS = "osDv^PX<>"


def _png(figure: Figure) -> str:
    """Return the picture as a data URL."""
    raw = io.BytesIO()
    figure.savefig(raw, format="png", dpi=150)
    return "data:image/png;base64," + base64.b64encode(raw.getvalue()).decode()


def _plain_numbers(axis, steps: tuple[int, ...] = ()) -> None:
    if steps:
        axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _axes(width: float, height: float):
    figure = Figure((width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=INK)
    return figure, axes


def roofline(problems: list[list[Result]], limits: Limits, dtype: str, wide: bool) -> str:
    """Draw GFLOP/s over arithmetic intensity, with the limits of bandwidth and peak. Points are numbered by layer."""
    figure, axes = _axes(10.4, 6.2) if wide else _axes(3.8, 4.8)
    names = list(dict.fromkeys(result.peer for rivals in problems for result in rivals))
    points = {name: ([], []) for name in names}
    intensities, tops = [], []
    for number, rivals in enumerate(problems, 1):
        timed = [result for result in rivals if result.seconds]
        if not timed:
            continue
        problem = rivals[0].problem
        intensity = problem.layer.flops / problem.bytes
        intensities.append(intensity)
        speeds = [result.gflops for result in timed]
        for result in timed:
            points[result.peer][0].append(intensity)
            points[result.peer][1].append(result.gflops)
        axes.plot([intensity] * 2, [min(speeds), max(speeds)], color=GRID, linewidth=0.7, zorder=1)
        tops.append((intensity, max(speeds), str(number)))
    if not intensities:
        return ""
    for index, (name, (x, y)) in enumerate(points.items()):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        size = (30 if name == "convt" else 16) * (1 if wide else 0.5)
        axes.scatter(x, y, size, colour, marker=marker, label=name, zorder=3 if name == "convt" else 2, linewidths=0)
    _number(axes, tops, wide)
    _roof(axes, limits, dtype, min(intensities) / 2, max(intensities) * 2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_numbers(axes.xaxis, (1, 3))
    _plain_numbers(axes.yaxis, (1, 3))
    axes.grid(color=GRID, linewidth=0.4)
    axes.set_xlabel("operations per byte", fontsize=9)
    axes.set_ylabel("GFLOP/s", fontsize=9)
    figure.legend(loc="outside upper left", ncols=5 if wide else 2, fontsize=8 if wide else 6.5, frameon=False)
    return _png(figure)


def _number(axes, tops: list[tuple[float, float, str]], wide: bool) -> None:
    """Write numbers above the points. Numbers of points close to each other are stacked."""
    size, close = (7, 1.06) if wide else (5, 1.22)
    level, left = 0, 0.0
    for x, y, text in sorted(tops):
        level = level + 1 if x < left * close else 0
        left = x
        above = (0, 5 + level % 5 * (size + 0.5))
        axes.annotate(text, (x, y), xytext=above, textcoords="offset points", ha="center", fontsize=size, color=INK)


def _roof(axes, limits: Limits, dtype: str, left: float, right: float) -> None:
    peak = limits.peaks.get(dtype, float("inf"))
    ridge = peak / limits.copy_gbs
    corners = sorted({left, min(max(ridge, left), right), right})
    axes.plot(corners, [min(peak, x * limits.copy_gbs) for x in corners], color=INK, linewidth=1, zorder=1)
    peak_text = f"{dtype} peak {peak:.0f} GFLOP/s, " if dtype in limits.peaks else ""
    axes.set_title(f"{peak_text}memory {limits.copy_gbs:.0f} GB/s", loc="right", fontsize=8, color=INK)
    axes.margins(y=0.12)


def ratios(problems: list[list[Result]], wide: bool) -> str:
    """Draw the speedup of convt over the fastest other library on each layer. Return an empty string if there is none."""
    pairs = [(best, rivals) for rivals in problems if (best := best_rival(rivals)) and ratio(best, rivals)]
    if not pairs:
        return ""
    values = [ratio(best, rivals) for best, rivals in pairs]
    labels = [rivals[0].problem.layer.name for _, rivals in pairs]
    figure, axes = _axes(10.4 if wide else 3.8, 1.3 + 0.2 * len(pairs))
    rows = range(len(pairs))
    axes.barh(rows, [value - 1 for value in values], 0.72, 1, color=[BETTER if value >= 1 else WORSE for value in values])
    for y, value, (best, rivals) in zip(rows, values, pairs, strict=True):
        star = "*" * (best.disturbed or ours(rivals).disturbed)
        axes.annotate(
            f"{value:.2f}{star} {best.peer}",
            (max(value, 1), y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8 if wide else 6,
            color=INK,
        )
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(min(0.9, *values) * 0.95, max(1.1, *values) * (1.35 if wide else 2.6))
    axes.set_xticks([tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]])
    _plain_numbers(axes.xaxis)
    axes.set_yticks(rows, labels, fontsize=8 if wide else 6.5)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID, linewidth=0.4)
    mean = geometric_mean(values)
    text = "speedup over the fastest other library" if wide else "speedup"
    axes.set_xlabel(f"{text} (geometric mean {mean:.2f})", fontsize=9 if wide else 7)
    return _png(figure)
