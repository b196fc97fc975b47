"""`Worth`: what convt changes in a whole model: the share of transposed convolution, the bound that it sets, what was reached.

Integrations give runs of the whole, without and with convt, and each transposed convolution in it with its shapes and seconds.
This module times the runs in turns, and has all that follows from the times, and their form as text, HTML and JSON.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, NamedTuple

from .._base import terminal, words
from .._plan.choose import choose
from ..algorithms import name_of

ROUNDS = 4  # number of rounds in which the ways to run take turns
_LITTLE = 1.02  # a bound or speedup up to this is within the noise of a measurement
_COLUMNS = ("layer", "shape", "host ms", "convt ms", "algorithm", "limit")
_TEXTS = {"layer": 12, "shape": 26, "algorithm": 12}  # columns of text, and their least widths in a narrow table


class LayerTime(NamedTuple):
    """The times of a transposed convolution in a run of the whole, and of what convt computes together with it.

    Attributes
    ----------
    name : str
        Name in the model.
    data, output : tuple of int
        Shapes.
    host_seconds, convt_seconds : float
        Seconds in a run, of all ``calls`` together. ``convt_seconds`` is NaN if convt does not compute the layer, and
        ``host_seconds`` if it is unknown.
    algorithm : str
        Algorithm of convt, or the reason why convt does not compute the layer.
    of_limit : float
        The hardware limit as a fraction of ``convt_seconds``: 1.0 is as fast as the machine permits. Arrays that stay in the
        caches, AMX and Winograd can exceed it. NaN if unknown.
    fused : tuple of str
        What convt computes together with the layer; its time counts in both times.
    calls : int
        Number of calls in a run.
    """

    name: str
    data: tuple[int, ...]
    output: tuple[int, ...]
    host_seconds: float
    convt_seconds: float = math.nan
    algorithm: str = ""
    of_limit: float = math.nan
    fused: tuple[str, ...] = ()
    calls: int = 1


class Worth(NamedTuple):
    """What convt changes in a whole model. ``print(worth)`` shows a table of the layers and a verdict.

    Attributes
    ----------
    host : str
        The library that computes the rest, such as "PyTorch".
    layers : tuple of LayerTime
        The transposed convolutions.
    host_seconds, convt_seconds : float
        Seconds of the whole without and with convt.
    looked_for : str
        What a measurement looks for, which is said if it finds no layer.
    advice : str
        How to use convt for it.
    rest_seconds : float
        Seconds of the whole if its transposed convolutions take no time. NaN if unknown: `share` then comes from ``layers``.

    Examples
    --------
    >>> from convt._call.worth import LayerTime, Worth
    >>> layer = LayerTime("up", (1, 64, 32, 32), (1, 32, 64, 64), 0.003, 0.001, "direct", 0.4)
    >>> worth = Worth("PyTorch", (layer,), 0.01, 0.008)
    >>> worth.share, round(worth.bound, 2), round(worth.reached, 2)
    (0.3, 1.43, 1.25)
    >>> print(worth)
    layer  shape                 host ms  convt ms  algorithm  limit
    up     64x32x32 -> 32x64x64    3.000     1.000  direct       40%
    PyTorch alone takes 10.000 ms, with convt 8.000 ms.
    Transposed convolution takes 30% of PyTorch's time, so the whole can get at most
    1.43 times as fast. With convt it is 1.25 times as fast.
    """

    host: str
    layers: tuple[LayerTime, ...]
    host_seconds: float
    convt_seconds: float
    looked_for: str = "transposed convolutions"
    advice: str = ""
    rest_seconds: float = math.nan

    @property
    def share(self) -> float:
        """The share of transposed convolution in the host's time, from 0 to 1."""
        if self.rest_seconds >= 0:  # not NaN
            return max(1 - self.rest_seconds / self.host_seconds, 0.0)
        return min(sum(layer.host_seconds for layer in self.layers if layer.host_seconds >= 0) / self.host_seconds, 1.0)

    @property
    def bound(self) -> float:
        """How many times as fast the whole can get at most: 1 / (1 - share), if transposed convolution takes no time."""
        return 1 / (1 - self.share) if self.share < 1 else math.inf

    @property
    def reached(self) -> float:
        """How many times as fast the whole is with convt."""
        return self.host_seconds / self.convt_seconds

    def verdict(self) -> str:
        """Return one or two sentences: what is to gain at most, and what was reached."""
        if not self.layers:
            return f"Nothing is to gain: {self.host} computed no transposed convolution; looked for {self.looked_for}."
        share = f"transposed convolution takes {percent(self.share)} of {self.host}'s time"
        most = f"the whole can get at most {times(self.bound)} as fast" if self.share < 0.995 else "it decides alone"
        if self.bound <= _LITTLE:
            return f"Nothing is to gain: {share}, so {most}."
        if all(math.isnan(layer.convt_seconds) for layer in self.layers):
            return f"T{share[1:]}, but convt computes none of it: {self.layers[0].algorithm}."
        if self.reached <= _LITTLE:
            return f"Nothing is gained: {share}, so {most}, but with convt it is {times(self.reached)} as fast."
        varies = ": more than the bound, so the times vary" if self.reached > self.bound else ""
        return f"T{share[1:]}, so {most}. With convt it is {times(self.reached)} as fast{varies}. {self.advice}".rstrip()

    def rows(self) -> list[list[str]]:
        """Return the cells of the table, a row for each layer."""
        return [
            [
                terminal.printable(layer.name) + (f" x{layer.calls}" if layer.calls > 1 else ""),
                f"{_sizes(layer.data)} -> {_sizes(layer.output)}" if layer.data else "-",
                _milliseconds(layer.host_seconds), _milliseconds(layer.convt_seconds),
                "-" if math.isnan(layer.convt_seconds) else layer.algorithm,
                "-" if math.isnan(layer.of_limit) else f"{layer.of_limit:.0%}",
            ] for layer in self.layers
        ]  # fmt: skip

    def notes(self) -> list[str]:
        """Return the lines below the table: what is fused with layers, what convt leaves to the host, and the whole."""
        if not self.layers:
            return []
        names: dict[str, dict[str, None]] = {}  # beginning of a line -> names of layers, each once
        for each in self.layers:
            if each.fused:
                names.setdefault(f"with {' and '.join(each.fused)}", {})[terminal.printable(each.name)] = None
            if math.isnan(each.convt_seconds):
                names.setdefault(f"left to {self.host} because {each.algorithm}", {})[terminal.printable(each.name)] = None
        whole = _milliseconds(self.host_seconds), _milliseconds(self.convt_seconds)
        lines = [f"{begin}: {', '.join(each)}" for begin, each in names.items()]
        return [*lines, f"{self.host} alone takes {whole[0]} ms, with convt {whole[1]} ms."]

    def __str__(self) -> str:
        import textwrap  # imported here, because few processes need it

        lines = [line for each in (*self.notes(), self.verdict()) for line in textwrap.wrap(each, 80, break_on_hyphens=False)]
        if self.layers:
            lines.insert(0, terminal.text(_COLUMNS, self.rows(), _COLUMNS, _TEXTS, _TEXTS, 80)[0])
        return "\n".join(lines)

    def show(self) -> None:
        """Print the same, as wide as the terminal or, in a file, as it needs."""
        if self.layers:
            terminal.draw("", _COLUMNS, self.rows(), _COLUMNS, left=_TEXTS, wrapped=_TEXTS)
        terminal.say(*self.notes(), self.verdict())

    def __repr__(self) -> str:
        counted = f"{words.count(len(self.layers), 'layer')} in {self.host}"
        return f"<Worth of {counted}: share {percent(self.share)}, bound {self.bound:.2f}, reached {self.reached:.2f}>"

    def _repr_html_(self) -> str:
        if not self.layers:
            return f"<p>{self.verdict()}</p>"
        return terminal.in_html(_COLUMNS, self.rows(), " ".join([*self.notes(), self.verdict()]))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as a dict for JSON, which has neither infinity nor NaN: these are None."""
        known = lambda value: None if isinstance(value, float) and not math.isfinite(value) else value  # noqa: E731
        layers = [{name: known(value) for name, value in layer._asdict().items()} for layer in self.layers]
        numbers = {name: known(getattr(self, name)) for name in ("host_seconds", "convt_seconds", "share", "bound", "reached")}
        return {"host": self.host, "layers": layers, **numbers, "verdict": self.verdict()}


def percent(share):
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}"


def times(factor):
    return f"{factor:.2f} times" if factor < 10 else f"{factor:.0f} times"


def _milliseconds(seconds):
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.3f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _sizes(shape):
    """Return a shape as text, without a batch of 1."""
    return "x".join(map(str, shape[1:] if shape[:1] == (1,) else shape))


def planned(operator, shape, seconds, limits):
    """Return what a `LayerTime` says about an operator that computes data of a shape in ``seconds``: algorithm and of_limit.

    Nothing is packed. ``limits`` is a `MachineLimits`.
    """
    problem = operator._attributes.problem(tuple(shape))
    return {"algorithm": name_of(choose(operator._plans, problem)[0]), "of_limit": limits.of(problem).seconds / seconds}


def in_turns(calls, budget, step=lambda: None, pause=0.0, before=(), rounds=ROUNDS):
    """Return the seconds of each call: the minimum over the rounds of its median time in a round.

    In each round the calls take turns, with a pause of ``pause`` seconds before each. ``step`` is called before each turn, and
    ``before`` has a function for each call that prepares its turns. ``budget`` is in seconds per call.
    """
    found, before = [[] for _ in calls], before or [lambda: None] * len(calls)
    for call, prepare in zip(calls, before, strict=True):
        prepare()
        call()
    for _ in range(rounds):
        for call, prepare, medians in zip(calls, before, found, strict=True):
            step()
            prepare()
            time.sleep(pause)
            seconds, end = [], time.perf_counter() + budget / rounds
            while time.perf_counter() < end or len(seconds) < 3:
                start = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - start)
            medians.append(statistics.median(seconds))
    return [min(medians) for medians in found]


def summed(runs):
    """Return ``{key: (least sum of its seconds in a run that has it, most calls in a run)}``.

    Each run has (key, seconds) of its calls. A sum is of one run, because other programs disturb whole runs less often than
    some calls.
    """
    found = {}
    for n, run in enumerate(runs):
        for key, seconds in run:
            found.setdefault(key, {}).setdefault(n, []).append(seconds)
    return {key: (min(map(sum, each.values())), max(map(len, each.values()))) for key, each in found.items()}
