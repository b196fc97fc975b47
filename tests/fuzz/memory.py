"""Arrays of any strides that border on pages without access rights, so that an access outside them ends the process."""

import ctypes
import math
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_NONE, _READ = 0, 1


def _protect(memory, first, length, how):
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + first
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), how):
        raise OSError(ctypes.get_errno(), "mprotect")


def strides_of(shape, item, layout):
    """Return byte strides. A layout's ``order`` lists the axes from the outermost to the innermost. ``steps`` has one step per
    axis, in elements (negative: backwards; 0: all elements are one). ``gap`` elements lie between rows, and ``bytes`` bytes
    between elements. With ``sliding`` each axis steps by elements, so that rows overlap."""
    steps = layout.get("steps", [1] * len(shape))
    if layout.get("sliding"):
        return [item * step for step in steps]
    strides, reach = [0] * len(shape), item + layout.get("bytes", 0)
    for axis in reversed(layout.get("order", range(len(shape)))):
        strides[axis] = reach * steps[axis]
        reach = max(abs(strides[axis]) * shape[axis], reach)
        reach += layout.get("gap", 0) * item if reach > item else 0
    return strides


class Guarded:
    """An array, ``view``, of a shape and layout. Its first byte or, with the layout's ``end``, its last byte borders on a page
    without access rights, at a distance of ``off`` bytes. The bytes between its elements are 0xff."""

    def __init__(self, shape, dtype, layout):
        strides = strides_of(shape, dtype.itemsize, layout)
        reaches = [(n - 1) * step for n, step in zip(shape, strides, strict=True)] if 0 not in shape else []
        low = sum(min(0, reach) for reach in reaches)
        size = 0 if 0 in shape else sum(max(0, reach) for reach in reaches) + dtype.itemsize - low
        off = layout.get("off", 0)
        self._length = max(1, -(-(size + off) // PAGE)) * PAGE
        self._memory = mmap.mmap(-1, self._length + 2 * PAGE)
        for page in (0, PAGE + self._length):
            _protect(self._memory, page, PAGE, _NONE)
        self._bytes = np.frombuffer(self._memory, np.uint8, self._length, PAGE)
        self._bytes[:] = 0xFF
        first = PAGE + (self._length - size - off if layout.get("end") else off)
        self.view = np.ndarray(shape, dtype, self._memory, first - low, strides)
        self.nan = np.frombuffer(b"\xff" * dtype.itemsize, dtype)[0]  # what all bytes are at first

    def freeze(self):
        """Make the memory read-only."""
        _protect(self._memory, PAGE, self._length, _READ)
        self.view.flags.writeable = False

    def untouched(self):
        """Check whether all bytes are 0xff."""
        return bool((self._bytes == 0xFF).all())

    def only_elements_written(self):
        """Check whether the bytes between the elements are 0xff. Elements are set to 0xff by this."""
        self.view[...] = self.nan
        return self.untouched()


def guarded_copy(values, layout):
    """Return a read-only `Guarded` with these values. Elements that share memory hold one of their values."""
    guarded = Guarded(values.shape, values.dtype, layout)
    if math.prod(values.shape):
        guarded.view[...] = values
    guarded.freeze()
    return guarded
