"""Schedules as Python expressions: a finding prints the schedules of its plans and can be replayed with them."""

import contextlib
import functools
import importlib
import math
import operator
import re

from convt.algorithms import planes, stages


def to_text(value):
    """Return a schedule as an expression that `from_text` evaluates. Module names distinguish classes with equal names."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = ", ".join(f"{name}={to_text(each)}" for name, each in zip(value._fields, value, strict=True))
        return f"{type(value).__module__.replace('.', '__')}__{type(value).__name__}({fields})"
    if isinstance(value, tuple):
        return f"({''.join(to_text(each) + ', ' for each in value)})"
    return repr(value)


def from_text(text):
    """Return the schedule that `to_text` wrote."""
    names = {"inf": math.inf, "nan": math.nan}
    for name in re.findall(r"\bconvt__\w+(?=\()", text):
        module, _, kind = name.rpartition("__")
        names[name] = getattr(importlib.import_module(module.replace("__", ".")), kind)
    return eval(text, {"__builtins__": {}}, names)


def _types(schedule):
    """Return the types that identify the algorithm: that of the schedule and that of a block inside."""
    return type(schedule), type(getattr(schedule, "inner", None))


@contextlib.contextmanager
def recording(forced=()):
    """Yield a function that returns the last requested schedule. Inside, that is the schedule of the plan just made. ``forced``
    are schedules as text. They replace those for the same problem, unit and threads."""
    forced = [from_text(text) for text in forced]
    original, last, key = stages.cached_schedule, [], operator.attrgetter("problem", "unit", "threads")

    @functools.wraps(original)
    def scheduled(*arguments, **keywords):
        found = original(*arguments, **keywords)
        for each in forced if found is not None else ():
            if _types(each) == _types(found) and key(each) == key(found):
                found = each
        last[:] = [found]
        return found

    scheduled.cache_clear = original.cache_clear
    modules = stages, planes.bind  # the modules that request schedules for plans
    for module in modules:
        module.cached_schedule = scheduled
    try:
        yield lambda: last[0] if last else None
    finally:
        for module in modules:
            module.cached_schedule = original
