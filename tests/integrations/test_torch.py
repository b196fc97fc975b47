"""Tests of convt.torch's functions and modules: results, errors, gradients and compiled graphs are compared with torch's
own."""

import copy
import pickle
import random

import numpy as np
import pytest
from cases import child
from torch_cases import (  # noqa: F401
    DTYPES,
    FUNCTIONS,
    MODULES,
    OP,
    close,
    each_dtype,
    each_rank,
    fused_activations,
    random_case,
    reset_torch,
    torch,
)

import convt.torch as ct
from convt.torch import _arrays, _fuse

F = torch.nn.functional
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode


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


def _last(tensor):
    """Return a tensor in channels last, also where one channel makes it contiguous, too."""
    return tensor.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


LAYOUTS = {  # input and weight, drawn by ``r``, of spatial sizes ``s``
    "one channel": lambda r, *s: (_last(r(2, 1, *s)), r(1, 3, *s)),
    "one channel, contiguous": lambda r, *s: (r(2, 1, *s), r(1, 3, *s)),
    "one channel of a weight": lambda r, *s: (r(2, 3, *s), _last(r(3, 1, *s))),
    "one pixel": lambda r, *s: (_last(r(2, 3, *[1] * len(s))), r(3, 4, *s)),
    "a part of the width": lambda r, *s: (_last(r(2, 3, *s))[..., :-1], r(3, 4, *s)),
    "some channels": lambda r, *s: (_last(r(2, 5, *s))[:, :3], r(3, 4, *s)),
    "expanded": lambda r, *s: (r(2, 1, *s).expand(-1, 3, *s), r(3, 4, *s)),
    "an input": lambda r, *s: (_last(r(2, 3, *s)), r(3, 4, *s)),
    "a weight": lambda r, *s: (r(2, 3, *s), _last(r(3, 4, *s))),
    "an empty batch": lambda r, *s: (_last(r(0, 3, *s)), _last(r(3, 4, *s))),
    "a single image": lambda r, *s: (_last(r(1, 3, *s)), r(3, 4, *s)),
    "a large image": lambda r, *s: (_last(r(1, 3, 120, *[60] * len(s[1:]))), r(3, 4, *s)),
    "every other channel": lambda r, *s: (r(2, 6, *s)[:, ::2], r(3, 4, *s)),
    "every other image and pixel": lambda r, *s: (r(4, 3, *s)[::2, :, ::2], r(3, 4, *s)),
    "axes that change places": lambda r, *s: (r(2, 3, *s).transpose(2, -1), r(3, 4, *s)),
    "the axes of a weight in another order": lambda r, *s: (r(2, 3, *s), r(4, *s, 3).movedim(-1, 0)),
    "a negative view": lambda r, *s: (torch._neg_view(r(2, 3, *s)), r(3, 4, *s)),
}


@each_rank
@each_dtype
@pytest.mark.parametrize("what", LAYOUTS)
def test_layouts_are_torchs(rank, dtype, what):
    """Check that outputs have torch's values and strides, with gradients and without, and that graphs know the strides."""
    ours, torchs = FUNCTIONS[rank]
    x, w = LAYOUTS[what](lambda *shape: torch.randn(shape).to(dtype), *(4, 3, 5)[:rank])
    wanted = torchs(x, w, stride=2)
    calls = 1 if what == "a large image" else 3  # the second packs the weights, and the third is known
    for got in (*(ours(x, w, stride=2) for _ in range(calls)), ours(x, w.requires_grad_(), stride=2)):
        close(got, wanted)
        assert got.stride() == wanted.stride()
    if dtype == torch.float32 and what != "a negative view":  # compilers do not know the sign
        compiled = torch.compile(lambda x, w: ours(x, w, stride=2), backend="aot_eager", fullgraph=True)
        assert compiled(x, w).stride() == wanted.stride()


def test_suggested_formats_are_torchs():
    from torch._prims_common import suggest_memory_format

    draw, memory, found = random.Random(0), torch.empty(100_000), 0
    for _ in range(3000):
        sizes = [draw.choice((0, 1, 1, 2, 3)) for _ in range(draw.choice((3, 4, 5)))]
        strides = [draw.choice((0, 1, 1, 2, 3, 4, 6, 8, 9, 12, 18, 27)) for _ in sizes]
        if draw.random() < 0.5:  # strides of channels last, some with gaps
            strides[1] = 1
            for ax, inner in zip((*range(len(sizes) - 1, 1, -1), 0), (1, *range(len(sizes) - 1, 1, -1)), strict=True):
                strides[ax] = strides[inner] * max(sizes[inner], 1) * draw.choice((1, 1, 1, 2))
        tensor = memory.as_strided(sizes, strides)
        wanted = suggest_memory_format(tensor if len(sizes) > 3 else tensor.unsqueeze(2)) is not torch.contiguous_format
        assert _arrays._suggests_channels_last(tensor) == wanted, (sizes, strides)
        found += wanted
    assert found > 300


def test_calls_import_nothing_large():
    """Check that calls in both formats do not import sympy, which takes 0.3 s and 35 MiB."""
    code, _, errors = child("""
import sys, torch, convt.torch
model = convt.torch.accelerate(torch.nn.Sequential(torch.nn.ConvTranspose2d(3, 4, 2), torch.nn.ReLU()))[0]
for format in (torch.contiguous_format, torch.channels_last):
    model(torch.ones(1, 3, 5, 5).to(memory_format=format)).sum().backward()
    with torch.no_grad():
        model(torch.ones(1, 3, 5, 5).to(memory_format=format))
assert "sympy" not in sys.modules
""")
    assert code == 0, errors


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "behind", [torch.nn.Identity(), torch.nn.PReLU(), torch.nn.ReLU(inplace=True), *fused_activations()], ids=str
)
def test_layouts_behind_norms_and_activations(behind, norm, together):
    for channels, size in ((1, 4), (3, 1), (1, 1), (3, 4)):
        layers = [*([torch.nn.BatchNorm2d(channels)] if norm else []), behind]
        plain = torch.nn.Sequential(torch.nn.ConvTranspose2d(2, channels, 1), *layers).eval()
        plain.to(memory_format=torch.channels_last)
        model = ct.accelerate(copy.deepcopy(plain))[0]
        if not together:
            model[1].register_forward_hook(lambda *_: None)
        for x in (torch.randn(2, 2, size, size), _last(torch.randn(2, 2, size, size))):
            with torch.no_grad():
                wanted = plain(x)
                for _ in range(3):
                    got = model(x)
                    close(got, wanted)
                    assert got.stride() == wanted.stride()


def test_strides_of_an_activation_that_is_always_contiguous(monkeypatch):
    monkeypatch.setitem(_fuse._ACTIVATIONS, torch.nn.LogSigmoid, ("", "contiguous"))
    for channels, size in ((1, 4), (3, 1), (1, 1), (3, 4)):
        x = _last(torch.randn(2, channels, size, size))
        assert _fuse._with_strides(x, None, torch.nn.LogSigmoid()).stride() == torch.nn.LogSigmoid()(x).stride()


def test_input_and_output_are_not_copied():
    x, w = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 2, 2)
    assert np.shares_memory(_arrays.array(x), x.numpy())
    made = np.zeros((2, 3), np.float32)
    assert _arrays.tensor_of(made).data_ptr() == made.ctypes.data
    half = torch.zeros(3, dtype=torch.bfloat16)
    assert _arrays.array(half).ctypes.data == half.data_ptr()
    y = ct.conv_transpose2d(x, w, stride=2)
    y.add_(1)  # the result belongs to the caller
    close(ct.conv_transpose2d(x, w, stride=2), F.conv_transpose2d(x, w, stride=2))


def test_torchs_own_samples_and_errors():
    """Check the samples of OpInfo, with which torch tests its own functions."""
    pytest.importorskip("expecttest", reason="torch's own samples need it")
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


WRONG = [
    *({"stride": value} for value in (0, 1.5, True, "a", (1, 2, 3), 2**20, 2**62, 2**63, (2, 2**64))),
    *({"padding": value} for value in (-1, 9, "same", -(2**70))), *({"output_padding": value} for value in (5, 2**63)),
    *({"dilation": value} for value in (0, 2**40, (1, 2**63))), *({"groups": value} for value in (0, 3, 2**63)), {"other": 1},
    {"bias": torch.zeros(5)}, {"weight": torch.zeros(4, 2, 3)}, {"weight": torch.zeros(4, 2, 3, 3, dtype=torch.float64)},
    {"input": torch.zeros(1, 3, 5, 5)}, {"input": np.zeros((1, 4, 5, 5))},
    # One pixel, whose output is small: torch takes the lowest 32 bits of a stride.
    *({"input": torch.zeros(1, 4, 1, 1), "stride": value} for value in (2**31, 2**40, (1, 2**40))),
]  # fmt: skip


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_errors_are_torchs(wrong, gradients):
    """Check arguments out of range, of wrong types and shapes, and outputs larger than memory, by name and by place."""
    plain = {"input": torch.zeros(1, 4, 5, 5, requires_grad=gradients), "weight": torch.zeros(4, 2, 3, 3)}

    def errors(function):
        for by_place in range(3):
            given = list((plain | wrong).items())
            with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
                function(*[value for _, value in given[:by_place]], **dict(given[by_place:]))
            yield caught.type, str(caught.value).split("\n")[0], type(caught.value.__context__)

    wanted = list(errors(F.conv_transpose2d))
    assert list(errors(ct.conv_transpose2d)) == wanted
    with ct.functional():
        assert list(errors(F.conv_transpose2d)) == wanted


def test_others_are_torchs():
    x, w = torch.ones(1, 2, 3, dtype=torch.int64), torch.ones(2, 1, 2, dtype=torch.int64)
    close_to = F.conv_transpose1d(x, w)
    assert torch.equal(ct.conv_transpose1d(x, w), close_to)
    meta = ct.conv_transpose2d(torch.empty(1, 2, 3, 3, device="meta"), torch.empty(2, 1, 2, 2, device="meta"), stride=2)
    assert meta.shape == (1, 1, 6, 6) and meta.device.type == "meta"


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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("asked", ["x", "w", "x w", "inner", "inner w", "backward", "backward w"])
def test_a_backward_pass_computes_what_torchs_does(asked, bias):
    """Compare the gradients that the two ask `convolution_backward` for. ``inner`` is data that another layer computed."""

    class Masks(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if function is torch.ops.aten.convolution_backward.default:
                found.append(list(arguments[-1]))
            return function(*arguments, **(keywords or {}))

    masks = []
    for function in FUNCTIONS[1]:
        found, made = [], {"x": torch.randn(1, 4, 5), "w": torch.randn(4, 3, 2), "b": torch.randn(3)}
        for each in made.values():
            each.requires_grad_()
        made["inner"] = made["x"] * 2
        y = function(made["inner" if "inner" in asked else "x"], made["w"], made["b"] if bias else None, stride=2).sum()
        inputs = [made[name] for name in asked.split() if name in made]
        with Masks():
            if "backward" in asked:
                y.backward(inputs=inputs or None)
            else:
                torch.autograd.grad(y, inputs)
        masks.append(found)
    assert masks[0] == masks[1] and len(masks[0]) == 1


@pytest.mark.parametrize("dims", [(0, None, None), (1, None, None), (0, 0, 0), (None, 1, None), (0, 0, None), (None, None, 0)])
def test_vmap(dims):
    shapes = (2, 4, 5, 5), (4, 3, 3, 3), (6,)
    arguments = [
        torch.randn(shape if dim is None else (*shape[:dim], 3, *shape[dim:])) for shape, dim in zip(shapes, dims, strict=True)
    ]
    results = [torch.vmap(lambda x, w, b, f=f: f(x, w, b, 2, 1, 1, 2), dims)(*arguments) for f in FUNCTIONS[2]]
    close(*results)
    assert results[0].stride() == results[1].stride()


@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_under_autocast(compiled):
    """Check that vmap keeps dtypes under autocast as torch does, for mapped tensors and for others."""
    x, w, y = torch.randn(2, 1, 4, 5, 5), torch.randn(4, 4, 3, 3), torch.randn(1, 4, 5, 5)
    results = []
    for f in FUNCTIONS[2]:
        calls = [torch.vmap(lambda each, f=f: f(each, w) + f(y, w)), torch.vmap(lambda each, f=f: f(y, each), 1)]
        for call, given in zip(calls, (x, w[:, None].expand(-1, 2, -1, -1, -1)), strict=True):
            call = torch.compile(call, backend="aot_eager") if compiled else call
            with torch.autocast("cpu", torch.bfloat16):
                results.append(call(given))
    for got, wanted in zip(results[:2], results[2:], strict=True):
        close(got, wanted)


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
