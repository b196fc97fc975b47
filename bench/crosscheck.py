"""Comparison of the benchmark's times with those of other tools: `python -m bench.crosscheck`.

Each layer is timed in turns by this benchmark and, in another process, by torch.utils.benchmark (PyTorch) or by the execution
times that oneDNN prints (ONEDNN_VERBOSE=profile_exec). The exit status is 1 if two times differ by more than 10%.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from statistics import median

from . import command, layers, machine, peers, tables
from .problem import Problem
from .shared import terminal
from .worker import Service, Setting, Worker

SECONDS, ROUNDS = 0.3, 5
NAMES = ("dcgan_mid", "pose_deconv3", "compressai_last", "hifigan_ups1", "monai_top")


class TorchTimer(Service):
    """A `Service` that times a turn with torch.utils.benchmark."""

    def time(self, seconds: float) -> float:
        from torch.utils.benchmark import Timer

        timer = Timer("run()", globals={"run": self._ready.run}, num_threads=self._threads)
        return timer.blocked_autorange(min_run_time=seconds).median


class OnednnVerbose(Service):
    """A `Service` that reads the times of a turn from oneDNN's output, one line with milliseconds per execution."""

    def set_up(self, problem: Problem) -> None:
        with _printed():
            super().set_up(problem)

    def time(self, seconds: float) -> float:
        with _printed() as lines:
            super().time(seconds)
        return median(float(line.rsplit(",", 1)[1]) for line in lines if ",exec," in line and ",deconvolution," in line) / 1e3


@contextlib.contextmanager
def _printed() -> Iterator[list[str]]:
    """Capture the lines that C code of this process prints to stdout within the context."""
    lines, stdout = [], os.dup(1)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield lines
        finally:
            _flush()
            os.dup2(stdout, 1)
            os.close(stdout)
            file.seek(0)
            lines += file.read().splitlines()


def _flush() -> None:
    import ctypes

    ctypes.CDLL(None).fflush(None)


TOOLS = {
    "onednn-plain": (OnednnVerbose, {"ONEDNN_VERBOSE": "profile_exec"}),
    "torch-channels_last": (TorchTimer, {}),
    "torch-contiguous": (TorchTimer, {}),
}


def main(arguments: list[str] | None = None) -> int:
    known = layers.parse(layers.TABLE)
    parser = command.parser("crosscheck", __doc__.splitlines()[0], "", "--names unet_up1,dcgan_mid --json crosscheck.json")
    command.add_layers(parser, ", ".join(NAMES))
    command.add_json(parser)
    options = parser.parse_args(arguments)
    chosen = command.layers_of(parser, options, known if options.names else [layer for layer in known if layer.name in NAMES])
    with command.printing(options.json) as write_json:
        rows = measured(chosen)
        worst = max((abs(row["ratio"] - 1) for row in rows), default=0.0)
        print(f"largest difference: {worst:.1%}")
        write_json(rows)
    return int(worst > 0.1)


def measured(chosen: list[layers.Layer]) -> list[dict]:
    """Measure layers with the benchmark and with the libraries' own tools, and print a line for each. Return the rows."""
    columns = {"layer": 18, "library": 20, "bench ms": 9, "own tool ms": 11, "ratio": 6}
    lines = tables.Lines(columns, ("layer", "ratio", "library"), ("layer", "library"))
    setting, rows, compared = Setting(machine.cores()), [], [peer for peer in peers.RIVALS if peer.name in TOOLS]
    with terminal.progress(len(compared) * len(chosen)) as begin:
        for peer in compared:
            service, environment = TOOLS[peer.name]
            tool = Worker(peer, setting, service, environment)
            bench = Worker(peer, setting)
            try:
                bench.ask("version")
            except peers.Absent as exc:
                print(f"{peer.name} is skipped: {exc}")
                continue
            for layer in chosen:
                begin(f"{layer.name} {peer.name}")
                problem, times = Problem(layer, "f32", "NXC"), {bench: [], tool: []}
                for worker in times:
                    worker.ask("set_up", problem)
                for _ in range(ROUNDS):
                    times[bench].append(median(bench.ask("time", SECONDS).durations))
                    times[tool].append(tool.ask("time", SECONDS))
                ours, theirs = (min(medians) * 1e3 for medians in times.values())
                rows.append({"layer": layer.name, "library": peer.name, "bench": ours, "tool": theirs, "ratio": ours / theirs})
                lines.print([layer.name, peer.name, f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.3f}"])
            bench.close()
            tool.close()
    return rows


if __name__ == "__main__":
    sys.exit(main())
