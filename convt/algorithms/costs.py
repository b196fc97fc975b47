"""Every constant of the cost models and of the decisions that speed depends on: name, unit, meaning, value."""

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Limits:
    """Sizes from which on plans decide otherwise, in bytes unless a comment says more."""

    # Outputs beyond this are written by non-temporal stores, where rows are aligned to vectors.
    non_temporal: int
    # The same for depthwise, of data and output together: it does little but wait for memory.
    depthwise_non_temporal: int
    # The same for depthwise, where outputs can be written in the order in which they lie in memory.
    depthwise_ordered: int
    # The same for direct on AMX, of data and output together.
    amx_non_temporal: int
    # GEMM tiles use ordinary stores and all rows of a task meet one panel before the next. Cores with 32 KiB of L1 (Intel's before
    # Ice Lake) also have few fill buffers: non-temporal stores hold those that fetch panels meanwhile.
    panel_major: bool
    # Expected cycles of a call, below which a second thread costs more than it gains.
    single_thread_cycles: float
    # Floating-point operations of a call, below which a thread runs the same tasks at every call, as it does its tasks in less time
    # than it may have to wait for weights that another core's cache holds.
    pinned_flops: float
    # Packed weights of a one-shot call, from which on tasks pack what they multiply (on the fly)...
    pack_on_the_fly: int
    # ... if that packs no more than so many times as much.
    pack_on_the_fly_again: float
    # Weights of a task up to this stay in L2 beside its rows.
    near_weights: int
    # Weights, or inputs of scatter and depthwise, beyond this do not stay in L2.
    far: int
    # Outputs of a pixel, from which on the next pixel's are in another page.
    page: int
    # Depth up to which a tile is done so soon that the work between tiles counts.
    shallow_depth: int
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
        amx_non_temporal=44 * MIB,
        panel_major=l1 <= 32 * KIB,
        single_thread_cycles=8_000,
        pinned_flops=50e6,
        pack_on_the_fly=256 * KIB,
        pack_on_the_fly_again=2,
        near_weights=l2 >> 3,
        far=512 * KIB,
        page=3 * KIB,
        shallow_depth=32,
        same_set=4 * KIB,
        strip=l1 // 3,
    )
