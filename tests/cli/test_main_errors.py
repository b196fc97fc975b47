"""Tests of errors in python -m convt: one line for each, other layers are still processed, and exit codes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import convt
from convt import __main__ as cli
from convt._base import files
from convt._plan import measure as _measure
from convt._run import config

LAYER = {"Cin": 8, "Cout": 4, "in": [6, 5], "k": 4, "s": 2, "pb": 1, "pe": 1}
TEXT = json.dumps(LAYER)


def ends(arguments, capsys):
    """Return (exit code, standard output, lines of standard error) of a call that raises SystemExit."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return stopped.value.code, printed.out, printed.err.splitlines()


def started(*arguments, **keywords):
    keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | keywords
    return subprocess.Popen([sys.executable, "-m", "convt", *arguments], **keywords)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"s": 100_000_000_000}, "output: got shape (1, 500000000002, 400000000002, 4) (NXC order), "),
        ({"Cin": 99_999_999_999}, "filter (numbers and packed weights): got shape (99999999999, 4, 4, 4), "),
        ({"k": 2**62}, "filter (numbers and packed weights): got shape (8, 4, 4611686018427387904, 4611686018427387904), "),
        ({"op": [2**62, 0]}, "output: got shape (1, 4611686018427387916, 10, 4) (NXC order), "),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [["plan"], ["plan", "--time"], ["tune"]], ids=" ".join)
def test_sizes_that_no_memory_holds_are_named(command, change, says, capsys, tmp_path):
    out = ["--out", str(tmp_path / "tuning.json")] if command == ["tune"] else []
    code, _, (line,) = ends([*command, json.dumps(LAYER | change | {"name": "up"}), *out], capsys)
    assert code == 1 and line.startswith(f"python -m convt: layer 'up': {says}"), line
    assert line.endswith(f" bytes, wanted at most {config._memory()[1]}")


def test_data_that_no_memory_holds_is_named_when_it_is_needed(capsys):
    layer = json.dumps(
        LAYER | {"in": [1, 1], "N": 1, "Cin": 2**40, "Cout": 2**40, "g": 2**40, "k": 1, "s": 1, "pb": 0, "pe": 0}
    )
    code, _, (line,) = ends(["plan", layer, "--time"], capsys)
    assert code == 1 and line.startswith("python -m convt: layer: ") and "bytes of memory" in line


@pytest.mark.parametrize("error, says", [
    (MemoryError(), "not enough memory"), (OverflowError("too\nlarge"), "too large"), (OSError("odd"), "odd"),
    (convt.BackendUnavailableError("none here"), "none here"),
    (OSError(13, "Permission denied", "a.json"), "a.json: Permission denied"),
])  # fmt: skip
def test_every_error_becomes_one_line(error, says, monkeypatch, capsys):
    def fails(*_):
        raise error

    monkeypatch.setattr(cli, "described", fails)
    assert ends(["plan", TEXT], capsys) == (1, "", [f"python -m convt: layer: {says}"])


def test_an_error_that_nobody_foresaw_is_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "described", lambda *_: {}["missing"])
    with pytest.raises(KeyError):
        cli.main(["plan", TEXT])


def test_a_bad_layer_does_not_discard_the_good_ones(tmp_path, capsys, monkeypatch):
    path, out = tmp_path / "layers.json", tmp_path / "tuning.json"
    rows = [
        LAYER | {"name": "first"}, LAYER | {"name": "bad", "s": 0}, {"Cin": 3}, LAYER | {"s": 10**11}, LAYER | {"name": "last"},
    ]  # fmt: skip
    path.write_text(json.dumps(rows))
    code, printed, lines = ends(["plan", str(path)], capsys)
    assert code == 1 and printed.count(" -> ") == 2 and "first: " in printed and "\nlast: " in printed
    assert [line.split(": ")[1] for line in lines] == ["layer 'bad'", "layer 3", "layer 4"]
    code, printed, lines = ends(["plan", str(path), "--json"], capsys)
    assert code == 1 and [each["name"] for each in json.loads(printed)] == ["first", "last"] and len(lines) == 3
    monkeypatch.setattr(_measure, "measure", lambda runs: dict.fromkeys(runs, 1e-3))
    code, printed, lines = ends(["tune", "[", str(path), "nowhere", "--out", str(out), "--json"], capsys)
    assert code == 1 and [each["name"] for each in json.loads(printed)["layers"]] == ["first", "last"] and len(lines) == 5
    assert convt.tuning.load(out).taken == 1  # both layers are one problem


@pytest.mark.parametrize(("arguments", "says"), [
    (["plan", TEXT, "--threads", "0"], "argument --threads: got '0', wanted an integer of at least 1"),
    (["plan", TEXT, "--layout", "NCXX"], "argument --layout: got 'NCXX', wanted NXC ("),
    (["plan", TEXT, "--shape", "foo"], "argument --shape: got 'foo', wanted NAME=N,N,... of integers of at least 1"),
    (["plan", TEXT, "--shape", "X=1", "--shape", "X=2"], "argument --shape: got 'X' twice, wanted one shape"),
    (["plan", TEXT, "--algorithm", "best"], "argument --algorithm: invalid choice: 'best'"),
    (["tune", TEXT, "--out", "/no/t.json"], "got '/no/t.json', wanted a file that can be written (No such "),
    (["tune", TEXT, "--out", "/"], "argument --out: got '/', wanted a file that can be written (Is a directory)"),
    (["tune", TEXT, "--out", ""], "argument --out: got '', wanted a file that can be written (No such file or directory)"),
    (["calibrate", "--out", "/no/m.json"], "got '/no/m.json', wanted a file that can be written (No such "),
    (["plan"], "the following arguments are required: layer"), (["plans"], "invalid choice: 'plans'"),
])  # fmt: skip
def test_wrong_arguments_end_with_code_2(arguments, says, capsys):
    code, printed, lines = ends(arguments, capsys)
    assert code == 2 and not printed and says in lines[-1]


def test_other_mistakes_end_with_code_1(tmp_path, capsys, monkeypatch):
    code, _, (line,) = ends(["plan", json.dumps(LAYER | {"Cin": 64, "Cout": 32}), "--algorithm", "depthwise"], capsys)
    assert code == 1 and "layer: algorithm: got 'depthwise', which is unavailable (needs " in line
    path = tmp_path / "tuning.json"
    path.write_text("no JSON")
    code, _, (line,) = ends(["tune", TEXT, "--out", str(path)], capsys)
    assert code == 1 and line.startswith(f"python -m convt: --out: got '{path}', line 1: not JSON")
    assert path.read_text() == "no JSON"
    monkeypatch.setattr(config, "_threads", None)
    monkeypatch.setenv("CONVT_NUM_THREADS", "many")
    code, _, (line,) = ends(["info"], capsys)
    assert code == 1 and line == "python -m convt: CONVT_NUM_THREADS: got 'many', wanted an integer >= 1"


def test_the_version_is_printed(capsys):
    assert ends(["--version"], capsys) == (0, f"convt {convt.__version__}\n", [])


def test_the_help_says_the_exit_codes(capsys):
    code, printed, _ = ends(["--help"], capsys)
    assert code == 0 and "The exit code is 0 if " in printed and "130 after Ctrl-C" in printed and "--version" in printed


def test_ctrl_c_is_one_line_and_code_130(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_measure, "measure", interrupted)
    assert ends(["plan", TEXT, "--time", "--json"], capsys) == (130, "", ["python -m convt: interrupted"])


def test_ctrl_c_from_outside():
    layer = json.dumps(LAYER | {"Cin": 32, "Cout": 32})
    code = f"""if True:
        import runpy, signal, sys
        from convt._plan import measure as _measure
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell makes its children in the background ignore
        _measure._disagreement = lambda *_: (print("measuring", flush=True), "not yet")[1]
        _measure._SECONDS = 60
        sys.argv = ["convt", "plan", {layer!r}, "--time"]
        runpy.run_module("convt", run_name="__main__")
    """
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "measuring\n"
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "python -m convt: interrupted\n")
    assert time.monotonic() - begin < 20


def test_tune_keeps_what_was_measured_before_ctrl_c(tmp_path, capsys, monkeypatch):
    turns = iter([None, KeyboardInterrupt])

    def measure(runs):
        if (error := next(turns)) is not None:
            raise error
        return dict.fromkeys(runs, 1e-3)

    monkeypatch.setattr(_measure, "measure", measure)
    path = tmp_path / "tuning.json"
    layers = json.dumps([LAYER, LAYER | {"Cin": 9}])
    assert ends(["tune", layers, "--out", str(path)], capsys)[0] == 130
    convt.tuning.clear()
    assert convt.tuning.load(path) == (1, 0)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_tune_says_that_nothing_was_kept(json_too, tmp_path, capsys, direct_wins, monkeypatch):
    def fails(path, _):
        raise OSError(30, "Read-only file system", path)

    monkeypatch.setattr(files, "write", fails)
    path = str(tmp_path / "tuning.json")
    code, printed, lines = ends(["tune", TEXT, "--out", path, *json_too], capsys)
    assert code == 1 and lines == [f"python -m convt: {path}: Read-only file system; nothing was kept"]
    assert "direct" in printed and "set CONVT_TUNING" not in printed
    assert not json_too or json.loads(printed)["entries"] == 0


def test_tune_says_which_layers_were_not_kept(tmp_path, capsys, direct_wins, monkeypatch):
    path, save, calls = str(tmp_path / "tuning.json"), convt.tuning.save, []

    def full(path):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(28, "No space left on device", path)
        return save(path)

    monkeypatch.setattr(convt.tuning, "save", full)
    layers = json.dumps([LAYER | {"Cin": channels} for channels in (8, 9, 10)])
    code, printed, lines = ends(["tune", layers, "--out", path], capsys)
    assert code == 1 and lines == [f"python -m convt: {path}: No space left on device; the last 2 layers were not kept"]
    assert printed.endswith(f"1 entry in {path}; set CONVT_TUNING={path} to use them\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_tune_writes_to_a_pipe_once(tmp_path, direct_wins):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    cli.main(["tune", json.dumps([LAYER | {"Cin": channels} for channels in (8, 9)]), "--out", str(pipe)])
    reader.join(30)
    assert len(json.loads(found[0])["entries"]) == 2 and os.listdir(tmp_path) == ["pipe"]


def test_a_reader_that_has_seen_enough_is_no_error():
    process = started("plan", json.dumps([LAYER] * 20))
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_can_not_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        process = started("plan", TEXT, stdout=full)
        _, errors = process.communicate()
    assert process.returncode == 1 and errors == "python -m convt: [Errno 28] No space left on device\n"


def test_random_numbers_are_made_only_where_they_fit(monkeypatch):
    """Check that sizes that do not fit in the machine's memory are refused before memory is requested."""
    monkeypatch.setattr(np.random, "default_rng", None)
    with pytest.raises(MemoryError):
        cli.layers.Layer("a", (1, 2**40, 5), (2**40, 1, 3), {}).operator()
