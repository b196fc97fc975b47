"""Tests of `convt.torch.profile` and of ``python -m convt.torch``: all calls are found, whoever makes them, and the model is as
before."""

import json
import time

import pytest
from torch_cases import Filtering, Squeezing1d, Weighted, reset_torch, torch  # noqa: F401

import convt
import convt.torch as ct
from convt.torch import __main__ as cli
from convt.torch import _functional, _profile

nn, F = torch.nn, torch.nn.functional


class Unet(nn.Module):
    """A small U-Net."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.ConvTranspose2d(16, 3, 4, 2, 1)

    def forward(self, x):
        y = self.down(x)
        return self.last(torch.cat([y, self.up(self.inner(y))], 1))


class Separator(nn.Module):
    """A model like ConvTasNet: an encoder, masks, and a decoder that is a function or adds squeezes."""

    def __init__(self):
        super().__init__()
        self.first = nn.ConvTranspose1d(1, 1, 1)
        self.encoder, self.masks = nn.Conv1d(1, 16, 16, 8), nn.Sequential(nn.Conv1d(16, 16, 3, padding=1), nn.Sigmoid())
        self.filters = nn.Sequential(Weighted(16, 16, 1), Filtering(16, 1, padding=2))
        self.decoder = Squeezing1d(16, 1, 16, 8)

    def forward(self, x):
        y = self.encoder(self.first(x))
        return self.decoder(self.filters(y * self.masks(y)))


def test_a_unet():
    model, x = Unet().eval(), torch.randn(1, 3, 16, 16)
    before = [set(vars(module)) for module in model.modules()]
    found = ct.profile(model, x, budget=0.01)
    assert [set(vars(module)) for module in model.modules()] == before and _functional.recorder is None
    up, last = found.layers
    assert (up.name, up.data, up.output, up.fused) == ("up.0", (1, 16, 4, 4), (1, 8, 8, 8), ("BatchNorm2d", "ReLU"))
    assert (last.name, last.output, last.fused) == ("last", (1, 3, 16, 16), ())
    with torch.no_grad():
        layer = model.last
        weight, bias = layer.weight.numpy(), layer.bias.numpy()
    planned = convt.ConvTranspose(weight, bias, strides=2, pads_begin=1, pads_end=1, data_format="NCX", filter_format="IOX")
    assert last.algorithm == planned.plan(last.data).algorithm
    assert all(each.convt_seconds > 0 and each.of_limit > 0 and each.host_seconds > 0 for each in found.layers)
    assert 0 < found.share <= 1 and found.host_seconds > 0 and "convt.torch.accelerate(model)" in found.advice


def test_calls_of_functions():
    model, x = Separator().eval(), torch.randn(1, 1, 400)
    found = ct.profile(model, x, budget=0.01)
    assert [each.name for each in found.layers] == ["first", "filters.0", "filters.1", "decoder"]
    assert all(each.convt_seconds > 0 for each in found.layers) and "functional=True" in found.advice
    ct.accelerate(model)  # as it is, without functional=True
    found = ct.profile(model, x, budget=0.01)
    assert all("functional=True) lets convt compute it" in each.algorithm for each in found.layers[1:])
    assert found.layers[0].convt_seconds > 0
    ct.accelerate(model, functional=True)
    found = ct.profile(model, x, budget=0.01)
    assert all(each.convt_seconds > 0 for each in found.layers) and not found.advice
    assert ct.accelerate(model)[1].functional == ("", "decoder")


class Pausing(nn.Module):
    """A transposed convolution, as a module or as a function, between pauses. Every other call has another size."""

    def __init__(self, functional):
        super().__init__()
        self.up = nn.Sequential(nn.ConvTranspose1d(64, 64, 64, 2), nn.ReLU())
        self.functional, self.calls = functional, 0

    def forward(self, x):
        self.calls += 1
        x = x[..., self.calls % 2 :]
        time.sleep(0.002)
        return F.conv_transpose1d(x, self.up[0].weight, self.up[0].bias, 2).relu() if self.functional else self.up(x)


@pytest.mark.parametrize("functional", [False, True])
def test_the_share_is_that_of_runs_in_which_the_layers_take_no_time(functional):
    """The bound compares whole runs, because a layer also costs time outside of its call: memory is freed and touched anew."""
    model, x = Pausing(functional).eval(), torch.randn(8, 64, 2000)
    found = ct.profile(model, x, budget=0.05)
    assert 0.002 < found.rest_seconds < 0.5 * found.host_seconds and found.rest_seconds < found.convt_seconds
    assert found.share == pytest.approx(1 - found.rest_seconds / found.host_seconds) and found.reached < found.bound
    assert "forward" not in vars(model.up[0]) and "forward" not in vars(model.up[1])


def test_a_relu_that_two_layers_share_counts_in_both(monkeypatch):
    relu = nn.ReLU()
    model = nn.Sequential(nn.ConvTranspose1d(2, 2, 3), relu, nn.ConvTranspose1d(2, 2, 3), relu).eval()
    host, calls, compute = _profile._Recorder({id(module): name for name, module in model.named_modules()}, True), [], F.relu
    monkeypatch.setattr(F, "relu", lambda *arguments, **keywords: calls.append(1) or compute(*arguments, **keywords))
    monkeypatch.setattr(_profile.time, "perf_counter", lambda: len(calls))  # the function takes a second, others no time
    with torch.no_grad():
        _profile._Subject(ct.accelerate(model)[0], lambda: model(torch.ones(1, 2, 9))).record(host)
    assert [(name, seconds) for (name, _), seconds in host.runs[0]] == [("0", 1), ("2", 1)]
    _functional.recorder = None


class Alternating(nn.Module):
    """A transposed convolution whose size changes after every other call."""

    def __init__(self):
        super().__init__()
        self.up, self.calls = nn.ConvTranspose1d(2, 2, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.up(x[..., (self.calls - 1) // 2 % 2 :])


def test_a_call_that_only_some_runs_have():
    """Check that a layer has the times of the runs in which it is called, each with the host and with convt."""
    found = ct.profile(Alternating().eval(), torch.ones(1, 2, 9), budget=0.01)
    assert [each.data for each in found.layers] == [(1, 2, 9), (1, 2, 8)]
    assert all(each.calls == 1 and each.host_seconds > 0 and each.convt_seconds > 0 for each in found.layers)


def test_functions_and_modules_of_convt():
    x, w = torch.ones(1, 8, 30), torch.ones(8, 4, 4)
    found = ct.profile(lambda x: F.conv_transpose1d(F.conv_transpose1d(x, w)[:, [0] * 8], w), x, budget=0.01)
    assert [each.calls for each in found.layers] == [1, 1] and "functional()" in found.advice
    found = ct.profile(ct.ConvTranspose1d(8, 4, 3), x, budget=0.01)
    assert found.layers[0].convt_seconds > 0 and not found.advice
    module = nn.ConvTranspose1d(8, 64, 64, 2)
    found = ct.profile(lambda x: module(x), x[:, :, [0] * 2000], budget=0.01)  # a module that a function calls
    assert found.share > 0.5 and "functional()" in found.advice
    twice = nn.ConvTranspose1d(8, 8, 3, padding=1)
    (layer,) = ct.profile(nn.Sequential(twice, twice).eval(), x[0], budget=0.01).layers
    assert (layer.name, layer.calls, layer.data) == ("0", 2, (1, 8, 30))


def test_what_convt_does_not_compute():
    empty = ct.profile(nn.Linear(2, 2), torch.ones(2))
    assert not empty.layers and "looked for torch.nn.functional.conv_transpose1d" in empty.verdict()
    module = nn.ConvTranspose1d(2, 2, 3, dtype=torch.complex64)
    (layer,) = ct.profile(module, torch.ones(1, 2, 9, dtype=torch.complex64), budget=0.01).layers
    assert "refuses" in layer.algorithm and not layer.convt_seconds > 0


def test_training_mode_changes_nothing():
    model, x = Unet(), torch.randn(2, 3, 16, 16)
    state, draws = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    ct.profile(model, x, budget=0.01)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws) and model.training and torch.is_grad_enabled()


def test_a_model_that_raises_is_as_before():
    model = Unet().eval()
    before = [set(vars(module)) for module in model.modules()]
    with pytest.raises(RuntimeError):
        ct.profile(model, torch.ones(1, 2, 16, 16))
    assert [set(vars(module)) for module in model.modules()] == before and _functional.recorder is None
    with pytest.raises(TypeError, match="model: got int, wanted a torch.nn.Module"):
        ct.profile(3)
    with pytest.raises(ValueError, match="budget: got -1"):
        ct.profile(model, budget=-1)


SCRIPT = """
import sys
import torch
from helper import Up
model, other = Up().eval(), torch.nn.Linear(3, 3)
with torch.no_grad():
    for n in (10, 20):
        y = model(torch.ones(1, 4, n), scale=2)
        other(torch.ones(3))
print("script", __name__, sys.argv[1:], tuple(y.shape))
{}
"""
HELPER = """
import torch
class Up(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.ConvTranspose1d(4, 2, 4, 2)
    def forward(self, x, scale):
        return self.up(x) * scale
"""


@pytest.fixture
def script(tmp_path):
    def written(end=""):
        (tmp_path / "helper.py").write_text(HELPER)
        (tmp_path / "script.py").write_text(SCRIPT.format(end))
        return ["--budget", "0.01", str(tmp_path / "script.py"), "--some", "argument"]

    return written


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_script(script, end, code, capsys):
    call = torch.nn.Module.__call__
    assert cli.main(script(end)) == code and torch.nn.Module.__call__ is call
    printed = capsys.readouterr()
    assert printed.out.startswith("script __main__ ['--some', 'argument'] (1, 2, 42)\n")
    assert "\nUp, 2 calls of" in printed.out and "\nup " in printed.out and "4x20 -> 2x42" in printed.out
    assert "All 2 models (1 without transposed convolution)" in printed.out
    assert ("ZeroDivisionError" in printed.err) == (code == 1)


@pytest.mark.parametrize("file", ["-", "out.json"])
def test_a_script_as_json(script, file, capsys, tmp_path):
    path = file if file == "-" else str(tmp_path / file)
    assert cli.main(["--json", path, *script()]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out if file == "-" else (tmp_path / file).read_text())
    up = next(each for each in found["models"] if each["model"].startswith("Up"))
    assert up["layers"][0]["data"] == [1, 4, 20] and up["calls"] == 2
    assert (printed.err if file == "-" else printed.out).startswith("script")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--json", script()[2]])  # the script stands where the file is expected
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "script.py', wanted a file of JSON, a new file, or -" in said


def test_scripts_without_models(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text("pass")
    assert cli.main([str(path)]) == 0 and "the script called no module" in capsys.readouterr().out
    path.write_text("import torch\ntorch.nn.Linear(2, 2)(torch.ones(2))")
    assert cli.main([str(path)]) == 0
    assert capsys.readouterr().out.startswith("Nothing is to gain: PyTorch computed no transposed convolution")
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(tmp_path / "nowhere.py")])
    assert stopped.value.code == 1 and "wanted a Python file" in capsys.readouterr().err
