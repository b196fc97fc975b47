"""Tests of convt.torch in programs that change classes, functions, modes and tensors while it is in use."""

import contextlib
import copy
import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
from cases import meanwhile
from torch_cases import (  # noqa: F401
    F,
    Functions,
    Named,
    X,
    agree,
    chain,
    close,
    layer,
    nn,
    outcome,
    reset_torch,
    torch,
)

import convt.torch as ct
from convt.torch import _weights

parametrizations = nn.utils.parametrizations


def subclassed():
    torch.manual_seed(2)
    return Named(3, 4, 3)


class Steps(nn.Sequential):
    """A subclass with torch's forward."""


def stepped():
    return Steps(*chain()).eval()


def same(program, make, freeze=False):
    """Check that a program does the same with an accelerated model as with torch's, without an additional warning. Return
    torch's result."""
    want = outcome(program, make())
    model, _ = ct.accelerate(make(), freeze=freeze)
    with torch.no_grad():
        for _ in range(3):
            model(X)  # packs the weights
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        got = outcome(program, model)
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        close(got, want)
    else:
        assert got == want
    return want


# ---------------------------------------------------------------- classes and functions that a program changes


@contextlib.contextmanager
def doubled(place, name):
    """Replace a function or method by one that doubles its result."""
    before, own = getattr(place, name), name in vars(place)
    setattr(place, name, lambda *args, **keywords: before(*args, **keywords) * 2)
    try:
        yield
    finally:
        if own:
            setattr(place, name, before)
        else:
            delattr(place, name)


CHANGED = {
    "torch's class": (layer, nn.ConvTranspose2d, "forward"), "a class of the user's": (subclassed, Named, "forward"),
    "torch's function": (layer, F, "conv_transpose2d"), "torch's class in a Sequential": (chain, nn.ConvTranspose2d, "forward"),
    "an activation": (chain, nn.Tanh, "forward"), "a norm": (chain, nn.BatchNorm2d, "forward"),
    "torch's function in a Sequential": (chain, F, "conv_transpose2d"), "a Sequential": (stepped, Steps, "forward"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_forward_is_called(what):
    make, place, name = CHANGED[what]

    def program(model):
        with torch.no_grad(), doubled(place, name):
            return model(X)

    with torch.no_grad():
        assert not torch.allclose(same(program, make), make()(X))


class Odd(nn.ConvTranspose2d):
    def _output_padding(self, *_):
        return [0, 0]


def test_an_output_padding_of_its_own():
    model, report = ct.accelerate(Odd(3, 4, 3, 2, 1, 1))
    assert report.kept == {"": "Odd defines its own _output_padding"}
    assert model(X).shape == F.conv_transpose2d(X, model.weight, model.bias, 2, 1).shape


# ---------------------------------------------------------------- attributes that a program sets

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


# ---------------------------------------------------------------- norms that do not fit, and results that are not finite


def test_a_norm_whose_product_with_the_weights_is_not_finite():
    def program(model):
        model[1].running_var.fill_(1e-30)
        model[1].eps = 1e-30
        with torch.no_grad():
            model[0].weight.mul_(1e30)
            return model(X * 1e-30)

    assert torch.isfinite(same(program, chain)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_whose_product_with_the_weights_is_not_normal(dtype):
    """Check weights and a scale so small that their product loses digits, with inputs so large that the output is normal."""
    tiny = torch.finfo(dtype).tiny

    def program(model):
        model = model.to(dtype)
        with torch.no_grad():
            model[0].bias.zero_()
            model[0].weight.copy_(tiny ** (2 / 3) * model[0].weight.sign() * 1.7)
            model[1].weight.fill_(tiny**0.5 * 1.3)
            return model(X.to(dtype) * tiny ** -(2 / 3)) * tiny**-0.5

    assert same(program, chain).abs().max() > 0.1


# ---------------------------------------------------------------- tensors


def _negative(*shape):
    """Return a tensor with the negative bit set, whose values are the negatives of its memory, and the tensor that owns the
    memory."""
    base = torch.randn(*shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    return base.conj().imag, base


def test_negative_views_are_never_old():
    (w, weights), (b, biases) = _negative(3, 4, 3, 3), _negative(4)
    plain = w.clone()
    assert w.is_neg() and b.is_neg()
    for freeze in (False, True):
        for weight, bias, base in ((w, None, weights), (plain, b, biases)):
            for _ in range(3):
                ct.conv_transpose2d(X, weight, bias, freeze=freeze)
            base.mul_(3)
            close(ct.conv_transpose2d(X, weight, bias, freeze=freeze), F.conv_transpose2d(X, weight, bias))
    # The tensor becomes a negative view and then a plain one again.
    weight = torch.randn(3, 4, 3, 3)
    for value in (weight.clone(), weights.conj().imag, weights.clone().imag):
        weight.data = value
        for _ in range(3):
            close(ct.conv_transpose2d(X, weight), F.conv_transpose2d(X, weight))


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


def test_the_weight_of_a_function_becomes_a_negative_view():
    w, b = torch.randn(3, 4, 3, 3), torch.randn(4)
    for n in range(6):
        for _ in range(3):
            close(ct.conv_transpose2d(X, w, b), F.conv_transpose2d(X, w, b))
        tensor = (w, b)[n % 2]
        tensor.data = torch._neg_view(tensor.data)


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


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "keywords", [{"groups": True}, {"stride": (3.0, 2.0)}, {"padding": (True, 2)}, {"dilation": (1.0, 2)}], ids=str
)
def test_what_is_no_integer(keywords, gradients):
    w = layer().weight.detach().requires_grad_(gradients)
    whole = {name: tuple(map(int, value)) if isinstance(value, tuple) else int(value) for name, value in keywords.items()}
    names = ("bias", "stride", "padding", "output_padding", "groups", "dilation")
    given = [keywords.get(name, default) for name, default in zip(names, (None, 1, 0, 0, 1, 1), strict=True)]
    want = outcome(F.conv_transpose2d, X, w, *given)
    for _ in range(2):  # before and after a call with the integers that are equal
        assert want[0] is TypeError and outcome(ct.conv_transpose2d, X, w, *given) == want
        for _ in range(3):
            close(ct.conv_transpose2d(X, w, **whole), F.conv_transpose2d(X, w, **whole))


@pytest.mark.parametrize("make", [layer, chain])
def test_copies_of_a_copy_whose_model_is_gone(make):
    model, wanted = ct.accelerate(make())[0], make()
    shallow = copy.copy(model)
    if make is chain:
        shallow._modules = {name: copy.copy(module) for name, module in shallow._modules.items()}
    del model
    gc.collect()
    with torch.no_grad():
        deep = copy.deepcopy(shallow)
        for each in (shallow, deep, copy.deepcopy(deep), pickle.loads(pickle.dumps(shallow))):
            for _ in range(3):
                close(each(X), wanted(X))
            assert ct.accelerate(each)[1].swapped == (("0",) if make is chain else ("",))
            close(ct.restore(each)(X), wanted(X))


@pytest.mark.parametrize("make", [layer, chain])
@pytest.mark.parametrize("again", [False, True])
def test_tracing_a_copy_whose_model_is_gone(make, again):
    model = ct.accelerate(make())[0]
    shallow = copy.copy(model)
    if again:
        ct.accelerate(shallow)
        assert vars(shallow)["forward"] is not vars(model)["forward"]
    del model
    gc.collect()
    close(torch.jit.trace(shallow, X, check_trace=False)(X), make()(X))


@pytest.mark.parametrize("make", [layer, chain])
def test_exporting_a_deep_copy_of_a_copy(make):
    model = ct.accelerate(make())[0]
    deep = copy.deepcopy(copy.copy(model))
    assert vars(deep)["forward"].is_of(deep)
    del model
    gc.collect()
    close(torch.export.export(deep, (X,)).module()(X), make()(X))


@pytest.mark.parametrize("name", ["stride", "groups"])
def test_numpys_integers_with_three_axes_and_channels_last(name):
    x, w = (torch.randn(4, 4, 3, 2, 2).contiguous(memory_format=torch.channels_last_3d) for _ in range(2))
    got, want = (f(x, w, **{name: n}) for f, n in ((ct.conv_transpose3d, np.int64(2)), (F.conv_transpose3d, 2)))
    close(got, want)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("gradients", [False, True])
def test_tensors_that_escaped_from_vmap(gradients):
    escaped = []
    torch.vmap(lambda w: (escaped.append(w), w)[1])(torch.stack([layer().weight.detach()] * 2))
    x = X.clone().requires_grad_(gradients)
    want = outcome(F.conv_transpose2d, x, escaped[0])
    assert want[0] is RuntimeError and outcome(ct.conv_transpose2d, x, escaped[0]) == want


def test_the_error_of_deleting_the_weight_of_a_restored_module():
    def program(model):
        parametrizations.spectral_norm(model)
        ct.restore(model)
        del model.weight

    got, want = (outcome(program, layer(cls)) for cls in (ct.ConvTranspose2d, nn.ConvTranspose2d))
    assert got == want and want[0] is AttributeError


def test_a_module_of_convts_that_becomes_another():
    class Derived(nn.ConvTranspose2d):
        pass

    model = ct.accelerate(layer(ct.ConvTranspose2d))[0]
    model.__class__ = Derived
    close(ct.accelerate(model)[0](X), layer()(X))
    assert vars(ct.restore(model)).keys() == vars(layer()).keys() and type(model) is Derived


@pytest.mark.parametrize("make", [layer, chain])
def test_what_an_interrupted_transform_leaves_in_a_model(make):
    """Check weights that torch.func leaves in a module with two names if the function raises: they have no memory."""

    def shared():
        up = make()
        return nn.ModuleDict({"first": up, "second": up})

    def stop(parameters, model):
        torch.func.functional_call(model, parameters, (X,))

    def program(model):
        with torch.no_grad():
            with pytest.raises(NotImplementedError):  # a ModuleDict has no forward
                torch.func.grad(stop)(dict(model.named_parameters()), model)
            return torch.cat([model["first"](X) for _ in range(3)])

    want = program(shared())
    model = shared()
    ct.accelerate(model)
    close(program(model), want)


def test_tensors_are_swapped():

    def program(model):
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            with torch.no_grad():
                for _ in range(3):
                    model(X)
                model.double().load_state_dict({name: each * 2 for name, each in model.state_dict().items()})
                return model(X.double())
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    want = program(layer())
    close(program(ct.accelerate(layer())[0]), want)
    # A model that was packed earlier is swapped after `refresh`.
    model, _ = ct.accelerate(layer())
    with torch.no_grad():
        for _ in range(3):
            model(X)
    close(program(ct.refresh(model)), want)


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


NORMALIZATIONS = {
    "weight": parametrizations.weight_norm, "spectral": parametrizations.spectral_norm,
    "old weight": torch.nn.utils.weight_norm, "old spectral": torch.nn.utils.spectral_norm,
}  # fmt: skip


def _normalized(name, training=False, cls=nn.ConvTranspose2d):
    def make():
        torch.manual_seed(4)
        return NORMALIZATIONS[name](layer(cls)).train(training)

    return make


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_a_refused_output_size_changes_no_weight(name):
    """Check that a call whose output_size is refused leaves a norm of weights as torch does, which checks before it reads."""

    def program(model):
        with torch.no_grad():
            results = [model(X)]
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.dim()))
            for _ in range(3):
                with pytest.raises(ValueError, match="requested an output size of"):
                    model(X, output_size=(90, 90))
            return torch.cat([*results, model(X)])

    want = program(_normalized(name, True)())
    close(program(ct.accelerate(_normalized(name, True)())[0]), want)
    close(program(_normalized(name, True, ct.ConvTranspose2d)()), want)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_parametrized_modules_of_convts_classes(name, freeze):
    """Check that convt computes modules of its own classes with a norm of weights, and that `restore` leaves none of it."""
    ours, plain = _normalized(name, cls=ct.ConvTranspose2d)(), _normalized(name)()
    old = name.startswith("old")
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


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_frozen_parametrizations_follow_functional_calls(name):
    def program(model):
        with torch.no_grad():
            model(X)
            found = torch.func.functional_call(model, {key: each + 1 for key, each in model.named_parameters()}, (X,))
            return torch.stack([found, model(X)])

    same(program, _normalized(name), freeze=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["spectral", "old spectral"])
def test_frozen_parametrizations_in_training_are_computed_by_each_call(name):
    """Check frozen parametrizations that change their weights at each call in training: each call computes them anew."""

    def program(make, accelerated):
        model = ct.accelerate(make(), freeze=True)[0] if accelerated else make()
        with torch.no_grad():
            return torch.stack([model(X) for _ in range(5)])

    make = _normalized(name, True)
    want = program(make, False)
    close(program(make, True), want)


def test_frozen_parametrizations_on_another_device():
    def program(model):
        with torch.no_grad():
            model(X)
            return tuple(model.to("meta")(X.to("meta")).shape)

    assert same(program, _normalized("weight"), freeze=True) == (2, 4, 6, 4)


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
