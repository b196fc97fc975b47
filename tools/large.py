"""A check of results beyond 2^31 elements and 4 GiB, for each algorithm that supports them.

    python tools/large.py                  # all algorithms; some minutes, and 10 GiB of memory
    python tools/large.py direct:vectors winograd:vectors  # only these algorithms

All rows of the data are equal, so all rows of the result except the first and last ones repeat the rows of a small result. The
exit status is 1 if a result is wrong.
"""

import sys
import time

import numpy as np

import convt

ROWS = 24  # rows of the small problem
WIDTH = 64
# name -> (groups, in-channels, out-channels, kernel, stride)
LAYERS = {
    "dense": (1, 4, 16, 4, 2),
    "few out-channels": (1, 16, 2, 4, 2),
    "depthwise": (16, 1, 1, 4, 2),
    "same size": (8, 1, 1, 3, 1),
}
ALGORITHMS = {
    "direct:vectors": ("dense", "few out-channels"), "winograd:vectors": ("dense",), "winograd:six:vectors": ("dense",),
    "scatter:vectors": ("few out-channels",), "depthwise:vectors": ("depthwise", "same size"),
    "rows:vectors": ("few out-channels", "depthwise"), "turned:vectors": ("dense",),
    "direct:amx": ("dense",), "scatter:amx": ("few out-channels",), "winograd:amx": ("dense",), "turned:amx": ("dense",),
    "direct:dots": ("dense",), "scatter:dots": ("few out-channels",),
}  # fmt: skip
# (dtype, elements of the result, whether all rows of the data are in memory; else one row is broadcast)
SIZES = (
    ("float16", (1 << 31) + (1 << 20), False),
    ("float32", (1 << 30) + (1 << 20), False),
    ("float16", (1 << 31) + (1 << 20), True),
)
OF_DOTS = (("bfloat16", (1 << 31) + (1 << 20), False),)  # the only dtype that dot products multiply exactly


def rows_of(array, planar, rows):
    """Return one row of data repeated ``rows`` times by broadcasting, with a batch axis."""
    row = array[:, None] if planar else array[None]  # [channel][row][x], or [row][x][channel]
    shape = (row.shape[0], rows, row.shape[2]) if planar else (rows, *row.shape[1:])
    return np.broadcast_to(row, shape)[None]


def check(algorithm, layer, dtype, elements, whole, planar):
    """Return None if the result is right, else the wrong rows. Raise ValueError if the algorithm does not support the layer."""
    groups, ci, co, kernel, stride = LAYERS[layer]
    rng, axis = np.random.default_rng(0), 2 if planar else 1
    row = rng.integers(-2, 3, (groups * ci, WIDTH) if planar else (WIDTH, groups * ci)).astype(dtype)
    filter = rng.integers(-2, 3, (kernel, kernel, groups * ci, co)).astype(dtype)
    operator = convt.ConvTranspose(
        filter, strides=stride, groups=groups, pads_begin=1, pads_end=1, data_format="NCX" if planar else "NXC",
        algorithm=algorithm,
    )  # fmt: skip
    rows = elements // (WIDTH * stride * groups * co * stride)
    data = rows_of(row, planar, rows)
    if whole:
        data = np.ascontiguousarray(data)
    small = operator(rows_of(row, planar, ROWS)).astype(np.float32)
    got = operator(data)
    assert got.size >= elements * 0.99 and got.flags.c_contiguous
    part = lambda array, low, high: array[:, :, low:high] if planar else array[:, low:high]  # noqa: E731
    # Multiples of the stride, so that phases match. The rows between the edges repeat with this step.
    edge, end, step = 4 * stride, got.shape[axis], 4 * stride
    middle = part(small, edge, edge + step)
    near = lambda a, b: np.allclose(a.astype(np.float32), b, rtol=0, atol=0.05)  # noqa: E731
    if not near(part(got, 0, edge), part(small, 0, edge)):
        return "the first rows"
    if not near(part(got, end - edge, end), part(small, small.shape[axis] - edge, small.shape[axis])):
        return "the last rows"
    some = 256 * step
    for low in range(edge, end - edge, some):
        high = min(low + some, end - edge)
        count = -(-(high - low) // step)
        want = part(np.concatenate([middle] * count, axis), 0, high - low)
        if not near(part(got, low, high), want):
            return f"rows from {low} on, of {end}"
    return None


def main():
    wrong = 0
    for algorithm in sys.argv[1:] or ALGORITHMS:
        for layer in ALGORITHMS[algorithm]:
            for planar in (False, True):
                for dtype, elements, whole in OF_DOTS if algorithm.endswith(":dots") else SIZES:
                    if whole and layer != "same size":
                        continue
                    start = time.monotonic()
                    name = f"{algorithm:20} {layer:16} {'NCX' if planar else 'NXC'} {dtype} {'whole data' if whole else ''}"
                    try:
                        found = check(algorithm, layer, dtype, elements, whole, planar)
                    except ValueError as error:
                        print(f"{name}: unsupported ({str(error)[:60]}...)")
                        break
                    wrong += found is not None
                    print(
                        f"{name}: {'right' if found is None else 'WRONG: ' + found}, {time.monotonic() - start:.0f} s",
                        flush=True,
                    )
                    convt.clear_caches()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
