"""What is printed of cases and of a run."""

import json
from collections import Counter


def replayable(case, plans):
    """Return a case that is replayed with the schedules of these plans."""
    return case | ({"schedules": list(dict.fromkeys(schedule for _, _, schedule in plans))} if plans else {})


def shown(case, plans):
    """Yield lines that describe how a case was computed."""
    for _, text, schedule in plans:
        yield f"plan: {text}"
        yield f"   {schedule}"


class Tally:
    """Statistics by instruction set: cases by outcome, calls, different plans, algorithms."""

    def __init__(self):
        self.cases, self.calls, self.plans, self.algorithms = Counter(), Counter(), {}, {}

    def add(self, case, outcome):
        isa = case["isa"]
        self.cases[isa, outcome[0]] += 1
        self.calls[isa] += len(case["calls"])
        for algorithm, text, _ in outcome[1]:
            self.plans.setdefault(isa, set()).add(hash((text, json.dumps(case["problem"], sort_keys=True))))
            self.algorithms.setdefault(isa, Counter())[algorithm] += 1

    def lines(self):
        for isa in dict.fromkeys(isa for isa, _ in self.cases):
            outcomes = {outcome: n for (of, outcome), n in self.cases.items() if of == isa}
            outcome_counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
            yield f"{isa}: {self.calls[isa]} calls in {sum(outcomes.values())} cases ({outcome_counts})"
            algorithms = self.algorithms.get(isa, Counter())
            algorithm_counts = ", ".join(f"{n} {algorithm}" for algorithm, n in algorithms.most_common())
            yield f"  {len(self.plans.get(isa, ()))} distinct plans: {algorithm_counts}"
