"""How convt.dask scales with workers: measured on this machine, and expected on more. `python -m bench.scaling`

A volume is enlarged by worker processes of dask.distributed, of one thread each: 1, 2, ... of them (`--workers`). Inputs are in
their memory beforehand, and of the outputs only sums are sent. The table of what to expect takes bytes and operations of a
chunk, this machine's multiply-add peak and copy bandwidth, and what `--overhead`, `--network` and `--storage` say; workers
beyond the cores of a machine are on further ones alike. Needs `pip install "convt[dask,bench]" distributed`.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import NamedTuple

import numpy as np

from bench import machine
from bench.shared import words

KERNEL, STRIDE, HALO = 4, 2, 2
COUNTS = (1, 2, 4, 8, 16, 32, 64)


class Chunks(NamedTuple):
    """A cube of float32 in cubic chunks."""

    number: int
    side: int
    ci: int
    co: int
    tasks: int  # of dask, for all chunks

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
        """The inputs are copied to stand beside their halo, then read, and the outputs written."""
        return 3 * 4 * self.ci * (self.side + HALO) ** 3 + self.out_bytes


class Machine(NamedTuple):
    cores: int
    peak: float  # multiply-adds of a core, operations per second
    copy_one: float  # bytes per second that a core copies alone,
    copy_all: float  # and all cores together
    network: float  # bytes per second to a worker
    storage: float  # bytes per second from all workers together; infinite where outputs stay
    overhead: float  # seconds of the scheduler per task


def expected(chunks: Chunks, there: Machine, workers: int) -> tuple[float, str]:
    """Seconds, and what they are spent on: each worker computes its chunks, reads and writes them and receives their halos; the
    scheduler and the storage are all workers' together."""
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
    """``(data, sum)``, lazily: a volume, and the sum of what convt.dask makes of it."""
    import dask.array as da

    import convt.dask

    data = da.random.default_rng(0).standard_normal(
        (1, size, size, size, ci), chunks=(1, side, side, side, ci), dtype=np.float32
    )
    filter = np.random.default_rng(1).standard_normal((KERNEL,) * 3 + (ci, co)).astype(np.float32)
    return data, lambda data: convt.dask.conv_transpose(data, filter, strides=STRIDE, pads_begin=1, pads_end=1).sum()


def measured(workers: int, size: int, side: int, ci: int, co: int) -> float:
    """Seconds of so many worker processes, the least of three runs after one that packs the filter."""
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
    """The chunks, and the tasks that dask makes of them."""
    import dask

    data, enlarged = layer(size, side, ci, co)
    (graph,) = dask.optimize(enlarged(data))
    return Chunks(math.prod(data.numblocks), side, ci, co, len(graph.__dask_graph__()))


def this_machine(network: float, storage: float, overhead: float) -> Machine:
    cores = len(os.sched_getaffinity(0))
    peak = machine.fma_peak(np.dtype(np.float32), 1) * 1e9
    return Machine(
        cores, peak, machine.copy_bandwidth(1) * 1e9, machine.copy_bandwidth(cores) * 1e9, network, storage, overhead
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2", help="how many to measure; '' for none")
    parser.add_argument("--size", type=int, default=256, help="voxels a side of the volume")
    parser.add_argument("--side", type=int, default=64, help="of a chunk")
    parser.add_argument("--channels", default="8,8", help="in, out")
    parser.add_argument("--network", type=float, default=1.0, help="GB/s to a worker")
    parser.add_argument(
        "--storage", type=float, default=math.inf, help="GB/s of all workers together, where outputs are stored"
    )
    parser.add_argument("--overhead", type=float, default=0.5, help="milliseconds of the scheduler per task")
    options = parser.parse_args()
    ci, co = map(int, options.channels.split(","))
    sizes = options.size, options.side, ci, co
    chunks = counted(*sizes)
    there = this_machine(options.network * 1e9, options.storage * 1e9, options.overhead / 1e3)
    print(
        f"{words.count(chunks.number, 'chunk')} of {chunks.side} voxels a side, {ci} channels to {co}, "
        f"{words.count(chunks.tasks, 'task')}\n"
        f"a chunk: {chunks.flops / 1e9:.2f} GFLOP, {chunks.memory_bytes / 1e6:.1f} MB of memory traffic, "
        f"{chunks.halo_bytes / 1e6:.1f} MB of halo\n"
        f"a core: {there.peak / 1e9:.0f} GFLOP/s, copies {there.copy_one / 1e9:.1f} GB/s; "
        f"{there.cores} cores together copy {there.copy_all / 1e9:.1f} GB/s"
    )
    times = {n: measured(n, *sizes) for n in map(int, filter(None, options.workers.split(",")))}
    one, _ = expected(chunks, there, 1)
    print("workers  measured  times as fast  expected  times as fast  efficiency  limit")
    for n in sorted({*COUNTS, *times}):
        seconds, limit = expected(chunks, there, n)
        real = f"{times[n]:7.2f} s" if n in times else "        -"
        ratio = f"{times[min(times)] / times[n] * min(times):13.2f}" if n in times else "            -"
        print(f"{n:7d} {real}  {ratio} {seconds:7.2f} s  {one / seconds:13.2f}  {one / seconds / n:9.0%}  {limit}")


if __name__ == "__main__":
    main()
