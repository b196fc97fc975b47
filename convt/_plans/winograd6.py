"""winograd6: `winograd` on six points an axis, F(4, 3) and F(5, 2).

Fewer multiplications again, and larger errors: 5 to 40 times those of the direct sum, some hundreds on three axes. Only
where asked for by name.
"""

import functools

from . import winograd

LIMIT = winograd.LIMIT
cost = functools.partial(winograd.cost, kinds=winograd.LARGE)
make = functools.partial(winograd.make, kinds=winograd.LARGE, name="winograd6")
recipe = winograd.recipe
