"""Tests of which modules convt.torch.accelerate changes: all of a model, or none if it raises, and none that torch.jit
compiled. Its report names every place."""

import copy

import pytest
from torch_cases import Own, close, nn, reset_torch, torch  # noqa: F401

import convt.torch as ct
from convt.torch import _fuse, _modules

X = torch.randn(1, 4, 5, 5, generator=torch.Generator().manual_seed(0))


def chain(activation):
    return nn.Sequential(nn.ConvTranspose2d(4, 6, 4, 2, 1), nn.BatchNorm2d(6), activation).eval()


COMPILERS = {
    "script": torch.jit.script, "trace": lambda module: torch.jit.trace(module, X),
    "freeze": lambda module: torch.jit.freeze(torch.jit.script(module)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("how", COMPILERS)
def test_modules_that_torch_jit_compiled(how):
    """Check models with modules that torch.jit compiled: they are left as they are, with a reason if they say what they are."""
    compiled, plain = COMPILERS[how], chain(nn.ReLU())
    model = nn.Sequential(
        copy.deepcopy(plain), nn.ConvTranspose2d(6, 4, 3), compiled(copy.deepcopy(plain)), nn.ConvTranspose2d(6, 4, 3),
        compiled(nn.ReLU().eval()), nn.Tanh(),
    ).eval()  # fmt: skip
    with torch.no_grad():
        wanted = model(X)
        _, report = ct.accelerate(model)
        assert report.swapped == ("0.0", "1", "3") and set(report.fused) == {"0.0"}
        assert report.kept == ({} if how == "freeze" else {"2.0": "torch.jit compiled it"})
        for _ in range(3):
            close(model(X), wanted)
        close(ct.refresh(model)(X), wanted)
        close(ct.restore(model)(X), wanted)
        whole = compiled(copy.deepcopy(plain))
        assert ct.accelerate(whole)[0] is whole is ct.restore(ct.refresh(whole))
        close(whole(X), plain(X))


@pytest.mark.parametrize("at", range(1, 9))
def test_all_or_nothing(at, monkeypatch):
    model = nn.Sequential(chain(nn.ReLU()), nn.ConvTranspose2d(6, 4, 3), chain(nn.Tanh()), ct.ConvTranspose2d(6, 6, 3)).eval()
    ct.accelerate(model[2])
    before = [dict(vars(module)) for module in model.modules()]
    steps = []

    def interrupted(inner):
        def step(*args):
            steps.append(args)
            if len(steps) == at:
                raise KeyboardInterrupt
            return inner(*args)

        return step

    monkeypatch.setattr(_modules.TransposedForward, "__init__", interrupted(_modules.TransposedForward.__init__))
    monkeypatch.setattr(_fuse, "fused_classes", interrupted(_fuse.fused_classes))
    monkeypatch.setattr(_fuse.SequentialForward, "__init__", interrupted(_fuse.SequentialForward.__init__))
    with pytest.raises(KeyboardInterrupt):
        ct.accelerate(model, precision="high")
    assert [dict(vars(module)) for module in model.modules()] == before
    monkeypatch.undo()
    assert ct.accelerate(model)[1].swapped == ("0.0", "1", "2.0", "3")


class Sealed(nn.Sequential):
    """A Sequential whose attributes no program may set."""

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} is sealed")


def test_a_class_that_forbids_to_set_attributes():
    plain = chain(nn.ReLU())
    model = copy.deepcopy(plain)
    model.__class__ = Sealed
    assert ct.accelerate(model)[1].fused == {"0": ("BatchNorm2d", "ReLU")}
    with torch.no_grad():
        for _ in range(3):
            close(model(X), plain(X))
    assert "forward" not in vars(ct.restore(model))


def test_a_name_for_every_place():
    """Check reports of shared modules, which have several names, and of a model that is a transposed convolution."""
    up, own = nn.ConvTranspose2d(3, 3, 3), Own(2, 2, 2)
    block = nn.Sequential(up, nn.Tanh())
    model = nn.ModuleDict({
        "first": nn.Sequential(up, nn.ReLU(), up), "block": block, "again": block, "own": own, "own_again": own,
    })  # fmt: skip
    _, report = ct.accelerate(model, freeze=True)
    assert report.swapped == report.frozen == ("first.0", "first.2", "block.0", "again.0")
    assert report.fused == {"first.0": ("ReLU",), "block.0": ("Tanh",), "again.0": ("Tanh",)}
    assert list(report.kept) == ["own", "own_again"]
    own.add_module("model", model)  # a cycle
    assert ct.accelerate(model, freeze=True)[1] == report
    for module in (nn.ConvTranspose1d(2, 2, 2), Own(2, 2, 2)):
        assert "the model itself" in str(ct.accelerate(module, freeze=True)[1])
