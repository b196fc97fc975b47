"""What scatter's loops do, as counts: see convt.algorithms.costs."""

import math

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, machine
from .cutting import blocks_shown, joined_tasks, pixels_before
from .gathering import gathered_products, gathered_tasks


def gathered_cycles(problem, info):
    """Cycles of images whose outputs are gathered."""
    outputs, terms = gathered_products(problem)[0].shape
    part = machine.current().profile["scatter_gathered"]
    for threads in (1, 2):
        tasks = gathered_tasks(problem, info, threads)
        pixels = -(-problem.batch // tasks) * math.prod(problem.in_sizes)
        task = common.tile_counts(math.prod(problem.kernel) * problem.co, pixels, problem.ci, info)
        task["across_transpose"], task["across_start"] = problem.ci * -(-pixels // info["vl"]), 1
        image = {"gather_product": outputs * (1 + terms), "gathered_image": 1}
        cycles = tasks * part.cycles(task) + problem.batch * part.cycles(image)
        cycles = common.shared([(cycles, tasks)]) + part.cycles(memory_counts(problem))
        if cycles < machine.current().limits.single_thread_cycles:
            break
    return cycles


def _overlap_counts(problem, js, info):
    """What finishing the outputs of so many j of a row takes."""
    vl, lanes, terms = info["vl"], problem.strides[-1] * problem.co, pixels_before(problem) + 1
    if lanes <= vl and problem.groups == 1:
        return {"overlap_term": js * terms, "overlap_j": js}
    vectors = js * -(-lanes // vl)
    counts = {"overlap_vector_term": vectors * terms, "overlap_vector": vectors}
    if problem.groups > 1:  # outputs of several groups are stored one by one
        counts["overlap_lane"] = js * lanes
    return counts


def _across_counts(problem, pixels, js, columns, taps, chunks, packs, phases, joined, info):
    """What a row takes across: pixels transposed by vectors of channels, the GEMM, products put in the outputs' order."""
    vl, lanes, groups = info["vl"], problem.strides[-1] * problem.co, problem.groups > 1
    rows = 1
    if joined:
        rows = max(1, -(-problem.batch * math.prod(problem.in_sizes[:-1]) // joined_tasks(problem, 2)))
    vectors = -(-rows * pixels // vl) / rows
    depth = taps * problem.ci / max(chunks, 1)
    tiles = common.tile_counts(columns, rows * pixels, depth, info)
    counts = {name: count * chunks / rows for name, count in tiles.items()}
    counts["across_transpose"], counts["across_start"] = packs * problem.ci * vectors, packs / rows
    ordered = phases * lanes * -(-js // vl)  # vectors of outputs
    order = "across_zip" if lanes in (1, 2, 4) else "across_gather"
    counts[order + "_group" if groups else order] = ordered
    if groups:  # whose products stay near
        counts["across_term_group"] = ordered * (pixels_before(problem) + 1)
    if pixels_before(problem):
        counts["across_edge_group" if groups else "across_edge"] = columns
    if groups:
        counts["across_lane_group"] = phases * js * lanes
    counts["across_phase"] = phases
    return counts


def rows_packed(combo, rows, classes):
    """How many rows of pixels are packed for a row of a class: those of all its taps; where a task's rows, so many of so many
    classes, keep what they have packed, those of the last axis but one each once, and some before the first of them."""
    taps = math.prod(len(c.first_in) for c in combo)
    if not rows or not taps:
        return taps
    last = len(combo[-1].first_in)
    return min(taps, taps / last * (rows / classes + last - 1) / rows)


def row_cycles(problem, combo, blocks, slab, apart, joined, packs, info):
    """Cycles of one of the stretches that a row of a class is cut into."""
    counts = _row_counts(problem, combo, blocks, slab, apart, joined, packs, info)
    return machine.current().profile[cost_part(slab, info)].cycles(counts)


def cost_part(slab, info):
    """The part of the costs: vectors over pixels, over columns, or AMX tiles."""
    return "scatter_across" if slab else "matrix_scatter" if info["parts"] else "scatter"


def _row_counts(problem, combo, blocks, slab, apart, joined, packs, info):
    """What one of the stretches takes that a row of a class is cut into."""
    k, s, ci = problem.kernel[-1], problem.strides[-1], problem.ci
    j0, j1 = blocks_shown(problem)
    phases = math.prod(len(c.first_out) for c in combo)
    taps = math.prod(len(c.first_in) for c in combo)
    columns, js = phases * k * problem.co, (j1 - j0) / blocks
    pixels = -(-(problem.in_sizes[-1] + (blocks - 1) * (-(-k // s) - 1)) // blocks)
    if slab:
        chunks = taps if apart and packs < taps else 1
        return _across_counts(problem, pixels, js, columns, taps, chunks, packs, phases, joined, info)
    chunks = taps if apart else 1
    bytes = common.padded(columns, info) * taps * ci * info["e_size"]
    counts = common.weight_counts(bytes, common.filter_bytes(problem, info, columns))
    tiles = common.tile_counts(pixels, columns, taps * common.filled(ci, info) / max(chunks, 1), info)
    counts |= {name: chunks * count for name, count in tiles.items()}
    counts |= {name: phases * count for name, count in _overlap_counts(problem, js, info).items()}
    counts["row"], counts["row_tap"], counts["row_phase"] = 1, taps, phases
    if info["parts"]:
        steps, rest = divmod(ci, info["kstep"])
        counts["amx_pack"], counts["amx_pack_rest"] = packs * pixels * steps, packs * pixels * (rest > 0)
        partial = chunks * -(-ci // _core.KC) - 1  # depth chunks that add to what is there
        counts["amx_partial"] = -(-pixels // info["grain"]) * -(-columns // info["vl"]) * max(partial, 0)
        counts["amx_store"] = pixels * -(-columns // info["vl"])
    elif not apart or ITEMSIZE[problem.dtype] != info["e_size"]:  # else the GEMM reads them in place
        counts["pack_vector"] = packs * pixels * -(-ci // info["vl"])
    return counts


def memory_counts(problem):
    """What data takes that L2 does not hold, or not even the last level; tiles have prefetched some."""
    counts = common.memory_counts(problem)
    for sizes, channels, name in (
        (problem.in_sizes, problem.ci, "in_byte_memory"),
        (problem.out_sizes, problem.co, "out_byte_memory"),
    ):
        bytes = problem.batch * problem.groups * math.prod(sizes) * channels * ITEMSIZE[problem.dtype]
        counts[name] = bytes * common.far(bytes, machine.current().last_bytes)
    return counts
