"""Trilinear enlargement of a volume larger than memory, from zarr to zarr: ``python examples/volume.py FOLDER``.

Trilinear interpolation by a factor of 2 is a transposed convolution with stride 2 and a tent kernel. The program writes a
synthetic tomogram (a sponge in a ball) of ``--gigabytes`` to FOLDER/volume.zarr, and ``convt.dask`` enlarges it chunk by chunk
to FOLDER/enlarged.zarr, which has eight times as many voxels. The size of chunks is chosen so that peak memory stays below
``--limit`` gigabytes. The program prints peak memory, and fails if peak memory is above the limit or the result is wrong. With
``--workers N``, N worker processes of dask.distributed compute the chunks. FOLDER/volume.png shows part of a slice of both
volumes. The program needs ``pip install -e ".[dask,bench]" zarr distributed``.
"""

import argparse
import contextlib
import os
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
WAVE = 24  # period of the sponge, in voxels
AT_REST = 0.6e9  # bytes of an idle process: its libraries, and the output memory that convt keeps for later calls
COPIES = 4  # estimated copies of a chunk's input and output in memory: computed, compressed, queued


def sponge(size, block_info=None):
    """Return a chunk of a cube of ``size`` voxels a side: a sponge in a ball, surrounded by zeros."""
    z, y, x = (np.arange(a, b, dtype=np.float32) * (2 / size) - 1 for a, b in block_info[None]["array-location"])
    z, y, x = z[:, None, None], y[:, None], x
    wave = np.float32(size * np.pi / WAVE)
    sin, cos = (lambda a: np.sin(a * wave)), (lambda a: np.cos(a * wave))
    gyroid = sin(x) * cos(y) + sin(y) * cos(z) + sin(z) * cos(x)
    ball = (0.9 - np.sqrt(x * x + y * y + z * z)) * (size / 4)
    return (np.clip(0.5 + gyroid, 0, 1) * np.clip(ball, 0, 1)).astype(np.float32)


def chunk_side(limit, tasks, processes):
    """Return the side of chunks, in voxels, so that ``tasks`` chunks at once stay within ``limit`` bytes of memory."""
    voxels = (limit - AT_REST * processes) / (tasks * COPIES * (1 + 8) * 4)
    return int(np.clip(max(voxels, 1) ** (1 / 3) // 16 * 16, 16, 128))


def enlarged(volume, threads):
    """Return a dask array (depth, height, width) enlarged by 2 on each axis. Voxels outside the volume count as 0."""
    y = convt.dask.conv_transpose(volume[None, ..., None], FILTER, strides=2, pads_begin=1, pads_end=1, threads=threads)
    return y[0, ..., 0]


def interpolated(block):
    """Return the enlargement of a small array by NumPy, without the enlarged voxels of its borders."""
    for ax in range(block.ndim):
        a, b, c = (np.take(block, range(n, block.shape[ax] - 2 + n), ax) for n in range(3))
        block = np.stack([0.25 * a + 0.75 * b, 0.75 * b + 0.25 * c], ax + 1).reshape(
            *block.shape[:ax], -1, *block.shape[ax + 1 :]
        )
    return block


def largest_error(small, large, side):
    """Return the largest difference from NumPy's interpolation, at the corners of chunks along the diagonal."""
    found = []
    for c in range(side, small.shape[0], side):
        low, high = c - 4, min(c + 4, small.shape[0])
        want = interpolated(small[(slice(low, high),) * 3])
        found.append(abs(large[(slice(2 * low + 2, 2 * high - 2),) * 3] - want).max())
    return float(max(found, default=0))


def peak():
    """Return the peak memory of this program, in bytes. Linux's `getrusage` would include the process that started it."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


@contextlib.contextmanager
def computing(workers, limit):
    """Yield ``(compute, peak)``: functions that compute with a progress bar, and return all processes' peak memory."""
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
    )  # convt threads of a task; tasks run in parallel and use all cores
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
    n, seen = size // 2, 128  # centre of the volume; side of the drawn part, which begins at the ball's border
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
