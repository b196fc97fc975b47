"""Whether this process's memory grows with calls, operators and shapes:

    python tools/growth.py          # 100,000 calls, 10,000 operators, 10,000 shapes; a few minutes
    python tools/growth.py 0.1      # a tenth of that

Each kind runs a fifth of its turns first, which fills what convt keeps, and then the others; the memory that the process holds
may be larger by as much as ALLOWED afterwards. Exit status 1 where it is. Linux.
"""

import gc
import os
import sys

import numpy as np

import convt

ALLOWED = 4 << 20  # bytes: the C library's own blocks come and go
DTYPES = ("float32", "float16", "bfloat16", "float64")


def resident():
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def array(shape, n):
    import ml_dtypes

    dtype = DTYPES[n % len(DTYPES)]
    return np.ones(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def calls():
    """The same calls again and again: operators, the function, new outputs and given ones, NXC and NCX."""
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
    """Operators that are made, called and dropped."""
    n = 0
    while True:
        filter = array((2, 2, 8 + n % 7, 8), n)
        yield convt.ConvTranspose(filter, strides=2)(array((1, 3, 4, 8 + n % 7), n))
        n += 1


def shapes():
    """Ever other shapes, for one operator and for the function."""
    filter, n = array((2, 2, 8, 8), 0), 0
    op = convt.ConvTranspose(filter, strides=2)
    while True:
        place = n * 2741 % 10_000  # all shapes in an order that has large ones early, which fill what convt keeps
        data = array((1, 1 + place % 100, 1 + place // 100, 8), 0)
        yield op(data) if n % 2 else convt.conv_transpose(data, filter, strides=2)
        n += 1


def grown(kind, turns):
    """By how many bytes the process grows in the later four fifths of some turns."""
    steps = kind()
    for _ in range(max(turns // 5, 200)):  # more than convt's caches hold
        next(steps)
    gc.collect()
    before = resident()
    for _ in range(turns - turns // 5):
        next(steps)
    gc.collect()
    return resident() - before


def main():
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    failed = False
    for kind, turns in ((calls, 100_000), (operators, 10_000), (shapes, 10_000)):
        more = grown(kind, int(turns * scale))
        failed |= more > ALLOWED
        print(f"{int(turns * scale)} {kind.__name__}: {more / 1024:+.0f} KiB")
    sys.exit(failed)


if __name__ == "__main__":
    main()
