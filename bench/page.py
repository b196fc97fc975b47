"""The HTML report: one page with embedded pictures, for screens of any width, light or dark."""

from __future__ import annotations

from html import escape
from pathlib import Path

from . import COMMAND, palette, plots, tables
from .machine import Limits
from .record import Group, Record
from .rounds import Result
from .shared import files

THEME = f"""
:root {{ color-scheme: light dark; --ink: #222; --pale: #666; --grid: #ddd; --paper: #fff; --bad: #fbe9e5;
  --faster: {palette.BLUE}; --slower: {palette.VERMILION}; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #ddd; --pale: #999; --grid: #3a3d42; --paper: #16181c; --bad: #45241c;
  --faster: {palette.SKY}; --slower: {palette.ORANGE}; }} }}
"""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1160px; margin: 0 auto;
  padding: 16px; }
h1 { font-size: 1.6em; line-height: 1.2; } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid var(--grid); }
p, li { max-width: 105ch; overflow-wrap: anywhere; }
figure { margin: 2em 0; } figcaption { font-weight: 600; }
.legend { list-style: none; padding: 0; margin: 6px 0; font-size: 13px; display: flex; flex-wrap: wrap; gap: 2px 16px; }
svg { overflow: visible; } .mark { width: 1px; height: 1px; margin: 0 12px 4px 6px; }
.plot { display: block; font-size: 11px; }
.roofline { margin: var(--wide) 12px 44px 52px; width: calc(100% - 64px); }
.bars { margin: 24px 150px 24px var(--left); width: calc(100% - 150px - var(--left)); }
.plot text { fill: currentColor; } .end { text-anchor: end; } .middle { text-anchor: middle; } .small { font-size: 10px; }
.plot .over { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.grid, .layer { stroke: var(--grid); } .layer { stroke-dasharray: 2 2; } .roof { stroke: currentColor; }
.plot path:hover, .plot g:hover rect { stroke: currentColor; stroke-width: 2px; }
.narrow { display: none; }
.scroll { overflow: auto; max-height: 90vh; }
table { border-collapse: collapse; font-size: 0.82em; }
th, td { padding: 2px 8px; text-align: right; white-space: nowrap; background: var(--paper); }
th { position: sticky; top: 0; z-index: 1; box-shadow: inset 0 -2px var(--pale); }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " \\25b2"; } th[aria-sort=descending] button::after { content: " \\25bc"; }
.left { text-align: left; }
.name { position: sticky; left: 0; } th.name { z-index: 2; }
.first td { border-top: 1px solid var(--grid); } .sorted .first td { border: 0; }
.again { color: var(--pale); } .sorted .again { color: inherit; }
.convt td { font-weight: 600; }
.faster { color: var(--faster); } .slower { color: var(--slower); }
.bad td { background: var(--bad); }
dl { display: grid; grid-template-columns: minmax(7em, max-content) 1fr; gap: 2px 16px; }
dt { color: var(--pale); } dd { margin: 0; overflow-wrap: anywhere; }
.notes { font-size: 0.82em; }
@media (max-width: 600px) {
  body { font-size: 14px; padding: 10px; } dl { display: block; } dd { margin: 0 0 6px; }
  .wide { display: none; } .narrow { display: inline; }
  .roofline { margin-top: var(--narrow); } .bars { margin-right: 44px; width: calc(100% - 44px - var(--left)); }
}
@media print { .scroll { overflow: visible; max-height: none; } .filter { display: none; } }
"""

# Sorts a table by the column that is clicked on and hides the rows that lack a word of the filter.
SCRIPT = """
for (const section of document.querySelectorAll("section")) {
  const table = section.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const [filter, input, count] = [".filter", "input", "output"].map(name => section.querySelector(name));
  filter.hidden = false;
  input.oninput = () => {
    const words = input.value.toLowerCase().split(/\\s+/);
    for (const row of rows) {
      const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
    count.value = `${rows.filter(row => !row.hidden).length} of ${rows.length} rows`;
  };
  heads.forEach((head, n) => head.querySelector("button").onclick = () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    table.classList.toggle("sorted", n > 0);
    body.append(...rows.slice().sort((a, b) => {
      const [one, two] = [a.cells[n], b.cells[n]], [x, y] = [one.dataset.value, two.dataset.value];
      if (x !== undefined && y !== undefined) return sign * (x - y);
      if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
      return sign * one.textContent.localeCompare(two.textContent);
    }));
  });
}
"""


def write(record: Record, folder: Path) -> Path:
    """Write `folder/index.html` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    files.write(path, html(record))
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
<style>{THEME}{STYLE}</style>
</head>
<body>
<h1>Transposed convolution: convt and other libraries</h1>
<p>{escape(_machine_line(record))}</p>
{partial}
{groups or "<p>Nothing was measured.</p>"}
<h2>Method</h2>
<p>Every result is compared with the definition of the operator before and after timing. A wrong result gets no time. Each
library runs in its own process, and the libraries take turns. A time is the smallest of the medians of the rounds.</p>
{_list("Notes", record.notes)}
<h2>Machine and versions</h2>
{_facts(record)}
<script>{SCRIPT}</script>
</body>
</html>
"""


def _machine_line(record: Record) -> str:
    here = record.about["machine"]
    return f"{here['cpu']}, {here['cores']} cores; {record.about['started']}"


def _group(group: Group, problems: list[list[Result]], limits: Limits) -> str:
    lines = [*tables.reached(problems, limits), *tables.summary(problems)]
    summary = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"""<section>
<h2>{escape(str(group))}</h2>
<p>Measured limits: {escape(tables.limits_line(limits))}.</p>
<ul>{summary}</ul>
{plots.ratios(problems)}
{plots.roofline(problems, limits, group.dtype)}
{_table(problems, limits)}
</section>
"""


def _table(problems: list[list[Result]], limits: Limits) -> str:
    """Return a table, with a filter above and footnotes below. Cells with a number have it as `data-value`, to sort by."""
    cold = tables.was_cold(problems)
    heads = ("#", *tables.columns(cold))
    meanings = tables.legend(cold)
    lines = []
    for number, rivals in enumerate(problems, 1):
        for index, result in enumerate(rivals):
            texts = dict(zip(heads, [str(number), *tables.row(result, rivals, limits, cold)], strict=True))
            cells = "".join(_cell(name, text, bool(index)) for name, text in texts.items())
            classes = ["first"] * (not index) + ["convt"] * (result.peer == "convt") + ["bad"] * (result.status == "WRONG")
            lines.append(f'<tr class="{" ".join(classes)}">{cells}</tr>')
    if any(result.disturbed for rivals in problems for result in rivals):
        meanings = meanings | {"*": tables.STAR_LEGEND}
    head = "".join(
        f'<th class="{_classes(name)}"><button title="{escape(meanings.get(name, ""))}">{escape(name)}</button></th>'
        for name in heads
    )
    rows = "\n".join(lines)
    return f"""<p class="filter" hidden>Click on a column to sort.
<label>Filter: <input type="search" placeholder="layer, library, ..."></label> <output></output></p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table></div>
{_definitions(meanings, "notes")}"""


def _classes(name: str) -> str:
    return " ".join(["left"] * (name in tables.LEFT) + ["name"] * (name == "layer"))


def _cell(name: str, text: str, again: bool) -> str:
    """Return a cell. ``again`` says whether the row above is about the same layer."""
    classes, value = [_classes(name)], ""
    if name not in tables.LEFT and (number := _number(text)) is not None:
        value = f' data-value="{number:g}"'
        if name in ("speedup", "cold speedup"):
            classes.append("faster" if number >= 1 else "slower")
    if again and name in ("#", "layer"):
        classes.append("again")
    return f'<td class="{" ".join(filter(None, classes))}"{value}>{escape(text)}</td>'


def _number(text: str) -> float | None:
    try:
        return float(text.strip("*%x"))
    except ValueError:
        return None


def _list(title: str, lines: list[str]) -> str:
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _facts(record: Record) -> str:
    facts = {"command": f"{COMMAND} " + " ".join(record.about["command"])} | record.about["machine"] | record.versions
    return _definitions({name: _fact(value) for name, value in facts.items()})


def _definitions(texts: dict[str, str], kind: str = "") -> str:
    lines = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in texts.items())
    return f'<dl class="{kind}">{"".join(lines)}</dl>'


def _fact(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
