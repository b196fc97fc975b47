"""Fuzzing of convt.torch: random models and random operations on them, each with convt and without, in Python source.

A case is a text of Python statements. `draw.py` writes it from a seed, with the statements of `steps.py`. `perform.py` executes
it twice, once with convt.torch and once with torch alone in its place, and compares both after each statement. `parts.py`
defines the names that the text uses, `tolerance.py` finds how far results may differ, and `shrink.py` yields smaller
texts. docs/reliability.md says how to run it.
"""
