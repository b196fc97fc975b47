"""What is printed of cases and of a run."""

from collections import Counter

_TEST = """
from fuzz.models.perform import agree


def test_that_convt_does_as_torch():
    agree('''
{}
''')
"""


def replayable(case, told):
    return case


def shown(case, told):
    """Yield the case as a test."""
    yield _TEST.format(case)


class Tally:
    """The numbers of sequences by outcome, and of their statements."""

    def __init__(self):
        self.outcomes, self.statements, self.without_error = Counter(), 0, 0

    def add(self, case, outcome):
        self.outcomes[outcome[0]] += 1
        if outcome[0] == "right":
            self.without_error += outcome[1][0]
            self.statements += outcome[1][1]

    def lines(self):
        yield f"{sum(self.outcomes.values())} sequences: " + ", ".join(f"{n} {outcome}" for outcome, n in self.outcomes.items())
        yield f"  of {self.statements} statements of right sequences, {self.without_error} raised no error"
