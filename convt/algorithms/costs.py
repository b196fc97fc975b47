"""What work costs, and from which sizes on plans decide otherwise: all that decisions depend on beside the problem.

An algorithm says what its loops would do as counts: a dict of name -> how many, for each part that runs on its own (a class, a
task). `Costs.cycles` turns counts into cycles, by one rule that all share: what is fetched meanwhile overlaps with what is
computed,

    cycles = serial + max(compute, fetch) + HIDDEN * min(compute, fetch),

where each of the three is a sum of counts times costs. NAMES says what a name counts and on which side of the rule it stands.
What one costs is an efficiency (efficiencies.py), the same on all machines, times what the machine's constants make of a unit.
"""

import functools
from typing import NamedTuple

from .efficiencies import EFFICIENCIES

KIB, MIB = 1 << 10, 1 << 20

HIDDEN = 0.02  # the share of the shorter side that does not overlap
STREAMED = 0.2  # the same of data that memory gives and takes beside all other work
FMA_PORTS = 2  # vector multiply-adds that a core starts in a cycle,
LOAD_PORTS = 2  # its vector loads,
FMA_LATENCY = 4  # and cycles until a multiply-add's result can be added to


# ---------------------------------------------------------------- sizes


class Limits(NamedTuple):
    """Sizes from which on plans decide otherwise, in bytes unless a comment says more."""

    # Outputs beyond this are written by non-temporal stores, where rows are aligned to vectors.
    non_temporal: int
    # The same for depthwise, of data and output together: it does little but wait for memory.
    depthwise_non_temporal: int
    # The same for depthwise, where outputs can be written in the order in which they lie in memory.
    depthwise_ordered: int
    # The same for direct on vectors, in either layout: its weights and rows leave a large last-level cache room for outputs.
    direct_non_temporal: int
    # The same for direct on AMX, of data and output together.
    amx_non_temporal: int
    # GEMM tiles use ordinary stores: cores with 32 KiB of L1 (Intel's before Ice Lake) have few fill buffers, and non-temporal
    # stores hold those that fetch panels meanwhile.
    ordinary_stores: bool
    # Expected cycles of a call, below which a second thread costs more than it gains.
    single_thread_cycles: float
    # Floating-point operations of a call, below which a thread runs the same tasks at every call: it does them in less time
    # than it may have to wait for weights that another core's cache holds.
    pinned_flops: float
    # Packed weights of a one-shot call, from which on tasks pack what they multiply (on the fly)...
    pack_on_the_fly: int
    # ... if that packs no more than so many times as much.
    pack_on_the_fly_again: float
    # Weights of a task up to this stay in L2 beside its rows.
    near_weights: int
    # Packed weights up to this are taken to be in a core's cache when a call begins. More come from memory, because other
    # layers of a model ran since the last call.
    kept_weights: int
    # Weights, or inputs of scatter and depthwise, beyond this do not stay in L2.
    far: int
    # Depth up to which a tile is done so soon that the work between tiles counts.
    shallow_depth: int
    # Data and output of a block of planes (NCX), which is computed in NXC order.
    planes_block: int
    # The same of a block of float16 or bfloat16, which is computed in float32.
    wide_block: int
    # Lines so far apart fall into the same set of L1, which holds 8 or 12 of them.
    same_set: int
    # What a strip of rows and the panels that it meets may take of L1.
    strip: int


def limits(l1, l2, l3):
    """The limits of a CPU with caches of these sizes."""
    return Limits(
        non_temporal=min(16 * MIB, l3 // 4),
        depthwise_non_temporal=min(80 * MIB, l3),
        depthwise_ordered=80 * MIB,
        direct_non_temporal=max(min(16 * MIB, l3 // 4), min(44 * MIB, l3 // 8)),
        amx_non_temporal=44 * MIB,
        ordinary_stores=l1 <= 32 * KIB,
        single_thread_cycles=13_000,
        pinned_flops=50e6,
        pack_on_the_fly=256 * KIB,
        pack_on_the_fly_again=2,
        near_weights=l2 >> 3,
        kept_weights=l2,
        far=512 * KIB,
        shallow_depth=32,
        planes_block=2 * l2,
        wide_block=l2 // 2,
        same_set=4 * KIB,
        strip=l1 // 3,
    )


# ---------------------------------------------------------------- costs

SERIAL, COMPUTE, FETCH = range(3)


class Name(NamedTuple):
    efficiency: str  # one of EFFICIENCIES: what one of it costs, in units of...
    constant: str  # ...what a constant of the machine makes of it (see `units`)
    unit: str  # what one of it is
    meaning: str  # what a CPU does for it
    side: int = SERIAL


NAMES = {
    # multiplying
    "tile_cycle": Name(
        "tile", "vector", "cycle of ports", "multiply-adds, loads or latency of a register tile, whichever limits it", COMPUTE,
    ),
    "dot_cycle": Name(
        "tile", "dots", "cycle of ports", "the same where a multiply-add is a dot product of two bfloat16", COMPUTE,
    ),
    "tile_call": Name("call", "call", "call of a tile", "call, addresses, prefetches", COMPUTE),
    "tile_accumulator": Name(
        "accumulator", "vector", "vector of accumulators", "its start and its store, once a call", COMPUTE,
    ),
    "amx_product": Name(
        "amx_tile", "product", "AMX product", "one multiplication of two AMX tiles, of one pair of bfloat16 parts", COMPUTE,
    ),
    "amx_call": Name("amx_tile", "product", "AMX accumulator", "its load and its store, once a call", COMPUTE),
    "rows_cycle": Name(
        "rows", "vector", "cycle of ports", "multiply-adds, loads or latency of a block of outputs in planes", COMPUTE,
    ),
    "call": Name("call", "call", "call of a micro-kernel", "what is no tile: a block of outputs, a transform of a chunk"),
    # weights
    "weight_byte": Name("weights_l2", "l2_byte", "byte of weights", "reading panels from L2"),
    "weight_byte_l3": Name(
        "weights_l3", "l3_byte", "byte of weights", "fetching panels that L2 does not hold, while tiles multiply", FETCH,
    ),
    "weight_byte_memory": Name(
        "memory", "memory_byte", "byte of weights", "fetching panels that L2 has not kept since the last call, once a call",
    ),
    "weight_byte_amx": Name(
        "memory", "l3_byte", "byte of weights", "panels of bfloat16 parts, which come slower than AMX tiles multiply them",
    ),
    "packed_byte": Name(
        "pack_weights", "vector_byte", "byte of packed weights", "packing beforehand, into memory of an earlier call",
    ),
    "packed_byte_new": Name(
        "pack_weights_new", "written_byte", "byte of packed weights", "packing beforehand, into new memory",
    ),
    "on_the_fly_byte": Name("pack_on_the_fly", "vector_byte", "byte of packed weights", "packing on the fly"),
    "transform_weights": Name("setup", "region", "one-shot call", "setting up the transform of the weights"),
    # work around the multiplications
    "move": Name("move", "vector", "vector", "loading it, changing it a little or not, and storing it"),
    "rest": Name("rest", "vector", "pixel of a packed row", "copying what is left of its channels beside whole vectors"),
    "collect": Name("collect", "vector", "vector of a channel's pixels", "copying it beside those of other channels"),
    "turn": Name("turn", "vector", "vector of a block", "transposing it between NCX and NXC"),
    "store": Name("store", "vector", "vector", "storing it from AMX accumulators or from a transform: with its address"),
    "zip": Name("zip", "vector", "vector of outputs", "putting it in order by shuffles"),
    "gather": Name("gather", "vector", "vector of outputs", "the same by a gather"),
    "single": Name("piece", "lanes", "vector of outputs", "the same one by one"),
    "amx_pack": Name("amx_pack", "vector", "step of depth of a row", "making its bfloat16 parts, or adding to them"),
    "amx_pack_panel": Name(
        "amx_panel", "vector", "vector of a step of depth", "making the bfloat16 parts of a panel of inputs",
    ),
    "start": Name("start", "call", "run of neighbours, or part of a row", "finding it and starting its loop"),
    "piece": Name("piece", "call", "piece of a row, of a tile or of a channel", "storing it alone, or adding it up"),
    "row": Name("source", "call", "row of a tile", "finding where it is read or stored"),
    "task": Name("task", "task", "task", "starting it"),
    # memory
    "in_byte_l3": Name("stall", "l3_byte", "byte that is read", "fetching what L2 does not hold"),
    "in_byte_memory": Name("stall", "memory_byte", "byte of input", "fetching input that the last-level cache does not hold"),
    "line": Name("stall", "l3_line", "line of a group's data", "coming back to it after the other groups"),
    "out_byte_l2": Name("out_l3", "l2_byte", "byte of output", "filling it beforehand where phases have no tap"),
    "out_byte_l3": Name("out_l3", "l3_byte", "byte of output", "ordinary stores of an output that L2 does not hold"),
    "out_byte_memory": Name(
        "stall", "written_byte", "byte of output", "writing output that the last-level cache does not hold",
    ),
    "out_byte_non_temporal": Name("out_non_temporal", "non_temporal_byte", "byte of output", "non-temporal stores"),
    "out_byte_split": Name(
        "out_split", "written_byte", "byte of output", "storing cache lines in parts, which caches have lost meanwhile",
    ),
    "plane_in_byte": Name("plane_in", "l3_byte", "byte of input planes", "fetching lines of many planes that L2 lacks"),
    # Winograd's transforms
    "wino_in_vector": Name(
        "transform_in", "vector", "vector of a transformed window", "loading, transforming and storing it, at each point",
    ),
    "wino_product_vector": Name("transform_out", "vector", "vector of products", "loading it and transforming it back"),
    "wino_output": Name("wino_output", "call", "output of a panel", "addresses, bias, activation, store"),
    # scatter's overlap-add
    "overlap_term": Name("overlap_term", "vector", "term of an output", "adding it, of less than a vector"),
    "overlap_vector_term": Name("overlap_vector", "vector", "term of a vector of outputs", "adding it"),
    "overlap_vector": Name("overlap_out", "vector", "vector of outputs, or less", "bias, activation, store"),
    "across_transpose": Name("across_turn", "vector", "channel of a vector of pixels", "transposing it"),
    # depthwise's rows
    "dw_fma": Name("dw", "vector", "operation on a vector", "multiplying and adding, or spreading an input over the lanes"),
    "dw_gathered_fma": Name(
        "dw_gathered", "vector", "multiply-add of a phase", "what is read of gathered inputs, once for all phases",
    ),
    "dw_weight": Name("weights_l2", "l2_vector", "vector of weights", "loading it"),
    "dw_store": Name("dw_store", "vector", "vector of outputs", "storing it"),
}


class Cycles(float):
    """Cycles that know where they come from: ``counts`` says how many of each (part, name) they hold.

    Sums, differences, multiples and the larger of two keep that: the model is linear in its values but for `max`.
    """

    __slots__ = ("counts",)

    def __new__(cls, value, counts):
        self = float.__new__(cls, value)
        self.counts = counts
        return self

    def __add__(self, other):
        counts = dict(self.counts)
        for key, count in getattr(other, "counts", {}).items():
            counts[key] = counts.get(key, 0.0) + count
        return Cycles(float(self) + float(other), counts)

    __radd__ = __add__

    def __mul__(self, factor):
        return Cycles(float(self) * factor, {key: count * factor for key, count in self.counts.items()})

    __rmul__ = __mul__

    def __sub__(self, other):
        return self + other * -1.0

    def __rsub__(self, other):
        return self * -1.0 + other

    def __truediv__(self, divisor):
        return self * (1 / divisor)


class Costs:
    """The costs of a part of an algorithm. They are the same for all parts; `TracedCosts` tell them apart."""

    def __init__(self, part, values):
        self.part, self.values = part, values
        self._rows = {name: (NAMES[name].side, value) for name, value in values.items()}

    def __getitem__(self, name):
        return self.values[name]

    def cycles(self, counts):
        """Cycles of what one part does: ``counts`` says how many of each name."""
        rows, totals = self._rows, [0.0, 0.0, 0.0]
        for name, count in counts.items():
            side, value = rows[name]
            totals[side] += value * count
        serial, compute, fetch = totals
        return serial + max(compute, fetch) + HIDDEN * min(compute, fetch)


class TracedCosts(Costs):
    """Costs whose cycles know where they come from."""

    def cycles(self, counts):
        totals = [0.0, 0.0, 0.0]
        for name, count in counts.items():
            side, value = self._rows[name]
            totals[side] += value * count
        shorter = FETCH if totals[FETCH] < totals[COMPUTE] else COMPUTE
        share = lambda name: HIDDEN if self._rows[name][0] == shorter else 1.0  # noqa: E731
        return Cycles(super().cycles(counts), {(self.part, name): share(name) * n for name, n in counts.items() if n})


class Profile:
    """What work costs on one machine: ``values`` has the cycles of each name, ``profile["direct"]`` adds up those of a part."""

    def __init__(self, name, values, traces=False):
        self.name, self.values, self._traces = name, values, traces
        self._costs = Costs("", values)

    @functools.cached_property
    def traced(self):
        """The same, whose cycles know where they come from."""
        return Profile(self.name, self.values, traces=True)

    def __getitem__(self, part):
        return TracedCosts(part, self.values) if self._traces else self._costs


def beside(cycles, memory):
    """Cycles of work and of the memory that it streams through the caches meanwhile."""
    longer, shorter = (cycles, memory) if cycles >= memory else (memory, cycles)
    return longer + shorter * STREAMED


def units(here, vector_bits):
    """What the constants of a machine make of one unit of work, in cycles."""
    vector = 2 / here.multiply_adds  # two operations on vectors start in a cycle, or one does where registers are halves
    return {
        "vector": vector,
        "vector_byte": vector / (vector_bits / 8),
        "lanes": here.call * vector_bits / 32,  # a call for each lane of a vector
        "dots": 2 / here.dots if here.dots else vector,
        "product": 1 / here.products if here.products else vector,
        "call": here.call,
        "task": here.task,
        "region": here.region,
        "l2_byte": 1 / here.l2_read,
        "l2_vector": vector_bits / 8 / here.l2_read,
        "l3_byte": 1 / here.l3_read,
        "l3_line": 64 / here.l3_read,
        "memory_byte": 1 / here.memory_read,
        "written_byte": 1 / here.memory_write,
        "non_temporal_byte": 1 / here.non_temporal,
    }


def profile_of(name, here, vector_bits, efficiencies=None):
    """The Profile of a machine, by its constants; with other efficiencies than EFFICIENCIES where they are given."""
    one, found = units(here, vector_bits), EFFICIENCIES if efficiencies is None else efficiencies
    return Profile(name, {key: found[about.efficiency] * one[about.constant] for key, about in NAMES.items()})
