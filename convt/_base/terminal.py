"""What command lines of convt and its benchmark print: tables that fit the terminal, and progress bars. Also tables as HTML.

This module imports no other one of convt, because the benchmark loads it by its path.
"""

import contextlib
import datetime
import html
import itertools
import os
import shutil
import sys
import time


def line_width():
    """Return the width of plain text: that of COLUMNS or the terminal, and None for a file, whose lines may be long."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def printable(name):
    """Return a name, escaped if it has control characters, because names of a model's parts may contain any characters."""
    return name if name.isprintable() else ascii(name)


def _encodable(text, stream):
    """Return a text with escapes for the characters that the encoding of a stream lacks, because these need more room."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(*texts, indent=""):
    """Print each text from a new line, wrapped to the width of the terminal; further lines begin with ``indent``."""
    import textwrap  # imported here, because few processes need it

    width = line_width() or sys.maxsize
    for each in texts:
        print(*textwrap.wrap(each, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False), sep="\n")


def fitting(heads, rows, important, wrapped, width):
    """Return the numbers of the columns that fit into ``width`` characters, or all if it is None.

    The columns that are first in ``important`` are kept first. ``wrapped`` maps columns whose text may wrap to their least
    widths.
    """
    widths = [max(map(len, cells)) for cells in zip(heads, *rows, strict=True)]
    least = [2 + min(one, wrapped.get(name, one)) for name, one in zip(heads, widths, strict=True)]
    kept, used = [], -2
    for n in sorted(range(len(heads)), key=lambda n: important.index(heads[n]) if heads[n] in important else len(important)):
        if width is None or used + least[n] <= width or not kept:
            kept.append(n)
            used += least[n]
    return sorted(kept)


def draw(title, heads, rows, important, *, left=None, wrapped=None):
    """Print a table, with the columns that fit.

    The columns in ``important`` are kept first. Those in ``left`` (default: the first) are aligned to the left. ``wrapped``
    maps columns that may wrap to their least widths (default: the first, 16). Return the heads of the columns that are printed.
    """
    rows = [[_encodable(cell, sys.stdout) for cell in cells] for cells in rows]
    wrapped = {heads[0]: 16} if wrapped is None else wrapped
    drawn, kept = text(heads, rows, important, left or heads[:1], wrapped, line_width())
    print(f"\n{title}\n{drawn}" if title else drawn)
    print_missing(heads, kept)
    return [heads[n] for n in kept]


def print_missing(heads, kept):
    if missing := [name.strip() for n, name in enumerate(heads) if n not in kept]:
        say(f"a wider terminal also shows: {', '.join(missing)}")


def text(heads, rows, important, left, wrapped, width):
    """Return ``(table as plain text, numbers of its columns)``: those of `fitting`."""
    kept = fitting(heads, rows, important, wrapped, width)
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


class _Above:
    """A stream whose output erases the progress bar first."""

    def __init__(self, stream, erase):
        self._stream, self._erase = stream, erase

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        """Write text; print calls this method."""
        self._erase()
        return self._stream.write(text)


@contextlib.contextmanager
def progress(total):
    """Yield ``begin(what)``, to be called at the beginning of each of ``total`` steps with what the step does.

    ``begin(what, done)`` also says how much of ``total`` is done, for steps whose number is not known.

    A line on standard error shows the step and the time left, if the other steps take as long as those so far. It is drawn when
    a step begins, not while a call is timed, and is erased at the end and before other output. There is none if standard error
    is no terminal that can erase a line.
    """
    screen = sys.stderr
    if not total or screen is None or not screen.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield lambda what, done=None: None
        return
    begun, start, shown = itertools.count(), time.monotonic(), []

    def erase():
        if shown:
            print(shown.pop(), end="", file=screen, flush=True)

    def begin(what, done=None):
        erase()
        done = next(begun) if done is None else done
        seconds = round((time.monotonic() - start) / done * (total - done)) if done else None
        left = "" if seconds is None else f", about {datetime.timedelta(seconds=seconds)} left"
        bar = "#" * round(16 * done / total)
        line = f"{_encodable(what, screen)[:30]:30} {bar:.<16} {done:.0f}/{total:.0f}{left}"
        print(line[: shutil.get_terminal_size().columns - 1], end="", file=screen, flush=True)
        shown.append("\r\x1b[K")

    with contextlib.ExitStack() as stack:
        stack.callback(erase)
        for stream, redirect in ((sys.stdout, contextlib.redirect_stdout), (screen, contextlib.redirect_stderr)):
            if stream is not None and stream.isatty():
                stack.enter_context(redirect(_Above(stream, erase)))
        yield begin
