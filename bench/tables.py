"""The results as text: a table for each group with its summary, drawn by rich on a terminal, plain anywhere else."""

from __future__ import annotations

import sys
from statistics import geometric_mean

from . import peers
from .machine import Limits
from .record import Record, best_rival, ratio
from .rounds import DISTURBED, Result
from .samples import NEAR

COLUMNS = ("layer", "library", "ms", "GFLOP/s", "of peak", "GB/s", "of limit", "convt is", "error", "how")
COLD = ("cold ms", "convt is, cold")  # columns after COLUMNS' "convt is", where caches were emptied
HELPED = {peer.name for peer in peers.PEERS if peer.helped}
LEFT = ("layer", "library", "how")
LEGEND = """\
GFLOP/s: operations that the result needs per second, none of them on a zero, so that an algorithm which gets by with
fewer can pass the peak. GB/s: data, weights and result once each. Of limit: the least time over the time taken; the least
is the operations at the peak or the bytes at the memory's bandwidth, whichever takes longer; small arrays, which stay in
the caches between calls, can pass it. "convt is" so many times as fast as the row's library. Error: the largest, over the
result's root mean square."""
COLD_LEGEND = "Cold: the caches are emptied before each call, so that data and weights come from memory."


def rich_if_terminal():
    """The rich package where stdout is a terminal and it is installed, else None."""
    if not sys.stdout.isatty():
        return None
    try:
        import rich.console
        import rich.live
        import rich.progress
        import rich.table
    except ImportError:
        return None
    return rich


def _share(part: float, whole: float | None) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def row(result: Result, rivals: list[Result], limits: Limits, cold: bool = False) -> list[str]:
    """The cells of `columns`; `rivals` are the results of the same problem, this one among them."""
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
    """Whether some were timed with cold caches."""
    return any(result.cold for rivals in problems for result in rivals)


def columns(cold: bool) -> tuple[str, ...]:
    """The heads of a table's columns."""
    at = COLUMNS.index("convt is") + 1
    return (*COLUMNS[:at], *COLD, *COLUMNS[at:]) if cold else COLUMNS


def limits_line(limits: Limits) -> str:
    peaks = [f"{dtype} {peak:.0f}" for dtype, peak in limits.peaks.items()]
    return f"peaks in GFLOP/s: {', '.join(peaks) or 'not measured'}; memory copy {limits.copy_gbs:.0f} GB/s"


def _plain_table(title: str, heads: tuple[str, ...], rows: list[list[str]]) -> None:
    lines = [list(heads), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for cells in lines:
        aligned = (
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for name, cell, width in zip(heads, cells, widths, strict=True)
        )
        print("  ".join(aligned).rstrip())


def _rich_table(rich, title: str, heads: tuple[str, ...], rows: list[list[str]]) -> None:
    table = rich.table.Table(title=title, title_justify="left")
    for name in heads:
        left = name in LEFT
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "how")
    for above, cells in zip([None, *rows], rows, strict=False):
        if above and above[0] != cells[0]:
            table.add_section()
        faster = cells[heads.index("convt is")]
        style = "bold red" if "WRONG" in cells else "green" if faster and float(faster[:-1]) >= 1 else None
        table.add_row(*cells, style=style)
    rich.console.Console(markup=False).print(table)  # brackets in a message are text


def show(record: Record) -> None:
    print(", ".join(f"{name} {version}" for name, version in record.versions.items()) or "no library is here")
    rich = rich_if_terminal()
    for group, problems in record.groups():
        limits, cold = record.limits[group.setting], was_cold(problems)
        rows = [row(result, rivals, limits, cold) for rivals in problems for result in rivals]
        title = f"{group}; {limits_line(limits)}"
        _rich_table(rich, title, columns(cold), rows) if rich else _plain_table(title, columns(cold), rows)
        for line in summary(problems):
            print(line)
    if record.results:
        print(f"\n{legend(record)}")
    if any(result.disturbed for result in record.results):
        print(f"* other processes kept over {DISTURBED} cores busy meanwhile: the figure may have suffered")
    for note in record.notes:
        print(f"note: {note}")


def legend(record: Record) -> str:
    return f"{LEGEND} {COLD_LEGEND}" if was_cold([record.results]) else LEGEND


def summary(problems: list[list[Result]]) -> list[str]:
    """For each peer, and for the best on each layer, the geometric mean of the ratios and how often convt was faster."""
    pairs: dict[str, list[tuple[Result, list[Result]]]] = {}
    for rivals in problems:
        for result in rivals:
            pairs.setdefault(result.peer, []).append((result, rivals))
    timed = [(best, rivals) for rivals in problems if (best := best_rival(rivals))]
    if len({best.peer for best, _ in timed}) > 1:
        pairs["the best of them on each layer"] = timed
        near = [pair for pair in timed if pair[0].problem.layer.name.startswith(NEAR)]
        if 0 < len(near) < len(timed):
            pairs["the best of them on each layer that is known"] = [pair for pair in timed if pair not in near]
            pairs["the best of them on each neighbour"] = near
    taking = [[result for result in rivals if result.peer not in HELPED] for rivals in problems]
    if timed and timed[0][0].problem.layout == "NCX" and taking != problems:
        found = [(best, rivals) for rivals in taking if (best := best_rival(rivals))]
        pairs["the best of those that take NCX on each layer"] = found
    return [line for cold in (False, True) for name, members in pairs.items() if (line := _versus(name, members, cold))]


def _versus(name: str, members: list[tuple[Result, list[Result]]], cold: bool) -> str | None:
    values, disturbed = [], 0
    for result, rivals in members:
        if faster := ratio(result, rivals, cold):
            values.append(faster)
            disturbed += any(rival.disturbed for rival in rivals if rival.peer in ("convt", result.peer))
    if not values:
        return None
    return (
        f"convt is {geometric_mean(values):.2f} times as fast as {name} in the geometric mean, "
        f"faster on {sum(value > 1 for value in values)} of {len(values)}" + (f" ({disturbed} of them *)" if disturbed else "")
        + ", with cold caches" * cold
    )
