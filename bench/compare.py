"""Comparison of convt's times in two runs.

The noise of a time is estimated from its rounds. A time is the smallest of its rounds, and the distance to the median of the
rounds is the noise. A change counts if it exceeds the noise of both runs together and also 10%. The second bound is needed
because the addresses of a process's arrays can change all rounds together, by that much on one layer in ten.

The speed of the machine may change between the runs. If both runs have times of other libraries of the same versions, the
median of their changes is the machine's change of speed, and the ratios of convt are divided by it.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import groupby
from statistics import median
from typing import NamedTuple

from . import COMMAND, command, tables
from .record import FORMAT, Group
from .shared import words
from .worker import Setting

LEAST = 10.0  # percent
KEY = ("dtype", "precision", "layout", "mode", "bias", "threads", "isa", "peer")
COLUMNS = ("layer", "before ms", "after ms", "ratio", "verdict")


def _read(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"not a result of format {FORMAT} of `{COMMAND} --json`")
    except (OSError, ValueError) as exc:
        raise argparse.ArgumentTypeError(f"{path}: {exc}") from exc
    for each in content["results"]:
        each.setdefault("precision", "highest")  # older files have no precision
    return content


def _by_key(content: dict) -> dict[tuple, dict]:
    return {(json.dumps(each["layer"]), *(each[word] for word in KEY)): each for each in content["results"]}


def _group(result: dict) -> str:
    """Return the settings of a result as text."""
    setting = Setting(result["threads"], result["isa"])
    group = Group(result["dtype"], result["precision"], result["layout"], result["mode"], setting)
    return f"{group}, bias" if result["bias"] else str(group)


class Change(NamedTuple):
    """One problem of convt in two runs."""

    old: dict
    new: dict
    ratio: float | None  # time after / time before, divided by the machine's change of speed; None if a time is missing
    noise: float  # smallest change of the ratio that counts

    @property
    def verdict(self) -> str:
        """Return "faster", "slower" or "within noise". Without a ratio, return the status after or "not compared"."""
        if self.new["status"] != "ok":
            return self.new["status"]
        if self.ratio is None:
            return "not compared"
        change = self.ratio - 1
        return "slower" if change > self.noise else "faster" if change < -self.noise else "within noise"

    @property
    def is_worse(self) -> bool:
        """Check whether convt is slower or no longer correct."""
        return self.verdict == "slower" or self.old["status"] == "ok" != self.new["status"]

    def row(self) -> list[str]:
        """Return the cells of `COLUMNS`."""
        times = [f"{each['seconds'] * 1e3:.3f}" if each["seconds"] else "-" for each in (self.old, self.new)]
        return [self.new["layer"]["name"], *times, f"{self.ratio:.3f}" if self.ratio else "-", self.verdict]

    def __str__(self) -> str:
        name = f"{self.new['layer']['name']} ({_group(self.new)})"
        if self.new["status"] != "ok":
            return f"{name}: {self.new['status']}, was timed before: {self.new['how']}"
        times = f"{self.old['seconds'] * 1e3:.3f} ms before, {self.new['seconds'] * 1e3:.3f} ms after"
        return f"{name}: {times}, {self.ratio - 1:+.1%} (noise {self.noise:.1%})"


def drift(before: dict, after: dict, pairs: list[tuple[dict, dict]]) -> float:
    """Return the median ratio, time after / time before, of the other libraries that have the same version in both runs."""
    same = {peer for peer, version in before["versions"].items() if after["versions"].get(peer) == version} - {"convt"}
    changes = [
        new["seconds"] / old["seconds"] for old, new in pairs if old["peer"] in same and old["seconds"] and new["seconds"]
    ]
    return median(changes) if changes else 1.0


def changes(before: dict, after: dict, least: float) -> tuple[list[Change], list[str]]:
    """Return the changes of convt's problems, and notes about the comparison. Changes below ``least`` count as noise."""
    old_results, new_results = _by_key(before), _by_key(after)
    pairs = [(old, new_results[key]) for key, old in old_results.items() if key in new_results]
    pace = drift(before, after, pairs)
    found, notes = [], []
    if pace != 1:
        notes.append(f"the other libraries took {pace:.3f} times as long after as before; ratios are divided by this factor")
    for field in ("cpu", "cores"):
        if before["machine"][field] != after["machine"][field]:
            notes.append(f"the machines differ: {before['machine'][field]} before, {after['machine'][field]} after")
    for old, new in pairs:
        if old["peer"] == "convt":
            ratio = new["seconds"] / old["seconds"] / pace if old["seconds"] and new["seconds"] else None
            found.append(Change(old, new, ratio, max(least, old["noise"] + new["noise"])))
    missing = sum(key not in new_results and old["peer"] == "convt" for key, old in old_results.items())
    if missing:
        partial = "" if after["complete"] else ", which is partial"
        notes.append(f"{words.count(missing, 'problem')} of the first run missing in the second{partial}")
    notes.append(f"compared {words.count(len(found), 'problem')}")
    return found, notes


def main(arguments: list[str]) -> int:
    parser = command.parser(
        "compare",
        "Compare the times of convt in two runs. The exit status is 1 if a layer is slower by more than the noise,\n"
        "or no longer correct.",
        "before.json after.json",
        "before.json after.json --least 5 --json changes.json",
        program=f"{COMMAND} compare",
    )
    parser.add_argument(
        "--least", type=float, default=LEAST, metavar="PERCENT", help=f"smallest change that counts (default: {LEAST:.0f})"
    )
    command.add_json(parser)
    parser.add_argument("before", type=_read, metavar="A.json", help="first run, written by --json")
    parser.add_argument("after", type=_read, metavar="B.json", help="second run, written by --json")
    options = parser.parse_args(arguments)
    found, notes = changes(options.before, options.after, options.least / 100)
    worse = [change for change in found if change.is_worse]
    with command.printing(options.json) as write_json:
        for group, members in groupby(found, lambda change: _group(change.new)):
            tables.draw(group, COLUMNS, [change.row() for change in members])
        if found:
            print("\nratio: time after / time before")
        for line in notes:
            print(line)
        for change in worse:
            print(f"slower: {change}")
        write_json({"notes": notes, "changes": [change._asdict() | {"verdict": change.verdict} for change in found]})
    if not any(result["peer"] == "convt" for result in options.after["results"]):
        print("the second run has no results of convt", file=sys.stderr)
        return 2
    return int(bool(worse))
