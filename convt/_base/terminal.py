"""What command lines of convt and its benchmark draw: tables that fit the terminal, and progress bars. Also tables as HTML.

rich draws on terminals if it is installed, and plain text is printed elsewhere. This module imports no other one of convt,
because the benchmark loads it by its path.
"""

import contextlib
import datetime
import html
import itertools
import os
import shutil
import sys


def rich_on(stream):
    """Return the package rich if it is installed and ``stream`` is a terminal, and None otherwise."""
    if stream is None or not stream.isatty():
        return None
    try:
        import rich.console
        import rich.live
        import rich.progress
        import rich.table
        import rich.text
    except ImportError:
        return None
    return rich


def rich_to_redraw():
    """Return the package rich if standard error is a terminal that can redraw a line, and None otherwise."""
    return None if os.environ.get("TERM") in ("dumb", "unknown") else rich_on(sys.stderr)


def line_width():
    """Return the width of plain text: that of COLUMNS or the terminal, and None for a file, whose lines may be long."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def say(*texts, indent=""):
    """Print each text from a new line, wrapped to the width of the terminal; further lines begin with ``indent``."""
    import textwrap  # imported here, because few processes need it

    width = line_width() or sys.maxsize
    for each in texts:
        print(*textwrap.wrap(each, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False), sep="\n")


def fitting(heads, rows, important, wrapped, width, between=3, around=1):
    """Return the numbers of the columns that fit into ``width`` characters, those that are first in ``important`` first.

    ``wrapped`` maps columns whose text may wrap to their least widths. A column takes ``between`` characters more than its
    text, and the table ``around`` more than its columns.
    """
    widths = [max(map(len, cells)) for cells in zip(heads, *rows, strict=True)]
    least = [between + min(one, wrapped.get(name, one)) for name, one in zip(heads, widths, strict=True)]
    kept, used = [], around
    for n in sorted(range(len(heads)), key=lambda n: important.index(heads[n]) if heads[n] in important else len(important)):
        if used + least[n] <= width or not kept:
            kept.append(n)
            used += least[n]
    return sorted(kept)


def add_columns(table, heads, left, wrapped):
    """Add columns to a rich table. Text is never shortened by an ellipsis, which not every terminal can show."""
    for name in heads:
        wraps, side = name in wrapped, "left" if name in left else "right"
        table.add_column(name, justify=side, no_wrap=not wraps, overflow="fold" if wraps else "crop")


def draw(title, heads, rows, important, *, left=None, wrapped=None, style=None):
    """Print a table, with the columns that fit.

    The columns in ``important`` are kept first. Those in ``left`` (default: the first) are aligned to the left. ``wrapped``
    maps columns that may wrap to their least widths (default: the first, 16). ``style`` maps a row, as {head: cell}, to a style
    of rich or None. Return the heads of the columns that are printed.
    """
    left, wrapped = left or heads[:1], {heads[0]: 16} if wrapped is None else wrapped
    encoding = sys.stdout.encoding or "utf-8"  # escapes of what it lacks are longer than the text
    rows = [[cell.encode(encoding, "backslashreplace").decode(encoding) for cell in cells] for cells in rows]
    rich = rich_on(sys.stdout)
    if rich is None:
        drawn, kept = text(heads, rows, important, left, wrapped, line_width())
        print(f"\n{title}\n{drawn}" if title else drawn)
    else:
        kept = _draw_rich(rich, title, heads, rows, important, left, wrapped, style or (lambda _: None))
    print_missing(heads, kept)
    return [heads[n] for n in kept]


def print_missing(heads, kept):
    if missing := [name.strip() for n, name in enumerate(heads) if n not in kept]:
        say(f"a wider terminal also shows: {', '.join(missing)}")


def _draw_rich(rich, title, heads, rows, important, left, wrapped, style):
    # Brackets in a message or a name are text. Without a height, rich takes the width of a dumb terminal as 80.
    console = rich.console.Console(width=line_width(), height=25, markup=False)
    kept = fitting(heads, rows, important, wrapped, console.width)
    table = rich.table.Table(title=title or None, title_justify="left")
    add_columns(table, [heads[n] for n in kept], left, wrapped)
    several = len({cells[0] for cells in rows}) < len(rows)  # rows per layer, which a line then separates
    for above, cells in zip([None, *rows], rows, strict=False):
        if several and above and above[0] != cells[0]:
            table.add_section()
        table.add_row(*(cells[n] for n in kept), style=style(dict(zip(heads, cells, strict=True))))
    with console.capture() as drawn:
        console.print(table)
    print(drawn.get(), end="")  # through sys.stdout, so that a progress bar stays below the table
    return kept


def text(heads, rows, important, left, wrapped, width):
    """Return ``(table as plain text, numbers of its columns)``: those of `fitting`, or all if ``width`` is None."""
    kept = range(len(heads)) if width is None else fitting(heads, rows, important, wrapped, width, 2, -2)
    widths = [max(map(len, cells)) for cells in zip(heads, *rows, strict=True)]
    over = 0 if width is None else sum(widths[n] + 2 for n in kept) - 2 - width
    for n in reversed(kept):
        cut = max(0, min(over, widths[n] - wrapped.get(heads[n], widths[n])))
        widths[n], over = widths[n] - cut, over - cut
    lines = []
    for cells in (heads, *rows):
        pieces = [[cells[n][i : i + widths[n]] for i in range(0, len(cells[n]) or 1, widths[n] or 1)] for n in kept]
        for line in itertools.zip_longest(*pieces, fillvalue=""):
            aligned = [f"{cell:{'<' if heads[n] in left else '>'}{widths[n]}}" for n, cell in zip(kept, line, strict=True)]
            lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines), kept


def in_html(columns, rows, caption=""):
    """Return a table as HTML. ``columns`` may be empty."""
    escape = lambda cells, tag: "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)  # noqa: E731
    head = f"<thead><tr>{escape(columns, 'th')}</tr></thead>" if columns else ""
    body = "".join(f"<tr>{escape(row, 'td')}</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{head}<tbody>{body}</tbody></table>"


def bar(rich):
    """Return a progress bar of rich on standard error, which is drawn only when it is asked to, not while a call is timed."""
    progress = rich.progress

    class Left(progress.ProgressColumn):
        """The time left, if the other steps take as long as those so far."""

        def render(self, task):
            """Return the text; rich calls this method."""
            seconds = task.elapsed / task.completed * (task.total - task.completed) if task.completed else None
            return rich.text.Text("" if seconds is None else f"about {datetime.timedelta(seconds=round(seconds))} left")

    shown = (
        progress.TextColumn("{task.description}", markup=False), progress.BarColumn(), progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(), Left(),
    )  # fmt: skip
    return progress.Progress(
        *shown, console=rich.console.Console(stderr=True, markup=False), auto_refresh=False, transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )  # fmt: skip


@contextlib.contextmanager
def progress(total):
    """Yield ``begin(what)``, to be called at the beginning of each of ``total`` steps with what the step does.

    ``begin(what, done)`` also says how much of ``total`` is done, for steps whose number is not known.

    A progress bar on standard error shows the step and the time left, and disappears at the end. There is none if standard
    error is no terminal or rich is not installed.
    """
    rich = rich_to_redraw() if total else None
    if rich is None:
        yield lambda what, done=None: None
        return
    with bar(rich) as shown:
        task, begun = shown.add_task("", total=total), itertools.count()

        def begin(what, done=None):
            shown.update(task, completed=next(begun) if done is None else done, description=what[:30], refresh=True)

        yield begin
