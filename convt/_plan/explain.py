"""Text of `Plan.explain`: the algorithm, the reason for it, its expected cost, and the cost of the others."""

import math

from .._base import words
from .._model import costs, machine
from ..algorithms import ALGORITHMS, allowed, summary

_SIDES = {costs.COMPUTE: "computing", costs.FETCH: "fetching weights", costs.SERIAL: "moving data and all else"}
_SHOWN = 5  # number of the largest parts of the expected cycles to print


def alternatives(problem):
    """Return ``{key: expected cycles}`` of the algorithms that "auto" permits, in ascending order of cycles.

    Cycles are summed over all threads. They are None for an algorithm that does not support the problem. Algorithms on a unit
    that the instruction set in use lacks are left out.
    """
    here = machine.current()
    has = {each.unit: any(here.info(dtype, each.unit) for dtype in ("float32", "bfloat16")) for each in ALGORITHMS.values()}
    keys = [key for key in allowed(problem) if has[ALGORITHMS[key].unit]]
    found = {key: float(ALGORITHMS[key].cost(problem)) for key in keys}
    return {key: None if math.isinf(found[key]) else found[key] for key in sorted(found, key=found.get)}


def explain(plan):
    """Return the text of `Plan.explain`, several lines."""
    if plan.backend != "native":
        return f"{plan.backend}: computes the whole problem; convt's cost model covers native algorithms only"
    others = alternatives(plan.problem)
    least, own = min(cost for cost in others.values() if cost is not None), others.get(plan.key)
    own = ALGORITHMS[plan.key].cost(plan.problem) if own is None else own
    lines = [
        f"{plan.algorithm}: {summary(plan.key)}",
        f"why: {_why(plan, own, least)}",
        f"runs: {words.count(plan.tasks, 'task')} on {words.count(plan.threads, 'thread')}, {plan.isa}",
    ]
    total = sum(plan.cycles.values())
    if total:
        sides = dict.fromkeys(_SIDES, 0.0)
        for name, cycles in plan.cycles.items():
            sides[costs.NAMES[name.rpartition(".")[2]].side] += cycles
        shares = [f"{cycles / total:.0%} {_SIDES[side]}" for side, cycles in sides.items() if cycles]
        lines.append(f"what limits it: {', '.join(shares)}")
        for name, cycles in list(plan.cycles.items())[:_SHOWN]:
            lines.append(f"  {cycles / total:4.0%} {costs.NAMES[name.rpartition('.')[2]].meaning}")
    lines.append("expected cycles of the other algorithms, relative to this one:")
    for key, cost in others.items():
        if key != plan.key and cost is not None:
            lines.append(f"  {key} {cost / own:.2f}")
    unavailable = [key for key, cost in others.items() if cost is None]
    lines += [f"  {key}: unavailable (needs {ALGORITHMS[key].limit})" for key in unavailable]
    return "\n".join(lines)


def _why(plan, own, least):
    """Return the reason for a plan's algorithm; ``own`` is its expected cycles, ``least`` the lowest of all algorithms."""
    if plan.note:
        return plan.note
    if own <= least:
        return f"it has the lowest expected cost, {own / 1e6:.3g} million cycles of all threads together"
    return (
        f"requested by name, with {own / 1e6:.3g} million expected cycles; the cheapest algorithm has {least / own:.2f} times "
        f"as many"
    )
