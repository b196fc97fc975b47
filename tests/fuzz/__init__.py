"""Fuzzing: random calls on random machines, each held against the definition; docs/reliability.md says how to run it.

A case is a dict that one line of JSON holds: a problem, how it is called, how its arrays lie in memory, what machine plans are
made for. `draw.py` makes one of a seed, `perform.py` runs and checks it, `pool.py` does so in child processes, `shrink.py`
makes smaller what failed, `schedules.py` writes down what was decided, so that a finding is run again with the same plans.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where cases.py lies
