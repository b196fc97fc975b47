"""convt.torch: the same results, errors, gradients and graphs as torch's own, and what is kept between calls."""

import copy
import doctest
import io
import json
import pickle
import re

import numpy as np
import pytest
from cases import child

torch = pytest.importorskip("torch")

import convt  # noqa: E402
import convt.torch as ct  # noqa: E402
from convt.torch import _compute  # noqa: E402

F = torch.nn.functional
FUNCTIONS = {
    1: (ct.conv_transpose1d, F.conv_transpose1d), 2: (ct.conv_transpose2d, F.conv_transpose2d),
    3: (ct.conv_transpose3d, F.conv_transpose3d),
}  # fmt: skip
MODULES = {
    1: (ct.ConvTranspose1d, torch.nn.ConvTranspose1d), 2: (ct.ConvTranspose2d, torch.nn.ConvTranspose2d),
    3: (ct.ConvTranspose3d, torch.nn.ConvTranspose3d),
}  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}
each_rank = pytest.mark.parametrize("rank", FUNCTIONS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
OP = torch.ops.convt.conv_transpose.default


@pytest.fixture(autouse=True)
def _afresh():
    torch._dynamo.reset()
    _compute.forget()


def close(got, wanted, dtype=None):
    dtype = dtype or wanted.dtype
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    scale = max(1.0, float(wanted.detach().double().abs().max()) if wanted.numel() else 1.0)
    assert (
        float((got.detach().double() - wanted.detach().double()).abs().max() if got.numel() else 0) <= TOLERANCE[dtype] * scale
    )


def random_case(rng, rank):
    """(shapes of input, weight and bias, keyword arguments) that torch takes."""
    groups = int(rng.choice([1, 1, 2, 3]))
    ci, co = int(rng.integers(1, 5)) * groups, int(rng.integers(1, 5))
    stride, dilation = (tuple(map(int, rng.integers(1, 4, rank))) for _ in range(2))
    kernel = tuple(map(int, rng.integers(1, 5, rank)))
    output_padding = tuple(int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True))
    sizes = tuple(map(int, rng.integers(2, 7, rank)))
    most = [
        min(2, ((n - 1) * s + d * (k - 1) + extra) // 2)
        for n, s, d, k, extra in zip(sizes, stride, dilation, kernel, output_padding, strict=True)
    ]
    padding = tuple(int(rng.integers(0, m + 1)) for m in most)
    batch = () if rng.random() < 0.2 else (int(rng.integers(0, 3)),)
    bias = (co * groups,) if rng.random() < 0.5 else None
    keywords = {
        "stride": stride, "padding": padding, "output_padding": output_padding, "groups": groups, "dilation": dilation,
    }  # fmt: skip
    return (*batch, ci, *sizes), (ci, co, *kernel), bias, keywords


# ---------------------------------------------------------------- functions


@each_dtype
@each_rank
def test_random_calls_are_torchs(rank, dtype):
    ours, torchs = FUNCTIONS[rank]
    rng = np.random.default_rng(rank)
    torch.manual_seed(rank)
    for _ in range(40):
        shape, weight, bias, keywords = random_case(rng, rank)
        x, w = torch.randn(shape, dtype=dtype), torch.randn(weight, dtype=dtype)
        b = None if bias is None else torch.randn(bias, dtype=dtype)
        wanted = torchs(*(t if t is None else t.double() for t in (x, w, b)), **keywords).to(dtype)
        for _ in range(3):  # one-shot, packed, repeated
            close(ours(x, w, b, **keywords), wanted)


@pytest.mark.parametrize("rank", [2, 3])
def test_channels_last_stays(rank):
    ours, torchs = FUNCTIONS[rank]
    layout = {2: torch.channels_last, 3: torch.channels_last_3d}[rank]
    x, w = torch.randn(2, 8, *[5] * rank), torch.randn(8, 6, *[3] * rank)
    wanted = torchs(x, w, stride=2)
    for _ in range(3):
        got = ours(x.contiguous(memory_format=layout), w, stride=2)
        assert got.is_contiguous(memory_format=layout) and not got.is_contiguous()
        close(got, wanted)
        assert ours(x, w, stride=2).is_contiguous()
        both = [f(x, w.contiguous(memory_format=layout), stride=2) for f in (ours, torchs)]
        assert both[0].stride() == both[1].stride()
        close(both[0], wanted)


def test_views_of_any_kind():
    base, w = torch.randn(4, 12, 9, 11), torch.randn(6, 3, 3, 3)
    for x in (
        base[:, ::2],
        base[::2, :6],
        base[:, 6:, ::2, 1:],
        base[:, :6].transpose(2, 3),
        base[:1, :6].expand(3, -1, -1, -1),
    ):
        for _ in range(3):
            close(ct.conv_transpose2d(x, w), F.conv_transpose2d(x, w))
    wide = torch.randn(3, 3, 3, 6).permute(3, 0, 1, 2)
    for _ in range(3):
        close(ct.conv_transpose2d(base[:, :6], wide), F.conv_transpose2d(base[:, :6], wide))
    negative = torch.view_as_complex(torch.randn(1, 6, 5, 5, 2)).conj().imag
    assert negative.is_neg()
    close(ct.conv_transpose2d(negative, w), F.conv_transpose2d(negative, w))


def test_input_and_output_are_not_copied():
    x, w = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 2, 2)
    assert np.shares_memory(_compute.array(x), x.numpy())
    made = np.zeros((2, 3), np.float32)
    assert _compute.tensor_of(made).data_ptr() == made.ctypes.data
    half = torch.zeros(3, dtype=torch.bfloat16)
    assert _compute.array(half).ctypes.data == half.data_ptr()
    y = ct.conv_transpose2d(x, w, stride=2)
    y.add_(1)  # the caller's own
    close(ct.conv_transpose2d(x, w, stride=2), F.conv_transpose2d(x, w, stride=2))


def test_torchs_own_samples_and_errors():
    """OpInfo: what torch tests its own functions with."""
    pytest.importorskip("expecttest", reason="torch's own samples want it")
    from torch.testing._internal.common_methods_invocations import op_db

    found = [info for info in op_db if info.name in {f"nn.functional.conv_transpose{n}d" for n in FUNCTIONS}]
    assert len(found) == 3
    for info in found:
        ours = getattr(ct, info.name.rsplit(".", 1)[1])
        for dtype in (*DTYPES, torch.int64, torch.complex64):
            if dtype not in info.supported_dtypes("cpu"):
                continue
            for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
                got = ours(sample.input, *sample.args, **sample.kwargs)
                if dtype in DTYPES:
                    sample = sample.transform(lambda value: value.double() if isinstance(value, torch.Tensor) else value)
                    close(got, info.op(sample.input, *sample.args, **sample.kwargs).to(dtype))
                else:
                    assert torch.equal(got, info.op(sample.input, *sample.args, **sample.kwargs))
        for error in info.error_inputs("cpu") if info.error_inputs_func else ():
            with pytest.raises(error.error_type, match=error.error_regex):
                ours(error.sample_input.input, *error.sample_input.args, **error.sample_input.kwargs)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"stride": 0}, RuntimeError), ({"padding": -1}, RuntimeError), ({"output_padding": 5}, RuntimeError),
        ({"groups": 3}, RuntimeError), ({"dilation": 0}, RuntimeError), ({"stride": (1, 2, 3)}, RuntimeError),
        ({"bias": torch.zeros(5)}, RuntimeError), ({"weight": torch.zeros(4, 2, 3)}, RuntimeError),
        ({"weight": torch.zeros(4, 2, 3, 3, dtype=torch.float64)}, RuntimeError),
        ({"input": torch.zeros(1, 3, 5, 5)}, RuntimeError),
        ({"input": np.zeros((1, 4, 5, 5))}, TypeError), ({"padding": 9}, RuntimeError), ({"stride": 1.5}, TypeError),
    ],
)  # fmt: skip
def test_mistakes_are_torchs(change, error):
    arguments = {"input": torch.zeros(1, 4, 5, 5), "weight": torch.zeros(4, 2, 3, 3)} | change
    with pytest.raises(error) as wanted:
        F.conv_transpose2d(**arguments)
    with pytest.raises(error) as got:
        ct.conv_transpose2d(**arguments)
    text = lambda error: re.sub(r" \(position \d+\)", "", str(error.value))  # noqa: E731
    assert text(got) == text(wanted)


def test_others_are_torchs():
    x, w = torch.ones(1, 2, 3, dtype=torch.int64), torch.ones(2, 1, 2, dtype=torch.int64)
    close_to = F.conv_transpose1d(x, w)
    assert torch.equal(ct.conv_transpose1d(x, w), close_to)
    meta = ct.conv_transpose2d(torch.empty(1, 2, 3, 3, device="meta"), torch.empty(2, 1, 2, 2, device="meta"), stride=2)
    assert meta.shape == (1, 1, 6, 6) and meta.device.type == "meta"


# ---------------------------------------------------------------- what is kept


def test_changes_of_weights_are_noticed():
    x = torch.randn(1, 8, 6, 6)
    module = ct.ConvTranspose2d(8, 8, 4, 2, 1)
    same = lambda: close(module(x), F.conv_transpose2d(x, module.weight, module.bias, 2, 1))  # noqa: E731

    def changes():
        yield
        module.weight.mul_(2)
        yield
        module.bias.add_(1)
        yield
        module.weight.data.mul_(2)  # torch does not count it
        yield
        module.bias.data.mul_(2)
        yield
        module.to(memory_format=torch.channels_last)
        yield
        module.weight.data.mul_(2)
        yield
        module.weight.numpy()[...] *= 2  # nor this
        yield
        module.load_state_dict({name: torch.randn_like(value) for name, value in module.state_dict().items()})
        yield
        module.weight = torch.nn.Parameter(torch.randn(8, 8, 4, 4))
        yield
        module.weight.data = torch.randn(8, 8, 4, 4)
        yield
        torch.nn.init.normal_(module.weight)
        yield
        module.to(torch.float64)
        module.to(torch.float32)
        yield

    with torch.no_grad():
        for _ in changes():
            for _ in range(3):
                same()


def test_weights_are_packed_once_and_let_go():
    x, w = torch.randn(1, 8, 6, 6), torch.randn(8, 8, 4, 4)
    assert not _compute._known
    ct.conv_transpose2d(x, w)
    (known,) = _compute._known.values()
    assert not known.operators  # may be the only call
    ct.conv_transpose2d(x, w)
    (op,) = known.operators.values()
    ct.conv_transpose2d(x, w)
    assert list(known.operators.values()) == [op]
    assert np.shares_memory(op._filter, w.numpy())
    del w
    assert not _compute._known


def test_weights_made_at_each_call_are_never_mixed_up():
    x = torch.randn(1, 4, 5, 5)
    for n in range(50):
        w = torch.full((4, 4, 3, 3), float(n))
        close(ct.conv_transpose2d(x, w), F.conv_transpose2d(x, w))
        close(ct.conv_transpose2d(x, w), F.conv_transpose2d(x, w))


def test_inference_mode():
    module = ct.ConvTranspose2d(4, 4, 3, 2)
    x = torch.randn(1, 4, 5, 5)
    with torch.inference_mode():
        for _ in range(3):
            close(module(x), F.conv_transpose2d(x, module.weight, module.bias, 2))
        w = torch.randn(4, 4, 3, 3)
        for _ in range(3):
            close(ct.conv_transpose2d(x, w), F.conv_transpose2d(x, w))
            w.add_(1)  # an inference tensor counts no changes
        y = module(x)
    assert y.shape == (1, 4, 11, 11)


def test_threads_are_torchs(monkeypatch):
    seen = []
    real = _compute._operator
    monkeypatch.setattr(_compute, "_operator", lambda *a: (seen.append(convt.get_num_threads()), real(*a))[1])
    before, ours = torch.get_num_threads(), convt.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            ct.conv_transpose1d(torch.ones(1, 1, 3), torch.ones(1, 1, 2))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2] and convt.get_num_threads() == ours


# ---------------------------------------------------------------- torch.library


@pytest.mark.parametrize("gradients", [False, True])
def test_opcheck(gradients):
    make = lambda *shape: torch.randn(shape, requires_grad=gradients)  # noqa: E731
    cases = [
        (make(2, 4, 5, 6), make(4, 2, 3, 3), make(4), [2, 1], [1, 0], [1, 0], 2, [1, 2]),
        (make(2, 3, 7), make(3, 2, 4), None, [3], [1], [0], 1, [1]),
        (make(1, 2, 3, 4, 3), make(2, 2, 2, 2, 2), make(2), [2] * 3, [0] * 3, [0] * 3, 1, [1] * 3),
        (make(2, 5, 6, 4).permute(0, 3, 1, 2).detach().requires_grad_(gradients), make(4, 2, 3, 3), None, [1] * 2, [0] * 2,
         [0] * 2, 1, [1] * 2),
    ]  # fmt: skip
    for case in cases:
        torch.library.opcheck(OP, case)


@each_rank
def test_gradients(rank):
    ours, _ = FUNCTIONS[rank]
    make = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
    arguments = make(2, 2, *[3] * rank), make(2, 1, *[2] * rank), make(2)
    call = lambda x, w, b: ours(x, w, b, 2, 0, 1, 2)  # noqa: E731
    assert torch.autograd.gradcheck(call, arguments)
    assert torch.autograd.gradgradcheck(call, arguments)
    assert torch.autograd.gradcheck(lambda x, w: ours(x, w, stride=2), (arguments[0], make(2, 3, *[2] * rank)))


def test_training_is_torchs():
    """A few steps of a toy GAN's generator: the same losses."""
    losses = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        g = torch.nn.Sequential(
            torch.nn.ConvTranspose2d(16, 32, 4, 1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
            torch.nn.ConvTranspose2d(32, 3, 4, 2, 1), torch.nn.Tanh(),
        )  # fmt: skip
        d = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 4, 2, 1), torch.nn.LeakyReLU(0.2), torch.nn.Flatten(), torch.nn.Linear(128, 1)
        )
        if accelerated:
            g, report = ct.accelerate(g)
            assert report.swapped == ("0", "3")
        steps = [torch.optim.Adam(m.parameters(), 1e-3) for m in (g, d)]
        some = []
        for _ in range(8):
            z, real = torch.randn(4, 16, 1, 1), torch.rand(4, 3, 8, 8)
            loss_d = F.softplus(d(g(z).detach())).mean() + F.softplus(-d(real)).mean()
            steps[1].zero_grad()
            loss_d.backward()
            steps[1].step()
            loss_g = F.softplus(-d(g(z))).mean()
            steps[0].zero_grad()
            loss_g.backward()
            steps[0].step()
            some += [loss_d.item(), loss_g.item()]
        losses.append(some)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-4)


@pytest.mark.parametrize("dims", [(0, None, None), (1, None, None), (0, 0, 0), (None, 1, None), (0, 0, None), (None, None, 0)])
def test_vmap(dims):
    shapes = (2, 4, 5, 5), (4, 3, 3, 3), (6,)
    arguments = [
        torch.randn(shape if dim is None else (*shape[:dim], 3, *shape[dim:])) for shape, dim in zip(shapes, dims, strict=True)
    ]
    results = [torch.vmap(lambda x, w, b, f=f: f(x, w, b, 2, 1, 1, 2), dims)(*arguments) for f in FUNCTIONS[2]]
    close(*results)


def test_autocast():
    x, w, b = torch.randn(1, 4, 5, 5), torch.randn(4, 4, 3, 3), torch.randn(4)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            wanted, got = F.conv_transpose2d(x, w, b), ct.conv_transpose2d(x, w, b)
            assert got.dtype == wanted.dtype == dtype
            close(got, wanted)
            double = ct.conv_transpose2d(x.double(), w.double(), b.double())
            assert double.dtype == torch.float64
            close(ct.conv_transpose2d(x.to(dtype), w, b), wanted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_with_dynamic_shapes(backend):
    module = ct.ConvTranspose2d(4, 3, 3, 2, 1)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    for shape in ((1, 4, 5, 5), (3, 4, 6, 9), (2, 4, 2, 3)):
        x = torch.randn(shape)
        wanted = F.conv_transpose2d(x, module.weight, module.bias, 2, 1)
        close(compiled(x), wanted)
        compiled(x).sum().backward()
        with torch.no_grad():
            for _ in range(3):
                close(compiled(x), wanted)


def test_export():
    module = ct.ConvTranspose2d(4, 3, 3, 2, 1).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (torch.randn(2, 4, 5, 5),), dynamic_shapes=({0: batch},))
    assert "convt.conv_transpose" in str(program.graph)
    x = torch.randn(5, 4, 5, 5)
    close(program.module()(x), module(x))


# ---------------------------------------------------------------- modules


@each_rank
def test_modules_are_torchs(rank):
    ours, torchs = MODULES[rank]
    torch.manual_seed(0)
    made = [cls(4, 6, 3, stride=2, padding=1, groups=2, bias=True) for cls in (ours, torchs)]
    made[1].load_state_dict(made[0].state_dict())
    x = torch.randn(2, 4, *[5] * rank)
    close(*[m(x) for m in made])
    close(*[m(x, output_size=[10] * rank) for m in made])
    close(*[m(x[0]) for m in made])
    assert repr(made[0]) == repr(made[1])
    for copied in (copy.deepcopy(made[0]), pickle.loads(pickle.dumps(made[0]))):
        assert type(copied) is ours
        close(copied(x), made[1](x))
    with pytest.raises(ValueError, match="output size"):
        made[0](x, output_size=[99] * rank)
    with pytest.raises(ValueError, match="zeros"):
        ours(1, 1, 1, padding_mode="reflect")


def test_share_memory_and_save():
    module = ct.ConvTranspose2d(4, 4, 3).share_memory()
    assert module.weight.is_shared()
    x = torch.randn(1, 4, 5, 5)
    close(module(x), F.conv_transpose2d(x, module.weight, module.bias))
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    close(torch.load(file, weights_only=False)(x), module(x))


# ---------------------------------------------------------------- models


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(4, 8, 4, 2, 1)
        self.twice = self.up
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.ConvTranspose2d(8, 8, 4, 2, 1))
        self.old = torch.nn.utils.weight_norm(torch.nn.ConvTranspose2d(8, 4, 2, 2))
        self.line = torch.nn.ConvTranspose1d(4, 2, 3)

    def forward(self, x):
        y = self.old(torch.relu(self.normed(torch.relu(self.up(x)))))
        return y.mean() + self.line(y.flatten(2)).mean()


class Own(torch.nn.ConvTranspose2d):
    def forward(self, x):
        return super().forward(x) + 1


class Named(torch.nn.ConvTranspose2d):
    """Has torch's forward."""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_accelerate_and_restore():
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 4, 6, 6)
    seen = []
    model.up.register_forward_hook(lambda *a: seen.append(a[2].shape))
    classes, keys = [type(m) for m in model.modules()], list(model.state_dict())
    wanted = model(x)
    wanted.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    same, report = ct.accelerate(model)
    assert same is model and report == ct.accelerate(model)[1]
    assert set(report.swapped) == {"up", "normed", "old", "line"} and not report.kept
    assert isinstance(model.up, ct.ConvTranspose2d) and model.twice is model.up and list(model.state_dict()) == keys
    with torch.no_grad():
        for mode in (model.eval(), model.train()):
            for _ in range(3):
                close(mode(x), wanted)
    assert len(seen) == 7
    model(x).backward()
    for name, p in model.named_parameters():
        close(p.grad, gradients[name])
    close(copy.deepcopy(model.up)(x), model.up(x))
    with torch.no_grad():
        model.normed.parametrizations.weight.original0.mul_(2)
    moved = model(x)
    assert [type(m) for m in ct.restore(model).modules()] == classes
    close(model(x), moved)


def test_what_accelerate_keeps():
    model = torch.nn.ModuleDict({
        "own": Own(2, 2, 2), "named": Named(2, 2, 2), "lazy": torch.nn.LazyConvTranspose2d(2, 2),
        "conv": torch.nn.Conv2d(2, 2, 2), "ours": ct.ConvTranspose2d(2, 2, 2),
    })  # fmt: skip
    _, report = ct.accelerate(model)
    assert set(report.swapped) == {"named", "ours"} and set(report.kept) == {"own", "lazy"}
    assert "forward of its own" in str(report) and "first call" in str(report)
    x = torch.randn(1, 2, 3, 3)
    close(model["named"](x), F.conv_transpose2d(x, model["named"].weight, model["named"].bias))
    close(pickle.loads(pickle.dumps(model["named"]))(x), model["named"](x))
    close(copy.deepcopy(model["named"])(x), model["named"](x))
    assert type(ct.restore(model)["named"]) is Named
    with pytest.raises(TypeError, match="model: got list, wanted"):
        ct.accelerate([])


def test_importing_convt_imports_no_torch():
    code, _, errors = child("import sys, convt; assert 'torch' not in sys.modules; convt.torch; assert 'torch' in sys.modules")
    assert code == 0, errors


def test_without_torch():
    code, _, errors = child("import sys; sys.modules['torch'] = None; import convt; convt.torch")
    assert code == 1 and 'ImportError: convt.torch needs PyTorch: pip install "convt[torch]"' in errors


@pytest.mark.parametrize("name", ct.__all__)
def test_examples(name):
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(ct, name), name, globs={})
    assert name == "Report" or test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_whole_models_are_measured(capsys, tmp_path):
    from bench import models

    assert models.main(["--models", "dcgan", "--budget", "0.1", "--json", str(tmp_path / "f.json")]) == 0
    (row,) = json.loads((tmp_path / "f.json").read_text())["rows"]
    assert row["difference"] < 1e-5 and row["before"] > 0 and row["after"] > 0 and row["share"] > 0
    assert "dcgan" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        models.main(["--models", "nothing"])


WORKER = """
import torch, convt.torch as ct

class Data(torch.utils.data.Dataset):
    op = ct.ConvTranspose2d(4, 4, 3)
    def __len__(self):
        return 4
    def __getitem__(self, i):
        with torch.no_grad():
            return self.op(torch.full((1, 4, 50, 50), float(i)))

data = Data()
wanted = [data[i] for i in range(4)]
got = list(torch.utils.data.DataLoader(data, num_workers=2, batch_size=None, multiprocessing_context="fork"))
for a, b in zip(got, wanted, strict=True):
    assert torch.allclose(a, b, atol=1e-5)
"""


def test_data_loader_workers():
    code, _, errors = child(WORKER, timeout=120)
    assert code == 0, errors[-2000:]


# ---------------------------------------------------------------- batch norm and activations in inference


def chain(rank, activation, norm=True, groups=1, bias=True, dtype=torch.float32):
    conv = MODULES[rank][1](4, 6, 4, 2, 1, groups=groups, bias=bias)
    norms = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}
    model = torch.nn.Sequential(
        conv, *([norms[rank](6)] if norm else []), *([activation] if activation else []), torch.nn.Identity()
    )
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.2, 1.5)
    torch.nn.init.normal_(conv.weight)
    return model.to(dtype).eval()


@each_rank
@pytest.mark.parametrize(
    "activation",
    [None, torch.nn.ReLU(inplace=True), torch.nn.LeakyReLU(0.1), torch.nn.ReLU6(), torch.nn.Tanh(), torch.nn.Sigmoid(),
     torch.nn.GELU(), torch.nn.GELU("tanh"), torch.nn.SiLU(), torch.nn.Softplus()],
    ids=str,
)  # fmt: skip
def test_sequentials_compute_together(rank, activation):
    kinds = [
        (True, 1, True, torch.float32), (False, 2, True, torch.float64), (True, 2, False, torch.float64),
        (True, 1, True, torch.bfloat16),
    ]  # fmt: skip
    for norm, groups, bias, dtype in kinds:
        model, x = chain(rank, activation, norm, groups, bias, dtype), torch.randn(2, 4, *[5] * rank, dtype=dtype)
        with torch.no_grad():
            wanted, plain = copy.deepcopy(model).double()(x.double()).to(dtype), copy.deepcopy(model)(x)
            _, report = ct.accelerate(model)
            together = [type(m).__name__ for m in list(model)[1:] if not isinstance(m, (torch.nn.Identity, torch.nn.Softplus))]
            if str(activation) == "GELU(approximate='tanh')":
                together.remove("GELU")
            assert report.fused == ({"0": tuple(together)} if together else {})
            for _ in range(3):
                close(model(x), wanted)
        assert model(x).requires_grad
        close(model(x), wanted)
        assert type(ct.restore(model)) is torch.nn.Sequential
        close(model(x), plain)  # (torch rounds after each module, and so may be far from the sum)


def test_what_is_computed_together_follows_every_change():
    model, x = chain(2, torch.nn.ReLU()), torch.randn(2, 4, 5, 5)
    ct.accelerate(model)
    plain = copy.deepcopy(model)
    seen = []

    def changes():
        yield "nothing"
        for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
            model.state_dict()[name].mul_(1.5)
            yield name
            model.state_dict()[name].numpy()[...] *= 1.1
            yield f"{name} by NumPy"
        model[1].eps = 0.1
        yield "eps"
        model[2] = torch.nn.LeakyReLU(0.5)
        yield "another activation"
        model[2].negative_slope = 0.25
        yield "another slope"
        hook = model[0].register_forward_hook(lambda *a: seen.append(a[2].clone()))
        yield "a hook"
        hook.remove()
        model[2].register_forward_hook(lambda m, i, o: o + 1)
        yield "a hook that changes the result"
        model[1] = torch.nn.Identity()
        yield "no norm"
        del model[1]
        yield "fewer modules"
        model.train()
        yield "training"

    with torch.no_grad():
        for what in changes():
            plain = ct.restore(copy.deepcopy(model))
            for _ in range(3):
                close(model(x), plain(x))
            assert what
    assert len(seen) >= 3 and float(seen[0].min()) < 0


def test_sequentials_elsewhere():
    model, x = chain(2, torch.nn.ReLU()), torch.randn(2, 4, 5, 5)
    wanted = model(x)
    ct.accelerate(model)
    with torch.inference_mode():
        for _ in range(3):
            close(model(x), wanted)
    with torch.no_grad():
        close(torch.vmap(model)(x[:, None])[:, 0], wanted)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for _ in range(3):
            close(compiled(x), wanted)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            close(copied(x), wanted)
        with pytest.raises(ValueError, match="expected 4D"):
            model(x[0])


# ---------------------------------------------------------------- modules with a forward of their own


class _Block(torch.nn.Module):
    """What decoders are made of: a transposed convolution, a batch norm and an activation in a forward."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.act = (
            torch.nn.ConvTranspose2d(6, 4, 4, 2, 1, bias=False),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
        )
        self.last, self.scale = torch.nn.ConvTranspose2d(4, 3, 2, 2), 2.0
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x, skip):
        y = self.act(self.norm(self.up(x)))
        return torch.tanh(self.last(y)) * self.scale + skip


def _blocks(cls=_Block):
    torch.manual_seed(0)
    model, plain = cls().eval(), cls().eval()
    plain.load_state_dict(model.state_dict())
    model, report = convt.torch.accelerate(model)
    return model, plain, report


def _counted(monkeypatch):
    """Names of the activations of the calls that are computed together."""
    calls = []
    from convt.torch import _fuse

    original = _fuse.fused
    monkeypatch.setattr(_fuse, "fused", lambda *arguments: (calls.append(arguments[-1]), original(*arguments))[1])
    return calls


def test_forwards_are_traced(monkeypatch):
    model, plain, report = _blocks()
    calls = _counted(monkeypatch)
    assert report.fused == {"up": ("BatchNorm2d", "ReLU"), "last": ("tanh",)}
    assert isinstance(model, _Block) and model.state_dict().keys() == plain.state_dict().keys()
    x, skip = torch.randn(2, 6, 5, 4), torch.ones(1)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model(x, skip), plain(x, skip))
        assert calls == ["relu", "tanh"] * 3
        for change in (
            lambda m: setattr(m, "scale", 3.0),
            lambda m: setattr(m, "act", torch.nn.LeakyReLU(0.3)),
            lambda m: setattr(m, "act", torch.nn.ELU()),
            lambda m: m.norm.running_mean.add_(1),
            lambda m: m.up.weight.mul_(2),
            lambda m: setattr(m, "norm", torch.nn.Identity()),
        ):
            change(model), change(plain)
            torch.testing.assert_close(model(x, skip), plain(x, skip))
    torch.testing.assert_close(model(x, skip), plain(x, skip))  # with gradients
    convt.torch.restore(model)
    assert type(model) is _Block


def test_modules_that_change_all_the_time_are_left_alone():
    from convt.torch import _traced

    model, plain, _ = _blocks()
    x, skip = torch.randn(1, 6, 5, 4), torch.ones(1)
    with torch.no_grad():
        for n in range(2 * _traced._TRACES):
            model.scale = plain.scale = float(n)
            torch.testing.assert_close(model(x, skip), plain(x, skip))
    assert _traced._graphs[model].traces == _traced._TRACES


def test_traced_forwards_see_training_and_hooks(monkeypatch):
    model, plain, _ = _blocks()
    calls = _counted(monkeypatch)
    x, skip, seen = torch.randn(2, 6, 5, 4), torch.ones(1), []
    with torch.no_grad():
        model(x, skip)
        calls.clear()
        model.norm.register_forward_hook(lambda *_: seen.append(1))
        torch.testing.assert_close(model(x, skip), plain(x, skip))
        assert seen == [1] and calls == ["tanh"]
        for m in (model, plain):
            m.norm.train()
        torch.testing.assert_close(model(x, skip), plain(x, skip))
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)
        for m in (model, plain):
            m.train()
        calls.clear()
        torch.testing.assert_close(model(x, skip), plain(x, skip))
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)
        assert calls == []


def test_traced_forwards_are_copied_and_pickled():
    model, plain, _ = _blocks()
    x, skip = torch.randn(1, 6, 5, 4), torch.ones(1)
    with torch.no_grad():
        want = model(x, skip)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(other(x, skip), want)
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x, skip), want)
        torch.testing.assert_close(torch.jit.trace(convt.torch.restore(model), (x, skip))(x, skip), plain(x, skip))


class _Twice(_Block):
    def forward(self, x, skip):
        y = self.up(x)
        return self.act(self.norm(y)).sum() + y.sum() + skip


class _Branches(_Block):
    def forward(self, x, skip):
        y = self.up(x)
        return self.act(self.norm(y)) if x.sum() > 0 else y + skip


class _Counts(_Block):
    calls = 0

    def forward(self, x, skip):
        self.calls += 1
        return self.act(self.norm(self.up(x))) + skip + self.calls


class _Looks(_Block):
    """Tracing takes the wrong way: what stands for a tensor is none."""

    def forward(self, x, skip):
        y = self.act(self.norm(self.up(x)))
        return y + skip if isinstance(x, torch.Tensor) else y - skip


class _Remembers(_Block):
    def __init__(self):
        super().__init__()
        self.factors = [1.0]

    def forward(self, x, skip):
        return self.act(self.norm(self.up(x))) * self.factors[0] + skip


class _Optional(_Block):
    def forward(self, x, skip=None):
        y = self.act(self.norm(self.up(x)))
        return y if skip is None else y + skip


@pytest.mark.parametrize("cls", [_Twice, _Branches, _Counts, _Looks, _Remembers, _Optional])
def test_forwards_that_a_graph_does_not_stand_for(cls):
    model, plain, _ = _blocks(cls)
    x, skip = torch.randn(2, 6, 5, 4), torch.ones(1)
    with torch.no_grad():
        for n in range(4):
            torch.testing.assert_close(model((-1) ** n * x, skip), plain((-1) ** n * x, skip))
            if cls is _Remembers:
                model.factors[0] = plain.factors[0] = n + 2.0
        if cls is _Optional:
            torch.testing.assert_close(model(x), plain(x))


# ---------------------------------------------------------------- precision


@pytest.fixture
def computed(monkeypatch):
    """The precisions that convt is called with."""
    seen, inner = [], _compute._compute

    def spy(input, weight, bias, attributes):
        seen.append(dict(zip(_compute._NAMES, _compute._values(attributes, False), strict=True))["precision"])
        return inner(input, weight, bias, attributes)

    monkeypatch.setattr(_compute, "_compute", spy)
    before = torch.get_float32_matmul_precision()
    yield seen
    torch.set_float32_matmul_precision(before)


WORDS = (None, "highest", "high", "medium")


@each_rank
@pytest.mark.parametrize("precision", WORDS)
def test_functions_pass_a_precision_on(precision, rank, computed):
    """One-shot, packed, with gradients: the bits are convt's own at this precision, and the gradients are torch's."""
    input, weight = torch.randn(2, 64, *[6] * rank), torch.randn(64, 32, *[3] * rank, requires_grad=True)
    want = convt.conv_transpose(
        input.numpy(), weight.detach().numpy(), strides=2, data_format="NCX", filter_format="IOX", precision=precision
    )
    got = FUNCTIONS[rank][0](input, weight, stride=2, precision=precision)
    with torch.no_grad():
        again = [FUNCTIONS[rank][0](input, weight, stride=2, precision=precision) for _ in range(3)]
    assert computed == [precision] * 4
    assert got.detach().numpy().tobytes() == want.tobytes()
    for each in again:
        np.testing.assert_allclose(each, want, atol=1e-2 * np.abs(want).max())
    (found,) = torch.autograd.grad(got.sum(), weight)
    (wanted,) = torch.autograd.grad(FUNCTIONS[rank][1](input, weight, stride=2).sum(), weight)
    assert torch.equal(found, wanted)


def test_the_precision_torch_is_set_to(computed):
    """Followed at each call of a function, and at the moment in which a module is made or a model accelerated."""
    input, weight = torch.randn(1, 2, 4), torch.randn(2, 2, 2)
    torch.set_float32_matmul_precision("high")
    module = ct.ConvTranspose1d(2, 2, 2, precision="torch")
    model, _ = ct.accelerate(torch.nn.ConvTranspose1d(2, 2, 2), precision="torch")
    compiled = torch.compile(lambda x: ct.conv_transpose1d(x, weight, precision="torch"), backend="aot_eager", fullgraph=True)
    for word in ("high", "medium", "highest"):
        torch.set_float32_matmul_precision(word)
        computed.clear()
        for function in (compiled, module, model, lambda x: ct.conv_transpose1d(x, weight, precision="torch")):
            function(input)
        assert computed == [word, "high", "high", word]


@pytest.mark.parametrize("precision", ["fast", "HIGH", "tf32"])
def test_what_is_no_precision(precision):
    input, weight = torch.randn(1, 2, 4), torch.randn(2, 2, 2)
    model = torch.nn.ConvTranspose1d(2, 2, 2)
    for call in (
        lambda: ct.conv_transpose1d(input, weight, precision=precision),
        lambda: ct.ConvTranspose1d(2, 2, 2, precision=precision),
        lambda: ct.accelerate(model, precision=precision),
    ):
        with pytest.raises(ValueError, match=f"precision: got '{precision}', wanted one of .*torch"):
            call()
    assert type(model) is torch.nn.ConvTranspose1d
    with pytest.raises(TypeError, match="positional"):
        ct.conv_transpose1d(input, weight, None, 1, 0, 0, 1, 1, "high")


def test_models_keep_their_precision(computed):
    """Copies, pickles and a second `accelerate` do; `restore` takes it away. It is no part of a state_dict."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(8, 8, 4, 2), Named(8, 8, 4, 2), torch.nn.utils.parametrizations.weight_norm(Named(8, 4, 2))
    )
    names = list(model.state_dict())
    input = torch.randn(1, 8, 5, 5)
    ct.accelerate(model)
    model(input)
    ct.accelerate(model, precision="medium")
    model(input)
    ct.accelerate(model)
    copy.deepcopy(model)(input)
    pickle.loads(pickle.dumps(torch.nn.Sequential(*model[:2])))(input)
    assert computed == [None] * 3 + ["medium"] * 8
    assert list(model.state_dict()) == names
    ct.restore(model)
    assert not any("_convt_precision" in vars(module) for module in model.modules())
    ct.accelerate(model)
    computed.clear()
    model(input)
    assert computed == [None] * 3


@pytest.mark.parametrize("precision", WORDS)
@torch.no_grad()
def test_what_is_computed_together_has_the_precision(precision, computed, monkeypatch):
    """A Sequential, and a traced forward, whose graph stands for it at every precision."""
    input = torch.randn(2, 64, 6, 6)
    chains = torch.nn.Sequential(torch.nn.ConvTranspose2d(64, 64, 4, 2), torch.nn.BatchNorm2d(64), torch.nn.ReLU()).eval()
    want = chains(input)
    ct.accelerate(chains, precision=precision)
    scale = {None: 1e-5, "highest": 1e-5, "high": 1e-3, "medium": 3e-2}[precision]
    assert float((chains(input) - want).abs().max()) <= scale * float(want.abs().max())
    assert computed == [precision]
    net = _Wide().eval()
    want = net(input)
    ct.accelerate(net, precision=precision)
    calls = _counted(monkeypatch)
    computed.clear()
    for _ in range(3):
        assert float((net(input) - want).abs().max()) <= scale * float(want.abs().max())
    assert set(computed) == {precision} and len(computed) == 4  # the first call runs the forward, too
    assert calls == ["relu"] * 3


class _Wide(torch.nn.Module):
    """A convolution with a batch norm of factors that are no powers of two."""

    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.ConvTranspose2d(64, 64, 4, 2), torch.nn.BatchNorm2d(64)
        torch.nn.init.uniform_(self.norm.weight, 0.3, 3)
        torch.nn.init.uniform_(self.norm.running_var, 0.3, 3)

    def forward(self, x):
        return torch.relu(self.norm(self.up(x)))


@pytest.mark.parametrize("precision", WORDS[1:])
def test_opcheck_with_a_precision(precision):
    arguments = torch.randn(1, 4, 5), torch.randn(4, 3, 3), None, [2], [0], [0], 1, [1], precision
    torch.library.opcheck(OP, arguments)
    got = torch.func.vmap(lambda x: OP(x, *arguments[1:]))(torch.randn(3, 1, 4, 5))
    assert got.shape == (3, 1, 3, 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert OP(*arguments).dtype == torch.bfloat16
