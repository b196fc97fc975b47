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
@pytest.mark.parametrize("layer", [Causal, Trimmed])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_causal_decoders(layer, lengths, dtype, accelerated):
    model, x = decoder(layer, dtype), torch.randn(2, 4, 12).to(dtype)
    want = model(x)
    if accelerated:
        ct.accelerate(model)
    before = [dict(vars(module)) for module in model.modules()]
    with ct.streaming(model) as session:
        assert len(session.streamed) == 3 and not session.kept
        close(torch.cat([model(chunk) for chunk in chunks_of(x, lengths)], 2), want)
    assert [dict(vars(module)) for module in model.modules()] == before
    close(model(x), want)


@torch.no_grad()
@pytest.mark.parametrize("lengths", LENGTHS)
def test_trimmed_on_the_right_by_the_session(lengths):
    model, x = decoder(nn.ConvTranspose1d), torch.randn(2, 4, 12)
    reference = decoder(Trimmed)
    reference.load_state_dict({key.replace(".", ".conv.", 1) if key[0] != "0" else key: value
                               for key, value in model.state_dict().items()})  # fmt: skip
    want = reference(x)
    with ct.streaming(model, "right"):
        close(torch.cat([model(chunk) for chunk in chunks_of(x, lengths)], 2), want)


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
    model, x = nn.Sequential(nn.ConvTranspose1d(2, 1, 4, 2), nn.ConvTranspose2d(1, 1, 1)), torch.randn(1, 2, 3)
    with pytest.raises(TypeError, match="model: got int"):
        ct.streaming(3)
    with pytest.raises(ValueError, match="no ConvTranspose1d to stream.*several spatial axes"):
        ct.streaming(model[1])
    with pytest.raises(ValueError, match="trim: got 'left'"):
        ct.streaming(model, "left")
    session = ct.streaming(model)
    assert session.streamed == ("0",) and session.kept == {"1": "ConvTranspose2d has several spatial axes"}
    with session:
        with pytest.raises(ValueError, match="in another session"), ct.streaming(model):
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
