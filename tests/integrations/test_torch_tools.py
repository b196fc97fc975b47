"""Tests of convt.torch with torch's other tools: derivatives of every kind, exporters, quantization, changes of models,
operator counters and profilers. Results are compared with torch's own modules and functions."""

import io
import warnings

import pytest
from torch_cases import OP, F, X, accelerated, chain, close, layer, reset_torch, torch  # noqa: F401

import convt.torch as ct

func, forward_ad = torch.func, torch.autograd.forward_ad
parametrizations, parametrize = torch.nn.utils.parametrizations, torch.nn.utils.parametrize


def pairs():
    """Return (convt's, torch's) pairs: a function, a module, and a Sequential that is fused in inference."""
    w, b = layer().weight.detach(), layer().bias.detach()
    yield lambda x: ct.conv_transpose2d(x, w, b, 2, 1, 1), lambda x: F.conv_transpose2d(x, w, b, 2, 1, 1)
    yield accelerated(layer()), layer()
    yield accelerated(chain()), chain()


# ---------------------------------------------------------------- derivatives


def _dual(f):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(X, X + 1))))


def _linearize(f):
    value, tangent = func.linearize(f, X)
    return value, tangent(X + 1)


TRANSFORMS = {
    "jvp": lambda f: func.jvp(f, (X,), (X + 1,)),
    "jacfwd": lambda f: func.jacfwd(f)(X),
    "jacrev": lambda f: func.jacrev(f)(X),
    "hessian": lambda f: func.hessian(lambda x: (f(x) ** 3).sum())(X),
    "linearize": _linearize,
    "grad": lambda f: func.grad(lambda x: f(x).sin().sum())(X),
    "vjp": lambda f: func.vjp(f, X)[1](torch.ones(2, 4, 6, 4)),
    "vmap": lambda f: func.vmap(f)(torch.stack([X, X + 1])),
    "vmap of jvp": lambda f: func.vmap(lambda v: func.jvp(f, (X,), (v,))[1])(torch.stack([X, X + 1])),
    "jvp of vmap": lambda f: func.jvp(func.vmap(f), (torch.stack([X, X]),), (torch.stack([X, X + 1]),)),
    "vmap of grad": lambda f: func.vmap(func.grad(lambda x: f(x[None]).sin().sum()))(X),
    "jvp of grad": lambda f: func.jvp(func.grad(lambda x: (f(x) ** 3).sum()), (X,), (X + 1,)),
    "functionalize": lambda f: func.functionalize(f)(X),
    "dual numbers": _dual,
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_all_of_torch_func_is_torchs(transform, gradients):
    with torch.set_grad_enabled(gradients):
        for ours, torchs in pairs():
            got, wanted = (TRANSFORMS[transform](f) for f in (ours, torchs))
            for each, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, wanted)), strict=True):
                close(each, want)
                assert transform in ("functionalize", "vmap") or float(want.detach().abs().max()) > 0


@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap", "vmap of jvp", "vmap of grad"])
def test_the_operator_itself_is_differentiated(transform):
    """Check the registered operator itself, which graphs made earlier contain."""
    w, b = layer().weight.detach(), layer().bias.detach()
    got = TRANSFORMS[transform](lambda x: OP(x, w, b, [2, 2], [1, 1], [1, 1], 1, [1, 1]))
    wanted = TRANSFORMS[transform](lambda x: F.conv_transpose2d(x, w, b, 2, 1, 1))
    for each, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, wanted)), strict=True):
        close(each, want)


@pytest.mark.parametrize("model", [layer, chain], ids=["module", "sequential"])
def test_gradcheck_of_accelerated_modules(model):
    """Check derivatives numerically. gradcheck changes inputs and weights one by one, in place, by steps of 1e-6."""
    module, x = accelerated(model()).double(), X.double().requires_grad_()
    with torch.no_grad():
        for _ in range(3):
            module(x)  # packs the weights
    options = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(module, (x,), **options)
    assert torch.autograd.gradgradcheck(module, (x,))
    assert torch.autograd.gradcheck(lambda *weights: module(X.double()), tuple(module.parameters()))


# ---------------------------------------------------------------- exporters, tracers, quantization


@pytest.mark.parametrize("model", [layer, chain], ids=["module", "sequential"])
@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_are_torchs(model, strict):
    module = accelerated(model()).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (X,), dynamic_shapes=({0: batch},), strict=strict)
    assert "conv_transpose2d" in str(program.graph) and "convt" not in str(program.graph)
    x = torch.randn(5, 3, 3, 2)
    close(program.module()(x), module(x))


@pytest.mark.parametrize("model", [layer, chain], ids=["module", "sequential"])
def test_traces_load_without_convt(model):
    module = accelerated(model()).eval()
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(module, X)
            assert "aten::_convolution" in str(traced.inlined_graph) and "convt::" not in str(traced.inlined_graph)
            file = io.BytesIO()
            torch.jit.save(traced, file)
            file.seek(0)
            close(torch.jit.load(file)(X), module(X))
    graph = torch.fx.experimental.proxy_tensor.make_fx(module)(X)
    assert "convt" not in str(graph.graph)
    close(graph(X), module(X))
    close(torch.fx.symbolic_trace(module)(X) if model is chain else module(X), module(X))


def test_symbolic_traces_enter_no_module_as_with_torchs():
    module = torch.nn.Sequential(torch.nn.utils.spectral_norm(ct.ConvTranspose2d(3, 4, 2))).eval()
    graph = torch.fx.symbolic_trace(module)  # would fail inside, in torch's hook that computes the weight
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
    close(graph(X), module(X))
    ct.restore(module)
    assert vars(module[0]).keys() == vars(torch.nn.utils.spectral_norm(torch.nn.ConvTranspose2d(3, 4, 2))).keys()


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("model", [layer, chain], ids=["module", "sequential"])
def test_onnx_files_are_torchs(model, dynamo, tmp_path):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    if dynamo:
        pytest.importorskip("onnxscript", reason="torch's newer exporter needs onnxscript")
    module, path = accelerated(model()).eval(), str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (X,), path, dynamo=dynamo, verbose=False)
    assert "ConvTranspose" in {node.op_type for node in onnx.load(path).graph.node if not node.domain}
    session = onnxruntime.InferenceSession(path)
    (got,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    close(torch.from_numpy(got), module(X))


@pytest.mark.filterwarnings("ignore")
def test_eager_quantization_finds_the_layer():
    """Check that eager quantization, which looks for modules of exactly torch's class, finds the layer."""
    quantization = torch.ao.quantization

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.up, self.behind = quantization.QuantStub(), layer(), quantization.DeQuantStub()

        def forward(self, x):
            return self.behind(self.up(self.before(x)))

    net, _ = ct.accelerate(Net().eval())
    want = net(X)
    net.qconfig = quantization.QConfig(activation=quantization.default_observer, weight=quantization.default_weight_observer)
    if "qnnpack" in torch.backends.quantized.supported_engines:
        torch.backends.quantized.engine = "qnnpack"
    prepared = quantization.prepare(net)
    prepared(X)
    converted = quantization.convert(prepared)
    assert type(converted.up) is torch.ao.nn.quantized.ConvTranspose2d
    assert float((converted(X) - want).abs().max()) < 0.1 * float(want.abs().max())


# ---------------------------------------------------------------- changes of models


def _everything(model):
    """Return what a user can see of a model's modules: classes, entries of their ``__dict__``, hooks."""
    found = {}
    for name, module in model.named_modules():
        entries = {key: None if isinstance(value, dict) else value for key, value in vars(module).items()}
        hooks = {key: list(value) for key, value in vars(module).items() if key.endswith("hooks") and isinstance(value, dict)}
        found[name] = type(module), type(module).__mro__, entries, hooks
    return found


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_nothing_of_convt_is_left_behind():
    model = torch.nn.ModuleDict({
        "layer": layer(), "chain": chain(), "normed": parametrizations.weight_norm(layer()),
        "old": torch.nn.utils.weight_norm(layer()),
        "nested": torch.nn.Sequential(chain(), torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 2, 2))),
    })  # fmt: skip
    model["layer"].register_forward_hook(lambda *_: None)
    before = _everything(model)
    for settings in ({}, {"precision": "high"}, {"freeze": True}):
        ct.accelerate(model, **settings)
        with torch.no_grad():
            for module in model.values():
                module(X)
        assert [(cls, mro) for cls, mro, *_ in _everything(model).values()] == [(cls, mro) for cls, mro, *_ in before.values()]
    ct.restore(model)
    after = _everything(model)
    old = after["old"][2].pop("weight"), before["old"][2].pop("weight")  # each call computes this weight anew
    assert torch.allclose(*old) and after == before
    # Modules of convt's own classes become torch's.
    own = ct.restore(torch.nn.Sequential(ct.ConvTranspose2d(2, 2, 2, precision="high", freeze=True)))[0]
    assert type(own) is torch.nn.ConvTranspose2d and vars(own).keys() == vars(torch.nn.ConvTranspose2d(2, 2, 2)).keys()


def test_a_models_memory_is_given_back_at_once():
    import gc
    import weakref

    model = accelerated(chain())
    with torch.no_grad():
        for _ in range(3):
            model(X)
    parts = [weakref.ref(each) for each in (model, model[0], model[0].weight)]
    gc.disable()
    try:
        del model
        assert [part() for part in parts] == [None] * 3
    finally:
        gc.enable()


# ---------------------------------------------------------------- counters and profilers


def test_operations_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    def count(module):
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            module(X)
        with FlopCounterMode(display=False) as both:
            module(X).sum().backward()
        return forward.get_total_flops(), both.get_total_flops()

    for model in (layer, chain):
        found = count(accelerated(model()))
        assert found == count(model()) and 0 < found[0] < found[1]


def test_profiles_have_a_row():
    for model in (layer, chain):
        module = accelerated(model()).eval()
        with torch.no_grad(), torch.profiler.profile() as profile:
            module(X)
        assert "convt::conv_transpose" in {row.key for row in profile.key_averages()}
