"""The workspace of a thread, as named regions of known size."""

from typing import NamedTuple

_LINE = 64


class Workspace(NamedTuple):
    """Named regions that share no cache lines."""

    regions: tuple  # (name, offset, bytes) of each region
    bytes: int

    def __getitem__(self, name):
        """Return the offset of a region in bytes."""
        return next(offset for each, offset, _ in self.regions if each == name)


def book(**sizes):
    """Return the `Workspace` of regions with these sizes in bytes, in this order.

    >>> book(rows=100, sums=64).regions
    (('rows', 0, 100), ('sums', 128, 64))
    """
    regions, offset = [], 0
    for name, size in sizes.items():
        regions.append((name, offset, size))
        offset += size + -size % _LINE
    return Workspace(tuple(regions), offset)
