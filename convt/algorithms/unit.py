"""Units: what multiplies. A `Unit` is a record of all that algorithms need to know of one, for a dtype and an instruction set.

======== =========================================== =======================================================
unit     multiplies                                  in precision (of float32)
======== =========================================== =======================================================
vectors  elements as they are                        highest
amx      bfloat16 parts on AMX tiles                 highest: three parts of a float32, six products
amx_two  two bfloat16 parts of a float32, on AMX     high: three products
amx_one  one bfloat16 part of a float32, on AMX      medium: one product
dots     pairs of bfloat16, by dot products          medium
======== =========================================== =======================================================
"""

from typing import NamedTuple

NAMES = ("vectors", "amx", "amx_two", "amx_one", "dots")


class Unit(NamedTuple):
    """Sizes are of the kernels that were compiled for the instruction set; a vector is one of accumulators."""

    name: str
    vl: int  # elements of a vector
    nr: int  # columns of a panel
    mr: tuple  # the most rows of a tile of 0, 1 and 2 vectors of columns
    wide: int  # the most rows of a tile of two panels; 0 where there are no such tiles
    kstep: int  # in-channels of a step of depth
    grain: int  # rows that are multiplied at least, there or not
    lda: int  # elements from one packed row to the next
    s_size: int  # bytes of an element as stored,
    e_size: int  # as packed (of all its parts),
    t_size: int  # and as summed
    parts: int  # bfloat16 parts of an element; 0 of units that multiply elements as they are
    direct_store: bool  # tiles store outputs themselves
    reach: int  # how far apart inputs of a vector may be to be permuted

    @property
    def matrix(self):
        """Whether it multiplies AMX tiles."""
        return self.parts > 0

    @property
    def products(self):
        """Products of bfloat16 parts for a product of elements: of AMX tiles."""
        if self.parts == 2 and self.s_size == 4:
            return 3
        return (1, 4, 6)[self.parts - 1]

    @property
    def task_rows(self):
        """The most rows of a task: 10 tiles of 14, or 20 AMX tiles. A depth chunk of its input is 150 or 540 KiB of L2."""
        return 320 if self.parts else 140

    @property
    def input_bytes(self):
        """Bytes of L2 for depth chunks that are packed at once: only one panel's partial sums wait between them."""
        return 1300 << 10 if self.parts else 640 << 10

    def padded(self, columns):
        """Columns in whole vectors."""
        return -(-columns // self.vl) * self.vl

    def filled(self, channels):
        """In-channels in whole steps of depth, as packed: those of a tap do not share one with the next tap's."""
        return -(-channels // self.kstep) * self.kstep


def unit_of(name, info):
    """The `Unit` of what `_core.kernel_info` says; None where there is none."""
    return None if info is None else Unit(name=name, **{**info, "mr": tuple(info["mr"])})
