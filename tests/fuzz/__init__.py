"""Fuzzing: random calls on random machines, each compared with the definition. docs/reliability.md says how to run it.

A case is a dict that fits one line of JSON: a problem, the way to call it, the memory layout of its arrays, and the machine
that plans are made for. `draw.py` makes a case from a seed, `perform.py` runs and checks it, `shrink.py` yields smaller cases
than a failing one, and `schedules.py` writes schedules as text, so that a finding can be replayed with the same plans.

The other fuzzers are folders of this one, each with modules of the same three names. All share `command.py` (options, the loop
over seeds, counts, findings, replay), `pool.py` (child processes that run cases) and `shrinking.py` (the reduction of a failing
case).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of cases.py
