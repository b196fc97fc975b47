"""A volume larger than memory, twice as large on every axis, from zarr to zarr: ``python examples/volume.py FOLDER``.

A made-up tomogram, a sponge in a ball, is written to FOLDER/volume.zarr (``--gigabytes``), and enlarged chunk by chunk by
``convt.dask`` to FOLDER/enlarged.zarr, eight times as large: trilinear interpolation is a transposed convolution of stride 2
with a kernel of tents. Chunks are so small that the peak of memory stays below ``--limit`` gigabytes; it is printed, and beyond
the limit the program fails. With ``--workers N`` worker processes of dask.distributed compute. A part of a slice of both
volumes is drawn in FOLDER/volume.png. Needs ``pip install "convt[dask,bench]" zarr distributed``.
"""

import argparse
import contextlib
import os
import resource
from pathlib import Path

import dask
import dask.array as da
import matplotlib.image
import numpy as np
import zarr
from dask.diagnostics import ProgressBar

import convt.dask

CORES = len(os.sched_getaffinity(0))
TENT = np.array([0.25, 0.75, 0.75, 0.25], np.float32)
FILTER = np.einsum("i,j,k->ijk", TENT, TENT, TENT)[..., None, None]
WAVE = 24  # voxels from hole to hole
AT_REST = 0.6e9  # bytes of a process with its libraries, and of outputs that convt keeps for the next ones
COPIES = 4  # of a chunk's inputs and outputs: computed, compressed, waiting


def sponge(size, block_info=None):
    """A chunk of a sponge in a ball, amid air, in a cube of so many voxels a side."""
    z, y, x = (np.arange(a, b, dtype=np.float32) * (2 / size) - 1 for a, b in block_info[None]["array-location"])
    z, y, x = z[:, None, None], y[:, None], x
    wave = np.float32(size * np.pi / WAVE)
    sin, cos = (lambda a: np.sin(a * wave)), (lambda a: np.cos(a * wave))
    gyroid = sin(x) * cos(y) + sin(y) * cos(z) + sin(z) * cos(x)
    ball = (0.9 - np.sqrt(x * x + y * y + z * z)) * (size / 4)
    return (np.clip(0.5 + gyroid, 0, 1) * np.clip(ball, 0, 1)).astype(np.float32)


def chunk_side(limit, tasks, processes):
    """Voxels a side of chunks of which so many at once stay within a limit in bytes."""
    voxels = (limit - AT_REST * processes) / (tasks * COPIES * (1 + 8) * 4)
    return int(np.clip(max(voxels, 1) ** (1 / 3) // 16 * 16, 16, 128))


def enlarged(volume, threads):
    """A dask array (depth, height, width), twice as large. Beyond its borders it is taken as zero."""
    y = convt.dask.conv_transpose(volume[None, ..., None], FILTER, strides=2, pads_begin=1, pads_end=1, threads=threads)
    return y[0, ..., 0]


def interpolated(block):
    """The same of a small array by NumPy, without the voxels at its ends."""
    for ax in range(block.ndim):
        a, b, c = (np.take(block, range(n, block.shape[ax] - 2 + n), ax) for n in range(3))
        block = np.stack([0.25 * a + 0.75 * b, 0.75 * b + 0.25 * c], ax + 1).reshape(
            *block.shape[:ax], -1, *block.shape[ax + 1 :]
        )
    return block


def largest_error(small, large, side):
    """Of NumPy's interpolation, around the corners of chunks along the diagonal."""
    found = []
    for c in range(side, small.shape[0], side):
        low, high = c - 4, min(c + 4, small.shape[0])
        want = interpolated(small[(slice(low, high),) * 3])
        found.append(abs(large[(slice(2 * low + 2, 2 * high - 2),) * 3] - want).max())
    return float(max(found, default=0))


def peak():
    """The most bytes of memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def computing(workers, limit):
    """``(compute, peak)``: computes with a bar of progress, and the most bytes of memory that all processes had."""
    if not workers:
        with dask.config.set(scheduler="threads", num_workers=CORES), ProgressBar():
            yield dask.compute, peak
        return
    from dask.distributed import Client, LocalCluster, progress

    def compute(lazy):
        future = client.compute(lazy)
        progress(future, notebook=False)
        future.result()
        print()

    settings = dict(n_workers=workers, threads_per_worker=1, memory_limit=int(limit / workers), dashboard_address=None)
    with LocalCluster(**settings) as cluster, Client(cluster) as client:
        yield compute, lambda: sum(client.run(peak).values())


def main(*arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="has to have room for nine times the volume")
    parser.add_argument("--gigabytes", type=float, default=2, help="of the volume to enlarge")
    parser.add_argument("--limit", type=float, default=2, help="of memory, in gigabytes")
    parser.add_argument("--workers", type=int, default=0, help="processes of dask.distributed; 0: threads of this one")
    options = parser.parse_args(arguments or None)
    limit, processes = options.limit * 1e9, max(1, options.workers)
    side = chunk_side(limit, options.workers or CORES, processes)
    size = max(2 * side, round((options.gigabytes * 1e9 / 4) ** (1 / 3)))
    threads = (
        max(1, CORES // options.workers) if options.workers else 1
    )  # of convt in a task: all of dask's together fill the cores
    source, target = options.folder / "volume.zarr", options.folder / "enlarged.zarr"
    with computing(options.workers, limit) as (compute, peak_of_all):
        shape = dict(shape=(size,) * 3, chunks=(side,) * 3)
        volume = da.map_blocks(sponge, size, chunks=da.core.normalize_chunks(shape["chunks"], shape["shape"]), dtype=np.float32)
        compute(volume.to_zarr(str(source), compute=False, overwrite=True))
        volume = da.from_zarr(str(source))
        lazy = enlarged(volume, threads)
        compute(lazy.to_zarr(str(target), compute=False, overwrite=True))
        most = peak_of_all()
    small, large = zarr.open_array(source, mode="r"), zarr.open_array(target, mode="r")
    error = largest_error(small, large, side)
    n, seen = size // 2, 128  # voxels of the picture, whose upper left corner is the ball's border
    low = int(n * (1 - 0.9 / 2**0.5)) - 8
    parts = small[n, low : low + seen, low : low + seen], large[2 * n, 2 * low : 2 * (low + seen), 2 * low : 2 * (low + seen)]
    pictures = [part.repeat(scale, 0).repeat(scale, 1) for part, scale in zip(parts, (4, 2), strict=True)]
    matplotlib.image.imsave(options.folder / "volume.png", np.concatenate(pictures, 1), cmap="gray", vmin=0, vmax=1)
    sizes = " -> ".join(f"{array.shape} ({array.nbytes / 1e9:.2f} GB)" for array in (small, large))
    print(f"{sizes}, chunks of {side} voxels a side")
    print(
        f"largest difference from NumPy's interpolation {error:.1e}; peak of memory {most / 1e9:.2f} GB of {options.limit:g} GB"
    )
    if most > limit or error > 1e-5:
        raise SystemExit("beyond the limit")


if __name__ == "__main__":
    main()
