"""All that a run finds out, and the JSON file that keeps it.

The file is written anew after every problem, so whatever ends a run, what was measured until then is there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from .machine import Limits
from .rounds import Result
from .shared import words
from .worker import Setting

FORMAT = 2  # of the JSON file


class Group(NamedTuple):
    """What the results of one table have in common."""

    dtype: str
    precision: str
    layout: str
    mode: str
    setting: Setting

    def __str__(self) -> str:
        threads, isa = self.setting
        cap = f", at most {isa}" if isa else ""
        precision = f", precision {self.precision}" if self.precision != "highest" else ""
        return f"{self.dtype}{precision}, {self.layout}, {self.mode}, {words.count(threads, 'thread')}{cap}"


@dataclass
class Record:
    about: dict  # when, where and how it was measured
    versions: dict[str, str] = field(default_factory=dict)
    limits: dict[Setting, Limits] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def groups(self) -> Iterator[tuple[Group, list[list[Result]]]]:
        """For each group its problems, each as the list of the libraries' results."""

        def group_of(result: Result) -> Group:
            problem = result.problem
            return Group(problem.dtype, problem.precision, problem.layout, problem.mode, result.setting)

        for group, members in groupby(self.results, group_of):
            yield group, [list(rivals) for _, rivals in groupby(members, lambda result: result.problem)]

    def to_json(self) -> dict:
        return self.about | {
            "format": FORMAT,
            "complete": self.complete,
            "versions": self.versions,
            "limits": [setting._asdict() | limits._asdict() for setting, limits in self.limits.items()],
            "notes": self.notes,
            "results": [result_to_json(result) for result in self.results],
        }

    def save(self, path: str) -> None:
        """Replaces the file in one go."""
        new = f"{path}.new"
        with open(new, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=1)
            file.write("\n")
        os.replace(new, path)


def result_to_json(result: Result) -> dict:
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
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------- comparisons that every presentation makes


def ours(rivals: list[Result]) -> Result | None:
    return next((result for result in rivals if result.peer == "convt"), None)


def ratio(result: Result, rivals: list[Result], cold: bool = False) -> float | None:
    """How many times as fast convt is as this library on the same problem, where both were timed."""
    convt = ours(rivals)
    if convt is None or convt is result:
        return None
    own, other = (each.cold_seconds if cold else each.seconds for each in (convt, result))
    return other / own if own and other else None


def best_rival(rivals: list[Result]) -> Result | None:
    """The fastest of the others."""
    timed = (result for result in rivals if result.peer != "convt" and result.seconds)
    return min(timed, key=lambda result: result.seconds, default=None)
