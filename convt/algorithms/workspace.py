"""Workspace of a thread: regions booked by name, each sized once."""

from typing import NamedTuple

_LINE = 64


class Workspace(NamedTuple):
    """Named regions, each in cache lines of its own."""

    regions: tuple  # of (name, offset, bytes)
    bytes: int

    def __getitem__(self, name):
        """The offset of a region."""
        return next(offset for each, offset, _ in self.regions if each == name)


def book(**sizes):
    """The `Workspace` of regions of these bytes, in this order.

    >>> book(rows=100, sums=64).regions
    (('rows', 0, 100), ('sums', 128, 64))
    """
    regions, offset = [], 0
    for name, size in sizes.items():
        regions.append((name, offset, size))
        offset += size + -size % _LINE
    return Workspace(tuple(regions), offset)
