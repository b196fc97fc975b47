"""The micro-benchmark: its layers, its checker, its manners. No figure is asserted here."""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import convt

# bench/ is not installed; it comes from the checkout, after everything that is.
sys.path.append(str(Path(__file__).parents[1]))

from bench import __main__ as cli
from bench import check, layers, machine, peers, report, timing
from bench.problem import DTYPES, Problem, as_nxc, in_layout
from bench.rounds import Result, measure
from bench.worker import Died, Stand, Worker

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


def reference(problem):
    """The right result, channels last."""
    layer = problem.layer
    result = convt.conv_transpose(
        in_layout(problem.data(), problem.layout),
        problem.filter(),
        problem.bias(),
        strides=layer.strides,
        pads_begin=layer.pads_begin,
        pads_end=layer.pads_end,
        output_padding=layer.output_padding,
        dilations=layer.dilations,
        groups=layer.groups,
        data_format=problem.layout,
        backend="reference",
    )
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


def test_flops_are_those_of_the_direct_sum():
    assert TABLE["dcgan_mid"].flops == 2 * 64 * 256 * 128 * 16 * 64
    assert TABLE["openvino_seed"].flops == 2 * 20 * (8 // 4) * 9 * 224 * 224


def test_a_layer_survives_its_row():
    assert [layers.from_row(layer.to_row()) for layer in TABLE.values()] == list(TABLE.values())


def test_a_file_needs_only_what_has_no_default(tmp_path):
    path = tmp_path / "layers.json"
    path.write_text('[{"name": "a", "N": 1, "Cin": 4, "Cout": 2, "in": [8, 8], "k": 2, "s": [2, 2]}]')
    (layer,) = layers.read(str(path))
    assert layer.kernel == (2, 2)
    assert layer.output == (16, 16)


ROW = {"name": "a", "N": 1, "Cin": 4, "Cout": 2, "in": [8], "k": [2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "layers.json: "),
        ("{}", "wanted a list of objects"),
        (json.dumps([{"name": "a", "N": 1}]), "layer a: Cin, Cout, in, k missing"),
        (json.dumps([ROW | {"stride": 2}]), "layer a: unknown stride"),
        (json.dumps([ROW | {"s": [2, 2]}]), "layer a: s has 2 values for 1 spatial axes"),
        (json.dumps([ROW | {"s": 0}]), "layer a: strides must be integers of at least 1"),
        (json.dumps([ROW | {"Cin": "4"}]), "layer a: cin must be integers"),
        (json.dumps([ROW | {"g": 3}]), "do not divide into 3"),
        (json.dumps([ROW | {"pb": 9}]), "the output would be empty"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "layers.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        layers.read(str(path))


# ---------------------------------------------------------------- the checker


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_the_checker_accepts_the_reference(layer, dtype, layout):
    problem = Problem(layer, dtype, layout, with_bias=True)
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


def test_the_checker_sees_a_wrong_shape():
    problem = Problem(PLAIN, "f32", "NXC")
    assert not check.is_right(problem, check.error(problem, reference(problem)[:, 1:], check.expected(problem)))


# ---------------------------------------------------------------- rounds, with a library in this very process


class Here:
    """A worker without a process."""

    def __init__(self, name, prepare):
        self.peer, self.threads, self.asked = name, 1, []
        self._stand = Stand(SimpleNamespace(DTYPES=("f32",), prepare=prepare), 1)

    def ask(self, method, *arguments):
        self.asked.append(method)
        return getattr(self._stand, method)(*arguments)


def spoilt(problem, threads):
    wrong = reference(problem).copy()
    off_by_one(wrong)
    return peers.Ready(lambda: wrong, lambda result: result, "")


def right(problem, threads):
    result = reference(problem)
    return peers.Ready(lambda: result, lambda result: result, "by heart")


def refusing(problem, threads):
    raise peers.Unsupported("not today")


def failing(problem, threads):
    raise peers.Failed("RuntimeError: oh")


def test_only_what_is_right_is_timed():
    entrants = [Here("convt", right), Here("wrong", spoilt), Here("shy", refusing), Here("broken", failing)]
    results = measure(Problem(PLAIN, "f32", "NXC"), entrants, rounds=3, budget=0.03, note=pytest.fail)
    assert [result.status for result in results] == ["ok", "WRONG", "unsupported", "died"]
    assert [len(result.rounds) for result in results] == [3, 0, 0, 0]
    assert results[0].seconds == min(turn["median"] for turn in results[0].rounds)
    assert entrants[1].asked == ["prepare"]
    cells = report.row(results[1], results, machine.Limits(100.0, 10.0))
    assert cells[2] == "WRONG"
    assert not any(cells[3:8])


def test_a_dtype_that_a_library_lacks_is_unsupported():
    (result,) = measure(Problem(PLAIN, "f64", "NXC"), [Here("convt", right)], 1, 0.01, pytest.fail)
    assert (result.status, result.how) == ("unsupported", "no f64")


def test_a_call_longer_than_the_budget_is_not_repeated():
    worker = Here("convt", right)
    (result,) = measure(Problem(PLAIN, "f32", "NXC"), [worker], rounds=3, budget=1e-9, note=pytest.fail)
    assert [turn["calls"] for turn in result.rounds] == [1]
    assert worker.asked == ["prepare"]


def test_settle_tells_quiet_from_busy():
    assert timing.settle()
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            pass

    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        assert not timing.settle(limit=0.1)
    finally:
        stop.set()
        spinner.join()


# ---------------------------------------------------------------- processes


@pytest.fixture
def worker():
    worker = Worker("convt", 1)
    yield worker
    worker.close()


def test_a_worker_reports_errors_and_comes_back_from_the_dead(worker):
    assert worker.ask("version") == convt.__version__
    with pytest.raises(peers.Failed, match="no_such_thing"):
        worker.ask("no_such_thing")
    with pytest.raises(Died, match="no answer"):
        worker.ask("time", 60.0, patience=0.0)
    assert worker.ask("version") == convt.__version__


def test_an_absent_peer_is_a_note(monkeypatch):
    monkeypatch.setenv("CONVT_ONEDNN_LIB", "/nowhere/libdnnl.so.3")
    record = report.Record({})
    assert cli.present(["onednn"], 1, record) == []
    (note,) = record.notes
    assert "onednn is left out" in note
    assert "pip install onednn-cpu-gomp" in note
    assert not record.versions


# ---------------------------------------------------------------- the command line


@pytest.fixture
def small_copy(monkeypatch):
    monkeypatch.setattr(machine, "COPY_BYTES", 1 << 20)


def test_every_peer_here_is_right_and_the_json_says_so(tmp_path, capsys, small_copy):
    path = tmp_path / "out.json"
    arguments = ["--names", "gtcrn_dw", "--threads", "1", "--rounds", "2", "--budget", "0.1", "--json", str(path)]
    assert cli.main(arguments) == 0
    content = json.loads(path.read_text())
    assert content["complete"]
    assert content["machine"]["cpu"]
    assert content["options"]["threads"] == [1]
    assert content["limits"][0]["fma_gflops"] > 0
    assert content["versions"]["convt"] == convt.__version__
    assert content["results"][0]["peer"] == "convt"
    for result in content["results"]:
        assert result["status"] == "ok", result
        assert layers.from_row(result["layer"]) == TABLE["gtcrn_dw"]
        assert result["seconds"] == min(turn["median"] for turn in result["rounds"])
        assert len(result["rounds"]) == 2
    absent = peers.PACKAGES.keys() - content["versions"].keys()
    assert all(any(name in note for note in content["notes"]) for name in absent)
    assert "gtcrn_dw" in capsys.readouterr().out


def test_interrupted_it_keeps_what_is_done(tmp_path, capsys, monkeypatch, small_copy):
    done = []

    def interrupted(problem, *_):
        if done:
            raise KeyboardInterrupt
        done.append(Result(problem, 1, "convt", "ok", "", 1e-7, [{"median": 0.5, "calls": 1, "neighbours": None}]))
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--names", "mimi"], "unknown layer 'mimi'; did you mean mimi_dw?"),
        (["--suite", "zoo"], "unknown family 'zoo'; known: 3d, audio"),
        (["--peers", "xnnpack"], "unknown peer 'xnnpack'; known: onednn, torch"),
        (["--dtype", "f32,f8"], "unknown dtype 'f8'; known: f32, f16, bf16, f64"),
        (["--layout", "NHWC"], "unknown layout 'NHWC'; known: NXC, NCX"),
        (["--threads", "1,0"], "wanted whole numbers of at least 1"),
        (["--rounds", "two"], "wanted whole numbers of at least 1"),
        (["--budget", "nan"], "wanted a number of seconds above 0"),
        (["--layers", "/nowhere/layers.json"], "/nowhere/layers.json"),
        (["--json", "/nowhere/out.json"], "is not a file that can be made"),
    ],
)
def test_bad_arguments_get_clear_messages(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_quick_is_about_ten_layers_and_onednn():
    options = cli.parser().parse_args(["--quick"])
    assert [layer.name for layer in cli.chosen_layers(options)] == list(layers.QUICK)
    assert cli.chosen_peers(options) == ["convt", "onednn"]


def test_choices_narrow_each_other():
    options = cli.parser().parse_args(["--quick", "--suite", "audio,3d", "--peers", "none"])
    assert {layer.family for layer in cli.chosen_layers(options)} == {"audio", "3d"}
    assert cli.chosen_peers(options) == ["convt"]


# ---------------------------------------------------------------- the report


def result_of(peer, seconds, layer=PLAIN, neighbours=0.0):
    rounds = [{"median": seconds, "calls": 9, "neighbours": neighbours}]
    return Result(Problem(layer, "f32", "NXC"), 1, peer, "ok", "", 1e-7, rounds)


def test_a_row_holds_the_figures_against_the_limits():
    ours, theirs = result_of("convt", 1e-3), result_of("torch", 2e-3)
    gflops = PLAIN.flops / 1e6
    limits = machine.Limits(2 * gflops, 1.0)
    cells = dict(zip(report.COLUMNS, report.row(ours, [ours, theirs], limits), strict=True))
    assert (cells["ms"], cells["of peak"], cells["convt is"]) == ("1.000", "50%", "")
    cells = dict(zip(report.COLUMNS, report.row(theirs, [ours, theirs], machine.Limits(None, 1.0)), strict=True))
    assert (cells["of peak"], cells["convt is"]) == ("-", "2.00x")


def test_a_figure_taken_beside_other_work_is_marked():
    quiet, loud = result_of("convt", 1e-3), result_of("torch", 1e-3, neighbours=1.0)
    marks = [report.row(result, [], machine.Limits(1.0, 1.0))[2] for result in (quiet, loud)]
    assert marks == ["1.000", "*1.000"]


def test_the_summary_is_a_geometric_mean():
    pairs = [
        (result_of("convt", 1.0, layer), result_of("torch", seconds, layer))
        for layer, seconds in zip(SMALL[:2], (8.0, 0.5), strict=True)
    ]
    (line,) = report.summary([result for pair in pairs for result in pair])
    assert line == "convt is 2.00 times as fast as torch in the geometric mean, faster on 1 of 2"
    pairs[0][1].rounds[0]["neighbours"] = 1.0
    (line,) = report.summary([result for pair in pairs for result in pair])
    assert line.endswith("faster on 1 of 2 (1 of them *)")
