"""Tests of convt.torch in programs that change attributes, modes and tensors while it is in use. More programs are in
test_torch_programs.py."""

import copy
import weakref

import numpy as np
import pytest
from cases import meanwhile
from torch_cases import F, Functions, X, agree, chain, close, layer, nn, outcome, reset_torch, torch  # noqa: F401

import convt.torch as ct
from convt.torch import _weights


def same(program, make):
    """Check that a program returns the same for an accelerated model as for torch's, and return it."""
    want = outcome(program, make())
    model, _ = ct.accelerate(make())
    with torch.no_grad():
        for _ in range(3):
            model(X)  # packs the weights
    assert outcome(program, model) == want
    return want


# ---------------------------------------------------------------- attributes that a program sets


class Odd(nn.ConvTranspose2d):
    def _output_padding(self, *_):
        return [0, 0]


def test_an_output_padding_of_its_own():
    model, report = ct.accelerate(Odd(3, 4, 3, 2, 1, 1))
    assert report.kept == {"": "Odd defines its own _output_padding"}
    assert model(X).shape == F.conv_transpose2d(X, model.weight, model.bias, 2, 1).shape


CONV, NORM = "nn.ConvTranspose2d(3, 4, 3, 2, 1, 1)", "nn.BatchNorm2d(4)"
CHAIN = f"nn.Sequential({CONV}, {NORM}, nn.ReLU())"
# Values of attributes that torch takes or refuses; the tensor ``t`` changes later.
OF_LAYERS = {
    "stride": ("3", "[3, 2]", "[3]", "[3, 2, 2]", "2.0", "(2.0, 2.0)", "(t, 2)"), "dilation": ("2", "[2, 1]"),
    "output_padding": ("0", "None", "[0]", "[0, 1]", "1.5", "7"), "padding": ("0", "1", "[1, 1]", "'same'"),
    "groups": ("True",), "__class__": ("Own2d",),
}  # fmt: skip
OF_NORMS = {
    "eps": ("1", "t", "torch.tensor(0.5)", "float('inf')", "None", "10**400"),
    "running_mean": ("torch.ones(1)",), "bias": ("nn.Parameter(torch.ones(1))",),
    "running_var": ("torch.ones(8)", "None", "-torch.ones(4)", "torch.full((4,), torch.inf)"),
}  # fmt: skip
OF_ACTIVATIONS = {
    "nn.ReLU6()": ("max_val = 1.0", "min_val = torch.tensor(0.2)", "min_val = 7.0"),
    "nn.LeakyReLU()": ("negative_slope = 2", "negative_slope = t"), "nn.ELU()": ("alpha = t",),
    "nn.GELU()": ("approximate = 'tanh'",),
    "nn.PReLU()": ("weight = nn.Parameter(torch.full((1, 1), 0.3))", "weight = nn.Parameter(torch.tensor(0.3))",
                   "weight = None"),
}  # fmt: skip
ONE_CHANNEL = "nn.Sequential(nn.ConvTranspose2d(3, 1, 3), nn.{})"
PROGRAMS = [
    *((of, f"conv(model, 0).{name} = {value}") for name, all in OF_LAYERS.items() for value in all for of in (CONV, CHAIN)),
    *((CHAIN, f"norm(model, 0).{name} = {value}") for name, all in OF_NORMS.items() for value in all),
    *((f"nn.Sequential({CONV}, {each})", f"model[1].{change}") for each, all in OF_ACTIVATIONS.items() for change in all),
    (f"nn.Sequential({CONV}, nn.ReLU())", "model[0].weight = None"), (CHAIN, "model.__class__ = Doubling"),
    (CHAIN, "model._modules['1'] = None; ct.accelerate(model)"),
    *((f"nn.Sequential({CONV}, nn.LeakyReLU({slope}))", change) for slope in ("float('inf')", "float('nan')", "-2.0")
      for change in ("x = x * 0 - 0.0", "x = x * 0 - 0.0; model[0].weight.data.zero_(), model[0].bias.data.zero_()")),
    *((ONE_CHANNEL.format(norm + each), "x = x.contiguous(memory_format=torch.channels_last)")
      for norm in ("", "BatchNorm2d(1), nn.") for each in ("PReLU()", "ReLU6()", "LeakyReLU(inplace=True)", "ReLU()",
                                                              "Tanh()")),
]  # fmt: skip


@pytest.mark.parametrize("model, change", PROGRAMS)
def test_attributes_that_a_program_sets(model, change):
    calls = "with torch.no_grad(): y = [model(x), model(x), model(x)]"
    made = f"model = {model}.eval(); randomize(model); x, t = 3 * tensor(0, 2, 3, 3, 2), torch.tensor(3); ct.accelerate(model)"
    found = agree("\n".join([made, calls, change, calls, "t.add_(1)", calls]))
    assert not any(each.error for each in found[:5])  # before the change


# ---------------------------------------------------------------- modes


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Operators, Functions])
@pytest.mark.parametrize("gradients", [False, True])
def test_modes_see_what_they_see_without_convt(mode, gradients):
    x = X[0]

    def program(model):
        with torch.set_grad_enabled(gradients), mode() as found:
            model(X)
            if isinstance(model, nn.ConvTranspose2d):
                model(x)
        return [each for each in found.seen if each != "dim"]  # batch norm calls "dim" too

    want = same(program, layer)
    same(program, chain)
    assert {"aten.convolution.default", "conv_transpose2d"} & set(want)


def test_functions_of_a_mode_are_only_torchs():
    weight, x = layer().weight, X[0]
    with Functions() as found:
        ct.conv_transpose2d(x, weight)
    assert found.seen == ["conv_transpose2d"]


def test_selective_checkpoints_ask_for_torchs_operator():
    from torch.utils import checkpoint as ckpt

    def program(model):
        seen = []

        def policy(context, function, *args, **keywords):
            seen.append(str(function))
            return ckpt.CheckpointPolicy.MUST_SAVE

        context = lambda: ckpt.create_selective_checkpoint_contexts(policy)  # noqa: E731
        ckpt.checkpoint(model, X.clone().requires_grad_(), use_reentrant=False, context_fn=context).sum().backward()
        return sorted(set(seen))

    assert same(program, layer) == ["aten.convolution.default"]


# ---------------------------------------------------------------- tensors


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("model, name", [
    *((CONV, name) for name in ("weight", "bias")),
    *((CHAIN, name) for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")),
])  # fmt: skip
def test_a_tensor_becomes_a_negative_view_of_its_memory(model, name, freeze):
    """Check tensors whose elements change their sign while their memory stays as it is, and then change it again."""
    calls = "with torch.no_grad(): y = [model(x), model(x), model(x)]"
    values = "torch._neg_view(p.data)", "p.data.resolve_neg()", "torch._neg_view(p.data).clone()"
    made = f"model = {model}.eval(); randomize(model); x = tensor(0, 2, 3, 3, 2); ct.accelerate(model, freeze={freeze})"
    tensor = f"p = model.state_dict(keep_vars=True)['{name}']"
    found = agree("\n".join([made, tensor, calls, *(line for value in values for line in (f"p.data = {value}", calls))]))
    assert not any(each.error for each in found)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_memory_or_sizes():
    def ask(function, *args):
        return outcome(lambda: function(*args).tolist())

    w = layer().weight.detach()
    nested = torch.nested.nested_tensor([X[0], X[1]])
    zeros, no_weights = torch._efficientzerotensor(X.shape), torch._efficientzerotensor(w.shape)
    for args in ((nested, w), (zeros, w), (X, no_weights), (X, w, torch._efficientzerotensor((4,)))):
        for _ in range(3):
            assert ask(ct.conv_transpose2d, *args) == ask(F.conv_transpose2d, *args)


@pytest.mark.parametrize("make", [layer, chain])
def test_copies_that_have_a_forward_of_their_own(make):
    """Check a deep copy of a shallow copy, and a shallow copy that is accelerated itself."""
    model = ct.accelerate(make())[0]
    shallow, deep = copy.copy(model), copy.deepcopy(copy.copy(model))
    ct.accelerate(shallow)
    assert vars(shallow)["forward"] is not vars(model)["forward"] and vars(deep)["forward"].is_of(deep)


@pytest.mark.parametrize("name", ["stride", "groups"])
def test_numpys_integers_with_three_axes_and_channels_last(name):
    x, w = (torch.randn(4, 4, 3, 2, 2).contiguous(memory_format=torch.channels_last_3d) for _ in range(2))
    got, want = (f(x, w, **{name: n}) for f, n in ((ct.conv_transpose3d, np.int64(2)), (F.conv_transpose3d, 2)))
    close(got, want)
    assert got.stride() == want.stride()


def test_a_call_of_forward_keeps_no_variables_alive():
    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = ct.accelerate(layer())[0]

        def forward(self, x):
            x = x * 1
            kept = weakref.ref(x)
            self.up.forward(x)
            del x
            return kept() is None

    with torch.no_grad():
        assert Caller()(X)


# ---------------------------------------------------------------- computed weights


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
def test_parametrized_modules_of_convts_classes(name, old, freeze):
    """Check that convt computes modules of its own classes with a norm of weights, and that `restore` leaves none of it."""
    norm = getattr(nn.utils if old else nn.utils.parametrizations, name)
    ours, plain = (norm(layer(cls)).eval() for cls in (ct.ConvTranspose2d, nn.ConvTranspose2d))
    twin = None if old else copy.deepcopy(ours)
    _, report = ct.accelerate(ours, precision="high", freeze=freeze)
    assert report.swapped == ("",) and not report.kept and report.frozen == (("",) if freeze else ())
    with torch.no_grad():
        for _ in range(3):
            close(ours(X), plain(X))
        for each in (ours, plain):
            for parameter in each.parameters():
                parameter.mul_(2)
        close(ct.refresh(ours)(X), plain(X))
        assert ct.restore(ours) is ours
        close(ours(X), plain(X))
    assert vars(ours).keys() == vars(plain).keys()
    assert [cls.__name__ for cls in type(ours).__mro__] == [cls.__name__ for cls in type(plain).__mro__]
    assert not any(cls.__module__.startswith("convt") for cls in type(ours).__mro__)
    if not old:
        assert isinstance(twin, ct.ConvTranspose2d)  # its class is that of `ours` before
        assert type(nn.utils.parametrize.remove_parametrizations(ours, "weight")) is nn.ConvTranspose2d


def test_graphs_do_not_trust_weights_that_they_compute():
    """Graphs repack weights that they compute. A compiler uses one tensor object and its memory for several values in turn."""
    reuses, inner = [], _weights.operator
    w = torch.randn(3, 4, 3, 3)

    def spy(weight, bias, key, keywords, freeze, at_once):
        reuses.append(freeze)
        return inner(weight, bias, key, keywords, freeze, at_once)

    def function(x, w):
        return ct.conv_transpose2d(x, w * 2, freeze=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_weights, "operator", spy)
        with torch.no_grad():
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            for _ in range(2):
                close(compiled(X, w), F.conv_transpose2d(X, w * 2))
            assert reuses == [False, False]
            with torch.autocast("cpu", torch.bfloat16):  # weights that autocast converts for one call are not reused either
                ct.conv_transpose2d(X, w, freeze=True)
            assert reuses.pop() is False
            ct.conv_transpose2d(X, w, freeze=True)
            assert reuses.pop() is True


# ---------------------------------------------------------------- threads


def test_threads_see_one_state_or_the_other():
    """Weights that change in place between two states: packed weights of one state are not used for the other afterwards."""
    w, x = torch.randn(16, 8, 3, 3), torch.randn(1, 16, 6, 6)
    states = w.clone(), torch.randn(16, 8, 3, 3)
    wanted = [F.conv_transpose2d(x, each) for each in states]
    with meanwhile(lambda: ct.conv_transpose2d(x, w), 3):
        for n in range(200):
            w.copy_(states[n % 2])
            close(ct.conv_transpose2d(x, w), wanted[n % 2])
    close(ct.conv_transpose2d(x, w), wanted[1])


def test_a_sum_and_its_operators_belong_together(monkeypatch):
    """Check a thread that packs the weights of one state while another thread sees the other state: it keeps them for its own
    state."""
    w, x = torch.full((4, 4, 3, 3), 2.0), torch.randn(1, 4, 5, 5)
    inner, inside = _weights._operator.ConvTranspose._borrowing, []

    def interrupted(*args, **keywords):
        if not inside:
            inside.append(True)
            w.fill_(1)  # simulates another thread that changes the weights, calls, and changes them back
            ct.conv_transpose2d(x, w)
            w.fill_(2)
        return inner(*args, **keywords)

    monkeypatch.setattr(_weights._operator.ConvTranspose, "_borrowing", interrupted)
    for _ in range(2):
        close(ct.conv_transpose2d(x, w), F.conv_transpose2d(x, w))
    assert inside
    for value in (1, 2):
        w.fill_(value)
        for _ in range(3):
            close(ct.conv_transpose2d(x, w), F.conv_transpose2d(x, w))
