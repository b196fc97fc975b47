"""Tests of arrays that convt refuses in every interface: an ``out`` that is not known to be writeable, and masked arrays."""

import functools

import numpy as np
import pytest

import convt
import convt.onnx
import convt.openvino

X, W, B = np.ones((1, 3, 4, 4), np.float32), np.ones((3, 5, 2, 2), np.float32), np.ones(5, np.float32)
OUT = (1, 5, 5, 5)
KEYWORDS = dict(data_format="NCX", filter_format="IOX")
OPENVINO = dict(strides=1, pads_begin=0, pads_end=0, dilations=1)


class Lent:
    """An array behind ``__dlpack__``, with the keywords of DLPack 1.0."""

    def __init__(self, array, **always):
        self.array, self.always = array, always

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords, **self.always)


class LentWithoutVersion(Lent):
    """An array behind ``__dlpack__`` without keywords, whose capsule has no version."""

    def __dlpack__(self):
        return self.array.__dlpack__()


class LentByJax(Lent):
    """An array behind ``__dlpack__`` that takes keywords, whose capsule has no version nevertheless."""

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__()


CALLS = {
    "function": lambda x, w, b, **more: convt.conv_transpose(x, w, b, **KEYWORDS, **more),
    "operator": lambda x, w, b, **more: convt.ConvTranspose(w, b, **KEYWORDS)(x, **more),
    "onnx operator": lambda x, w, b, **more: convt.onnx.ConvTransposeOperator(w, b)(x, **more),
    "openvino operator": lambda x, w, b, **more: convt.openvino.ConvolutionBackpropData(w, **OPENVINO)(x, **more),
}
WITHOUT_OUT = {
    "onnx function": lambda x, w, b: convt.onnx.conv_transpose(x, w, b),
    "openvino function": lambda x, w, b: convt.openvino.convolution_backprop_data(x, w, **OPENVINO),
    "openvino groups": lambda x, w, b: convt.openvino.group_convolution_backprop_data(x, w[None], **OPENVINO),
    "update": lambda x, w, b: convt.ConvTranspose(W, B, **KEYWORDS).update(w, b),
}
versioned = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy before 2.1 has no capsules with a version"
)
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def empty():
    return np.full(OUT, 7, np.float32)


def read_only():
    array = empty()
    array.flags.writeable = False
    return array


@versioned
@each_call
@pytest.mark.parametrize(
    "lend", [LentWithoutVersion, LentByJax, lambda _: Lent(read_only()), functools.partial(Lent, copy=True)]
)
def test_out_that_is_not_known_to_be_writeable_is_refused(call, lend):
    array = empty()
    for _ in range(2):  # the second call takes the fast path of repeated calls
        with pytest.raises(ValueError, match="out: got Lent.*, which does not say that it is writeable; wanted"):
            call(X, W, B, out=lend(array))
        assert (array == 7).all()
        call(X, W, B)


@versioned
@each_call
def test_out_that_says_that_it_is_writeable_is_written(call):
    array = empty()
    lent = Lent(array)
    assert call(X, W, B, out=lent) is lent
    np.testing.assert_array_equal(array, call(X, W, B))


@pytest.mark.parametrize("lend", [
    pytest.param(Lent, marks=versioned), LentWithoutVersion, LentByJax,
    pytest.param(lambda array: Lent(array.copy(), copy=True), marks=versioned),
])  # fmt: skip
def test_inputs_of_every_capsule_are_read(lend):
    want = convt.conv_transpose(X, W, B, **KEYWORDS)
    got = convt.conv_transpose(lend(X), lend(W), lend(B), add=lend(np.zeros(OUT, np.float32)), **KEYWORDS)
    np.testing.assert_array_equal(got, want)


def test_capsules_are_released():
    import sys
    import weakref

    class Array(np.ndarray):
        pass

    for lend in (Lent, LentWithoutVersion):
        array = X.copy().view(Array)
        alive, held = weakref.ref(array), lend(array)
        before = sys.getrefcount(array)
        convt.conv_transpose(held, W, B, **KEYWORDS)
        assert sys.getrefcount(array) == before
        del array, held
        assert alive() is None


@pytest.mark.parametrize("old", [False, True], ids=["", "old release"])
@each_call
def test_tensors_of_torch_are_written(call, old, monkeypatch):
    torch = pytest.importorskip("torch")
    if old:  # a release whose capsules have no version
        export = torch.Tensor.__dlpack__
        monkeypatch.setattr(torch.Tensor, "__dlpack__", lambda self, stream=-1: export(self))
    tensor = torch.full(OUT, 7.0)
    assert call(X, W, B, out=tensor) is tensor
    np.testing.assert_array_equal(tensor.numpy(), call(X, W, B))


@each_call
def test_arrays_of_jax_are_read_and_not_written(call):
    jax = pytest.importorskip("jax")
    array = jax.numpy.full(OUT, 7.0)
    with pytest.raises(ValueError, match="out: got ArrayImpl, which does not say that it is writeable"):
        call(X, W, B, out=array)
    assert (np.asarray(array) == 7).all()
    np.testing.assert_array_equal(call(*map(jax.numpy.asarray, (X, W, B))), call(X, W, B))


TAKES = {  # arguments of each interface
    **{name: ("x", "w", "b", "out", "add") for name in CALLS}, "openvino operator": ("x", "w", "out", "add"),
    "onnx function": ("x", "w", "b"), "openvino function": ("x", "w"), "openvino groups": ("x", "w"), "update": ("w", "b"),
}  # fmt: skip


@pytest.mark.parametrize("mask", [False, True], ids=["nothing masked", "masked"])
@pytest.mark.parametrize("name, argument", [(name, each) for name, arguments in TAKES.items() for each in arguments])
def test_masked_arrays_are_refused(name, argument, mask):
    given = {"x": X, "w": W, "b": B}
    array = empty() if argument in ("out", "add") else given[argument]
    with pytest.raises(TypeError, match=r"^\w+: got a masked array, wanted an array without a mask, which \.filled\(\)"):
        (CALLS | WITHOUT_OUT)[name](**{**given, argument: np.ma.masked_array(array, mask=mask)})


def test_masked_arrays_in_dask_are_refused():
    pytest.importorskip("dask.array")
    import convt.dask

    x, w = np.moveaxis(X, 1, -1), W[:, :, 0, 0].T.reshape(1, 1, 3, 5)
    import dask.array as da

    with pytest.raises(TypeError, match=r"^data: got chunks that are masked.*dask\.array\.ma\.filled\(\)"):
        convt.dask.conv_transpose(da.ma.masked_equal(da.from_array(x), 1), w)
    with pytest.raises(TypeError, match=r"^filter: got a masked array"):
        convt.dask.conv_transpose(da.from_array(x), np.ma.masked_array(w))
    hidden = da.from_array(x).map_blocks(np.ma.masked_array, meta=np.empty((0,) * 4, np.float32))  # only its chunks are masked
    with pytest.raises(TypeError, match=r"^data: got a masked array"):
        convt.dask.conv_transpose(hidden, w).compute()
