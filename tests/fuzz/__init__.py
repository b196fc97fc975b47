"""Fuzzing: random calls on random machines, each compared with the definition. docs/reliability.md says how to run it.

A case is a dict that fits one line of JSON: a problem, the way to call it, the memory layout of its arrays, and the machine
that plans are made for. `draw.py` makes a case from a seed, `perform.py` runs and checks it, `shrink.py` yields smaller cases
than a failing one, `report.py` counts, and `schedules.py` writes schedules as text, so that a finding can be replayed with the
same plans. Other fuzzers use `command.py` (options and the loop over seeds), `pool.py` (child processes that run cases) and
`shrinking.py` (the reduction of a failing case), too.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of cases.py
