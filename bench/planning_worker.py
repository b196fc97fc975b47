"""The processes that run convt and PyTorch for `planning`."""

from __future__ import annotations

import gc
import inspect
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from . import layers, timing
from .layers import Layer
from .problem import DTYPES, Problem, empty
from .worker import Service

WARM = 0.02  # seconds of warm calls

# CPUs by name: instruction set, machine file, bytes of L1 and L2 of a core, bytes of L3 available to a process.
CPUS = {
    "SSE4.1": ("baseline", "generic_128", 32 << 10, 256 << 10, 8 << 20),
    "Haswell": ("avx2", "generic_256", 32 << 10, 256 << 10, 8 << 20),
    "Zen 3": ("avx2", "zen3", 32 << 10, 512 << 10, 32 << 20),
    "Skylake to Cascade Lake": ("avx512", "skylake_server", 32 << 10, 1 << 20, 24 << 20),
    "Ice Lake": ("avx512", "ice_lake", 48 << 10, 1280 << 10, 36 << 20),
    "Zen 4": ("avx512_bf16", "zen4", 32 << 10, 1 << 20, 32 << 20),
    "Zen 5": ("avx512_bf16", "zen5", 48 << 10, 1 << 20, 32 << 20),
    "another with AVX-512": ("avx512", "generic_512", 48 << 10, 1 << 20, 32 << 20),
    "Sapphire Rapids without AMX": ("avx512_bf16", "sapphire_rapids", 48 << 10, 2 << 20, 64 << 20),
    "Sapphire Rapids": ("avx512_amx", "sapphire_rapids_amx", 48 << 10, 2 << 20, 64 << 20),
}


class Timing(Service):
    """A `Service` that times first calls. One thread is timed by its CPU time, which other processes disturb less."""

    @property
    def _clock(self):
        return time.thread_time if self._threads == 1 else time.perf_counter

    def _first_and_warm(self, run, seconds: float = WARM) -> tuple[float, float]:
        """Return the milliseconds of the first call, and the least of the calls after it."""
        first, *more = (1e3 * each for each in timing.durations(run, seconds, 3, clock=self._clock))
        return first, min(more)


class Planning(Timing):
    """The requests that convt's process answers."""

    def about(self) -> str:
        import convt

        config = convt.show_config(mode="dicts")
        return f"convt {convt.__version__}, {config['isa']['in use']}, {self._threads} threads"

    def _arrays(self, layout: str, all_layers: list[Layer]):
        """Return ``arrays(layer)``, which returns data and output of a layer in initialised memory shared by all layers."""
        shapes = zip(*((each.data_shape, each.result_shape) for each in all_layers), strict=True)
        buffers = [empty((max(int(np.prod(shape)) for shape in some),), DTYPES["f32"]) for some in shapes]
        for buffer in buffers:
            buffer[:] = 0.5

        def arrays(layer: Layer) -> list[np.ndarray]:
            found = []
            for buffer, (batch, *sizes, channels) in zip(buffers, (layer.data_shape, layer.result_shape), strict=True):
                shape = (batch, *sizes, channels) if layout == "NXC" else (batch, channels, *sizes)
                found.append(buffer[: int(np.prod(shape))].reshape(shape))
            return found

        return arrays

    def _operator(self, layer: Layer, layout: str, all_layers: list[Layer]):
        """Return ``call``: ``call(other)()`` calls the operator of ``layer`` on the data of another layer."""
        import convt

        problem = Problem(layer, "f32", layout)
        operator = convt.ConvTranspose(problem.filter(), **self._library.keywords(problem))
        arrays = self._arrays(layout, all_layers)

        def call(layer: Layer):
            data, out = arrays(layer)
            return lambda: operator(data, out=out)

        return call

    def new_shapes(self, layer: Layer, layout: str, others: list[Layer], rounds: int) -> dict[str, Any]:
        """Measure the extra milliseconds of the first call of each other layer, relative to a warm call.

        Caches are cleared before each round, and the layer itself runs first. "least" has the least of all rounds, "first" the
        first round, whose calls may pack weights in another form.
        """
        import convt

        call = self._operator(layer, layout, [layer, *others])
        new, warm, met = [np.inf] * len(others), [np.inf] * len(others), []
        for _ in range(rounds):
            convt.clear_caches()
            call(layer)()
            for n, other in enumerate(others):
                first, usual = self._first_and_warm(call(other))
                new[n], warm[n] = min(new[n], first), min(warm[n], usual)
                met.append(first)
        convt.clear_caches()
        call(layer)()
        calls = [_python_calls(call(other)) for other in others]
        warm_calls = _python_calls(call(others[-1]))
        least = [a - b for a, b in zip(new, warm, strict=True)]
        first = [a - b for a, b in zip(met, warm, strict=False)]
        return {"least": least, "first": first, "warm": median(warm), "calls": median(calls) - warm_calls}

    def one_shot(self, layer: Layer, layout: str, rounds: int) -> dict[str, Any]:
        """Measure the extra milliseconds of the first one-shot call of a layer, relative to a warm call."""
        import convt

        problem = Problem(layer, "f32", layout)
        filter, attributes = problem.filter(), self._library.keywords(problem)
        data, out = self._arrays(layout, [layer])(layer)

        def run():
            convt.conv_transpose(data, filter, out=out, **attributes)

        found = []
        for _ in range(rounds):
            convt.clear_caches()
            found.append(self._first_and_warm(run))
        convt.clear_caches()
        calls = _python_calls(run)
        new, warm = map(min, zip(*found, strict=True))
        return {"least": [new - warm], "first": [found[0][0] - warm], "warm": warm, "calls": calls - _python_calls(run)}

    def lengths(self, layer: Layer, count: int) -> dict[str, Any]:
        """Call an operator with ``count`` lengths, and then with each length again.

        "kept" has the bytes kept after 64 and after all lengths. "again" is the median of the extra milliseconds of the second
        call with a length, relative to a warm call.
        """
        others = [replace(layer, size=(layer.size[0] - n,)) for n in range(count)]
        call = self._operator(layer, "NCX", others)
        call(layer)()
        before, kept, again = _bytes(), {}, []
        for n, other in enumerate(others, 1):
            call(other)()
            if n in (64, count):
                kept[n] = _bytes() - before
        for other in others:
            new, usual = self._first_and_warm(call(other), 0.0)
            again.append(new - usual)
        return {"kept": kept, "again": median(again)}

    def packed(self, channels: list[tuple[int, int]], images: list[tuple[int, int]], layout: str) -> dict[str, Any]:
        """Measure the bytes that layers keep in addition to their filters, after each image size.

        The size is that of the first layer's images. The images of the second layer are twice as large on each axis, those of
        all other layers four times.
        """
        chain = [layers.from_row({"Cin": ci, "Cout": co, "in": [1, 1], "k": [4, 4], "s": [2, 2], "pb": [1, 1], "pe": [1, 1]})
                 for ci, co in channels]  # fmt: skip
        met = [[replace(each, size=tuple(n << min(depth, 2) for n in image)) for depth, each in enumerate(chain)]
               for image in images]  # fmt: skip
        calls = [self._operator(first, layout, list(some)) for first, some in zip(chain, zip(*met, strict=True), strict=True)]
        before, found = _bytes(), []
        for some in met:
            for call, each in zip(calls, some, strict=True):
                call(each)()
            found.append(_bytes() - before)
        return {"filters": sum(4 * int(np.prod(each.filter_shape)) for each in chain), "kept": found}

    def chosen(self, some: list[Layer], layouts: list[str], cpu: str) -> dict[str, dict[str, Any]]:
        """Return layout -> layer -> (choice of "auto", expected cycles of all algorithms) on a simulated CPU."""
        from convt._model import machine as plan_machine

        isa, name, l1, l2, l3 = CPUS[cpu]
        known = "family" in inspect.signature(plan_machine.pretend).parameters  # older checkouts lack the parameter
        family = {"family": name} if known else {}
        with plan_machine.pretend(isa=isa, l1=l1, l2=l2, l3=l3, **family):
            return {layout: {each.name: _costs(each, layout, self._library) for each in some} for layout in layouts}


def _python_calls(run) -> int:
    """Count the calls of Python functions in a call of ``run``."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls - 1


def _bytes() -> int:
    """Return the resident memory of this process, after free memory has been returned to the system."""
    import ctypes

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) << 10


def _costs(layer: Layer, layout: str, library) -> tuple[str, dict[str, float]]:
    """Return the native algorithm that "auto" takes, and the expected cycles of all candidates. No weights are packed."""
    from convt._plan import explain

    found = explain.alternatives(library.canonical(Problem(layer, "f32", layout)))
    costs = {name: float(cost) for name, cost in found.items() if cost is not None}
    return min(costs, key=costs.get), costs


class NewShapesOfTorch(Timing):
    """`Planning.new_shapes` for PyTorch. A shape is new only once in a process, because oneDNN caches its primitives."""

    def new_shapes(self, layer: Layer, layout: str, others: list[Layer], rounds: int) -> dict[str, Any]:
        extras = []
        for each in [layer, *others]:
            ready = self._library.prepare(Problem(each, "f32", layout), self._threads, layout=layout)
            new, usual = self._first_and_warm(ready.run)
            extras.append(new - usual)
        return {"least": extras[1:]}
