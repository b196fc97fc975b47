"""What is printed of cases and of a run."""

import json
from collections import Counter


def replayable(case, told):
    return case


def shown(case, told):
    """Yield the case as JSON."""
    yield json.dumps(case)


class Tally:
    """The numbers of cases by outcome, and of those that convt computed, by function and transformation."""

    def __init__(self):
        self.outcomes, self.served, self.transforms = Counter(), Counter(), Counter()

    def add(self, case, outcome):
        self.outcomes[outcome[0]] += 1
        if outcome[1] is True:
            self.served[case["function"]] += 1
            self.transforms[case["transform"]] += 1

    def lines(self):
        yield f"{sum(self.outcomes.values())} cases: " + ", ".join(f"{n} {outcome}" for outcome, n in self.outcomes.items())
        for counted in (self.served, self.transforms):
            yield "  computed by convt: " + ", ".join(f"{n} {name}" for name, n in counted.most_common())
