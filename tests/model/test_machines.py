"""Tests of the machine files: their values, the file that a CPU gets, the measurement of a machine, and errors in a file."""

import io
import json
import math
import platform
from types import SimpleNamespace

import numpy as np
import pytest
from cases import ISA_ROWS, child, pretend, using_isa

from convt import __main__ as cli
from convt import _core
from convt._model import calibrate, constants, machine, rates


def test_every_file_says_where_its_constants_come_from():
    known = constants.known()
    assert {"zen3", "zen4", "zen5", "skylake_server", "ice_lake", "sapphire_rapids", "sapphire_rapids_amx"} <= set(known)
    for name, each in known.items():
        found = json.loads((constants.FOLDER / f"{name}.json").read_text())
        assert found["name"] == name and found["about"] and found["origin"] in ("measured", "derived"), name
        assert found["raw"] if found["origin"] == "measured" else found["reason"], name
        assert each.vector_bits in (128, 256, 512) and (each.constants.products > 0) >= each.amx, name


def test_a_cpu_gets_the_file_of_its_family_or_of_its_vectors():
    name = lambda *asked: constants.of_cpu(*asked).name  # noqa: E731
    assert name(("AuthenticAMD", 25, 1), 256, False) == "zen3"
    assert name(("AuthenticAMD", 25, 17), 512, False) == "zen4"
    assert name(("AuthenticAMD", 26, 2), 512, False) == "zen5"
    assert name(("GenuineIntel", 6, 85), 512, False) == "skylake_server"
    assert name(("GenuineIntel", 6, 106), 512, False) == "ice_lake"
    assert name(("GenuineIntel", 6, 143), 512, True) == "sapphire_rapids_amx"
    assert name(("GenuineIntel", 6, 173), 512, True) == "granite_rapids"
    # Virtual machines on Granite Rapids that report the model of Rocket Lake.
    assert name(("GenuineIntel", 6, 167), 512, True) == "granite_rapids"
    assert name(("GenuineIntel", 6, 167), 512, False, True) == "sapphire_rapids"
    assert name(("GenuineIntel", 6, 167), 512, False) == "ice_lake"
    assert name(("GenuineIntel", 6, 143), 512, False) == "sapphire_rapids"
    assert name(("GenuineIntel", 6, 143), 256, False) == "generic_256"  # the kernels of a lower instruction set
    for bits in (128, 256, 512):
        assert name(("", 0, 0), bits, False) == f"generic_{bits}"
    assert name(("Arm", 8, 0xD0C), 128, False) == "neoverse_n1"
    assert name(("Arm", 8, 0xD40), 128, False) == "neoverse_v1"
    assert name(("Arm", 8, 0xD4F), 128, False) == "neoverse_v2"
    assert name(("Arm", 8, 0xD4A), 128, False) == "generic_128"
    assert name(("Apple", 0, 0), 128, False) == name(("Apple", 8, 0x23), 128, False) == "apple_m1"


@pytest.mark.skipif(_core.kernel_info("float32", "vectors")["vl"] == 4 or platform.machine() != "x86_64",
                    reason="the latency of a fused multiply-add is known for x86 only")  # fmt: skip
def test_the_clock_counts_cycles():
    """No x86 CPU has a fused multiply-add in fewer than four cycles."""
    memory = np.zeros(64, np.uint8)
    fastest = {what: max(rates.rate(what, memory, 1, 0.002) for _ in range(20)) for what in ("clock", "chain")}
    assert fastest["clock"] > 3.7 * fastest["chain"]


def test_every_instruction_set_has_a_machine():
    for isa in ISA_ROWS:
        with pretend(isa=isa):
            here = machine.current()
            assert constants.known()[here.name].constants == here.constants
            assert (here.constants.products > 0) >= (_core.kernel_info("float32", "amx", isa) is not None)
            assert (here.constants.dots > 0) >= (_core.kernel_info("float32", "dots", isa) is not None)
    with pretend(isa="avx512", family="zen4"):
        assert machine.current().name == "zen4"


def test_the_cpu_says_who_it_is():
    vendor, family, model = machine.cpu()
    assert isinstance(vendor, str) and family >= 0 and model >= 0


@pytest.mark.parametrize(("text", "cpu"), [
    ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: x\n\n", ("GenuineIntel", 6, 143)),
    ("CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n\nCPU part\t: 0x1\n", ("Arm", 8, 0xD0C)),
    ("CPU implementer\t: 0x99\nCPU architecture: AArch64\n", ("0x99", 0, 0)), ("", ("", 0, 0)),
])  # fmt: skip
def test_texts_that_describe_cpus(text, cpu, monkeypatch):
    monkeypatch.setattr(machine, "open", lambda *_, **__: io.StringIO(text), raising=False)
    assert machine.cpu() == cpu
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    monkeypatch.setattr(machine.os, "uname", lambda: SimpleNamespace(machine="arm64"))
    assert machine.cpu() == ("Apple", 0, 0)


def brief(monkeypatch, steady=math.inf):
    """Make a measurement take no time, and ignore disturbances unless ``steady`` is finite."""
    for name, value in (("WHOLE", 0), ("LEAST", 2), ("TURN", 1e-3), ("MEMORY", 1 << 22), ("STEADY", steady)):
        monkeypatch.setattr(calibrate, name, value)


def test_a_disturbed_measurement_is_said_and_not_written(monkeypatch, tmp_path, capsys):
    brief(monkeypatch, steady=0)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["calibrate", "--out", str(tmp_path / "mine.json")])
    printed = capsys.readouterr()
    assert stopped.value.code == 1 and not printed.out and not list(tmp_path.iterdir())
    assert printed.err.startswith("python -m convt: other processes disturbed") and printed.err.count("\n") == 1


def test_a_disturbed_measurement_is_kept_on_request_with_how_sure_it_is(monkeypatch, tmp_path, capsys):
    brief(monkeypatch, steady=0)
    path = tmp_path / "mine.json"
    assert cli.main(["calibrate", "--out", str(path), "--best-effort"]) == 0
    found = json.loads(path.read_text())
    assert f"not sure: other processes disturbed the measurement, and its clock varied by {found['spread']:.0%}\n" in (
        capsys.readouterr().out
    )
    assert constants.read(path).constants.clock == found["constants"]["clock"]


@pytest.mark.parametrize("isa", [name for name, available in ISA_ROWS.items() if available])
def test_a_machine_is_measured(isa, monkeypatch, tmp_path):
    brief(monkeypatch)
    with using_isa(isa):
        found = calibrate.described(2)
    path = tmp_path / "mine.json"
    calibrate.write(path, found)
    read = constants.read(path)
    assert read.constants == constants.Constants(**found["constants"]) and json.loads(path.read_text()) == found
    assert all(0 < value < math.inf or name in constants.OPTIONAL for name, value in found["constants"].items())
    assert read.vector_bits == 8 * _core.kernel_info("float32", isa=isa)["vl"] * 4


def test_the_rate_of_dot_products_is_that_of_their_instruction(monkeypatch):
    """Vectors that multiply faster than dot products must not hide the rate of the latter."""
    brief(monkeypatch)
    rates = {"vectors": 100.0, "dots": 25.0}
    monkeypatch.setattr(_core, "fma_peak", lambda dtype, threads, seconds, unit=None: rates.get(unit, max(rates.values())))
    info = _core.kernel_info
    # Only dot products are pretended, because the measurement executes every other unit that is there.
    pretended = lambda dtype, unit="vectors", *isa: info(dtype, unit, *isa) or (info(dtype) if unit == "dots" else None)  # noqa: E731
    monkeypatch.setattr(_core, "kernel_info", pretended)
    found = calibrate.measure(1)[0]
    assert math.isclose(found.dots / found.multiply_adds, 25 / 2 / 100, rel_tol=1e-3)


def test_the_command_measures_and_writes_a_file(monkeypatch, tmp_path, capsys):
    brief(monkeypatch)
    path = tmp_path / "mine.json"
    assert cli.main(["calibrate", "--out", str(path), "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert f"CONVT_COSTS={path}" in printed and machine.current().name in printed and "l2_read" in printed
    assert cli.main(["calibrate", "--out", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())
    with pytest.raises(SystemExit) as stopped:
        cli.main(["calibrate", "--out", str(tmp_path / "none" / "mine.json")])
    assert stopped.value.code == 2 and "wanted a file that can be written" in capsys.readouterr().err


SHOW = "from convt.algorithms import machine; print(machine.current().name, machine.current().constants.task)"


def written(tmp_path, change=lambda found: None):
    path = tmp_path / "machine.json"
    found = json.loads((constants.FOLDER / "zen3.json").read_text())
    change(found)
    path.write_text(json.dumps(found))
    return path


def test_a_file_is_used(tmp_path):
    def change(found):
        found["name"] = "mine"
        found["constants"]["task"] = 123.5

    code, out, errors = child(SHOW, CONVT_COSTS=str(written(tmp_path, change)))
    assert (code, out.split()) == (0, ["mine", "123.5"]), errors


@pytest.mark.parametrize(("change", "says"), [
    (lambda found: found["constants"].pop("task"), "'task'"), (lambda found: found["constants"].update(more=1), "'more'"),
    (lambda found: found["constants"].update(task=-1), "task"), (lambda found: found["constants"].update(task=0), "task"),
    (lambda found: found["constants"].update(task="1"), "task"), (lambda found: found["constants"].update(task=True), "task"),
    (lambda found: found["constants"].update(task=math.nan), "task"), (lambda found: found.pop("constants"), "format"),
    (lambda found: found.update(format="2"), "format"), (lambda found: found.update(constants=[]), "format"),
    (lambda found: found.update(cpus=[{"vendor": "x"}]), "cpus"), (lambda found: found.update(cpus=3), "cpus"),
    (lambda found: found.pop("vector_bits"), "vector_bits"),
])  # fmt: skip
def test_a_bad_file_is_refused(change, says, tmp_path):
    path = written(tmp_path, change)
    with pytest.raises(ValueError, match=says) as refused:
        constants.read(path, "CONVT_COSTS")
    assert "CONVT_COSTS" in str(refused.value) and str(path) in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path):
    for name, text in (("none", None), ("text", "{"), ("list", "[]"), ("deep", "[" * 200_000)):
        path = tmp_path / f"{name}.json"
        if text is not None:
            path.write_text(text)
        code, _, errors = child("import convt", CONVT_COSTS=str(path))
        assert code == 1 and "CONVT_COSTS" in errors and str(path) in errors and "ValueError" in errors
