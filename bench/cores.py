"""Distribution of the work of plans over many threads, computed and not measured: `python -m bench.cores --threads 4,16,64`.

For each layer and number of threads, convt makes a plan as on a machine with that number of cores, and the plan is not run. The
tables of the plan give the work of each task, and the plan says which thread runs which task. Plans are made for the
instruction set in use.

The efficiency is the speedup over the plan of one thread, divided by the number of threads. It is 100% if all threads are busy
to the end and do no more work than one thread would. "balance" in the JSON file does not count work that smaller tasks repeat.

Work is in cycles of the cost model if the plan has them (direct, winograd, turned), and in multiply-adds and outputs otherwise.
It is scaled to the cycles that the cost model expects for the layer.

Not modelled: the start and end of a parallel region, shared caches, cores of different speed, and memory. With `--bandwidth`,
the time to move data, filter and result once each is a lower bound of a layer's time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

import convt
from convt._model import costs, machine
from convt._plan.run import contiguous
from convt.algorithms import ALGORITHMS, common
from convt.algorithms.depthwise import bind as depthwise
from convt.algorithms.direct import bind as direct
from convt.algorithms.planes import bind as planes
from convt.algorithms.planes import cost as planes_cost
from convt.algorithms.rows import bind as rows
from convt.algorithms.scatter import bind as scatter
from convt.algorithms.scatter import schedule as scatter_schedule
from convt.algorithms.turned import bind as turned
from convt.algorithms.winograd import bind as winograd

from . import command
from .peers.convt import keywords
from .problem import DTYPES, PRECISIONS, Problem
from .shared import terminal, words

COUNTS = [4, 8, 16, 32, 64, 128]
_PART_PIXELS = 64  # threads divide the pixels of a run in multiples of this number (planes/loops.pyx)


# ---------------------------------------------------------------- the work of each task, in the order of tasks


def _block_sizes(total: int, block: int) -> np.ndarray:
    """Return the sizes of the blocks that ``total`` is divided into."""
    return np.diff([*range(0, total, block), total])


def _product(*axes) -> np.ndarray:
    """Return all products of one number per axis, the last axis fastest."""
    found = np.ones(1)
    for axis in axes:
        found = np.multiply.outer(found, np.asarray(axis, float)).ravel()
    return found


def _shares(sizes) -> np.ndarray:
    """Return sizes divided by the largest one. A plan's ``work`` is that of its largest task."""
    return np.asarray(sizes, float) / max(1, np.max(sizes))


def _direct_classes(tables: list, groups: int) -> list[np.ndarray]:
    """Return the work of the tasks of each of the `ClassTables`: rows fastest, then panels, then groups."""
    found = []
    for c, panels in ((each.decided, each.panels) for each in tables):
        widths = np.array([panel[0] for panel in panels])
        columns = np.add.reduceat(widths, range(0, len(widths), c.cut.panel_block))
        rows = _block_sizes(c.rows, c.cut.block)
        found.append(c.cut.cycles * _product(np.ones(groups), _shares(columns), _shares(rows)))
    return found


def _direct(problem, packing, ins, outs, how, tables, order) -> np.ndarray:
    return np.concatenate(_direct_classes(tables, problem.groups) or [np.zeros(0)])


def _winograd(schedule, packing, ins, outs, how, plain, classes, order) -> np.ndarray:
    problem = schedule.problem
    found, nr = _direct_classes(plain, problem.groups), machine.current().info(problem.dtype, schedule.unit).nr
    for c, *_ in classes:
        columns, rows = _block_sizes(c.columns, c.cut.panel_block * nr), _block_sizes(c.rows, c.cut.block)
        found.append(c.cut.cycles * _product(np.ones(problem.groups), _shares(columns), _shares(rows)))
    return np.concatenate(found)


def _turned(problem, packing, ins, outs, tables, schedule) -> np.ndarray:
    found = []
    for c in (each.decided for each in tables):
        ends = np.arange(c.tiles + 1)
        units = c.units // c.tiles * ends + np.minimum(ends, c.units % c.tiles)
        shares = _shares(np.diff(units[[*range(0, c.tiles, c.cut.panel_block), c.tiles]]))
        pixels = _shares(_block_sizes(c.pixels, c.cut.block))
        found.append(c.cut.cycles * _product(np.ones(problem.groups), shares, pixels))
    return np.concatenate(found)


def _taps_per_output(problem, ax: int) -> np.ndarray:
    """Return the number of taps that read an input, for each output of an axis."""
    s, d, begin, out = (axis[ax] for axis in (problem.strides, problem.dilations, problem.begin, problem.out_sizes))
    places = np.add.outer(np.arange(problem.in_sizes[ax]) * s, np.arange(problem.kernel[ax]) * d).ravel() - begin
    return np.bincount(places[(places >= 0) & (places < out)], minlength=out)


def _row_work(problem, block: int) -> np.ndarray:
    """Return the number of input rows that are added to each block of output rows, counted once per tap."""
    row_work = _product(np.ones(problem.batch), *(_taps_per_output(problem, ax) for ax in range(problem.rank - 1)))
    return np.add.reduceat(row_work, range(0, len(row_work), block))


def _depthwise(schedule, packing, ins, outs) -> np.ndarray:
    """Return the work of tasks: blocks of the last axis fastest, then lanes, then rows. Counts products and outputs."""
    problem, task = schedule.problem, schedule.task
    js = (np.arange(problem.out_sizes[-1]) + problem.begin[-1]) // problem.strides[-1] - task.j0
    block_work = np.stack([
        np.bincount(js // task.block, each, minlength=task.blocks)
        for each in (_taps_per_output(problem, -1) * problem.ci, np.ones(len(js)))
    ])  # fmt: skip
    lanes = _block_sizes(task.lanes, task.lane_block)
    count = problem.batch * math.prod(problem.out_sizes[:-1])
    row_work = _row_work(problem, task.rows)
    return _product(row_work, lanes, block_work[0]) + _product(_block_sizes(count, task.rows), lanes, block_work[1])


def _rows(schedule, packing, ins, outs) -> np.ndarray:
    """Return the work of tasks: blocks of the last axis fastest, then rows, groups. All taps of the last axis count."""
    problem = schedule.problem
    per = problem.ci * -(-problem.kernel[-1] // problem.strides[-1])
    made = _block_sizes(problem.batch * math.prod(problem.out_sizes[:-1]), schedule.rows)
    each = per * _row_work(problem, schedule.rows) + made
    return _product(np.ones(problem.groups), each, _block_sizes(schedule.js, schedule.block))


def _scatter(plan, schedule, *_) -> np.ndarray:
    """Return the work of tasks: groups fastest, then parts of a row, rows, images. The plan has the taps of each task."""
    problem = schedule.problem
    if schedule.form[0] == "gathered":
        return np.diff(problem.batch * np.arange(schedule.tasks + 1) // schedule.tasks).astype(float)
    per = problem.ci * problem.kernel[-1]
    rows = np.array([len(taps) + per * sum(taps) for taps in plan.taps_of_tasks()], float)
    j0, j1 = scatter_schedule.shown_js(problem)
    return rows * np.resize(np.repeat(_block_sizes(j1 - j0, schedule.block), problem.groups), len(rows))


# The module that makes plans, the name of their class, and the function that returns the work of their tasks.
_PLAN_CLASSES = [
    (direct, "DirectPlan", _direct),
    (winograd, "WinogradPlan", _winograd),
    (turned, "TurnedPlan", _turned),
    (depthwise, "DepthwisePlan", _depthwise),
    (rows, "RowsPlan", _rows),
    (scatter, "ScatterPlan", _scatter),
    (planes, "PlanesPlan", None),  # its tasks run other plans
]


@contextlib.contextmanager
def recorded_plans() -> Iterator[dict]:
    """Record the plans made within the context: id(plan) -> (function for the work of its tasks, arguments of the plan)."""
    made: dict = {}

    def recording(plan_class, task_work):
        def make(*tables):
            plan = plan_class(*tables)
            made[id(plan)] = partial(task_work, plan) if task_work is _scatter else task_work, tables
            return plan

        return make

    before = [getattr(module, name) for module, name, _ in _PLAN_CLASSES]
    try:
        for (module, name, task_work), plan_class in zip(_PLAN_CLASSES, before, strict=True):
            setattr(module, name, recording(plan_class, task_work))
        yield made
    finally:
        for (module, name, _), plan_class in zip(_PLAN_CLASSES, before, strict=True):
            setattr(module, name, plan_class)


# ---------------------------------------------------------------- threads


def slowest(plan, works: np.ndarray, threads: int) -> float:
    """Return the work after which the last thread is done. ``works`` has the work of each task."""
    shares, task_chunk = plan.task_shares(threads)
    if shares is not None:
        return max(float(works[share].sum()) for share in shares)
    busy = [0.0] * plan.threads(threads)
    for first in range(0, len(works), task_chunk):
        heapq.heapreplace(busy, busy[0] + float(works[first : first + task_chunk].sum()))
    return max(busy)


class Expected(NamedTuple):
    """The expected run of a layer's plan on a number of threads."""

    algorithm: str
    tasks: int
    threads: int  # used by the call, at most those available
    total: float  # cycles of all threads together
    cycles: float  # until the last thread is done
    workspace: int  # bytes of all threads
    scale: float  # cycles per unit of work

    @property
    def balance(self) -> float:
        return self.total / (self.threads * self.cycles) if self.cycles else 1.0


def _transpose_cycles(made: tuple, threads: int) -> tuple[float, float]:
    """Return the cycles to transpose a block of planes and its result: on one thread, and on several threads together."""
    schedule = made[0]
    problem, cut, here = schedule.problem, schedule.cut, machine.current()
    moving, memory = planes_cost.counts(problem._replace(planar=True), cut, schedule.wide, schedule.stream, here)
    prices = here.profile["planes"]
    cycles = costs.overlapped(prices.cycles(moving), prices.cycles(memory)) / max(cut.total, 1)
    runs, run = [cut.images, *(axis.out for axis in cut.axes)], 1
    whole = [problem.batch, *problem.out_sizes]
    while runs:
        run *= runs[-1]
        if runs.pop() < whole.pop():
            break
    pieces, runs = -(-run // _PART_PIXELS), math.prod(runs)
    shared = runs if pieces < min(runs, threads) else pieces
    return cycles, cycles * -(-shared // threads) / shared


def expected(problem: Problem, threads: int, scale: float | None = None) -> Expected:
    """Make the plan of a problem and compute its run. To compare two plans, pass the ``scale`` of the first to the second."""
    layer = problem.layer
    data = layer.data_shape if problem.layout == "NXC" else (layer.batch, layer.cin, *layer.size)
    with convt.num_threads(threads), recorded_plans() as made:
        attributes = keywords(problem) | {"backend": "native"}
        operator = convt.ConvTranspose(np.zeros(layer.filter_shape, DTYPES[problem.dtype]), **attributes)._plans
        canonical = operator.attributes.problem(data)
        call = contiguous(operator, canonical)
    plan = call.plan
    task_work, tables = made[id(plan)]
    in_blocks = task_work is None
    inner, (task_work, inner_tables) = (tables[1], made[id(tables[1])]) if in_blocks else (plan, (task_work, tables))
    works = task_work(*inner_tables)
    if len(works) != inner.tasks:
        raise AssertionError(f"{layer.name}: computed {len(works)} tasks, but the plan of {plan.algorithm} has {inner.tasks}")
    scale = scale or ALGORITHMS[call.form.key[0]].cost(tables[0].cut.problem if in_blocks else canonical) / max(works.sum(), 1)
    total, cycles = works.sum() * scale, slowest(inner, works, threads) * scale
    used, space = plan.threads(threads), plan.threads(threads) * plan.workspace
    if in_blocks:
        cut, parallel_blocks = tables[0].cut, tables[0].parallel_blocks
        one_thread, all_threads = _transpose_cycles(tables, used)
        total, cycles = cut.total * (total + one_thread), cut.total * (cycles + all_threads)
        if parallel_blocks:  # each thread takes whole blocks, which all cost the same
            cycles = slowest(plan, np.full(cut.total, total / cut.total), threads)
        else:  # all threads share one block's workspace
            space = used * inner.workspace + plan.workspace - inner.workspace
    # One thread fills the output in advance if there are empty phases (which no tap reaches).
    serial = machine.current().profile["direct"].cycles(common.fill_counts(canonical)) if plan.has_empty_phases else 0.0
    return Expected(plan.algorithm, plan.tasks, used, total + serial, cycles + serial, space, scale)


# ---------------------------------------------------------------- the table


def _row(problem: Problem, counts: list[int], bandwidth: float, clock: float) -> dict:
    one = expected(problem, 1)
    row: dict = {
        "layer": problem.layer.name,
        "dtype": problem.dtype,
        "layout": problem.layout,
        "cycles": one.cycles,
        "threads": {},
    }
    for threads in counts:
        found = expected(problem, threads, one.scale)
        cycles = max(found.cycles, problem.bytes / bandwidth * clock if bandwidth else 0.0)
        row["threads"][threads] = {
            "algorithm": found.algorithm,
            "tasks": found.tasks,
            "threads": found.threads,
            "efficiency": one.cycles / (threads * cycles),
            "balance": found.balance,
            "workspace": found.workspace // found.threads,
            "workspace_all": found.workspace,
        }
    return row


def _size(bytes: float) -> str:
    return f"{bytes / (1 << 20):.1f}M" if bytes >= 1 << 20 else f"{bytes / (1 << 10):.0f}K"


def show(table: list[dict], counts: list[int]) -> None:
    """Print a line per layer: efficiency, tasks and workspace of all threads together, for each number of threads."""
    heads, important = ["layer", "algorithm"], ["layer", "algorithm"]
    for n in counts:
        heads += f"{n}: eff.", f"{n}: tasks", f"{n}: space"
        important.append(f"{n}: eff.")
    lines = []
    for row in table:
        each = row["threads"]
        cells = [(f"{e['efficiency']:.0%}", str(e["tasks"]), _size(e["workspace_all"])) for e in each.values()]
        lines.append([row["layer"], each[counts[0]]["algorithm"], *itertools.chain(*cells)])
    terminal.draw("", heads, lines, important, left=heads[:2])
    for threads in counts:
        found = [row["threads"][threads]["efficiency"] for row in table]
        low = sum(e < 0.8 for e in found)
        mean = math.exp(sum(map(math.log, found)) / len(found))
        heading = f"{words.count(threads, 'thread'):>12}"
        print(f"{heading}: efficiency {mean:.0%} (geometric mean), below 80% on {low} of {len(found)} layers")


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cores", __doc__, "--threads 8,64", "--suite seg --dtype bf16 --layout NCHW --json cores.json")
    add = parser.add_argument
    command.add_layers(parser)
    add("--threads", type=command.several(command.integer), default=COUNTS, metavar="N,...",
        help=f"numbers of threads (default: {','.join(map(str, COUNTS))})")  # fmt: skip
    command.add_dtype(parser, ["f32"])
    command.add_layout(parser, ["NXC"])
    add("--precision", type=command.words_of(PRECISIONS), default=["highest"], metavar="PRECISION,...",
        help=", ".join(PRECISIONS))  # fmt: skip
    add("--bandwidth", type=command.positive, metavar="GB/S",
        help="memory bandwidth of all threads together (default: no limit)")  # fmt: skip
    add("--clock", type=command.positive, default=3.0, metavar="GHZ",
        help="clock of the cores, used with --bandwidth (default: 3)")  # fmt: skip
    command.add_json(parser)
    options = parser.parse_args(arguments)
    chosen = command.layers_of(parser, options)
    figures, isa = [], convt.show_config(mode="dicts")["isa"]["in use"]
    with command.printing(options.json) as write_json:
        for dtype, layout, precision in itertools.product(options.dtype, options.layout, options.precision):
            print(f"{dtype} {layout} {precision}, {isa}")
            problems = [Problem(layer, dtype, layout, precision=precision) for layer in chosen]
            bandwidth, clock, table = (options.bandwidth or 0) * 1e9, options.clock * 1e9, []
            with terminal.progress(len(problems)) as begin:
                for problem in problems:
                    begin(problem.layer.name)
                    table.append(_row(problem, options.threads, bandwidth, clock))
            show(table, options.threads)
            figures += table
        write_json({"convt": convt.__version__, "isa": isa, "layers": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
