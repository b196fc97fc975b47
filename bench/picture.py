"""The README's picture of the speedup: ``python -m bench.picture figures.json speed.svg``.

The JSON file is one written by ``python -m bench --json``. The picture has a bar for each layer of its first table: the speedup
of convt over the fastest other library. The colour of a bar names that library.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import geometric_mean

from . import command
from .palette import colour, library
from .shared import files

INK, GRID = "#333333", "#dddddd"
WIDTH, TOP, BARS, BELOW = 860, 46, 190, 96  # pixels: whole picture; heading, bars, names


def ratios(found: dict) -> list[tuple[float, str, str]]:
    """Return (speedup, layer, fastest other library), the largest speedup first."""
    first = found["results"][0]
    keys = ("dtype", "precision", "layout", "mode", "threads", "isa")
    same = lambda result: all(result.get(key) == first.get(key) for key in keys)  # noqa: E731
    layers: dict[str, dict[str, float]] = {}
    for result in filter(same, found["results"]):
        if result["seconds"]:
            layers.setdefault(result["layer"]["name"], {})[result["peer"]] = result["seconds"]
    rows = []
    for name, seconds in layers.items():
        others = {peer: time for peer, time in seconds.items() if peer != "convt"}
        if "convt" in seconds and others:
            best = min(others, key=others.get)
            rows.append((others[best] / seconds["convt"], name, best))
    return sorted(rows, reverse=True)


def draw(found: dict) -> str:
    """Return the picture as SVG."""
    rows = ratios(found)
    if not rows:
        raise ValueError("there is no layer on which convt and another library were timed")
    fastest = [library(peer) for *_, peer in rows]
    libraries = sorted(dict.fromkeys(fastest), key=fastest.count, reverse=True)
    low, high = min(0.9, rows[-1][0]), max(2.0, rows[0][0]) * 1.05
    at = lambda value: TOP + BARS * (1 - math.log(value / low) / math.log(high / low))  # noqa: E731
    step = (WIDTH - 50) / len(rows)
    parts = [f'<rect width="{WIDTH}" height="{TOP + BARS + BELOW}" fill="white"/>']
    heading = f"Speedup of convt over the fastest other library on each layer (geometric mean {_mean(rows):.2f})"
    parts.append(f'<text x="40" y="16" font-size="13" font-weight="bold" fill="{INK}">{heading}</text>')
    parts.append(f'<text x="40" y="34" font-size="11" fill="{INK}">fastest other library:</text>')
    for n, name in enumerate(libraries):
        x = 170 + 150 * n
        parts.append(f'<rect x="{x}" y="25" width="10" height="10" fill="{colour(name)}"/>')
        parts.append(f'<text x="{x + 15}" y="34" font-size="11" fill="{INK}">{name}</text>')
    for tick in (0.5, 1, 1.5, 2, 3, 5, 10, 20):
        if low <= tick <= high:
            line = INK if tick == 1 else GRID
            parts.append(f'<line x1="40" x2="{WIDTH - 5}" y1="{at(tick):.1f}" y2="{at(tick):.1f}" stroke="{line}"/>')
            parts.append(f'<text x="34" y="{at(tick) + 4:.1f}" font-size="11" text-anchor="end" fill="{INK}">{tick:g}</text>')
    for n, (value, name, peer) in enumerate(rows):
        x, top, base = 42 + n * step, min(at(value), at(1)), max(at(value), at(1))
        title = f"<title>{name}: {value:.2f} times as fast as {peer}</title>"
        parts.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{step * 0.78:.1f}" height="{max(base - top, 1):.1f}" '
                     f'fill="{colour(peer)}">{title}</rect>')  # fmt: skip
        middle, foot = x + step * 0.4, TOP + BARS + 8
        parts.append(f'<text transform="translate({middle:.1f},{foot}) rotate(-60)" font-size="9" text-anchor="end" '
                     f'fill="{INK}">{name}</text>')  # fmt: skip
    body = "\n".join(parts)
    size = f"0 0 {WIDTH} {TOP + BARS + BELOW}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif">\n{body}\n</svg>\n'


def _mean(rows: list[tuple[float, str, str]]) -> float:
    return geometric_mean(value for value, *_ in rows)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("picture", __doc__, "figures.json speed.svg", "docs/pictures/speed.json docs/pictures/speed.svg")
    parser.add_argument("figures", type=Path, metavar="FIGURES.json", help="figures of convt's benchmark, written by --json")
    parser.add_argument("picture", type=Path, metavar="PICTURE.svg", help="file to write")
    options = parser.parse_args(arguments)
    figures, picture = options.figures, options.picture
    try:
        files.write(picture, draw(json.loads(figures.read_text(encoding="utf-8"))))
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"{__package__}.picture: {figures}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
