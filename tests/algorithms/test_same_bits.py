"""Tests that results are bitwise equal: from call to call, and where docs/reliability.md says so between ways to call."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cases import ALGORITHMS, DTYPES, Case, may_refuse, operator, run

import convt
from convt import tuning
from convt._plan import choose
from convt._plan import measure as _measure

SEEDS = range(40)


def random_case(seed):
    """Return a random small problem in the layouts of PyTorch and ONNX, in which every output is reached by real numbers."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    rank = int(rng.integers(1, 4))
    draw = lambda low, high: tuple(map(int, rng.integers(low, high, rank)))  # noqa: E731
    kernel, dilations = draw(1, 6), tuple(pick(1, 1, 1, 2) for _ in range(rank))
    pads = tuple(int(rng.integers(0, (k - 1) * d // 2 + 1)) for k, d in zip(kernel, dilations, strict=True))
    groups = pick(1, 1, 1, 2, 4)
    return Case(
        dtype=pick("float32", "float32", "float32", *DTYPES), batch=pick(1, 1, 2, 5), groups=groups, ci=pick(1, 3, 16, 64, 200),
        co=pick(1, 2, 8, 40, 128), in_sizes=draw(1, (40, 10, 5)[rank - 1]), kernel=kernel, strides=draw(1, 4),
        dilations=dilations, pads_begin=pads, pads_end=pads, bias=bool(rng.integers(2)), data_format="NCX", filter_format="IOX",
        seed=seed,
    )  # fmt: skip


CASES = [pytest.param(case, id=str(case.seed)) for case in map(random_case, SEEDS) if min(case.windows[1]) > 0]
each_case = pytest.mark.parametrize("case", CASES)


def same(*results):
    return len({np.asarray(each).tobytes() for each in results}) == 1


def strided(array):
    """Return a view of equal values that is not contiguous."""
    return np.stack([array, array], -1)[..., 0]


@each_case
def test_repeated_calls(case):
    data, filter, bias = case.arrays(exact=False)
    out, op = np.empty(case.out_shape, case.numpy_dtype), operator(case, filter, bias)
    function = lambda **more: run(case, data, filter, bias, **more)  # noqa: E731
    first = function()
    assert same(first, function(), function(), function(out=out), run(case, strided(data), filter, bias))
    convt.clear_caches()
    assert same(first, function())
    first = op(data)
    assert same(first, op(data), op(data), op(data, out=out), op(strided(data)), operator(case, filter, bias)(data))
    assert same(first, operator(case, strided(filter), bias)(data))
    convt.clear_caches()
    assert same(first, op(data))


@each_case
def test_a_function_and_an_operator_of_one_algorithm(case):
    data, filter, bias = case.arrays(exact=False)
    chosen = operator(case, filter, bias).plan(data.shape).algorithm
    assert same(run(case, data, filter, bias, algorithm=chosen), operator(case, filter, bias)(data))
    for algorithm in ALGORITHMS:
        with may_refuse():
            op = operator(case, filter, bias, algorithm=algorithm)
            assert same(op(data), op(data), *(run(case, data, filter, bias, algorithm=algorithm) for _ in range(2))), algorithm


@pytest.mark.parametrize("axis", [0, 1])
def test_a_filter_with_repeated_elements_with_out_and_without(axis):
    """Check a filter that is the same for all in-channels or all out-channels."""
    case = Case(ci=64, co=40, in_sizes=(3, 3), kernel=3, strides=2, data_format="NCX", filter_format="IOX")
    data, whole, bias = case.arrays(exact=False)
    memory = whole.reshape(-1).copy()
    steps = [step * (n != axis) for n, step in enumerate(whole.strides)]
    filter = np.lib.stride_tricks.as_strided(memory, whole.shape, steps)
    out = np.empty(case.out_shape, np.float32)
    assert same(run(case, data, filter, bias), run(case, data, filter, bias, out=out), run(case, data, filter, bias))
    with pytest.raises(ValueError, match="out: got an array that overlaps filter"):
        run(case, data, filter, bias, out=memory[: out.size].reshape(out.shape))


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    from convt.torch import _weights

    _weights.forget()
    return found


def tensor(torch, array):
    return None if array is None else torch.from_numpy(array.astype(np.float64))


def layer(torch, case, **keywords):
    """Return torch's module of a case, its input, and the bits of convt's operator."""
    data, filter, bias = case.arrays(exact=False)
    module = getattr(torch.nn, f"ConvTranspose{len(case.kernel)}d")(
        case.groups * case.ci, case.groups * case.co, case.kernel, case.strides, case.pads_begin, groups=case.groups,
        bias=case.bias, dilation=case.dilations, dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():
        module.weight.copy_(tensor(torch, filter))
        if case.bias:
            module.bias.copy_(tensor(torch, bias))
    dtype = getattr(torch, case.dtype)
    module, _ = convt.torch.accelerate(module.to(dtype), **keywords)
    return module, tensor(torch, data).to(dtype), operator(case, filter, bias)(data)


def bits(tensor):
    """Return the elements of a tensor as an array of bytes."""
    return tensor.detach().contiguous().view(-1).view(dtype=__import__("torch").uint8).numpy()


@each_case
def test_torch_modules_and_functions(case, torch):
    """Check calls that record gradients and others, before weights are packed and after, and after weights have changed."""
    module, x, want = layer(torch, case)
    weight, bias = module.weight.detach().clone(), None if module.bias is None else module.bias.detach().clone()
    function = getattr(convt.torch, f"conv_transpose{len(case.kernel)}d")
    attributes = case.strides, case.pads_begin, case.output_padding, case.groups, case.dilations
    own = operator(case, *case.arrays()[1:])._attributes
    unpacked = choose.unpacked_pays(own.problem(x.shape), own, weight.nbytes) if weight.nbytes >= 1 << 17 else False
    for change in (False, True):
        with torch.no_grad():
            if change:
                module.weight.mul_(-1)
                weight.mul_(-1)
            found = [bits(module(x)) for _ in range(3)] + [bits(function(x, weight, bias, *attributes)) for _ in range(3)]
        found += [bits(module(x)), bits(module(x.clone().requires_grad_()))]
        assert same(*found, *([] if change or unpacked else [want]))
    with torch.no_grad():
        frozen, _ = convt.torch.accelerate(module, freeze=True)
        assert same(*([] if unpacked else [found[0]]), *(bits(frozen(x)) for _ in range(2)))


@pytest.mark.parametrize("case", CASES[:12])
def test_torch_fused_layers(case, torch):
    case = replace(case, dtype="float32")
    module, x, _ = layer(torch, case)
    norm = getattr(torch.nn, f"BatchNorm{len(case.kernel)}d")(case.groups * case.co)
    model, _ = convt.torch.accelerate(torch.nn.Sequential(module, norm, torch.nn.Tanh()).eval())
    for _ in range(2):
        with torch.no_grad():
            assert same(*(bits(model(x)) for _ in range(3)))
            norm.bias.add_(1)
    assert same(bits(model(x)), bits(model(x)))


@pytest.mark.parametrize("case", CASES[:12])
def test_torch_modules_that_are_tuned(case, torch, monkeypatch):
    """Check that the first call already takes the algorithm that wins the measurement, whichever it is."""
    turn = itertools.count()

    def measure(runs):
        able = [name for name, call in runs.items() if call() is not False]
        winner = able[next(turn) % len(able)]
        return {name: 2.0 - (name == winner) for name in able}

    monkeypatch.setattr(_measure, "measure", measure)
    monkeypatch.setattr(choose, "NEAR", math.inf)
    try:
        for _ in range(3):
            tuning.clear()
            module, x, _ = layer(torch, case, tune=True)
            with torch.no_grad():
                assert same(*(bits(module(x)) for _ in range(3)))
                before = bits(module(x))
                module.weight.mul_(-1)
                module(x)
                module.weight.mul_(-1)
                assert same(before, *(bits(module(x)) for _ in range(3)))
    finally:
        tuning.clear()
