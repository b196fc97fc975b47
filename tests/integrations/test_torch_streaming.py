"""Tests of convt.torch.streaming: models in chunks against torch's model on the whole, sessions, state, and errors."""

import copy
import pickle
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import close, reset_torch  # noqa: E402, F401

import convt.torch as ct  # noqa: E402

nn = torch.nn


class Causal(nn.ConvTranspose1d):
    """A subclass that cuts the tail off, as VoxCPM's causal decoder does."""

    def forward(self, x, output_size=None):
        return super().forward(x, output_size)[..., : -(self.kernel_size[0] - self.stride[0])]


class Trimmed(nn.Module):
    """A module around a ConvTranspose1d that cuts the tail off, as Encodec's does."""

    def __init__(self, *args, **keywords):
        super().__init__()
        self.conv = nn.ConvTranspose1d(*args, **keywords)

    def forward(self, x):
        y = self.conv(x)
        return y[..., : y.shape[-1] - (self.conv.kernel_size[0] - self.conv.stride[0])]


def decoder(layer, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(4, 8, 1), layer(8, 6, 8, stride=4), nn.ELU(), layer(6, 4, 4, stride=2, groups=2), nn.ReLU(),
        layer(4, 2, 5, stride=3), nn.Tanh(),
    ).to(dtype).eval()  # fmt: skip


def chunks_of(x, lengths):
    at = 0
    for length in lengths:
        yield x[..., at : at + length]
        at += length
    assert at == x.shape[-1]


LENGTHS = [(1,) * 12, (5, 1, 6), (12,), (3, 4, 5)]


@torch.no_grad()
@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layer, trim", [(Causal, "model"), (Trimmed, "model"), (nn.ConvTranspose1d, "right")])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_causal_decoders(layer, trim, lengths, dtype, accelerated):
    """Check decoders whose layers cut their tails off, and one whose tails the session cuts off."""
    model, x = decoder(layer, dtype), torch.randn(2, 4, 12).to(dtype)
    want, whole = decoder(Causal, dtype)(x), model(x)  # all decoders have the same weights
    if accelerated:
        ct.accelerate(model)
    before = [dict(vars(module)) for module in model.modules()]
    with ct.streaming(model, trim) as session:
        assert len(session.streamed) == 3 and not session.kept
        close(torch.cat([model(chunk) for chunk in chunks_of(x, lengths)], 2), want)
    assert [dict(vars(module)) for module in model.modules()] == before
    close(model(x), whole)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(20))
def test_padded_models_finish(seed):
    rng = np.random.default_rng(seed)
    layers, channels = [], 3
    for _ in range(3):
        k, s, d = (int(rng.integers(1, high)) for high in (8, 5, 3))
        p, more = int(rng.integers(0, (k - 1) * d // 2 + 1)), int(rng.integers(0, max(s, d)))
        layers += [nn.ConvTranspose1d(channels, 2, k, s, p, more, dilation=d), nn.Tanh()]
        channels = 2
    model, x = nn.Sequential(*layers), torch.randn(1, 3, 14)
    want, made = model(x), []
    with ct.streaming(model, trim=None) as session:
        for _ in range(2):
            made = [model(chunk) for chunk in x[..., :-1].split(int(rng.integers(1, 6)), 2)]
            with session.finish():
                made.append(model(x[..., -1:]))
            close(torch.cat(made, 2), want)


@torch.no_grad()
def test_one_model_serves_two_signals_in_turn():
    model, signals = decoder(Causal), torch.randn(2, 1, 4, 12)
    want, states, made = [model(x) for x in signals], [{}, {}], [[], []]
    with ct.streaming(model) as session:
        for chunks in zip(*(x.split(3, 2) for x in signals), strict=True):
            for n, chunk in enumerate(chunks):
                session.state = states[n]
                made[n].append(model(chunk))
                states[n] = pickle.loads(pickle.dumps(session.state))
    for n in range(2):
        close(torch.cat(made[n], 2), want[n])
    with ct.streaming(model) as session:  # another session begins anew
        close(model(signals[0]), want[0])
        session.reset()
        close(model(signals[1][0]), want[1][0])  # without a batch


@torch.no_grad()
def test_weights_that_are_computed():
    for norm in (torch.nn.utils.parametrizations.weight_norm, torch.nn.utils.weight_norm):
        model, x = nn.Sequential(norm(Causal(4, 3, 4, 2)), norm(nn.ConvTranspose1d(3, 2, 2, 2))), torch.randn(1, 4, 9)
        want = model(x)
        with ct.streaming(model):
            close(torch.cat([model(chunk) for chunk in x.split(2, 2)], 2), want)


def test_sessions_and_their_errors():
    model, x = nn.Sequential(nn.ConvTranspose1d(2, 1, 4, 2), nn.ModuleList([nn.ConvTranspose2d(1, 1, 1)])), torch.randn(1, 2, 3)
    with pytest.raises(TypeError, match="model: got int"):
        ct.streaming(3)
    with pytest.raises(ValueError, match="no ConvTranspose1d to stream"):
        ct.streaming(model[1][0])
    with pytest.raises(ValueError, match="0: got a compiled module, wanted one whose functions can be checked"):
        ct.streaming(nn.Sequential(torch.jit.script(nn.Conv1d(2, 2, 3)), model[0]))
    for wrong in ("Conv1d", [3], nn.Conv1d(1, 1, 1)):
        with pytest.raises(TypeError, match="stateful: got .*wanted a class"):
            ct.streaming(model, stateful=wrong)
    with pytest.raises(ValueError, match="trim: got 'left'"):
        ct.streaming(model, "left")
    session = ct.streaming(model, stateful=nn.ConvTranspose2d)
    assert session.streamed == ("0",) and session.kept == {"1.0": "ConvTranspose2d is stateful"}
    with session:
        with pytest.raises(ValueError, match="in another session"), ct.streaming(model[0]):
            pass
        with pytest.raises(ValueError, match=r"0: got a call that records gradients"):
            model[0](x)
        with torch.no_grad():
            model[0](x)
            with pytest.raises(ValueError, match=r"input of 0: got batch 2 \(shape \(2, 2, 3\)\), wanted 1"):
                model[0](x.expand(2, 2, 3))
            with pytest.raises(ValueError, match="0: got Tensor of torch.float64"):
                model[0](x.double())
            with pytest.raises(ValueError, match="output_size: got"):
                model[0](x, output_size=[9])
        with pytest.raises(TypeError, match="copy of a model in a session"):
            copy.deepcopy(model)
        with pytest.raises(TypeError, match="pickle of a model in a session"):
            pickle.dumps(model)
        with pytest.raises(ValueError, match="state: got dict, wanted a dict with names among 0"):
            session.state = {"nothing": {}}
    assert "forward" not in vars(model[0]) and model[0](x).requires_grad
    for module, said in (nn.ConvTranspose1d(1, 1, 4, 2, 1), "padding 1"), (nn.ConvTranspose1d(1, 1, 1, 2), "a kernel shorter"):
        with torch.no_grad(), ct.streaming(module), pytest.raises(ValueError, match=re.escape(f"the module: got {said}")):
            module(torch.ones(1, 1, 3))


def chunks_against_whole(model, trim=None, **promises):
    """Return the largest difference between a model's output in chunks and on the whole."""
    model, x = model.eval(), torch.randn(1, 8, 12)
    want = copy.deepcopy(model)(x)
    with ct.streaming(model, trim, **promises) as session:
        made = [model(chunk) for chunk in x[..., :-1].split(3, 2)]
        with session.finish():
            made.append(model(x[..., -1:]))
    made = torch.cat(made, 2)
    return (made - want[..., : made.shape[-1]]).abs().max() if trim else (made - want).abs().max()


class Cached(nn.Conv1d):
    """A causal convolution that keeps its last inputs."""

    past = None

    def forward(self, x):
        past = x.new_zeros(*x.shape[:2], self.kernel_size[0] - 1) if self.past is None else self.past
        x = torch.cat([past, x], 2)
        self.past = x[..., x.shape[-1] - self.kernel_size[0] + 1 :]
        return super().forward(x)


class CachedTransposed(nn.ConvTranspose1d):
    """A causal transposed convolution that keeps its last inputs itself."""

    past = None

    def forward(self, x):
        n, x = x.shape[-1], x if self.past is None else torch.cat([self.past, x], 2)
        self.past = x[..., -self.kernel_size[0] :]
        stride = self.stride[0]
        return super().forward(x)[..., (x.shape[-1] - n) * stride : x.shape[-1] * stride]


class Generator(nn.Module):
    """A vocoder of HiFi-GAN's kind, with activations and sums as functions."""

    def __init__(self, kernel=1, layer=nn.Conv1d):
        super().__init__()
        torch.manual_seed(0)
        norm = nn.utils.parametrizations.weight_norm
        self.pre = layer(8, 8, kernel)
        self.ups = nn.ModuleList([norm(nn.ConvTranspose1d(8, 8, 4, 2, 1)) for _ in range(2)])
        self.blocks = nn.ModuleList([nn.Sequential(nn.PReLU(), nn.BatchNorm1d(8), layer(8, 8, kernel)) for _ in range(4)])

    def forward(self, x):
        x = self.pre(x)
        for n, up in enumerate(self.ups):
            x = up(nn.functional.leaky_relu(x, 0.1))
            x = (self.blocks[2 * n](x) + self.blocks[2 * n + 1](x)) / 2
        return torch.tanh(x)


@torch.no_grad()
def test_other_layers_are_refused_by_name_unless_they_are_promised():
    plain = nn.Sequential(nn.Conv1d(8, 16, 7, padding=3), nn.ConvTranspose1d(16, 4, 4, 2, 1))
    with pytest.raises(ValueError, match=r"keep no state: 0 \(Conv1d calls torch\.nn\.functional\.conv1d\); wanted modules"):
        chunks_against_whole(plain)
    with pytest.raises(ValueError, match=r"pre \(Conv1d calls torch\.\S+\.conv1d\), blocks\.0\.2 \(Conv1d.*blocks\.3\.2"):
        chunks_against_whole(Generator(3, lambda *sizes: nn.Conv1d(*sizes, padding=1)))
    deep = nn.Sequential(*[nn.Conv1d(8, 8, 3, padding=1) for _ in range(12)], nn.ConvTranspose1d(8, 8, 4, 2, 1))
    with pytest.raises(ValueError, match=r"0 \(Conv1d.*, 7 \(Conv1d calls torch\.nn\.functional\.conv1d\), and 4 more; wanted"):
        chunks_against_whole(deep)
    assert chunks_against_whole(Generator()) < 1e-6
    for accelerated in False, True:
        model = Generator(5, Cached)
        if accelerated:
            ct.accelerate(model, functional=True)
        assert chunks_against_whole(model, stateful=Cached) < 1e-6
    model = nn.Sequential(CachedTransposed(8, 4, 4, 2), nn.Sequential(nn.GELU(), nn.ConvTranspose1d(4, 2, 2, 2)))
    assert ct.streaming(model, "right", stateful=(CachedTransposed,)).kept == {"0": "CachedTransposed is stateful"}
    assert chunks_against_whole(model, "right", stateful=[CachedTransposed]) < 1e-6
    for other in (
        nn.Conv1d(8, 8, 1, stride=2), nn.Conv1d(8, 8, 1, padding=1), nn.AvgPool1d(3, 1, 1), nn.GroupNorm(2, 8), nn.Softmax(-1),
        nn.Upsample(scale_factor=2, mode="linear"), nn.LayerNorm(12), nn.ConstantPad1d(1, 0), nn.InstanceNorm1d(8),
        nn.LSTM(12, 12), nn.Linear(12, 12), nn.MultiheadAttention(12, 2), nn.Conv2d(1, 1, 3),
    ):  # fmt: skip
        class Around(nn.Module):
            def __init__(self, other):
                super().__init__()
                self.other = other

            def forward(self, x):
                arguments = (x, x, x) if isinstance(self.other, nn.MultiheadAttention) else (x,)
                result = self.other(*arguments)
                return result[0] if isinstance(result, tuple) else result

        model = nn.Sequential(Around(other), nn.ConvTranspose1d(8, 8, 2)).eval()
        with pytest.raises(ValueError, match=r"keep no state: 0\.other \("), ct.streaming(model, None):
            model(torch.randn(1, 8, 12))
    # A layer after a change of axes, which acts on channels, and a function that convt does not know.
    class Turned(nn.Module):
        def forward(self, x):
            return x.transpose(1, 2)

    model = nn.Sequential(Turned(), nn.Linear(8, 8), Turned(), nn.ConvTranspose1d(8, 8, 4, 2))
    assert chunks_against_whole(model, "right", framewise=(nn.Linear, Turned)) < 1e-6
    with pytest.raises(ValueError, match=r"keep no state: 0 \(Turned calls torch\.Tensor\.transpose\), 2 \(Turned"):
        chunks_against_whole(model, "right", framewise=nn.Linear)


@torch.no_grad()
@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.avg_pool1d(x, 3, 1, 1), lambda x: x[..., 1:] - x[..., :-1], lambda x: x.cumsum(-1),
        lambda x: x - x.mean(-1, keepdim=True), lambda x: x.flip(-1), lambda x: torch.softmax(x, -1), lambda x: x.mT.mT,
        lambda x: torch.ops.aten.avg_pool1d(x, [3], [1], [1]), lambda x: torch.from_numpy(np.cumsum(x.numpy(), -1)),
        lambda x: nn.functional.conv1d(x, torch.ones(8, 8, 3), padding=1), lambda x: x.roll(1, 2),
        lambda x: x.clone()[..., :-1], lambda x: nn.functional.interpolate(x, scale_factor=2),
        lambda x: x * torch.linspace(0, 1, x.shape[-1]),
        lambda x: nn.functional.batch_norm(x, None, None, training=True),
        lambda x: nn.functional.batch_norm(x, None, None, None, None, True),
        lambda x: nn.functional.conv1d(x, nn.Conv1d(8, 8, 1).weight, stride=2),
        lambda x: nn.functional.conv1d(x, nn.Conv1d(8, 8, 1).weight, None, 1, 1),
    ],
)  # fmt: skip
def test_functions_that_may_read_other_frames_are_refused(function):
    class Own(nn.Module):
        def forward(self, x):
            return function(x)

    with pytest.raises(ValueError, match=r"keep no state: 1 \(Own calls (torch|aten)\."):
        chunks_against_whole(nn.Sequential(nn.ConvTranspose1d(8, 8, 4, 2, 1), Own()))


def computing(compute):
    class Own(nn.ConvTranspose1d):
        def forward(self, x):
            return compute(self, x)

    return nn.Sequential(nn.Tanh(), Own(8, 4, 4, 2))


@torch.no_grad()
@pytest.mark.parametrize(
    "compute",
    [
        lambda m, x: torch.ops.aten.conv_transpose1d(x, m.weight, m.bias, m.stride),
        lambda m, x: torch.convolution(x, m.weight, m.bias, m.stride, (0,), (1,), True, (0,), 1),
        lambda m, x: nn.functional.conv_transpose2d(x[:, :, None], m.weight[:, :, None], m.bias, (1, 2))[:, :, 0],
        lambda m, x: nn.functional.fold(
            torch.einsum("ncl,cok->nokl", x, m.weight).flatten(1, 2), (1, 2 * x.shape[-1] + 2), (1, 4), stride=(1, 2)
        )[:, :, 0],
        lambda m, x: nn.functional.conv1d(
            nn.functional.pad(torch.stack([x, x * 0], -1).flatten(2), (3, 2)), m.weight.flip(2).transpose(0, 1), m.bias
        ),
        lambda m, x: 2 * x,
    ],
)  # fmt: skip
def test_layers_that_compute_by_other_functions_are_refused(compute):
    with pytest.raises(ValueError, match=r"keep no state: 1 \(Own calls|1: got 0 calls"):
        chunks_against_whole(computing(compute))
    model = computing(compute)
    with pytest.raises(ValueError, match="1: got 0 calls of conv_transpose1d in the forward of Own, wanted one"):
        chunks_against_whole(model, framewise=type(model[1]))


@torch.no_grad()
def test_each_layer_gets_one_chunk_and_its_tail_is_cut_off():
    layer = nn.ConvTranspose1d(8, 8, 4, 2)
    with pytest.raises(ValueError, match="0: got a second call in one call of the model"):
        chunks_against_whole(nn.Sequential(layer, layer), "right")
    with pytest.raises(ValueError, match="1: got 2 calls of conv_transpose1d|1: got a second call"):
        chunks_against_whole(computing(lambda m, x: nn.ConvTranspose1d.forward(m, x) + nn.ConvTranspose1d.forward(m, x)))
    for model in nn.Sequential(layer), nn.Sequential(layer, nn.ReLU(), nn.ConvTranspose1d(8, 4, 4, 2)):
        with pytest.raises(ValueError, match="0: got 2 outputs that may still change.*wanted trim='right'"):
            chunks_against_whole(model, "model")
        assert chunks_against_whole(model, "right") < 1e-6
    for cut in -1, -3:
        with pytest.raises(ValueError, match=r"keep no state: 1 \(Own calls torch\.Tensor\.__getitem__"):
            chunks_against_whole(computing(lambda m, x, cut=cut: nn.ConvTranspose1d.forward(m, x)[..., :cut]), "model")
    patched = nn.Sequential(nn.ConvTranspose1d(8, 8, 4, 2))
    patched[0].forward = lambda x: nn.ConvTranspose1d.forward(patched[0], x)[..., :-2]  # on the object, not on its class
    x = torch.randn(1, 8, 9)
    want = patched(x)
    with ct.streaming(patched):
        close(torch.cat([patched(chunk) for chunk in x.split(4, 2)], 2), want)
    assert not isinstance(vars(patched[0])["forward"], ct._forward.Forward)
