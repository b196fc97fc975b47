"""What is printed of cases and of a run."""

from collections import Counter

import onnx.printer

from . import build

_TEST = """
from fuzz.graphs.perform import perform


def test_that_convt_does_as_onnxruntime():
    perform({})
"""


def replayable(case, told):
    return case


def shown(case, told):
    """Yield lines that describe a case: its model in ONNX's text syntax, the case as a test, and counts."""
    yield onnx.printer.to_text(build.build(case).model)
    yield _TEST.format(case)
    yield from (f"{n} {name}" for name, n in Counter(told).items())


class Tally:
    """Statistics: cases by outcome, and what the cases told."""

    def __init__(self):
        self.cases, self.told = Counter(), Counter()

    def add(self, case, outcome):
        self.cases[outcome[0]] += 1
        self.told.update(outcome[1])

    def served(self):
        """Return the share of the ConvTranspose nodes that convt computes, in models that ONNX Runtime runs."""
        kept = sum(n for name, n in self.told.items() if name.startswith("kept: "))
        return self.told["served"] / max(1, self.told["served"] + kept)

    def lines(self):
        yield f"{sum(self.cases.values())} graphs: " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.cases.items()))
        yield f"{self.served():.0%} of the ConvTranspose nodes computed by convt"
        yield from (f"  {n} {name}" for name, n in sorted(self.told.items(), key=lambda each: -each[1]))
