"""Helpers of the tests of convt.torch: torch's functions and modules with their counterparts, models, random calls, and
comparisons."""

import copy

import pytest

torch = pytest.importorskip("torch")

from cases import PARAMETERS  # noqa: E402
from fuzz.models.parts import Filtering, Squeezing1d, Weighted  # noqa: E402, F401
from fuzz.models.perform import agree  # noqa: E402, F401

import convt.torch as ct  # noqa: E402
from convt._base.activation import ACTIVATIONS  # noqa: E402
from convt.torch import _weights  # noqa: E402

F, nn = torch.nn.functional, torch.nn
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


def close(got, wanted, dtype=None):
    dtype = dtype or wanted.dtype
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    scale = max(1.0, float(wanted.detach().double().abs().max()) if wanted.numel() else 1.0)
    assert (
        float((got.detach().double() - wanted.detach().double()).abs().max() if got.numel() else 0) <= TOLERANCE[dtype] * scale
    )


def fused_activations():
    """Return a module of each activation that convt fuses, with parameters that are not torch's defaults."""
    modules = []
    for name, row in ACTIVATIONS.items():
        if row.torch:
            modules.append(getattr(nn, row.torch[0])())
            for n, attribute in enumerate(row.torch[2:]):
                setattr(modules[-1], attribute, PARAMETERS[name][0][n])
    return modules


def outcome(program, *arguments):
    """Return a program's result, or the class and the message of its error."""
    try:
        return program(*arguments)
    except Exception as error:
        return type(error), str(error).split("\n")[0]


X = torch.randn(2, 3, 3, 2, generator=torch.Generator().manual_seed(0))  # of `layer` and `chain`


def layer(cls=nn.ConvTranspose2d):
    torch.manual_seed(1)
    return cls(3, 4, 3, 2, 1, 1)


def chain():
    return nn.Sequential(layer(), nn.BatchNorm2d(4), nn.Tanh()).eval()


def accelerated(model):
    return ct.accelerate(copy.deepcopy(model))[0]


class Own(nn.ConvTranspose2d):
    """A subclass with a forward of its own."""

    def forward(self, x):
        return super().forward(x) + 1


class Named(nn.ConvTranspose2d):
    """A subclass with torch's forward."""


class Functions(torch.overrides.TorchFunctionMode):
    """A mode that notes the names of torch's functions."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def random_case(rng, rank):
    """Return (shapes of input, weight and bias, keyword arguments) of a call that torch accepts."""
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
    keywords = {"stride": stride, "padding": padding, "output_padding": output_padding, "groups": groups, "dilation": dilation}
    return (*batch, ci, *sizes), (ci, co, *kernel), bias, keywords


@pytest.fixture(autouse=True)
def reset_torch():
    """Drop what earlier tests compiled or packed."""
    torch._dynamo.reset()
    _weights.forget()
