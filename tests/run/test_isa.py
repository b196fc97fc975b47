"""Tests of the instruction set: the one that is asked for runs."""

import ast
import platform
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cases import DTYPES, ISA_ROWS, ISAS, SAMPLES, child, each_dtype, each_isa, each_sample, operator, using_isa

import convt
from convt import _core

# Lanes of a float32 vector, and number of vector registers. A register tile uses more than half of these.
LANES = {"baseline": 4, "avx2": 8, "avx512": 16, "avx512_bf16": 16, "avx512_amx": 16, "neon": 4, "neon_bf16": 4}
REGISTERS = dict.fromkeys(LANES, 32) | {"baseline": 16, "avx2": 16}
PARTS = {"float32": 3, "float16": 2, "bfloat16": 1}  # parts of an element on a matrix unit


@each_isa
@each_dtype
@each_sample
def test_the_plan_is_of_the_isa_in_use(case, dtype, isa):
    case = replace(case, dtype=dtype)
    data, filter, bias = case.arrays()
    with using_isa(isa):
        op = operator(case, filter, bias, algorithm="direct:vectors")
        plan = op.plan(data.shape)
        lanes = LANES[isa] // (2 if dtype == "float64" else 1)
        assert (plan.backend, plan.isa) == ("native", isa)
        info = _core.kernel_info(dtype)
        rows, columns = map(int, plan.tile.split("x"))
        assert info["vl"] == lanes and columns % lanes == 0
        assert REGISTERS[isa] // 2 < rows * columns // lanes < REGISTERS[isa]
        assert info["kstep"] == 1
        case.check(op(data), data, filter, bias)


@each_isa
def test_dot_products_are_those_of_the_isa_in_use(isa):
    """Check the kernels for dot products: avx512_bf16 and neon_bf16 have them, for bfloat16 and for float32 rounded to it."""
    with using_isa(isa):
        for dtype in DTYPES:
            info = _core.kernel_info(dtype, "dots")
            assert (info is not None) == (isa in ("avx512_bf16", "neon_bf16") and dtype in ("float32", "bfloat16"))
            if info is None:
                continue
            assert (info["kstep"], info["e_size"], info["parts"]) == (2, 2, 0)


@each_isa
def test_the_matrix_unit_is_that_of_the_isa_in_use(isa):
    """Check the register tile on AMX: four AMX tiles for every dtype but float64, which has none."""
    with using_isa(isa):
        found = {dtype: _core.kernel_info(dtype, "amx") for dtype in DTYPES}
        if isa != "avx512_amx":
            assert set(found.values()) == {None}
            with pytest.raises(ValueError, match="algorithm: got 'direct:amx', which is unavailable"):
                convt.conv_transpose(np.ones((1, 3, 2), "f4"), np.ones((1, 2, 1), "f4"), algorithm="direct:amx")
            return
        assert found.pop("float64") is None
        for dtype, info in found.items():
            assert (info["mr"][2], info["nr"], info["kstep"], info["parts"]) == (32, 32, 32, PARTS[dtype])
            case = replace(SAMPLES["dense"], dtype=dtype)
            data, filter, bias = case.arrays()
            op = operator(case, filter, bias, algorithm="direct:amx")
            assert (op.plan(data.shape).tile, op.plan(data.shape).isa) == ("32x32", isa)
            case.check(op(data), data, filter, bias)


@pytest.mark.parametrize("isa", ISA_ROWS)
def test_an_isa_the_cpu_lacks_can_not_be_used(isa):
    before = _core.isa()
    if not ISA_ROWS[isa]:
        with pytest.raises(LookupError):
            _core.use_isa(isa)
        assert _core.isa() == before
        pytest.skip(f"this CPU lacks {isa}, as convt reports")
    _core.use_isa(isa)
    assert _core.isa() == isa
    with pytest.raises(LookupError):
        _core.use_isa("mmx")
    assert _core.isa() == isa


def test_the_best_isa_worth_using_is_the_default():
    best = [row["name"] for row in _core.isa_rows() if row["available"]][-1]
    assert {row["name"] for row in _core.isa_rows() if row["available"]} <= set(ISAS)
    code, out, errors = child("import convt; print(convt.show_config(mode='dicts')['isa'])")
    assert code == 0, errors
    assert ast.literal_eval(out) == {"in use": best, "found": ISAS, "built": list(ISA_ROWS), "CONVT_ISA": None}


@each_isa
@pytest.mark.parametrize("algorithm", ["direct", "depthwise"])
def test_multiply_add_rounds_once_where_the_isa_has_it(isa, algorithm):
    """Check (1 + e)**2 - 1. A fused multiply-add, with -1 as the addend, keeps the last bit, and two roundings lose it."""
    e = np.float32(2.0**-12)
    data, filter = np.full((1, 3, 2), 1 + e), np.full((1, 2, 1), 1 + e)
    found = set()
    for first in (0, 1):
        data[..., first], filter[:, first], data[..., 1 - first], filter[:, 1 - first] = 1, -1, 1 + e, 1 + e
        with using_isa(isa):
            found |= set(convt.conv_transpose(data, filter, algorithm=algorithm).ravel().tolist())
    assert found == ({2 * e} if isa == "baseline" else {2 * e, 2 * e + e * e})


@each_isa
@each_dtype
def test_the_rate_of_multiply_adds_is_measured(dtype, isa):
    with using_isa(isa):
        assert _core.fma_peak(dtype, 2, 1e-3) > 0
        if _core.kernel_info(dtype, "dots") is not None:
            assert _core.fma_peak(dtype, 2, 1e-3, "dots") > 0


@each_isa
def test_the_environment_names_the_isa(isa):
    script = """
import numpy as np, convt
from convt import _core
op = convt.ConvTranspose(np.ones((3, 3, 8, 8), np.float32))
isa = convt.show_config(mode="dicts")["isa"]
lanes = _core.kernel_info("float32")["vl"]
print(isa["in use"], isa["CONVT_ISA"], op.plan((1, 9, 9, 8)).isa, lanes, op(np.ones((1, 9, 9, 8), "f4")).max())
"""
    code, out, errors = child(script, CONVT_ISA=isa)
    assert code == 0, errors
    assert out.split() == [isa, isa, isa, str(LANES[isa]), "72.0"]


def test_an_isa_in_the_environment_that_the_cpu_lacks_is_an_error():
    lacking = [name for name, available in ISA_ROWS.items() if not available]
    for name in lacking:
        code, _, errors = child("import convt", CONVT_ISA=name)
        assert code == 1 and f"BackendUnavailableError: CONVT_ISA: got {name!r}, which this CPU lacks" in errors
    if not lacking:
        pytest.skip("this CPU has every instruction set that is built")


_MOVED = """
import sys
from dataclasses import replace
import convt
from cases import SAMPLES, operator, run, using_isa
first, second = sys.argv[1:]
for case in SAMPLES.values():
    data, filter, bias = case.arrays()
    with using_isa(first):
        op = operator(case, filter, bias)
        case.check(op(data), data, filter, bias)
    with using_isa(second):
        for now in (case, replace(case, batch=3), case):
            data = now.arrays()[0]
            now.check(op(data), data, filter, bias)
            now.check(run(now, data, filter, bias), data, filter, bias)
"""


@each_isa
@pytest.mark.parametrize("first", [ISAS[0], ISAS[-1]])
def test_weights_packed_for_one_isa_never_meet_kernels_of_another(first, isa):
    code, _, errors = child(_MOVED, first, isa)
    assert code == 0, errors[-2000:]


def _code():
    """Return {isa: disassembly of its kernels} from the symbols of the extension, or None if tools or symbols are missing."""
    if not (shutil.which("objdump") and shutil.which("readelf")):
        return None
    listing = subprocess.run(["readelf", "-sW", _core.__file__], capture_output=True, text=True).stdout
    spans, name = {}, None
    for line in listing.splitlines():
        words = line.split()
        if len(words) < 8:
            continue
        if words[3] == "FILE":
            name = words[7].removeprefix("isa_").removesuffix(".c") if words[7].startswith("isa_") else None
        elif words[3] == "FUNC" and words[4] == "LOCAL" and name:
            start, size = int(words[1], 16), int(words[2], 0)
            low, high = spans.get(name, (start, start))
            spans[name] = min(low, start), max(high, start + size)
    return {
        name: subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", f"--start-address={low}", f"--stop-address={high}", _core.__file__],
            capture_output=True, text=True,
        ).stdout
        for name, (low, high) in spans.items()
    }  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares instructions of x86")
def test_each_kernel_table_holds_its_own_instructions_and_none_above():
    """Check that each kernel table holds only its own instructions."""
    code = _code()
    if not code:
        pytest.skip("no objdump, no readelf or no symbols")
    assert set(code) == set(ISA_ROWS)
    for name, text in code.items():
        assert text.count("\n") > 1000
        if name in ("baseline", "avx2"):
            assert ("%ymm" in text) == ("vfmadd" in text) == (name == "avx2")
        assert ("%zmm" in text) == name.startswith("avx512")
        assert ("vdpbf16ps" in text) == (name == "avx512_bf16")
        assert ("tdpbf16ps" in text) == (name == "avx512_amx")
        assert "ldmxcsr" not in text
