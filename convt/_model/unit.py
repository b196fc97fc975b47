"""Units: the hardware that multiplies. UNITS lists them; a `Unit` describes one for a dtype and an instruction set."""

from typing import NamedTuple


class Hardware(NamedTuple):
    """The requirements and the precision of a unit."""

    does: str  # a phrase for `Plan.explain`: the algorithm multiplies "on AMX tiles"
    limit: str | None = None  # requirements on the CPU and the dtype, for error messages
    precision: str = "highest"  # the precision of float32 products; "auto" takes the unit if the caller permits it
    exact: str = ""  # a dtype whose products are exact, whatever ``precision`` says of float32


UNITS = {
    "vectors": Hardware("on vectors"),  # elements as stored, or widened to float32
    # Three bfloat16 parts of a float32, in six products; elements of other dtypes in one or two parts.
    "amx": Hardware("on AMX tiles", "AMX and a dtype other than float64"),
    # Two parts, in three products.
    "amx_two": Hardware("on AMX tiles, each float32 as two bfloat16 values", "AMX and float32", "high"),
    "amx_one": Hardware("on AMX tiles, each float32 as one bfloat16 value", "AMX and float32", "medium"),
    # Sums of pairs of products.
    "dots": Hardware(
        "with dot products of bfloat16", "AVX512_BF16 or FEAT_BF16, and float32 or bfloat16", "medium", "bfloat16"
    ),
}


class Unit(NamedTuple):
    """A unit as its compiled kernels describe it. Vectors are vectors of accumulators."""

    name: str
    vl: int  # elements of a vector
    nr: int  # columns of a panel
    mr: tuple  # the most rows of a register tile with 0, 1 and 2 vectors of columns
    wide: int  # the most rows of a register tile of two panels; 0 if there are no such kernels
    kstep: int  # in-channels per step of depth
    m_step: int  # rows are multiplied in multiples of this number
    lda: int  # elements between the starts of packed rows
    s_size: int  # bytes of a stored element
    e_size: int  # bytes of a packed element, all its parts together
    t_size: int  # bytes of an accumulator
    parts: int  # bfloat16 parts of an element on AMX; 0 on other units
    direct_store: bool  # register tiles store outputs themselves
    reach: int  # the largest distance of inputs that a permutation can bring into one vector

    @property
    def matrix(self):
        """Check whether the unit multiplies AMX tiles."""
        return self.parts > 0

    @property
    def products(self):
        """Return the number of AMX products of parts per product of elements."""
        if self.parts == 2 and self.s_size == 4:
            return 3
        return (1, 4, 6)[self.parts - 1]

    @property
    def task_rows(self):
        """Return the most rows of a task: 10 register tiles of 14, or 20 AMX tiles. A depth chunk takes 150 or 540 KiB."""
        return 320 if self.parts else 140

    @property
    def input_bytes(self):
        """Return the bytes of L2 for depth chunks packed at once. Only one panel has partial sums between these chunks."""
        return 1300 << 10 if self.parts else 640 << 10

    def padded(self, columns):
        """Round columns up to whole vectors."""
        return -(-columns // self.vl) * self.vl

    def filled(self, channels):
        """Round in-channels up to whole steps of depth, because taps do not share a step."""
        return -(-channels // self.kstep) * self.kstep


def unit_of(name, info):
    """Return the `Unit` of a result of `_core.kernel_info`, None for None."""
    return None if info is None else Unit(name=name, **{**info, "mr": tuple(info["mr"])})
