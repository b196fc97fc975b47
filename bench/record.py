"""The results of a run, and their JSON file.

The file is rewritten after every problem, so that it has all results so far even if the run ends early. What cannot be
rewritten, such as a pipe, is written once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from .machine import Limits
from .rounds import Result
from .shared import files, words
from .worker import Setting

FORMAT = 2  # version of the JSON format


class Group(NamedTuple):
    """The settings that all results of one table share."""

    dtype: str
    precision: str
    layout: str
    mode: str
    setting: Setting

    def __str__(self) -> str:
        threads, isa = self.setting
        cap = f", limited to {isa}" if isa else ""
        precision = f", precision {self.precision}" if self.precision != "highest" else ""
        return f"{self.dtype}{precision}, {self.layout}, {self.mode}, {words.count(threads, 'thread')}{cap}"


@dataclass
class Record:
    """The results of a run and the conditions of their measurement."""

    about: dict  # start, machine, command and options
    versions: dict[str, str] = field(default_factory=dict)
    limits: dict[Setting, Limits] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def note(self, text: str) -> None:
        """Add a note, unless it exists."""
        if text not in self.notes:
            self.notes.append(text)

    def groups(self) -> Iterator[tuple[Group, list[list[Result]]]]:
        """Yield each group with its problems. A problem is the list of the libraries' results."""

        def group_of(result: Result) -> Group:
            problem = result.problem
            return Group(problem.dtype, problem.precision, problem.layout, problem.mode, result.setting)

        for group, members in groupby(self.results, group_of):
            yield group, [list(rivals) for _, rivals in groupby(members, lambda result: result.problem)]

    def to_json(self) -> dict:
        """Return the content of the JSON file."""
        return self.about | {
            "format": FORMAT,
            "complete": self.complete,
            "versions": self.versions,
            "limits": [setting._asdict() | limits._asdict() for setting, limits in self.limits.items()],
            "notes": self.notes,
            "results": [result_to_json(result) for result in self.results],
        }

    def save(self, path: str) -> None:
        """Write the JSON file."""
        files.write(path, json.dumps(self.to_json(), indent=1) + "\n")


def result_to_json(result: Result) -> dict:
    """Return a result as an entry of the JSON file."""
    problem = result.problem
    return {
        "layer": problem.layer.to_row(),
        "dtype": problem.dtype,
        "precision": problem.precision,
        "layout": problem.layout,
        "mode": problem.mode,
        "bias": problem.with_bias,
        "threads": result.setting.threads,
        "isa": result.setting.isa,
        "peer": result.peer,
        "status": result.status,
        "how": result.how,
        "error": _finite(result.error),
        "seconds": result.seconds,
        "gflops": result.gflops,
        "noise": result.noise,
        "disturbed": result.disturbed,
        "rounds": result.rounds,
        **({"cold_seconds": result.cold_seconds, "cold_rounds": result.cold} if result.cold else {}),
    }


def _finite(value: float | None) -> float | None:
    """Return None for infinity and NaN, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------- comparisons shared by all outputs


def ours(rivals: list[Result]) -> Result | None:
    """Return convt's result among the results of one problem."""
    return next((result for result in rivals if result.peer == "convt"), None)


def ratio(result: Result, rivals: list[Result], cold: bool = False) -> float | None:
    """Return the speedup of convt over a library on the same problem, or None if a time is missing."""
    convt = ours(rivals)
    if convt is None or convt is result:
        return None
    own, other = (each.cold_seconds if cold else each.seconds for each in (convt, result))
    return other / own if own and other else None


def best_rival(rivals: list[Result]) -> Result | None:
    """Return the result of the fastest other library, or None if there is no time."""
    timed = (result for result in rivals if result.peer != "convt" and result.seconds)
    return min(timed, key=lambda result: result.seconds, default=None)
