"""Progress output on standard error: a table above a progress bar on a terminal, and one line per problem elsewhere.

Output is drawn only between problems, because a display that refreshes itself would use a core during timing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from .record import best_rival, ratio
from .rounds import Result
from .shared import terminal
from .tables import LEFT, WRAPPED


class _Lines:
    """Progress as lines on stderr, for logs."""

    def __init__(self, total: int):
        self._total, self._done = total, 0

    def begin(self, what: str) -> None:
        """Say what is done before the first problem."""

    def step(self, results: list[Result]) -> None:
        self._done += 1
        print(f"[{self._done}/{self._total}] {brief(results)}", file=sys.stderr, flush=True)


class _Table:
    """Progress as a table of the latest problems that fit on the terminal, with a column for each library."""

    def __init__(self, rich, live, total: int):
        self._rich, self._live = rich, live
        self._progress = terminal.bar(rich)
        self._task = self._progress.add_task("", total=total)
        self._problems: list[list[Result]] = []

    def begin(self, what: str) -> None:
        """Say what is done before the first problem."""
        self._progress.update(self._task, description=what)
        self._live.update(self._progress, refresh=True)

    def step(self, results: list[Result]) -> None:
        self._problems.append(results)
        self._progress.update(self._task, advance=1, description="")
        self._live.update(self._rich.console.Group(self._table(), self._progress), refresh=True)

    def _table(self):
        names = list(dict.fromkeys(result.peer for results in self._problems for result in results))
        heads, rows = ("layer", *(f"{name}, ms" for name in names), "speedup", "over"), []
        for results in self._problems[-max(3, self._live.console.height - 9) :]:
            cells = {result.peer: _milliseconds(result) for result in results}
            best = best_rival(results)
            faster = ratio(best, results) if best else None
            last = (f"{faster:.2f}x", best.peer) if faster else ("", "")
            rows.append([results[0].problem.layer.name, *(cells.get(name, "") for name in names), *last])
        kept = terminal.fitting(heads, rows, ("layer", "speedup", "over", "convt, ms"), WRAPPED, self._live.console.width)
        table = self._rich.table.Table()
        terminal.add_columns(table, [heads[n] for n in kept], LEFT, WRAPPED)
        for cells in rows:
            style = "green" if cells[-2] and float(cells[-2][:-1]) >= 1 else None
            table.add_row(*(cells[n] for n in kept), style=style)
        return table


def _milliseconds(result: Result) -> str:
    return f"{result.seconds * 1e3:.3f}" if result.seconds else result.status


def brief(results: list[Result]) -> str:
    """Return a line with the times of one problem."""
    return f"{results[0].problem.layer.name}: {', '.join(f'{r.peer} {_milliseconds(r)}' for r in results)} (ms)"


@contextlib.contextmanager
def progress(total: int) -> Iterator[_Lines | _Table]:
    """Yield an object whose `step(results)` shows that one of `total` problems is done."""
    rich = terminal.rich_to_redraw()
    if rich is None:
        yield _Lines(total)
        return
    console = rich.console.Console(stderr=True, markup=False)  # brackets in a layer's name are text
    redirected = sys.stdout.isatty()
    with rich.live.Live(console=console, auto_refresh=False, transient=True, redirect_stdout=redirected) as live:
        yield _Table(rich, live, total)
