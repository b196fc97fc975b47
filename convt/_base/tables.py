"""Tables of text cells: plain text, HTML for notebooks, and on a terminal rich, if it is installed; a progress bar likewise."""

from __future__ import annotations

import contextlib
import html
import sys

_LEAST = 12  # characters to which a column may be cut
WIDTH = 80


def text(columns, rows, left=(0,), width=None, cuts=()):
    """Return a table as plain text. The numbers of columns in ``left`` are aligned to the left.

    A table wider than ``width`` loses characters in the columns ``cuts``, in this order: cells keep their end behind "..".
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    excess = 0 if width is None else sum(widths) + 2 * (len(widths) - 1) - width
    for n in cuts:
        cut = min(max(excess, 0), max(widths[n] - max(_LEAST, len(columns[n])), 0))
        widths[n], excess = widths[n] - cut, excess - cut
    lines = []
    for row in (columns, *rows):
        cells = [cell if len(cell) <= size else ".." + cell[2 - size :] for cell, size in zip(row, widths, strict=True)]
        aligned = (f"{cell:{'<' if n in left else '>'}{widths[n]}}" for n, cell in enumerate(cells))
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def in_html(columns, rows, caption=""):
    """Return a table as HTML. ``columns`` may be empty."""
    escape = lambda cells, tag: "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)  # noqa: E731
    head = f"<thead><tr>{escape(columns, 'th')}</tr></thead>" if columns else ""
    body = "".join(f"<tr>{escape(row, 'td')}</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{head}<tbody>{body}</tbody></table>"


def _rich(file):
    """Return the package rich if it is installed and ``file`` is a terminal, else None."""
    if file is None or not file.isatty():
        return None
    try:
        import rich.console
        import rich.progress
        import rich.table
        import rich.text
    except ImportError:
        return None
    return rich


def show(columns, rows, left=(0,), width=None, cuts=()):
    """Print a table: with rich on a terminal, else as `text`. With a ``width``, rich draws it only where no cell must wrap."""
    rich = _rich(sys.stdout)
    drawn_width = sum(max(map(len, cells)) + 3 for cells in zip(columns, *rows, strict=True)) + 1  # with borders
    if rich is None or (width is not None and drawn_width > rich.console.Console().width):
        print(text(columns, rows, left, width, cuts))
        return
    drawn = rich.table.Table()
    for n, title in enumerate(columns):
        drawn.add_column(title, justify="left" if n in left else "right")
    for row in rows:
        drawn.add_row(*map(rich.text.Text, row))  # as Text, because rich reads brackets in a plain string as markup
    rich.console.Console().print(drawn)


@contextlib.contextmanager
def progress(title, steps):
    """Show a progress bar on standard error, if that is a terminal and rich is installed. Yield a function to call per step."""
    rich = _rich(sys.stderr)
    if rich is None:
        yield lambda: None
        return
    with rich.progress.Progress(console=rich.console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(rich.text.Text(title).plain, total=steps)
        yield lambda: bar.advance(task)
