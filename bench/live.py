"""Progress output on standard error: a line per problem, and on a terminal a progress bar below.

Output is drawn only between problems, because a display that refreshes itself would use a core during timing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from .rounds import Result
from .shared import terminal


class Progress:
    """Progress through ``total`` problems. ``begin`` is that of `terminal.progress`."""

    def __init__(self, total: int, begin: Callable[[str, int], None]):
        self._total, self._begin, self._done = total, begin, 0

    def begin(self, what: str) -> None:
        """Say what is done before the first problem."""
        self._begin(what, self._done)

    def step(self, results: list[Result]) -> None:
        """Print the times of a problem."""
        self._done += 1
        print(f"[{self._done}/{self._total}] {brief(results)}", file=sys.stderr, flush=True)
        self.begin("timing layers")


def brief(results: list[Result]) -> str:
    """Return a line with the times of one problem."""
    times = [f"{r.peer} {f'{r.seconds * 1e3:.3f}' if r.seconds else r.status}" for r in results]
    return f"{results[0].problem.layer.name}: {', '.join(times)} (ms)"


@contextlib.contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Yield an object whose `step(results)` shows that one of `total` problems is done."""
    with terminal.progress(total) as begin:
        yield Progress(total, begin)
