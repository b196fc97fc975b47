"""The micro-benchmark: its layers, its checker, its manners. No figure is asserted here."""

import argparse
import importlib
import importlib.util
import json
import os
import threading
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import child

import convt
from bench import COMMAND, beside, check, command, crosscheck, errors, layers, machine, peers, tables, timing
from bench import __main__ as cli
from bench.problem import DTYPES, PRECISIONS, Problem, as_nxc, in_layout
from bench.record import Record
from bench.rounds import Result, measure
from bench.shared import files
from bench.worker import Died, Service, Setting, Worker

TABLE = {layer.name: layer for layer in layers.parse(layers.TABLE)}

SMALL = layers.parse(
    """
    name      family  N  Cin  Cout  g  in     k      s    pads   op   d  source
    plain     test    2  6    10    1  5x7    4x4    2    1      0    1  two axes
    grouped   test    1  6    9     3  9      5      3    1:2    2    1  one axis, groups, uneven pads
    depthwise test    3  8    8     8  4x6    3x2    1x2  2x0    0    2  depthwise, dilated
    cube      test    1  4    3     1  3x2x4  3x1x2  2x1x3  0    1x0x4  1  three axes, pixels that no tap reaches
    """
)
PLAIN = SMALL[0]
ONEDNN_SYCL = "CONVT_BENCH_ONEDNN_SYCL"


def reference(problem):
    """The right result, channels last."""
    layer = problem.layer
    result = convt.conv_transpose(
        in_layout(problem.data(), problem.layout), problem.filter(), problem.bias(), strides=layer.strides,
        pads_begin=layer.pads_begin, pads_end=layer.pads_end, output_padding=layer.output_padding, dilations=layer.dilations,
        groups=layer.groups, data_format=problem.layout, backend="reference",
    )  # fmt: skip
    return as_nxc(result, problem.layout)


# ---------------------------------------------------------------- layers


def test_the_table_holds_the_layers_and_the_quick_ones_among_them():
    assert len(TABLE) == 45
    assert set(layers.QUICK) <= TABLE.keys()
    assert {TABLE[name].family for name in layers.QUICK} == {layer.family for layer in TABLE.values()}
    assert all(layer.source for layer in TABLE.values())


@pytest.mark.parametrize(
    ("name", "data", "filter", "result"),
    [
        ("dcgan_mid", (64, 8, 8, 256), (4, 4, 256, 128), (64, 16, 16, 128)),
        ("cyclegan_up2", (1, 128, 128, 128), (3, 3, 128, 64), (1, 256, 256, 64)),  # output_padding
        ("encodec_24k", (1, 6000, 256), (10, 256, 128), (1, 30000, 128)),  # pads at the end only
        ("demucs_freq", (1, 8, 336, 384), (8, 1, 384, 192), (1, 32, 336, 192)),  # axes that differ
        ("gtcrn_dw", (1, 73, 33, 16), (3, 3, 16, 1), (1, 63, 33, 16)),  # depthwise and dilated
        ("gan3d_conv3", (1, 16, 16, 16, 128), (4, 4, 4, 128, 64), (1, 32, 32, 32, 64)),
    ],
)
def test_a_layer_has_the_shapes_of_its_network(name, data, filter, result):
    layer = TABLE[name]
    assert (layer.data_shape, layer.filter_shape, layer.result_shape) == (data, filter, result)


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_operations_are_those_that_reach_the_output(layer):
    """Counted by doing them: a one for each product."""
    ones = np.ones(layer.data_shape), np.ones(layer.filter_shape)
    attributes = ("strides", "pads_begin", "pads_end", "output_padding", "dilations", "groups")
    result = convt.conv_transpose(*ones, **{name: getattr(layer, name) for name in attributes}, backend="reference")
    assert layer.flops == 2 * result.sum()


def test_operations_of_a_layer_without_pads_are_simple():
    assert TABLE["unet_up1"].flops == 2 * 1024 * 512 * 4 * 40 * 60


def test_a_layer_survives_its_row():
    assert [layers.from_row(layer.to_row()) for layer in TABLE.values()] == list(TABLE.values())


# ---------------------------------------------------------------- the checker


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_the_checker_accepts_the_reference(layer, dtype, layout):
    problem = Problem(layer, dtype, layout, "prepacked", with_bias=True)
    assert check.is_right(problem, check.error(problem, reference(problem), check.expected(problem)))


def off_by_one(result):
    result[1, 3, 5, 7] += 1


def swapped_channels(result):
    result[..., [2, 3]] = result[..., [3, 2]]


def shifted(result):
    result[0] = np.roll(result[0], 1, axis=1)


def not_a_number(result):
    result[0, -1, -1, -1] = np.nan


@pytest.mark.parametrize("spoil", [off_by_one, swapped_channels, shifted, not_a_number])
def test_the_checker_sees_what_is_wrong(spoil):
    problem = Problem(PLAIN, "f32", "NXC")
    result = reference(problem).copy()
    spoil(result)
    assert not check.is_right(problem, check.error(problem, result, check.expected(problem)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layer", [PLAIN, TABLE["gan3d_conv3"]], ids=lambda layer: layer.name)
def test_the_checker_allows_what_the_precision_does(layer, precision):
    """And no more: numbers of a few bits less are wrong."""
    problem = Problem(layer, "f32", "NXC", precision=precision)
    truth, bits = check.expected(problem), {"highest": 23, "high": 10, "medium": 7}[precision]

    def with_bits(count):
        unit = np.float32(2.0 ** -(count + 1))
        cut = lambda a: (np.round(np.frexp(a)[0] / unit) * unit * np.exp2(np.frexp(a)[1])).astype(np.float32)  # noqa: E731
        result = convt.conv_transpose(
            cut(problem.data()), cut(problem.filter()), strides=layer.strides, pads_begin=layer.pads_begin,
            pads_end=layer.pads_end, algorithm="direct", backend="native",
        )  # fmt: skip
        return check.is_right(problem, check.error(problem, result, truth))

    assert with_bits(bits)
    assert not with_bits(bits - (10 if precision == "highest" else 5))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_convt_gets_the_precision_and_others_say_that_they_do_not(worker, precision):
    layer = layers.parse(layers.TABLE)[3]
    (result,) = measure(Problem(layer, "f32", "NXC", precision=precision), [worker], rounds=1, budget=0.01, note=pytest.fail)
    weights = np.ones(layer.filter_shape, np.float32)
    op = convt.ConvTranspose(weights, strides=2, pads_begin=1, pads_end=1, precision=precision)
    plan = op.plan(layer.data_shape)
    assert result.status == "ok" and result.how == f"native {plan.algorithm} {plan.unit} {plan.isa}"
    problem = Problem(PLAIN, "f32", "NXC", precision=precision)
    (other,) = measure(problem, [Here("other", right)], rounds=1, budget=0.01, note=pytest.fail)
    said = ", has no precision " + precision if precision != "highest" else ""
    assert other.status == "ok" and other.how == "by heart" + said


def test_the_checker_sees_a_wrong_shape():
    problem = Problem(PLAIN, "f32", "NXC")
    assert not check.is_right(problem, check.error(problem, reference(problem)[:, 1:], check.expected(problem)))


# ---------------------------------------------------------------- rounds, with a library in this very process


class Here:
    """A worker without a process."""

    def __init__(self, name, prepare, speeds=()):
        """``speeds`` are those of the cores, the last of which stays."""
        self.peer, self.setting, self.asked, self._speeds = SimpleNamespace(name=name), Setting(1), [], [*speeds] or [1.0]
        self._stand = Service(SimpleNamespace(DTYPES=("f32",), prepare=prepare), 1, {})

    def ask(self, method, *arguments):
        if method == "speeds":
            return [self._speeds.pop(0) if len(self._speeds) > 1 else self._speeds[0], 1.0]
        self.asked.append(method)
        return getattr(self._stand, method)(*arguments)


def spoilt(problem, threads):
    wrong = reference(problem).copy()
    off_by_one(wrong)
    return peers.Ready(lambda: wrong, lambda result: result, "")


def right(problem, threads):
    result = reference(problem)
    return peers.Ready(lambda: result, lambda result: result, "by heart")


def racing(problem, threads):
    """Right at the first call, wrong later."""
    results = iter([right(problem, threads).run()])
    wrong = spoilt(problem, threads).run()
    return peers.Ready(lambda: next(results, wrong), lambda result: result, "in a hurry")


def refusing(problem, threads):
    raise peers.Unsupported("not today")


def failing(problem, threads):
    raise peers.Failed("RuntimeError: oh")


def test_only_what_is_right_is_timed():
    entrants = [Here("convt", right), Here("wrong", spoilt), Here("shy", refusing), Here("broken", failing)]
    results = measure(Problem(PLAIN, "f32", "NXC"), entrants, rounds=3, budget=0.03, note=pytest.fail)
    assert [result.status for result in results] == ["ok", "WRONG", "unsupported", "failed"]
    assert [len(result.rounds) for result in results] == [3, 0, 0, 0]
    assert results[0].seconds == min(turn["median"] for turn in results[0].rounds)
    assert entrants[1].asked == ["prepare"]
    cells = tables.row(results[1], results, machine.Limits({"f32": 100.0}, 10.0))
    assert cells[2] == "WRONG"
    assert not any(cells[3:8])


def test_what_goes_wrong_under_way_is_seen():
    (result,) = measure(Problem(PLAIN, "f32", "NXC"), [Here("racer", racing)], rounds=2, budget=0.02, note=pytest.fail)
    assert result.status == "WRONG"
    assert "correct before timing, wrong after it" in result.how
    assert result.seconds is None


def test_a_turn_on_slow_cores_is_repeated_and_marked():
    # The first turn and its first repetition are disturbed, then the cores are slow to the end.
    ours, other = Here("convt", right, [1.0, 0.5, 1.0, 1.0, 0.7]), Here("other", right)
    first, last = measure(Problem(PLAIN, "f32", "NXC"), [ours, other], rounds=1, budget=0.02, note=pytest.fail)
    assert [turn["slowed"] for turn in first.rounds] == [True, True, False]
    assert [turn["slowed"] for turn in last.rounds] == [True] * (1 + timing.Gauge.REPEATS)
    assert last.disturbed
    (alone,) = measure(Problem(PLAIN, "f32", "NXC"), [other], rounds=1, budget=0.02, note=pytest.fail)
    assert [turn["slowed"] for turn in alone.rounds] == [False]  # without convt, nothing measures the speed


def test_calls_in_turns_repeat_what_slow_cores_disturbed():
    calls, speeds = [], iter([1.0, 0.5, 0.5])
    timing.in_turns([lambda: calls.append(1)], 0.0, 1, speeds=lambda: [2.0, next(speeds, 1.0)])
    assert len(calls) == 4


def test_a_dtype_that_a_library_lacks_is_unsupported():
    (result,) = measure(Problem(PLAIN, "f64", "NXC"), [Here("convt", right)], 1, 0.01, pytest.fail)
    assert (result.status, result.how) == ("unsupported", "no f64")


def test_a_call_longer_than_the_budget_is_timed_once():
    worker = Here("convt", right)
    (result,) = measure(Problem(PLAIN, "f32", "NXC"), [worker], rounds=3, budget=1e-9, note=pytest.fail)
    assert [turn["calls"] for turn in result.rounds] == [1]
    assert worker.asked == ["prepare", "time"]


def test_cold_calls_take_turns_with_warm_ones(monkeypatch):
    monkeypatch.setattr(machine, "cache_bytes", lambda: 1 << 16)
    worker = Here("convt", right)
    (result,) = measure(Problem(PLAIN, "f32", "NXC"), [worker], rounds=2, budget=0.04, note=pytest.fail, cold=True)
    assert worker.asked == ["prepare", *["time", "time_cold"] * 2, "error"]
    assert result.cold_seconds == min(turn["median"] for turn in result.cold)


def test_what_empties_the_caches_is_done_before_each_call_and_not_timed():
    done = []
    durations, _ = timing.sample(lambda: done.append("call"), 0.02, lambda: (done.append("empty"), time.sleep(0.005)))
    assert done[1:-1] == ["empty", "call"] * len(durations)
    assert max(durations) < 0.005 and 1 <= len(durations) <= 4
    empty = timing.EmptyCaches(2, 1 << 12)
    empty()
    assert [part.tolist() for part in empty._parts] == [[1.0] * 256] * 2
    assert 1 << 12 <= machine.cache_bytes() <= 1 << 28


def test_settle_tells_quiet_from_busy():
    assert timing.wait_until_idle()
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            pass

    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        # Several looks, because other programs may keep the thread waiting during one.
        assert not all(timing.wait_until_idle(limit=0.1) for _ in range(10))
    finally:
        stop.set()
        spinner.join()


# ---------------------------------------------------------------- processes


@pytest.fixture
def worker():
    worker = Worker(peers.PEERS[0], Setting(1))
    yield worker
    worker.close()


def test_a_worker_reports_errors_and_comes_back_from_the_dead(worker):
    assert worker.ask("version") == convt.__version__
    with pytest.raises(peers.Failed, match="no_such_thing"):
        worker.ask("no_such_thing")
    worker.ask("set_up", Problem(PLAIN, "f32", "NXC"))
    with pytest.raises(Died, match="no answer"):
        worker.ask("time", 60.0, timeout=0.0)  # busy for a minute, however long we take to look
    assert worker.ask("version") == convt.__version__


def test_an_absent_peer_is_a_note(monkeypatch):
    monkeypatch.setenv("CONVT_ONEDNN_LIB", "/nowhere/libdnnl.so.3")
    record = Record({})
    assert cli.present(peers.named(["onednn-plain"]), Setting(1), record) == []
    (note,) = record.notes
    assert "onednn-plain is skipped" in note
    assert "pip install onednn-cpu-gomp" in note
    assert not record.versions


def test_the_folder_of_a_report_can_be_written(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "index.html").mkdir()
    for folder in (tmp_path / "a", tmp_path / "a/b/c"):
        assert command.folder(str(folder)) == str(folder)
    for wrong, why in ("file", "Not a directory"), ("file/x", "Not a directory"), ("", "Is a directory"):
        with pytest.raises(argparse.ArgumentTypeError, match=rf"wanted a folder that can be written \({why}\)"):
            command.folder(str(tmp_path / wrong))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "index.html"]


def test_quick_without_onednn_compares_with_another_library(monkeypatch):
    installed = "convt", "onnxruntime", "openvino"
    monkeypatch.setattr(cli, "present", lambda some, *_: [each for each in some if each.name in installed])
    for arguments, wanted in (["--quick"], ["convt", "onnxruntime"]), (["--quick", "--peers", "onednn"], ["convt"]):
        found = cli.present_for(cli.parser().parse_args(arguments), Setting(1), Record({}))
        assert [each.name for each in found] == wanted


@pytest.mark.parametrize("name", ["bench.models", "bench.checksums", "bench.jax_door", "bench.scaling"])
def test_a_command_without_its_package_says_which(name):
    package = {"bench.jax_door": "jax", "bench.scaling": "dask"}.get(name, "torch")
    words = ["x", "--help"] if package == "torch" else ["x"]
    script = f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = {words}; "
    code, _, errors = child(script + f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)")
    assert code == 1 and errors.splitlines()[-1].startswith(f"python -m {name} needs the package {package}"), errors


@pytest.mark.parametrize("folder", [None, "/nowhere"])
def test_the_onednn_of_another_environment_is_found_only_there(monkeypatch, folder):
    monkeypatch.delenv(ONEDNN_SYCL, raising=False)
    if folder:
        monkeypatch.setenv(ONEDNN_SYCL, folder)
    record = Record({})
    assert cli.present(peers.named(["onednn-3.13"]), Setting(1), record) == []
    (note,) = record.notes
    assert "onednn-3.13 is skipped" in note
    assert (folder or f"{ONEDNN_SYCL} is not set") in note
    assert f"pip install onednn in a virtual environment that {ONEDNN_SYCL} names" in note


def test_a_cap_reaches_the_library_and_leaves_out_those_without(worker):
    capped, record = Setting(1, "baseline"), Record({})
    (ours,) = cli.present([peers.PEERS[0], *peers.named(["onnxruntime"])], capped, record)
    try:
        checked = Problem(PLAIN, "f32", "NXC")
        (result,) = measure(checked, [ours], rounds=1, budget=0.01, note=pytest.fail)
    finally:
        ours.close()
    assert result.how.endswith("baseline")
    (note,) = record.notes
    assert note == "onnxruntime is skipped: --isa cannot limit its instruction set"


def test_onednns_own_clock_is_read():
    """What `python -m bench.crosscheck` holds the figures against."""
    (peer,) = peers.named(["onednn-plain"])
    service, environment = crosscheck.TOOLS[peer.name]
    tool = Worker(peer, Setting(1), service, environment)
    try:
        try:
            tool.ask("version")
        except peers.Absent as exc:
            pytest.skip(str(exc))
        tool.ask("set_up", Problem(PLAIN, "f32", "NXC"))
        assert 0 < tool.ask("time", 0.01) < 1
    finally:
        tool.close()


# ---------------------------------------------------------------- the command line


@pytest.fixture
def small_copy(monkeypatch):
    monkeypatch.setattr(machine, "COPY_BYTES", 1 << 20)


TINY = 'mb2_ic6oc10_ih5kh4sh2ph1_iw7kw4sw2pw1_n"tiny"'
ONCE = "torch-prepacked", "torch-subpixel"  # prepare weights once, of dense layers


def test_every_peer_here_is_right_at_its_precision_and_the_json_says_so(tmp_path, capsys, small_copy):
    path = tmp_path / "out.json"
    arguments = ["--deconv", TINY, "--threads", "1", "--rounds", "2", "--budget", "0.02", "--mode", "prepacked,one-shot"]
    arguments += ["--cold", "--precision", ",".join(PRECISIONS), "--json", str(path)]
    assert cli.main(arguments) == 0
    content = json.loads(path.read_text())
    assert content["complete"]
    assert content["machine"]["cpu"]
    assert content["command"] == arguments
    assert content["limits"][0]["peaks"]["f32"] > 0
    assert content["versions"]["convt"] == convt.__version__
    assert content["results"][0]["peer"] == "convt"
    found = {(result["mode"], result["precision"]) for result in content["results"]}
    assert found == set(product(("prepacked", "one-shot"), PRECISIONS))
    for result in content["results"]:
        if result["peer"] in ONCE and result["status"] == "unsupported":
            continue
        assert result["status"] == "ok" and result["error"] is not None, result
        assert layers.from_row(result["layer"]).result_shape == (2, 10, 14, 10)
        assert result["seconds"] == min(turn["median"] for turn in result["rounds"])
        assert result["cold_seconds"] == min(turn["median"] for turn in result["cold_rounds"])
        one = ("high", "medium")
        lacks = {"onnxruntime": one, "mnn": one, "jax": one, "openvino": ("high",)}.get(result["peer"], ())
        assert ("has no precision" in result["how"]) == (result["precision"] in lacks), result
    absent = [peer.name for peer in peers.PEERS if peer.name not in content["versions"]]
    assert all(any(name in note for note in content["notes"]) for name in absent)
    out = capsys.readouterr().out
    assert "tiny" in out and all(f"\nf32{word}, NXC" in out for word in ("", ", precision high", ", precision medium"))


@pytest.mark.parametrize("layer", ["g1mb2_ic6ih5iw4oc10oh11ow9kh4kw3sh2sw2ph1pw0", "g1mb1_ic5iw9oc3ow22kw5sw3pw4"])
def test_ways_of_pytorch_that_prepare_weights_are_right(tmp_path, layer, small_copy):
    """In both layouts, where the ends of the window differ, and in one axis."""
    pytest.importorskip("torch")
    path = tmp_path / "out.json"
    arguments = ["--deconv", layer, "--peers", ",".join(ONCE), "--threads", "1", "--rounds", "1", "--budget", "0.02"]
    arguments += ["--layout", "NXC,NCX", "--mode", "prepacked", "--json", str(path)]
    assert cli.main(arguments) == 0
    found = [(each["peer"], each["status"]) for each in json.loads(path.read_text())["results"] if each["peer"] in ONCE]
    assert found == [(name, "ok") for name in ONCE] * 2


@pytest.fixture
def asked_for(request):
    """A worker of the peer named."""
    peer = peers.PEERS[[each.name for each in peers.PEERS].index(request.param)]
    worker = Worker(peer, Setting(2 if machine.cores() > 1 else 1))
    yield worker
    worker.close()


@pytest.mark.skipif(ONEDNN_SYCL not in os.environ, reason=f"{ONEDNN_SYCL} is not set")
@pytest.mark.parametrize("asked_for", ["onednn-3.13"], indirect=True)
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_onednn_on_sycl_is_right(asked_for, layout):
    """As the other release, it takes no output_padding as large as cube's."""
    assert asked_for.ask("version").startswith("3.")
    for layer, mode, with_bias in product(SMALL, ("prepacked", "one-shot"), (False, True)):
        problem = Problem(layer, "f32", layout, mode, with_bias)
        (result,) = measure(problem, [asked_for], rounds=1, budget=0.01, note=pytest.fail)
        assert result.status == ("unsupported" if layer.name == "cube" else "ok"), (problem, result)


@pytest.mark.skipif(importlib.util.find_spec("MNN") is None, reason="MNN is not installed")
@pytest.mark.parametrize("asked_for", ["mnn"], indirect=True)
def test_mnn_is_right_or_unsupported(asked_for):
    """Groups whose weights are an input, and biases of three axes, would end the process or be wrong."""
    for layer, mode, with_bias in product(SMALL, ("prepacked", "one-shot"), (False, True)):
        problem = Problem(layer, "f32", "NXC", mode, with_bias)
        (result,) = measure(problem, [asked_for], rounds=1, budget=0.01, note=pytest.fail)
        lacks = {"grouped": mode == "one-shot", "cube": mode == "one-shot" or with_bias}.get(layer.name, False)
        assert result.status == ("unsupported" if lacks else "ok"), (problem, result)
        assert lacks or result.how == ("in NCX, as 2-D" if layer.name == "grouped" else "in NCX")


def test_it_works_as_the_package_that_a_wheel_has(tmp_path):
    """There it is called convt_bench, and no module bench is near."""
    (tmp_path / "convt_bench").symlink_to(Path(cli.__file__).parent, target_is_directory=True)
    path = os.pathsep.join([str(tmp_path), str(Path(convt.__file__).parents[1])])
    json_file = tmp_path / "out.json"

    def run(script, *arguments):
        code, out, errors = child(f"import sys; sys.modules['bench'] = None; {script}", *arguments, PYTHONPATH=path)
        assert code == 0, errors
        return out

    loaded = run("import convt_bench.__main__, convt_bench.worker; print(*sys.modules)").split()
    assert "convt_bench.layers" in loaded and "convt" not in loaded  # its processes for other libraries have none of ours
    main = "from convt_bench.__main__ import main; sys.exit(main())"
    chosen = "--deconv", TINY, "--peers", "none", "--threads", "1", "--rounds", "1", "--budget", "0.05"
    assert "tiny" in run(main, *chosen, "--json", json_file)
    (result,) = json.loads(json_file.read_text())["results"]
    assert (result["peer"], result["status"]) == ("convt", "ok")
    assert run(main, "compare", json_file, json_file).endswith("\ncompared 1 problem\n")
    assert run(main, "--help").startswith("usage: convt-bench ")


def test_interrupted_it_keeps_what_is_done(tmp_path, capsys, monkeypatch, small_copy):
    done = []

    def interrupted(problem, *_):
        if done:
            raise KeyboardInterrupt
        turn = {"median": 0.5, "calls": 1, "neighbours": None, "slowed": False}
        done.append(Result(problem, Setting(1), "convt", "ok", "", 1e-7, [turn]))
        return done

    monkeypatch.setattr(cli, "measure", interrupted)
    monkeypatch.setattr(cli, "present", lambda *_: [])
    path = tmp_path / "out.json"
    assert cli.main(["--quick", "--threads", "1", "--json", str(path)]) == 130
    content = json.loads(path.read_text())
    assert not content["complete"]
    assert [result["seconds"] for result in content["results"]] == [0.5]
    out = capsys.readouterr().out
    assert "dcgan_mid" in out
    assert "interrupted" in out


@pytest.mark.parametrize(("arguments", "message"), [
    (["--names", "mimi"], "unknown layer 'mimi'; did you mean mimi_dw?"),
    (["--suite", "zoo"], "unknown family 'zoo'; known: 3d, audio"),
    (["--peers", "xnnpack"], "got 'xnnpack', wanted one of onednn, torch"),
    (["--mode", "packed"], "got 'packed', wanted one of prepacked, one-shot"),
    (["--isa", "sse9"], "got 'sse9', wanted one of baseline, avx2"),
    (["--deconv", "mb1_ic8_ih4"], "mb1_ic8_ih4: oc is missing or 0"),
    (["--batch", "/nowhere/layers.batch"], "/nowhere/layers.batch"),
    (["--report", "/dev/null"], "got '/dev/null', wanted a folder that can be written (Not a directory)"),
    (["compare", "/nowhere/a.json", "/nowhere/b.json"], "/nowhere/a.json"),
    (["--dtype", "f32,f8"], "got 'f8', wanted float32 (f32, fp32, single) or float64 (f64, fp64, double) or"),
    (["--precision", "high,tf32"], "got 'tf32', wanted one of highest, high, medium"),
    (["--layout", "NHCW"], "got 'NHCW', wanted NXC (channels_last, NWC, NLC, NHWC, NDHWC) or NCX (channels_first"),
    (["--threads", "1,0"], "wanted an integer of at least 1"), (["--rounds", "two"], "wanted an integer of at least 1"),
    (["--budget", "nan"], "got 'nan', wanted a number above 0"), (["--layers", "/nowhere/layers.json"], "/nowhere/layers.json"),
    (["--json", "/nowhere/out.json"], "got '/nowhere/out.json', wanted a file that can be written (No such "),
])  # fmt: skip
def test_bad_arguments_get_clear_messages(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command, option", [
    ("__main__", "--json"), ("beside", "--json"), ("checksums", "--json"), ("cores", "--json"),
    ("models", "--json"), ("planning", "--choices"), ("planning", "--save"), ("planning", "--json"), ("checkouts", "--json"),
    ("compare", "--json"), ("crosscheck", "--json"), ("errors", "--json"), ("scaling", "--json"), ("recorded", "--fit"),
])  # fmt: skip
def test_files_that_can_not_be_written_are_refused_before_the_measurement(command, option, tmp_path, capsys):
    if command in ("checksums", "models"):
        pytest.importorskip("torch")
    main = importlib.import_module(f"bench.{command}").main
    for name, why in (("nowhere/out", "No such file or directory"), (".", "Is a directory")):
        with pytest.raises(SystemExit) as stop:
            main([option, str(tmp_path / name)])
        assert stop.value.code == 2
        assert f"got '{tmp_path / name}', wanted a file that can be written ({why})" in capsys.readouterr().err


def test_a_full_disk_is_one_line_after_the_tables(monkeypatch, capsys, tmp_path):
    def full(path, _):
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(cli, "present", lambda *_: [])
    monkeypatch.setattr(cli, "measure", lambda *_: [])
    monkeypatch.setattr(files, "write", full)
    with pytest.raises(SystemExit) as stop:
        cli.main(["--names", "dcgan_mid", "--threads", "1", "--json", str(tmp_path / "out.json")])
    printed = capsys.readouterr()
    assert stop.value.code == 1 and printed.err.endswith(f"{COMMAND}: {tmp_path}/out.json: No space left on device\n")


def chosen(*arguments):
    options = cli.parser().parse_args(arguments)
    problems = cli.chosen_problems(options, cli.chosen_entries(options, pytest.fail))
    return problems, [peer.name for peer in cli.chosen_peers(options)]


def test_words_of_convts_command_line_are_known():
    problems, _ = chosen("--names", "unet_up1", "--dtype", "float32,bf16", "--layout", "channels_last,NCHW")
    assert {(each.dtype, each.layout) for each in problems} == {(d, x) for d in ("f32", "bf16") for x in ("NXC", "NCX")}


def test_neighbours_stand_beside_the_layers_chosen():
    arguments = "--neighbours", "5", "--seed", "3"
    names = [problem.layer.name for problem in chosen(*arguments)[0]]
    assert len(names) == len(layers.parse(layers.TABLE)) + 5
    assert [name for name in names if name.startswith("near_")] == names[-5:]
    some, _ = chosen(*arguments, "--names", f"unet_up1,{names[-1]}")
    assert [problem.layer.name for problem in some] == ["unet_up1", names[-1]]
    with pytest.raises(ValueError, match="wanted 5 neighbours, but only 0 near these layers"):
        chosen("--deconv", "mb1_ic1oc1_ih2oh2kh1", *arguments)


def test_quick_is_about_ten_layers_and_onednn():
    problems, names = chosen("--quick")
    assert [problem.layer.name for problem in problems] == list(layers.QUICK)
    assert names == ["convt", "onednn-plain", "onednn-any", "onednn-3.13"]


def test_choices_narrow_each_other():
    problems, names = chosen("--quick", "--suite", "audio,3d", "--peers", "none")
    assert {problem.layer.family for problem in problems} == {"audio", "3d"}
    assert names == ["convt"]


def test_every_combination_is_measured_tables_in_the_order_of_the_options():
    problems, names = chosen("--deconv", TINY, "--dtype", "f32,bf16", "--layout", "NXC,NCX", "--peers", "torch-contiguous,jax")
    assert [(problem.dtype, problem.layout) for problem in problems] == [
        ("f32", "NXC"), ("f32", "NCX"), ("bf16", "NXC"), ("bf16", "NCX"),
    ]  # fmt: skip
    assert names == ["convt", "torch-contiguous", "jax"]


def test_precisions_are_of_float32_alone():
    problems, _ = chosen("--deconv", TINY, "--dtype", "bf16,f32", "--precision", "medium,highest")
    found = [(problem.dtype, problem.precision) for problem in problems]
    assert found == [("f32", "highest"), ("f32", "medium"), ("bf16", "highest")]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_roundings_are_told_from_larger_errors(dtype):
    """The number next to a value, the one beyond the value, and the one after that; denormals and powers of two among them."""
    rng, numbers = np.random.default_rng(0), DTYPES[dtype]
    exact = np.concatenate([rng.standard_normal(4000), rng.standard_normal(1000) * 2.0**-16, [1.0, 2.0, 0.0, 2.0**-14]])
    nearest = exact.astype(numbers)
    found = errors.compared("none", nearest, exact)
    assert found.nearest == found.neighbour == 1
    unit = errors.units(exact, nearest.dtype)
    off = ((nearest.astype(np.float64) - exact > 0) * -2 + 1) * unit  # towards the value and over it
    other = (nearest.astype(np.float64) + off).astype(numbers)
    found = errors.compared("none", other[:4000], exact[:4000])
    assert found.nearest < 0.02 and found.neighbour > 0.98
    found = errors.compared("none", (nearest.astype(np.float64) + 2 * off).astype(numbers)[:4000], exact[:4000])
    assert found.neighbour < 0.01
    assert found.typical <= found.largest


def test_errors_of_layers_are_a_table(tmp_path, capsys):
    path = tmp_path / "layers.json"
    path.write_text('[{"name": "up", "N": 3, "Cin": 64, "Cout": 64, "in": [8, 8], "k": 4, "s": 2, "pb": 1, "pe": 1}]')
    for layout in ("NXC", "NCX"):
        assert errors.main(["--layers", str(path), "--layout", layout]) == 0
        _, _, *lines = capsys.readouterr().out.splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]
        (head, _, up, worst), (_, _, halves, _) = rows[:4], rows[4:]
        assert head[1::3] == list(PRECISIONS) and worst[2::3] == up[2::3]
        for limit, algorithm, largest, typical in zip((1e-5, 1e-3, 4e-2), up[1::3], up[2::3], up[3::3], strict=True):
            assert algorithm in convt._plan.plans.ALGORITHMS and 0 < float(typical) < float(largest) < limit
        assert all(float(share) > 99 for share in (*halves[2::3], *halves[3::3]))
    for wrong in (["--names", "nothing"], ["--layers", "/nowhere.json"]):
        with pytest.raises(SystemExit):
            errors.main(wrong)


# ---------------------------------------------------------------- beside


def test_calls_are_timed_beside_a_busy_process(tmp_path, capsys):
    rows = [{"name": "mine", "Cin": 8, "Cout": 8, "in": [16, 16], "k": 2, "s": 2}]
    (tmp_path / "layers.json").write_text(json.dumps(rows))
    out = tmp_path / "out.json"
    arguments = ["--layers", str(tmp_path / "layers.json"), "--peers", "nobody", "--seconds", "0.02", "--json", str(out)]
    assert beside.main(arguments) == 0
    (row,) = json.loads(out.read_text())
    assert row["layer"] == "mine" and row["library"] == "convt"
    for median, p99 in (row["quiet"], row["beside"], row["first"]):
        assert 0 < median <= p99
    assert "| mine | convt |" in capsys.readouterr().out


def test_the_busy_process_ends():
    with beside.busy_core() as process:
        assert process.poll() is None
    assert process.poll() is not None
