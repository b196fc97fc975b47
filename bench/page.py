"""The HTML report: one page with embedded pictures, for screens of any width."""

from __future__ import annotations

from html import escape
from pathlib import Path

from . import COMMAND, plots, tables
from .machine import Limits
from .record import Group, Record
from .rounds import DISTURBED, Result

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1160px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.6em; line-height: 1.2; } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid #ddd; }
h3 { font-size: 1em; margin-bottom: 0.3em; }
p, li { max-width: 90ch; overflow-wrap: anywhere; }
img { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.82em; }
th, td { padding: 2px 8px; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #888; background: #fff; }
.left { text-align: left; }
.first td { border-top: 1px solid #ccc; }
.convt td { font-weight: 600; }
.faster { color: #1b7f5c; } .slower { color: #c0492f; }
.bad td { background: #fbe9e5; }
dl { display: grid; grid-template-columns: minmax(7em, max-content) 1fr; gap: 2px 16px; }
dt { color: #666; } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 600px) { body { font-size: 14px; padding: 10px; } dl { display: block; } dd { margin: 0 0 6px; } }
"""


def write(record: Record, folder: Path) -> Path:
    """Write `folder/index.html` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(html(record), encoding="utf-8")
    return path


def html(record: Record) -> str:
    """Return the page."""
    groups = "".join(_group(group, problems, record.limits[group.setting]) for group, problems in record.groups())
    partial = "" if record.complete else "<p><strong>Interrupted: the results are partial.</strong></p>"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>convt: micro-benchmark</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Transposed convolution: convt and other libraries</h1>
<p>{escape(_machine_line(record))}</p>
{partial}
{groups or "<p>Nothing was measured.</p>"}
<h2>Method and columns</h2>
<p>{escape(tables.legend(record))}</p>
<p>Every result is compared with the definition of the operator before and after timing. A wrong result gets no time. Each
library runs in its own process, and the libraries take turns. A time is the smallest of the medians of the rounds. A star marks
a time during which other processes used more than {DISTURBED} cores.</p>
{_list("Notes", record.notes)}
<h2>Machine and versions</h2>
{_definitions(record)}
</body>
</html>
"""


def _machine_line(record: Record) -> str:
    here = record.about["machine"]
    return f"{here['cpu']}, {here['cores']} cores; {record.about['started']}"


def _group(group: Group, problems: list[list[Result]], limits: Limits) -> str:
    summary = "".join(f"<li>{escape(line)}</li>" for line in tables.summary(problems))
    roofline = _picture(
        "Roofline (numbers are those of the layers in the table)", plots.roofline, problems, limits, group.dtype
    )
    return f"""<h2>{escape(str(group))}</h2>
<p>Measured limits: {escape(tables.limits_line(limits))}.</p>
<ul>{summary}</ul>
{_picture("Speedup of convt over the fastest other library on each layer", plots.ratios, problems)}
{roofline}
{_table(problems, limits)}
"""


def _picture(caption: str, draw, *arguments) -> str:
    """Return a picture in two versions, for wide and for narrow screens, or an empty string if there is nothing to draw."""
    wide, narrow = draw(*arguments, wide=True), draw(*arguments, wide=False)
    if not wide:
        return ""
    return f"""<h3>{escape(caption)}</h3>
<picture><source media="(max-width: 600px)" srcset="{narrow}"><img src="{wide}" alt="{escape(caption)}"></picture>
"""


def _table(problems: list[list[Result]], limits: Limits) -> str:
    def cell(tag: str, name: str, text: str, *classes: str) -> str:
        classes += ("left",) * (name in tables.LEFT)
        return f'<{tag} class="{" ".join(classes)}">{escape(text)}</{tag}>'

    cold = tables.was_cold(problems)
    heads = tables.columns(cold)
    head = "".join(cell("th", name, name) for name in ("#", *heads))
    lines = []
    for number, rivals in enumerate(problems, 1):
        for index, result in enumerate(rivals):
            texts = dict(zip(heads, tables.row(result, rivals, limits, cold), strict=True))
            if index:
                texts["layer"] = ""
            faster = texts["speedup"]
            colour = {"speedup": ("faster" if float(faster[:-1]) >= 1 else "slower",)} if faster else {}
            cells = "".join(cell("td", name, text, *colour.get(name, ())) for name, text in texts.items())
            classes = ["first"] * (not index) + ["convt"] * (result.peer == "convt") + ["bad"] * (result.status == "WRONG")
            lines.append(f'<tr class="{" ".join(classes)}">{cell("td", "#", "" if index else str(number))}{cells}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _list(title: str, lines: list[str]) -> str:
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _definitions(record: Record) -> str:
    facts = {"command": f"{COMMAND} " + " ".join(record.about["command"])} | record.about["machine"] | record.versions
    lines = (f"<dt>{escape(name)}</dt><dd>{escape(_fact(value))}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(lines)}</dl>"


def _fact(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
