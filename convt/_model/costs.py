"""Costs and limits: everything that schedules depend on beside the problem.

An algorithm describes the work of its loops as counts, a dict name -> count for each class or task. `Costs.cycles` turns counts
into cycles. All algorithms use one rule, because fetching overlaps with computing:

    cycles = serial + max(compute, fetch) + EXPOSED * min(compute, fetch)

Each of the three sides is a sum of counts times costs. NAMES defines each count and its side. The cost of one count is an
efficiency (efficiencies.py), equal on all machines, times a unit of cost that follows from the machine's constants (`units`).
"""

import functools
from typing import NamedTuple

from .efficiencies import EFFICIENCIES

KIB, MIB = 1 << 10, 1 << 20

EXPOSED = 0.02  # the fraction of the shorter side that does not overlap with the longer one
EXPOSED_STREAM = 0.2  # the fraction that does not overlap when memory streams data beside all other work
FMA_PORTS = 2  # vector multiply-adds that a core starts per cycle
LOAD_PORTS = 2  # vector loads that a core starts per cycle
FMA_LATENCY = 4  # cycles until the next multiply-add can use the result of one as its addend


# ---------------------------------------------------------------- sizes


class Limits(NamedTuple):
    """Sizes from which on schedules decide otherwise, in bytes unless a comment gives another unit."""

    # Larger outputs are written with non-temporal stores if rows are aligned to vectors.
    non_temporal: int
    # depthwise uses non-temporal stores if data and output together exceed this, because it mostly waits for memory.
    depthwise_non_temporal: int
    # depthwise writes outputs in memory order if data and output together do not exceed this.
    depthwise_ordered: int
    # direct and turned write larger outputs with non-temporal stores. The limit is at least `non_temporal`, because weights and
    # rows leave room for outputs in a large last-level cache.
    direct_non_temporal: int
    # Register tiles use ordinary stores. Cores with 32 KiB of L1 (Intel before Ice Lake) have few fill buffers, and
    # non-temporal stores would occupy the buffers that fetch panels.
    ordinary_stores: bool
    # Calls of fewer expected cycles use one thread, because a second one costs more than it gains.
    single_thread_cycles: float
    # In calls of fewer floating-point operations each thread runs the same tasks at every call, because fetching weights from
    # another core's cache can take longer than the tasks.
    pinned_flops: float
    # One-shot calls with at least this many bytes of packed weights pack them on the fly ...
    pack_on_the_fly: int
    # ... if row blocks then pack at most this many times as many bytes.
    pack_on_the_fly_again: float
    # Weights of a task up to this size stay in L2 beside its rows.
    near_weights: int
    # Larger weights, and larger inputs of scatter and depthwise, do not stay in L2.
    far: int
    # Up to this depth the work between register tiles matters, because a tile takes few cycles.
    shallow_depth: int
    # Data and output of a block of `planes` (NCX data, computed in NXC order).
    planes_block: int
    # Data and output of a block of float16 or bfloat16 elements, computed in float32.
    wide_block: int
    # Cache lines at this distance share a set of L1, which holds 8 or 12 lines.
    same_set: int
    # The bytes of L1 for a strip of rows and its panels.
    strip: int


def limits(l1, l2, l3):
    """Return the Limits of a CPU with caches of these sizes in bytes."""
    return Limits(
        non_temporal=min(16 * MIB, l3 // 4),
        depthwise_non_temporal=min(80 * MIB, l3),
        depthwise_ordered=80 * MIB,
        direct_non_temporal=max(min(16 * MIB, l3 // 4), min(44 * MIB, l3 // 8)),
        ordinary_stores=l1 <= 32 * KIB,
        single_thread_cycles=13_000,
        pinned_flops=50e6,
        pack_on_the_fly=256 * KIB,
        pack_on_the_fly_again=2,
        near_weights=l2 >> 3,
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
    efficiency: str  # key of EFFICIENCIES: the cost of one in units of cost
    constant: str  # the unit of cost, a key of `units`
    unit: str  # the thing that is counted, in the singular
    meaning: str  # the work that the cost stands for, as `Plan.explain` prints it
    side: int = SERIAL


NAMES = {
    # multiplications
    "tile_cycle": Name(
        "tile", "vector", "cycle of ports", "multiply-adds, loads or latency of register tiles, whichever limits them", COMPUTE,
    ),
    "dot_cycle": Name(
        "tile", "dots", "cycle of ports", "bfloat16 dot products, loads or latency of register tiles, whichever limits them",
        COMPUTE,
    ),
    "tile_call": Name("call", "call", "call of a register tile", "calls, addresses and prefetches of register tiles", COMPUTE),
    "tile_accumulator": Name(
        "accumulator", "vector", "vector of accumulators of a call", "initialising and storing accumulators", COMPUTE,
    ),
    "amx_product": Name(
        "amx_tile", "product", "AMX product of a pair of bfloat16 parts", "AMX products", COMPUTE,
    ),
    "amx_call": Name("amx_tile", "product", "AMX accumulator of a call", "loading and storing AMX accumulators", COMPUTE),
    "rows_cycle": Name(
        "rows", "vector", "cycle of ports", "multiply-adds, loads or latency of output blocks of planes, whichever limits them",
        COMPUTE,
    ),
    "call": Name("call", "call", "kernel call", "calls of kernels other than register tiles: output blocks, transforms"),
    # weights
    "weight_byte": Name("weights_l2", "l2_byte", "byte of weights", "reading packed weights from L2"),
    "weight_byte_l3": Name(
        "weights_l3", "l3_byte", "byte of weights", "fetching packed weights outside L2, while tiles multiply", FETCH,
    ),
    "weight_byte_memory": Name(
        "memory", "memory_byte", "byte of weights", "fetching packed weights that L2 lost since the last call, once per call",
    ),
    "weight_byte_amx": Name(
        "weights_l2", "l3_byte", "byte of weights",
        "waiting for weights in bfloat16 parts, because AMX is faster than fetching",
    ),
    "packed_byte": Name(
        "pack_weights", "vector_byte", "byte of packed weights", "packing weights before the tasks, into reused memory",
    ),
    "packed_byte_new": Name(
        "pack_weights_new", "written_byte", "byte of packed weights", "packing weights before the tasks, into new memory",
    ),
    "on_the_fly_byte": Name("pack_on_the_fly", "vector_byte", "byte of packed weights", "packing weights on the fly"),
    "transform_weights": Name("setup", "region", "one-shot call", "setting up the transform of the weights"),
    # work beside the multiplications
    "move": Name("move", "vector", "vector", "copying vectors, with a conversion or without"),
    "rest": Name("rest", "vector", "pixel of a packed row", "copying the channels of pixels that fill no whole vector"),
    "collect": Name("collect", "vector", "vector of pixels of a channel", "copying pixels of a channel beside those of others"),
    "turn": Name("turn", "segments", "vector of a block", "transposing between NCX and NXC"),
    "store": Name("store", "vector", "vector", "storing vectors of AMX accumulators or of a transform"),
    "zip": Name("zip", "vector", "vector of outputs", "interleaving outputs by shuffles"),
    "gather": Name("gather", "vector", "vector of outputs", "interleaving or collecting outputs by gathers"),
    "single": Name("piece", "lanes", "vector of outputs", "interleaving outputs one by one"),
    "amx_pack": Name("amx_pack", "vector", "step of depth of a row", "splitting rows into bfloat16 parts"),
    "amx_pack_panel": Name(
        "amx_panel", "vector", "vector of a step of depth", "splitting panels of inputs into bfloat16 parts",
    ),
    "start": Name("start", "call", "run of contiguous elements", "finding contiguous elements and starting loops over them"),
    "piece": Name("piece", "call", "piece of a row, a tile or a channel", "storing or adding up pieces separately"),
    "row": Name("source", "call", "row of a tile", "finding the addresses of rows to read or store"),
    "task": Name("task", "task", "task", "starting tasks"),
    # memory
    "in_byte_l3": Name("stall", "l3_byte", "byte that is read", "fetching data outside L2"),
    "in_byte_memory": Name("stall", "memory_byte", "byte of input", "fetching input outside the last-level cache"),
    "line": Name("stall", "l3_line", "cache line of a channel group", "fetching cache lines again after other channel groups"),
    "out_byte_l2": Name("out_l3", "l2_byte", "byte of output", "filling outputs that no tap reaches"),
    "out_byte_l3": Name("out_l3", "l3_byte", "byte of output", "ordinary stores of output outside L2"),
    "out_byte_memory": Name(
        "stall", "written_byte", "byte of output", "writing output outside the last-level cache",
    ),
    "out_byte_non_temporal": Name(
        "out_non_temporal", "non_temporal_byte", "byte of output", "non-temporal stores of output",
    ),
    "out_byte_split": Name(
        "out_split", "written_byte", "byte of output", "storing cache lines in parts, with evictions in between",
    ),
    "plane_in_byte": Name("plane_in", "l3_byte", "byte of input planes", "fetching cache lines of many planes from outside L2"),
    # Winograd's transforms
    "wino_in_vector": Name(
        "transform_in", "vector", "vector of a transformed input tile", "Winograd input transform",
    ),
    "wino_product_vector": Name("transform_out", "vector", "vector of products", "Winograd output transform of products"),
    "wino_output": Name(
        "wino_output", "call", "output of a panel", "addresses, bias, activation and store of Winograd outputs",
    ),
    # scatter's overlap-add
    "overlap_term": Name("overlap_term", "vector", "term of an output", "overlap-add of terms that fill less than a vector"),
    "overlap_vector_term": Name("overlap_vector", "vector", "term of a vector of outputs", "overlap-add of vectors of terms"),
    "overlap_vector": Name(
        "overlap_out", "vector", "vector of outputs, or less", "bias, activation and store after overlap-add",
    ),
    "across_transpose": Name("across_turn", "vector", "channel of a vector of pixels", "transposing pixels into lanes"),
    # depthwise's rows
    "dw_fma": Name("dw", "vector", "vector operation", "multiply-adds, and spreading inputs over the lanes"),
    "dw_gathered_fma": Name(
        "dw_gathered", "vector", "multiply-add of a phase", "reading gathered inputs, once for all phases",
    ),
    "dw_weight": Name("weights_l2", "l2_vector", "vector of weights", "loading weights"),
    "dw_store": Name("dw_store", "vector", "vector of outputs", "storing outputs"),
}


class Cycles(float):
    """Cycles with the ``counts``, a dict (part, name) -> count, that they were computed from.

    Sums, differences, multiples and `max` keep the counts, because the model is linear in its costs except for `max`.
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
    """The costs of one part of a profile. Values are equal for all parts; only `TracedCosts` use the part."""

    def __init__(self, part, values):
        self.part, self.values = part, values
        self._rows = {name: (NAMES[name].side, value) for name, value in values.items()}

    def __getitem__(self, name):
        return self.values[name]

    def cycles(self, counts):
        """Return the cycles of ``counts``, a dict name -> count."""
        rows, totals = self._rows, [0.0, 0.0, 0.0]
        for name, count in counts.items():
            side, value = rows[name]
            totals[side] += value * count
        serial, compute, fetch = totals
        return serial + max(compute, fetch) + EXPOSED * min(compute, fetch)


class TracedCosts(Costs):
    """Costs that return `Cycles`, which keep their counts."""

    def cycles(self, counts):
        totals = [0.0, 0.0, 0.0]
        for name, count in counts.items():
            side, value = self._rows[name]
            totals[side] += value * count
        shorter = FETCH if totals[FETCH] < totals[COMPUTE] else COMPUTE
        share = lambda name: EXPOSED if self._rows[name][0] == shorter else 1.0  # noqa: E731
        return Cycles(super().cycles(counts), {(self.part, name): share(name) * n for name, n in counts.items() if n})


class Profile:
    """The costs of one machine: ``values`` has the cycles of each name, ``profile["direct"]`` the `Costs` of a part."""

    def __init__(self, name, values, traces=False):
        self.name, self.values, self._traces = name, values, traces
        self._costs = Costs("", values)

    @functools.cached_property
    def traced(self):
        """Return an equal profile whose cycles keep their counts."""
        return Profile(self.name, self.values, traces=True)

    def __getitem__(self, part):
        return TracedCosts(part, self.values) if self._traces else self._costs


def overlapped(cycles, memory):
    """Return the cycles of work with ``memory`` cycles of streaming that overlap with it."""
    longer, shorter = (cycles, memory) if cycles >= memory else (memory, cycles)
    return longer + shorter * EXPOSED_STREAM


def units(here, vector_bits):
    """Return the units of cost of a machine as a dict, name -> cycles."""
    vector = 2 / here.multiply_adds  # cycles to start two vector operations
    return {
        "vector": vector,
        "vector_byte": vector / (vector_bits / 8),
        "lanes": here.call * vector_bits / 32,  # one call per lane of a vector
        "segments": vector_bits / 128,  # one cycle per 16 bytes of a vector, which are transposed together
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
    """Return the Profile of a machine from its constants, with EFFICIENCIES unless others are given."""
    one, found = units(here, vector_bits), EFFICIENCIES if efficiencies is None else efficiencies
    return Profile(name, {key: found[about.efficiency] * one[about.constant] for key, about in NAMES.items()})
