"""The kernel tables as ctypes structures, made from the text of kernels/convt_kernels.h, and arrays with guarded ends.

`each_set` parametrizes a test with the kernel sets that have an entry of their own; an instruction set that the CPU lacks is
skipped. A `Kernels` calls the entries of a set.
"""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
from cases import DTYPES, HAS_CHECKOUT, ISA_ROWS, codes_of_activations
from fuzz import memory

import convt
from convt import _core

if not HAS_CHECKOUT:
    pytest.skip("needs a checkout", allow_module_level=True)
HEADER = (Path(convt.__file__).parent / "kernels" / "convt_kernels.h").read_text()
_SCALARS = {
    "int": ctypes.c_int, "int64_t": ctypes.c_int64, "size_t": ctypes.c_size_t, "ptrdiff_t": ctypes.c_ssize_t,
    "double": ctypes.c_double, "void": None,
}  # fmt: skip


def _without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def _constants(text):
    """Return the constants of the header: enumerators, and macros whose values are numbers."""
    found = {}
    for entries in re.findall(r"enum\s*{(.*?)}", text, re.DOTALL):
        found |= {name: n for n, name in enumerate(re.findall(r"\w+", entries))}
    for name, value in re.findall(r"#define (CONVT_\w+) +([^\n\\]+)$", text, re.MULTILINE):
        if re.fullmatch(r"[\d\s()+*]|(\w|[\s()+*])+", value) and set(re.findall(r"[A-Za-z_]\w*", value)) <= set(found):
            found[name] = eval(value, {}, found)
    return found


def _type_of(text, stars, structures):
    """Return the ctypes type of a C type. All pointers are void pointers."""
    return ctypes.c_void_p if stars else {**_SCALARS, **structures}[re.sub(r"\b(const|unsigned)\b", "", text).strip()]


def _members(body, constants, structures):
    """Return the fields ``(name, ctypes type)`` of the body of a structure."""
    fields = []
    for line in filter(None, (" ".join(each.split()) for each in body.split(";"))):
        if function := re.fullmatch(r"(\w+) \(\*(\w+)(?:\[(\w+)\])?\)\((.*)\)", line):
            kind, name, size, arguments = function.groups()
            arguments = [re.fullmatch(r"(.*?)([* ]+(?:const \*)?)(\w+)", each.strip()) for each in arguments.split(",")]
            types = [_type_of(each[1], "*" in each[2], structures) for each in arguments if each]
            field = ctypes.CFUNCTYPE(_SCALARS[kind], *types)
            fields.append((name, field * constants[size] if size else field))
            continue
        kind, names = re.fullmatch(r"((?:const )?\w+)\s*(.*)", line).groups()
        for declared in names.split(","):
            stars, name, sizes = re.fullmatch(r"\s*((?:\*|const|\s)*)(\w+)((?:\[\w+\])*)", declared).groups()
            field = ctypes.c_char_p if (kind, name) == ("const char", "name") else _type_of(kind, "*" in stars, structures)
            for size in reversed(re.findall(r"\w+", sizes)):
                field *= int(size) if size.isdigit() else constants[size]
            fields.append((name, field))
    return fields


def _structures(text, constants):
    """Return ``{name: ctypes structure}`` of the header."""
    found = {}
    for body, name in re.findall(r"typedef struct {(.*?)} (\w+);", text, re.DOTALL):
        found[name] = type(name, (ctypes.Structure,), {"_fields_": _members(body, constants, found)})
    return found


CONSTANTS = _constants(_without_comments(HEADER))
STRUCTURES = _structures(_without_comments(HEADER), CONSTANTS)
UNITS = _core.UNITS
ENTRIES = [name for name, kind in STRUCTURES["convt_kernels"]._fields_ if issubclass(kind, ctypes._CFuncPtr)]

_table_at = ctypes.CDLL(_core.__file__).convt_isa_at
_table_at.restype = ctypes.POINTER(STRUCTURES["convt_isa"])


def address(function):
    """Return the address of a function of a table, or None."""
    return ctypes.cast(function, ctypes.c_void_p).value


class Kernels:
    """The kernel set of an instruction set, a unit and a dtype. Sizes are attributes; functions take arrays and records."""

    def __init__(self, isa, unit, dtype):
        self.isa, self.unit, self.dtype = isa, unit, dtype
        self.table = _table_at(list(ISA_ROWS).index(isa)).contents
        self.set = self.table.set[UNITS.index(unit)][list(DTYPES).index(dtype)]
        self.S = DTYPES[dtype][0]
        self.T = np.dtype({4: np.float32, 8: np.float64, 0: np.float32}[self.set.t_size])

    def __repr__(self):
        return "-".join([self.isa, *[self.unit] * (self.unit != "vectors"), self.dtype])

    def __getattr__(self, name):
        value = getattr(self.set, name)
        return self._caller(value) if name in ENTRIES else value

    def _caller(self, function):
        if not address(function):
            return None
        return lambda *arguments: function(*[_address_of(each) for each in arguments])


def each_set(entry, where=lambda k: True):
    """Parametrize a test with every kernel set whose ``entry`` is not that of a smaller instruction set or unit."""
    sets, seen = [], set()
    for isa, available in ISA_ROWS.items():
        for unit in UNITS:
            for dtype in DTYPES:
                k = Kernels(isa, unit, dtype)
                own = address(getattr(k.set, entry)), k.set.narrow_dtype if entry == "tile" else None
                if own[0] is None or own in seen or not where(k):
                    continue
                seen.add(own)
                lacks = pytest.mark.skipif(not available, reason=f"this CPU lacks {isa}")
                sets.append(pytest.param(k, id=repr(k), marks=lacks))
    return pytest.mark.parametrize("k", sets)


def _address_of(value):
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return ctypes.addressof(value) if isinstance(value, (ctypes.Structure, ctypes.Array)) else value


def record(structure, **fields):
    """Return a structure of the header. A field may be a number, an array, a record, or a list of these: an array of pointers.

    ``in_`` is the field `in`.
    """
    made = STRUCTURES[structure]()
    made.kept = []  # what the pointers refer to
    for name, value in fields.items():
        if isinstance(value, list):
            value = (ctypes.c_void_p * max(1, len(value)))(*map(_address_of, value)) if value else None
        made.kept.append((value, fields[name]))
        setattr(made, name.rstrip("_"), _address_of(value))
    return made


def records(made):
    """Return an array of structures of one type from a list of them."""
    array = (type(made[0]) * len(made))(*made)
    array.kept = made
    return array


ACT = codes_of_activations()


def act(name="NONE", a=0.25, b=3.0):
    return record("convt_act", code=ACT[name], a=a, b=b)


class Guarded(memory.Guarded):
    """An array of ``size`` elements, the last that may be touched: the page after them can neither be read nor written.

    Its bytes, and at least 128 before it, are those of NaN until a kernel writes them. ``aligned``: it starts at a cache line,
    and up to 63 bytes lie between its end and the page.
    """

    def __init__(self, size, dtype, aligned=False):
        dtype, size = np.dtype(dtype), int(size)
        before = 128 // dtype.itemsize
        super().__init__((before + size,), dtype, {"end": True, "off": -size * dtype.itemsize % 64 if aligned else 0})
        self.array = self.view[before:]

    def assert_only(self, written):
        """Check that only the elements in the mask or slice ``written`` changed. They are lost by this."""
        self.array[written] = self.nan
        assert self.untouched()


def guarded(values, dtype, aligned=False, room=0):
    """Return a guarded copy of ``values`` as a flat array of a dtype, with ``room`` NaN elements after them."""
    values = np.asarray(values).reshape(-1)
    made = Guarded(values.size + room, dtype, aligned)
    made.array[: values.size] = values.astype(dtype)
    return made.array
