"""Tables and summaries of results as text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from statistics import geometric_mean

from . import peers
from .machine import Limits
from .record import Record, best_rival, ratio
from .rounds import DISTURBED, Result
from .samples import NEAR
from .shared import terminal

COLUMNS = ("layer", "library", "ms", "GFLOP/s", "of peak", "GB/s", "of limit", "speedup", "error", "how")
COLD = ("cold ms", "cold speedup")  # columns after "speedup" if calls with emptied caches were timed
REORDERS_UNTIMED = {peer.name for peer in peers.PEERS if peer.reorders_untimed}
LEFT = ("layer", "library", "how", "verdict")  # columns aligned to the left
WRAPPED = {"layer": 16, "how": 12}  # columns whose text may wrap -> their least width
# A table that is wider than the terminal has fewer columns: those that are not listed here are left out first, then the last of
# these.
IMPORTANT = ("layer", "library", "verdict", "ratio", "ms", "speedup", "of limit", "cold speedup", "error", "how")
LEGEND = {
    "GFLOP/s": "operations that the result needs, per second. Products with inserted zeros do not count.",
    "of peak": "GFLOP/s as a share of the measured multiply-add peak. An algorithm with fewer multiplications can exceed 100%.",
    "GB/s": "bytes of data, weights and result, once each, per second.",
    "of limit": """\
the hardware limit as a share of the measured time. The limit is the larger of two times: bytes / memory bandwidth, and \
operations / peak, where Winograd saves a third of the operations along each axis with phases of several taps. A call \
whose arrays stay in the caches can exceed 100%.""",
    "speedup": "time of the row's library divided by convt's time.",
    "error": "largest error divided by the root mean square of the result.",
    "how": "the algorithm or implementation that ran, or the reason why none did.",
}
COLD_LEGEND = {"cold": "the caches are emptied before each call, so that data and weights come from memory."}
STAR_LEGEND = f"other processes used more than {DISTURBED} cores during the measurement, or cores were slow before or after it."


class Lines:
    """A plain table whose lines are printed as soon as they are known, with the columns that fit.

    ``columns`` maps heads to widths; the columns in ``important`` are kept first, and those in ``left`` aligned to the left.
    """

    def __init__(self, columns, important, left=()):
        heads, width = list(columns), terminal.line_width()
        self._columns = [(width, "<" if name in left else ">") for name, width in columns.items()]
        full = [["-" * width for width in columns.values()]]
        self._kept = terminal.fitting(heads, full, important, {}, width)
        terminal.print_missing(heads, self._kept)
        self.print(heads)

    def print(self, cells):
        """Print a line."""
        shown = [f"{cells[n]:{self._columns[n][1]}{self._columns[n][0]}}" for n in self._kept]
        print("  ".join(shown).rstrip(), flush=True)


def markdown(head: Sequence[str], rows: Iterable[Sequence]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows)]


def _share(part: float, whole: float | None) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def row(result: Result, rivals: list[Result], limits: Limits, cold: bool = False) -> list[str]:
    """Return the cells of `columns` for a result. ``rivals`` has all results of the same problem, including this one."""
    problem = result.problem
    error = "-" if result.error is None else f"{result.error:.0e}"
    start, end = [problem.layer.name, result.peer], [error, result.how]
    if cold:
        seconds, times = result.cold_seconds, ratio(result, rivals, cold=True)
        end = [f"{seconds * 1e3:.3f}" if seconds else "", f"{times:.2f}x" if times else "", *end]
    if not result.seconds:
        return [*start, result.status, "", "", "", "", "", *end]
    least = limits.seconds(problem)
    faster = ratio(result, rivals)
    return [
        *start,
        f"{'*' * result.disturbed}{result.seconds * 1e3:.3f}",
        f"{result.gflops:.1f}",
        _share(result.gflops, limits.peaks.get(problem.dtype)),
        f"{problem.bytes / result.seconds / 1e9:.1f}",
        f"{least / result.seconds:.0%}" if least else "-",
        f"{faster:.2f}x" if faster else "",
        *end,
    ]


def was_cold(problems: list[list[Result]]) -> bool:
    """Check whether any result has times with cold caches."""
    return any(result.cold for rivals in problems for result in rivals)


def columns(cold: bool) -> tuple[str, ...]:
    """Return the column heads of a table."""
    at = COLUMNS.index("speedup") + 1
    return (*COLUMNS[:at], *COLD, *COLUMNS[at:]) if cold else COLUMNS


def limits_line(limits: Limits) -> str:
    """Return the measured limits as text."""
    peaks = [f"{dtype} {peak:.0f}" for dtype, peak in limits.peaks.items()]
    return f"peaks in GFLOP/s: {', '.join(peaks) or 'not measured'}; memory copy {limits.copy_gbs:.0f} GB/s"


def draw(title: str, heads: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Print a table of results, and return the heads of its columns."""
    return terminal.draw(title, heads, rows, IMPORTANT, left=LEFT, wrapped=WRAPPED)


def show(record: Record) -> None:
    """Print the tables, summaries, legend and notes of a run."""
    say, shown = terminal.say, set(COLD_LEGEND)
    say(", ".join(f"{name} {version}" for name, version in record.versions.items()) or "no library is installed")
    for group, problems in record.groups():
        limits, cold = record.limits[group.setting], was_cold(problems)
        rows = [row(result, rivals, limits, cold) for rivals in problems for result in rivals]
        shown.update(draw(f"{group}; {limits_line(limits)}", columns(cold), rows))
        say(*reached(problems, limits), *summary(problems))
    if record.results:
        print()
        for name, meaning in legend(was_cold([record.results])).items():
            if name in shown:
                say(f"{name}: {meaning}")
    if any(result.disturbed for result in record.results):
        say(f"* {STAR_LEGEND}")
    say(*(f"note: {note}" for note in record.notes))


def legend(cold: bool) -> dict[str, str]:
    """Return the meaning of the columns."""
    return LEGEND | COLD_LEGEND if cold else LEGEND


def reached(problems: list[list[Result]], limits: Limits) -> list[str]:
    """Return a line for each library: the geometric mean of the fraction of the limit that it reaches, and the least."""
    shares: dict[str, list[tuple[float, str]]] = {}
    for result in itertools.chain(*problems):
        least = limits.seconds(result.problem)
        if result.seconds and least:
            shares.setdefault(result.peer, []).append((least / result.seconds, result.problem.layer.name))
    return [
        f"{peer} reaches {geometric_mean(share for share, _ in some):.0%} of the limit (geometric mean of {len(some)} layers), "
        f"least {min(some)[0]:.0%} ({min(some)[1]})"
        for peer, some in shares.items()
    ]


def summary(problems: list[list[Result]]) -> list[str]:
    """Return a line for each library and for the fastest: geometric mean of the speedup, and how often convt is faster."""
    pairs: dict[str, list[tuple[Result, list[Result]]]] = {}
    for rivals in problems:
        for result in rivals:
            pairs.setdefault(result.peer, []).append((result, rivals))
    timed = [(best, rivals) for rivals in problems if (best := best_rival(rivals))]
    if len({best.peer for best, _ in timed}) > 1:
        pairs["the fastest other library on each layer"] = timed
        near = [pair for pair in timed if pair[0].problem.layer.name.startswith(NEAR)]
        if 0 < len(near) < len(timed):
            pairs["the fastest other library on each known layer"] = [pair for pair in timed if pair not in near]
            pairs["the fastest other library on each random neighbour"] = near
    without_reordering = [[result for result in rivals if result.peer not in REORDERS_UNTIMED] for rivals in problems]
    if timed and timed[0][0].problem.layout == "NCX" and without_reordering != problems:
        found = [(best, rivals) for rivals in without_reordering if (best := best_rival(rivals))]
        pairs["the fastest other library without untimed reordering on each layer"] = found
    return [line for cold in (False, True) for name, members in pairs.items() if (line := _speedup_line(name, members, cold))]


def _speedup_line(name: str, members: list[tuple[Result, list[Result]]], cold: bool) -> str | None:
    quiet, disturbed = [], 0
    for result, rivals in members:
        if faster := ratio(result, rivals, cold):
            if any(rival.disturbed for rival in rivals if rival.peer in ("convt", result.peer)):
                disturbed += 1
            else:
                quiet.append(faster)
    if not quiet and not disturbed:
        return None
    title = f"speedup over {name}{' with cold caches' if cold else ''}"
    if not quiet:
        return f"{title}: no mean, because other programs used the cores during all measurements ({disturbed} marked *)"
    left_out = f" ({disturbed} marked * not counted)" if disturbed else ""
    faster = sum(value > 1 for value in quiet)
    return f"{title}: {geometric_mean(quiet):.2f} (geometric mean), convt is faster on {faster} of {len(quiet)}{left_out}"
