"""The constants of a machine, and the machine files that hold them.

``machines/`` has one JSON file per CPU family, and one per vector width for all other CPUs. `of_cpu` finds the file of a CPU by
the vendor, family and model that CPUID reports. `python -m convt calibrate` measures a machine and writes a machine file;
CONVT_COSTS names the file to use. costs.py derives the costs of the model from the constants.
"""

import functools
import math
from pathlib import Path
from typing import NamedTuple

FORMAT = "convt machine 1"
FOLDER = Path(__file__).with_name("machines")


class Constants(NamedTuple):
    """The constants of a machine. Rates are per core and per core clock cycle, with as many busy cores as a program uses."""

    clock: float  # GHz
    multiply_adds: float  # vector multiply-adds that start per cycle
    latency: float  # cycles until the next multiply-add can use the result of one as its addend
    dots: float  # vector dot products of bfloat16 pairs that start per cycle; 0 if the CPU has none
    products: float  # AMX products (16 x 32 by 32 x 16 bfloat16) per cycle; 0 if the CPU has none
    l2_read: float  # bytes read from L2 per cycle
    l3_read: float  # bytes read from the last-level cache per cycle
    memory_read: float  # bytes read from memory per cycle
    memory_write: float  # bytes written to memory per cycle by ordinary stores, which read each cache line first
    non_temporal: float  # bytes written to memory per cycle by non-temporal stores
    region: float  # cycles to start a parallel region and wait for its end
    task: float  # cycles to take the next task from a shared counter
    call: float  # cycles of a kernel call that multiplies one register tile of depth 1


# Constants that may be 0.
OPTIONAL = ("dots", "products")


class Description(NamedTuple):
    """The content of a machine file."""

    name: str
    vector_bits: int  # vector width of the kernels that `constants` describe
    amx: bool  # the file describes a CPU with usable AMX
    cpus: tuple  # (vendor, family, first model, last model) of the CPUs described; () for a file of a vector width
    constants: Constants


def read(path, what="machine file"):
    """Read the Description in a file. Raise ValueError, which names ``what`` and the file, if the file is invalid."""
    import json  # imported here because it is slow to load

    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ValueError(f"{what}: got {str(path)!r}, which can't be read ({error.strerror}); wanted a machine file") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: got {str(path)!r}, which is not valid JSON ({error}); wanted a machine file") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("constants"), dict):
        raise ValueError(
            f"{what}: got {str(path)!r}, whose format is not {FORMAT!r}; wanted a file that python -m convt calibrate wrote"
        )
    constants = found["constants"]
    if differing := sorted(set(Constants._fields) ^ set(constants)):
        raise ValueError(f"{what}: got {str(path)!r}, in which the constant {differing[0]!r} is missing or unknown")
    for name, value in constants.items():
        least = 0 if name in OPTIONAL else 1e-9
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
            wanted = "a number above 0" if least else "a number of at least 0"
            raise ValueError(f"{what}: got {value!r} for {name} in {str(path)!r}, wanted {wanted}")
    try:
        cpus = tuple((c["vendor"], int(c["family"]), *map(int, c["models"])) for c in found.get("cpus", []))
        bits, amx = int(found["vector_bits"]), bool(found.get("amx", False))
        assert all(len(cpu) == 4 for cpu in cpus) and bits > 0
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{what}: got {str(path)!r}, whose vector_bits or cpus are invalid ({error})") from error
    return Description(str(found.get("name", path)), bits, amx, cpus, Constants(**constants))


@functools.cache
def known():
    """Return the machine files of the package as a dict, name -> Description."""
    found = (read(path) for path in sorted(FOLDER.glob("*.json")))
    return {each.name: each for each in found}


def of_cpu(cpu, vector_bits, amx, dots=False):
    """Return the Description of a CPU, given as (vendor, family, model).

    It is the file of the CPU's family if that has the same vector width and use of AMX, and dot products if the CPU has
    ``dots``, because the model that a virtual machine reports may be that of another CPU. Otherwise it is the file of the
    vector width.
    """
    vendor, family, model = cpu
    files = [each for each in known().values() if each.vector_bits == vector_bits]
    for each in files:
        fits = each.amx == amx and (amx or each.constants.dots > 0 or not dots)
        if fits and any(v == vendor and f == family and low <= model <= high for v, f, low, high in each.cpus):
            return each
    return next(each for each in files if not each.cpus)
