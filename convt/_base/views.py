"""Checks and views of the caller's arrays: what kernels can read, what overlaps, and the order of axes in memory."""

import numpy as np

from . import check


def check_out(out, shape, dtype, inputs):
    """Return a NumPy view of the caller's ``out``. Raise if shape or dtype differ or if it overlaps an array of ``inputs``."""
    if not isinstance(out, np.ndarray) and not hasattr(out, "__dlpack__"):
        raise TypeError(f"out: got {type(out).__name__}, wanted an array to write to (NumPy, or with __dlpack__)")
    view = check.array("out", out)
    if view.dtype != dtype:
        raise TypeError(f"out: got dtype {view.dtype}, wanted {dtype}")
    if view.shape != shape:
        raise ValueError(f"out: got shape {view.shape}, wanted {shape}")
    if not view.flags.writeable:
        raise ValueError(
            "out: got a read-only array, wanted a writeable one"
            if isinstance(out, np.ndarray)
            else f"out: got {type(out).__name__}, which does not say that it is writeable; wanted an array that does"
        )
    if not elements_disjoint(view):
        raise ValueError("out: got an array whose elements share memory, wanted separate memory for each element")
    for name, other in inputs:
        if other is not None and _overlap(view, other):
            raise ValueError(f"out: got an array that overlaps {name} in memory, wanted one that does not")
    return view


def elements_disjoint(view):
    """Check that no two elements of a view share memory.

    The check is sufficient, not necessary: each stride must exceed the extent that all smaller strides span.
    """
    reach = view.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(view.strides, view.shape, strict=True) if n > 1):
        if stride < reach and view.size:
            return False
        reach += stride * (n - 1)
    return True


def _overlap(a, b):
    """Check whether two arrays share memory. Return True if NumPy cannot decide within the work limit."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)
    except np.exceptions.TooHardError:
        return True


def addressable(view):
    """Check whether the kernels can read the view: aligned elements, and strides that are multiples of the item size."""
    return view.flags.aligned and all(s % view.itemsize == 0 for s in view.strides)


def readable_view(view):
    """Return the view if the kernels can read it, else a copy with the same order of axes in memory; None for None.

    The order is kept because plans depend on it.
    """
    return view if view is None or addressable(view) else view.copy("K")


def in_the_same_order(out, add):
    """Return ``(out, add)``, or new arrays where needed, so that both have the same strides and no gaps between elements.

    A new ``add`` is a copy; a new ``out`` is uninitialised.
    """
    target = np.empty_like(out)
    if _same_strides(target, out):
        target = out
    if not addressable(add) or not _same_strides(target, add):
        copy = np.empty_like(target)
        copy[...] = add
        add = copy
    return target, add


def _same_strides(a, b):
    """Check whether two arrays of one shape have the same strides on all axes of two or more elements."""
    return all(step == other for step, other, n in zip(a.strides, b.strides, a.shape, strict=True) if n > 1)
