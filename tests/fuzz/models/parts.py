"""The names that the text of a case uses beside torch's: modules, hooks, parametrizations, functions that change a model."""

import contextlib
import copy
import functools
import io
import pickle
import types
import warnings

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


def tensor(seed, *shape, dtype=torch.float32, layout="contiguous", values="normal", grad=False):
    """Return a random tensor. ``values`` is normal, zeros, integers, large, denormal, or a number that one element gets."""
    found = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if values == "zeros":
        found = torch.zeros_like(found)
    elif values == "integers":
        found = (found * 3).round()
    elif values in ("large", "denormal"):
        found = found * {"large": 1e30, "denormal": 1e-39}[values]
    elif values != "normal" and found.numel():
        found.view(-1)[found.numel() // 2] = float(values)
    return laid(found.to(dtype), layout).requires_grad_(grad)


def laid(t, layout):
    """Return a tensor of equal values in another memory layout. A tensor for which the layout makes no sense is contiguous."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim())
    if layout == "channels_last" and last is not None:
        return t.contiguous(memory_format=last)
    if layout == "transposed" and t.dim() > 1:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "strided" and t.dim():
        return torch.stack([t, t + 1], -1)[..., 0]
    if layout == "expanded" and t.dim() and len(t):
        return t[:1].expand_as(t)
    if layout == "offset":
        return torch.cat([t.new_zeros(1), t.reshape(-1)])[1:].view(t.shape)
    if layout == "negative":
        return torch._neg_view(-t)
    return t


# ---------------------------------------------------------------- modules


class Residual(nn.Module):
    """The sum of the input and of a module's output, if their shapes agree; else the output."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        y = self.body(x)
        return x + y if y.shape == x.shape else y


class Listed(nn.Module):
    """Modules in a ModuleList, called in order."""

    def __init__(self, *bodies):
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x):
        for body in self.bodies:
            x = body(x)
        return x


class Computed(nn.Module):
    """A module whose weights are computed in its forward, which calls the function."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x):
        function = getattr(nn.functional, f"conv_transpose{self.conv.weight.dim() - 2}d")
        return function(x, self.conv.weight * 2, None, self.conv.stride) + self.conv(x).mean()


class Chain(nn.Sequential):
    """A Sequential of another name."""


class Doubling(nn.Sequential):
    """A Sequential with its own forward."""

    def forward(self, x):
        return super().forward(x) * 2


class Kin2d(nn.ConvTranspose2d):
    """A subclass that inherits everything."""


class Own2d(nn.ConvTranspose2d):
    """A subclass with its own forward."""

    def forward(self, x, output_size=None):
        return super().forward(x, output_size) + 1


class Squeezing1d(nn.ConvTranspose1d):
    """A decoder that only adds squeezes to the forward, as SpeechBrain's does."""

    def forward(self, x):
        x = super().forward(x if x.dim() == 3 else torch.unsqueeze(x, 1))
        return torch.squeeze(x, dim=1) if torch.squeeze(x).dim() == 1 else torch.squeeze(x)


class Filtering(nn.Module):
    """A filter for all channels, called by its function, as in upsampling without aliases."""

    def __init__(self, channels, rank, **words):
        super().__init__()
        self.register_buffer("filter", torch.linspace(-1, 1, 3**rank).reshape(1, 1, *[3] * rank))
        self.name, self.channels, self.words = f"conv_transpose{rank}d", channels, words

    def forward(self, x):
        weight = self.filter.expand(self.channels, *self.filter.shape[1:])
        return getattr(nn.functional, self.name)(x, weight, groups=self.channels, **self.words)


class Weighted(nn.Module):
    """A transposed convolution by a parameter, called by torch's own function with positional arguments."""

    def __init__(self, ci, co, rank, *arguments):
        super().__init__()
        draws = torch.Generator().manual_seed(ci)
        self.weight = nn.Parameter(torch.randn(ci, co, *[2] * rank, generator=draws))
        self.name, self.arguments = f"conv_transpose{rank}d", arguments

    def forward(self, x):
        return getattr(torch, self.name)(x, self.weight, None, *self.arguments)


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, w):
        return w * 0.5

    def right_inverse(self, w):
        return w * 2


def parametrized(module, name="weight"):
    parametrize.register_parametrization(module, name, Halved())
    return module


def old_weight_norm(module):
    return torch.nn.utils.weight_norm(module)


# ---------------------------------------------------------------- hooks


def double(module, *values):
    """Return twice the last of a hook's values: those of a forward pre-hook, forward hook, or backward hook."""
    last = values[-1]
    return tuple(None if each is None else each * 2 for each in last) if isinstance(last, tuple) else last * 2


def flip(module, *values):
    """Change the weights of a hook's module just before a call. Autocast misses such changes, so it is not tried."""
    if torch.is_autocast_enabled("cpu"):
        return
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.neg_()


def hooked(module, kind, hook):
    """Return the module with a hook: ``kind`` is forward, forward_pre, full_backward or full_backward_pre."""
    getattr(module, f"register_{kind}_hook")(hook)
    return module


# ---------------------------------------------------------------- parts of a model


def conv(model, n):
    """Return the transposed convolution with this number."""
    return _of(model, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), n)


def norm(model, n):
    return _of(model, nn.modules.batchnorm._NormBase, n)


def part(model, n):
    return _of(model, nn.Module, n)


def sequence(model, n):
    return _of(model, nn.Sequential, n)


def _of(model, classes, n):
    found = [module for module in model.modules() if isinstance(module, classes)]
    return found[n % len(found)] if found else nn.Module()


# ---------------------------------------------------------------- changes


def randomize(model):
    """Fill the weights and statistics of norms with other numbers than 0 and 1."""
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                for name in ("weight", "bias", "running_mean", "running_var"):
                    t = getattr(module, name)
                    if t is not None and not nn.parameter.is_lazy(t):
                        t.copy_(torch.rand(t.shape, generator=draws) + (0.5 if name == "running_var" else -0.4))


def as_integers(model):
    """Round all weights to small integers, for which sums are exact."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 4).round())


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def cloned_state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def by_numpy(t, factor):
    """Multiply a tensor by a factor through NumPy, which changes no version counter."""
    array = t.detach().numpy()
    array *= np.asarray(factor, array.dtype)


def replace(model, n, name, layout="contiguous", seed=0, dtype=None):
    """Replace a parameter of a transposed convolution by another one of the same shape."""
    module = conv(model, n)
    old = getattr(module, name)
    setattr(module, name, nn.Parameter(tensor(seed, *old.shape, dtype=dtype or old.dtype, layout=layout)))


def descend(model, x, *, fused=False, rate=0.05):
    """Take an optimizer's step and return the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, fused=fused)
    optimizer.zero_grad()
    loss = model(x).double().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def gradients(model, x, *more):
    """Return the output of a module, after a backward pass through the mean of its squares, and the gradient of the input."""
    model.zero_grad()
    y = model(x, *more)
    y.double().square().mean().backward()
    return y, x.grad


def as_vector(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def parameters_of(model):
    return {name: value.detach() for name, value in model.named_parameters()}


def _initialized(transform):
    """Return a transform that refuses modules without weights, because torch crashes while it makes them in a transform."""

    @functools.wraps(transform)
    def transformed(model, *arguments):
        if any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in model.modules()):
            raise RuntimeError("the model has no weights")
        return transform(model, *arguments)

    return transformed


@_initialized
def func_grad(model, x):
    """Return the gradients of `torch.func.grad`."""
    return torch.func.grad(lambda p: functional_call(model, p, (x,)).double().square().sum())(parameters_of(model))


@_initialized
def func_vmap(model, x, count=2):
    """Return the result of a model that is mapped over inputs."""
    return torch.vmap(model, randomness="same")(torch.stack([x * n for n in range(1, count + 1)]))


@_initialized
def func_ensemble(model, x):
    """Return the results of two models with other weights, mapped over the weights."""
    weights = {name: torch.stack([value, value * 2]) for name, value in parameters_of(model).items()}
    return torch.vmap(lambda p: functional_call(model, p, (x,)), randomness="same")(weights)


@_initialized
def func_jvp(model, x):
    return torch.func.jvp(model, (x,), (torch.ones_like(x),))


@_initialized
def func_vjp(model, x):
    y, pull = torch.func.vjp(model, x)
    return y, pull(torch.ones_like(y))


@_initialized
def func_call(model, x, factor=2):
    """Call the model with other weights than its own."""
    return functional_call(model, {name: value * factor for name, value in parameters_of(model).items()}, (x,))


@_initialized
def forward_ad(model, x):
    from torch.autograd import forward_ad as fw

    with fw.dual_level():
        return tuple(fw.unpack_dual(model(fw.make_dual(x, torch.ones_like(x)))))


def checkpointed(model, x):
    return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)


def traced(model, x):
    """Return a traced model. In a mode of `tolerance.py`, in which torch's tracer crashes, return the model itself."""
    return model if torch._C._len_torch_dispatch_stack() else torch.jit.trace(model, x, check_trace=False)


def exported(model, x):
    return torch.export.export(model, (x,)).module()(x)


def compiled(model, x, backend="eager", dynamic=None):
    torch._dynamo.reset()
    return torch.compile(model, backend=backend, dynamic=dynamic)(x)


def symbolic(model, x):
    with warnings.catch_warnings():  # torch.fx enters modules of other packages than torch.nn, and then warns of their hooks
        warnings.simplefilter("ignore")
        return torch.fx.symbolic_trace(model)(x)


def profiled(model, x):
    with torch.profiler.profile():
        return model(x)


def with_global_hook(model, x):
    handle = nn.modules.module.register_module_forward_hook(double)
    try:
        return model(x)
    finally:
        handle.remove()


def own_forward(module):
    """Replace the forward of an instance."""
    module.forward = types.MethodType(lambda self, *a, **k: type(self).forward(self, *a, **k) * 3, module)
    return module


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


def thrice(model, x):
    """Return the results of three calls without gradients. The first packs the weights, and the third repeats a known call."""
    with torch.no_grad():
        return [model(x), model(x), model(x)]


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        return function(*arguments, **(keywords or {}))


NAMES = {
    **{name: value for name, value in globals().items() if not name.startswith("_")}, "copy": copy, "torch": torch, "nn": nn,
    "np": np, "weight_norm": weight_norm, "spectral_norm": spectral_norm, "parametrize": parametrize,
}  # fmt: skip
