"""Errors of convt's results on each layer, for float32 at each precision and for the 16-bit types.

`python -m bench.errors` prints two Markdown tables. Results are compared with float64 sums of the same inputs, which are
uniform between -1 and 1 and rounded to the dtype. Each layer is computed with batch size 1 and prepacked weights.

Columns: "largest" and "typical" are the largest and the root-mean-square error, in units of the root mean square of the exact
outputs. "nearest" is the share of outputs that equal the exact sum rounded once. "nearest two" is the share of outputs that are
one of the two representable numbers around the exact sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import ml_dtypes
import numpy as np

import convt

from . import command, layers, tables
from .peers.convt import keywords
from .problem import LAYOUTS, PRECISIONS, Problem, in_layout
from .shared import terminal

HALVES = ("f16", "bf16")
BLOCK_OUTPUTS = 1 << 22  # outputs compared at a time, to bound memory


class Errors(NamedTuple):
    """The errors of one layer's outputs."""

    algorithm: str
    largest: float  # in units of the root mean square of the exact outputs
    typical: float  # root mean square of the errors, in units of that of the exact outputs
    nearest: float  # share of outputs that equal the exact sum rounded once
    neighbour: float  # share of outputs that are one of the two representable numbers around the exact sum


def units(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the spacing of a dtype's numbers around exact values."""
    info = ml_dtypes.finfo(dtype)
    exponents = np.maximum(np.frexp(exact)[1] - 1, int(info.minexp))
    return np.ldexp(1.0, exponents - int(info.nmant))


def compared(algorithm: str, result: np.ndarray, exact: np.ndarray) -> Errors:
    """Compute the errors of a result."""
    result, exact = result.reshape(-1), exact.reshape(-1)
    largest = squares = scale = 0.0
    nearest = neighbour = 0
    for start in range(0, exact.size, BLOCK_OUTPUTS):
        true = exact[start : start + BLOCK_OUTPUTS]
        error = np.abs(result[start : start + BLOCK_OUTPUTS].astype(np.float64) - true)
        unit = units(true, result.dtype)
        largest = max(largest, float(error.max()))
        squares += float(error @ error)
        scale += float(true @ true)
        nearest += int((error <= unit / 2).sum())
        neighbour += int((error < unit).sum())
    rms = np.sqrt(scale / exact.size)
    return Errors(
        algorithm, largest / rms, float(np.sqrt(squares / exact.size)) / rms, nearest / exact.size, neighbour / exact.size
    )


def measured(layer: layers.Layer, layout: str) -> Iterator[tuple[str, str, Errors]]:
    """Yield (dtype, precision, errors) of a layer."""
    for dtype in ("f32", *HALVES):
        problem = Problem(replace(layer, batch=1), dtype, layout)
        data, filter = in_layout(problem.data(), layout), problem.filter()
        wide = convt.ConvTranspose(filter.astype(np.float64), algorithm="direct", backend="native", **keywords(problem))
        exact = wide(data.astype(np.float64))
        for precision in PRECISIONS if dtype == "f32" else PRECISIONS[:1]:
            own = keywords(replace(problem, precision=precision))
            operator = convt.ConvTranspose(filter, backend="native", **own)
            yield dtype, precision, compared(operator.plan(data.shape).key, operator(data), exact)


def percent(share: float) -> str:
    """Format a share as a percentage, which is 100 only if the share is exactly 1."""
    return "100" if share == 1 else f"{min(100 * share, 99.999):.3f}"


def report(found: dict[str, dict[tuple[str, str], Errors]]) -> list[str]:
    """Return the lines of both tables. The last row of each has the worst value of each column."""

    def columns(keys: list[tuple[str, str]], show: Callable[[Errors], list[str]]) -> list[list[str]]:
        worst = {
            key: Errors(
                "",
                max(each[key].largest for each in found.values()),
                max(each[key].typical for each in found.values()),
                min(each[key].nearest for each in found.values()),
                min(each[key].neighbour for each in found.values()),
            )
            for key in keys
        }
        rows = {**found, "worst": worst}
        return [[name, *(cell for key in keys for cell in show(each[key]))] for name, each in rows.items()]

    singles, halves = [("f32", precision) for precision in PRECISIONS], [(dtype, PRECISIONS[0]) for dtype in HALVES]
    errors = columns(singles, lambda e: [e.algorithm, f"{e.largest:.0e}", f"{e.typical:.0e}"])
    shares = columns(halves, lambda e: [e.algorithm, percent(e.nearest), percent(e.neighbour)])
    return [
        *tables.markdown(["layer", *(cell for _, word in singles for cell in (word, "largest", "typical"))], errors),
        "",
        *tables.markdown(["layer", *(cell for word, _ in halves for cell in (word, "nearest, %", "nearest two, %"))], shares),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("errors", __doc__, "--names unet_up1", "--layout NCHW --json errors.json")
    command.add_layers(parser)
    command.add_layout(parser, LAYOUTS[0])
    command.add_json(parser)
    options = parser.parse_args(arguments)
    chosen, found = command.layers_of(parser, options), {}
    with command.printing(options.json) as write_json:
        with terminal.progress(len(chosen)) as begin:
            for layer in chosen:
                begin(layer.name)
                found[layer.name] = {(dtype, word): errors for dtype, word, errors in measured(layer, options.layout)}
        about = {"convt": convt.__version__, "isa": convt.show_config(mode="dicts")["isa"]["in use"], "layout": options.layout}
        print("\n".join([f"convt {', '.join(about.values())}", "", *report(found)]))
        rows = [
            {"layer": name, "dtype": dtype, "precision": word, **errors._asdict()}
            for name, each in found.items() for (dtype, word), errors in each.items()
        ]  # fmt: skip
        write_json(about | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
