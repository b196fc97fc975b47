"""What the user sees and keeps: progress while it runs, a table and a summary at the end, a JSON file.

Rich draws it on a terminal; anywhere else, and without rich, it is plain text.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from statistics import geometric_mean

from bench.machine import Limits
from bench.problem import DTYPES
from bench.rounds import DISTURBED, Result

FORMAT = 1  # of the JSON file

COLUMNS = ("layer", "library", "ms", "GFLOP/s", "of peak", "GB/s", "of copy", "convt is", "error", "how")
LEFT = ("layer", "library", "how")
LEGEND = """\
GFLOP/s: operations of the direct sum per second, so an algorithm that needs fewer can pass the peak, which is that of
multiply-adds in registers. GB/s: data, weights and result once each; the copy is of an array larger than the caches.
"convt is" so many times as fast as the row's library. Error: the largest, over the result's root mean square."""


@dataclass
class Record:
    """All that a run finds out, from its first moment on, so that there is something to show whenever it ends."""

    about: dict  # when, where and how it was measured
    versions: dict[str, str] = field(default_factory=dict)
    limits: dict[tuple[str, int], Limits] = field(default_factory=dict)  # by dtype and threads
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _rich():
    """The rich package where stdout is a terminal and it is installed, else None."""
    if not sys.stdout.isatty():
        return None
    try:
        import rich.console
        import rich.progress
        import rich.table
    except ImportError:
        return None
    return rich


class _Lines:
    """Progress for logs: one line on stderr for each problem."""

    def __init__(self, total: int):
        self._total, self._done = total, 0

    def step(self, text: str) -> None:
        self._done += 1
        print(f"[{self._done}/{self._total}] {text}", file=sys.stderr, flush=True)


class _Bar:
    """Progress for terminals. Drawn between problems only: a bar that moves by itself would take time from a core."""

    def __init__(self, progress, total: int):
        self._progress, self._task = progress, progress.add_task("", total=total)

    def step(self, text: str) -> None:
        self._progress.update(self._task, advance=1, description=text, refresh=True)


@contextlib.contextmanager
def progress(total: int) -> Iterator[_Lines | _Bar]:
    """A thing whose `step(text)` says that one of `total` problems is done."""
    rich = _rich()
    if rich is None:
        yield _Lines(total)
        return
    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.TimeElapsedColumn())
    with rich.progress.Progress(*columns, auto_refresh=False, transient=True) as bar:
        yield _Bar(bar, total)


def brief(results: list[Result]) -> str:
    """The results of one problem in a line."""
    figures = (f"{r.peer} {r.gflops:.0f} GFLOP/s" if r.seconds else f"{r.peer} {r.status}" for r in results)
    return f"{results[0].problem.layer.name}: {', '.join(figures)}"


def _share(part: float, whole: float | None) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def ratio(result: Result, rivals: list[Result]) -> float | None:
    """How many times as fast convt is as this library on the same problem, where both were timed."""
    ours = next((r for r in rivals if r.peer == "convt"), None)
    if ours is None or ours is result or not ours.seconds or not result.seconds:
        return None
    return result.seconds / ours.seconds


def row(result: Result, rivals: list[Result], limits: Limits) -> list[str]:
    """The cells of COLUMNS; `rivals` are the results of the same problem, this one among them."""
    layer = result.problem.layer
    error = "-" if result.error is None else f"{result.error:.0e}"
    start, end = [layer.name, result.peer], [error, result.how]
    if not result.seconds:
        return [*start, result.status, "", "", "", "", "", *end]
    gbs = layer.elements * DTYPES[result.problem.dtype].itemsize / result.seconds / 1e9
    faster = ratio(result, rivals)
    return [
        *start,
        f"{'*' * result.disturbed}{result.seconds * 1e3:.3f}",
        f"{result.gflops:.1f}",
        _share(result.gflops, limits.fma_gflops),
        f"{gbs:.1f}",
        _share(gbs, limits.copy_gbs),
        f"{faster:.2f}x" if faster else "",
        *end,
    ]


def _group(result: Result) -> tuple:
    return result.problem.dtype, result.problem.layout, result.threads


def _problem(result: Result) -> tuple:
    return result.problem, result.threads


def _title(group: tuple, limits: Limits) -> str:
    dtype, layout, threads = group
    peak = f"{limits.fma_gflops:.0f} GFLOP/s" if limits.fma_gflops else "not measured"
    return (
        f"{dtype}, {layout}, {threads} thread{'s' * (threads > 1)}: multiply-add peak {peak}, "
        f"copy {limits.copy_gbs:.0f} GB/s"
    )


def _plain_table(title: str, rows: list[list[str]]) -> None:
    lines = [list(COLUMNS), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for cells in lines:
        aligned = (
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for name, cell, width in zip(COLUMNS, cells, widths, strict=True)
        )
        print("  ".join(aligned).rstrip())


def _rich_table(rich, title: str, rows: list[list[str]]) -> None:
    table = rich.table.Table(title=title, title_justify="left")
    for name in COLUMNS:
        left = name in LEFT
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "how")
    for above, cells in zip([None, *rows], rows, strict=False):
        if above and above[0] != cells[0]:
            table.add_section()
        faster = cells[COLUMNS.index("convt is")]
        style = "bold red" if "WRONG" in cells else "green" if faster and float(faster[:-1]) >= 1 else None
        table.add_row(*cells, style=style)
    rich.console.Console(markup=False).print(table)  # brackets in a message are text


def show(record: Record) -> None:
    """Print a table for each dtype, layout and thread count with its summary, then the notes."""
    print(", ".join(f"{name} {version}" for name, version in record.versions.items()) or "no library is here")
    rich = _rich()
    for group, members in groupby(record.results, _group):
        members = list(members)
        dtype, _, threads = group
        limits = record.limits[dtype, threads]
        rows = []
        for _, rivals in groupby(members, _problem):
            rivals = list(rivals)
            rows += [row(result, rivals, limits) for result in rivals]
        title = _title(group, limits)
        _rich_table(rich, title, rows) if rich else _plain_table(title, rows)
        for line in summary(members):
            print(line)
    if record.results:
        print(f"\n{LEGEND}")
    if any(result.disturbed for result in record.results):
        print(f"* other processes kept over {DISTURBED} cores busy meanwhile: the figure may have suffered")
    for note in record.notes:
        print(f"note: {note}")


def summary(results: list[Result]) -> list[str]:
    """For each peer a line: the geometric mean of the ratios, and on how many layers convt was faster."""
    ratios: dict[str, list[float]] = {}
    disturbed: dict[str, int] = {}
    for _, rivals in groupby(results, _problem):
        rivals = list(rivals)
        for result in rivals:
            if faster := ratio(result, rivals):
                ratios.setdefault(result.peer, []).append(faster)
                starred = any(rival.disturbed for rival in rivals if rival.peer in ("convt", result.peer))
                disturbed[result.peer] = disturbed.get(result.peer, 0) + starred
    return [
        f"convt is {geometric_mean(values):.2f} times as fast as {peer} in the geometric mean, "
        f"faster on {sum(value > 1 for value in values)} of {len(values)}"
        + (f" ({disturbed[peer]} of them *)" if disturbed[peer] else "")
        for peer, values in ratios.items()
    ]


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def to_json(result: Result) -> dict:
    problem = result.problem
    return {
        "layer": problem.layer.to_row(),
        "dtype": problem.dtype,
        "layout": problem.layout,
        "bias": problem.with_bias,
        "threads": result.threads,
        "peer": result.peer,
        "status": result.status,
        "how": result.how,
        "error": _finite(result.error),
        "seconds": result.seconds,
        "gflops": result.gflops,
        "disturbed": result.disturbed,
        "rounds": result.rounds,
    }


def save(record: Record, path: str) -> None:
    """Write everything a later comparison needs."""
    content = record.about | {
        "format": FORMAT,
        "complete": record.complete,
        "versions": record.versions,
        "limits": [{"dtype": d, "threads": n} | limits._asdict() for (d, n), limits in record.limits.items()],
        "notes": record.notes,
        "results": [to_json(result) for result in record.results],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
