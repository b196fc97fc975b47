"""rows: vectors run along the pixels of a row (NCX), weights are broadcast; no GEMM operand is packed.

The key of its weights is ``("rows",)``.
"""

import math

from .. import common, execution, machine
from ..direct import plan as direct
from ..planes.plan import make_by_blocks
from . import counts, cutting
from .loops import MOST_PHASES, RowsPlan
from .weights import RowsRecipe

LIMIT = "it wants channels as planes (NCX), and a tap in each phase of the last axis"
MOST_TABLE = 1 << 22  # entries of the tables of weights


def cost(problem):
    if not problem.planar or not takes(problem):
        return math.inf
    return counts.cost(problem, machine.current())


def takes(problem):
    s, d, k = problem.strides[-1], problem.dilations[-1], problem.kernel[-1]
    if problem.ci * math.prod(problem.out_shape) == 0 or s // math.gcd(s, d) > k or math.gcd(s, d) > 1 or s > MOST_PHASES:
        return False
    return math.prod(problem.kernel) * problem.co <= MOST_TABLE and max(d, abs(problem.begin[-1])) < 2**31


def recipe(attributes, filter, bias, key):
    groups = cutting.phase_groups(attributes)
    info = machine.current().info(attributes.dtype)
    found, _ = cutting.blocks(attributes.co, groups, info["mr"][2])
    return RowsRecipe(attributes.dtype, filter, bias, [(block.taps, block.channels) for block in found])


def make(problem, recipe, packed, in_strides, out_strides, threads):
    key = ("rows",)
    if not packed(key).finite:  # the zeros beside a row must not meet NaN or infinity
        return make_by_blocks(direct.cost, direct.make, problem, recipe, packed, in_strides, out_strides, threads)
    here = machine.current()
    info, cycles = here.info(problem.dtype), cost(problem)
    cut = cutting.cut_rows(problem, info, common.threads(cycles, threads))
    groups = cutting.phase_groups(problem)
    found, channel_blocks = cutting.blocks(problem.co, groups, info["mr"][2])
    bounds = cutting.channel_blocks(problem.co, groups, info["mr"][2])
    each, packing = len(found) // channel_blocks, recipe(key)
    outgrows = execution.outgrows(problem, here.limits.non_temporal)
    how = execution.execution(problem, here, info, out_strides, False, cycles, packing.weight_bytes, False)
    spec = {
        "outer": [common.reaching(problem, ax) for ax in range(problem.rank - 1)],
        "offsets": [groups[block.group].offsets for block in found],
        "places": [(block.channels - bounds[n // each]) * problem.strides[-1] + block.phases for n, block in enumerate(found)],
        "bounds": bounds,
        "cut": cut,
        "begin": problem.begin[-1],
        "out": problem.out_sizes[-1],
        "stream": outgrows,
    }
    return RowsPlan(problem, packing, in_strides, out_strides, how, spec), key
