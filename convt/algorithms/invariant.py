"""invariant: `direct` in an order of sums that depends on the operator alone, not on sizes, positions, batch or layout.

The bits of an output are then the same wherever the output is computed: in a part of the data, in a chunk of a stream, in
another batch, in NXC or NCX. "auto" never takes it, because `direct` is as fast or faster.
"""

from . import order


def _schedule(problem, here, unit, threads, finite=True):
    """Return the schedule of `direct` for the problem with `order.invariant_order`."""
    return order.DIRECT.schedule(
        problem._replace(order=order.invariant_order(problem, finite, here)), here, unit, threads, finite
    )


STAGES = order.DIRECT._replace(
    schedule=_schedule, by_name=True, units=("vectors",),
    does="direct, with sums in an order that depends on the operator alone; for equal bits at all sizes",
)  # fmt: skip
