"""Tests of convt.torch.accelerate on whole models: results, classes and parameters stay as they are, and `restore` undoes it.
Results are compared with those of the original model."""

import copy
import pickle

import pytest
from cases import child
from torch_cases import FUNCTIONS, MODULES, OP, F, Named, Own, agree, close, each_rank, fused_activations, reset_torch, torch  # noqa: F401

import convt
import convt.torch as ct
from convt.torch import _compute


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
    assert set(report.swapped) == {"up", "twice", "normed", "old", "line"} and not report.kept
    assert type(model.up) is torch.nn.ConvTranspose2d and model.twice is model.up and list(model.state_dict()) == keys
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
    assert "defines its own forward" in str(report) and "first call" in str(report)
    x = torch.randn(1, 2, 3, 3)
    close(model["named"](x), F.conv_transpose2d(x, model["named"].weight, model["named"].bias))
    close(pickle.loads(pickle.dumps(model["named"]))(x), model["named"](x))
    close(copy.deepcopy(model["named"])(x), model["named"](x))
    assert type(ct.restore(model)["named"]) is Named
    with pytest.raises(TypeError, match="model: got list, wanted"):
        ct.accelerate([])


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
    [None, *fused_activations(), torch.nn.ReLU(inplace=True), torch.nn.ReLU6(), torch.nn.GELU("tanh"), torch.nn.PReLU(),
     torch.nn.PReLU(6), torch.nn.Softplus()],
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
            if str(activation) in ("GELU(approximate='tanh')", "PReLU(num_parameters=6)"):
                together.pop()
            assert report.fused == ({"0": tuple(together)} if together else {})
            for _ in range(3):
                close(model(x), wanted)
        assert model(x).requires_grad
        close(model(x), wanted)
        assert type(ct.restore(model)) is torch.nn.Sequential
        close(model(x), plain)  # torch rounds after each module, so its result may be far from the exact sum


FOLLOWED = [
    *(how.format(name) for name in ("0].weight", "0].bias", "1].weight", "1].bias", "1].running_mean", "1].running_var")
      for how in ("model[{}.data.mul_(1.5)", "by_numpy(model[{}, 1.1)")),
    "model[1].eps = 0.1", "model[2] = nn.LeakyReLU(0.5)", "model[2].negative_slope = 0.25",
    "hook = model[0].register_forward_hook(lambda *a: seen.append(a[2].clone()))", "hook.remove()",
    "model[2].register_forward_hook(lambda m, i, o: o + 1)", "model[1] = nn.Identity()", "del model[1]", "model.train()",
]  # fmt: skip


def test_what_is_computed_together_follows_every_change():
    calls = "with torch.no_grad(): y = [model(x), model(x), model(x), [each.min() for each in seen]]"
    made = "model = nn.Sequential(nn.ConvTranspose2d(4, 6, 4, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Identity()).eval()"
    begin = [made, "randomize(model)", "x, seen = tensor(0, 2, 4, 5, 5), []", "ct.accelerate(model)", calls]
    found = agree("\n".join([*begin, *(line for change in FOLLOWED for line in (change, calls))]))
    assert not any(each.error for each in found)


class _Convolution(torch.nn.Sequential):
    """A block as in MONAI: a convolution followed by a Sequential of norm, dropout and activation."""

    def __init__(self, ci, co):
        super().__init__()
        self.add_module("conv", torch.nn.ConvTranspose3d(ci, co, 3, 2, 1, 1))
        self.add_module("adn", torch.nn.Sequential())
        self.adn.add_module("N", torch.nn.BatchNorm3d(co))
        self.adn.add_module("D", torch.nn.Dropout(0.5))
        self.adn.add_module("A", torch.nn.LeakyReLU(0.2))


def test_nested_sequentials_compute_together(computed):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Sequential(_Convolution(4, 6), torch.nn.Identity()), torch.nn.Sequential(torch.nn.ConvTranspose3d(6, 3, 2)),
        torch.nn.Identity(), torch.nn.BatchNorm3d(3), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()),
    ).eval()  # fmt: skip
    model[0][0].adn.N.running_var.uniform_(0.5, 2)
    plain, x = copy.deepcopy(model), torch.randn(2, 4, 3, 4, 5)
    _, report = ct.accelerate(model)
    assert report.fused == {"0.0.conv": ("BatchNorm3d", "LeakyReLU"), "1.0": ("BatchNorm3d", "ReLU")}
    seen = []
    with torch.no_grad():
        for _ in range(3):
            computed.clear()
            close(model(x), plain(x))
            close(model[0](x), plain[0](x))
            assert len(computed) == 3
        # Later changes take effect: a hook of a Sequential, dropout in training, other modules.
        hook = model[0][0].adn.register_forward_hook(lambda *a: seen.append(a[1][0].shape))
        close(model(x), plain(x))
        assert seen == [(2, 6, 6, 8, 10)]
        hook.remove()
        for each in (model, plain):
            each[0][0].adn.D.train()
            torch.manual_seed(0)
            seen.append(each(x))
        close(*seen[1:])
        for each in (model, plain):
            each.eval()
            each[0][0].adn.A = torch.nn.Softplus()
            each[1].append(torch.nn.ReLU())
        close(model(x), plain(x))
    close(model.train()(x[:0]), plain.train()(x[:0]))


def test_forwards_of_models_are_never_run_or_replaced():

    class Block(torch.nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.up, self.norm, self.scale = torch.nn.ConvTranspose2d(4, 4, 2, 2), torch.nn.BatchNorm2d(4), 1.0

        def forward(self, x):
            Block.calls += 1
            return torch.relu(self.norm(self.up(x))) * self.scale

    torch.manual_seed(0)
    model = Block().eval()
    plain, x = copy.deepcopy(model), torch.randn(1, 4, 3, 3)
    _, report = ct.accelerate(model)
    assert Block.calls == 0 and "forward" not in vars(model) and report.swapped == ("up",) and not report.fused
    with torch.no_grad():
        close(model(x), plain(x))
        Block.forward = lambda self, x: self.up(x) - 1  # a user may change a class
        close(model(x), plain(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == plain(x).dtype == torch.bfloat16


# ---------------------------------------------------------------- precision


@pytest.fixture
def computed(monkeypatch):
    """Record the precisions that convt is called with."""
    seen, inner = [], _compute._compute

    def spy(input, weight, bias, attributes, reuse, tune):
        seen.append(_compute.keywords(attributes, False).precision)
        return inner(input, weight, bias, attributes, reuse, tune)

    monkeypatch.setattr(_compute, "_compute", spy)
    before = torch.get_float32_matmul_precision()
    yield seen
    torch.set_float32_matmul_precision(before)


WORDS = (None, "highest", "high", "medium")


@each_rank
@pytest.mark.parametrize("precision", WORDS)
def test_functions_pass_a_precision_on(precision, rank, computed):
    """Check first calls, packed weights and gradients: the bits are those of an operator of convt at this precision, and the
    gradients are torch's."""
    input, weight = torch.randn(2, 64, *[6] * rank), torch.randn(64, 32, *[3] * rank, requires_grad=True)
    keywords = {"strides": 2, "data_format": "NCX", "filter_format": "IOX", "precision": precision}
    want = convt.ConvTranspose(weight.detach().numpy(), **keywords)(input.numpy())
    got = FUNCTIONS[rank][0](input, weight, stride=2, precision=precision)
    with torch.no_grad():
        again = [FUNCTIONS[rank][0](input, weight, stride=2, precision=precision) for _ in range(3)]
    assert computed == [precision or "highest"] * 4
    for each in (got.detach(), *again):
        assert each.numpy().tobytes() == want.tobytes()
    (found,) = torch.autograd.grad(got.sum(), weight)
    (wanted,) = torch.autograd.grad(FUNCTIONS[rank][1](input, weight, stride=2).sum(), weight)
    assert torch.equal(found, wanted)


def test_the_precision_torch_is_set_to(computed):
    """Functions follow torch's precision at each call, and modules the precision at the time they are made or accelerated."""
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
    """Check that copies, pickles and a second `accelerate` keep the precision, that `restore` removes it, and that no
    state_dict holds it."""
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
    assert computed == ["highest"] * 3 + ["medium"] * 8
    assert list(model.state_dict()) == names
    ct.restore(model)
    ct.accelerate(model)
    computed.clear()
    model(input)
    assert computed == ["highest"] * 3


@pytest.mark.parametrize("precision", WORDS)
@torch.no_grad()
def test_what_is_computed_together_has_the_precision(precision, computed):
    input = torch.randn(2, 64, 6, 6)
    chains = torch.nn.Sequential(torch.nn.ConvTranspose2d(64, 64, 4, 2), torch.nn.BatchNorm2d(64), torch.nn.ReLU()).eval()
    want = chains(input)
    ct.accelerate(chains, precision=precision)
    scale = {None: 1e-5, "highest": 1e-5, "high": 1e-3, "medium": 3e-2}[precision]
    assert float((chains(input) - want).abs().max()) <= scale * float(want.abs().max())
    assert computed == [precision or "highest"]


@pytest.mark.parametrize("precision", WORDS[1:])
def test_opcheck_with_a_precision(precision):
    arguments = torch.randn(1, 4, 5), torch.randn(4, 3, 3), None, [2], [0], [0], 1, [1], precision
    torch.library.opcheck(OP, arguments)
    got = torch.func.vmap(lambda x: OP(x, *arguments[1:]))(torch.randn(3, 1, 4, 5))
    assert got.shape == (3, 1, 3, 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert OP(*arguments).dtype == torch.bfloat16
