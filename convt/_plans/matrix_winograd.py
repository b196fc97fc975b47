"""matrix_winograd: `winograd` with its products on the CPU's matrix unit, as those of `matrix`.

The transforms are the same, in float32; transformed data is stored as the three bfloat16 parts that the unit multiplies.
Numbers that they can't hold are left to `direct`.

The key of its weights is that of `winograd`, by this name.
"""

import functools

from . import winograd

LIMIT = "a CPU with a matrix unit (AMX), float32 and a phase of two or more taps one input apart"
cost = functools.partial(winograd.cost, matrix=True)
preparing = functools.partial(winograd.preparing, matrix=True)
recipe = functools.partial(winograd.recipe, matrix=True)
make = functools.partial(winograd.make, name="matrix_winograd", matrix=True)
