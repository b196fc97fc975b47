"""winograd6: `winograd` on six points an axis, F(4, 3) and F(5, 2).

Fewer multiplications again, and larger errors: about ten times those of the direct sum. Only where asked for by name.
"""

import functools

from . import winograd

LIMIT = winograd.LIMIT
cost = functools.partial(winograd.cost, kinds=winograd.LARGE)
make = functools.partial(winograd.make, kinds=winograd.LARGE, name="winograd6")
recipe = winograd.recipe
