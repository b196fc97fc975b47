"""Tests of the numbers and lists on the pages: what the code knows is read from the code.

PAGES holds parts of the pages, one a line, with an expression in braces for each number, as in an f-string. The expressions see
the names of this module: the modules that it imports (ruff believes them unused), `source` for constants that Python cannot
import, and functions that write numbers as pages do. A line break on a page counts as a space.
"""
# ruff: noqa: F401

import re
from pathlib import Path

import pytest

import convt.__main__
from convt import _core
from convt._base import layer_format
from convt._base.activation import ACTIVATIONS
from convt._base.problem import PRECISIONS
from convt._base.words import DATA_FORMATS, DTYPES
from convt._call.api import BACKENDS, FILTER_FORMATS
from convt._model import costs
from convt._model.constants import Constants
from convt._model.efficiencies import EFFICIENCIES
from convt._model.unit import Unit
from convt._plan import choose, keep, measure
from convt._run import config, memory
from convt.algorithms import ALGORITHMS, common, depthwise, name_of, planes, rows, scatter, stages, turned, unpacked, winograd

layers = pytest.importorskip("bench.layers", reason="needs a checkout")
ROOT = Path(__file__).parents[2]
L2 = 1 << 21
LIMITS = costs.limits(32 << 10, L2, 32 << 20)
VECTORS = Unit(**dict.fromkeys(Unit._fields, 0))
AMX = VECTORS._replace(parts=3)
SHARES = {1 / 2: "half", 1 / 3: "a third", 1 / 4: "a quarter", 1 / 5: "a fifth", 1 / 8: "an eighth"}
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def word(number):
    return WORDS[int(number)]


def share(number):
    return next(text for part, text in SHARES.items() if abs(part - number) < 1e-9)


def percent(number):
    return f"{100 * number:g}%"


def power(number):
    assert number & number - 1 == 0
    return f"2^{number.bit_length() - 1}"


def size(number):
    unit = max(each for each in (0, 10, 20, 30) if number >= 1 << each)
    return f"{number / (1 << unit):g} {('bytes', 'KiB', 'MiB', 'GiB')[unit // 10]}"


def each(names):
    return ", ".join(f"`{name}`" for name in names)


def either(names):
    *first, last = names
    return f"{each(first)} or `{last}`"


def names_on(unit):
    return each(name_of(key) for key, algorithm in ALGORITHMS.items() if algorithm.unit == unit)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def source(path, name):
    """Return the value of a constant in the text of a file of Python, Cython or C: one number, or a tuple of several."""
    number = r"[\d._]+(?: << \d+)?"
    line = rf"^ *(?:#define |cdef [\w ]+ )?{name}(?: =)? (?:INT64_C\(|{{)?({number}(?:, {number})*)"
    return eval(re.search(line, read(path), re.MULTILINE)[1])


def instruction_sets(table):
    """Return the names of the instruction sets in a table of setup.py."""
    _, _, rest = read("setup.py").partition(f"{table} = [")
    return ["baseline", *re.findall(r'^    \("(\w+)"', rest.partition("\n]")[0], re.MULTILINE)]


def oldest(package):
    """Return the oldest version of a package, or of Python, that pyproject.toml permits."""
    return re.search(rf'(?:"|^requires-){package}(?: = ")?>=([\d.]+)', read("pyproject.toml"), re.MULTILINE)[1]


def default(command, option):
    (commands,) = convt.__main__._parser()._subparsers._group_actions
    return commands.choices[command].get_default(option)


def key(name):
    """Return the default of a key of a layer in JSON."""
    return layer_format._KEYS[name][2]


TEAM, KERNELS = "convt/_run/team.pxd", "convt/kernels/convt_kernels.h"
KNOWN = "convt/_plan/known.pxd"
SHAPES, UNPACKED = "convt/algorithms/direct/shapes.pyx", "convt/algorithms/unpacked/loops.pyx"
OUTPUT = source("convt/_run/memory.pyx", "OUTPUT_BYTES")
BLOCKS = source("convt/_run/memory.pxd", "CACHED_BLOCKS")
ROWS = {name: source(f"convt/kernels/vec_{name}.h", "TILE_MR")[2] for name in ("avx2", "avx512")}  # of a register tile
TILES = source("convt/algorithms/winograd/cost.pyx", "MOST_TILES")
COUNT = len(layers.parse(layers.TABLE))
EXAMPLES = len(list(ROOT.glob("examples/*.py")))
DEFAULTS = convt.conv_transpose.__kwdefaults__
PAGES = {
    "README.md": """
        You need Python {oldest("python")} or newer
        geometric mean of {COUNT} layers of public networks
        times {word(len(layers.QUICK))} layers of real networks
        | filter layouts | {", ".join(FILTER_FORMATS)} |
    """,
    "CONTRIBUTING.md": """
        You need Python {oldest("python")} or newer
        A function has at most {source("tools/structure.py", "LONGEST_FUNCTION, LONGEST_CLASS")[0]} lines,
        a class at most {source("tools/structure.py", "LONGEST_FUNCTION, LONGEST_CLASS")[1]}, without docstrings
    """,
    "docs/api/convt.md": """
        at least 1, capped at {config._MOST_THREADS};
        default: {stages.MOST_FORM}, or {2 * stages.MOST_SMALL_FORM:g} for filters of at most {size(stages.LARGE_FILTER)},
        and {size(keep.LEAST_PACKED)} in any case
        | instruction set: {either(instruction_sets("X86_ISAS"))};
        on AArch64 {either(instruction_sets("ARM_ISAS"))};
        | meaning of `backend="auto"`: {either(BACKENDS[:-1])};
        | meaning of `precision=None`: {either(PRECISIONS)} (
    """,
    "docs/benchmark.md": """
        # {word(len(layers.QUICK))} layers, oneDNN only
    """,
    "docs/command-line.md": """
        | {each(name for name, kind in DATA_FORMATS.items() if kind[0] == "NXC")} | channels last |
        | {each(name for name, kind in DATA_FORMATS.items() if kind[0] == "NCX")} | channels before the spatial axes |
        | {each(["float32", *DTYPES["float32"]])} | float32 |
        | {each(["float64", *DTYPES["float64"]])} | float64 |
        | {each(["float16", *DTYPES["float16"]])} | float16 |
        | {each(["bfloat16", *DTYPES["bfloat16"]])} | bfloat16 |
        precision of float32: {either(PRECISIONS)} |
        | plan | algorithm to use | `{default("plan", "algorithm")}` |
        | tune | file to write; existing entries are kept | `{default("tune", "out")}` |
        | calibrate | file to write | `{default("calibrate", "out")}` |
        | `N` | batch | {key("N")} |
        | `g` | groups | {key("g")} |
        | `s`, `d` | strides, dilations | {key("s")} |
        | `pb`, `pe` | pads at the beginning and at the end | {key("pb")} |
        | `op` | output_padding | {key("op")} |
    """,
    "docs/dask.md": """
        up to {size(memory.CACHED_OUTPUT_BYTES)} of old outputs that convt keeps
    """,
    "docs/examples.md": """
        {word(EXAMPLES).capitalize()} programs in the folder `examples`
    """,
    "docs/how-it-works.md": """
        The {len(EFFICIENCIES)} efficiencies
        The {len(Constants._fields)} *constants* of a machine
        counts in full, the shorter with {percent(costs.EXPOSED)}.
        counts in full, the shorter with {share(costs.EXPOSED_STREAM)}.
        one of {word(stages.EXACT / 2)} steps between powers of two (exact up to {stages.EXACT})
        They take {share(LIMITS.wide_block / L2)} of L2,
        or up to {word(LIMITS.planes_block / LIMITS.wide_block)} times as much
        outputs of {size(OUTPUT)} or more is kept
        KiB) | {size(keep.OPERATOR_PLANS)} |
        one-shot calls included | {size(keep.ALL_PLANS)} |
        | {stages.MOST_FORM} times the filter, {2 * stages.MOST_SMALL_FORM:g} times for filters
        for filters up to {size(stages.LARGE_FILTER)}, at least {size(keep.LEAST_PACKED)} |
        for all data sizes if the filter exceeds {size(stages.LARGE_FILTER)}
    """,
    "docs/onnxruntime.md": """
        ONNX Runtime {oldest("onnxruntime")} or newer is required
        A node remembers {source(KNOWN, "KNOWN")} shapes
    """,
    "docs/performance.md": """
        an output of {size(OUTPUT)} or more reuses the memory
        Calls of less than {source("convt/_core.pxd", "BRIEF") // 10**6} million operations
        for up to {share(source(TEAM, "CONVT_MOST_PAUSE") / 1e9)} a second
        | packed weights, {size(source("convt/algorithms/packing.pyx", "PARALLEL_PACK_BYTES"))} or more |
    """,
    "docs/precision.md": """
        a float16 as two, a bfloat16 as it is | {names_on("amx")} |
        a float32 as two bfloat16 parts, in three products | {names_on("amx_two")} |
        | a float32 rounded to bfloat16 | {names_on("amx_one")} |
        | bfloat16, or a float32 rounded to bfloat16 | {names_on("dots")} |
    """,
    "docs/pytorch.md": """
        PyTorch {oldest("torch")} or newer is required
    """,
    "docs/quick-start.md": """
        You need Python {oldest("python")} or newer
        {word(EXAMPLES)} complete programs
    """,
    "docs/reliability.md": """
        The tests include {source("tests/fuzz/test_fuzz.py", "SECONDS")[0]} seconds of fuzzing,
        and {source("tests/fuzz/test_fuzz.py", "SECONDS")[1]} at each other instruction set
        no answer within {word(source("tests/fuzz/pool.py", "TIMEOUT") / 60)} minutes
    """,
    "docs/troubleshooting.md": """
        measured for {word(measure._SECONDS)} seconds without a clear result
    """,
    "docs/specifications.md": """
        | stride | `strides` (required; convt: {DEFAULTS["strides"]}) |
        | dilation | `dilations` (required; convt: {DEFAULTS["dilations"]}) |
        | pads | `pads_begin`, `pads_end` (required; convt: {DEFAULTS["pads_begin"]}) |
        | groups | `groups` ({DEFAULTS["groups"]}) |
        NXC or NCX ("{DEFAULTS["data_format"]}") |
        XIO or OIX ("{DEFAULTS["filter_format"]}");
        convt: also {", ".join(FILTER_FORMATS[2:])} |
    """,
    "docs/tuning.md": """
        whose expected cost is at most {share(choose.NEAR - 1)} above the lowest
        were fastest differ by at most {percent(measure._EQUAL)}
        differs by at most {percent(measure._STEADY)} between the rounds
        each candidate runs at least {word(1 + 2 * measure._TURNS)} times
        If no two rounds agree within {word(measure._SECONDS)} seconds
    """,
    "docs/wheels.md": """
        fails above {source("tools/repair_wheel.py", "MAX_BYTES") // 10**6} MB
    """,
    "convt/_call/api.py": """
        plans: {size(keep.OPERATOR_PLANS)} per operator, {size(keep.ONE_SHOT_PLANS)} for one-shot calls,
        for one-shot calls, and {size(keep.ALL_PLANS)} in total
        workspaces of {BLOCKS} calls
        packed weights of one-shot calls: {size(memory.CACHED_WEIGHT_BYTES)}
        of {size(OUTPUT)} or more: {BLOCKS} outputs, and {size(memory.CACHED_OUTPUT_BYTES)} in total
        whose expected cost is at most {share(choose.NEAR - 1)} above the lowest
    """,
    "convt/_run/config.py": """
        Numbers above {config._MOST_THREADS} count as {config._MOST_THREADS}
        default limits: {stages.MOST_FORM} for a filter of more than {size(stages.LARGE_FILTER)},
        {2 * stages.MOST_SMALL_FORM:g} for a smaller one, and at least {size(keep.LEAST_PACKED)}
    """,
    "convt/algorithms/depthwise/README.md": """
        at most {depthwise.kinds._CHANNELS} in-channels ({depthwise.kinds._WIDE} if out-channels fill vectors)
        or up to {word(_core.DOTS)} out-channels
        has {depthwise.schedule._LANES} out-channels, or a multiple of {depthwise.schedule._LANES} whose weights
        whose weights stay within {size(depthwise.schedule._WEIGHT_BYTES)}
        reads about {depthwise.schedule._INPUTS} numbers and writes about {depthwise.schedule._OUTPUTS}
        Weights of up to {word(_core.DW_TERMS)} taps and {word(source(KERNELS, "CONVT_DW_SOURCES"))} input rows
        Other outputs are prefetched {word(depthwise.schedule._PREFETCH_J)} j ahead
    """,
    "convt/algorithms/direct/README.md": """
        for each depth chunk (at most {_core.KC})
        Chunks have at most {_core.KC}.
        as fit in {VECTORS.input_bytes >> 10} KiB ({AMX.input_bytes >> 10} KiB on AMX)
        At most {VECTORS.task_rows} rows ({AMX.task_rows} on AMX)
        partial sums exceed {size(common.MAX_PARTIAL)}
        exceed {share(LIMITS.near_weights / L2)} of L2, or are packed on the fly
        a multiple of {size(LIMITS.same_set)} are packed
        at most {percent(source(SHAPES, "MOST_SHARE"))} of rows times taps are inside,
        {source(SHAPES, "LEAST_DEPTH")} or more in-channels
    """,
    "convt/algorithms/planes/README.md": """
        take about {"twice" if LIMITS.planes_block == 2 * L2 else ""} the L2 size,
        or {share(LIMITS.planes_block / 4 / L2)} of it if
        more than {planes.schedule._SLOW} times as many bytes
        If the weights exceed {size(LIMITS.far)}, blocks of up to {planes.schedule._LARGE} times that size
        (at most {share(planes.schedule._LARGE_SHARE)} of the last-level cache)
        expects at least {percent(planes.schedule._GAIN)} from
        A block of 16-bit elements takes {share(LIMITS.wide_block / L2)} of L2
    """,
    "convt/algorithms/rows/README.md": """
        up to {ROWS["avx512"]} of two vectors in AVX-512, {ROWS["avx2"]} of two in AVX2
        at most {power(rows.schedule._PIXELS)} positions j of a row
        packed input rows stay within {size(rows.schedule._INPUTS)}
        within {size(rows.schedule._PHASE_BYTES)} of L1
        A task writes about {size(rows.schedule._TASK_BYTES)} of output
        Each thread gets at least {rows.schedule._TASKS} tasks
        at most {rows.loops.MOST_PHASES} phases
        has at most {power(rows.schedule._MOST_TABLE)} entries
    """,
    "convt/algorithms/scatter/README.md": """
        | `across` | over pixels | [column][pixel] | stride times out-channels up to {_core.ACROSS} |
        stride times out-channels up to {_core.ACROSS}, many in-channels |
        Up to {word(source(KERNELS, "CONVT_PIXEL_MR"))} columns read them in place,
        | `columns` | at most {scatter.schedule._COLUMNS_PIXELS[0]} (9 register tiles of {ROWS["avx512"]}),
        {scatter.schedule._COLUMNS_PIXELS[1]} on AMX | at most {scatter.schedule._TASK_ROWS} output rows
        | `across` | at most {scatter.schedule._ACROSS_PIXELS}, with products up to {size(scatter.schedule._PRODUCT_BYTES)} |
        with products up to {scatter.schedule._BAND_SHARE:.0%} of L2 |
        | `gathered` | whole images, with products up to {size(scatter.schedule._PRODUCT_BYTES)} |
        Depth chunks have at most {_core.KC}.
        a task keeps up to {size(scatter.schedule._KEPT_BYTES)} of packed input rows
        at most {_core.KC} in-channels and {power(scatter.schedule._GATHERED_TERMS)} products
    """,
    "convt/algorithms/turned/README.md": """
        for each depth chunk (at most {_core.KC})
        A pixel block has at most {turned.schedule._MOST_PIXELS} pixels,
        at most {turned.schedule._PANEL_BYTES[0] >> 10} KiB ({turned.schedule._PANEL_BYTES[1] >> 10} KiB on AMX)
        below {turned.schedule._LEAST_PIXELS} pixels, so that each thread gets {turned.schedule._THREAD_TASKS} tasks
        not below {turned.schedule._LEAST_ROWS} rows per task
        tiles of at most {turned.schedule._CALL_ROWS} rows by a panel
        Their weights take at most {share(turned.schedule._CALL_BYTES)} of L2
        stride is at most m_r and {turned.loops.MOST_PHASES}
    """,
    "convt/algorithms/unpacked/README.md": """
        about {unpacked.schedule._COLUMNS} columns, that is {size(4 * unpacked.schedule._COLUMNS)} of each filter row
        A channel group has at least {unpacked.schedule._TASKS} tasks
        {word(source(UNPACKED, "COPIED_ROWS")).capitalize()} filter rows are copied side by side
        A depth chunk has at most {_core.KC} in-channels
        at most {share(unpacked.schedule._BLOCK_SHARE)} of L2 unless
        fewer than {unpacked.schedule._LEAST_DEPTH} in-channels
        Up to {word(unpacked.loops.FEW_PIXELS)} images of up to {word(unpacked.loops.FEW_PIXELS)} pixels multiply
        the filter in place, {source(UNPACKED, "MULTIPLIED_ROWS")} rows at a time
        Products of a task take at most {size(unpacked.schedule._PRODUCTS)}
        At most {unpacked.schedule._PIXELS} pixels of all images
        a table of at most {unpacked.schedule._ENTRIES} entries
    """,
    "convt/algorithms/winograd/README.md": """
        Up to {word(winograd.transforms.MOST_AXES)} axes are transformed
        If the filter exceeds {size(stages.LARGE_FILTER)}, all sizes use
        at most {TILES} register tiles of rows ({TILES * ROWS["avx512"]} output tiles in AVX-512)
        chains of at most {winograd.loops.CHAIN},
        A gap of fewer than {winograd.loops.BRIDGE} tiles
        {stages.MOST_FORM} times the bytes of a filter over {size(stages.LARGE_FILTER)},
        and {stages.MOST_SMALL_FORM} times those of a smaller one
    """,
}


@pytest.mark.parametrize("page", PAGES)
def test_numbers_are_those_of_the_code(page):
    text = " ".join(read(page).split())
    wanted = [eval(f"f{line.strip()!r}") for line in PAGES[page].strip().splitlines()]
    assert [part for part in wanted if part not in text] == []


def test_register_tiles_are_those_of_the_kernels():
    page = read("convt/algorithms/direct/README.md")
    found = re.findall(r"^\| (\w+)(?:, (\S+))? \| (\d+ x \d+) \| (\d+) \| (\d*)", page, re.MULTILINE)
    assert len(found) == 5
    built = {row["name"] for row in _core.isa_rows()}
    for unit, isa, tile, step, wide in found:
        isa = isa.lower().replace("-", "") or "avx512_amx"
        if isa in built:
            info = _core.kernel_info("float32", unit, isa)
            assert (tile, step, wide or "0") == (f"{info['mr'][2]} x {info['nr']}", str(info["kstep"]), str(info["wide"])), isa


def test_the_table_of_activations_is_on_its_page():
    """Check the table of docs/api/convt.md, to which other pages and docstrings refer, row by row."""
    section = read("docs/api/convt.md").split("\n## Activations\n")[1].split("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("| `") and "`activation=`" not in line]
    wanted = []
    for name, row in list(ACTIVATIONS.items())[1:]:
        value = f'("{name}", {", ".join(row.parameters)})' if row.parameters else f'"{name}"'
        wanted.append(" ".join(f"| `{value}` | {(row.torch or [''])[0]} | {(row.onnx or [''])[0]} |".split()))
    assert found == wanted
