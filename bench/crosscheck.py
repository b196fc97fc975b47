"""Comparison of the benchmark's times with those of other tools: `python -m bench.crosscheck [LAYER ...]`.

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

from . import layers, machine, peers
from .problem import Problem
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


def main(names: list[str]) -> int:
    table = {layer.name: layer for layer in layers.parse(layers.TABLE)}
    if unknown := [name for name in names if name not in table]:
        print(f"unknown layer {unknown[0]!r}; known: {', '.join(table)}", file=sys.stderr)
        return 2
    setting = Setting(machine.cores())
    worst = 0.0
    for peer in peers.RIVALS:
        if peer.name not in TOOLS:
            continue
        service, environment = TOOLS[peer.name]
        tool = Worker(peer, setting, service, environment)
        bench = Worker(peer, setting)
        try:
            bench.ask("version")
        except peers.Absent as exc:
            print(f"{peer.name} is skipped: {exc}")
            continue
        for name in names or NAMES:
            problem, times = Problem(table[name], "f32", "NXC"), {bench: [], tool: []}
            for worker in times:
                worker.ask("set_up", problem)
            for _ in range(ROUNDS):
                times[bench].append(median(bench.ask("time", SECONDS).durations))
                times[tool].append(tool.ask("time", SECONDS))
            ours, theirs = (min(medians) * 1e3 for medians in times.values())
            worst = max(worst, abs(ours / theirs - 1))
            print(
                f"{name:18} {peer.name:20} bench {ours:9.3f} ms, own tool {theirs:9.3f} ms, {ours / theirs - 1:+6.1%}",
                flush=True,
            )
        bench.close()
        tool.close()
    print(f"largest difference: {worst:.1%}")
    return int(worst > 0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
