"""Tests of convt.jax: results, shapes, errors and transformations are compared with jax.lax."""

import functools
import gc
import json
import math
import re
import threading
import warnings
import weakref

import numpy as np
import pytest
from cases import CURVED_ACTIVATIONS, EXACT_ACTIVATIONS, child, each_dtype, in_threads

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from fuzz.jax.transforms import TRANSFORMS as OF_FUZZER  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import convt  # noqa: E402
import convt.jax as cj  # noqa: E402
from convt.jax import _site, handler  # noqa: E402

lax = jax.lax
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 4e-3, "bfloat16": 4e-2}
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):  # float64
        yield


def normal(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def close(got, wanted, tolerance=2e-5):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        assert np.abs(ours - theirs).max(initial=0) <= tolerance * max(1.0, np.abs(theirs).max(initial=0))


def same_bits(a, b):
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def is_convts(function, *arguments):
    return "convt_" in str(jax.make_jaxpr(function)(*arguments))


def error_of(function, *arguments, **keywords):
    with pytest.raises(Exception) as caught:
        function(*arguments, **keywords)
    return type(caught.value), str(caught.value)


def both(strides=(2, 2), padding="SAME", **keywords):
    """Return jax.lax's function and convt's for the same keywords."""
    return [lambda x, w, f=f: f.conv_transpose(x, w, strides, padding, **keywords) for f in (lax, cj)]


X, W = normal(2, 7, 6, 5), normal(3, 4, 5, 8, seed=1)


# ---------------------------------------------------------------- the functions


@each_dtype
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 2), (0, 5)), ((-1, 2), (2, -1))], ids=str)
@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_conv_transpose_is_laxs(dtype, padding, transpose_kernel):
    x, w = X.astype(dtype), W.astype(dtype)
    w = w.swapaxes(2, 3) if transpose_kernel else w
    theirs, ours = both((2, 3), padding, transpose_kernel=transpose_kernel, rhs_dilation=(1, 2))
    assert is_convts(ours, x, w)
    wanted, got = theirs(x, w), [ours(x, w) for _ in range(4)]  # one-shot, packed, known
    close(got[0], wanted, TOLERANCE[dtype])
    assert all(same_bits(each, got[0]) for each in got)


@pytest.mark.parametrize("numbers", [NHWC, NCHW, ("NHWC", "IOHW", "NHWC"), ("NCHW", "HWOI", "NCHW")], ids=str)
@pytest.mark.parametrize("groups", [1, 4])
def test_conv_general_dilated_is_laxs(numbers, groups):
    sizes, kernel = {"N": 2, "C": 8, "H": 6, "W": 5}, {"I": 8 // groups, "O": 12, "H": 3, "W": 2}
    x, w = normal(*(sizes[each] for each in numbers[0])), normal(*(kernel[each] for each in numbers[1]), seed=1)
    keywords = {"lhs_dilation": (3, 2), "dimension_numbers": numbers, "feature_group_count": groups}
    theirs, ours = (lambda x, w, f=f: f(x, w, (1, 1), [(2, 1), (0, 1)], **keywords) for f in (
        lax.conv_general_dilated, cj.conv_general_dilated))  # fmt: skip
    assert is_convts(ours, x, w)
    close(jax.jit(ours)(x, w), theirs(x, w))


@pytest.mark.parametrize("rank, stride", [(1, 2), (3, 2), (2, 5)])  # with stride 5, no tap reaches some outputs
def test_other_ranks_and_strides(rank, stride):
    x, w = normal(2, *[5] * rank, 3), normal(*[3] * rank, 3, 4)
    theirs, ours = both((stride,) * rank)
    assert is_convts(ours, x, w)
    for _ in range(4):
        close(ours(x, w), theirs(x, w))


LEFT = {  # what is left to JAX
    "another layout": (X, W, {"dimension_numbers": ("HNWC", "HWIO", "HNWC")}),
    "two layouts": (X, W, {"dimension_numbers": ("NHWC", "HWIO", "NCHW")}),
    "another dtype of the result": (X, W, {"preferred_element_type": jnp.float64}),
    "no element": (X[:0], W, {}),
    "no spatial axis": (X[0, 0], W[0, 0], {"strides": (), "padding": ()}),
    "integers": (X.astype(int), W.astype(int), {}),
    "a begin beyond the scatter": (X, W, {"padding": ((3, 0), (0, 0))}),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_convt_does_not_support_is_laxs(name):
    x, w, keywords = LEFT[name]
    theirs, ours = both(**keywords)
    assert not is_convts(ours, x, w)
    close(ours(x, w), theirs(x, w), 0)


@pytest.mark.parametrize("keywords", [
    {}, {"lhs_dilation": None}, {"lhs_dilation": (1, 1)}, {"lhs_dilation": (2, 1), "window_strides": (2, 1)},
    {"lhs_dilation": (2, 2), "batch_group_count": 2},
], ids=str)  # fmt: skip
def test_ordinary_convolutions_are_laxs(keywords):
    keywords = {"window_strides": (1, 1), "padding": [(1, 1), (1, 1)], "dimension_numbers": NHWC} | keywords
    ours = lambda x, w: cj.conv_general_dilated(x, w, **keywords)  # noqa: E731
    assert not is_convts(ours, X, W)
    close(ours(X, W), lax.conv_general_dilated(X, W, **keywords), 0)


MISTAKES = {
    "channels": (X[..., :3], W, {}),
    "dtypes": (X, W.astype(jnp.float16), {}),
    "strides": (X, W, {"strides": (2,)}),
    "float strides": (X, W, {"strides": (2.0, 2.0)}),
    "padding": (X, W, {"padding": "some"}),
    "pads": (X, W, {"padding": ((1,), (2,))}),
    "rank": (X, W[0], {}),
    "layout": (X, W, {"dimension_numbers": ("NQ", "QI", "NQ")}),
    "precision": (X, W, {"precision": "best"}),
    "a keyword": (X, W, {"wrong": 1}),
    "no array": (3, W, {}),
    "an unhashable keyword": (X, W, {"rhs_dilation": np.ones((2, 2))}),
}


def test_errors_that_jax_finds_when_it_compiles():
    keywords = {"lhs_dilation": (2,), "dimension_numbers": NHWC}
    functions = (lambda x, w, f=f: f.conv_general_dilated(x, w, (1, 1), [(1, 1)] * 2, **keywords) for f in (lax, cj))
    theirs, ours = (error_of(jax.jit(f), X, W) for f in functions)
    assert ours[0] is theirs[0] and ours[1].split("\n")[0] == theirs[1].split("\n")[0]


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_are_laxs(name):
    x, w, keywords = MISTAKES[name]
    theirs, ours = both(**keywords)
    both()[1](X, W)  # a call before must not hide the error
    wanted = error_of(theirs, x, w)
    assert error_of(ours, x, w) == wanted
    with cj.patched():
        assert error_of(theirs, x, w) == wanted


def test_arguments_may_be_lists_and_numpy_arrays():
    wanted = lax.conv_transpose(X, W, [2, 2], [(1, 1), (2, 0)])
    close(cj.conv_transpose(np.asarray(X), np.asarray(W), [2, 2], [(1, 1), [2, 0]]), wanted)
    close(cj.conv_transpose(X, W, np.array([2, 2]), "SAME"), lax.conv_transpose(X, W, (2, 2), "SAME"))


def test_nan_and_infinity_of_the_data_are_laxs():
    theirs, ours = both()
    for value in (np.nan, np.inf, -np.inf):
        x = X.at[1, 2, 3, 4].set(value)
        for _ in range(4):
            np.testing.assert_allclose(ours(x, W), theirs(x, W), rtol=1e-4, atol=1e-4)


def test_precision_of_the_call_and_of_the_process():
    for precision in ("highest", lax.Precision.HIGH, (lax.Precision.DEFAULT, lax.Precision.HIGHEST)):
        theirs, ours = both(precision=precision)
        assert is_convts(ours, X, W)
        close(ours(X, W), theirs(X, W))
    texts = {precision: jax.jit(both(precision=precision)[1]).lower(X, W).as_text() for precision in (None, "default", "high")}
    assert [json.loads(_argument(each))["keywords"]["precision"] for each in texts.values()] == [None, None, "highest"]


def _argument(text):
    return json.loads('"' + re.search(r'arguments = "((?:[^"\\]|\\.)*)"', text)[1].replace("\\22", '\\"') + '"')


# ---------------------------------------------------------------- transformations


def loss(f):
    return lambda *a: (f(*a) ** 2).sum()


TRANSFORMS = OF_FUZZER | {
    "value_and_grad": lambda f: jax.jit(jax.value_and_grad(loss(f), (0, 1))),
    "jvp of x": lambda f: lambda x, w: jax.jvp(lambda x: f(x, w), (x,), (x,)),
    "vjp": lambda f: lambda *a: jax.vjp(f, *a)[1](f(*a)),
    "linearize": lambda f: lambda *a: jax.linearize(f, *a)[1](*a),
    "linear_transpose": lambda f: lambda x, w: jax.linear_transpose(lambda x: f(x, w), x)(f(x, w)),
    "jacrev": lambda f: lambda x, w: jax.jacrev(lambda x: f(x, w).ravel()[:7])(x),
    "jacfwd": lambda f: lambda x, w: jax.jacfwd(lambda s: f(x * s[0], w * s[1]))(jnp.ones(2, x.dtype)),
    "hessian": lambda f: lambda x, w: jax.hessian(lambda s: loss(f)(x * s[0], w * s[1]))(jnp.ones(2, x.dtype)),
    "while": lambda f: lambda x, w: lax.fori_loop(0, 3, lambda n, y: y + f(x * n, w), f(x, w)),
    "cond": lambda f: lambda x, w: lax.cond(x.sum() > 1e9, lambda: f(x, 0 * w), lambda: f(x, w)),
    "map": lambda f: lambda x, w: lax.map(lambda each: f(each[None], w), x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("numbers", [NHWC, NCHW], ids=["NXC", "NCX"])
def test_transformations(name, numbers):
    theirs, ours = both(dimension_numbers=numbers)
    x, w = (X, W) if numbers is NHWC else (X.transpose(0, 3, 1, 2), W.transpose(3, 2, 0, 1))
    transform = TRANSFORMS[name]
    assert is_convts(transform(ours), x, w)
    close(transform(ours)(x, w), transform(theirs)(x, w), 1e-4)


def test_vmap_of_groups():
    keywords = {"lhs_dilation": (2, 2), "dimension_numbers": NHWC, "feature_group_count": 2}
    functions = [lambda x, w, f=f: f.conv_general_dilated(x, w, (1, 1), [(1, 1)] * 2, **keywords) for f in (lax, cj)]
    x, w = normal(3, 2, 5, 5, 4), normal(3, 2, 2, 2, 6, seed=1)
    for axes in ((0, None), (None, 0), (0, 0)):
        arguments = [each if ax == 0 else each[0] for each, ax in zip((x, w), axes, strict=True)]
        theirs, ours = (jax.vmap(f, axes) for f in functions)
        assert is_convts(ours, *arguments)
        close(ours(*arguments), theirs(*arguments))


DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import convt, convt.jax as cj
lax = jax.lax
assert len(jax.devices()) == 2
x, w = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6, 5, 3), np.float32)), jnp.ones((3, 3, 3, 2))
f, g = (lambda x, w, m=m: m.conv_transpose(x, w, (2, 2), "SAME") for m in (cj, lax))
op = convt.ConvTranspose(np.ones((3, 3, 3, 2), np.float32), strides=2)
h = lambda x: cj.call(op, x)
wanted = g(x, w)
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
for f_, g_, more in ((f, g, (w,)), (h, lambda x: op(np.asarray(x)), ())):
    specs = (P("i"), *[P()] * len(more))
    for check in (True, False):
        mapped = jax.jit(jax.shard_map(f_, mesh=mesh, in_specs=specs, out_specs=P("i"), check_vma=check))
        assert "convt_" in mapped.lower(x, *more).as_text()
        for _ in range(4):
            close(mapped(x, *more), g_(x, *more))
    placed = jax.device_put(x, NamedSharding(mesh, P("i")))
    assert "convt_" not in jax.jit(f_).lower(placed, *more).as_text()  # XLA divides the program between the devices
    got = jax.jit(f_)(placed, *more)
    close(got, g_(x, *more))
    assert got.sharding.spec[0] == "i"
parallel = jax.pmap(f, in_axes=(0, None))
for _ in range(4):
    close(parallel(x.reshape(2, 2, 6, 5, 3), w).reshape(wanted.shape), wanted)
mapped = [jax.shard_map(k, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i")) for k in (f, g)]
grads = [jax.jit(jax.grad(lambda x, w, k=k: k(x, w).sum(), (0, 1)))(x, w) for k in mapped]
for a, b in zip(*grads):
    close(a, b)
explicit = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
with jax.set_mesh(explicit):
    a, b = jax.device_put(x, NamedSharding(explicit, P("i"))), jax.device_put(w, NamedSharding(explicit, P()))
    for k in (jax.jit(f), f):
        got = k(a, b)
        close(got, wanted)
        assert jax.typeof(got).sharding.spec[0] == "i"
second = jax.device_put(x, jax.devices()[1])
assert f(second, jax.device_put(w, jax.devices()[1])).devices() == {jax.devices()[1]}
print("done")
"""


def test_several_devices():
    code, out, error = child(DEVICES, timeout=300, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert code == 0 and out == "done\n", error


def test_without_jit():
    theirs, ours = both()
    with jax.disable_jit():
        close(ours(X, W), theirs(X, W))
        close(jax.jit(lambda x: cj.call(OP, x))(X), OP(np.asarray(X)), 0)


def test_explicit_sharding():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    theirs, ours = both()
    with jax.set_mesh(mesh):
        x, w = (jax.device_put(each, NamedSharding(mesh, PartitionSpec())) for each in (X, W))
        close(jax.jit(ours)(x, w), jax.jit(theirs)(x, w))


@pytest.mark.parametrize("call", ["conv_transpose", "conv_general_dilated", "patched", "accelerate", "call"])
@pytest.mark.parametrize("foreign", ["data", "filter"])
def test_arrays_of_foreign_byte_order_are_refused_as_by_jax(call, foreign):
    """Check calls after one with native arrays, whose compiled function JAX would take."""
    arrays, place = [np.asarray(X), np.asarray(W)], ["data", "filter"].index(foreign)
    dilated = dict(window_strides=(1, 1), padding=[(1, 1)] * 2, lhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def patched(x, w):
        with cj.patched():
            return lax.conv_transpose(x, w, (2, 2), "SAME")

    function = {
        "conv_transpose": lambda x, w: cj.conv_transpose(x, w, (2, 2), "SAME"),
        "conv_general_dilated": lambda x, w: cj.conv_general_dilated(x, w, **dilated),
        "patched": patched,
        "accelerate": cj.accelerate(lambda x, w: lax.conv_general_dilated(x, w, **dilated)),
        "call": lambda *both: cj.call(OP, both[place].reshape(-1)[:90].reshape(1, 3, 6, 5)),
    }[call]
    function(*arrays)
    arrays[place] = arrays[place].astype(">f4")
    with pytest.raises(TypeError):
        lax.conv_general_dilated(*arrays, **dilated)
    with pytest.raises(TypeError):
        function(*arrays)


# ---------------------------------------------------------------- lowering


def test_other_platforms_get_laxs_convolution():
    for function in (both()[1], lambda x, w: cj.call(OP, x)):
        lowered = jax.jit(function).trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
        assert "stablehlo.convolution" in lowered and handler.TARGET not in lowered
        lowered = jax.jit(function).trace(X, W).lower(lowering_platforms=("cpu",)).as_text()
        assert "stablehlo.convolution" not in lowered and handler.TARGET in lowered


def test_exported_programs_need_no_convt():
    theirs, ours = both()
    exported = jax.export.export(jax.jit(ours))(X, W)
    assert handler.TARGET not in exported.mlir_module()
    close(exported.call(X, W), theirs(X, W))
    batch = jax.export.symbolic_shape("b, 7, 6, 5")
    exported = jax.export.export(jax.jit(ours))(jax.ShapeDtypeStruct(batch, jnp.float32), W)
    close(exported.call(X, W), theirs(X, W))


CACHE = """
import sys, jax, jax.numpy as jnp, numpy as np, convt, convt.jax as cj
for name, value in {"jax_compilation_cache_dir": sys.argv[1], "jax_persistent_cache_min_compile_time_secs": 0,
                    "jax_persistent_cache_min_entry_size_bytes": -1}.items():
    jax.config.update(name, value)
x, w = jnp.ones((1, 5, 4, 3)), jnp.ones((3, 3, 3, 2))
f = jax.jit(lambda x, w: cj.conv_transpose(x, w, (2, 2), "SAME"))
scale = float(sys.argv[2])
op = convt.ConvTranspose(np.full((3, 3, 3, 2), scale, np.float32), strides=2)
h = jax.jit(lambda x: cj.call(op, x))
for _ in range(4):
    np.testing.assert_allclose(f(x, w), jax.lax.conv_transpose(x, w, (2, 2), "SAME"), rtol=1e-6)
    np.testing.assert_array_equal(h(x), op(np.asarray(x)))
"""


def test_programs_stored_on_disk(tmp_path):
    """Check that equal processes share their stored programs, and that another one has the weights of its own operator."""
    stored = []
    for scale in (1, 1, 2):
        code, _, error = child(CACHE, tmp_path, scale, timeout=120)
        assert code == 0, error
        stored.append({each.name for each in tmp_path.iterdir() if each.name.endswith("-cache")})
    assert stored[0] and stored[0] == stored[1]


def test_a_program_finds_an_operator_that_is_alive():
    """Check operators of equal weights, one of which ends before a program of the other is compiled."""
    make = lambda scale=1.0: convt.ConvTranspose(scale * np.asarray(W), strides=2)  # noqa: E731
    one = make()
    lowered = jax.jit(lambda x: cj.call(one, x)).lower(X)
    jax.jit(functools.partial(cj.call, make())).lower(X)
    gc.collect()
    close(lowered.compile()(X), one(np.asarray(X)), 0)
    other = make(2.0)
    close(jax.jit(lambda x: cj.call(other, x))(X), other(np.asarray(X)), 0)


@pytest.mark.parametrize(
    "keywords", [{}, {"pads_begin": 1, "output_padding": 1}, {"auto_pad": "same_upper"}, {"data_format": "NCX"}]
)
@pytest.mark.parametrize("text", ["n, 7, 6, 5", "n, h, w, 5", "1, 7, w, 5"])
def test_exported_calls_of_operators_take_any_size(text, keywords):
    op = convt.ConvTranspose(np.asarray(W), strides=2, activation="relu", **keywords)
    x, symbols = np.asarray(X), [each.strip() for each in text.split(",")]
    if op._attributes.data_format == "NCX":
        x, symbols = np.moveaxis(x, -1, 1), [symbols[0], symbols[-1], *symbols[1:-1]]
    sizes = [dim if each.isdigit() else each for dim, each in zip(x.shape, symbols, strict=True)]
    shape = jax.export.symbolic_shape(", ".join(map(str, sizes)))
    exported = jax.export.export(jax.jit(lambda x: cj.call(op, x)))(jax.ShapeDtypeStruct(shape, jnp.float32))
    close(exported.call(x), op(x))


def test_an_output_shape_needs_sizes_that_are_numbers():
    op = convt.ConvTranspose(np.asarray(W), strides=2, output_shape=(14, 12))
    call = jax.jit(lambda x: cj.call(op, x))
    export = lambda text: jax.export.export(call)(jax.ShapeDtypeStruct(jax.export.symbolic_shape(text), jnp.float32))  # noqa: E731
    close(export(f"n, {X.shape[1]}, {X.shape[2]}, {X.shape[3]}").call(X), op(np.asarray(X)))
    with pytest.raises(TypeError, match=r"x: got sizes .*, wanted integers, because the operator has an output_shape"):
        export(f"n, h, w, {X.shape[3]}")


# ---------------------------------------------------------------- weights


@pytest.fixture
def counted(monkeypatch):
    """Count the calls that Python computes, by whether packed weights computed them."""
    counts = []
    compute = _site.WithGivenWeights.compute

    def counting(self, *arguments):
        found = compute(self, *arguments)
        counts.append(found is not None)
        return found

    monkeypatch.setattr(_site.WithGivenWeights, "compute", counting)
    return counts


def test_weights_are_packed_at_their_second_call(counted):
    f = jax.jit(both()[1])
    wanted = lax.conv_transpose(X, W, (2, 2), "SAME")
    for _ in range(20):
        close(f(X, W + 0), wanted)  # other memory, equal values
    assert counted == [False, True]  # then without Python


def test_changed_weights_are_noticed(counted):
    theirs, ours = map(jax.jit, both())
    for n in range(12):
        w = W.at[0, 0, 0, n % 5].add(1e-3 * n)
        close(ours(X, w), theirs(X, w))
    assert counted == [False] * 12
    others = [W * n for n in range(1, 9)]
    for n in (0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 7, 0, 1, *range(8), 0, 0, 0):
        close(ours(X, others[n]), theirs(X, others[n]))
    del counted[:]
    for _ in range(5):
        close(ours(X, others[0]), theirs(X, others[0]))
    assert counted == []


def test_changes_between_the_samples_are_noticed(counted):
    """Change values of a large filter that its samples do not have."""
    x, filter = normal(1, 2, 2, 64), normal(4, 4, 64, 64)
    theirs, ours = map(jax.jit, both())
    for place in [(0, 0, 0, 0), (1, 1, 7, 9), (1, 1, 7, 9), (3, 3, 63, 63)]:
        filter = filter.at[place].add(1)
        for _ in range(3):
            close(ours(x, filter), theirs(x, filter))
    assert counted == [False, True, True, True, False, True]


def test_constants_are_packed_by_the_first_call(counted):
    theirs, ours = both()
    for w in (W, W * 2, np.asarray(W), jnp.ones_like(W)):
        f = jax.jit(lambda x, w=w: ours(x, w))
        for _ in range(3):
            close(f(X), theirs(X, w))
    assert counted == [True] * 4
    del counted[:]
    f = jax.jit(lambda x, w: ours(x, w) + ours(x, W))  # two sites
    for n in range(3):
        close(f(X, W * n), theirs(X, W * n) + theirs(X, W), 5e-5)
    assert sorted(counted) == [False] * 3 + [True]


def test_constants_of_a_loop():
    theirs, ours = both((1, 1))
    w = normal(3, 3, 5, 5)
    f = lambda g: jax.jit(lambda x: lax.fori_loop(0, 4, lambda _, y: g(y, w) / 8, x))  # noqa: E731
    close(f(ours)(X), f(theirs)(X))


def test_donated_weights():
    step = jax.jit(lambda x, w: (both()[1](x, w), w * 1.5), donate_argnums=1)
    w, plain = W + 0, W + 0
    for _ in range(6):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y, w = step(X, w)
        close(y, lax.conv_transpose(X, plain, (2, 2), "SAME"))
        plain = plain * 1.5


def test_weights_of_a_loop():
    weights = jnp.stack([normal(3, 3, 5, 5, seed=n) for n in range(3)])
    step = lambda f: lambda x, w: (f.conv_transpose(x, w, (1, 1), "SAME"), ())  # noqa: E731
    decoder = lambda f: jax.jit(lambda x: lax.scan(step(f), x, weights)[0])  # noqa: E731
    wanted, ours = decoder(lax)(X), decoder(cj)
    for _ in range(5):
        close(ours(X), wanted, 1e-4)


def test_results_do_not_depend_on_the_number_of_threads():
    x, w = normal(4, 24, 24, 32), normal(4, 4, 32, 16, seed=1)
    f = jax.jit(both()[1])
    first = f(x, w)
    try:
        for n in (1, 2, 3, 8):
            convt.set_num_threads(n)
            assert all(same_bits(f(x, w), first) for _ in range(3))
    finally:
        convt.set_num_threads(None)


# ---------------------------------------------------------------- operators


OP = convt.ConvTranspose(np.flip(np.asarray(W), (0, 1)), strides=2, pads_begin=1)


@each_dtype
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("activation", [*EXACT_ACTIVATIONS, *CURVED_ACTIVATIONS], ids=str)
def test_call_is_the_operators(dtype, data_format, activation):
    x = (X if data_format == "NXC" else X.transpose(0, 3, 1, 2)).astype(dtype)
    w, b = np.asarray(normal(3, 2, 5, 8).astype(dtype)), np.asarray(normal(8).astype(dtype))
    keywords = {"pads_begin": 1, "output_padding": 1, "data_format": data_format, "activation": activation}
    op = convt.ConvTranspose(w, b, strides=(2, 3), **keywords)
    f = jax.jit(lambda x: cj.call(op, x))
    assert all(same_bits(each, op(np.asarray(x))) for each in (f(x), f(x), f(x), cj.call(op, x)))
    if dtype in ("float32", "float64"):
        close(jax.jit(lambda x: cj._call._in_jax(x, op))(x), f(x), 1e-5)  # what other platforms compute
        with jax.numpy_dtype_promotion("standard"):
            step, direction = 1e-3, normal(*x.shape, seed=5).astype("float64")
        derivative = jax.jvp(f, (x,), (direction.astype(dtype),))[1]
        wide = convt.ConvTranspose(w.astype("float64"), b.astype("float64"), strides=(2, 3), **keywords)
        near = [wide(np.asarray(x, np.float64) + sign * step * np.asarray(direction)) for sign in (-1, 1)]
        numeric = (near[1] - near[0]) / (2 * step)
        far = np.abs(np.asarray(derivative, np.float64) - numeric) > 1e-2 * (1 + np.abs(numeric))
        assert far.mean() < 0.01  # of outputs that cross a kink of the activation


OF_ONE = TRANSFORMS.keys() - {"linear_transpose", "vmap rhs", "vmap both", "nested vmap", "vmap of grad"}


@pytest.mark.parametrize("name", sorted(OF_ONE))
def test_transformations_of_call(name):
    w = W
    op = convt.ConvTranspose(np.flip(np.asarray(w), (0, 1)), strides=2, pads_begin=(1, 0), pads_end=(0, 0))
    ours = lambda x, w: cj.call(op, x) + 0 * jax.lax.stop_gradient(w).sum()  # noqa: E731
    theirs = lambda x, v: lax.conv_transpose(x, w, (2, 2), [(1, 2), (3, 3)]) + 0 * jax.lax.stop_gradient(v).sum()  # noqa: E731
    assert is_convts(ours, X, W)
    close(TRANSFORMS[name](ours)(X, W), TRANSFORMS[name](theirs)(X, W), 1e-4)


def test_errors_of_call():
    for op, x, error in [
        (3, X, "op: got int, wanted a convt.ConvTranspose"), (OP, X.astype("float16"), "x: got dtype float16, wanted float32"),
        (OP, X[..., :3], "x: got 3 channels"), (OP, X[0], "x: got rank 3"),
    ]:  # fmt: skip
        kind, text = error_of(cj.call, op, x)
        assert kind in (TypeError, ValueError) and text.startswith(error), text


def test_an_updated_operator_computes_with_its_new_weights():
    op = convt.ConvTranspose(np.ones((2, 2, 5, 4), np.float32), strides=2)
    f = jax.jit(lambda x: cj.call(op, x))
    first = f(X)
    f(X)
    op.update(np.full((2, 2, 5, 4), 3, np.float32))
    for _ in range(3):
        close(f(X), 3 * first)


def test_an_operator_lives_as_long_as_its_programs():
    op = convt.ConvTranspose(np.ones((2, 2, 5, 4), np.float32), strides=2)
    seen, f = weakref.ref(op), jax.jit(lambda x, op=op: cj.call(op, x))
    wanted = f(X)
    cj.call(op, X)
    del op
    gc.collect()
    assert seen() is not None and same_bits(f(X), wanted)
    del f
    cj._call.call_p.forget()
    gc.collect()
    assert seen() is None


LEAK = """
import gc, resource, jax, jax.numpy as jnp, numpy as np, convt, convt.jax as cj
x, w = jnp.ones((1, 16, 16, 32)), jnp.ones((4, 4, 32, 32))
op = convt.ConvTranspose(np.asarray(w), strides=2)
f = jax.jit(lambda x, w: cj.conv_transpose(x, w, (2, 2), "SAME"))
h = jax.jit(lambda x: cj.call(op, x))
ws = [w + n for n in range(10)]
def bytes():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
def run(count):
    for n in range(count):
        f(x, ws[0]), h(x), f(x, ws[n % 10] if n % 50 == 0 else ws[0])
    jax.block_until_ready(f(x, w))
run(1000)
before = bytes()
run(10000)
assert bytes() - before < 8 << 20, (bytes() - before) >> 20
def programs(count):
    for n in range(count):
        jax.jit(lambda x, w: cj.conv_transpose(x, w * 1, (2, 2), "SAME") * n)(x, w)
        cj.call(convt.ConvTranspose(np.asarray(w), strides=2), x)
    jax.clear_caches()
programs(60)
before = bytes()
programs(60)
assert bytes() - before < 40 << 20, (bytes() - before) >> 20
print("done")
"""


def test_nothing_leaks_in_10000_calls():
    code, out, error = child(LEAK, timeout=300)
    assert code == 0 and out == "done\n", error


# ---------------------------------------------------------------- threads


EXIT = """
import jax, jax.numpy as jnp, numpy as np, convt, convt.jax as cj
x, w = jnp.ones((8, 64, 64, 64)), jnp.ones((4, 4, 64, 64))
op = convt.ConvTranspose(np.asarray(w), strides=2)
f = jax.jit(lambda x, w: cj.conv_transpose(x, w, (2, 2), "SAME").sum() + cj.call(op, x).sum())
running = [f(x, w * n) for n in range(3)]
"""


def test_python_ends_while_programs_run():
    for _ in range(3):
        code, _, error = child(EXIT, timeout=60)
        assert code == 0, error


def test_calls_of_several_threads():
    f, g = jax.jit(both()[1]), jax.jit(lambda x: cj.call(OP, x))
    inputs = [normal(2, 7, 6, 5, seed=n) for n in range(4)]
    weights = [W * n for n in range(1, 5)]
    wanted = [[lax.conv_transpose(x, w, (2, 2), "SAME") for w in weights] for x in inputs]
    operators = [OP(np.asarray(x)) for x in inputs]

    def work(n):
        for k in range(60):
            close(f(inputs[n], weights[k % 4]), wanted[n][k % 4])
            assert same_bits(g(inputs[n]), operators[n])
            if n == 0 and k % 10 == 0:
                convt.clear_caches()

    in_threads(work, 4)


def test_many_calls_in_one_program():
    """Let XLA run calls at once on its threads, of which each waits for tasks that others have begun."""
    x, ws = normal(4, 24, 24, 32), [normal(4, 4, 32, 16, seed=n) for n in range(8)]
    program = lambda f: jax.jit(lambda x, ws: [f.conv_transpose(x, w, (2, 2), "SAME") for w in ws])  # noqa: E731
    wanted, ours = program(lax)(x, ws), program(cj)
    for _ in range(20):
        got = ours(x, ws)
    close(got, wanted)


def test_denormals_are_the_same_on_all_threads():
    x, w = normal(4, 24, 24, 32) * 1e-20, normal(4, 4, 32, 16, seed=1) * 1e-20
    f = jax.jit(both()[1])
    first = f(x, w)
    assert all(same_bits(f(x, w), first) for _ in range(10))


# ---------------------------------------------------------------- libraries


def _flax_linen():
    nn = pytest.importorskip("flax.linen")
    last = nn.ConvTranspose(3, (3, 3), (2, 2), transpose_kernel=True)
    model = nn.Sequential([nn.ConvTranspose(8, (4, 4), (2, 2)), nn.relu, last])
    parameters = model.init(jax.random.key(0), X)
    return lambda x: model.apply(parameters, x)


def _flax_nnx():
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.ConvTranspose(5, 8, (4, 4), (2, 2), padding="SAME", rngs=nnx.Rngs(0))
    return lambda x: layer(x)


def _haiku():
    hk = pytest.importorskip("haiku")
    model = hk.without_apply_rng(hk.transform(lambda x: hk.Conv2DTranspose(8, 4, 2)(x)))
    parameters = model.init(jax.random.key(0), X)
    return lambda x: model.apply(parameters, x)


def _equinox():
    eqx = pytest.importorskip("equinox")
    layer = eqx.nn.ConvTranspose2d(5, 8, 4, 2, 1, key=jax.random.key(0))
    return lambda x: jax.vmap(layer)(x.transpose(0, 3, 1, 2))


def _equinox_groups():
    eqx = pytest.importorskip("equinox")
    layer = eqx.nn.ConvTranspose1d(6, 4, 5, 3, padding="SAME", groups=2, dilation=2, key=jax.random.key(0))
    return lambda x: layer(x[0, :, :, 0][:6])


LIBRARIES = [_flax_linen, _flax_nnx, _haiku, _equinox, _equinox_groups]


@pytest.mark.parametrize("library", LIBRARIES)
@jax.enable_x64(False)
def test_layers_of_libraries(library):
    model = library()
    x = X.astype("float32")
    wanted, plain = model(x), str(jax.make_jaxpr(model)(x))
    compiled = jax.jit(model)
    close(compiled(x), wanted)
    with cj.patched():
        assert is_convts(model, x)
        assert handler.TARGET in compiled.lower(x).as_text()  # compiled before, and again in the block
        for _ in range(4):
            close(compiled(x), wanted)
        close(jax.grad(loss(model))(x), jax.grad(loss(library()))(x), 1e-4)
    assert str(jax.make_jaxpr(model)(x)) == plain
    assert handler.TARGET not in compiled.lower(x).as_text() and same_bits(compiled(x), jax.jit(library())(x))
    accelerated = cj.accelerate(model)
    assert is_convts(accelerated, x) and not is_convts(model, x)
    close(jax.jit(accelerated)(x), wanted)


def test_nothing_is_left_after_a_block():
    before = lax.conv_transpose, lax.conv_general_dilated
    with cj.patched():
        assert lax.conv_transpose.__doc__ == before[0].__doc__ and lax.conv_transpose is not before[0]
        with cj.patched():
            pass
        assert is_convts(lambda: lax.conv_transpose(X, W, (2, 2), "SAME"))
        compiled = jax.jit(lambda x: lax.conv_transpose(x, W, (2, 2), "SAME"))
        compiled(X)
    assert (lax.conv_transpose, lax.conv_general_dilated) == before
    assert not is_convts(compiled, X)
    with pytest.raises(KeyError), cj.patched():
        raise KeyError
    with pytest.raises(KeyError):
        cj.accelerate(lambda: {}[0])()
    assert (lax.conv_transpose, lax.conv_general_dilated) == before
    assert error_of(cj.accelerate, 3) == (TypeError, "function: got int, wanted a callable")


def test_other_threads_are_not_in_the_block():
    found, wait, ready = [], threading.Event(), threading.Event()

    def other():
        wait.wait(60)
        found.append(is_convts(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), X, W))
        ready.set()

    thread = threading.Thread(target=other)
    thread.start()
    with cj.patched():
        assert is_convts(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), X, W)
        wait.set()
        ready.wait(60)
    thread.join(60)
    assert found == [False]


# ---------------------------------------------------------------- import


@pytest.mark.parametrize("before, wanted", [
    ("import jax; jax.__version_info__ = (0, 9, 0)", "convt.jax needs JAX 0.9.1 or newer: pip install 'jax>=0.9.1'; got JAX"),
    ("import jax; del jax.make_user_context", "lacks what convt uses"),
    ("import jax.ffi; jax.ffi.include_dir = lambda: sys.argv[1]",
     "got version 1.0 of XLA's foreign function interface in jaxlib, wanted 0.3 or a later 0.x"),
    ("import jax.ffi; jax.ffi.include_dir = lambda: '/nowhere'", "got a jaxlib without a version of XLA's interface"),
])  # fmt: skip
def test_a_jax_that_does_not_fit(before, wanted, tmp_path):
    header = tmp_path / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n")
    code, _, error = child(f"import sys\n{before}\nimport convt.jax", tmp_path)
    assert code == 1 and "ImportError: " in error and wanted in error, error


def test_importing_convt_does_not_import_jax():
    code, out, _ = child("import convt, sys; print('jax' in sys.modules)")
    assert (code, out) == (0, "False\n")


def test_import_starts_no_backend():
    code, out, error = child("import convt.jax, jax; print(bool(jax._src.xla_bridge._backends))")
    assert (code, out) == (0, "False\n"), error


# ---------------------------------------------------------------- profile


def test_a_profile_finds_the_layers_of_inner_functions():
    """Check shapes and numbers of calls: equal ones in jit, scan and cond, and a convolution that convt leaves to JAX."""
    upsample = jax.jit(lambda x, w: jax.lax.conv_transpose(x, w, (2,), "SAME"))

    def steps(x, w):
        x = jax.lax.scan(lambda x, _: (upsample(x, w)[:, ::2], None), x, length=3)[0]
        return jax.lax.cond(x[0, 0, 0] > 0, lambda x: upsample(x, w), lambda x: jnp.zeros((1, 20, 4)), x)

    x, w = jnp.ones((1, 10, 4)), jnp.ones((4, 4, 4)) / 16
    found = cj.profile(steps, x, w, budget=0.01)
    assert [(layer.calls, layer.data, layer.output) for layer in found.layers] == [(4, (1, 10, 4), (1, 20, 4))]
    assert found.host == "JAX" and 0 < found.share <= 1 and "JAX alone takes" in str(found)
    complex_ones = jnp.ones((1, 10, 4), jnp.complex64), jnp.ones((4, 4, 4), jnp.complex64)
    (left,) = cj.profile(upsample, *complex_ones, budget=0.01).layers
    assert math.isnan(left.convt_seconds) and left.host_seconds > 0


def test_a_profile_without_transposed_convolutions():
    found = cj.profile(lambda x, factor: x * factor, jnp.ones(3), keywords={"factor": 2}, budget=0)
    assert found.layers == () and found.verdict().startswith("Nothing is to gain: JAX computed no transposed convolution")


def test_a_profile_of_what_is_no_function():
    with pytest.raises(TypeError, match="function: got int, wanted a callable"):
        cj.profile(3)
    with pytest.raises(ValueError, match="budget"):
        cj.profile(jnp.sin, jnp.ones(3), budget=-1)
