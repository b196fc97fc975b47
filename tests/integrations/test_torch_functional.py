"""Tests of calls of torch.nn.functional that convt computes in a block or in the forward of a model. Results and errors are
those of torch; what convt computes is counted."""

import copy
import pickle
import threading

import pytest
from torch_cases import (  # noqa: F401
    F,
    Filtering,
    Functions,
    Squeezing1d,
    Weighted,
    close,
    each_dtype,
    each_rank,
    nn,
    reset_torch,
    torch,
)

import convt.torch as ct
from convt.torch import _compute, _weights


@pytest.fixture
def served(monkeypatch):
    """Return a list that gets an entry for each call that convt computes."""
    calls, compute = [], _compute._compute
    monkeypatch.setattr(_compute, "_compute", lambda *a: calls.append(1) or compute(*a))
    return calls


def arrays(rank, dtype=torch.float32):
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draws).to(dtype) for shape in ((2, 4, *[5] * rank), (4, 3, *[4] * rank), (3,))]


class Net(nn.Module):
    """A model with a fused Sequential, a parameter used by a function, a filter, and a decoder with its own forward."""

    def __init__(self):
        super().__init__()
        self.up = nn.Sequential(nn.ConvTranspose1d(4, 6, 4, 2, 1), nn.BatchNorm1d(6), nn.ReLU())
        self.by = nn.Sequential(Weighted(6, 5, 1, 2), Filtering(5, 1, stride=2))
        self.decoder = Squeezing1d(5, 1, 16, 8)

    def forward(self, x):
        return self.decoder(self.by(self.up(x)))


class Scaling(nn.Module):
    """A module without parameters."""

    def forward(self, x):
        return x * 2


@each_rank
@each_dtype
def test_all_spellings_are_served(rank, dtype, served):
    x, w, b = arrays(rank, dtype)
    function, words = getattr(F, f"conv_transpose{rank}d"), {"stride": 2, "padding": 1}
    module = getattr(nn, f"ConvTranspose{rank}d")(4, 3, 4, 2, 1).to(dtype)
    calls = [
        lambda: function(x, w, b, 2, 1), lambda: function(weight=w, input=x, bias=b, **words), lambda: module(x),
        lambda: getattr(torch, f"conv_transpose{rank}d")(x, w, **words), lambda: function(x[0], w, b, [2] * rank),
    ]  # fmt: skip
    with torch.no_grad():
        for call in calls:
            wanted = call()
            assert not served
            with ct.functional():
                close(call(), wanted)
            assert served.pop() and not served
    with ct.functional():
        function(x, w, b, 2, 1)
    function(x, w, b, 2, 1)
    assert len(served) == 1


@each_rank
def test_errors_of_missing_and_more_arguments_are_torchs(rank, served):
    x, w, _ = arrays(rank)
    function = getattr(F, f"conv_transpose{rank}d")
    wrong = [lambda: function(x), lambda: function(), lambda: function(x, w, x, x, x, x, x, x, x)]
    for call in wrong:
        with pytest.raises((RuntimeError, TypeError)) as theirs:
            call()
        with ct.functional(), pytest.raises(type(theirs.value)) as ours:
            call()
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(ValueError, match="precision: got 'low'"), ct.functional(precision="low"):
        pass
    assert torch._C._len_torch_function_stack() == 0 and not served


def test_gradients():
    x, w, b = (each.requires_grad_() for each in arrays(2))
    gradients = lambda: torch.autograd.grad(F.conv_transpose2d(x, w, b, 2).square().sum(), (x, w, b))  # noqa: E731
    wanted = gradients()
    with ct.functional():
        for got, each in zip(gradients(), wanted, strict=True):
            close(got, each)
        small = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((1, 2, 3), (2, 1, 2))]
        torch.autograd.gradcheck(lambda x, w: F.conv_transpose1d(x, w, stride=2), small)


class Other(torch.Tensor):
    """A subclass with torch's own behaviour."""


def test_what_is_left_to_torch(served):
    x, w, _ = arrays(2)
    with ct.functional():
        assert type(F.conv_transpose2d(x.as_subclass(Other), w)) is Other
        close(torch.vmap(lambda t: F.conv_transpose2d(t, w))(x[None]), F.conv_transpose2d(x, w)[None])
        assert torch.func.grad(lambda t: F.conv_transpose2d(t, w).sum())(x).shape == x.shape
        assert F.conv_transpose2d(x.to("meta"), w.to("meta")).is_meta
    served.clear()
    with Functions() as mode, ct.functional():  # the outer mode sees torch's function
        F.conv_transpose2d(x, w)
    assert "conv_transpose2d" in mode.seen and not served
    with ct.functional(), torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        F.conv_transpose2d(x, w)
    assert counter.get_total_flops() and not served


def test_other_threads_are_not_served(served):
    x, w, _ = arrays(1)
    with ct.functional():
        thread = threading.Thread(target=F.conv_transpose1d, args=(x, w))
        thread.start()
        thread.join()
    assert not served


@pytest.mark.parametrize("inside", [True, False])
def test_compiled_graphs(inside, served):
    model, x = Net().eval(), arrays(1)[0]
    with torch.no_grad():
        wanted = model(x)
        if inside:
            ct.accelerate(model, functional=True)
            close(torch.compile(model, backend="eager")(x), wanted)
        with ct.functional():
            close(torch.compile(model, backend="eager", fullgraph=True)(x), wanted)
            exported = torch.export.export(model, (x,))
        assert not [node for node in exported.graph.nodes if "convt" in str(node.target)]
        close(exported.module()(x), wanted)


def test_accelerate(served):
    model, x = Net().eval(), arrays(1)[0]
    keys = {name: set(vars(module)) for name, module in model.named_modules()}
    with torch.no_grad():
        wanted = model(x)
        report = ct.accelerate(model)[1]
        assert report.functional == () and "functional=True" in report.kept["decoder"]
        fused = model.up(x)
        served.clear()
        _, report = ct.accelerate(model, functional=True)
        assert report == ct.accelerate(model)[1]  # a module keeps it
        assert report.swapped == ("up.0",) and report.kept == {} and report.functional == ("", "decoder")
        assert "if there are any, inside: the model itself\n" in str(report) + "\n" and report.own == ("decoder",)
        assert "computes the function calls of 1 transposed convolution with an own forward: decoder" in str(report)
        assert "0 transposed" not in str(ct.accelerate(torch.nn.Sequential(copy.deepcopy(model.decoder)), functional=True)[1])
        for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
            served.clear()
            close(each(x), wanted)
            assert len(served) == 4
        with ct.functional():
            assert torch.equal(model.up(x), fused)
        close(model.by[0](model.up(x)), model.by[0](model.up(x)))
        ct.restore(model)
        assert {name: set(vars(module)) for name, module in model.named_modules()} == keys
        served.clear()
        close(model(x), wanted)
        assert not served


def test_the_settings_are_those_of_accelerate(monkeypatch):
    seen, compute = [], _compute.compute
    monkeypatch.setattr("convt.torch._functional.compute", lambda *a: seen.append((a[8], a[9])) or compute(*a))
    model, x = Net().eval(), arrays(1)[0]
    with torch.no_grad():
        ct.accelerate(model.up, precision="medium")
        ct.accelerate(model, functional=True, precision="high", freeze=True)
        model(x)
        assert seen and set(seen) == {("high", "trusted")}
        ct.accelerate(model)
        seen.clear()
        with ct.functional(precision="medium"):  # the innermost setting counts
            model(x)
    assert set(seen) == {("high", "compared"), ("high", "trusted")}  # only convt has the weights with a batch norm folded in


def test_frozen_weights_of_functions_are_refreshed():
    model, x = nn.Sequential(Weighted(4, 3, 1, 2)), arrays(1)[0]
    ct.accelerate(model, functional=True, freeze=True)
    with torch.no_grad():
        before = model(x)
        model[0].weight.mul_(2)
        assert torch.equal(model(x), before)  # as promised to convt
        close(ct.refresh(model)(x), before * 2)
        assert id(model[0].weight) in _weights._filters
        ct.restore(model)
        assert id(model[0].weight) not in _weights._filters


def test_a_model_without_tensors():
    """Check that no other model's packed weights are dropped: ``forget`` without tensors drops all."""
    module, x = nn.ConvTranspose1d(4, 3, 2), arrays(1)[0]
    with torch.no_grad():
        ct.accelerate(module)[0](x)
    ct.refresh(ct.accelerate(nn.Sequential(Scaling()), functional=True)[0])
    assert id(module.weight) in _weights._filters


def test_an_exception_leaves_no_mode_behind():
    model = ct.accelerate(Net().eval(), functional=True)[0]
    for _ in range(2):
        with pytest.raises(RuntimeError):
            model(torch.zeros(1, 3, 4))
        assert torch._C._len_torch_function_stack() == 0
    with pytest.raises(ZeroDivisionError), ct.functional():
        1 / 0  # noqa: B018
    assert torch._C._len_torch_function_stack() == 0


def test_a_model_without_transposed_convolutions_says_what_was_looked_for():
    said = str(ct.accelerate(nn.Sequential(nn.Linear(2, 2)))[1])
    assert "has no module ConvTranspose1d, 2d or 3d; functional=True also serves torch.nn.functional.conv_transpose1d" in said
