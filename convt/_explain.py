"""A plan in words: why this algorithm, what the others would cost, what limits it."""

import math

from . import _words
from .algorithms import ALGORITHMS, costs

# What an algorithm does, in a line; its page in convt/algorithms says how.
_DOES = {
    "direct": "a GEMM a phase, on register tiles",
    "dots": "a GEMM a phase, by dot products of bfloat16",
    "matrix": "a GEMM a phase, on AMX tiles",
    "winograd": "Winograd's minimal filtering, on register tiles",
    "matrix_winograd": "Winograd's minimal filtering, on AMX tiles",
    "winograd6": "Winograd's minimal filtering with large tiles, less exact",
    "scatter": "products of all taps first, then their sums: for few out channels",
    "dots_scatter": "products of all taps by dot products of bfloat16, then their sums: for few out channels",
    "matrix_scatter": "products of all taps on AMX tiles, then their sums: for few out channels",
    "depthwise": "a vector of channels, or of pixels, at a time: for small groups and few channels",
    "rows": "pixels of a row in vectors, weights broadcast: for planes (NCX) of few channels",
    "unpacked": "a GEMM of all taps on the filter as it lies, for weights that come with a call",
    "turned": "direct with pixels as columns: for planes (NCX)",
    "matrix_turned": "matrix with pixels as columns: for planes (NCX)",
}
_SIDES = {costs.COMPUTE: "computing", costs.FETCH: "fetching weights", costs.SERIAL: "moving data and all else"}
_SHOWN = 5  # parts of the expected cycles


_PARTS = {"matrix_high": "two bfloat16", "matrix_medium": "one bfloat16"}  # what a float32 is multiplied as


def _does(name):
    """What an algorithm does, in a line."""
    if name in _DOES:
        return _DOES[name]
    unit = next(unit for unit in _PARTS if name.startswith(unit))
    return f"{_DOES[name.replace(unit, 'matrix')]}, a float32 as {_PARTS[unit]}"


def alternatives(problem):
    """{algorithm: expected cycles of all threads together, or None where it does not do the problem}, the least first, of those
    that "auto" may take."""
    found = {name: float(each.cost(problem)) for name, each in ALGORITHMS.items() if each.permitted(problem)}
    ordered = sorted(found, key=found.get)
    return {name: None if math.isinf(found[name]) else found[name] for name in ordered}


def explain(plan):
    """Several lines about a Plan."""
    if plan.backend != "native":
        return f"{plan.backend}: computes the problem as a whole; convt's cost model knows native algorithms alone"
    others = alternatives(plan.problem)
    least, own = min(cost for cost in others.values() if cost is not None), others.get(plan.algorithm)
    own = ALGORITHMS[plan.algorithm].cost(plan.problem) if own is None else own
    lines = [
        f"{plan.algorithm}: {_does(plan.algorithm)}",
        f"why: {_why(plan, own, least)}",
        f"runs: {_words.count(plan.tasks, 'task')} on {_words.count(plan.threads, 'thread')}, {plan.isa}",
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
    lines.append("the others, in expected cycles beside this one's:")
    for name, cost in others.items():
        if name != plan.algorithm and cost is not None:
            lines.append(f"  {name} {cost / own:.2f}")
    lines += [f"  {name} does not do this problem ({ALGORITHMS[name].limit})" for name, cost in others.items() if cost is None]
    return "\n".join(lines + ([f"note: {plan.note}"] if plan.note else []))


def _why(plan, own, least):
    if plan.note:
        return plan.note
    if own <= least:
        return f"it has the least expected cost, {own / 1e6:.3g} million cycles of all threads together"
    return f"it was asked for by name; of its {own / 1e6:.3g} million expected cycles the cheapest one takes {least / own:.2f}"
