"""A check that the memory of a process does not grow with calls, operators and shapes.

    python tools/growth.py          # 100,000 calls, 10,000 operators, 10,000 shapes; a few minutes
    python tools/growth.py 0.1      # a tenth of that

For each kind, WARM_UP turns run first, which fill convt's caches. The memory of the process may grow by at most MAX_GROWTH in
the turns after that. The exit status is 1 if it grows by more. It needs Linux.

glibc's malloc takes large blocks from its heap after the first of them was freed, and the heap grows by the gaps between
blocks. So the tool starts itself again with a fixed size above which blocks are separate from the heap.
"""

import gc
import os
import sys

import numpy as np

import convt

WARM_UP = 8_000  # more turns than convt's caches hold
MAX_GROWTH = 4 << 20  # bytes, for blocks that the C library takes and frees
DTYPES = ("float32", "float16", "bfloat16", "float64")


def resident():
    """Return the bytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def array(shape, n):
    import ml_dtypes

    dtype = DTYPES[n % len(DTYPES)]
    return np.ones(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def calls():
    """Repeat the same calls of operators and of the function: with new outputs and with ``out``, in NXC and NCX."""
    made = []
    for n in range(len(DTYPES)):
        for data_format, shape in (("NXC", (1, 5, 6, 16)), ("NCX", (1, 16, 5, 6))):
            filter, data = array((3, 3, 16, 8), n), array(shape, n)
            op = convt.ConvTranspose(filter, strides=2, data_format=data_format)
            made.append((op, data, filter, op(data), data_format))
    while True:
        for op, data, filter, out, data_format in made:
            yield op(data)
            yield op(data, out=out)
            yield convt.conv_transpose(data, filter, strides=2, data_format=data_format)


def operators():
    """Make, call and drop operators."""
    n = 0
    while True:
        filter = array((2, 2, 8 + n % 7, 8), n)
        yield convt.ConvTranspose(filter, strides=2)(array((1, 3, 4, 8 + n % 7), n))
        n += 1


def shapes():
    """Call one operator and the function with a new shape each time."""
    filter, n = array((2, 2, 8, 8), 0), 0
    op = convt.ConvTranspose(filter, strides=2)
    while True:
        place = n * 2741 % 10_000  # large shapes come early in this order and fill convt's caches
        data = array((1, 1 + place % 100, 1 + place // 100, 8), 0)
        yield op(data) if n % 2 else convt.conv_transpose(data, filter, strides=2)
        n += 1


def memory_growth(kind, turns):
    """Return the growth of the process in bytes over ``turns`` turns after the first WARM_UP."""
    steps = kind()
    for _ in range(WARM_UP):
        next(steps)
    gc.collect()
    before = resident()
    for _ in range(turns):
        next(steps)
    gc.collect()
    return resident() - before


def main():
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    failed = False
    for kind, turns in ((calls, 100_000), (operators, 10_000), (shapes, 10_000)):
        growth = memory_growth(kind, int(turns * scale))
        failed |= growth > MAX_GROWTH
        print(f"{int(turns * scale)} {kind.__name__}: {growth / 1024:+.0f} KiB")
    sys.exit(failed)


if __name__ == "__main__":
    main()
