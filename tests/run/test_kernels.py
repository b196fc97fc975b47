"""Tests of each kernel alone, on small arrays at its edges, against a few lines of NumPy in float64.

Values are small integers, so results are exact. Arrays end at a page that cannot be read, and bytes around outputs must stay as
they were: see kernel_tables.py. The first tests check the parser of the header, and the table of kernels in CONTRIBUTING.md.
"""

import ctypes
import itertools
import math
import re
from contextlib import contextmanager
from pathlib import Path

import cases
import ml_dtypes
import numpy as np
import pytest
from cases import DTYPES, ISA_ROWS, ROOT
from kernel_tables import (
    CONSTANTS,
    ENTRIES,
    HEADER,
    STRUCTURES,
    Guarded,
    Kernels,
    act,
    each_set,
    guarded,
    record,
    records,
)

from convt import _core

pytestmark = pytest.mark.every_isa
KC, LDA = CONSTANTS["CONVT_KC"], CONSTANTS["CONVT_LDA"]
SIMPLE = ("NONE", "CLIP", "LEAKY")


def activate(x, name):
    """Apply the activation of a code, with the numbers of `act`."""
    row = {"NONE": None, "CLIP": ("clip", 0.25, 3.0), "LEAKY": ("leaky_relu", 0.25)}.get(name, (name.lower(), 0.25))
    return cases.activate(row, np.asarray(x, np.float64))


def numbers(*shape, most=3):
    """Return small integers, different in each call of a test."""
    return np.random.default_rng(math.prod(shape) + len(shape)).integers(-most, most + 1, shape).astype(np.float64)


def as_float(array):
    return np.asarray(array).astype(np.float64)


def same(got, want, dtype, message=""):
    """Check that an array of a dtype holds the values, rounded to the dtype."""
    want = np.asarray(want).astype(np.float32 if np.dtype(dtype).itemsize < 8 else np.float64).astype(dtype)
    np.testing.assert_array_equal(as_float(got), as_float(want), err_msg=str(message))


def edges(lanes, most=math.inf):
    """Return counts at the edges of vectors."""
    return sorted({n for n in (1, 2, lanes - 1, lanes, lanes + 1, 2 * lanes, 3 * lanes + 1) if 0 < n <= most})


@contextmanager
def tiles(k):
    """Begin and end the use of AMX tiles, if the set has them."""
    if k.begin_tiles:
        k.begin_tiles()
    yield
    if k.end_tiles:
        k.end_tiles()


# ---------------------------------------------------------------- the table


def test_the_parser_sees_all_of_the_header():
    """Check the sizes of the tables against what the library reports."""
    bodies = HEADER.split("typedef struct {")[1:]
    assert len(STRUCTURES) == len(bodies) and len(ENTRIES) == bodies[-2].count("(*")
    for isa in ISA_ROWS:
        for dtype in DTYPES:
            k = Kernels(isa, "vectors", dtype)
            assert k.table.name.decode() == isa
            info = _core.kernel_info(dtype, isa=isa)
            assert (info is None) == (k.tile is None)
            assert info is None or [info["mr"], info["wide"], info["lda"]] == [list(k.mr), k.wide, k.lda]


def test_each_kernel_has_a_test_here():
    text = Path(__file__).read_text()
    untested = [name for name in ENTRIES if f'@each_set("{name}"' not in text]
    assert untested == []


def uses():
    """Return ``{kernel: folders of algorithms and modules of convt/_run and convt/_model that call it}``."""
    found = {name: set() for name in ENTRIES}
    call = re.compile(rf"\bk\.({'|'.join(ENTRIES)})\(")
    for path in (*ROOT.glob("convt/**/*.pyx"), *ROOT.glob("convt/**/*.pxd")):
        parts = path.relative_to(ROOT / "convt").parts
        room = parts[1] if parts[0] == "algorithms" and len(parts) > 2 else path.stem
        for name in call.findall(path.read_text()):
            found[name].add(room)
    return found


def test_the_table_of_kernels_is_true():
    """Check the table in CONTRIBUTING.md: kernel, what calls it, its test here."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split("| kernel |")[1].split("\n\n")[0]
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    table = {kernel.strip("`"): (set(re.findall(r"`(\w+)`", users)), test.strip("`")) for kernel, users, test in rows}
    assert {kernel: users for kernel, (users, _) in table.items()} == uses()
    here = Path(__file__).read_text()
    for kernel, (_, test) in table.items():
        assert f'@each_set("{kernel}"' in here.split(f"\ndef {test}(")[0].split("\n\n\n")[-1], kernel


# ---------------------------------------------------------------- register tiles


def packed_a(k, values):
    """Return rows of A as `tile` reads them: padded to whole steps of depth, `lda` elements apart."""
    rows, kc = values.shape
    depth = -(-kc // k.kstep) * k.kstep
    a = Guarded((max(rows, 1) + -rows % k.m_step) * k.lda * k.e_size, np.uint8, aligned=True).array
    assert k.pack(a, k.lda, guarded(values, k.S), kc, 1, rows, kc, depth)
    return a


def packed_b(k, values, columns):
    kc, cols = values.shape
    depth = -(-kc // k.kstep) * k.kstep
    b = Guarded(max(1, depth) * columns * k.e_size, np.uint8, aligned=True).array
    b[...] = 0
    assert k.pack_b(b, 0, 0, guarded(values, k.S), cols, 1, kc, cols, columns)
    return b


class Rows:
    """Rows of outputs, each guarded. Whole vectors of a row may be read, and only ``cols`` elements written."""

    def __init__(self, count, cols, dtype, values=None, room=0, aligned=False):
        self.each = [Guarded(cols + room, dtype, aligned) for _ in range(count)]
        self.cols = cols
        for n, row in enumerate(self.each if values is not None else ()):
            row.array[:cols] = values[n].astype(dtype)

    def pointers(self):
        return [row.array for row in self.each]

    def check(self, want, message):
        for n, row in enumerate(self.each):
            same(row.array[: self.cols], want[n], row.array.dtype, (message, n))
            row.assert_only(slice(0, self.cols))


def tile_shapes(k):
    """Return (mr, nv, cols) at the edges of register tiles; nv = 4 is a tile of two panels."""
    for nv in range(1, k.nr // k.vl + 1):
        for mr in range(1, k.mr[nv] + 1):
            yield mr, nv, nv * k.vl
        for cols in {nv * k.vl - 1, (nv - 1) * k.vl + 1}:
            yield k.mr[nv], nv, cols
    for mr in range(1, k.wide + 1):
        yield mr, 2 * k.nr // k.vl, 2 * k.nr


def run_tile(k, mr, nv, cols, kc, init, name, narrow, stream, more=0):
    """Run `tile` on integers and check all rows. ``init``: "bias" of all rows, "sums" of each, or "rows"."""
    count, wide, message = mr * (more + 1), nv * k.vl > k.nr, (mr, nv, cols, kc, init, name, narrow, stream, more)
    panel = min(nv * k.vl, k.nr)
    a, b, first = numbers(count, kc), numbers(kc, cols), numbers(1 if init == "bias" else count, nv * k.vl)
    out = Rows(count, cols, k.S if narrow else k.T, first[:, :cols] if init == "rows" else None,
               nv * k.vl - cols if init == "rows" else 0, aligned=stream)  # fmt: skip
    start = guarded(first[:, :panel], k.T, aligned=True)
    fields = {}
    if wide:
        fields = {"b2": packed_b(k, b[:, panel:], panel), "row_offset2": panel}
        fields["init2"] = None if init == "rows" else guarded(first[:, panel:], k.T, aligned=True)
    tile = record(
        "convt_tile", kc=-(-kc // k.kstep) * k.kstep, nv=nv, a=packed_a(k, a), b=packed_b(k, b[:, :panel], panel), lda=k.lda,
        init=None if init == "rows" else start, init_ld=panel if init == "sums" else 0, rows=out.pointers(), cols=cols,
        act=act(name), stream=stream, narrow_dtype=k.narrow_dtype if narrow else 0, prefetch_step=64, more_tiles=more, **fields,
    )  # fmt: skip
    if wide and init == "sums":  # both panels have rows of init at the same distance
        tile.init_ld = panel
    with tiles(k):
        k.tile(mr, tile)
    out.check(activate(a @ b + first[:, :cols], name), message)


@each_set("tile")
def test_tile(k):
    for mr, nv, cols in tile_shapes(k):
        run_tile(k, mr, nv, cols, 9 * k.kstep, "bias", "NONE", False, False)
        run_tile(k, mr, nv, cols, 5, "rows", "CLIP", False, False)
        run_tile(k, mr, nv, cols, 4 * k.kstep + 1, "sums", "LEAKY", bool(k.narrow_dtype), False)
    mr, nv = k.mr[2], 2
    for kc, init in itertools.product((0, 1, 2, 3, 4, 2 * k.kstep + 1, 60, KC), ("bias", "sums", "rows")):
        run_tile(k, mr, nv, nv * k.vl, kc, init, "NONE", False, True)
        run_tile(k, mr, nv, nv * k.vl - 1, kc, init, "CLIP", bool(k.narrow_dtype) and init != "rows", False)
    if k.narrow_dtype:
        run_tile(k, mr, nv, nv * k.vl, 7, "bias", "NONE", True, True)
    for more in (1, 2) if k.m_step == 1 else ():
        run_tile(k, 1, 1, k.vl, 8, "bias", "NONE", False, False, more)
        run_tile(k, mr, nv, nv * k.vl, 3, "sums", "CLIP", False, False, more)


@each_set("flush_stores")
def test_stores_that_a_tile_leaves(k):
    """Check three tiles, each of which stores the rows of the one before; `flush_stores` stores those of the last."""
    mr, cols, kc = k.mr[2], k.nr, 2 * k.kstep
    buffer = Guarded(mr * cols, k.T, aligned=True)
    pending = record("convt_pending_stores", sums=buffer.array)
    wanted = []
    with tiles(k):
        for n in range(3):
            a, b, bias = numbers(mr, kc), numbers(kc, cols + n)[:, n:], numbers(cols + n)[n:]
            out = Rows(mr, cols, k.T, aligned=True)
            made = record(
                "convt_tile", kc=kc, nv=2, a=packed_a(k, a), b=packed_b(k, b, cols), lda=k.lda, init=guarded(bias, k.T, True),
                rows=out.pointers(), cols=cols, act=act("CLIP"), stream=1, prefetch_step=64, pending=pending,
            )  # fmt: skip
            k.tile(mr, made)
            wanted.append((out, activate(a @ b + bias, "CLIP"), made))
        k.flush_stores(pending)
    assert pending.left == 0
    for n, (out, want, _) in enumerate(wanted):
        out.check(want, n)


@each_set("begin_tiles")
def test_tiles_can_be_begun_again(k):
    for _ in range(2):
        k.begin_tiles()
        k.begin_tiles()
        k.end_tiles()


@each_set("end_tiles")
def test_tiles_are_ended(k):
    k.begin_tiles()
    k.end_tiles()
    run_tile(k, 1, 1, k.vl, k.kstep, "bias", "NONE", False, False)  # begins and ends them again


# ---------------------------------------------------------------- copies


@each_set("copy_non_temporal")
def test_copy_non_temporal(k):
    for lines in (0, 1, 2, 3, 5):
        source = np.arange(64 * lines, dtype=np.uint8)
        for shift in (0, 1, 4):
            src, dst = guarded(np.r_[np.zeros(shift, np.uint8), source], np.uint8), Guarded(64 * lines, np.uint8, aligned=True)
            k.copy_non_temporal(dst.array, src[shift:], 64 * lines)
            k.fence()
            np.testing.assert_array_equal(dst.array, source)
            dst.assert_only(slice(None))
    for size in (0, 1, 63, 64, 127, 128, 129, 191, 500):
        source = np.arange(size).astype(np.uint8)
        for first in (0, 1, 4, 63):
            dst = Guarded(first + size, np.uint8, aligned=True)
            k.copy_non_temporal(dst.array[first:], guarded(source, np.uint8), size)
            k.fence()
            np.testing.assert_array_equal(dst.array[first:], source)
            dst.assert_only(slice(first, None))


@each_set("fence")
def test_fence(k):
    k.fence()  # only another thread could see its effect


LAYOUTS = ("rows", "columns", "strided")


def matrix_in(values, dtype, layout):
    """Return (array at the first element, rs, cs) of a guarded matrix of a dtype: contiguous rows or columns, or neither."""
    rows, cols = values.shape
    if layout == "rows":
        return guarded(np.pad(values, ((0, 0), (0, 3))).ravel()[: rows * (cols + 3) - 3], dtype), cols + 3, 1
    if layout == "columns":
        return guarded(np.pad(values.T, ((0, 0), (0, 2))).ravel()[: cols * (rows + 2) - 2], dtype), 1, rows + 2
    spread = np.full((rows, 3 * cols), np.nan)
    spread[:, ::3] = values
    return guarded(spread.ravel()[: rows * 3 * cols - 2], dtype), 3 * cols, 3


def converted(k, entry, element, lanes, round_columns=1):
    """Check `pack` or `widen`, which convert rows of S to elements, padded with zeros."""
    for rows, cols, layout in itertools.product((1, 2, 3, 4, 5, 9), edges(lanes), LAYOUTS):
        values = numbers(rows, cols)
        src, rs, cs = matrix_in(values, k.S, layout)
        for padded in {cols, -(-cols // lanes) * lanes}:
            padded += -padded % round_columns
            ld = padded + 2 * round_columns
            dst = Guarded((rows - 1) * ld + padded, element, aligned=True)
            assert getattr(k, entry)(dst.array, ld, src, rs, cs, rows, cols, padded) == CONSTANTS["CONVT_FITS_WEIGHTS"]
            at = (np.arange(rows)[:, None] * ld + np.arange(padded)).ravel()
            got = np.asarray(dst.array)[at].reshape(rows, padded)
            same(got, np.pad(values, ((0, 0), (0, padded - cols))), element, (rows, cols, layout, padded))
            dst.assert_only(at)


@each_set("widen")
def test_widen(k):
    converted(k, "widen", k.T, k.vl)


@each_set("widen")
def test_widen_columns_that_share_sets_of_the_cache(k):
    """Check contiguous columns 2 KiB apart, which are copied before they are transposed."""
    rows, cols, cs = 131, k.vl + 1, 2048 // k.S.itemsize
    values = numbers(rows, cols)
    src = np.zeros((cols, cs))
    src[:, :rows] = values.T
    dst = Guarded(rows * cols, k.T, aligned=True)
    k.widen(dst.array, cols, guarded(src.ravel()[: (cols - 1) * cs + rows], k.S), 1, cs, rows, cols, cols)
    same(dst.array.reshape(rows, cols), values, k.T)
    dst.assert_only(slice(None))


def on_vectors(k):
    return not k.parts and k.kstep == 1


def tolerance(k):
    """Return the relative tolerance of an activation that is not exact, stored in the dtype of a kernel set."""
    return max(2e-3, 1.3 * float(ml_dtypes.finfo(k.S).eps))


def bfloat16_of(values):
    """Return the bits of bfloat16 values."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def check_pack(k, entry):
    """Check `pack` or `pack_uncached`. On AMX tiles, a row has for each step of depth its parts, each in pairs k and k + 16."""
    if on_vectors(k):
        converted(k, entry, k.T, k.vl)
        return
    if not k.parts:
        converted(k, entry, DTYPES["bfloat16"][0], k.vl)
        return
    for rows, cols, layout in itertools.product((1, 3, 17), (1, 15, 16, 17, 31, 32, 33), LAYOUTS):
        values, depth = numbers(rows, cols), -(-cols // k.kstep) * k.kstep
        src, rs, cs = matrix_in(values, k.S, layout)
        dst = Guarded(rows * k.lda * k.parts, np.uint16, aligned=True)
        assert getattr(k, entry)(dst.array, k.lda, src, rs, cs, rows, cols, depth) == CONSTANTS["CONVT_FITS_WEIGHTS"]
        got = dst.array.reshape(rows, -1)[:, : depth * k.parts].reshape(rows, depth // 32, k.parts, 16, 2)
        want = np.pad(values, ((0, 0), (0, depth - cols))).reshape(rows, depth // 32, 2, 16).swapaxes(2, 3)
        np.testing.assert_array_equal(got[:, :, 0], bfloat16_of(want), err_msg=str((rows, cols, layout)))
        assert not (got[:, :, 1:] & 0x7FFF).any()  # small integers need no further part


@each_set("pack")
def test_pack(k):
    check_pack(k, "pack")


@each_set("pack_uncached")
def test_pack_uncached(k):
    check_pack(k, "pack_uncached")


@each_set("pack", lambda k: k.set.kstep > 1 and k.dtype == "float32")
def test_pack_reports_the_range(k):
    """Check the result of `pack`: weights may be smaller than data only as far as their product stays in range."""
    for exponent, want in ((0, 2), (-39, 2), (-40, 1), (-64, 1), (-65, 0), (48, 2), (49, 0)):
        a = np.zeros(k.lda * k.e_size, np.uint8)
        assert k.pack(a, k.lda, np.full(32, 2.0**exponent, "f4"), 32, 1, 1, 32, 32) == want, exponent


@each_set("pack_b")
def test_pack_b(k):
    """Check a panel by the elements that the header describes, for calls that fill a part of it."""
    nb = k.nr
    for (rows, k0), (cols, n0), layout in itertools.product(
        ((1, 0), (2, 0), (3, 2), (k.kstep + 1, 0), (2 * k.kstep, k.kstep)), ((1, 3), (k.vl, 0), (nb - 1, 1), (nb, 0)), LAYOUTS
    ):
        values = numbers(rows, cols)
        src, rs, cs = matrix_in(values, k.S, layout)
        depth = -(-(k0 + rows) // k.kstep) * k.kstep
        element = np.dtype(np.uint16 if k.kstep > 1 else k.T)
        panel = Guarded(depth * nb * k.e_size // element.itemsize, element, aligned=True)
        assert k.pack_b(panel.array, k0, n0, src, rs, cs, rows, cols, nb) == CONSTANTS["CONVT_FITS_WEIGHTS"]
        if k.kstep == 1:
            got = panel.array.reshape(depth, nb)
        elif not k.parts:
            got = panel.array.reshape(depth // 2, nb, 2).swapaxes(1, 2).reshape(depth, nb)
        else:  # step, part, vector of columns, depth % 16, column, depth // 16
            got = panel.array.reshape(depth // 32, k.parts, nb // 16, 16, 16, 2)[:, 0].transpose(0, 4, 2, 1, 3)
            got = got.reshape(depth, nb)
        message = (rows, k0, cols, n0, layout)
        if k.kstep > 1:
            np.testing.assert_array_equal(got[k0 : k0 + rows, n0 : n0 + cols], bfloat16_of(values), err_msg=str(message))
        else:
            same(got[k0 : k0 + rows, n0 : n0 + cols], values, k.T, message)
        for other in (got[:, :n0], got[:, n0 + cols :], got[:k0]):  # columns and steps of depth of other calls
            assert np.isnan(other).all() if k.kstep == 1 else (other == 0xFFFF).all(), message


@each_set("gather")
def test_gather(k):
    """Check maps that are contiguous, within one, two and eight vectors, and far apart."""
    for rows, cols, reach in itertools.product((1, 3), edges(k.vl), (1, k.vl, 2 * k.vl, 8 * k.vl, 40 * k.vl)):
        maps = [np.random.default_rng(cols).integers(0, reach, cols), np.arange(cols), np.arange(cols)[::-1] * 2]
        for map in maps:
            width = int(map.max()) + 1
            values = numbers(rows, width)
            for writable in {cols, -(-cols // k.vl) * k.vl}:
                dst = Guarded(rows * (writable + 1), k.T, aligned=True)
                src = guarded(values, k.S)
                k.gather(dst.array, writable + 1, src, width, guarded(map, np.int64), rows, cols, writable)
                at = np.arange(rows)[:, None] * (writable + 1)
                got = np.asarray(dst.array)[at + np.arange(cols)]
                same(got, values[:, map], k.T, (rows, cols, reach, writable))
                dst.assert_only((at + np.arange(writable)).ravel())


def moved(k, entry, source, target):
    """Check `transpose` or `narrow`: a matrix with other strides, by whole aligned vectors with `stream`."""
    for rows, cols, layout, to in itertools.product((1, 2, 3, 5, 67), (1, 3, *edges(k.vl), 66), LAYOUTS, LAYOUTS[:2]):
        if rows * cols > 700 and layout == "strided":
            continue
        values = numbers(rows, cols, most=40)
        src, rs, cs = matrix_in(values, source, layout)
        for stream in (0, 1):
            ld, dc = (-(-cols // 64) * 64, 1) if to == "rows" else (1, rows)
            dst = Guarded((rows - 1) * ld + (cols - 1) * dc + 1, target, aligned=bool(stream))
            getattr(k, entry)(dst.array, ld, dc, src, rs, cs, rows, cols, stream)
            k.fence()
            at = np.arange(rows)[:, None] * ld + np.arange(cols) * dc
            same(np.asarray(dst.array)[at], values, target, (rows, cols, layout, to, stream))
            dst.assert_only(at.ravel())


@each_set("transpose")
def test_transpose(k):
    moved(k, "transpose", k.S, k.S)


@each_set("transpose")
def test_transpose_columns_that_share_sets_of_the_cache(k):
    rows, cols, cs = 70, 2 * k.vl + 3, 1024 // k.S.itemsize
    values = numbers(rows, cols)
    src = np.zeros((cols, cs))
    src[:, :rows] = values.T
    dst = Guarded(rows * cols, k.S)
    k.transpose(dst.array, cols, 1, guarded(src.ravel()[: (cols - 1) * cs + rows], k.S), 1, cs, rows, cols, 0)
    same(dst.array.reshape(rows, cols), values, k.S)


@each_set("narrow")
def test_narrow(k):
    moved(k, "narrow", k.T, k.S)


@each_set("narrow")
def test_narrow_rounds_to_nearest_even(k):
    bits = np.random.default_rng(1).integers(0, 2**32, 4096, np.uint32)
    values = bits.view(np.float32)
    dst = Guarded(values.size, k.S)
    k.narrow(dst.array, values.size, 1, values, values.size, 1, 1, values.size, 0)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(as_float(dst.array), as_float(values.astype(k.S)))


@each_set("finite")
def test_finite(k):
    for count in (0, *edges(64 // k.S.itemsize), 301):
        values = guarded(numbers(count), k.S)
        assert k.finite(values, values.nbytes) == 1
        for bad, at in itertools.product((np.nan, np.inf, -np.inf), {0, count // 2, count - 1} if count else ()):
            before, values[at] = values[at], bad
            assert k.finite(values, values.nbytes) == 0
            values[at] = before


@each_set("store")
def test_store(k):
    for rows, cols, step, name in itertools.product((1, 3), (*edges(k.vl), 8 * k.vl + 3), (1, 2), SIMPLE):
        values = numbers(rows, cols)
        src = guarded(np.pad(values, ((0, 0), (0, 5))).ravel()[: rows * (cols + 5) - 5], k.T)
        out = [Guarded((cols - 1) * step + 1, k.S) for _ in range(rows)]
        pointers = record("convt_tile", rows=[*[each.array for each in out[:-1]], None, out[-1].array])
        more = np.concatenate([src, np.zeros(cols + 5, k.T)])  # a row whose destination is NULL
        more[rows * (cols + 5) :][:cols] = values[-1]
        k.store(pointers.rows, step, more, cols + 5, rows + 1, cols, act(name))
        for n, each in enumerate(out):
            same(each.array[::step], activate(values[n], name), k.S, (rows, cols, step, name))
            each.assert_only(np.arange(cols) * step)


@each_set("add")
def test_add(k):
    for count, name, other in itertools.product((*edges(k.vl), 8 * k.vl, 19 * k.vl + 1), SIMPLE, (False, True)):
        values, more = numbers(count), numbers(1, count)[0]
        to = Guarded(count, k.S)
        to.array[...] = values.astype(k.S)
        k.add(to.array, guarded(more, k.S) if other else None, count, act(name))
        same(to.array, activate(values + more * other, name), k.S, (count, name, other))
        to.assert_only(slice(None))


# ---------------------------------------------------------------- Winograd

INPUTS = {  # the input transforms B^T by the number of points
    1: [[1]],
    3: [[1, -1, 0], [0, 1, 0], [0, -1, 1]],
    4: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]],
    6: [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1]],
}  # fmt: skip
KINDS = ((1, 1), (3, 2), (4, 2), (4, 3), (6, 4), (6, 5))  # points and outputs of each kind


def output_matrix(points, outputs):
    """Return A^T: row i has the powers i of the finite points, and the last row also the point infinity."""
    if points == 1:
        return np.ones((1, 1))
    matrix = np.array([[p**i for p in (0, 1, -1, 2, -2)[: points - 1]] + [0] for i in range(outputs)], float)
    matrix[-1, -1] = 1
    return matrix


def check_input_transform(k, entry, element):
    for ny, nx in ((1, 3), (1, 4), (3, 3), (3, 4), (4, 3), (4, 4), (1, 6), (6, 6)):
        for first, count in itertools.product((0, 3), edges(k.vl)):
            values = numbers(ny * nx, first + count)
            step = -(-count // max(k.vl, k.kstep)) * max(k.vl, k.kstep)
            out = Guarded(ny * nx * step * k.e_size // np.dtype(element).itemsize, element, aligned=True)
            size = step * (k.e_size if entry == "wino_rows" else k.t_size)
            made = record("convt_wino_in", in_=[guarded(each, k.T) for each in values], out=out.array, out_y=nx * size,
                          out_x=size, first=first, last=first + count)  # fmt: skip
            assert getattr(k, entry)(ny, nx, made)
            tile = values[:, first:].reshape(ny, nx, count)
            want = np.einsum("Yy,Xx,yxc->YXc", np.array(INPUTS[ny]), np.array(INPUTS[nx]), tile)
            if k.parts and entry == "wino_rows":
                got = out.array.reshape(ny, nx, step // 32, k.parts, 16, 2)[:, :, :, 0].swapaxes(3, 4).reshape(ny, nx, step)
                got = (got.astype(np.uint32) << 16).view(np.float32)
            else:
                got = out.array.reshape(ny, nx, step)
            same(got[..., :count], want, k.T, (ny, nx, first, count))


@each_set("wino_in")
def test_wino_in(k):
    check_input_transform(k, "wino_in", k.T)


@each_set("wino_rows")
def test_wino_rows(k):
    check_input_transform(k, "wino_rows", np.uint16 if k.parts else k.T)


@each_set("wino_out")
def test_wino_out(k):
    pairs = [(y, x) for y in range(6) for x in range(1, 6) if not y or (y < 4) == (x < 4)]
    for (y, x), cols, name in itertools.product(pairs, edges(k.vl), SIMPLE):
        (ny, my), (nx, mx) = KINDS[y], KINDS[x]
        room = -(-cols // k.vl) * k.vl
        values, bias = numbers(ny, nx, room), numbers(room)
        want = np.einsum("Yy,Xx,yxc->YXc", output_matrix(ny, my), output_matrix(nx, mx), values).reshape(-1, room)
        for stream in (0, 1):
            out = [Guarded(cols, k.T, aligned=bool(stream)) for _ in range(my * mx)]
            check = np.zeros(k.vl, k.T)
            made = record(
                "convt_wino_out", in_=guarded(values, k.T, True), in_y=nx * room, in_x=room, init=guarded(bias, k.T, True),
                rows=[None if n == 1 else each.array for n, each in enumerate(out)], cols=cols, stream=stream, act=act(name),
                check=check,
            )  # fmt: skip
            k.wino_out(y, x, made)
            k.fence()
            assert not check.any()
            for n, each in enumerate(out):
                if n != 1:
                    same(each.array, activate(want[n] + bias, name)[:cols], k.T, (y, x, cols, name, n))
                each.assert_only(slice(None) if n != 1 else slice(0, 0))


@each_set("wino_out")
def test_wino_out_reports_outputs_that_are_not_finite(k):
    values = np.ones((4, 4, k.vl))
    values[1, 2, -1] = np.inf
    check, out = np.zeros(k.vl, k.T), np.zeros((4, k.vl), k.T)
    k.wino_out(2, 2, record(
        "convt_wino_out", in_=guarded(values, k.T), in_y=4 * k.vl, in_x=k.vl, init=np.zeros(k.vl, k.T), rows=[*out],
        cols=k.vl, act=act(), check=check,
    ))  # fmt: skip
    assert np.isnan(check[-1]) and not check[:-1].any()


@each_set("wino_filter")
def test_wino_filter(k):
    """Check sums of none, one, two and five taps, for widths of one to three vectors."""
    start = np.array([0, 0, 1, 3, 8])
    for vectors, n in itertools.product((1, 2, 3) if on_vectors(k) else (1, 2), (1, 3, 32)):
        cols, rows = vectors * k.vl, len(start) - 1
        taps, scale = numbers(8, n, cols), numbers(8)
        src = guarded(taps, k.T)
        depth = n if on_vectors(k) else 32
        out = Guarded(rows * depth * cols * k.e_size // (4 if k.t_size == 4 else 8), k.T, aligned=True)
        made = record(
            "convt_wino_filter", in_=src, in_step=cols, out=out.array, out_row=depth * cols, out_step=cols, n=n, cols=cols,
            rows=rows, start=guarded(start, np.int64), offset=guarded(np.arange(8) * n * cols, np.int64),
            scale=guarded(scale, k.T),
        )  # fmt: skip
        assert k.wino_filter(made)
        want = np.stack([np.einsum("e,enc->nc", scale[a:b], taps[a:b]) for a, b in itertools.pairwise(start)])
        got = out.array
        if not on_vectors(k):
            got = got.view(np.uint16).reshape(rows, k.parts, vectors, 16, 16, 2)[:, 0].transpose(0, 4, 2, 1, 3)
            got = (got.reshape(rows, 32, cols).astype(np.uint32) << 16).view(np.float32)
            want = np.pad(want, ((0, 0), (0, 32 - n), (0, 0)))
        same(got.reshape(want.shape), want, k.T, (vectors, n))


@each_set("wino_filter")
def test_wino_filter_reports_weights_that_are_not_finite(k):
    for value, want in ((1.0, True), (np.inf, False), (np.nan, False)):
        made = record(
            "convt_wino_filter", in_=np.full(k.vl, value, k.T), in_step=k.vl, out=Guarded(32 * k.vl * 8, np.uint8, True).array,
            out_row=32 * k.vl, out_step=k.vl, n=1, cols=k.vl, rows=1, start=np.array([0, 1]), offset=np.array([0]),
            scale=np.ones(1, k.T),
        )  # fmt: skip
        assert bool(k.wino_filter(made)) == want


# ---------------------------------------------------------------- rows and planes


@each_set("rows")
def test_rows(k):
    shift = np.array([0, 2, 1])
    for mr, n, sources in itertools.product(range(1, k.mr[2] + 1), edges(k.vl), (0, 1, 3)):
        room = -(-n // k.vl) * k.vl
        data, weights, bias = numbers(sources, room + 2), numbers(sources, 3, mr), numbers(mr)
        out = [Guarded(room, k.T, aligned=True) for _ in range(mr)]
        k.rows(mr, record(
            "convt_rows", n=n, sources=sources, shifts=3, in_=[guarded(each, k.T) for each in data],
            w=[guarded(each, k.T) for each in weights], shift=guarded(shift, np.intp), init=guarded(bias, k.T),
            rows=[each.array for each in out],
        ))  # fmt: skip
        windows = np.stack([data[:, t : t + n] for t in shift], 1)
        want = np.einsum("stm,sti->mi", weights, windows) + bias[:, None]
        for m in range(mr):
            same(out[m].array[:n], want[m], k.T, (mr, n, sources))
            out[m].assert_only(slice(None))


@each_set("interleave")
def test_interleave(k):
    for phases, (first, count), step, name in itertools.product(
        (1, 2, 3, 4, 5, 6, 7, 8, 11, 64), ((0, 1), (0, 3 * k.vl), (5, 4 * k.vl), (1, 9 * k.vl - 2)), (1, 3),
        ("NONE", "CLIP", "TANH"),
    ):  # fmt: skip
        last = first + count
        ld = -(-(last // phases + 1) // k.vl) * k.vl + k.vl
        values, bias = numbers(3 * phases, ld), numbers(3)
        e = np.arange(first, last)
        for stream in (0, 1) if step == 1 else (0,):
            out = [Guarded((last - 1) * step + 1, k.S, aligned=bool(stream)) for _ in range(3)]
            k.interleave(record(
                "convt_interleave", phases=phases, first=first, last=last, rows=3, row=guarded(values, k.T, True), ld=ld,
                bias=guarded(bias, k.T) if step == 1 else None, out=[out[0].array, None, out[2].array], step=step,
                act=act(name), stream=stream,
            ))  # fmt: skip
            k.fence()
            for r in (0, 2):
                want = values[r * phases + e % phases, e // phases] + (bias[r] if step == 1 else 0)
                got = out[r].array[e * step]
                if name == "TANH":
                    np.testing.assert_allclose(as_float(got), np.tanh(want), rtol=tolerance(k))
                else:
                    same(got, activate(want, name), k.S, (phases, first, last, step, name, stream))
                out[r].assert_only(e * step)
            out[1].assert_only(slice(0, 0))


# ---------------------------------------------------------------- overlap-add


def overlap_add(run, col, init):
    """Return out(j, l) of `convt_overlap` for all j and lanes, before the activation; ``col`` is [i][column]."""
    out = np.tile(init, (run.j1 - run.j0, 1))
    for j, u in itertools.product(range(run.j0, run.j1), range(run.terms)):
        lanes = max(0, min(run.lanes, run.cols - u * run.lanes))
        if run.i0 <= j - u < run.i1:
            out[j - run.j0, :lanes] += col[j - u - run.i0, u * run.lanes : u * run.lanes + lanes]
    return out


def overlap_runs(k):
    """Return records of overlap-add without addresses: (stride, channels, terms, columns that are left out, i0, i1, j0, j1)."""
    n = 3 * k.vl + 2
    shapes = (1, 1, 1, 0), (2, 1, 2, 1), (2, 3, 3, 0), (1, k.vl + 1, 2, 0), (3, 1, 1, 1), (4, 2, 2, 3)
    for stride, channels, terms, fewer in shapes:
        ranges = (0, n, 0, n + terms - 1), (0, 1, 0, 1), (5, n, 5, n), (3, 3, 2, 4), (2, 4, 0, 9), (0, n, terms - 1, n)
        for i0, i1, j0, j1 in ranges:
            lanes = stride * channels
            yield record("convt_overlap", i0=i0, i1=i1, j0=j0, j1=j1, terms=terms, lanes=lanes, cols=terms * lanes - fewer,
                         channels=channels, lane_lo=0, lane_hi=lanes), stride  # fmt: skip


def check_overlap(k, entry, transposed):
    """Check `overlap` or `overlap_pixels` into outputs whose lanes are contiguous, whose phases are, or that have gaps."""
    for (run, stride), layout, name in itertools.product(overlap_runs(k), ("NXC", "NCX", "gaps"), ("NONE", "CLIP", "SIGMOID")):
        if transposed and run.lanes > CONSTANTS["CONVT_PIXEL_LANES"]:
            continue
        rows, count, channels = run.i1 - run.i0, run.j1 - run.j0, run.channels
        col, init = numbers(max(rows, 1), run.cols), numbers(run.lanes)
        if layout == "gaps":
            run.lane_lo, run.lane_hi = run.lanes // 3, max(1, run.lanes - 1)
        steps = {"NXC": (run.lanes, channels, 1), "NCX": (stride, 1, stride * count), "gaps": (2 * run.lanes, 2 * channels, 2)}
        run.out_j, run.out_x, run.out_c = steps[layout]
        if transposed:
            run.ld = -(-(rows + 2 * k.vl) // k.vl) * k.vl
            memory = np.full((run.cols, run.ld), 1e3)
            memory[:, k.vl : k.vl + rows] = col[:rows].T
            source = guarded(memory, k.T)[k.vl :]
        else:
            run.ld = -(-run.cols // k.vl) * k.vl + k.vl
            source = guarded(np.pad(col, ((0, 0), (0, run.ld - run.cols)), constant_values=1e3), k.T)
        lanes = np.arange(run.lane_lo, run.lane_hi)
        at = np.arange(count)[:, None] * run.out_j + lanes // channels * run.out_x + lanes % channels * run.out_c
        out, bias, how = Guarded(at.max() + 1, k.S), guarded(init, k.T), act(name)
        run.col, run.init, run.out = source.ctypes.data, bias.ctypes.data, out.array.ctypes.data
        run.act = ctypes.addressof(how)
        getattr(k, entry)(run)
        want = activate(overlap_add(run, col, init), name)[:, run.lane_lo : run.lane_hi]
        message = (stride, channels, run.terms, run.i0, run.i1, run.j0, run.j1, layout, name)
        if name == "SIGMOID":
            np.testing.assert_allclose(as_float(out.array[at]), want, rtol=tolerance(k))
        else:
            same(out.array[at], want, k.S, message)
        out.assert_only(at.ravel())


@each_set("overlap")
def test_overlap(k):
    check_overlap(k, "overlap", transposed=False)


@each_set("overlap_pixels")
def test_overlap_pixels(k):
    check_overlap(k, "overlap_pixels", transposed=True)


@each_set("overlap_gather")
def test_overlap_gather(k):
    rng = np.random.default_rng(3)
    for count, terms, name in itertools.product(edges(k.vl), (0, 1, 4), SIMPLE):
        vectors, col, init = -(-count // k.vl), numbers(50), numbers(7)
        index = rng.integers(0, 50, (vectors, 1 + terms, k.vl))
        index[:, 0] %= 7
        out = Guarded(count, k.S)
        k.overlap_gather(record(
            "convt_overlap_gather", col=guarded(col, k.T), init=guarded(init, k.T), index=guarded(index, np.int32), count=count,
            terms=terms, out=out.array, act=act(name),
        ))  # fmt: skip
        want = (init[index[:, 0]] + col[index[:, 1:]].sum(1)).ravel()[:count]
        same(out.array, activate(want, name), k.S, (count, terms, name))
        out.assert_only(slice(None))


@each_set("pixel_gemm")
def test_pixel_gemm(k):
    segment = 16 // k.T.itemsize
    for mr, pixels, kc, planes in itertools.product(
        range(1, 9), (*edges(k.vl), 9 * k.vl - 1), (segment, segment + 1, 11), (False, True)
    ):
        values, weights = numbers(pixels, kc), numbers(mr, kc)
        room = -(-pixels // k.vl) * k.vl
        a = np.full((mr, LDA), np.nan)
        a[:, :kc] = weights
        src = guarded(values.T if planes else values, k.S)
        for add, pause, copies in itertools.product((0, 1), (0, 2) if planes else (0,), (False, True) if planes else (False,)):
            out, before, copy = Guarded(mr * room, k.T, aligned=True), numbers(mr, room), Guarded(kc * room, k.S, aligned=True)
            out.array[...] = before.ravel()
            fields = {"copy": copy.array, "copy_ld": room} if copies else {}
            k.pixel_gemm(mr, record(
                "convt_pixel_gemm", kc=kc, pixels=pixels, add=add, src=src, cs=1 if planes else kc, rs=pixels if planes else 1,
                ld=room, a=guarded(a.ravel()[: (mr - 1) * LDA + kc], k.T), out=out.array,
                next=src, next_rs=pixels, pause=pause, **fields,
            ))  # fmt: skip
            if copies:
                assert (copy.array.reshape(kc, room)[:, :pixels] == src.reshape(kc, pixels)).all()
                copy.assert_only(slice(None))
            want = weights @ values.T + add * before[:, :pixels]
            same(out.array.reshape(mr, room)[:, :pixels], want, k.T, (mr, pixels, kc, planes, add, pause, copies))
            out.assert_only(slice(None))


# ---------------------------------------------------------------- depthwise


class Run:
    """A depthwise run on random integers: its record, and the outputs that it must write.

    ``sets`` lists the terms of the phases of each set. A term reads the pixel before that of the term before (``sliding``), or
    the one after it. ``edges``: also the outputs before and after the run, of terms that are inside the row. ``columns``: the
    element of a pixel that each column reads, for a run whose inputs are permuted.
    """

    def __init__(self, k, n, cols, sets, sources=1, name="NONE", sliding=True, edges=False, masked=0, columns=None, **more):
        self.k, self.n, self.cols = k, n, cols
        self.padded = -(-cols // k.vl) * k.vl
        terms = max(map(max, sets))
        channels = cols if columns is None else int(columns.max()) + 1
        self.columns = np.arange(cols) if columns is None else columns
        self.data = numbers(sources, n + terms - 1, channels)
        self.weights, self.bias = numbers(sources, sum(map(sum, sets)), self.padded), numbers(self.padded)
        self.mask = np.arange(self.padded) < masked
        self.phases, self.kept, self.want = [], [], {}
        phases, before, after = sum(map(len, sets)), edges and terms - 1, 0
        out_ld = -(-phases * cols // k.vl) * k.vl if more.get("stream") else phases * cols + 1
        out_ld = phases * cols if more.get("ordered") else out_ld
        row = 0
        for each in sets:
            for number, count in enumerate(each):
                pixels = terms - 1 - np.arange(count) if sliding else np.arange(count)
                at = [record("convt_dw_term", in_=(int(p) - terms + 1) * channels, w=(row + u) * self.padded)
                      for u, p in enumerate(pixels)]  # fmt: skip
                phase, after = len(self.phases), edges and count - 1
                made = record("convt_dw_phase", terms=count, masked=masked > 0, set_size=len(each) if number == 0 else 0,
                              sliding=sliding, outputs_before=edges and each[0] - 1, outputs_after=after, out=phase * cols,
                              last=n)  # fmt: skip
                made.term = ctypes.addressof(array := records(at))
                self.kept.append(array)
                self.phases.append(made)
                lead = each[0]
                for j in range(-(lead - 1) if edges else 0, n + after):
                    first, last = (max(0, j - n + 1), min(count, lead + min(0, j)))
                    self.want[j, phase] = self.sum(j, pixels[first:last], slice(row + first, row + last), count - first - 1)
                row += count
        room = before * out_ld
        self.out = Guarded(room + (n - 1 + max((j - n + 1 for j, _ in self.want), default=0)) * out_ld + phases * cols, k.T,
                           aligned=bool(more.get("stream")))  # fmt: skip
        self.at = {key: room + key[0] * out_ld + key[1] * cols for key in self.want}
        self.name = name
        bits = np.where(self.mask, -1, 0).astype(f"i{k.t_size}")
        array = records(self.phases)
        self.record = record(
            "convt_dw", n=n, cols=cols, phases=phases, sources=sources, has_before=edges, has_after=edges, phase=array,
            in_=[guarded(each, k.T) for each in self.data], in_offset=(terms - 1) * channels, in_ld=channels,
            w=[guarded(each, k.T, True) for each in self.weights], mask=guarded(bits, bits.dtype, True), mask_end=masked,
            init=guarded(self.bias, k.T, True), out=self.out.array[room:], out_ld=out_ld, act=act(name), **more,
        )  # fmt: skip
        self.kept.append(array)

    def sum(self, j, pixels, rows, last):
        """Return the sum of some terms of output j; the term number ``last`` counts only in the lanes of the mask."""
        total = self.bias[: self.cols].copy()
        for s, (u, (pixel, row)) in itertools.product(
            range(len(self.data)), enumerate(zip(pixels, range(rows.start, rows.stop), strict=True))
        ):
            product = self.data[s, j + pixel, self.columns] * self.weights[s, row, : self.cols]
            total += np.where(self.mask[: self.cols] | (u < last) | (not self.mask.any()), product, 0)
        return total

    def check(self, message=""):
        self.k.depthwise(self.record)
        self.k.fence()
        written = np.zeros(len(self.out.array), bool)
        for key, start in self.at.items():
            here = slice(start, start + self.cols)
            same(self.out.array[here], activate(self.want[key], self.name), self.k.T, (message, key))
            written[here] = True
        self.out.assert_only(written)


FEW = [[1]], [[2]], [[3]], [[1, 1]], [[2, 1]], [[2, 2]], [[3, 2]], [[3, 3]], [[2, 1], [1]]
MANY = [[4]], [[5, 4]], [[7]], [[6, 6], [5]]


def widths(k):
    return sorted({1, k.vl // 2, k.vl - 1, k.vl, k.vl + 1, k.vl + k.vl // 2, 2 * k.vl, 4 * k.vl + 1, 9 * k.vl - 1})


@each_set("depthwise")
def test_depthwise(k):
    for sets, cols, n in itertools.product((*FEW, *MANY), widths(k), (1, 2, 5, 8, 19)):
        message, name = (sets, cols, n), SIMPLE[(n + cols) % 3]
        Run(k, n, cols, sets, sources=1 + (n + cols) % 2, name=name).check(message)
        if n in (2, 8):
            Run(k, n, cols, sets, sources=4, name=name, inputs_uncached=1, out_prefetch=64).check(message)
        if n in (5, 8) and len(sets) == 1:
            Run(k, n, cols, sets, sources=2, name=name, edges=True).check(message)
            Run(k, n, cols, sets, sliding=False).check(message)
    Run(k, 9, k.vl, [[1]], sources=0).check()


@each_set("depthwise")
def test_depthwise_of_a_last_term_in_some_lanes(k):
    for terms, cols, n in itertools.product((1, 2, 6), widths(k), (1, 2, 9)):
        Run(k, n, cols, [[terms]], sources=2, masked=cols - cols // 3).check((terms, cols, n))


@each_set("depthwise")
def test_depthwise_in_memory_order(k):
    for sets, cols, sources in itertools.product(([[1]], [[2, 1]], [[2, 2]]), (k.vl, k.vl + 1, 3 * k.vl, 9 * k.vl - 1), (1, 2)):
        for n, edge in ((4, False), (5, True), (19, True)):
            Run(k, n, cols, sets, sources, "CLIP", edges=edge, ordered=1).check((sets, cols, sources, n, edge))


@each_set("depthwise", lambda k: k.vl * k.t_size == 64)
def test_depthwise_by_non_temporal_stores(k):
    for sets, n in itertools.product(([[2, 1]], [[3]], [[5, 4]]), (1, 4, 19)):
        Run(k, n, 2 * k.vl, sets, 2, "LEAKY", stream=1).check((sets, n))


@each_set("depthwise")
def test_depthwise_of_permuted_inputs(k):
    """Check columns that read one element, elements of one vector, and of two; as many as the instruction set permutes."""
    most, widths = {1, min(k.vl, k.reach), k.reach}, {1, k.vl // 2, k.vl, 4 * k.vl, 5 * k.vl - 1}
    for reach, cols, n in itertools.product(most, widths, (1, 3, 7, 19)):
        lane = np.arange(-(-cols // k.vl) * k.vl) % k.vl
        index = lane * (reach - 1) // max(1, k.vl - 1)
        index[cols:] = index[cols - 1]
        start = np.repeat(np.arange(len(lane) // k.vl) * 3, k.vl)
        for sets, over in itertools.product(([[1]], [[2, 1]], [[3, 3]], [[5]]), (0, 1)):
            run = Run(
                k, n, cols, sets, sources=2, columns=(start + index)[:cols], vector_offset=start.astype(np.int64),
                index=index.astype(np.int32), vector_step=3 if cols % k.vl == 0 else 0,
            )  # fmt: skip
            if over:  # `reach` elements from the start of each vector may be read
                rows = [guarded(each, k.T, room=2 * k.vl) for each in run.data]
                pointers = (ctypes.c_void_p * 2)(*[row.ctypes.data for row in rows])
                setattr(run.record, "in", ctypes.addressof(pointers))
                run.record.can_overread = 1
            run.check((reach, cols, n, sets, over))


@each_set("depthwise")
def test_depthwise_skips_terms_outside_the_row(k):
    for terms, cols, n in itertools.product((1, 3, 5, 7), widths(k), (1, 4, 11)):
        pixels, low = max(1, n - 2), 1
        data, weights, bias = numbers(2, pixels, cols), numbers(2, terms, -(-cols // k.vl) * k.vl), numbers(9 * k.vl)
        padded = weights.shape[2]
        out = Guarded(n * cols, k.T)
        term = records([record("convt_dw_term", in_=-u * cols, w=u * padded) for u in range(terms)])
        phase = record("convt_dw_phase", terms=terms, set_size=1, sliding=1)
        phase.term = ctypes.addressof(term)
        k.depthwise(record(
            "convt_dw", n=n, cols=cols, phases=1, sources=2, skip_outside=1, low_pixel=low, high_pixel=low + pixels,
            phase=phase, in_=[guarded(each, k.T) for each in data], in_offset=-low * cols, in_ld=cols,
            w=[guarded(each, k.T, True) for each in weights], init=guarded(bias[:padded], k.T, True), out=out.array,
            out_ld=cols, act=act("CLIP"),
        ))  # fmt: skip
        want = np.tile(bias[:cols], (n, 1))
        for j, u in itertools.product(range(n), range(terms)):
            if low <= j - u < low + pixels:
                want[j] += (data[:, j - u - low] * weights[:, u, :cols]).sum(0)
        same(out.array.reshape(n, cols), activate(want, "CLIP"), k.T, (terms, cols, n))
        out.assert_only(slice(None))


def group_weights(w, layout, vl):
    """Return the weights [vector][term][element] of weights [group][term][in][out], in the layout of `convt_dw_groups`."""
    groups, terms, ci, co = w.shape
    if layout == "dots":
        return w.reshape(groups, terms, ci // vl, vl, co).swapaxes(3, 4).reshape(groups, terms, -1)
    if layout == "one group":  # in a vector, or several vectors of one group
        w = np.pad(w, ((0, 0), (0, 0), (0, 0), (0, -co % vl)))
        return w.reshape(groups, terms, ci, -1, vl).transpose(0, 3, 1, 2, 4).reshape(-1, terms, ci * vl)
    q = np.arange(vl)  # two groups: pairs of in-channels, of each group in turn; lanes of the other half are swapped
    half, lane = np.divmod(q, co)
    swapped = [np.where((half == r) | (co == 1), lane, lane ^ 1) for r in (0, 1)]
    pairs = [[w[r::2][:, :, i + q % 2, swapped[r]] for r in (0, 1)] for i in range(0, ci, 2)]
    return np.moveaxis(np.array(pairs), (0, 1), (2, 3)).reshape(groups // 2, terms, -1)


@each_set("depthwise")
@pytest.mark.parametrize("layout", ["one group", "two groups", "dots"])
def test_depthwise_of_groups(k, layout):
    """Check vectors of one group, of two groups, and vectors over in-channels."""
    outs = {"one group": (1, k.vl - 1, k.vl, k.vl + 1), "two groups": (k.vl // 2,), "dots": range(1, min(4, k.vl) + 1)}[layout]
    sets = ([[1]], [[3]], [[2, 1]], [[2, 2], [1]], [[5, 4]])
    for co, ci, counts, n, name in itertools.product(outs, (2, 6), sets, (1, 2, 5, 8, 33), ("NONE", "CLIP")):
        ci, groups, terms = ci // 2 * k.vl if layout == "dots" else ci, 2, sum(map(sum, counts))
        w, data, bias = numbers(groups, terms, ci, co, most=2), numbers(2, n, groups * ci, most=2), numbers(groups, co)
        packed = [group_weights(w * (s + 1), layout, k.vl) for s in (0, 1)]
        vectors, elements, per = len(packed[0]), packed[0].shape[2], 2 if layout == "two groups" else 1
        across = vectors * per // groups  # vectors of a group
        lanes = {"dots": np.full(vectors, co), "two groups": np.full(vectors, k.vl)}.get(
            layout, np.minimum(k.vl, co - np.arange(vectors) % across * k.vl))  # fmt: skip
        first = np.r_[0, np.cumsum(lanes)[:-1]]
        offset = np.arange(groups) * ci if per == 2 else np.repeat(np.arange(groups) * ci, across)
        layout_record = record(
            "convt_dw_groups", ci=ci, groups_per_vector=per, group_offset=guarded(offset, np.int64),
            first=guarded(first, np.int64), lanes=guarded(lanes, np.int64), w_ld=terms * elements, dots=layout == "dots",
        )  # fmt: skip
        cols, phases, kept, row = groups * co, [], [], 0
        total = sum(map(len, counts))
        want = np.tile(bias.reshape(-1), (n, total, 1))
        for each in counts:
            for number, count in enumerate(each):
                term = records([record("convt_dw_term", in_=-u * groups * ci, w=(row + u) * elements) for u in range(count)])
                phase = record("convt_dw_phase", terms=count, set_size=len(each) if number == 0 else 0, sliding=1,
                               out=len(phases) * cols, first=min(1, n - 1), last=n)  # fmt: skip
                phase.term = ctypes.addressof(term)
                for j, u, s in itertools.product(range(n), range(count), (0, 1)):
                    if j >= u:
                        pixel = data[s, j - u].reshape(groups, ci)
                        want[j, len(phases)] += np.einsum("gi,gio->go", pixel, w[:, row + u] * (s + 1)).ravel()
                kept.append(term)
                phases.append(phase)
                row += count
        room = -(-cols // k.vl) * k.vl + k.vl
        out, out_ld = Guarded(n * total * cols, k.T), total * cols
        k.depthwise(record(
            "convt_dw", n=n, cols=cols, phases=total, sources=2, skip_outside=1, high_pixel=n, phase=records(phases),
            in_=[guarded(each, k.T) for each in data], in_ld=groups * ci, w=[guarded(each, k.T, True) for each in packed],
            init=guarded(np.resize(bias.ravel(), room), k.T, True), out=out.array, out_ld=out_ld, act=act(name),
            groups=layout_record, v0=0, v1=vectors, inputs_uncached=n == 8,
        ))  # fmt: skip
        stored = slice(min(1, n - 1) * out_ld, None)
        same(out.array[stored], activate(want, name).ravel()[stored], k.T, (co, ci, counts, n, name))
        out.assert_only(stored)
