"""Scaling of convt.dask with the number of workers, measured on this machine and predicted for more: `python -m bench.scaling`.

Worker processes of dask.distributed, with one thread each, upsample a volume. `--workers` lists the numbers of workers to
measure. The inputs are in the workers' memory in advance, and only sums of the outputs are sent.

The prediction uses the bytes and operations of a chunk, this machine's multiply-add peak and copy bandwidth, and the values of
`--overhead`, `--network` and `--storage`. It assumes that workers beyond the cores of this machine run on equal machines.

Needs `pip install ".[dask,bench]" distributed`.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import NamedTuple

import numpy as np

from . import command, machine
from .shared import terminal, words

KERNEL, STRIDE, HALO = 4, 2, 2
COUNTS = (1, 2, 4, 8, 16, 32, 64)


class Chunks(NamedTuple):
    """The chunks of a float32 volume; each is a cube."""

    number: int
    side: int  # voxels
    ci: int
    co: int
    tasks: int  # dask tasks of all chunks together

    @property
    def flops(self) -> int:
        return 2 * self.side**3 * KERNEL**3 * self.ci * self.co

    @property
    def halo_bytes(self) -> int:
        return 4 * self.ci * ((self.side + HALO) ** 3 - self.side**3)

    @property
    def out_bytes(self) -> int:
        return 4 * self.co * (STRIDE * self.side) ** 3

    @property
    def memory_bytes(self) -> int:
        """Return the memory traffic: inputs with halo are copied (read and written) and read again, outputs are written."""
        return 3 * 4 * self.ci * (self.side + HALO) ** 3 + self.out_bytes


class Machine(NamedTuple):
    """The speeds that the prediction uses."""

    cores: int
    peak: float  # operations per second of one core
    copy_one: float  # bytes per second that one core copies alone
    copy_all: float  # bytes per second that all cores copy together
    network: float  # bytes per second to a worker
    storage: float  # bytes per second of all workers together; infinite if outputs are not stored
    overhead: float  # scheduler seconds per task


def expected(chunks: Chunks, there: Machine, workers: int) -> tuple[float, str]:
    """Return (seconds, name of the limit) for a number of workers.

    Each worker computes its chunks, reads and writes their memory, and receives their halos. All workers share the scheduler
    and the storage.
    """
    busy = min(workers, there.cores)
    copy = min(there.copy_one, there.copy_all / busy)
    halo = chunks.halo_bytes / there.network if workers > 1 else 0.0
    compute, memory = chunks.flops / there.peak, chunks.memory_bytes / copy
    rounds = math.ceil(chunks.number / workers)
    limits = {
        ("computing" if compute >= memory else "memory"): rounds * (max(compute, memory) + halo),
        "scheduler": chunks.tasks * there.overhead,
        "storage": chunks.number * chunks.out_bytes / there.storage,
    }
    limit = max(limits, key=limits.get)
    return limits[limit], limit


def layer(size: int, side: int, ci: int, co: int):
    """Return ``(data, enlarged)``: a lazy volume, and a function that returns the lazy sum of the upsampled volume."""
    import dask.array as da

    import convt.dask

    data = da.random.default_rng(0).standard_normal(
        (1, size, size, size, ci), chunks=(1, side, side, side, ci), dtype=np.float32
    )
    filter = np.random.default_rng(1).standard_normal((KERNEL,) * 3 + (ci, co)).astype(np.float32)
    return data, lambda data: convt.dask.conv_transpose(data, filter, strides=STRIDE, pads_begin=1, pads_end=1).sum()


def measured(workers: int, size: int, side: int, ci: int, co: int) -> float:
    """Measure the seconds with ``workers`` processes: the least of three runs after a run that packs the filter."""
    from dask.distributed import Client, LocalCluster, wait

    settings = dict(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    with LocalCluster(**settings) as cluster, Client(cluster) as client:
        data, enlarged = layer(size, side, ci, co)
        data = client.persist(data)
        wait(data)
        times = []
        for _ in range(4):
            start = time.perf_counter()
            client.compute(enlarged(data)).result()
            times.append(time.perf_counter() - start)
        return min(times[1:])


def counted(size: int, side: int, ci: int, co: int) -> Chunks:
    """Return the chunks with the number of tasks that dask makes of them."""
    import dask

    data, enlarged = layer(size, side, ci, co)
    (graph,) = dask.optimize(enlarged(data))
    return Chunks(math.prod(data.numblocks), side, ci, co, len(graph.__dask_graph__()))


def this_machine(network: float, storage: float, overhead: float) -> Machine:
    """Measure the speeds of this machine."""
    cores = len(os.sched_getaffinity(0))
    peak = machine.fma_peak(np.dtype(np.float32), 1) * 1e9
    return Machine(
        cores, peak, machine.copy_bandwidth(1) * 1e9, machine.copy_bandwidth(cores) * 1e9, network, storage, overhead
    )


def main(arguments: list[str] | None = None) -> None:
    parser = command.parser("scaling", __doc__, "--size 128 --side 32", "--workers '' --network 10 --json scaling.json")
    add = parser.add_argument
    counts = command.several(command.integer)
    add("--workers", type=lambda text: counts(text) if text else [], default=[1, 2], metavar="N,...",
        help="numbers of workers to measure; '' for none (default: 1,2)")  # fmt: skip
    add("--size", type=command.integer, default=256, help="side of the volume in voxels (default: 256)")
    add("--side", type=command.integer, default=64, help="side of a chunk in voxels (default: 64)")
    add("--channels", type=counts, default=[8, 8], metavar="N,N", help="in-channels, out-channels (default: 8,8)")
    add("--network", type=command.positive, default=1.0, help="GB/s to each worker (default: 1)")
    add("--storage", type=float, default=math.inf, help="GB/s of all workers together (default: outputs are not stored)")
    add("--overhead", type=float, default=0.5, help="scheduler milliseconds per task (default: 0.5)")
    command.add_json(parser)
    options = parser.parse_args(arguments)
    if len(options.channels) != 2:
        parser.error(f"--channels: got {len(options.channels)}, wanted the numbers of in-channels and out-channels")
    with command.packages(__name__), command.printing(options.json) as write_json:
        write_json(_show(options))


def _show(options: argparse.Namespace) -> list[dict]:
    """Measure and print. Return a dict for each number of workers."""
    sizes = options.size, options.side, *options.channels
    chunks = counted(*sizes)
    there = this_machine(options.network * 1e9, options.storage * 1e9, options.overhead / 1e3)
    print(
        f"{words.count(chunks.number, 'chunk')} of {chunks.side}x{chunks.side}x{chunks.side} voxels, "
        f"{chunks.ci} to {chunks.co} channels, {words.count(chunks.tasks, 'task')}\n"
        f"per chunk: {chunks.flops / 1e9:.2f} GFLOP, {chunks.memory_bytes / 1e6:.1f} MB memory traffic, "
        f"{chunks.halo_bytes / 1e6:.1f} MB halo\n"
        f"one core: {there.peak / 1e9:.0f} GFLOP/s, copy {there.copy_one / 1e9:.1f} GB/s; "
        f"{there.cores} cores: copy {there.copy_all / 1e9:.1f} GB/s"
    )
    times, found = {}, []
    with terminal.progress(len(options.workers)) as begin:
        for n in options.workers:
            begin(words.count(n, "worker"))
            times[n] = measured(n, *sizes)
    one, _ = expected(chunks, there, 1)
    heads = "workers", "measured", "speedup", "expected", "expected speedup", "efficiency", "limit"
    rows = []
    for n in sorted({*COUNTS, *times}):
        seconds, limit = expected(chunks, there, n)
        real = [f"{times[n]:.2f} s", f"{times[min(times)] / times[n] * min(times):.2f}"] if n in times else ["-", "-"]
        rows.append([str(n), *real, f"{seconds:.2f} s", f"{one / seconds:.2f}", f"{one / seconds / n:.0%}", limit])
        found.append({"workers": n, "measured": times.get(n), "expected": seconds, "limit": limit})
    terminal.draw("", heads, rows, ("workers", "speedup", "expected speedup", "limit"), left=("limit",))
    return found


if __name__ == "__main__":
    main()
