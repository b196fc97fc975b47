"""What a machine can do, as a dozen constants that mean something outside this project, and the files that hold them.

``machines/`` has a JSON file for each CPU family, and one for each vector width that serves all other CPUs. `of_cpu` finds the
file of a CPU by its vendor, family and model as CPUID gives them. `python -m convt calibrate` measures a machine and writes
such a file, which CONVT_COSTS names. The values of the cost model follow from the constants: see costs.py.
"""

import functools
import math
from pathlib import Path
from typing import NamedTuple

FORMAT = "convt machine 1"
FOLDER = Path(__file__).with_name("machines")


class Constants(NamedTuple):
    """Rates are those of one core while as many cores are busy as a program uses, and of the core's own clock."""

    clock: float  # GHz
    multiply_adds: float  # multiply-adds of a whole vector that start in a cycle
    latency: float  # cycles until the result of a multiply-add can be added to
    dots: float  # dot products of pairs of bfloat16, of a whole vector, that start in a cycle; 0 where there are none
    products: float  # products of two AMX tiles (16 x 32 by 32 x 16 of bfloat16) that a cycle makes; 0 where there are none
    l2_read: float  # bytes that a cycle reads from L2,
    l3_read: float  # from the last-level cache,
    memory_read: float  # and from memory
    memory_write: float  # bytes that a cycle writes to memory by ordinary stores, which read each cache line first,
    non_temporal: float  # and by non-temporal stores
    region: float  # cycles to start a parallel region and to wait for its end
    task: float  # cycles to take the next task from a counter that threads share
    call: float  # cycles of calling a kernel that multiplies one register tile of depth one


# What there may be none of.
OPTIONAL = ("dots", "products")


class Description(NamedTuple):
    """A machine file."""

    name: str
    vector_bits: int  # of the kernels that `constants` speak of
    amx: bool  # whether they are those of a CPU whose AMX may be used
    cpus: tuple  # (vendor, family, first model, last model) of the CPUs that it is for
    constants: Constants


def read(path, what="machine file"):
    """The Description in a file. ValueError, which names ``what`` asked for it and the file, where it is none."""
    import json  # here, as it is slow to load

    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ValueError(f"{what}: got {str(path)!r}, which can't be read ({error.strerror}); wanted a machine file") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: got {str(path)!r}, which is no JSON ({error}); wanted a machine file") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("constants"), dict):
        raise ValueError(f"{what}: got {str(path)!r}, whose format is not {FORMAT!r}; wanted one of python -m convt calibrate")
    constants = found["constants"]
    if differing := sorted(set(Constants._fields) ^ set(constants)):
        raise ValueError(f"{what}: got {str(path)!r}, which lacks or has too many constants ({differing[0]!r})")
    for name, value in constants.items():
        least = 0 if name in OPTIONAL else 1e-9
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
            raise ValueError(f"{what}: got {value!r} for {name} in {str(path)!r}, wanted a number above 0")
    try:
        cpus = tuple((c["vendor"], int(c["family"]), *map(int, c["models"])) for c in found.get("cpus", []))
        bits, amx = int(found["vector_bits"]), bool(found.get("amx", False))
        assert all(len(cpu) == 4 for cpu in cpus) and bits > 0
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{what}: got {str(path)!r}, whose vector_bits or cpus can't be understood ({error})") from error
    return Description(str(found.get("name", path)), bits, amx, cpus, Constants(**constants))


@functools.cache
def known():
    """The machine files of the package: name -> Description."""
    found = (read(path) for path in sorted(FOLDER.glob("*.json")))
    return {each.name: each for each in found}


def of_cpu(cpu, vector_bits, amx):
    """The Description of a CPU, (vendor, family, model), whose kernels have such vectors and may use AMX or not: that of its
    family, else the one that stands for all others of the vector width. A CPU that runs the kernels of another width than the
    file of its family speaks of is such another one."""
    vendor, family, model = cpu
    files = [each for each in known().values() if each.vector_bits == vector_bits]
    for each in files:
        if each.amx == amx and any(v == vendor and f == family and low <= model <= high for v, f, low, high in each.cpus):
            return each
    return next(each for each in files if not each.cpus)
