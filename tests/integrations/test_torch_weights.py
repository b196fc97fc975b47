"""Tests of the packed weights that convt.torch keeps: they are never older than the filter, and their memory is freed with it.
Results are compared with torch's after every kind of change."""

import copy

import numpy as np
import pytest
from torch_cases import agree, close, reset_torch, torch  # noqa: F401

import convt
import convt.torch as ct
from convt._plan import choose, keep, plans
from convt._plan import measure as _measure
from convt._run.checksum import checksum
from convt.torch import _compute, _weights

F = torch.nn.functional


def test_weights_are_packed_once_and_let_go():
    x, w = torch.randn(1, 8, 6, 6), torch.randn(8, 8, 4, 4)
    assert not _weights._filters
    ct.conv_transpose2d(x, w)
    (known,) = _weights._filters.values()
    assert not known.values.operators  # this may be the only call, so no operator is made
    ct.conv_transpose2d(x, w)
    (op,) = known.values.operators.values()
    ct.conv_transpose2d(x, w)
    assert list(known.values.operators.values()) == [op]
    assert np.shares_memory(op._plans.filter, w.numpy())
    del w
    assert not _weights._filters


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_plans_outlive_changes_of_the_weights_in_place(bias, monkeypatch):
    x, w, b = torch.randn(1, 8, 6, 6), torch.randn(8, 8, 4, 4), torch.randn(8) if bias else None
    convt.clear_caches()
    made = []
    bind = plans.Plans._bind
    monkeypatch.setattr(plans.Plans, "_bind", lambda self, *given: made.append(given) or bind(self, *given))
    for step in range(4):
        with torch.no_grad():
            for _ in range(3):
                close(ct.conv_transpose2d(x, w, b), F.conv_transpose2d(x, w, b))
            (known,) = _weights._filters.values()
            (op,) = known.values.operators.values()
            assert op._plans.weights.bytes > 0
            w.mul_(-1 - step)
            if bias:
                b.add_(1)
    assert len(made) == 2  # one plan for the one-shot call, one for the operator


def packings(monkeypatch):
    """Return a list that grows with each packing of weights for later calls."""
    found, pack = [], keep.PackedWeights.get_or_pack
    monkeypatch.setattr(keep.PackedWeights, "get_or_pack",
                        lambda self, form, make: pack(self, form, lambda: (found.append(form), make())[1]))  # fmt: skip
    return found


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("make", [
    lambda w: w * 1, lambda w: (w * 1).transpose(0, 1), lambda w: w[:1].expand(9, -1, -1, -1),
    lambda w: (w * 1).to(memory_format=torch.channels_last),
    lambda w: torch._weight_norm(w, torch.linalg.vector_norm(w, dim=(1, 2, 3), keepdim=True)),
])  # fmt: skip
def test_weights_of_new_tensors_are_packed_once(make, freeze, monkeypatch):
    w, x = torch.randn(9, 9, 3, 3), torch.randn(2, 9, 6, 5)
    packed, want = packings(monkeypatch), ct.conv_transpose2d(x, make(w), stride=2, freeze=freeze)
    first = len(packed)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(ct.conv_transpose2d(x, make(w), stride=2, freeze=freeze), want)
    assert len(packed) == first + 1
    close(want, F.conv_transpose2d(x, make(w), stride=2))
    w[0, 0, 0, 1] += 1
    for _ in range(3):
        close(ct.conv_transpose2d(x, make(w), stride=2), F.conv_transpose2d(x, make(w), stride=2))


def test_copies_of_new_tensors_are_bounded(monkeypatch):
    monkeypatch.setattr(_weights, "_COPIED_BYTES", 3 * 8 * 8 * 3 * 4)
    x, filters = torch.randn(1, 8, 9), torch.randn(10, 8, 8, 3)
    for w in (*filters, *filters, *filters):
        close(ct.conv_transpose1d(x, w * 1), F.conv_transpose1d(x, w))
    assert len(_weights._copies) == 3 and not _weights._filters
    large = torch.randn(8, 8, 31)
    for _ in range(3):
        ct.conv_transpose1d(x, large * 1)
    assert len(_weights._copies) == 3
    _weights.forget()
    assert not _weights._copies and not _weights._seen


def test_threads_are_torchs(monkeypatch):
    seen = []
    real = _weights.operator
    monkeypatch.setattr(_weights, "operator", lambda *a: (seen.append(convt.get_num_threads()), real(*a))[1])
    before, ours = torch.get_num_threads(), convt.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            ct.conv_transpose1d(torch.ones(1, 1, 3), torch.ones(1, 1, 2))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2] and convt.get_num_threads() == ours


CHANGES = {
    "one by .data": lambda t: t.data.view(-1).__setitem__(t.numel() // 3, 100.0),
    "the last by NumPy": lambda t: t.detach().numpy().reshape(-1).__setitem__(-1, -50.0),
    "two change places": lambda t: t.data.view(-1)[:2].copy_(t.data.view(-1)[:2].flip(0)),
    "all change their sign": lambda t: t.detach().numpy().__imul__(-1),
    "the halves change places": lambda t: t.data.view(2, -1).copy_(t.data.view(2, -1).flip(0)),
    "one by a thousandth": lambda t: t.detach().numpy().reshape(-1)[5:6].__imul__(1.001),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "gradients"])
def test_no_change_goes_unnoticed(change, mode):
    module, x = ct.ConvTranspose2d(64, 64, 4), torch.randn(1, 64, 6, 6)
    with {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "gradients": torch.enable_grad}[mode]():
        for _ in range(3):
            before = module(x).detach().clone()
        CHANGES[change](module.weight)
        got = [module(x).detach() for _ in range(3)]
        fresh = copy.deepcopy(module)
        wanted = [fresh(x).detach() for _ in range(3)]
    for each, want in zip(got, wanted, strict=True):
        close(each, F.conv_transpose2d(x, module.weight, module.bias))
        assert torch.equal(each, want)
    assert not torch.equal(got[-1], before)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("more, rate", [
    ([], 5.0), ([torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.ConvTranspose2d(16, 16, 3, 1, 1), torch.nn.Tanh()], 0.1),
], ids=["a layer", "a generator"])  # fmt: skip
def test_training_is_torchs(more, rate, fused):
    """Check optimizers, with ``fused=True`` also, which do not change the version counters of the weights."""
    losses = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.ConvTranspose2d(35, 16, 4, 2, 1, bias=False), *copy.deepcopy(more))
        if accelerated:
            ct.accelerate(model)
        x, target = torch.zeros(4, 35, 8, 8), torch.randn(4, 16, 16, 16)
        x[:, [5, 7, 11, 13]] = 1.0  # so that few weights change
        step = torch.optim.SGD(model.parameters(), rate, momentum=0.9, fused=fused)
        some = []
        for _ in range(20):
            step.zero_grad()
            F.mse_loss(model.train()(x), target).backward()
            step.step()
            with torch.no_grad():  # evaluation between training steps packs the weights
                some.append(F.mse_loss(model.eval()(x), target).item())
        losses.append(some)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frames_multiply_the_filter_as_it_is(dtype, channels_last, monkeypatch):
    """Check a call that reads large weights for one pixel: it neither compares nor packs them, and sees each change."""
    x, w, b = torch.randn(1, 512, 1, 1, dtype=dtype), torch.randn(512, 64, 4, 4, dtype=dtype), torch.randn(64, dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    monkeypatch.setattr(choose, "unpacked_pays", lambda problem, *_: problem.in_sizes == (1, 1))  # on any CPU
    _compute._unpacked.cache_clear()
    packed, tolerance = packings(monkeypatch), {"rtol": 2e-2, "atol": 0.5 if dtype == torch.bfloat16 else 1e-3}
    for step in range(3):
        calls = [ct.conv_transpose2d(x, w, b, stride=2, padding=1) for _ in range(3)]
        torch.testing.assert_close(calls[0], F.conv_transpose2d(x, w, b, 2, 1), **tolerance)
        assert torch.equal(calls[0], calls[1]) and torch.equal(calls[0], calls[2])
        w.data.view(-1)[step] += 9.0
    assert not _weights._filters and all(form.key[0] == "unpacked:vectors" for form in packed)
    ct.conv_transpose2d(torch.randn(1, 512, 30, 30, dtype=dtype), w, b)
    _compute._unpacked.cache_clear()
    assert _weights._filters  # many pixels repay packing


@pytest.mark.parametrize("tensor", ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"])
@pytest.mark.parametrize("place", [0, 7, -1])
def test_one_element_of_a_fused_norm_is_noticed(tensor, place):
    calls = "with torch.no_grad(): y = [model(x), model(x), model(x)]\n"
    made = "model = nn.Sequential(nn.ConvTranspose2d(4, 200, 3), nn.BatchNorm2d(200), nn.ReLU()).eval()\nct.accelerate(model)\n"
    change = f"model.state_dict()['{tensor}'].data.view(-1)[{place}] = 9.0\n"
    assert not any(each.error for each in agree(f"{made}x = tensor(0, 1, 4, 5, 5)\n{calls}{change}{calls}"))


# ---------------------------------------------------------------- the checksum


@pytest.mark.parametrize("size", [1, 7, 95, 96, 97, 1000, 65535, 65536, 65537, 300001])
def test_checksums_see_every_byte(size):
    rng = np.random.default_rng(size)
    values = rng.integers(0, 256, size, np.uint8)
    want = checksum(values, 1)
    assert want == checksum(values.copy(), 1) == checksum(values, 2)  # for any number of threads
    places = {0, size // 2, size - 1, *rng.integers(0, size, 50).tolist()}
    for place in places:
        for bit in (1, 128):
            values[place] ^= bit
            assert checksum(values, 1) != want
            values[place] ^= bit
    assert checksum(values, 1) == want
    assert checksum(np.zeros(size, np.uint8), 1) != checksum(np.zeros(size + 1, np.uint8), 1)


def test_checksums_see_order_and_signs():
    values = np.random.default_rng(0).standard_normal((64, 48, 16)).astype(np.float32)
    sums = [checksum(each, 2) for each in (values, values[::-1].copy(), values[:, ::-1].copy(), -values, values.T.copy())]
    block = np.concatenate([values.ravel()] * 4).reshape(-1, 1 << 14)  # whole blocks of the checksum exchanged
    sums += [checksum(block, 1), checksum(block[::-1].copy(), 1), checksum(np.roll(block, 1, 0), 1)]
    assert len(set(sums)) == len(sums)


def test_checksums_of_views():
    """Check that a transposed view is summed in place, and that elements that repeat are read once."""
    values = np.random.default_rng(0).standard_normal((8, 6, 5)).astype(np.float32)
    assert checksum(values.transpose(2, 0, 1), 1) == checksum(values, 1)
    some = values[::2, 1:, ::3]
    before = checksum(some, 1)
    values[1] += 1  # these elements lie between the rows of the view
    assert checksum(some, 1) == before
    values[2, 3, 3] += 1
    assert checksum(some, 1) != before
    repeated = np.broadcast_to(np.arange(3.0, dtype=np.float32), (1 << 40, 1, 3))
    assert checksum(repeated, 1) == checksum(np.arange(3.0, dtype=np.float32), 1)
    assert checksum(np.empty((0, 4), np.float32), 1) == checksum(np.empty(0, np.float32), 1)


# ---------------------------------------------------------------- freeze


def test_frozen_weights_are_not_compared():
    module, x = torch.nn.ConvTranspose2d(8, 8, 4, 2, 1), torch.randn(1, 8, 6, 6)
    module, report = ct.accelerate(module, freeze=True)
    assert report.frozen == ("",) and "convt.torch.refresh(model)" in str(report)
    with torch.no_grad():
        old = module(x).clone()
        module.weight.data.mul_(2)
        assert torch.equal(module(x), old)
        assert ct.refresh(module) is module
        for _ in range(2):
            close(module(x), F.conv_transpose2d(x, module.weight, module.bias, 2, 1))
        module.weight.data.mul_(2)
        assert ct.accelerate(module)[1].frozen == ()  # the weights are no longer frozen
        for _ in range(3):
            close(module(x), F.conv_transpose2d(x, module.weight, module.bias, 2, 1))
    with pytest.raises(TypeError, match="model: got list, wanted"):
        ct.refresh([])


def test_frozen_filters_of_functions():
    x, w = torch.randn(1, 4, 5), torch.randn(4, 4, 3)
    old = ct.conv_transpose1d(x, w, freeze=True)
    w.mul_(2)
    assert torch.equal(ct.conv_transpose1d(x, w, freeze=True), old)
    close(ct.conv_transpose1d(x, w), F.conv_transpose1d(x, w))  # no freeze: changes are noticed
    assert ct.refresh(w) is w
    close(ct.conv_transpose1d(x, w, freeze=True), F.conv_transpose1d(x, w))
    other = w.clone()  # freeze applies to one tensor
    other.add_(1)
    close(ct.conv_transpose1d(x, other, freeze=True), F.conv_transpose1d(x, other))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [torch.nn.utils.parametrizations.weight_norm, torch.nn.utils.weight_norm], ids=["new", "old"])
def test_frozen_parametrizations_are_computed_once(norm):
    module, x = norm(torch.nn.ConvTranspose1d(6, 4, 4, 2)).eval(), torch.randn(1, 6, 9)
    want = module(x)
    ct.accelerate(module, freeze=True)
    with torch.no_grad():
        for _ in range(3):
            close(module(x), want)
        for name, each in module.named_parameters():
            each.data.mul_(1 if name == "bias" else 3)  # scaling the direction alone does not change the weights
        close(module(x), want)
        ct.refresh(module)
        ct.accelerate(module)
        got = module(x)
    close(got, ct.restore(module)(x))
    assert not torch.allclose(got, want)


def test_frozen_sequentials_follow_refresh_and_dtype():
    model = torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU()).eval()
    plain, x = copy.deepcopy(model), torch.randn(1, 4, 5, 5)
    ct.accelerate(model, freeze=True)
    with torch.no_grad():
        old = [model(x) for _ in range(3)][-1]
        close(old, plain(x))
        for each in (model, plain):
            each[1].running_mean.data.add_(1)
        assert torch.equal(model(x), old)
        ct.refresh(model)
        close(model(x), plain(x))
        close(model.double()(x.double()), plain.double()(x.double()))


# ---------------------------------------------------------------- filters with shared memory


def test_an_expanded_filter_is_packed_once(monkeypatch):
    """Check that ``filter.expand(C, -1, -1)`` is planned for its first call, and again for later calls with packed weights,
    although it is a new tensor at each call, as in vocoders without aliasing."""
    makes, make = [], plans.Plans._bind
    monkeypatch.setattr(plans.Plans, "_bind", lambda self, *a: (makes.append(a), make(self, *a))[1])
    filter, x = torch.randn(1, 1, 12), torch.randn(2, 16, 31)
    for dtype in (torch.float32, torch.bfloat16):
        makes.clear()
        for _ in range(5):
            got = ct.conv_transpose1d(x.to(dtype), filter.to(dtype).expand(16, -1, -1), stride=2, groups=16)
            close(got, F.conv_transpose1d(x.to(dtype), filter.to(dtype).expand(16, -1, -1), stride=2, groups=16))
        assert len(makes) == 2
    # NumPy's views, and one whose elements cannot be walked.
    broadcast = np.broadcast_to(np.random.rand(1, 1, 12).astype(np.float32), (16, 1, 12))
    packed = np.zeros(16 * 12, [("a", "u1"), ("w", "<f4")])["w"].reshape(16, 1, 12)
    packed[...] = broadcast
    data = np.random.rand(1, 16, 20).astype(np.float32)
    want = convt.conv_transpose(data, broadcast.copy(), strides=2, groups=16, data_format="NCX", filter_format="IOX")
    for filter in (broadcast, packed):
        makes.clear()
        for _ in range(4):
            got = convt.conv_transpose(data, filter, strides=2, groups=16, data_format="NCX", filter_format="IOX")
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert len(makes) <= 1
        out = np.full_like(want, np.nan)
        convt.conv_transpose(data, filter, strides=2, groups=16, data_format="NCX", filter_format="IOX", out=out)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- tune


def test_tune_measures_once_for_each_shape(monkeypatch):
    measured = []

    def measure(runs):
        measured.append(list(runs))
        for run in runs.values():
            run()
        return {name: 2.0 - (name == fastest(runs)) for name in runs}

    def fastest(runs):
        return [name for name in runs if name != "onednn"][-1]  # "auto" chooses the first

    monkeypatch.setattr(_measure, "measure", measure)

    def algorithms(model):
        operators = _weights._filters[id(model[0].weight)].values.operators.values()
        with convt.num_threads(torch.get_num_threads()):
            return {op.plan((1, 8, 6, 6)).key for op in operators}

    plain = torch.nn.Sequential(torch.nn.ConvTranspose2d(8, 6, 4, 2), torch.nn.ReLU())
    model, _ = ct.accelerate(copy.deepcopy(plain), tune=True)
    for size in (5, 6):
        x = torch.randn(1, 8, size, size)
        with torch.no_grad():
            for _ in range(4):
                close(model(x), plain(x))
        assert len(measured) == size - 4
    assert algorithms(model) == {fastest(measured[-1])}
    model(x).sum().backward()  # no measurement while gradients are recorded
    # Another model without `tune` uses the measured choice.
    other, _ = ct.accelerate(copy.deepcopy(plain))
    with torch.no_grad():
        for _ in range(3):
            close(other(x), plain(x))
    assert algorithms(other) == {fastest(measured[-1])}
    assert len(measured) == 2
