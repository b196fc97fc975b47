"""Every constant of the cost models and of the decisions that speed depends on: name, unit, meaning, value per CPU profile.

An algorithm says what its loops would do as counts: a dict of name -> how many, for each part that runs on its own (a class, a
task). `Costs.cycles` turns counts into cycles, by one rule that all share: what is fetched meanwhile overlaps with what is
computed,

    cycles = serial + max(compute, fetch) + HIDDEN * min(compute, fetch),

where each of the three is a sum of counts times costs. NAMES says what a name counts and on which side of the rule it stands;
VALUES has the cost of one, in cycles, for each profile of a CPU. `python -m bench.calibrate` fits these values to a machine.
"""

import functools
from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20

HIDDEN = 0.02  # the share of the shorter side that does not overlap
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
        single_thread_cycles=8_000,
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
    unit: str  # what one of it is
    meaning: str  # what a CPU does for it
    side: int = SERIAL


NAMES = {
    # register tiles of a GEMM
    "tile_cycle": Name("cycle of ports", "multiply-adds, loads or latency of a register tile, whichever limits it", COMPUTE),
    "dot_cycle": Name("cycle of ports", "the same where a multiply-add is a dot product of two bfloat16", COMPUTE),
    "tile_call": Name("call of a tile", "call, addresses, prefetches", COMPUTE),
    "tile_accumulator": Name("vector of accumulators", "its start and its store, once a call", COMPUTE),
    "amx_product": Name("AMX product", "one multiplication of two AMX tiles, of one pair of bfloat16 parts", COMPUTE),
    "amx_call": Name("AMX accumulator", "its load and its store, once a call", COMPUTE),
    # weights
    "weight_byte": Name("byte of weights", "reading panels from L2"),
    "weight_byte_l3": Name("byte of weights", "fetching panels that L2 does not hold, while tiles multiply", FETCH),
    "weight_byte_l3_stall": Name("byte of weights", "what such panels cost beside"),
    "weight_byte_memory": Name("byte of weights", "fetching panels that the last-level cache does not hold"),
    "weight_byte_amx": Name("byte of weights", "panels of bfloat16 parts, which come slower than AMX tiles multiply them"),
    # rows of a GEMM
    "pack_vector": Name("vector", "copying a vector of a packed row"),
    "pack_rest": Name("pixel of a packed row", "copying what is left of its channels beside whole vectors"),
    "amx_pack": Name("step of depth of a row", "making the bfloat16 parts of a packed row"),
    "pack_run": Name("run of rows", "starting to pack rows that are neighbours in the input"),
    "row": Name("row", "finding where it is read and stored"),
    "edge_panel": Name("panel of a row", "a tile with a row that the window cuts"),
    "piece": Name("piece of a row", "storing outputs that are no whole panel"),
    "edge_piece": Name("piece of a row", "the same where the window cuts"),
    "narrow_vector": Name("vector of outputs", "rounding it to a type of 16 bits at the end of a tile"),
    "store_vector": Name("vector", "storing a vector of outputs"),
    "store_vector_split": Name("vector", "the same where pixels begin anywhere in a cache line"),
    "task": Name("task", "starting it"),
    # memory
    "in_byte_l3": Name("byte of input", "fetching input that L2 does not hold"),
    "in_byte_memory": Name("byte of input", "fetching input that the last-level cache does not hold"),
    "in_line": Name("line of a group's input", "coming back to it after the other groups"),
    "out_byte_l3": Name("byte of output", "ordinary stores of an output that L2 does not hold"),
    "out_byte_memory": Name("byte of output", "writing output that the last-level cache does not hold"),
    "out_byte_non_temporal": Name("byte of output", "non-temporal stores"),
    "out_byte_split": Name("byte of output", "storing cache lines in parts, which caches have lost meanwhile or never held"),
    "out_line": Name("line of a group's output", "coming back to it after the other groups"),
    "fill": Name("call", "filling the output beforehand where phases have no tap"),
    "fill_byte": Name("byte of output", "the same"),
    "fill_byte_l3": Name("byte of output", "the same where L2 does not hold it"),
    # packing the weights of one-shot calls
    "packed_byte": Name("byte of packed weights", "packing beforehand, into memory of an earlier call"),
    "packed_byte_new": Name("byte of packed weights", "packing beforehand, into new memory"),
    "on_the_fly_byte": Name("byte of packed weights", "packing on the fly"),
    "on_the_fly_byte_amx": Name("byte of packed weights", "packing bfloat16 parts on the fly"),
    # by blocks: planes (NCX), and types of 16 bits
    "plane_in_vector": Name("vector of a block's input", "transposing it to NXC order"),
    "plane_out_vector": Name("vector of a block's output", "transposing it back"),
    "plane_block": Name("block", "starting it"),
    "wide_in_vector": Name("vector of a block's input", "widening it to float32"),
    "wide_out_vector": Name("vector of a block's output", "rounding it to a type of 16 bits"),
    "wide_byte_l3": Name("byte of a widened block", "fetching again what L2 has lost of it"),
    "wide_block": Name("block", "starting one that is widened"),
    # the GEMM turned round (NCX)
    "turned_pack_vector": Name("vector", "copying it to a panel of inputs"),
    "turned_pack_piece": Name("tap of a run of pixels", "starting to copy it"),
    "turned_store": Name("vector of outputs", "interleaving it by shuffles"),
    "turned_store_gathered": Name("vector of outputs", "interleaving it by a gather"),
    "turned_store_piece": Name("run of pixels of a channel", "starting to interleave its phases"),
    # rows (NCX)
    "rows_cycle": Name("cycle of ports", "multiply-adds, loads or latency of a block of outputs, whichever limits it", COMPUTE),
    "rows_call": Name("call of a micro-kernel", "the outputs of a block along a row"),
    "rows_source": Name("input row of such a call", "its address and that of its weights"),
    "rows_pack_vector": Name("vector of an input row", "copying it"),
    "rows_zip": Name("vector of outputs", "interleaving it by shuffles"),
    "rows_gather": Name("vector of outputs", "interleaving it by a gather"),
    "rows_single": Name("vector of outputs", "interleaving it one by one"),
    "rows_interleave": Name("channel of a row", "the call that interleaves its phases"),
    "rows_row": Name("part of an output row", "starting it"),
    # Winograd's transforms
    "wino_in_vector": Name("vector of a transformed window", "loading, transforming and storing it, at each point"),
    "wino_in_point": Name("point of a window", "finding it and calling the transform"),
    "wino_in_chunk": Name("depth chunk of a tile", "the call"),
    "amx_split_vector": Name("vector of a transformed window", "making its bfloat16 parts"),
    "amx_split_step": Name("step of depth of a window", "storing the bfloat16 parts of its points"),
    "wino_product_vector": Name("vector of products", "loading it and transforming it back"),
    "wino_output": Name("output of a panel", "addresses, bias, activation, store"),
    "wino_output_panel": Name("panel of a tile", "the call, beside AMX tiles"),
    "wino_zero_vector": Name("vector of products", "zeros where a point has no weights"),
    "wino_waiting_byte": Name("byte of points and products", "those of a task that do not stay in L2"),
    "transform_weights": Name("one-shot call", "setting up the transform of the weights"),
    #
    # scatter's overlap-add
    "row_tap": Name("input row of an output row", "finding it and calling the tiles"),
    "row_phase": Name("phase of an output row", "the call of its overlap-add"),
    "amx_pack_rest": Name("last step of depth of a row", "making the bfloat16 parts of one that is not whole"),
    "amx_partial": Name("AMX accumulator", "adding to the partial sums of the depth chunk before"),
    "amx_store": Name("vector of products", "storing it, from AMX accumulators"),
    "overlap_term": Name("term of an output", "adding it, where the lanes of a j are a vector or less"),
    "overlap_j": Name("j of a row", "storing its outputs, where they are a vector or less"),
    "overlap_vector_term": Name("term of a vector of outputs", "adding it"),
    "overlap_vector": Name("vector of outputs", "bias, activation, store"),
    "overlap_lane": Name("output of a group", "storing it alone"),
    "across_transpose": Name("channel of a vector of pixels", "transposing it"),
    "across_start": Name("stretch of pixels", "starting to transpose it"),
    "across_zip": Name("vector of outputs", "adding its products, and putting them in order by shuffles"),
    "across_gather": Name("vector of outputs", "the same by a gather"),
    "across_zip_group": Name("vector of outputs", "the same by shuffles, where groups are several"),
    "across_gather_group": Name("vector of outputs", "the same by a gather, where groups are several"),
    "across_term_group": Name("term of a vector of outputs", "adding it, where groups are several"),
    "across_lane_group": Name("output of a group", "storing it alone"),
    "across_edge": Name("column of a row", "the ends of its products, which are shifted"),
    "across_edge_group": Name("column of a row", "the same where groups are several"),
    "across_phase": Name("phase of an output row", "the call of its overlap-add"),
    "gather_product": Name("product of an output", "gathering it"),
    "gathered_image": Name("image", "the call that gathers its outputs"),
    #
    # depthwise's rows
    "dw_fma": Name("multiply-add of a vector", "whose input is loaded where it lies"),
    "dw_fma_few": Name("multiply-add of a vector", "the same, where an output has four terms or fewer"),
    "dw_fma_cell": Name("multiply-add of a vector", "of cells, whose lanes are the channels of several outputs"),
    "dw_fma_group": Name("multiply-add of a vector", "of groups of several channels, an input broadcast"),
    "dw_fma_group_few": Name("multiply-add of a vector", "the same with few accumulators, or a single tap"),
    "dw_fma_gathered": Name("multiply-add of a vector", "whose input was gathered before"),
    "dw_fma_broadcast": Name("multiply-add of a vector", "whose lanes have the same input"),
    "dw_fma_permuted": Name("multiply-add of a vector", "whose input is a vector permuted"),
    "dw_fma_permuted_sliding": Name("multiply-add of a vector", "the same, where terms share a permutation"),
    "dw_fma_permuted_2": Name("multiply-add of a vector", "whose input is two vectors permuted into one"),
    "dw_fma_permuted_2_sliding": Name("multiply-add of a vector", "the same, where terms share a permutation"),
    "dw_gathered_fma": Name("multiply-add of a phase", "what is read of gathered inputs, once for all phases"),
    "dw_edge_fma": Name("multiply-add of a vector", "what it takes more at the ends of a row, one output at a time"),
    "dw_load": Name("vector of a pixel", "loading it"),
    "dw_tile": Name("tile of dot products", "adding up the lanes of its accumulators"),
    "dw_stretch": Name("stretch of terms of a tile", "starting it"),
    "dw_weight": Name("vector of weights", "loading it from L1"),
    "dw_weight_l2": Name("vector of weights", "what it takes more from L2"),
    "dw_weight_l3": Name("vector of weights", "what it takes more from the last level"),
    "dw_call": Name("block of outputs of a vector", "start and end of its accumulators"),
    "dw_store": Name("vector of outputs", "storing it"),
    "dw_store_phase": Name("vector of outputs", "what it takes more where phases are stored one after the other"),
    "dw_store_crowded": Name("vector of outputs", "what it takes more where they fall into few sets of L1"),
    "dw_term": Name("term of a run", "its addresses"),
    "dw_row": Name("part of an output row", "starting it"),
    "dw_in_row": Name("input row of such a part", "finding it"),
    "dw_gather_row": Name("input row", "starting to gather it"),
    "dw_gather": Name("vector of inputs", "gathering it from afar"),
    "dw_gather_near": Name("vector of inputs", "gathering it from two vectors or less"),
    #
}

PROFILES = {
    "vectors_256": "vectors of 256 bits or less (AVX2, portable C)",
    "vectors_512_l1_32": "vectors of 512 bits, L1 of 32 KiB (Skylake to Cascade Lake, Zen 4)",
    "vectors_512_l1_48": "vectors of 512 bits, L1 of 48 KiB or more (Ice Lake and later), with AMX or without",
}

# Algorithm or part of one -> name -> cost of one in cycles, for the PROFILES in turn.
VALUES = {
    "direct": {
        "tile_cycle": (0.842, 1.0, 0.773),
        "dot_cycle": (0.842, 1.0, 3.09),
        "tile_call": (80.8, 40, 0),
        "tile_accumulator": (0, 3, 8.72),
        "weight_byte": (0.028, 0.012, 0.00902),
        "weight_byte_l3": (0.018, 0.12, 0.0561),
        "weight_byte_l3_stall": (0, 0.02, 0.0303),
        "weight_byte_memory": (0.0731, 0.15, 0),
        "pack_vector": (3.88, 6, 5.53),
        "pack_rest": (16, 6, 5.35),
        "pack_run": (131, 40, 30.3),
        "row": (0.000399, 5, 5.3),
        "edge_panel": (2.32, 3, 9.04),
        "piece": (19.4, 11, 12.4),
        "edge_piece": (0, 18, 14.5),
        "task": (976, 400, 1.49e03),
        "in_byte_l3": (0.0333, 0.03, 0.0234),
        "in_line": (0, 35, 0.000206),
        "out_byte_l3": (0, 0.05, 0),
        "out_byte_split": (0.0668, 0, 0.00994),
        "out_byte_non_temporal": (0, 0, 0),
        "out_line": (13.8, 8, 2.33),
        "narrow_vector": (6, 5, 5),
        "fill": (658, 600, 1.03e03),
        "fill_byte": (0.244, 0.05, 0.284),
        "fill_byte_l3": (0.115, 0.05, 0.0476),
    },
    # One call of a kernel does all tiles of a height.
    "direct_shallow": {
        "tile_cycle": (0.85, 0.85, 0.666),
        "dot_cycle": (0.85, 0.85, 2.66),
        "tile_call": (34, 34, 0),
        "tile_accumulator": (2.55, 2.55, 6.7),
        "weight_byte": (0.0102, 0.0102, 0.0614),
        "weight_byte_l3": (0.102, 0.102, 0.192),
        "weight_byte_l3_stall": (0.017, 0.017, 0.0192),
        "weight_byte_memory": (0.1275, 0.1275, 0.128),
        "pack_vector": (5.1, 5.1, 19.5),
        "pack_rest": (5.1, 5.1, 5.44),
        "pack_run": (34, 34, 153),
        "row": (4.25, 4.25, 0),
        "edge_panel": (2.55, 2.55, 2.83),
        "piece": (9.35, 9.35, 11.4),
        "edge_piece": (15.3, 15.3, 56.6),
        "task": (340, 340, 1.24e03),
    },
    "matrix": {
        "amx_product": (21, 21, 21),
        "amx_call": (14, 14, 14),
        "weight_byte": (0.012, 0.012, 0.012),
        "weight_byte_l3": (0.12, 0.12, 0.12),
        "weight_byte_l3_stall": (0.02, 0.02, 0.02),
        "weight_byte_memory": (0.15, 0.15, 0.15),
        "weight_byte_amx": (0.1, 0.1, 0.1),
        "amx_pack": (21, 21, 21),
        "pack_run": (115, 115, 115),
        "row": (11, 11, 11),
        "store_vector": (4.5, 4.5, 4.5),
        "store_vector_split": (7, 7, 7),
        "edge_panel": (3, 3, 3),
        "piece": (16, 16, 16),
        "edge_piece": (45, 45, 45),
        "task": (450, 450, 450),
        "in_byte_l3": (0.02, 0.02, 0.02),
        "in_byte_memory": (0.12, 0.12, 0.12),
        "in_line": (35, 35, 35),
        "out_byte_l3": (0.02, 0.02, 0.02),
        "out_byte_split": (0, 0, 0),
        "out_byte_non_temporal": (0.02, 0.02, 0.02),
        "out_line": (8, 8, 8),
        "fill": (600, 600, 600),
        "fill_byte": (0.05, 0.05, 0.05),
        "fill_byte_l3": (0.05, 0.05, 0.05),
    },
    # Little depth.
    "matrix_shallow": {
        "amx_product": (17.8, 17.8, 17.8),
        "amx_call": (11.9, 11.9, 11.9),
        "weight_byte": (0.0102, 0.0102, 0.0102),
        "weight_byte_l3": (0.102, 0.102, 0.102),
        "weight_byte_l3_stall": (0.017, 0.017, 0.017),
        "weight_byte_memory": (0.128, 0.128, 0.128),
        "weight_byte_amx": (0.085, 0.085, 0.085),
        "amx_pack": (17.8, 17.8, 17.8),
        "pack_run": (97.8, 97.8, 97.8),
        "row": (9.35, 9.35, 9.35),
        "store_vector": (3.82, 3.82, 3.82),
        "store_vector_split": (5.95, 5.95, 5.95),
        "edge_panel": (2.55, 2.55, 2.55),
        "piece": (13.6, 13.6, 13.6),
        "edge_piece": (38.2, 38.2, 38.2),
        "task": (382, 382, 382),
    },
    "packing": {
        "packed_byte": (0.4, 0.4, 0.4),
        "packed_byte_new": (1.3, 1.3, 1.3),
        "on_the_fly_byte": (0.15, 0.11, 0.11),
        "on_the_fly_byte_amx": (0.15, 0.15, 0.15),
    },
    "planes": {
        "plane_in_vector": (3.0, 8.11, 8.11),
        "plane_out_vector": (3.0, 4.25, 4.25),
        "in_byte_l3": (0.4, 0.0539, 0.0539),
        "out_byte_l3": (0.28, 0.307, 0.307),
        "out_byte_non_temporal": (0.25, 0.244, 0.244),
        "plane_block": (8000, 4.41e04, 4.41e04),
        "wide_in_vector": (1.3, 3, 3),
        "wide_out_vector": (2.2, 4, 4),
        "wide_byte_l3": (0.15, 0.15, 0.15),
        "wide_block": (2000, 2000, 2000),
    },
    "turned": {
        "tile_cycle": (0.96, 0.811, 0.811),
        "tile_call": (1, 3.42, 3.42),
        "tile_accumulator": (0, 0.000216, 0.000216),
        "weight_byte": (0.002, 0.00779, 0.00779),
        "weight_byte_l3": (0.01, 0.128, 0.128),
        "weight_byte_l3_stall": (0.034, 0.0155, 0.0155),
        "weight_byte_memory": (0.07, 0.017, 0.017),
        "turned_pack_vector": (9.4, 6.93, 6.93),
        "turned_pack_piece": (41, 44.6, 44.6),
        "turned_store": (5.4, 8.59, 8.59),
        "turned_store_gathered": (6.8, 37.6, 37.6),
        "turned_store_piece": (1, 8.38, 8.38),
        "task": (730, 616, 616),
        "in_byte_l3": (0.02, 0.0232, 0.0232),
        "out_byte_l3": (0.45, 0.00734, 0.00734),
        "out_byte_non_temporal": (0.135, 0.0374, 0.0374),
        "fill": (600, 600, 600),
        "fill_byte": (0.05, 0.05, 0.05),
        "fill_byte_l3": (0.05, 0.05, 0.05),
    },
    "matrix_turned": {
        "amx_product": (23.1, 23.1, 23.1),
        "amx_call": (12.4, 12.4, 12.4),
        "amx_pack": (218, 218, 218),
        "weight_byte": (0.0151, 0.0151, 0.0151),
        "weight_byte_l3": (0.14, 0.14, 0.14),
        "weight_byte_l3_stall": (0.00998, 0.00998, 0.00998),
        "weight_byte_memory": (0.199, 0.199, 0.199),
        "turned_pack_vector": (8.79, 8.79, 8.79),
        "turned_pack_piece": (82.4, 82.4, 82.4),
        "turned_store": (0, 0, 0),
        "turned_store_gathered": (36.9, 36.9, 36.9),
        "turned_store_piece": (15.8, 15.8, 15.8),
        "task": (1.46e03, 1.46e03, 1.46e03),
        "in_byte_l3": (0.0776, 0.0776, 0.0776),
        "out_byte_l3": (0.0114, 0.0114, 0.0114),
        "out_byte_non_temporal": (0, 0, 0),
        "fill": (600, 600, 600),
        "fill_byte": (0.05, 0.05, 0.05),
        "fill_byte_l3": (0.05, 0.05, 0.05),
    },
    "rows": {
        "rows_cycle": (1.25, 0.892, 0.894),
        "rows_call": (1, 3.92, 25.3),
        "rows_source": (2.3, 4.78, 2.19),
        "rows_pack_vector": (2.5, 10.7, 9.37),
        "rows_zip": (0.6, 3.85, 1.71),
        "rows_gather": (8, 19.2, 16.2),
        "rows_single": (77, 75.6, 145),
        "rows_interleave": (2, 19.9, 18.3),
        "rows_row": (350, 150, 131),
        "in_byte_l3": (0.26, 0.0126, 0.0597),
        "out_byte_l3": (0.17, 0.0757, 0.128),
        "out_byte_non_temporal": (0.14, 0.0733, 0.155),
    },
    #
    "winograd": {
        "tile_cycle": (0.823, 1.0, 0.793),
        "tile_call": (101, 40, 44.1),
        "tile_accumulator": (0, 3, 0.679),
        "weight_byte": (0.00377, 0.012, 0.017),
        "weight_byte_l3": (0.0852, 0.12, 0.113),
        "weight_byte_l3_stall": (0.0261, 0.02, 0.0264),
        "weight_byte_memory": (0.0384, 0.15, 0.021),
        "wino_waiting_byte": (0.06, 0.06, 0.06),
        "wino_in_vector": (4.2, 7, 5.57),
        "wino_in_point": (6.59, 3, 3.15),
        "wino_in_chunk": (0.176, 24, 0),
        "wino_product_vector": (5.17, 3, 7.34),
        "wino_output": (29.7, 21, 13),
        "wino_zero_vector": (5, 5, 1.03),
        "piece": (16.4, 11, 10.3),
        "edge_piece": (56.5, 23, 17.7),
        "task": (2250, 1600, 3.23e03),
        "in_byte_l3": (0.021, 0.05, 0.0478),
        "in_line": (4.43, 25, 18.5),
        "out_byte_l3": (0.058, 0.06, 0.0257),
        "out_byte_non_temporal": (0.0557, 0, 0),
        "out_byte_split": (1.6, 2.0, 0.591),
        "out_line": (20.8, 9, 2.37),
        "fill": (779, 600, 1.44e03),
        "fill_byte": (0.28, 0.05, 0.29),
        "fill_byte_l3": (0.0165, 0.05, 0.0115),
        "transform_weights": (15000, 15000, 1.5e04),
    },
    "matrix_winograd": {
        "amx_product": (21, 21, 21),
        "amx_call": (14, 14, 14),
        "weight_byte": (0.012, 0.012, 0.012),
        "weight_byte_l3": (0.12, 0.12, 0.12),
        "weight_byte_l3_stall": (0.02, 0.02, 0.02),
        "weight_byte_memory": (0.15, 0.15, 0.15),
        "weight_byte_amx": (0.05, 0.05, 0.05),
        "wino_waiting_byte": (0.06, 0.06, 0.06),
        "wino_in_vector": (7, 7, 7),
        "wino_in_point": (3, 3, 3),
        "wino_in_chunk": (24, 24, 24),
        "amx_split_vector": (4, 4, 4),
        "amx_split_step": (20, 20, 20),
        "wino_product_vector": (4.6, 4.6, 4.6),
        "wino_output": (14, 14, 14),
        "wino_output_panel": (10, 10, 10),
        "wino_zero_vector": (5, 5, 5),
        "piece": (11, 11, 11),
        "edge_piece": (23, 23, 23),
        "task": (1600, 1600, 1600),
        "in_byte_l3": (0.05, 0.05, 0.05),
        "in_line": (25, 25, 25),
        "out_byte_l3": (0.1, 0.1, 0.1),
        "out_byte_non_temporal": (0, 0, 0),
        "out_byte_split": (2.0, 2.0, 2.0),
        "out_line": (9, 9, 9),
        "fill": (600, 600, 600),
        "fill_byte": (0.05, 0.05, 0.05),
        "fill_byte_l3": (0.05, 0.05, 0.05),
        "transform_weights": (15000, 15000, 15000),
    },
    #
    # vectors over columns
    "scatter": {
        "tile_cycle": (0.873, 1.05, 0.817),
        "dot_cycle": (0.873, 1.05, 3.27),
        "tile_call": (0, 42.0, 37.6),
        "tile_accumulator": (10.8, 3.15, 2.79),
        "weight_byte": (0.00228, 0.0126, 0.00617),
        "weight_byte_l3": (0.0721, 0.126, 0.0572),
        "weight_byte_l3_stall": (0.00981, 0.021, 0.0466),
        "weight_byte_memory": (0.293, 0.1575, 0),
        "pack_vector": (3.93, 5, 4.71),
        "row": (161, 150, 147),
        "row_tap": (284, 20, 25.1),
        "row_phase": (8.17, 100, 82.8),
        "overlap_term": (1.52, 3, 6.07),
        "overlap_j": (14.2, 2, 0),
        "overlap_vector_term": (1.1, 3.5, 4.18),
        "overlap_vector": (12.1, 2.5, 5.19),
        "overlap_lane": (2.19, 2, 2.35),
        "in_byte_l3": (0, 0.01, 0.014),
        "in_byte_memory": (0.00194, 0.05, 0.00842),
        "in_line": (0, 50, 56.3),
        "out_byte_l3": (0.0278, 0.04, 0.000181),
        "out_byte_memory": (0, 0.33, 0.14),
        "out_line": (0, 0, 0),
    },
    "matrix_scatter": {
        "amx_product": (21, 21, 21),
        "amx_call": (14, 14, 0),
        "weight_byte": (0.012, 0.012, 0.00329),
        "weight_byte_l3": (0.12, 0.12, 0.0448),
        "weight_byte_l3_stall": (0.02, 0.02, 0.0785),
        "weight_byte_memory": (0.15, 0.15, 0),
        "amx_pack": (16, 16, 14),
        "amx_pack_rest": (19, 19, 14.7),
        "amx_partial": (100, 100, 109),
        "amx_store": (5.5, 5.5, 0),
        "row": (90, 90, 303),
        "row_tap": (85, 85, 0),
        "row_phase": (340, 340, 136),
        "overlap_term": (5.25, 5.25, 4.48),
        "overlap_j": (3.5, 3.5, 4.22),
        "overlap_vector_term": (6.125, 6.125, 5.28),
        "overlap_vector": (4.375, 4.375, 7.59),
        "overlap_lane": (3.5, 3.5, 2.85),
        "in_byte_l3": (0.045, 0.045, 0.0474),
        "in_byte_memory": (0.18, 0.18, 0),
        "in_line": (50, 50, 0),
        "out_byte_l3": (0.01, 0.01, 0),
        "out_byte_memory": (0.13, 0.13, 0),
        "out_line": (0, 0, 0),
    },
    # vectors over pixels
    "scatter_across": {
        "tile_cycle": (0.885, 1.35, 1.13),
        "tile_call": (39.5, 54.0, 0),
        "tile_accumulator": (12.2, 4.05, 0.595),
        "across_transpose": (1.34, 4.7, 2.45),
        "across_start": (0, 150, 0),
        "across_zip": (0.74, 3, 13.3),
        "across_gather": (18.1, 20, 24.1),
        "across_zip_group": (0, 2.2, 4.17),
        "across_gather_group": (11.9, 6.7, 12.3),
        "across_term_group": (6.56, 0.6, 6.82),
        "across_lane_group": (0, 1.8, 0.591),
        "across_edge": (64.6, 40, 70.5),
        "across_edge_group": (40.2, 13.333, 41.2),
        "across_phase": (209, 130, 0),
        "in_byte_l3": (0.0622, 0.03, 0.0236),
        "in_byte_memory": (0.263, 0.06, 0.0463),
        "in_line": (3.12, 3, 17.7),
        "out_byte_l3": (0.0135, 0, 0.00548),
        "out_byte_memory": (1.01, 0.24, 0.278),
        "out_line": (0.000637, 0, 0.000273),
    },
    # small images, each output of which gathers its products
    "scatter_gathered": {
        "tile_cycle": (2.4, 1.35, 1.35),
        "tile_call": (6.2, 54.0, 54.0),
        "tile_accumulator": (4.23, 4.05, 4.05),
        "across_transpose": (0, 4.7, 4.7),
        "across_start": (149, 150, 150),
        "gather_product": (0.806, 0.75, 0.75),
        "gathered_image": (114, 130, 130),
        "in_byte_l3": (0.0069, 0.03, 0.03),
        "in_byte_memory": (0.06, 0.06, 0.06),
        "in_line": (3, 3, 3),
        "out_byte_l3": (0, 0, 0),
        "out_byte_memory": (0.24, 0.24, 0.24),
        "out_line": (0, 0, 0),
    },
    # phases side by side, which share what is loaded
    "depthwise": {
        "dw_fma": (1.34, 1.4, 1.4),
        "dw_fma_few": (0.91, 0.8, 0.8),
        "dw_fma_gathered": (1.63, 1.2, 1.2),
        "dw_gathered_fma": (2.43, 3, 3),
        "dw_fma_broadcast": (2.94, 0.42, 0.42),
        "dw_fma_permuted": (1.1, 1.1, 1.1),
        "dw_fma_permuted_sliding": (0.916667, 0.916667, 0.916667),
        "dw_fma_permuted_2": (1.5, 1.5, 1.5),
        "dw_fma_permuted_2_sliding": (1.25, 1.25, 1.25),
        "dw_edge_fma": (0, 0.8, 0.8),
        "dw_weight": (0, 0.7, 0.7),
        "dw_weight_l2": (7.38, 1.0, 1.0),
        "dw_weight_l3": (4, 4, 4),
        "dw_call": (0, 5, 5),
        "dw_store": (2.6, 1.5, 1.5),
        "dw_store_phase": (0.0335, 1.3, 1.3),
        "dw_store_crowded": (1.41, 2.5, 2.5),
        "dw_term": (0, 0.9, 0.9),
        "dw_row": (23.8, 130, 130),
        "dw_in_row": (0, 80, 80),
        "dw_gather_row": (77.1, 55, 55),
        "dw_gather": (5.5, 5.5, 5.5),
        "dw_gather_near": (9.01, 2.7, 2.7),
        "in_byte_l3": (0.106, 0.04, 0.04),
        "in_line": (0.011, 0, 0),
        "out_byte_l3": (0, 0.035, 0.035),
        "out_line": (0, 0, 0),
        "fill": (483, 600, 600),
        "fill_byte": (0, 0.05, 0.05),
        "fill_byte_l3": (0.338, 0.05, 0.05),
    },
    # a single phase
    "depthwise_stride_1": {
        "dw_fma": (0.564, 1.4, 0.676),
        "dw_fma_few": (1.15, 0.8, 1.25),
        "dw_fma_gathered": (0.863, 1.2, 1.23),
        "dw_gathered_fma": (1.41, 3, 3.18),
        "dw_fma_broadcast": (0.525, 0.525, 0.612),
        "dw_fma_permuted": (1.375, 1.375, 1.38),
        "dw_fma_permuted_sliding": (1.145833, 1.145833, 1.39),
        "dw_fma_permuted_2": (1.875, 1.875, 1.93),
        "dw_fma_permuted_2_sliding": (1.5625, 1.5625, 1.56),
        "dw_edge_fma": (0, 0.8, 1.49),
        "dw_weight": (0.0906, 0.7, 1.64),
        "dw_weight_l2": (6.03, 1.0, 0),
        "dw_weight_l3": (4, 4, 4),
        "dw_call": (0, 5, 0),
        "dw_store": (5.39, 1.5, 4.79),
        "dw_store_crowded": (2.5, 2.5, 2.5),
        "dw_term": (0.143, 0.9, 0.108),
        "dw_row": (263, 130, 0),
        "dw_in_row": (6.14, 80, 11.6),
        "dw_gather_row": (116, 55, 111),
        "dw_gather": (27.7, 5.5, 5.5),
        "dw_gather_near": (22.9, 2.7, 3.62),
        "in_byte_l3": (0, 0.04, 0.04),
        "in_line": (0, 0, 0),
        "out_byte_l3": (0, 0.035, 0.0601),
        "out_line": (0, 0, 0),
        "fill": (600, 600, 600),
        "fill_byte": (0.05, 0.05, 0.05),
        "fill_byte_l3": (0.05, 0.05, 0.05),
    },
    "depthwise_cells": {
        "dw_fma_cell": (1.54, 2.3, 0.00885),
        "dw_edge_fma": (0.516, 0.8, 3.95),
        "dw_weight": (0.308, 0.7, 0.338),
        "dw_weight_l2": (1.0, 1.0, 1),
        "dw_weight_l3": (4, 4, 4),
        "dw_call": (0.777, 5, 0.11),
        "dw_store": (0, 1.5, 0.00199),
        "dw_store_crowded": (2.5, 2.5, 2.5),
        "dw_term": (0.596, 0.9, 1.53),
        "dw_row": (126, 130, 1.16e03),
        "dw_in_row": (87.3, 80, 0),
        "dw_gather_row": (761, 55, 435),
        "dw_gather": (5.5, 5.5, 5.5),
        "dw_gather_near": (19.3, 2.7, 1.11),
        "in_byte_l3": (0.00864, 0.04, 0.349),
        "in_line": (0, 0, 0),
        "out_byte_l3": (0, 0.035, 0.0753),
        "out_line": (0, 0, 0),
    },
    "depthwise_groups": {
        "dw_fma_group": (0.6, 0.6, 0.486),
        "dw_fma_group_few": (0.585, 0.75, 0.614),
        "dw_edge_fma": (3.38, 0.8, 0.0695),
        "dw_weight": (0.0475, 0.7, 0.192),
        "dw_weight_l2": (0, 1.0, 0.00244),
        "dw_weight_l3": (0.317, 4, 1.45),
        "dw_call": (26.8, 5, 23.6),
        "dw_store": (2.57, 1.5, 2.06),
        "dw_store_phase": (1.5, 1.3, 0.00193),
        "dw_store_crowded": (0.262, 2.5, 1.72),
        "dw_term": (0, 0.9, 0.0584),
        "dw_row": (16.1, 130, 86.3),
        "dw_in_row": (454, 80, 67.2),
        "dw_gather_row": (10.5, 55, 348),
        "in_byte_l3": (0.131, 0.04, 0.242),
        "in_line": (0.000868, 0, 0),
        "out_byte_l3": (0, 0.035, 0.0323),
        "out_line": (0.00476, 0, 0.000201),
        "fill": (975, 600, 1.14e03),
        "fill_byte": (0.196, 0.05, 0.283),
        "fill_byte_l3": (0.015, 0.05, 0.00626),
    },
    "depthwise_dots": {
        "dw_fma": (0, 0.6, 0.6),
        "dw_load": (0.931, 0.55, 0.55),
        "dw_weight": (0.31, 0, 0),
        "dw_tile": (17.2, 36, 36),
        "dw_stretch": (10.7, 4, 4),
        "dw_row": (960, 190, 190),
        "dw_in_row": (62.1, 13, 13),
        "in_byte_l3": (0.0198, 0.04, 0.04),
        "in_byte_memory": (1.01, 0.4, 0.4),
        "in_line": (0.000338, 0, 0),
        "out_byte_l3": (1.17, 0.035, 0.035),
        "out_line": (0.000296, 0, 0),
        "fill": (5650, 600, 600),
        "fill_byte": (0.0968, 0.05, 0.05),
        "fill_byte_l3": (0.052, 0.05, 0.05),
    },
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
    """The costs of an algorithm, or of a part of one."""

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
    """The costs of all algorithms on one kind of CPU: ``profile["direct"]`` is a `Costs`."""

    def __init__(self, name, values, kind=Costs):
        self.name = name
        self._costs = {part: kind(part, some) for part, some in values.items()}

    @functools.cached_property
    def traced(self):
        """The same, whose cycles know where they come from."""
        return Profile(self.name, self.values(), TracedCosts)

    def __getitem__(self, part):
        return self._costs[part]

    def values(self):
        """part -> name -> cost."""
        return {part: dict(costs.values) for part, costs in self._costs.items()}


@functools.cache
def built_in(vector_bits, l1):
    """The profile of a CPU with such vectors and so many bytes of L1."""
    name = "vectors_256" if vector_bits < 512 else "vectors_512_l1_32" if l1 <= 32 * KIB else "vectors_512_l1_48"
    column = list(PROFILES).index(name)
    return Profile(name, {part: {name: values[column] for name, values in some.items()} for part, some in VALUES.items()})
